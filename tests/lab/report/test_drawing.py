"""Figures as matplotlib draws them, and the files they are saved in."""

import pytest

from softnce.lab.report import drawing


def test_every_mark_is_drawn(everything):
    assert drawing.png(everything).startswith(b"\x89PNG")


@pytest.mark.slow
def test_saved_files(everything, tmp_path):
    paths = drawing.save(everything, tmp_path / "figures", prefix="toy-")
    assert [path.name for path in paths] == ["toy-all.png", "toy-all.svg", "toy-all.pdf", "toy-all.csv"]
    assert sorted((tmp_path / "figures").iterdir()) == sorted(paths), "nothing half-written is left"
    starts = [path.read_bytes()[:5] for path in paths]
    assert starts == [b"\x89PNG\r", b"<?xml", b"%PDF-", b"panel"]
