"""Smoothing is a temperature, in values and gradients and in whole trainings."""

import pytest
import torch

from softnce.lab.studies.smoothing.findings import find
from softnce.lab.studies.smoothing.run import CE, EXPECTED, OURS, Config, identity_error


@pytest.mark.slow
def test_smoothing_is_a_temperature(made):
    both = ("--smoothing", "[0.0, 0.2]", "--expected_smoothing", "[0.0, 0.2]")
    found = find(made("smoothing", "--epochs", "2", *both, "--rates", "[0.003]", "--seeds", "2"))
    assert [len(of) for of in found.losses[EXPECTED].values()] == [2, 2]
    assert max(found.identity) < 1e-12
    spreads = {
        name: [
            100 * abs(a.result["test"]["top1"] - b.result["test"]["top1"]) / 2**0.5
            for a, b in zip(*(setting.rows for setting in of.values()), strict=True)
        ]
        for name, of in found.losses.items()
    }  # the standard deviation of two values, seed by seed
    expected = [ce - ours for ce, ours in zip(spreads[CE], spreads[OURS], strict=True)]
    assert found.steadiness.mean == pytest.approx(sum(expected) / 2)
    for ours, twin in zip(found.losses[OURS][0.2].rows, found.twins[0.2].rows, strict=True):
        assert abs(ours.result["test"]["nll"] - twin.result["test"]["nll"]) < 1e-3
        assert abs(ours.result["test"]["ece"] - twin.result["test"]["ece"]) < 0.01


def test_the_identity_holds_to_rounding_at_any_scale():
    logits, labels = torch.randn(32, 7), torch.arange(32) % 7
    for scale in (1.0, 1e3, 1e6):
        assert max(identity_error(scale * logits, labels, 0.3).values()) < 1e-13 * scale
    assert identity_error(logits, labels, 0.0)["value"] == 0.0


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="smoothing: got 1"):
        Config(smoothing=(1.0,))
