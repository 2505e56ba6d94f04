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
