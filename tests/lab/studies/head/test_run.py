"""The grid of losses and heads, and the study from the command line."""

import pytest

from softnce.lab.losses import LOSSES
from softnce.lab.studies.head import run as head


def test_every_loss_meets_every_head():
    config = head.PRESETS["paper"]
    every = {(source, loss, *kind) for source in config.data for loss in LOSSES for kind in head.HEADS}
    wanted = {one for one in every if one[1] != head.EXPECTED or not one[-1]}
    found = [(run.data, run.loss.name, run.head.kind, run.head.output_norm) for run in head.settings(config)]
    assert len(found) == len(wanted)
    assert set(found) == wanted
    assert len(head.runs(config)) == len(wanted) * len(config.rates)


def test_bad_settings_are_named():
    for options, word in (({"epochs": (3,)}, "epochs"), ({"rates": ()}, "rates"), ({"batch": 1}, "batch")):
        with pytest.raises(ValueError, match=word):
            head.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(made):
    rows = made("head", "--epochs", "[1]", "--rates", "[0.01]", "--seeds", "2", "--compared_seeds", "3")
    assert (
        len(rows) == (5 * 4 + 2) * 2 + 2 * 2
    )  # a third seed for the two losses that are compared, with both plain heads
