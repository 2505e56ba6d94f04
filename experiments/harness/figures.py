"""Figures: matplotlib, one style, a colour per loss, curves named at the curves, a light and a dark variant.

    def draw(axes):
        curve(axes[0], over(rows, alignment, kl), loss="nll")
        label(axes[0], "mode alignment (%)", "KL (nats)", title="Adam")

    Figure("density-kl", draw, panels=1)

``draw`` runs once for each variant.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.harness.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Look:
    """Name in text, colour and marker of a loss; the colours are Okabe and Ito's."""

    name: str
    colour: str
    marker: str


LOOKS = {
    "nll": Look("NLL", "#D55E00", "o"),
    "info-nce": Look("InfoNCE", "#0072B2", "D"),
    "soft-ce": Look("soft target cross-entropy", "#E69F00", "s"),
    "soft-dist-info-nce": Look("soft distribution InfoNCE", "#CC79A7", "v"),
    "soft-target-info-nce": Look("soft target InfoNCE", "#009E73", "^"),
    "expected-info-nce": Look("expected InfoNCE", "#785EF0", "P"),
}
SERIES = ("#8F8B2B", "#B5455F", "#5F8A99", "#A0703C", "#56B4E9", "#6B6B6B")
"""Colours of series that are no loss."""
OTHER = "#808080"
"""References and controls; readable on white and on black."""
INK = {"": "#333333", "-dark": "#DDDDDD"}


@dataclass(frozen=True)
class Figure:
    """A figure of panels, drawn on their axes."""

    name: str  # of its files, "density-kl"
    draw: "Callable[[Sequence[Axes]], None]"
    panels: int = 1
    columns: int | None = None  # panels per row; None: all in one
    size: tuple[float, float] = (4.6, 3.2)  # inches of one panel

    def save(self, folder: Path) -> None:
        """Writes NAME.svg and NAME-dark.svg, the same bytes for the same numbers."""
        from matplotlib.figure import Figure as Canvas

        columns = self.columns or self.panels
        lines = -(-self.panels // columns)
        folder.mkdir(parents=True, exist_ok=True)
        for variant, ink in INK.items():
            with _style(ink):
                canvas = Canvas(figsize=(self.size[0] * columns, self.size[1] * lines), layout="constrained")
                axes = list(canvas.subplots(lines, columns, squeeze=False).flat)
                for ax in axes[self.panels :]:
                    ax.set_axis_off()
                self.draw(axes[: self.panels])
                canvas.draw_without_rendering()
                for ax in axes[: self.panels]:
                    _name_curves(ax)
                canvas.savefig(folder / f"{self.name}{variant}.svg", transparent=True, metadata={"Date": None})


def curve(
    ax: "Axes",
    points: Mapping[Any, Any],
    *,
    loss: str | None = None,
    name: str | None = None,
    colour: str = OTHER,
    dash: str = "-",
    marker: str = "",
    band: bool = True,
) -> None:
    """A line with its 95 % band, named at its end; ``loss`` gives name, colour and marker, ``name=""`` no name."""
    look = LOOKS[loss] if loss else Look(name or "", colour, marker)
    x = list(points)
    e = [y if isinstance(y, Estimate) else Estimate(y, y, y, 1) for y in points.values()]
    line = ax.plot(x, [one.mean for one in e], dash, color=look.colour, marker=look.marker or None, ms=4)[0]
    if band and any(one.high > one.low for one in e):
        ax.fill_between(x, [one.low for one in e], [one.high for one in e], color=look.colour, alpha=0.18, lw=0)
    line.set_gid(f"named {look.name if name is None else name}")


def level(ax: "Axes", y: float, name: str = "") -> None:
    """A dashed horizontal line, named at its right end."""
    ax.axhline(y, color=OTHER, ls="--", lw=1.1).set_gid(f"named {name}")


def dots(ax: "Axes", estimates: Mapping[str, Estimate], names: Mapping[str, str] | None = None) -> None:
    """One line per loss (or other key): its mean as a dot, its interval as a bar, its name on the axis."""
    for place, (key, e) in enumerate(estimates.items()):
        look = LOOKS.get(key) or Look(key, SERIES[place % len(SERIES)], "o")
        ax.plot([e.low, e.high], [place, place], color=look.colour, lw=1.6)
        ax.plot([e.mean], [place], color=look.colour, marker=look.marker, ms=6.5)
    shown = [(names or {}).get(key) or (LOOKS[key].name if key in LOOKS else key) for key in estimates]
    ax.set_yticks(range(len(shown)), shown)
    ax.set_ylim(len(shown) - 0.5, -0.5)


def heat(ax: "Axes", x: Sequence[str], y: Sequence[str], values: Sequence[Sequence[float | None]],
         texts: Sequence[Sequence[str]], low: float, high: float) -> None:  # fmt: skip
    """A table of values as colours between ``low`` and ``high``, each cell with its text."""
    numbers = [[math.nan if value is None else value for value in row] for row in values]
    ax.imshow(numbers, cmap="cividis_r", vmin=low, vmax=high, aspect="auto", origin="lower")
    ax.set_xticks(range(len(x)), x)
    ax.set_yticks(range(len(y)), y)
    ax.grid(False)
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            dark = numbers[i][j] > (low + high) / 2
            colour = OTHER if math.isnan(numbers[i][j]) else "white" if dark else "black"
            ax.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)


