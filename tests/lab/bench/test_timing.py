"""Rounds, medians and ratios, by a clock that only the steps move."""

import pytest

from softnce.lab.bench import timing
from softnce.lab.bench.timing import Load, Spread, interleaved, ratios


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setitem(timing._CLOCKS, "wall", lambda: now[0])
    return now


def step(clock: list[float], seconds: float, calls: list[str], name: str):
    def run() -> None:
        clock[0] += seconds
        calls.append(name)

    return run


def test_times_are_those_of_one_call(clock: list[float]) -> None:
    calls: list[str] = []
    steps = {"fast": step(clock, 0.001, calls, "fast"), "slow": step(clock, 0.03, calls, "slow")}
    times = interleaved(steps, rounds=6, seconds=100)
    assert times["fast"] == pytest.approx([0.001] * 6)
    assert times["slow"] == pytest.approx([0.03] * 6)
    assert ratios(times["slow"], times["fast"]) == pytest.approx([30] * 6)
    assert calls.count("fast") == 2 + 6 * 10  # warm-up, and as many as fill a timing


def test_rounds_are_interleaved_in_changing_order(clock: list[float]) -> None:
    calls: list[str] = []
    interleaved({name: step(clock, 0.02, calls, name) for name in "abc"}, rounds=8, seconds=100)
    rounds = ["".join(calls[6 + 3 * r : 9 + 3 * r]) for r in range(8)]
    assert all(sorted(order) == list("abc") for order in rounds)
    assert len(set(rounds)) > 1


@pytest.mark.parametrize(("seconds_a_call", "expected"), [(0.1, 10), (0.9, 3), (1.5, 3), (3.0, 1)])
def test_slow_steps_take_part_in_few_rounds(clock: list[float], seconds_a_call: float, expected: int) -> None:
    times = interleaved({"slow": step(clock, seconds_a_call, [], "slow")}, rounds=10, seconds=2)
    assert len(times["slow"]) == expected


def test_progress_is_told_of_every_round(clock: list[float]) -> None:
    told: list[None] = []
    steps = {"slow": step(clock, 5, [], "slow"), "fast": step(clock, 0.1, [], "fast")}
    interleaved(steps, 4, 1, lambda: told.append(None))
    assert len(told) == 8


def test_spread_is_median_and_quartiles() -> None:
    spread = Spread.of([5, 1, 2, 3, 4])
    assert (spread.median, spread.low, spread.high, spread.count) == (3, 2, 4, 5)
    assert spread.relative == pytest.approx(1 / 3)
    assert Spread.of([7.0]) == Spread(7, 7, 7, 1)


def test_ratios_are_of_common_rounds() -> None:
    assert ratios([2, 4], [1, 1, 1]) == [2, 4]


def test_a_busy_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, own = iter([0.0, 10.0, 20.0, 30.0]), iter([0.0, 9.5, 9.5, 12.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(timing.time, "thread_time", lambda: next(own))
    with Load() as quiet:
        pass
    with Load() as busy:
        pass
    assert quiet.warning("wall") is None
    assert busy.waited == pytest.approx(0.75)
    assert "75 % of the time" in busy.warning("wall")
    assert "--clock cpu" in busy.warning("wall")
    assert "--clock cpu" not in busy.warning("cpu")


def test_load_leaves_out_what_lies_between_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between timings the bench waits for another process, which measures memory."""
    wall, own = iter([0.0, 10.0, 90.0, 100.0]), iter([0.0, 10.0, 10.0, 18.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(timing.time, "thread_time", lambda: next(own))
    load = Load()
    assert load.waited == 0
    for _ in range(2):
        with load:
            pass
    assert load.waited == pytest.approx(0.1)
