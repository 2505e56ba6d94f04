"""Verdicts on rows made by hand."""

import pytest
from lab.studies.human_labels.rows import KL, rows_with

from softnce.lab import studies


@pytest.mark.parametrize(
    ("kl", "data", "verdict"),
    [
        (KL, "cifar10h", "beyond"),
        (KL, "simulated", "undecided"),
        (dict.fromkeys(KL, 0.24), "cifar10h", "not reproduced"),
    ],
)
def test_verdict(kl, data, verdict):
    found = studies.load("human-labels").judge(rows_with(kl, data))["human-labels"]
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("kl", "data", "verdict"),
    [(0.211, "cifar10h", "beyond"), (0.215, "cifar10h", "not reproduced"), (0.211, "simulated", "undecided")],
)
def test_verdict_on_expected_info_nce(kl, data, verdict):
    rows = rows_with(KL | {"expected-info-nce": kl}, data)
    assert studies.load("human-labels").judge(rows)["expected-votes"].verdict == verdict