def label(ax: "Axes", x: str = "", y: str = "", *, title: str = "", log: str = "", **limits: Any) -> None:
    """Axis labels and title; ``log`` is "", "x", "y" or "xy"; further arguments such as ``ylim`` go to ``Axes.set``."""
    ax.set(xlabel=x, ylabel=y, title=title)
    if "x" in log:
        ax.set_xscale("log")
    if "y" in log:
        ax.set_yscale("log")
    ax.set(**limits)


def _name_curves(ax: "Axes") -> None:
    """Writes the name of every curve beside its last visible point, moved apart where they would overlap."""
    low, high = ax.get_ylim()
    left, right = ax.get_xlim()
    height = ax.get_window_extent().height
    ends: list[list[Any]] = []  # height in pixels, name, colour
    for line in ax.get_lines():
        named, _, name = str(line.get_gid()).partition("named ")
        if named or not name:
            continue
        inside = [
            (x, y)
            for x, y in np.asarray(line.get_data(), dtype=float).T
            if low <= y <= high and (left <= x <= right or line.get_transform() != ax.transData)  # a level has any x
        ]
        if inside:
            pixel = ax.transData.transform((right, inside[-1][1]))[1] - ax.get_window_extent().y0
            ends.append([float(pixel), name, line.get_color()])
    ends.sort(key=lambda end: end[0])
    gap = 11 * ax.figure.dpi / 72
    for before, after in pairwise(ends):
        after[0] = max(after[0], before[0] + gap)
    excess = max(0.0, ends[-1][0] - height) if ends else 0.0
    for pixel, name, colour in ends:
        place = 1, (pixel - excess) / height
        ax.annotate(name, place, (4, 0), xycoords="axes fraction", textcoords="offset points", color=colour,
                    fontsize=8.5, va="center", annotation_clip=False)  # fmt: skip


@contextmanager
def _style(ink: str) -> Any:
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "axes.axisbelow": True, "axes.edgecolor": ink, "axes.grid": True, "axes.labelcolor": ink, "axes.labelsize": 9.5,
        "axes.linewidth": 0.8, "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left",
        "axes.titlecolor": ink, "axes.titlesize": 10, "font.size": 9.5, "grid.alpha": 0.25, "grid.color": OTHER,
        "grid.linewidth": 0.6, "lines.linewidth": 1.7, "svg.fonttype": "none", "svg.hashsalt": "softnce",
        "text.color": ink, "xtick.color": ink, "xtick.labelsize": 8.5, "ytick.color": ink, "ytick.labelsize": 8.5,
    }  # fmt: skip
    with mpl.rc_context(settings):
        yield
