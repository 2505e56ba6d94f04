import pytest

from softnce.lab.report import drawing
from softnce.lab.studies.digits import page
from softnce.lab.studies.digits import run as digits


@pytest.mark.slow
def test_losses_learn_and_seeds_reproduce():
    config = digits.Config(seeds=1, epochs=15)
    for run in digits.runs(config):
        result = digits.perform(run)
        assert result["accuracy"] > 0.8, run.loss
        assert 0 <= result["ece"] < 0.5
        assert digits.perform(run) == result
    assert len(digits.runs(config)) == 6


def test_only_soft_losses_are_smoothed():
    for run in digits.runs(digits.PRESETS["quick"]):
        assert (run.smoothing > 0) == (run.mixup > 0) == (run.loss not in ("nll", "info-nce"))


@pytest.mark.slow
def test_section(made):
    section = page.section(made("digits", "--seeds", "2", "--epochs", "2"))
    figure, table = section.blocks[:2]
    assert drawing.png(figure, dpi=40).startswith(b"\x89PNG")
    assert len(table.rows) == 6
    assert all("±" in cell for row in table.rows for cell in row[1:])
