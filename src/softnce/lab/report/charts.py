"""Figures said once and drawn twice: for paper by matplotlib, for the page by plotly.

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
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softnce.lab.experiment.statistics import Estimate
from softnce.lab.experiment.text import prose
from softnce.lab.report.style import FONT, LOSSES, MARKERS, OTHER, matplotlib_style

ENDINGS = ("png", "svg", "pdf", "csv")  # of the files of a figure
DASHES = {"solid": "-", "dash": "--", "dot": ":"}
CSS_LINES = {"solid": "solid", "dash": "dashed", "dot": "dotted"}


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
        """A line that looks as its loss does everywhere."""
        return cls(LOSSES[loss].name + suffix, *values, **_look(loss) | options)


@dataclass(frozen=True)
class Points:
    """Unconnected points, with error bars from ``low`` to ``high`` if given; ``hover`` is a text for each."""

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
    """A table of values as colours, each cell with its ``text``. ``low`` and ``high`` end the colour scale."""

    x: Sequence[str]
    y: Sequence[str]
    values: Sequence[Sequence[float | None]]
    text: Sequence[Sequence[str]]
    low: float
    high: float
    name: str = ""


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
    for series told apart by their colour."""

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
    """Panels in rows of ``columns``, and the sentence or two that say what to see.

    Attributes:
        name: file name without ending.
        caption: shown under the figure.
        panels: at least one.
        columns: panels in a row; all of them where None.
        panel_size: width and height of a panel in inches.
        interactive: False shows the drawn figure on the page too.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int | None = None
    panel_size: tuple[float, float] = (3.9, 3.1)
    interactive: bool = True

    @property
    def grid(self) -> tuple[int, int]:
        columns = self.columns or len(self.panels)
        return -(-len(self.panels) // columns), columns

    def __post_init__(self) -> None:
        object.__setattr__(self, "caption", prose(self.caption))


def draw(figure: Figure) -> Any:
    """The figure as a matplotlib Figure, one legend below for all panels."""
    from matplotlib.figure import Figure as Canvas

    with matplotlib_style():
        rows, columns = figure.grid
        width, height = figure.panel_size
        canvas = Canvas(figsize=(width * columns, height * rows + 0.35), layout="constrained")
        axes = canvas.subplots(rows, columns, squeeze=False).flat
        legend: dict[str, Any] = {}
        for ax, panel in zip(axes, figure.panels, strict=False):
            _draw_panel(ax, panel, legend)
        for ax in list(axes)[len(figure.panels) :]:
            ax.set_axis_off()
        if legend:
            inches = 0.6 + 0.075 * max(len(name) for name in legend)  # of the widest entry
            in_a_row = max(1, min(len(legend), int(width * columns / inches)))
            canvas.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=in_a_row)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once, for however many files
        return canvas


def save(figure: Figure, directory: Path, prefix: str = "") -> list[Path]:
    """Write the figure as PNG, SVG and PDF and its data as CSV; returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{prefix}{figure.name}.{ending}" for ending in ENDINGS]
    with matplotlib_style():
        canvas = draw(figure)
        for path in paths:
            partial = path.with_suffix(f".partial{path.suffix}")
            if path.suffix == ".csv":
                partial.write_text(data(figure), encoding="utf-8", newline="")
            else:
                canvas.savefig(partial)
            if path.suffix == ".png":
                _to_palette(partial)
            partial.replace(path)
    return paths


def _to_palette(path: Path) -> None:
    """Rewrite a PNG with 256 colours, which is all a drawing has, in a third of the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def data(figure: Figure) -> str:
    """The numbers of the figure as CSV, one line a point or cell."""
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


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The drawn figure as PNG bytes."""
    buffer = io.BytesIO()
    with matplotlib_style():
        draw(figure).savefig(buffer, dpi=dpi, format="png")
    return buffer.getvalue()


