"""The distribution itself, by its strength and by the original method."""

import math

import pytest

from softnce.lab.studies.exact_loss import distribution

LABEL = 0.91 * math.log(9.1) + 0.09 * math.log(0.1)  # KL of a label smoothed by 0.1 among 10 to the uniform


def test_the_strength_of_a_draw():
    found = distribution.shape(10)
    assert found["label_nats"] == pytest.approx(LABEL, rel=1e-12)
    nats = [found["strength"][name]["nats"] for name in ("1", "√K", "K")]
    assert nats == sorted(nats)
    assert found["strength"]["1"]["mean_of_true_class"] > 0.1
    assert 1 <= found["proposals"] < 1.2
    at_1000 = distribution.shape(1000)["strength"]["1"]
    assert f"{at_1000['mean_of_true_class']:.5f}" == "0.00101"
    assert at_1000["nats"] < 1e-4


def test_the_original_method_loses_its_digits_and_its_proposals():
    small, large = distribution.shape(3), distribution.shape(30)
    assert small["original_error"] < 1e-12
    assert large["original_error"] > 1e-3
    assert max(small["error"], large["error"]) < 1e-12
    assert small["log10_original_proposals"] < 1 < 10 < large["log10_original_proposals"]
    assert large["proposals"] < 1.2
