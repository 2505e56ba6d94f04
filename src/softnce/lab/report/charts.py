"""Figures described once and drawn twice: for paper by matplotlib, for the page by plotly.

A ``Figure`` is a row or grid of ``Panel``s, a panel a few axes settings and a list of marks:

    Figure(
        "kl",
        "KL against alignment. Bands: 95 % confidence over 10 seeds.",
        [Panel("Adam, 1e-3", "mode alignment (%)", "KL(p‖q) (nats)", [
            Line.of_loss("nll", x, mean, low, high),
            Level("statistical limit", 0.0059),
        ])],
    )
"""

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.experiment.statistics import Estimate
from softnce.lab.experiment.text import prose
from softnce.lab.report.style import LOSSES, OTHER


@dataclass(frozen=True)
class Line:
    """A curve through (x, y), with a band from ``low`` to ``high`` if given. ``dash`` is solid, dash or dot."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    colour: str = OTHER
    marker: str = ""
    dash: str = "solid"
    loss: str | None = None

    @classmethod
    def of_loss(cls, loss: str, *values: Any, suffix: str = "", **options: Any) -> "Line":
        """A line in the colour and marker of its loss."""
        return cls(LOSSES[loss].name + suffix, *values, **_look(loss) | options)


@dataclass(frozen=True)
class Points:
    """Unconnected points, with error bars from ``low`` to ``high`` if given; ``hover`` holds one text per point."""

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    hover: Sequence[str] | None = None
    colour: str | Sequence[str] = OTHER
    marker: str = "o"
    size: float = 6.0
    opacity: float = 1.0
    loss: str | None = None

    @classmethod
    def of_loss(cls, loss: str, *values: Any, suffix: str = "", **options: Any) -> "Points":
        return cls(LOSSES[loss].name + suffix, *values, **_look(loss) | options)


@dataclass(frozen=True)
class Heat:
    """A table of values as colours, each cell with its ``text``. The colour scale goes from ``low`` to ``high``."""

    x: Sequence[str]
    y: Sequence[str]
    values: Sequence[Sequence[float | None]]
    text: Sequence[Sequence[str]]
    low: float
    high: float
    name: str = ""

    def ink(self, value: float | None) -> str:
        """Text colour that can be read on the cell; the scale, cividis reversed, is dark where values are high."""
        return "white" if value is not None and value > (self.low + self.high) / 2 else "black"


@dataclass(frozen=True)
class Level:
    """A horizontal line at ``y``."""

    name: str
    y: float


@dataclass(frozen=True)
class Diagonal:
    """The line y = x from ``low`` to ``high``."""

    name: str
    low: float
    high: float


def band(estimates: Collection[Estimate]) -> tuple[list[float], list[float], list[float]]:
    """Means and both ends of the intervals: what a Line or Points takes after x."""
    return [e.mean for e in estimates], [e.low for e in estimates], [e.high for e in estimates]


def curve(estimates: Mapping[float, Estimate]) -> tuple[list[float], list[float], list[float], list[float]]:
    """x, means and both ends of the intervals; the first two of them draw a line without a band."""
    return list(estimates), *band(estimates.values())


Mark = Line | Points | Heat | Level | Diagonal


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``bare`` hides both, for maps whose coordinates mean nothing; ``hide_x`` hides the ticks of x,
    for series distinguished by colour."""

    title: str
    x_label: str
    y_label: str
    marks: Sequence[Mark]
    log_x: bool = False
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    bare: bool = False
    hide_x: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels in rows of ``columns``, with a caption of one or two sentences that say what to see.

    Attributes:
        name: file name without ending.
        caption: shown under the figure.
        panels: at least one.
        columns: panels per row; None: all in one row.
        panel_size: width and height of a panel in inches.
        interactive: False shows the drawn figure on the page as well.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int | None = None
    panel_size: tuple[float, float] = (3.9, 3.1)
    interactive: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "caption", prose(self.caption))

    @property
    def grid(self) -> tuple[int, int]:
        columns = self.columns or len(self.panels)
        return -(-len(self.panels) // columns), columns


def data(figure: Figure) -> str:
    """The numbers of the figure as CSV, one line per point or cell."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["panel", "x axis", "y axis", "series", "x", "y", "low", "high", "value", "text"])
    for number, panel in enumerate(figure.panels, 1):
        for mark in panel.marks:
            for point in _points(mark):
                table.writerow([panel.title or number, panel.x_label, panel.y_label, mark.name, *point])
    return text.getvalue()


def _points(mark: Mark) -> Iterator[tuple[Any, ...]]:
    """x, y, low, high, value and text of each point; None where there is none."""
    match mark:
        case Line() | Points():
            none = [None] * len(mark.x)
            texts = mark.hover if isinstance(mark, Points) else None
            yield from zip(mark.x, mark.y, mark.low or none, mark.high or none, none, texts or none, strict=True)
        case Heat():
            for y, values, texts in zip(mark.y, mark.values, mark.text, strict=True):
                for x, value, words in zip(mark.x, values, texts, strict=True):
                    yield x, y, None, None, value, words
        case Level():
            yield None, mark.y, None, None, None, None
        case Diagonal():
            for end in (mark.low, mark.high):
                yield end, end, None, None, None, None


def _look(loss: str) -> dict[str, Any]:
    return {"colour": LOSSES[loss].colour, "marker": LOSSES[loss].marker, "loss": loss}
