"""Means over seeds, with confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


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


def signed(e: Estimate, digits: int = 2) -> str:
    """+0.42 [+0.10, +0.74]; without the interval for a single value."""
    interval = f" [{e.low:+.{digits}f}, {e.high:+.{digits}f}]" if e.count > 1 else ""
    return f"{e.mean:+.{digits}f}{interval}".replace("-", "\N{MINUS SIGN}")
