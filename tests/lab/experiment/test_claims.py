"""The table of claims as text, and what verdicts ask for."""

import pytest

from softnce.lab.experiment import claims
from softnce.lab.experiment.statistics import estimate


def test_the_table_as_text():
    text = claims.as_markdown({"bound": claims.Finding("1.0 | 2", "a table", "reproduced")})
    assert text.count("\n") == 3
    assert "1.0 \\| 2" in text
    assert "**reproduced**" in text


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([-0.1, 0.1, 0.0, 0.05], "reproduced"),
        ([-0.8, -0.9, -0.7, -0.8], "not reproduced"),
        ([-0.8, -1.1, -0.4, -0.8], "undecided"),  # real, but maybe small
        ([-0.2, -0.21, -0.2, -0.19], "reproduced"),  # real, but small
        ([-0.8, 0.9, -0.7, 0.8], "undecided"),
        ([-3.0], "undecided"),
    ],
)
def test_on_par_is_within_half_a_point(gaps, verdict):
    assert claims.on_par(estimate(gaps)) == verdict


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [([0.1, 0.2], "undecided"), ([0.1, 0.11], "reproduced"), ([-0.1, -0.11], "not reproduced"), ([3.0], "undecided")],
)
def test_a_lead_needs_an_interval(gaps, verdict):
    assert claims.ahead(estimate(gaps)) == verdict
    opposite = {"reproduced": "not reproduced", "not reproduced": "reproduced"}
    assert claims.ahead(-estimate(gaps)) == opposite.get(verdict, verdict)
