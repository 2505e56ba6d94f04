"""Limits are judged by ratios within rounds, and only where the sizes were measured."""

import pytest

from softnce.lab.bench.cases import CASES, Size
from softnce.lab.bench.limits import Limit, limits
from softnce.lab.bench.measurement import Measurement
from softnce.lab.bench.scaling import Exponent
from softnce.lab.bench.timing import Spread


def measurement(name: str, n: int, k: int, times: tuple[float, ...], bytes: int = 1, ratio: float | None = None):
    spread = None if ratio is None else Spread(ratio, ratio, ratio, 1)
    return Measurement(CASES[name], Size(n, k), times, bytes, spread)


def by_what(found: list[Limit]) -> dict[str, Limit]:
    return {limit.what: limit for limit in found}


def test_ratios_are_taken_within_rounds() -> None:
    ours = measurement("softnce, MixUp pairs", 1024, 1000, (1.0, 2.0, 3.0), bytes=10, ratio=2.4)
    theirs = measurement("published N×M×K formulation", 1024, 1000, (400.0, 800.0), bytes=1990)
    found = by_what(limits([ours, theirs], {}, {}))
    time = found["time of the published formulation over pairs, N=M=1024, K=1000"]
    assert (time.measured, time.is_kept) == (400, True)
    peak = found["peak of the published formulation over pairs, N=M=1024, K=1000"]
    assert (peak.measured, peak.is_kept) == (199, False)
    assert found["MixUp pairs over F.cross_entropy, probabilities, N=1,024, K=1,000"].is_kept


def test_the_fastest_peer_counts() -> None:
    ours = [
        measurement("softnce.linear, pairs, SparseAdam", 1024, k, (seconds,))
        for k, seconds in ((10_000, 1.0), (100_000, 1.1), (1_000_000, 1.4))
    ]
    peers = [
        measurement("F.linear + F.cross_entropy, labels", 1024, 100_000, (110.0,)),
        measurement("F.linear_cross_entropy by 256 rows, labels", 1024, 100_000, (44.0,)),
    ]
    found = by_what(limits([*ours, *peers], {}, {}))
    full = found["fastest full softmax over the step from a table with SparseAdam, K=100,000"]
    assert full.measured == pytest.approx(40)
    assert not full.is_kept
    assert not found["step from a table with SparseAdam, K=1,000,000 over K=10,000"].is_kept


def test_labels_are_judged_where_rows_are_as_many_as_classes() -> None:
    rows = [measurement("softnce, labels", n, k, (1.0,), ratio=1.4) for n, k in ((128, 100), (128, 1000))]
    assert list(by_what(limits(rows, {}, {}))) == ["labels over F.cross_entropy, labels, N=128, K=100"]


def test_compiled_is_compared_with_eager() -> None:
    rows = [
        measurement("softnce, labels", 8, 5, (1.0, 2.0), ratio=1.0),
        measurement("softnce, labels, compiled", 8, 5, (1.1, 2.2)),
    ]
    (found,) = limits(rows, {}, {})
    assert found.measured == pytest.approx(1.1)
    assert not found.is_kept


def test_exponents_and_bytes() -> None:
    fitted = {"K": {"softnce.linear, pairs": {"time": Exponent(-0.06, 0.01), "memory": Exponent(0, 0)}}}
    found = limits([], fitted, {"dense": 1000, "pairs": 4})
    assert [limit.is_kept for limit in found] == [False, True]


def test_nothing_measured_nothing_judged() -> None:
    assert limits([], {}, {}) == []
