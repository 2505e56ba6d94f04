"""Noisy steps: likelihood and accuracy against the learning rate, and the differences."""

from collections.abc import Sequence

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.comparison import Value, mean
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.report.charts import Figure, Line, Panel, band
from softnce.lab.report.page import UNFINISHED, Section, Table
from softnce.lab.studies.noisy_steps.findings import NLL, Found, find
from softnce.lab.studies.noisy_steps.run import CE, EXPECTED

ORDER = 32
TITLE = "Noisy steps on real data"


def section(rows: Sequence[Row]) -> Section:
    found = find(rows)
    if not found.is_complete:
        return Section(TITLE, UNFINISHED, [])
    config = next(iter(found.rows[CE].values()))[0].config
    most = max(found.rates)
    summary = f"""Test NLL of expected InfoNCE minus that of training with NLL: {signed(found.at_best(EXPECTED), 3)}
        nats at the best rate of each, {signed(found.at_rate(EXPECTED, most), 3)} at the largest rate."""
    method = f"""A linear model without bias, from zero, on features of {NAMES[found.data]} as they are, divided by one
        number; labels, batches of {config["batch"]}, {config["epochs"]} epochs, SGD without momentum, a constant
        learning rate. The best rate is that of the lowest held-out NLL."""
    return Section(TITLE, summary, [_figure(found), _table(found)], [method])


def _figure(found: Found) -> Figure:
    def panel(title: str, label: str, value: Value) -> Panel:
        lines = []
        for loss, by_rate in found.rows.items():
            means = [mean(by_rate[lr], value) for lr in found.rates]
            lines.append(Line.of_loss(loss, found.rates, *band(means)))
        return Panel(title, "learning rate", label, lines, log_x=True)

    caption = f"""A linear model on {NAMES[found.data]} features, trained by SGD: test scores against the learning rate,
        mean and 95 % interval over {counted(found.seeds, "seed")}."""
    return Figure("rates", caption, [panel("likelihood", "NLL (nats)", NLL), panel("accuracy", "top-1 (%)", TOP1)])


def _table(found: Found) -> Table:
    body = []
    for loss, by_rate in found.rows.items():
        best = found.best_rate(loss)
        for lr in found.rates:
            gaps = (
                [signed(found.at_rate(loss, lr), 3), signed(found.at_rate(loss, lr, TOP1))] if loss != CE else ["–"] * 2
            )
            scores = [mean(by_rate[lr], NLL).spread(3), mean(by_rate[lr], TOP1).spread(2)]
            body.append([TITLES[loss], f"{lr:g}{' (best)' if lr == best else ''}", *scores, *gaps])
    header = ["loss", "learning rate", "NLL (nats)", "top-1 (%)", "NLL minus that of NLL", "top-1 minus that of NLL"]
    caption = "Test part, mean ± half of the 95 % interval; differences at the same rate, paired by seed."
    return Table(header, body, caption)
