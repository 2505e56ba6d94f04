"""Runs compared over their seeds: means, and differences of runs that share a seed."""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, over_samples

Value = Callable[[Row], float]
"""What is compared, read off a run: percent, nats, …"""


def percent(score: str, part: str = "test") -> Value:
    """A score of a training, such as top1 or ece of its test part, in per cent."""
    return lambda row: 100 * row.result[part][score]


def nats(score: str, part: str = "test") -> Value:
    """A score of a training as it is, such as nll or kl of its test part."""
    return lambda row: float(row.result[part][score])


def mean(rows: Sequence[Row], value: Value) -> Estimate:
    """Mean over seeds with its 95 % confidence interval."""
    return estimate([value(row) for row in rows])


def difference(a: Sequence[Row], b: Sequence[Row], value: Value) -> Estimate:
    """``value`` of a minus that of b, paired by seed; seeds that only one of them has are ignored."""
    ours, theirs = by_seed(a, value), by_seed(b, value)
    return estimate([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def difference_of_differences(
    a: Sequence[Row], b: Sequence[Row], c: Sequence[Row], d: Sequence[Row], value: Value
) -> Estimate:
    """(a − b) − (c − d), paired over the seeds all four have."""
    first, second, third, fourth = (by_seed(rows, value) for rows in (a, b, c, d))
    seeds = sorted(first.keys() & second.keys() & third.keys() & fourth.keys())
    return estimate([first[seed] - second[seed] - third[seed] + fourth[seed] for seed in seeds])


def for_other_samples(a: Sequence[Row], b: Sequence[Row]) -> Estimate | None:
    """Top-1 of a minus that of b in points, with an interval for other test samples as well as other seeds.

    Of the seeds that both have with ``right``, the test samples that are right: one bit each, in base64. With one seed
    the interval is that of other samples alone. None without.
    """
    ours, theirs = ({row.config["seed"]: _right(row) for row in rows if "right" in row.result} for rows in (a, b))
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    samples = min(len(of[seed]) for of in (ours, theirs) for seed in seeds)
    return over_samples([ours[seed][:samples] for seed in seeds], [theirs[seed][:samples] for seed in seeds])


def _right(row: Row) -> list[bool]:
    """Which test samples are right; where any is, without the bits of no sample that the last byte may hold."""
    bits = np.unpackbits(np.frombuffer(b64decode(row.result["right"]), dtype=np.uint8)).astype(bool)
    top1 = row.result["test"]["top1"]
    return bits[: round(bits.sum() / top1) if top1 else None].tolist()


def over(rows: Sequence[Row], x: Callable[[Row], float], value: Value) -> dict[float, Estimate]:
    """Mean of ``value`` over the rows that share ``x``, in order of ``x``."""
    groups: dict[float, list[float]] = {}
    for row in rows:
        groups.setdefault(x(row), []).append(value(row))
    return {at: estimate(values) for at, values in sorted(groups.items())}


def by_seed(rows: Sequence[Row], value: Value) -> dict[int, float]:
    """``value`` of each run, by its seed."""
    return {row.config["seed"]: value(row) for row in rows}


def alike(rows: Sequence[Row], *names: str) -> list[list[Row]]:
    """The rows in groups that agree in these fields of their configurations, in order of their first rows.

    A dotted name, such as head.hidden, is a field of a field.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        values = [_field(row.config, name) for name in names]
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(row)
    return list(groups.values())


def _field(config: Mapping[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    return _field(config[first], rest) if rest else config.get(first)


def largest(rows: Sequence[Row], *names: str) -> list[Row]:
    """The most rows that agree in these fields, the first of several equally large groups."""
    return max(alike(rows, *names), key=len, default=[])
