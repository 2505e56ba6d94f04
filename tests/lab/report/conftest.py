"""A figure that every way of drawing has to draw."""

import pytest

from softnce.lab.report.charts import Diagonal, Figure, Heat, Level, Line, Panel, Points


@pytest.fixture
def everything() -> Figure:
    """A figure with every kind of mark."""
    lines = Panel(
        "lines",
        "x",
        "y",
        [
            Line.of_loss("nll", [1, 2], [0.1, 0.2], [0.05, 0.1], [0.2, 0.3]),
            Line("gap", [1, 2, 3], [0.1, None, 0.3], dash="dot"),
            Points.of_loss("info-nce", [1, 2], [0.3, 0.1], [0.2, 0.05], [0.4, 0.2], hover=["a", "b"]),
            Level("limit", 0.15),
            Diagonal("same", 0.1, 0.3),
        ],
        log_y=True,
        y_range=(0.01, 1),
    )
    heat = Panel("heat", "rate", "size", [Heat(["1", "2"], ["a"], [[0.1, None]], [["x", ""]], 0, 1)])
    dots = Panel("", "", "", [Points("", [0, 1], [1, 0], colour=["#112233", "#445566"])], bare=True)
    return Figure("all", "All of it.", [lines, heat, dots], columns=2)
