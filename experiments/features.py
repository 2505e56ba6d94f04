"""Names of losses and scores, comparisons of trainings and tables of scores, for the experiments on features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.harness import Estimate, Finding, Row, Setting, Table, decided, nats, percent
from experiments.harness.search import tried_rates
from experiments.harness.statistics import Value
from experiments.losses import TITLES

CE, DRAWN, OURS, EXPECTED = "soft-ce", "soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce"
CORRECTED = "soft-dist-info-nce-smoothed-noise"
"""Soft distribution InfoNCE with the η of its smoothed targets; `DRAWN` is the authors' way, with the labels' η."""
ALONE = "expected-info-nce, m = 0"
NAMES = TITLES | {ALONE: f"{TITLES[EXPECTED]}, m = 0"}
TOP1, TOP5, NLL = percent("top1"), percent("top5"), nats("nll")
ECE, SCALED_ECE = percent("ece"), percent("ece", "scaled")


@dataclass(frozen=True)
class Compared:
    """Trainings that are compared: settings at their chosen rates, by loss or another key, and all rows of the group.

    Attributes:
        name: of its table.
        data: as findings name it.
    """

    name: str
    data: str
    rows: Sequence[Row]
    settings: Mapping[Any, Setting]

    @property
    def is_quick(self) -> bool:
        """On digits, as in the quick presets, which decide no claim."""
        return self.data.startswith("digits")

    def gap(self, ours: Any, theirs: Any, value: Value = TOP1) -> Estimate | None:
        """One setting minus another, paired by seed; None if one is missing."""
        both = {ours, theirs} <= self.settings.keys()
        return self.settings[ours].minus(self.settings[theirs], value) if both else None

    def on(self, *keys: Any) -> str:
        """Data, epochs, batch, rates tried and seeds, for a finding."""
        settings, rates = [self.settings[key] for key in keys], tried_rates(self.rows)
        config, seeds = settings[0].config, min(map(len, settings))
        training = f"epochs {config['epochs']}, batch {config['batch']}, rates {rates[0]:g} to {rates[-1]:g}"
        return f"{self.data}, {training}, {seeds} seeds"

    def decided(self, ours: Any, theirs: Any, digits: int = 2, **bounds: Any) -> Finding:
        """The finding of a difference of top-1."""
        gap = self.settings[ours].minus(self.settings[theirs], TOP1)
        return decided(gap, on=self.on(ours, theirs), digits=digits, **bounds)


def spread(gap: Estimate | None, digits: int = 2) -> str:
    """Of a table's cell."""
    return gap.spread(digits) if gap else "–"


def scores_table(
    name: str, titles: Sequence[str], settings: Mapping[Any, Setting], columns: Mapping[str, tuple[Value, int]]
) -> Table:
    """A row per setting: its names under ``titles``, mean ± half of the interval for each of ``columns``, its rate.

    ``columns``: value and digits after the point by header.
    """
    rows = [
        [*(NAMES.get(part, part) for part in (key if isinstance(key, tuple) else (key,))),
         *(s.mean(value).spread(digits) for value, digits in columns.values()), f"{s.lr:g}"]
        for key, s in settings.items()
    ]  # fmt: skip
    return Table(name, (*titles, *columns, "learning rate"), rows)
