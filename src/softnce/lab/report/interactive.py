"""Figures drawn by plotly, for the page on a screen."""

import math
from collections.abc import Sequence
from typing import Any

from softnce.lab.report.charts import Diagonal, Figure, Heat, Level, Line, Mark, Panel, Points
from softnce.lab.report.style import FONT, MARKERS, OTHER

CSS_LINES = {"solid": "solid", "dash": "dashed", "dot": "dotted"}


def plotly_json(panel: Panel) -> str:
    """One panel as plotly JSON. The page sets the colours of text and grid, light or dark."""
    import plotly.graph_objects as go

    chart = go.Figure()
    for mark in panel.marks:
        chart.add_traces(_traces(mark, go))
        if isinstance(mark, Level):
            chart.add_hline(y=mark.y, line={"color": OTHER, "dash": "dash", "width": 1.5}, name=mark.name)
        if isinstance(mark, Heat):
            for row, texts in enumerate(mark.text):
                for column, text in enumerate(texts):
                    font = {"color": mark.ink(mark.values[row][column]), "size": 11}
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
    """Decades, or every other one; 1, 2, 5 as plain numbers if there are fewer than two."""
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
            kind = go.Scattergl if len(mark.x) > 5000 else go.Scatter
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
