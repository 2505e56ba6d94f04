"""A page of what there is."""

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.studies.exact_loss import page
from softnce.lab.studies.exact_loss import run as exact_loss
from softnce.lab.studies.exact_loss.training import Method


def test_the_page_needs_no_part_in_particular():
    """A study interrupted early has only some of its rows."""
    config = exact_loss.Config(seeds=1, epochs=1, digits_epochs=1, gradients=2, classes=(3,), cost_classes=(3,))
    shape = next(run for run in exact_loss.runs(config) if isinstance(run, exact_loss.Shape))
    runs = [exact_loss.Training("labels", Method("soft-ce"), 0, 1, 2), shape]
    rows = [Row("", to_mapping(run), exact_loss.perform(run), 0.0, "", {}) for run in runs]
    for some in (rows[:1], rows[1:], rows):
        assert page.section(some).blocks
