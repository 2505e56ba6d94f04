"""Names of losses and scores, conditions of a finding and tables of scores, for the experiments on features."""

from collections.abc import Mapping, Sequence

from experiments.harness import Row, Setting, Table, nats, percent
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


def conditions(data: str, rows: Sequence[Row], *settings: Setting) -> str:
    """Data, epochs, batch, rates tried and seeds, for a finding."""
    config, rates, seeds = settings[0].config, tried_rates(rows), min(map(len, settings))
    between = f"rates {rates[0]:g} to {rates[-1]:g}"
    return f"{data}, epochs {config['epochs']}, batch {config['batch']}, {between}, {seeds} seeds"


Columns = Mapping[str, tuple[Value, int]]


def scores_table(
    name: str, titles: Sequence[str], settings: Mapping[tuple[str, ...], Setting], columns: Columns
) -> Table:
    """A row per setting: its names under ``titles``, mean ± half of the interval for each of ``columns``, its rate.

    ``columns``: value and digits after the point by header.
    """
    rows = [
        [*(NAMES.get(part, part) for part in names), *(s.mean(v).spread(digits) for v, digits in columns.values()),
         f"{s.lr:g}"] for names, s in settings.items()
    ]  # fmt: skip
    return Table(name, (*titles, *columns, "learning rate"), rows)