def _look(loss: str) -> dict[str, Any]:
    return {"colour": LOSSES[loss].colour, "marker": LOSSES[loss].marker, "loss": loss}


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
                handle = ax.scatter(
                    mark.x,
                    mark.y,
                    s=mark.size**2,
                    c=[mark.colour] if one_colour else mark.colour,
                    marker=mark.marker,
                    alpha=mark.opacity,
                    linewidths=1.6 if mark.marker == "x" else 0,  # a cross is nothing but lines
                )
                handle = handle if one_colour else None
            case Level():
                handle = ax.axhline(mark.y, color="#333333", ls="--", lw=1.2)
            case Diagonal():
                (handle,) = ax.plot([mark.low, mark.high], [mark.low, mark.high], color="#333333", ls="--", lw=1.2)
            case Heat():
                _draw_heat(ax, mark)
        if handle is not None and mark.name:
            legend.setdefault(mark.name, handle)
    ax.set_title(panel.title)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    if panel.log_x:
        ax.set_xscale("log")
    if panel.log_y:
        ax.set_yscale("log")
    if panel.x_range:
        ax.set_xlim(*panel.x_range)
    if panel.y_range:
        ax.set_ylim(*panel.y_range)
    if panel.hide_x:
        ax.set_xticks([])
    if panel.bare:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set_visible(False)


def _draw_heat(ax: Any, mark: Heat) -> None:
    values = [[float("nan") if value is None else value for value in row] for row in mark.values]
    ax.imshow(values, cmap="cividis_r", vmin=mark.low, vmax=mark.high, aspect="auto", origin="lower")
    ax.set_xticks(range(len(mark.x)), mark.x)
    ax.set_yticks(range(len(mark.y)), mark.y)
    ax.grid(False)
    for row, (numbers, texts) in enumerate(zip(values, mark.text, strict=True)):
        for column, (number, text) in enumerate(zip(numbers, texts, strict=True)):
            ax.text(column, row, text, ha="center", va="center", fontsize=8.5, color=_ink(mark, number))


def _ink(mark: Heat, value: float | None) -> str:
    """Text colour that can be read on the cell; cividis reversed is dark where values are high."""
    return "white" if value is not None and value > (mark.low + mark.high) / 2 else "black"


def plotly_json(panel: Panel) -> str:
    """One panel as plotly JSON. Colours of text and grid are left to the page, which knows light from dark."""
    import plotly.graph_objects as go

    chart = go.Figure()
    for mark in panel.marks:
        chart.add_traces(_traces(mark, go))
        if isinstance(mark, Level):
            chart.add_hline(y=mark.y, line={"color": OTHER, "dash": "dash", "width": 1.5}, name=mark.name)
        if isinstance(mark, Heat):
            for row, texts in enumerate(mark.text):
                for column, text in enumerate(texts):
                    font = {"color": _ink(mark, mark.values[row][column]), "size": 11}
                    chart.add_annotation(x=column, y=row, text=text, showarrow=False, font=font)
    names = any(isinstance(mark, Heat) for mark in panel.marks)
    chart.update_xaxes(
        title_text=panel.x_label, **_axis(panel.log_x, panel.x_range, _positive(panel, "x"), panel.bare, names)
    )
    chart.update_yaxes(
        title_text=panel.y_label, **_axis(panel.log_y, panel.y_range, _positive(panel, "y"), panel.bare, names)
    )
    if panel.hide_x:
        chart.update_xaxes(showticklabels=False, showgrid=False, ticks="")
    margin = {"l": 8, "r": 8, "t": 4, "b": 8} if panel.bare else {"l": 58, "r": 12, "t": 8, "b": 46}
    chart.update_layout(
        template="none",
        margin=margin,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12},
        showlegend=False,
        hovermode="closest",
    )
    return str(chart.to_json())


def legend(figure: Figure) -> list[tuple[str, str, str]]:
    """Name, colour and line (solid, dashed, dotted) of every named series of the figure, each once."""
    entries: dict[str, tuple[str, str]] = {}
    for panel in figure.panels:
        for mark in panel.marks:
            match mark:
                case Line():
                    entries.setdefault(mark.name, (mark.colour, CSS_LINES[mark.dash]))
                case Points() if isinstance(mark.colour, str):
                    entries.setdefault(mark.name, (mark.colour, "solid"))
                case Level() | Diagonal():
                    entries.setdefault(mark.name, (OTHER, "dashed"))
    return [(name, colour, line) for name, (colour, line) in entries.items() if name]


