"""Means over seeds, with confidence intervals; what the test samples add to them; and how many seeds would decide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

MOST_SEEDS = 100_000
"""Beyond this a number of seeds is not worth stating."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % confidence interval (Student's t); the interval is the mean itself for one value."""

    mean: float
    low: float
    high: float
    count: int

    def __neg__(self) -> "Estimate":
        return Estimate(-self.mean, -self.high, -self.low, self.count)

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def spread(self, digits: int) -> str:
        """Mean ± half of the interval, as in a table: 62.1 ± 0.3; the mean alone for a single value."""
        text = f"{self.mean:.{digits}f}"
        return text if self.count == 1 else f"{text} ± {self.high - self.mean:.{digits}f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of independent ``values``. For paired data, pass the differences."""
    from scipy.stats import t

    count = len(values)
    if count == 0:
        raise ValueError("estimate: got no values")
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, mean, mean, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def seeds_needed(gap: Estimate, distance: float, power: float = 0.8) -> int | None:
    """How many values decide: a 95 % interval around the mean that excludes a number ``distance`` away from it.

    With probability ``power``, if mean and standard deviation are as in ``gap``, by the noncentral t distribution. None
    where more than :data:`MOST_SEEDS` are needed, or where one value says nothing of the deviation.
    """
    from scipy.stats import nct, t

    if gap.count < 2:
        return None
    deviation = (gap.high - gap.mean) / float(t.ppf(0.975, gap.count - 1)) * math.sqrt(gap.count)

    def decides(count: int) -> bool:
        if deviation == 0:
            return distance > 0
        apart = distance / deviation * math.sqrt(count)
        return bool(apart > 20 or nct.sf(t.ppf(0.975, count - 1), count - 1, apart) >= power)

    low, high = 1, 2
    while not decides(high):
        low, high = high, 2 * high
        if low > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def over_samples(ours: ArrayLike, theirs: ArrayLike, draws: int = 2000) -> Estimate:
    """Mean difference in accuracy of paired seeds on the same samples, in points, for other seeds *and* other samples.

    A bootstrap with fixed random numbers draws seeds and samples anew, both with replacement; the interval holds the
    middle 95 %.

    Args:
        ours, theirs: which samples are right, (seeds, samples) each.
        draws: repetitions of the bootstrap.
    """
    difference = 100 * (np.asarray(ours, dtype=np.float32) - np.asarray(theirs, dtype=np.float32))
    seeds, samples = difference.shape
    random = np.random.default_rng(0)
    weights = random.multinomial(samples, np.full(samples, 1 / samples), size=draws).astype(np.float32) / samples
    by_draw = weights @ difference.T  # (draws, seeds): each draw's samples, every seed
    chosen = random.integers(seeds, size=(draws, seeds))
    means = np.take_along_axis(by_draw, chosen, 1).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(difference.mean()), float(low), float(high), seeds)


def signed(e: Estimate, digits: int = 2) -> str:
    """+0.42 [+0.10, +0.74]; without the interval for a single value."""
    interval = f" [{e.low:+.{digits}f}, {e.high:+.{digits}f}]" if e.count > 1 else ""
    return f"{e.mean:+.{digits}f}{interval}".replace("-", "\N{MINUS SIGN}")
