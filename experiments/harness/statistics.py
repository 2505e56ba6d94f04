"""Means over seeds with 95 % intervals, paired differences, and groups of rows."""

import json
import math
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.harness.rows import Row

Value = Callable[[Row], float]
"""A number of a row: percent, nats, …"""
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % confidence interval (Student's t) over ``count`` values.

    One value has no interval (low = high = mean) and decides nothing. `exact` marks a number that no seed can change.
    """

    mean: float
    low: float
    high: float
    count: int
    exact: bool = False

    def __neg__(self) -> "Estimate":
        return Estimate(-self.mean, -self.high, -self.low, self.count, self.exact)

    def __sub__(self, other: float) -> "Estimate":
        return Estimate(self.mean - other, self.low - other, self.high - other, self.count, self.exact)

    def __mul__(self, factor: float) -> "Estimate":
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.mean * factor, low, high, self.count, self.exact)

    def spread(self, digits: int, *, sign: bool = False) -> str:
        """As in a table: 62.1 ± 0.3; the mean alone for one value. ``sign`` writes + before a positive mean."""
        text = f"{self.mean:{'+' if sign else ''}.{digits}f}".replace("-", MINUS)
        return text if self.count == 1 or self.exact else f"{text} ± {self.high - self.mean:.{digits}f}"

    def signed(self, digits: int = 2) -> str:
        """As a difference: +0.42 [+0.10, +0.74]; without the interval for one value."""
        interval = f" [{self.low:+.{digits}f}, {self.high:+.{digits}f}]" if self.count > 1 and not self.exact else ""
        return f"{self.mean:+.{digits}f}{interval}".replace("-", MINUS)


def exactly(value: float) -> Estimate:
    """A number computed without randomness."""
    return Estimate(value, value, value, 1, exact=True)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of independent values; for paired data, of the differences."""
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


def over_samples(ours: ArrayLike, theirs: ArrayLike) -> Estimate:
    """Mean difference in accuracy, in points, with an interval for other seeds *and* other test samples.

    Seeds and samples are crossed random effects: the variance of the mean is that of seeds plus that of samples beyond
    the rest. Student's t with Satterthwaite's degrees of freedom, at least as wide as :func:`estimate` over seeds.

    Args:
        ours, theirs: correct answers as booleans, (seeds, samples) each.
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


def percent(score: str, part: str = "test") -> Value:
    """A score of a training in per cent, such as top1 or ece of its test part."""
    return lambda row: 100 * row.result[part][score]


def nats(score: str, part: str = "test") -> Value:
    """A score of a training as it is, such as nll or kl of its test part."""
    return lambda row: float(row.result[part][score])


def mean(rows: Sequence[Row], value: Value) -> Estimate:
    """Mean over the rows, one per seed."""
    return estimate([value(row) for row in rows])


def by_seed(rows: Sequence[Row], value: Value) -> dict[int, float]:
    """The value of each row by its seed."""
    return {row.config["seed"]: value(row) for row in rows}


def difference(a: Sequence[Row], b: Sequence[Row], value: Value) -> Estimate:
    """``value`` of a minus that of b, paired over the seeds that both have."""
    return _paired((1, -1), (a, b), value)


def difference_of_differences(a: Sequence[Row], b: Sequence[Row], c: Sequence[Row], d: Sequence[Row],
                              value: Value) -> Estimate:  # fmt: skip
    """(a − b) − (c − d), paired over the seeds that all four have."""
    return _paired((1, -1, -1, 1), (a, b, c, d), value)


def _paired(signs: Sequence[int], groups: Sequence[Sequence[Row]], value: Value) -> Estimate:
    found = [by_seed(rows, value) for rows in groups]
    seeds = sorted(set.intersection(*map(set, found)))
    return estimate([sum(sign * of[seed] for sign, of in zip(signs, found, strict=True)) for seed in seeds])


def for_other_samples(a: Sequence[Row], b: Sequence[Row]) -> Estimate | None:
    """Top-1 of a minus that of b in points, with an interval for other test samples as well as other seeds.

    Of the seeds for which both have ``right``: one bit per test sample, in base64. None without.
    """
    ours, theirs = ({row.config["seed"]: _right(row) for row in rows if "right" in row.result} for rows in (a, b))
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    samples = min(len(of[seed]) for of in (ours, theirs) for seed in seeds)
    return over_samples([ours[seed][:samples] for seed in seeds], [theirs[seed][:samples] for seed in seeds])


def _right(row: Row) -> list[bool]:
    """Correct test samples, without the padding of the last byte."""
    bits = np.unpackbits(np.frombuffer(b64decode(row.result["right"]), dtype=np.uint8)).astype(bool)
    top1 = row.result["test"]["top1"]
    return bits[: round(bits.sum() / top1) if top1 else None].tolist()


def over(rows: Sequence[Row], x: Callable[[Row], Any], value: Value) -> dict[Any, Estimate]:
    """Mean of ``value`` over the rows that share ``x``, in order of ``x``: a curve."""
    return {at: mean(of, value) for at, of in sorted(_grouped(rows, x).items())}


def alike(rows: Sequence[Row], *names: str) -> list[list[Row]]:
    """Groups of rows that agree in these fields of their configurations; "head.hidden" is a field of a field."""
    by_fields = _grouped(rows, lambda row: json.dumps([_field(row.config, name) for name in names], sort_keys=True))
    return list(by_fields.values())


def _grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _field(config: Mapping[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    return _field(config[first], rest) if rest else config.get(first)


def largest(rows: Sequence[Row], *names: str) -> list[Row]:
    """The largest of the groups of :func:`alike`; the first of several equally large ones."""
    return max(alike(rows, *names), key=len, default=[])
