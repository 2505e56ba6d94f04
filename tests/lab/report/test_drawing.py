"""Figures as matplotlib draws them, and the files they are saved in."""

import pytest

from softnce.lab.report import drawing
from softnce.lab.report.charts import Figure, Line, Panel


def test_every_mark_is_drawn(everything):
    assert drawing.png(everything).startswith(b"\x89PNG")


@pytest.mark.slow
def test_saved_files(everything, tmp_path):
    paths = drawing.save(everything, tmp_path / "figures", prefix="toy-")
    assert [path.name for path in paths] == ["toy-all.png", "toy-all.svg", "toy-all.pdf", "toy-all.csv"]
    assert sorted((tmp_path / "figures").iterdir()) == sorted(paths), "nothing half-written is left"
    starts = [path.read_bytes()[:5] for path in paths]
    assert starts == [b"\x89PNG\r", b"<?xml", b"%PDF-", b"panel"]


def test_log_axes_have_plain_numbers_where_they_are_short():
    def ticks(*x: float) -> list[str]:
        panel = Panel("", "", "", [Line("", x, [1.0] * len(x))], log_x=True)
        canvas = drawing.draw(Figure("toy", "", [panel]))
        canvas.draw_without_rendering()
        return [label.get_text() for label in canvas.axes[0].get_xticklabels()]

    assert {"1", "10", "100", "1,000"} <= set(ticks(1, 1000))
    assert {"50", "100", "200"} <= set(ticks(50, 300))
    assert {"0.0005", "0.001"} <= set(ticks(5e-4, 1e-3))
    assert any("10^{-6}" in text for text in ticks(1e-8, 1e-2))


def test_places_without_a_panel_are_empty():
    panels = [Panel(str(n), "", "", [Line("", [0, 1], [0, 1])]) for n in range(4)]
    canvas = drawing.draw(Figure("toy", "", panels, columns=3))
    assert [ax.axison for ax in canvas.axes] == [True] * 4 + [False] * 2
