"""Calibration: every loss in every case, losses on labels in both."""

import pytest

from softnce.lab.losses import LOSSES
from softnce.lab.studies.calibration.findings import cases
from softnce.lab.studies.calibration.run import AUGMENTATIONS, Config, settings


@pytest.mark.slow
def test_from_command_to_page(made):
    found = cases(made("calibration", "--epochs", "[1]", "--rates", "[0.003]", "--seeds", "2"))
    assert [case.augmentation for case in found] == list(AUGMENTATIONS)
    for case in found:
        assert tuple(case.losses) == tuple(LOSSES)
        assert {len(setting) for setting in case.losses.values()} == {2}
    smoothed, mixed = found
    assert smoothed.losses["nll"] == mixed.losses["nll"]
    assert smoothed.losses["soft-ce"] != mixed.losses["soft-ce"]


def test_losses_on_labels_are_trained_once():
    found = settings(Config())
    assert len(found) == len(set(found)) == 2 * (2 + 2 * 4)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="epochs: got"):
        Config(epochs=(1, 2), data=("digits",))
