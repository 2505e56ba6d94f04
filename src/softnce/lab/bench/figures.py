"""The result as pictures: cost against N, M and K, and what a step costs as classes grow."""

from collections.abc import Mapping, Sequence

from softnce.lab.bench.measurement import Measurement
from softnce.lab.bench.scaling import AXES, Axis, position
from softnce.lab.report.charts import Figure, Line, Panel
from softnce.lab.report.style import LOSSES, OTHER, SERIES, SHADES

LOOKS = {
    # case: colour and marker; softnce is soft target InfoNCE
    "F.cross_entropy, probabilities": (LOSSES["soft-ce"].colour, "s"),
    "published N×M×K formulation": (OTHER, "x"),
    "softnce, probabilities": (SHADES[1], "v"),
    "softnce, MixUp pairs": (SHADES[0], "^"),
    "softnce.linear, pairs": (SHADES[2], "D"),
}
STEPS = {
    "F.linear + F.cross_entropy, labels": (LOSSES["nll"].colour, "o"),
    "F.linear_cross_entropy by 256 rows, labels": (SERIES[0], "s"),
    "sampled softmax with log Q, pairs, SparseAdam": (SERIES[1], "v"),
    "softnce.linear, pairs, SparseAdam": (SHADES[2], "D"),
}
UNITS = {"time": "milliseconds per step", "peak memory": "megabytes"}


def scaling(sweeps: Mapping[Axis, Sequence[Measurement]]) -> Figure:
    """Time above, memory below, a column for each axis."""
    return Figure(
        "bench-scaling",
        "Time and peak memory of forward and backward as rows N, candidates M and classes K grow.",
        [_panel(what, axis, measurements, LOOKS) for what in UNITS for axis, measurements in sweeps.items()],
        columns=len(sweeps),
    )


def steps(measurements: Sequence[Measurement]) -> Figure:
    """A step from features and a label table as classes grow: time with quartiles, and peak memory."""
    return Figure(
        "bench-classes",
        "A training step from features and a table of label embeddings; memory beside the table. Band: quartiles.",
        [_panel(what, "K", measurements, STEPS) for what in UNITS],
    )


def _panel(what: str, axis: Axis, measurements: Sequence[Measurement], looks: Mapping[str, tuple[str, str]]) -> Panel:
    lines = []
    for name, (colour, marker) in looks.items():
        points = [m for m in measurements if m.case.name == name and m.times]
        if not points:
            continue
        x = [position(axis, m.size) for m in points]
        if what == "time":
            low, y, high = ([1e3 * getattr(m.seconds, end) for m in points] for end in ("low", "median", "high"))
            lines.append(Line(name, x, y, low, high, colour, marker))
        else:
            lines.append(Line(name, x, [m.bytes / 1e6 for m in points], colour=colour, marker=marker))
    return Panel(f"{what} against {axis}", AXES[axis], UNITS[what], lines, log_x=True, log_y=True)
