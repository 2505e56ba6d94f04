"""Shared by pages that compare losses: cells of tables, points with intervals, the panel of the search."""

from collections.abc import Mapping

from softnce.lab.experiment.comparison import Value
from softnce.lab.experiment.settings import Setting
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.report.charts import Line, Panel, Points, band
from softnce.lab.report.style import LOSSES

Columns = Mapping[str, tuple[Value, int]]
"""Columns of a table of settings: header, what is read off a training, and digits after the point."""
INTERVAL = "mean ± half of the 95 % interval over seeds"


def cells(setting: Setting, columns: Columns) -> list[str]:
    """A setting's row of a table: mean ± half of the 95 % interval."""
    return [setting.mean(value).spread(digits) for value, digits in columns.values()]


def points(estimates: Mapping[str, Estimate]) -> list[Points]:
    """One point per loss with its interval, side by side in the order given."""
    return [Points.of_loss(loss, [place], *band([e]), size=7.5) for place, (loss, e) in enumerate(estimates.items())]


def points_panel(title: str, y_label: str, estimates: Mapping[str, Estimate]) -> Panel:
    """:func:`points` as a panel, losses distinguished by colour and marker."""
    return Panel(title, "", y_label, points(estimates), hide_x=True, x_range=(-0.6, len(estimates) - 0.4))


def search_panel(tried: Mapping[str, Mapping[float, float]]) -> Panel:
    """Held-out accuracy of seed 0 against the learning rate, by loss."""
    lines = [Line.of_loss(loss, list(of_loss), list(of_loss.values())) for loss, of_loss in tried.items()]
    return Panel("search", "learning rate", "held-out top-1 (%)", lines, log_x=True)


def listed(estimates: Mapping[str, Estimate], digits: int = 2) -> str:
    """Differences in a sentence: NLL +0.42 [+0.10, +0.74]; InfoNCE …"""
    return "; ".join(f"{LOSSES[loss].name} {signed(e, digits)}" for loss, e in estimates.items())
