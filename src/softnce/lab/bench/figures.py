"""The result as pictures: cost against N, M and K, and what a step costs as classes grow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softnce.lab.atomic import replacing
from softnce.lab.bench.measurement import Measurement
from softnce.lab.bench.scaling import AXES, Axis, Exponent, position
from softnce.lab.report.style import OTHER, Look, matplotlib_style

LOOKS = {
    look.name: look
    for look in (
        Look("F.cross_entropy, probabilities", "#E69F00", "s"),
        Look("published N×M×K formulation", OTHER, "x"),
        Look("softnce, probabilities", "#56B4E9", "v"),
        Look("softnce, MixUp pairs", "#009E73", "^"),
        Look("softnce.linear, pairs", "#0072B2", "D"),
        Look("F.linear + F.cross_entropy, labels", "#E69F00", "s"),
        Look("F.linear_cross_entropy by 256 rows, labels", "#D55E00", "o"),
        Look("sampled softmax with log Q, pairs, SparseAdam", "#CC79A7", "v"),
        Look("softnce.linear, pairs, SparseAdam", "#0072B2", "D"),
    )
}


WHAT = {"time": "time", "memory": "peak memory"}
STEPS = (
    "F.linear + F.cross_entropy, labels",
    "F.linear_cross_entropy by 256 rows, labels",
    "sampled softmax with log Q, pairs, SparseAdam",
    "softnce.linear, pairs, SparseAdam",
)


def draw_scaling(
    sweeps: Mapping[Axis, Sequence[Measurement]],
    exponents: Mapping[Axis, Mapping[str, Mapping[str, Exponent]]],
    path: Path,
) -> None:
    """Time above, memory below, a column for each axis; the exponent is written at the end of each line."""
    from matplotlib.figure import Figure

    with matplotlib_style():
        canvas = Figure(figsize=(4.1 * len(sweeps), 6.6), layout="constrained")
        axes = canvas.subplots(2, len(sweeps), squeeze=False)
        legend: dict[str, Any] = {}
        for column, (axis, measurements) in enumerate(sweeps.items()):
            for row, what in enumerate(WHAT):
                ax = axes[row][column]
                ends = []
                for name, points in _by_case(measurements).items():
                    x = [position(axis, m.size) for m in points]
                    legend.setdefault(name, _line(ax, name, x, points, what))
                    if name in exponents[axis]:
                        ends.append((x[-1], _value(points[-1], what), exponents[axis][name][what].rounded, name))
                _log_axes(ax, AXES[axis], what if column == 0 else None)
                if axis != "K":
                    ticks = sorted({position(axis, m.size) for m in measurements})
                    ax.set_xticks(ticks, map(str, ticks))
                    ax.set_xticks([], minor=True)
                ax.set_title(f"{WHAT[what]} against {axis}")
                ax.margins(x=0.16)
                _write_exponents(ax, ends)
        canvas.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=3)
        _save(canvas, path)


def draw_tables(measurements: Sequence[Measurement], path: Path) -> None:
    """A step from features and a label table as classes grow: time with quartiles, and peak memory."""
    from matplotlib.figure import Figure

    shown = {name: points for name, points in _by_case(measurements).items() if name in STEPS}
    with matplotlib_style():
        canvas = Figure(figsize=(8.6, 3.9), layout="constrained")
        legend: dict[str, Any] = {}
        for ax, what in zip(canvas.subplots(1, 2), WHAT, strict=True):
            for name, points in shown.items():
                x = [m.size.classes for m in points]
                legend.setdefault(name, _line(ax, name, x, points, what))
                if what == "time":
                    low, high = ([1e3 * getattr(m.seconds, end) for m in points] for end in ("low", "high"))
                    ax.fill_between(x, low, high, color=LOOKS[name].colour, alpha=0.18, lw=0)
            _log_axes(ax, AXES["K"], what)
            ax.set_title("time of a training step" if what == "time" else "its peak memory beside the table")
        canvas.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=2)
        _save(canvas, path)


def _by_case(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for m in measurements:
        if m.times:
            found.setdefault(m.case.name, []).append(m)
    return found


def _value(m: Measurement, what: str) -> float:
    return 1e3 * m.seconds.median if what == "time" else m.bytes / 1e6


def _line(ax: Any, name: str, x: Sequence[int], points: Sequence[Measurement], what: str) -> Any:
    look = LOOKS[name]
    (handle,) = ax.plot(x, [_value(m, what) for m in points], color=look.colour, marker=look.marker)
    return handle


def _log_axes(ax: Any, x_label: str, what: str | None) -> None:
    from matplotlib.ticker import NullFormatter

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(x_label)
    if what is not None:
        ax.set_ylabel("milliseconds a step" if what == "time" else "megabytes")


def _write_exponents(ax: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """At the ends of the lines, moved up where they would cover each other."""
    ax.get_figure().canvas.draw()
    point = ax.get_figure().dpi / 72  # in pixels
    lowest: dict[float, float] = {}
    for x, y, text, name in sorted(ends, key=lambda end: end[1]):
        height = ax.transData.transform((x, y))[1] / point
        lowest[x] = max(height, lowest.get(x, float("-inf")) + 9.5)
        shift = lowest[x] - height
        options = {"textcoords": "offset points", "va": "center", "fontsize": 8.5, "color": LOOKS[name].colour}
        ax.annotate(text, (x, y), xytext=(6, shift), **options)


def _save(canvas: Any, path: Path) -> None:
    with replacing(path) as partial:
        canvas.savefig(partial, format="png")
