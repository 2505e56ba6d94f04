"""The study from the command line; a run is determined by its settings."""

import pytest

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.report import charts, drawing
from softnce.lab.studies.exact_loss import page
from softnce.lab.studies.exact_loss import run as exact_loss
from softnce.lab.studies.exact_loss.training import Method


def test_a_run_is_determined_by_its_settings():
    run = exact_loss.Training("digits", Method("continuous", 5.0), seed=1, epochs=2, gradients=3)
    assert exact_loss.perform(run) == exact_loss.perform(run)


@pytest.mark.slow
def test_the_study_from_the_command_line(tmp_path, capsys):
    options = ["--epochs", "1", "--digits_epochs", "1", "--gradients", "3"]
    options += ["--labels", "[2]", "--concentrations", "[3]", "--classes", "[2, 30]", "--cost_classes", "[5]"]
    name = "exact-loss"
    for _ in range(2):
        study_command.main([name, "--out", str(tmp_path), *options])
    assert "0 runs to do" in capsys.readouterr().out
    section = page.section(studies.load(name).results(tmp_path).rows())
    figures = [block for block in section.blocks if isinstance(block, charts.Figure)]
    assert [figure.name for figure in figures] == ["training", "course", "strength", "original"]
    for figure in figures:
        drawing.draw(figure)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs: got 0"),
        ({"labels": (0,)}, "labels: got 0"),
        ({"concentrations": (0.0,)}, "concentrations: got 0"),
        ({"classes": (1,)}, "classes: got 1"),
    ],
)
def test_misuse_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        exact_loss.Config(**options)
