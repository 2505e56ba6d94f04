"""Verdicts, from results made up to have one."""

import itertools

import pytest

from softnce.lab import studies
from softnce.lab.experiment.results import Row

numbers = itertools.count()


def row(config, result):
    return Row(str(next(numbers)), config, result, 1.0, "2026-01-01", {"softnce": "0", "torch": "2"})


def critics(excess, last):
    rows = []
    table = {"states": 3, "classes": 3, "sharpness": 1.0, "skew": 1.0}
    for loss, epsilon in itertools.product(("soft-dist-info-nce", "soft-target-info-nce"), (0.0, 0.9)):
        config = {"table": table, "loss": loss, "critic": "free", "epsilon": epsilon, "candidates": 16, "seed": 0}
        config |= {"steps": 10, "batch_size": 64}
        bound = last if epsilon and loss == "soft-dist-info-nce" else 1.0
        truth = bound + 0.1 - excess
        rows.append(row(config, {"bound": bound, "truth": truth, "paper_bound": bound - 0.1, "standard_error": 0.001}))
    return rows


def of_expected(excess, **more):
    """A row of expected InfoNCE whose bound stands that far from its truth, beside those of the paper's losses."""
    rows = critics(-0.2, 0.1)
    config = rows[0].config | {"loss": "expected-info-nce", "noise_count": 20.0} | more
    return [*rows, row(config, {"bound": 1.0 + excess, "truth": 1.0, "paper_bound": 0.9, "standard_error": 0.001})]


@pytest.mark.parametrize(("excess", "verdict"), [(-0.1, "beyond"), (0.001, "beyond"), (0.1, "not reproduced")])
def test_the_bound_of_expected_info_nce(excess, verdict):
    rows = of_expected(excess)
    found = studies.load("information").judge([*rows, of_expected(0.4, noise="uniform")[-1]])
    assert found["expected-bound"].verdict == verdict
    assert "1.40, true value 1.00" in found["expected-bound"].ours
    assert found["bound"] == studies.load("information").judge(critics(-0.2, 0.1))["bound"]


@pytest.mark.parametrize(
    ("rows", "bound", "epsilon"),
    [
        (critics(-0.2, 0.1), "reproduced", "reproduced"),
        (critics(-0.1 + 0.1, 0.1), "reproduced", "reproduced"),
        (critics(0.3, 1.0), "not reproduced", "not reproduced"),
    ],
)
def test_information(rows, bound, epsilon):
    found = studies.load("information").judge(rows)
    assert (found["bound"].verdict, found["bound-epsilon"].verdict) == (bound, epsilon)
