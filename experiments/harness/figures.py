"""Figures: matplotlib, one style, a colour per loss, curves named at the curves, a light and a dark variant.

    def draw(axes):
        curve(axes[0], over(rows, alignment, kl), loss="nll")
        label(axes[0], "mode alignment (%)", "KL (nats)", title="Adam")

    Figure("density-kl", draw, panels=1)

``draw`` runs once for each variant.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    "soft-dist-info-nce-smoothed-noise": Look("soft distribution InfoNCE, η smoothed", "#B5455F", "X"),
}
SERIES = ("#8F8B2B", "#B5455F", "#5F8A99", "#A0703C", "#56B4E9", "#6B6B6B")
"""Colours of series that are no loss."""
OTHER = "#808080"
"""References and controls; readable on white and on black."""
INK = {"": "#333333", "-dark": "#DDDDDD"}
LIGHTER = {"#0072b2": "#3d9bdc", "#785ef0": "#9d8af7", "#b5455f": "#d0637b", "#a0703c": "#bf8a52", "#6b6b6b": "#8e8e8e"}
"""Colours that are too dark as text on black, and their replacements there."""


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
                canvas.draw_without_rendering()
                for ax in axes[: self.panels]:
                    _log_ticks(ax, "x")
                    _log_ticks(ax, "y")
                drawn = io.StringIO()
                canvas.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
            text = drawn.getvalue()
            for dark, light in LIGHTER.items() if variant else ():
                text = text.replace(dark, light)
            (folder / f"{self.name}{variant}.svg").write_text(text, encoding="utf-8")


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
    line = ax.plot(x, [one.mean for one in e], ls=dash, color=look.colour, marker=look.marker or None, ms=4)[0]
    if band and any(one.high > one.low for one in e):
        ax.fill_between(x, [one.low for one in e], [one.high for one in e], color=look.colour, alpha=0.18, lw=0)
    line.set_gid(f"named {look.name if name is None else name}")


def level(ax: "Axes", y: float, name: str = "", colour: str = OTHER) -> None:
    """A dashed horizontal line, named at its right end."""
    ax.axhline(y, color=colour, ls="--", lw=1.1).set_gid(f"named {name}")


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
    """Writes each curve's name at the right, tied to its last visible point and as near its height as others allow."""
    from matplotlib.transforms import ScaledTranslation
    from scipy.optimize import isotonic_regression

    low, high = ax.get_ylim()
    left, right = ax.get_xlim()
    box = ax.get_window_extent()
    ends: list[tuple[float, tuple[float, float], str, Any]] = []  # height in pixels, point, name, colour
    for line in ax.get_lines():
        named, _, name = str(line.get_gid()).partition("named ")
        if named or not name:
            continue
        points = np.asarray(line.get_data(), dtype=float).T
        if line.get_transform() != ax.transData:  # a level: its x are fractions of the axis
            points = np.array([[right, points[-1, 1]]])
        inside = [(x, y) for x, y in points if low <= y <= high and left <= x <= right]
        if inside:
            height = ax.transData.transform(inside[-1])[1] - box.y0
            ends.append((height, inside[-1], name, line.get_color()))
    if not ends:
        return
    ends.sort(key=lambda end: end[0])
    steps = 11 * ax.figure.dpi / 72 * np.arange(len(ends))
    free = isotonic_regression(np.array([end[0] for end in ends]) - steps).x  # the nearest that are a step apart
    heights = free.clip(0, max(0.0, box.height - steps[-1])) + steps
    beside = ax.transAxes + ScaledTranslation(14 / 72, 0, ax.figure.dpi_scale_trans)
    for height, (_, point, name, colour) in zip(heights, ends, strict=True):
        tie = {"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)}
        ax.annotate(name, point, (1, height / box.height), textcoords=beside, color=colour, fontsize=8.5, va="center",
                    annotation_clip=False, arrowprops=tie)  # fmt: skip


def log_ticks(low: float, high: float) -> Iterator[list[float]]:
    """Ticks of a log axis from ``low`` to ``high``: every digit; even ones; 1, 2 and 5; powers of ten; ever fewer."""
    some = (range(1, 10), 1), ((1, 2, 4, 6, 8), 1), ((1, 2, 5), 1)
    for digits, step in (*some, *(((1,), step) for step in range(1, 100))):
        powers = range(step * math.floor(math.log10(low) / step), math.ceil(math.log10(high)) + 1, step)
        yield [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]


def _log_ticks(ax: "Axes", side: str) -> None:
    """Labels a log axis at the ticks that were given, else at the densest that are few and do not touch."""
    from matplotlib.ticker import FixedLocator, LogFormatterSciNotation, NullFormatter, NullLocator, StrMethodFormatter

    axis = getattr(ax, f"{side}axis")
    if axis.get_scale() != "log":
        return
    given = isinstance(axis.get_major_locator(), FixedLocator)
    if given:
        axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    for ticks in [list(axis.get_majorticklocs())] if given else log_ticks(*sorted(axis.get_view_interval())):
        is_plain = ticks and min(ticks) >= 1e-3 and max(ticks) < 1e6
        powers = LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf))
        axis.set_major_formatter(StrMethodFormatter("{x:,g}") if is_plain else powers)
        axis.set_ticks(ticks)
        boxes = [getattr(text.get_window_extent(), f"interval{side}") for text in axis.get_ticklabels()]
        if len(ticks) <= 7 and all(before[1] + 5 <= after[0] for before, after in pairwise(boxes)):
            break


@contextmanager
def _style(ink: str) -> Any:
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "axes.axisbelow": True, "axes.edgecolor": ink, "axes.grid": True, "axes.labelcolor": ink, "axes.labelsize": 9.5,
        "axes.linewidth": 0.8, "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left",
        "axes.titlecolor": ink, "axes.titlesize": 10, "figure.constrained_layout.w_pad": 0.1, "font.size": 9.5,
        "grid.alpha": 0.25, "grid.color": OTHER, "grid.linewidth": 0.6, "lines.linewidth": 1.7, "svg.fonttype": "none",
        "svg.hashsalt": "softnce", "text.color": ink, "xtick.color": ink, "xtick.labelsize": 8.5, "ytick.color": ink,
        "ytick.labelsize": 8.5,
    }  # fmt: skip
    with mpl.rc_context(settings):
        yield
