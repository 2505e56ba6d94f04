"""Interleaved timing: in every round each step runs once, in a new order, so that all see the same load.

Ratios are taken within a round and their median over rounds is reported; a single time says little on a shared machine.
"""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from softnce.lab.bench.cases import Step

Key = TypeVar("Key")
Clock = Literal["wall", "cpu"]
_CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
SHORTEST = 0.01
"""Least seconds of a single timing; faster steps are repeated within it."""


class Load:
    """How much of the time this thread was kept off the processor, while ``with`` blocks ran."""

    def __init__(self) -> None:
        self._wall = self._own = 0.0

    def __enter__(self) -> "Load":
        self._wall -= time.perf_counter()
        self._own -= time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._wall += time.perf_counter()
        self._own += time.thread_time()

    @property
    def waited(self) -> float:
        """The share of all blocks' time."""
        return max(0.0, 1 - self._own / self._wall) if self._wall else 0.0

    def warning(self, clock: Clock) -> str | None:
        """What a reader must know of the times; None where the machine was quiet."""
        if self.waited < 0.1:
            return None
        found = f"The machine was busy: for {100 * self.waited:.0f} % of the time other programs had the processor. "
        if clock == "wall":
            return found + "Times, and ratios of short steps, are not to be trusted; use --clock cpu --threads 1."
        return found + "Processor time leaves that out, but caches are shared: compare ratios, not times."


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    @property
    def relative(self) -> float:
        """Half the interquartile range, as a share of the median."""
        return (self.high - self.low) / 2 / self.median


def interleaved(
    steps: Mapping[Key, Step],
    rounds: int,
    seconds: float,
    on_timing: Callable[[], None] = lambda: None,
    clock: Clock = "wall",
) -> dict[Key, list[float]]:
    """Seconds per call of each step, one entry per round.

    A step slower than ``seconds``/``rounds`` runs in the first rounds only, until it has used up ``seconds``; in
    three of them at least, or in one if a call takes longer than ``seconds``. Entry r of every list is from round r.
    The ``clock`` "cpu" counts the processor time of all threads, which other processes change little.
    """
    times: dict[Key, list[float]] = {name: [] for name in steps}
    now = _CLOCKS[clock]
    calls = {name: _warm_up(step, now) for name, step in steps.items()}
    repeats = {name: max(1, math.ceil(SHORTEST / call)) for name, call in calls.items()}
    fewest = {name: 1 if call > seconds else min(3, rounds) for name, call in calls.items()}
    order = random.Random(0)
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()  # Python's collector would fall on one step or another
    try:
        for _ in range(rounds):
            for name in order.sample(list(steps), len(steps)):
                taken = times[name]
                if len(taken) < fewest[name] or sum(taken) * repeats[name] < seconds:
                    taken.append(_seconds_a_call(steps[name], repeats[name], now))
                on_timing()
    finally:
        if was_enabled:
            gc.enable()
    return times


def ratios(times: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Of the rounds in which both took part."""
    return [mine / its for mine, its in zip(times, reference, strict=False)]


def _warm_up(step: Step, now: Callable[[], float]) -> float:
    step()
    return max(_seconds_a_call(step, 1, now), 1e-6)


def _seconds_a_call(step: Step, repeats: int, now: Callable[[], float]) -> float:
    started = now()
    for _ in range(repeats):
        step()
    return (now() - started) / repeats
