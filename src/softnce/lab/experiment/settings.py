"""Settings of a study: trainings that differ only in their seeds, at the learning rate chosen for them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from softnce.lab.data.features import NAMES
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import Value, difference, largest, mean, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate
from softnce.lab.losses import LOSSES

Key = TypeVar("Key")
TOP1, TOP5, ECE = percent("top1"), percent("top5"), percent("ece")
SCALED_ECE = percent("ece", "scaled")
"""Calibration error after one temperature is fitted on the held-out part."""


def temperature(row: Row) -> float:
    """The temperature that fits the held-out part best; above 1: overconfident scores, below 1: underconfident."""
    return float(row.result["temperature"])


@dataclass(frozen=True)
class Setting:
    """The trainings of one setting at its chosen learning rate: at least one row, in order of seeds."""

    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the first seed."""
        return dict(self.rows[0].config)

    @property
    def loss(self) -> str:
        return str(self.config["loss"]["name"])

    @property
    def lr(self) -> float:
        return float(self.config["lr"])

    def mean(self, value: Value) -> Estimate:
        """Mean over seeds with its 95 % interval."""
        return mean(self.rows, value)

    def minus(self, other: "Setting", value: Value) -> Estimate:
        """``value`` of this setting minus that of another, paired by seed."""
        return difference(self.rows, other.rows, value)

    def of_seeds(self, kept: Callable[[int], bool]) -> "Setting | None":
        """The trainings of the seeds that are kept, None where there are none."""
        rows = [row for row in self.rows if kept(row.config["seed"])]
        return Setting(rows) if rows else None


def by(
    key: Callable[[dict[str, Any]], Key],
    rows: Sequence[Row],
    score: Callable[[Row], float] = search.top1,
    searched: int = 1,
) -> dict[Key, Setting]:
    """The settings whose search is finished, by a key of their configurations.

    A search is finished when it has tried every learning rate that most settings among ``rows`` were tried at; the rate
    of the highest ``score`` is chosen, in the mean of the first ``searched`` seeds.
    """
    found = search.at_best_rate(rows, search.tried_rates(rows), score, searched).values()
    return {key(runs[0].config): Setting(runs) for runs in found}


def chosen(rows: Sequence[Row], searched: int = 1, score: Callable[[Row], float] = search.top1) -> list[Setting]:
    """The settings whose search is finished, losses in the registry's order; see :func:`by`."""
    found = by(search.setting_key, rows, score, searched).values()
    return [setting for name in LOSSES for setting in found if setting.loss == name]


def tried(rows: Sequence[Row]) -> dict[str, dict[float, float]]:
    """The search for learning rates: held-out top-1 of seed 0 in per cent, by loss and learning rate."""
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: float(row.config["lr"])):
        if row.config["seed"] == 0:
            found[row.config["loss"]["name"]][row.config["lr"]] = percent("top1", "held_out")(row)
    return {name: found[name] for name in LOSSES if name in found}


def largest_by_data(rows: Sequence[Row], *names: str) -> dict[str, list[Row]]:
    """Of each data set the most rows that agree in these fields of their configurations."""
    found = {source: largest([row for row in rows if row.config["data"] == source], *names) for source in NAMES}
    return {source: group for source, group in found.items() if group}
