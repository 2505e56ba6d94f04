"""Figures drawn by matplotlib: for paper, for the files beside the page, and for browsers without JavaScript."""

import io
from pathlib import Path
from typing import Any

from softnce.lab.atomic import replacing
from softnce.lab.report import charts
from softnce.lab.report.charts import Diagonal, Figure, Heat, Level, Line, Panel, Points
from softnce.lab.report.style import OTHER, matplotlib_style

ENDINGS = ("png", "svg", "pdf", "csv")  # of the files of a figure
DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def draw(figure: Figure) -> Any:
    """The figure as a matplotlib Figure, one legend above all panels."""
    from matplotlib.figure import Figure as Canvas

    with matplotlib_style():
        rows, columns = figure.grid
        width, height = figure.panel_size
        canvas = Canvas(figsize=(width * columns, height * rows + 0.35), layout="constrained")
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        legend: dict[str, Any] = {}
        for ax, panel in zip(axes, figure.panels, strict=False):
            _draw_panel(ax, panel, legend)
        for ax in axes[len(figure.panels) :]:
            ax.set_axis_off()
        if legend:
            inches = 0.6 + 0.075 * max(len(name) for name in legend)  # of the widest entry
            in_a_row = max(1, min(len(legend), int(width * columns / inches)))
            canvas.legend(legend.values(), legend.keys(), loc="outside upper center", ncols=in_a_row)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once, for however many files
        return canvas


def save(figure: Figure, directory: Path, prefix: str = "") -> list[Path]:
    """Write the figure as PNG, SVG and PDF and its data as CSV; returns the paths."""
    paths = [directory / f"{prefix}{figure.name}.{ending}" for ending in ENDINGS]
    with matplotlib_style():
        canvas = draw(figure)
        for path in paths:
            with replacing(path) as partial:
                if path.suffix == ".csv":
                    partial.write_text(charts.data(figure), encoding="utf-8", newline="")
                else:
                    canvas.savefig(partial, format=path.suffix[1:])
                if path.suffix == ".png":
                    _to_palette(partial)
    return paths


def _to_palette(path: Path) -> None:
    """Rewrite a PNG with 256 colours, enough for a drawing, in a third of the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, "PNG", optimize=True)


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The drawn figure as PNG bytes."""
    buffer = io.BytesIO()
    with matplotlib_style():
        draw(figure).savefig(buffer, dpi=dpi, format="png")
    return buffer.getvalue()


def _draw_panel(ax: Any, panel: Panel, legend: dict[str, Any]) -> None:
    for mark in panel.marks:
        handle = None
        match mark:
            case Line():
                style = {"color": mark.colour, "ls": DASHES[mark.dash], "marker": mark.marker or None}
                y = [float("nan") if value is None else value for value in mark.y]
                (handle,) = ax.plot(mark.x, y, label=mark.name, **style)
                if mark.low is not None and mark.high is not None:
                    ax.fill_between(mark.x, mark.low, mark.high, color=mark.colour, alpha=0.18, lw=0)
            case Points():
                one_colour = isinstance(mark.colour, str)
                if mark.low is not None and mark.high is not None:
                    for x, low, high in zip(mark.x, mark.low, mark.high, strict=True):
                        ax.plot([x, x], [low, high], color=mark.colour if one_colour else OTHER, lw=1.4)
                width = 1.6 if mark.marker == "x" else 0  # a cross is nothing but lines
                look = {"s": mark.size**2, "marker": mark.marker, "alpha": mark.opacity, "linewidths": width}
                drawn = ax.scatter(mark.x, mark.y, c=[mark.colour] if one_colour else mark.colour, **look)
                handle = drawn if one_colour else None
            case Level():
                handle = ax.axhline(mark.y, color="#333333", ls="--", lw=1.2)
            case Diagonal():
                (handle,) = ax.plot([mark.low, mark.high], [mark.low, mark.high], color="#333333", ls="--", lw=1.2)
            case Heat():
                _draw_heat(ax, mark)
        if handle is not None and mark.name:
            legend.setdefault(mark.name, handle)
    ax.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        ax.set_xscale("log")
    if panel.log_y:
        ax.set_yscale("log")
    ax.set_xlim(panel.x_range)  # None leaves them
    ax.set_ylim(panel.y_range)
    for axis, log, limits in ((ax.xaxis, panel.log_x, ax.get_xlim()), (ax.yaxis, panel.log_y, ax.get_ylim())):
        if log:
            _plain_ticks(axis, *limits)
    if panel.hide_x or panel.bare:
        ax.set_xticks([])
    if panel.bare:
        ax.set_yticks([])
        ax.grid(False)
        ax.spines[:].set_visible(False)


def _plain_ticks(axis: Any, low: float, high: float) -> None:
    """1, 10, 100 in place of powers where the numbers are short, with 2 and 5 between if two decades are not there."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    is_narrow = high < 30 * low
    if low >= (1e-4 if is_narrow else 5e-3) and high < 1e6:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_narrow else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _draw_heat(ax: Any, mark: Heat) -> None:
    values = [[float("nan") if value is None else value for value in row] for row in mark.values]
    ax.imshow(values, cmap="cividis_r", vmin=mark.low, vmax=mark.high, aspect="auto", origin="lower")
    ax.set_xticks(range(len(mark.x)), mark.x)
    ax.set_yticks(range(len(mark.y)), mark.y)
    ax.grid(False)
    for row, (numbers, texts) in enumerate(zip(values, mark.text, strict=True)):
        for column, (number, text) in enumerate(zip(numbers, texts, strict=True)):
            ax.text(column, row, text, ha="center", va="center", fontsize=8.5, color=mark.ink(number))
