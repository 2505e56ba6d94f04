"""Verdicts on rows made by hand."""

import pytest
from lab.studies.distillation.rows import TOP1, rows_with

from softnce.lab import studies


@pytest.mark.parametrize(("data", "verdict"), [("cifar100", "beyond"), ("digits", "undecided")])
def test_verdict(data, verdict):
    found = studies.load("distillation").judge(rows_with(TOP1, data))["distillation"]
    assert found.verdict == verdict
    assert found.ours.startswith("+2.00 [+2.00, +2.00] points over NLL on labels")


@pytest.mark.parametrize(
    ("top1", "data", "verdict"),
    [(55.2, "cifar100", "beyond"), (54.0, "cifar100", "not reproduced"), (55.2, "digits", "undecided")],
)
def test_verdict_on_expected_info_nce(top1, data, verdict):
    rows = rows_with(TOP1 | {"expected-info-nce": (50.0, top1)}, data)
    assert studies.load("distillation").judge(rows)["expected-teacher"].verdict == verdict
