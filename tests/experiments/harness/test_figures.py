"""Figures: ticks that do not touch, names in order beside their curves, colours readable on white and on black."""

from itertools import pairwise, product

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from experiments.harness import figures
from experiments.harness.figures import LIGHTER, LOOKS, SERIES, Figure, curve, label, level


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Saves a figure; returns its canvas as it was written, light and dark."""

    def save(figure):
        canvases = []
        monkeypatch.setattr(Canvas, "savefig", lambda canvas, *args, **options: canvases.append(canvas))
        figure.save(tmp_path)
        return canvases

    return save


@pytest.mark.parametrize(("low", "high"), [(18, 900), (47, 430), (0.0057, 0.021), (1e-16, 200), (2, 1e6), (6e-5, 3e-4)])
def test_labels_of_a_log_axis_are_apart(drawn, low, high):
    def draw(axes):
        curve(axes[0], {low: low, high: high})
        label(axes[0], "x", "y", log="xy")

    for canvas, side in product(drawn(Figure("ticks", draw, size=(2.6, 2.2))), "xy"):
        texts = [text for text in getattr(canvas.axes[0], f"{side}axis").get_ticklabels() if text.get_text()]
        boxes = sorted(tuple(getattr(text.get_window_extent(), f"interval{side}")) for text in texts)
        assert len(boxes) >= 2
        assert all(before[1] < after[0] for before, after in pairwise(boxes))


def test_given_ticks_stay(drawn):
    def draw(axes):
        curve(axes[0], {1: 1, 100: 2})
        label(axes[0], log="x", xticks=[1, 2, 100])

    for canvas in drawn(Figure("ticks", draw)):
        assert [text.get_text() for text in canvas.axes[0].xaxis.get_ticklabels()] == ["1", "2", "100"]


def test_names_stand_apart_in_the_order_of_the_curves(drawn):
    def draw(axes):
        for place, end in enumerate((0.0, 1.0, 1.001, 1.002)):
            curve(axes[0], {0: 0, 1: end}, name=f"curve {place}")
        level(axes[0], 0.5, "level")

    for canvas in drawn(Figure("names", draw)):
        ax = canvas.axes[0]
        names = sorted(ax.texts, key=lambda text: Text.get_window_extent(text).y0)
        assert [text.get_text() for text in names] == ["curve 0", "level", "curve 1", "curve 2", "curve 3"]
        boxes = [Text.get_window_extent(text) for text in names]  # without the lines to the curves
        assert all(after.y0 - before.y0 > 10 for before, after in pairwise(boxes))
        assert abs(boxes[1].y0 - boxes[0].y0 - ax.get_window_extent().height * 0.5 / 1.1) < 6  # at their height


def brightness(colour):
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("colour", [*(look.colour for look in LOOKS.values()), *SERIES, figures.OTHER])
def test_colours_are_readable_in_the_dark(colour):
    on_dark = brightness(LIGHTER.get(colour.lower(), colour)) + 0.05
    assert on_dark / (brightness("#0d1117") + 0.05) >= 4.5