def _axis(
    log: bool, limits: tuple[float, float] | None, values: Sequence[float], bare: bool, names: bool
) -> dict[str, Any]:
    axis: dict[str, Any] = {"type": "log"} if log else {"type": "category", "showgrid": False} if names else {}
    if log:
        axis |= _log_ticks(*(limits or (min(values, default=1.0), max(values, default=1.0))))
    if limits:
        axis["range"] = [math.log10(limit) for limit in limits] if log else list(limits)
    return axis | ({"visible": False} if bare else {"ticks": "outside", "zeroline": False, "automargin": True})


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    """Decades, or every other one; 1, 2, 5 as plain numbers where there are hardly two of them."""
    if high > 30 * low:
        return {"exponentformat": "power", "dtick": 1 if high < 1e6 * low else 2}
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def _positive(panel: Panel, axis: str) -> list[float]:
    """Every positive number the panel shows along ``axis``, x or y."""
    numbers: list[Any] = []
    for mark in panel.marks:
        match mark:
            case Line() | Points():
                numbers += mark.x if axis == "x" else [*mark.y, *(mark.low or ()), *(mark.high or ())]
            case Level() if axis == "y":
                numbers.append(mark.y)
            case Diagonal():
                numbers += [mark.low, mark.high]
    return [number for number in numbers if isinstance(number, int | float) and 0 < number < math.inf]


def _traces(mark: Mark, go: Any) -> list[Any]:
    shared = {"name": mark.name, "meta": {"loss": getattr(mark, "loss", None)}}
    dashed = {"color": OTHER, "dash": "dash", "width": 1.5}
    traces = []
    match mark:
        case Line():
            if mark.low is not None and mark.high is not None:
                outline = {"x": [*mark.x, *reversed(mark.x)], "y": [*mark.high, *reversed(mark.low)]}
                fill = {"fill": "toself", "fillcolor": _faded(mark.colour), "line": {"width": 0}, "mode": "lines"}
                traces.append(go.Scatter(**outline, **fill, hoverinfo="skip", **shared))
            mode = "lines+markers" if mark.marker else "lines"
            line = {"color": mark.colour, "dash": mark.dash, "width": 2}
            dots = {"symbol": MARKERS[mark.marker], "size": 7}
            interval = [] if mark.low is None or mark.high is None else list(zip(mark.low, mark.high, strict=True))
            between = "<br>95 %: %{customdata[0]:.3g} to %{customdata[1]:.3g}" if interval else ""
            hover = f"<b>{mark.name}</b><br>%{{x}}: %{{y:.4g}}{between}<extra></extra>"
            data = {"x": list(mark.x), "y": list(mark.y), "customdata": interval or None}
            traces.append(go.Scatter(**data, mode=mode, line=line, marker=dots, hovertemplate=hover, **shared))
        case Points():
            error = None
            if mark.low is not None and mark.high is not None:
                up = [high - y for high, y in zip(mark.high, mark.y, strict=True)]
                down = [y - low for low, y in zip(mark.low, mark.y, strict=True)]
                error = {"type": "data", "array": up, "arrayminus": down, "symmetric": False, "thickness": 1.5}
            colour = mark.colour if isinstance(mark.colour, str) else list(mark.colour)
            dots = {"color": colour, "symbol": MARKERS[mark.marker], "size": mark.size + 2, "opacity": mark.opacity}
            text = "<br>%{text}" if mark.hover else ""
            where = "" if len(mark.x) == 1 else "%{x:.4g}: "
            hover = f"<b>{mark.name}</b><br>{where}%{{y:.4g}}{text}<extra></extra>"
            data = {"x": list(mark.x), "y": list(mark.y), "text": list(mark.hover) if mark.hover else None}
            kind = go.Scattergl if len(mark.x) > 500 else go.Scatter
            traces.append(kind(**data, mode="markers", marker=dots, error_y=error, hovertemplate=hover, **shared))
        case Level():
            pass  # a shape of the layout, not a trace
        case Diagonal():
            ends = [mark.low, mark.high]
            traces.append(go.Scatter(x=ends, y=ends, mode="lines", line=dashed, hoverinfo="skip", **shared))
        case Heat():
            scale = {"colorscale": "Cividis", "reversescale": True, "zmin": mark.low, "zmax": mark.high}
            axes = {"x": list(mark.x), "y": list(mark.y), "z": [list(row) for row in mark.values]}
            hover = "%{x}, %{y}: %{text}<extra></extra>"
            words = {"text": [list(row) for row in mark.text], "hovertemplate": hover}
            traces.append(go.Heatmap(**axes, **words, **scale, showscale=False, **shared))
    return traces


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
