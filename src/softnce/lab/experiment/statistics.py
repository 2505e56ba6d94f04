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


def seeds_needed(gap: Estimate, *distances: float, power: float = 0.8) -> int | None:
    """How many values decide: a 95 % interval around the mean that excludes every number ``distances`` away from it.

    With probability ``power`` at least, if mean and standard deviation are as in ``gap``, by the noncentral t
    distribution; of two distances, one is below the mean and one above. None where more than :data:`MOST_SEEDS` are
    needed, or where one value says nothing of the deviation.
    """
    from scipy.stats import nct, t

    if gap.count < 2:
        return None
    deviation = (gap.high - gap.mean) / float(t.ppf(0.975, gap.count - 1)) * math.sqrt(gap.count)

    def excludes(distance: float, count: int) -> float:
        if deviation == 0:
            return float(distance > 0)
        apart = distance / deviation * math.sqrt(count)
        return 1.0 if apart > 20 else float(nct.sf(t.ppf(0.975, count - 1), count - 1, apart))

    def decides(count: int) -> bool:
        return 1 - sum(1 - excludes(distance, count) for distance in distances) >= power

    low, high = 1, 2
    while not decides(high):
        low, high = high, 2 * high
        if low > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def over_samples(ours: ArrayLike, theirs: ArrayLike) -> Estimate:
    """Mean difference in accuracy of paired seeds on the same samples, in points, for other seeds *and* other samples.

    Seeds and samples are crossed random effects: the variance of the mean is what seeds add to it, plus what samples
    add beyond the rest. The interval is Student's t with Satterthwaite's degrees of freedom, and at least that of
    :func:`estimate` over the seeds. With one seed it is that of other samples alone.

    Args:
        ours, theirs: which samples are right, (seeds, samples) each.
    """
    from scipy.stats import t

    difference = 100 * (np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))
    seeds, samples = difference.shape
    by_seed, by_sample, mean = difference.mean(1), difference.mean(0), float(difference.mean())
    of_samples = by_sample.var(ddof=1) / samples
    if seeds == 1:
        half = float(t.ppf(0.975, samples - 1)) * math.sqrt(of_samples)
        return Estimate(mean, mean - half, mean + half, 1)
    rest = difference - by_seed[:, None] - by_sample + mean
    of_seeds = by_seed.var(ddof=1) / seeds
    of_samples = max(of_samples - (rest**2).sum() / ((seeds - 1) * (samples - 1)) / (seeds * samples), 0.0)
    over_seeds = estimate(by_seed.tolist())
    if of_samples == 0:
        return over_seeds
    freedom = (of_seeds + of_samples) ** 2 / (of_seeds**2 / (seeds - 1) + of_samples**2 / (samples - 1))
    half = max(float(t.ppf(0.975, freedom)) * math.sqrt(of_seeds + of_samples), over_seeds.high - mean)
    return Estimate(mean, mean - half, mean + half, seeds)


def signed(e: Estimate, digits: int = 2) -> str:
    """+0.42 [+0.10, +0.74]; without the interval for a single value."""
    interval = f" [{e.low:+.{digits}f}, {e.high:+.{digits}f}]" if e.count > 1 else ""
    return f"{e.mean:+.{digits}f}{interval}".replace("-", "\N{MINUS SIGN}")
