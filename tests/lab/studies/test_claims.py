"""Verdicts on the paper's claims, from results made up to have one."""

import itertools

import pytest

from softnce.lab import studies
from softnce.lab.experiment.results import Row

numbers = itertools.count()


def row(config, result):
    return Row(str(next(numbers)), config, result, 1.0, "2026-01-01", {"softnce": "0", "torch": "2"})


def trainings(seeds, *, soft_on_labels, soft_on_conditional):
    rows = []
    errors = {
        ("labels", "soft-target-info-nce", 0.0): soft_on_labels,
        ("labels", "averaged", 1.0): 0.2,
        ("labels", "continuous", 10.0): 1.0,
        ("conditional", "soft-target-info-nce", 0.0): soft_on_conditional,
        ("conditional", "averaged", 1.0): 0.04,
        ("conditional", "continuous", 10.0): 0.06,
    }
    for (problem, kind, strength), error in errors.items():
        for seed in range(seeds):
            method = {"kind": kind, "strength": strength}
            config = {"part": "training", "problem": problem, "method": method, "seed": seed, "epochs": 40}
            rows.append(row(config, {"divergence_at_temperature": error + 0.001 * seed}))
    return rows


@pytest.mark.parametrize(
    ("rows", "substitute", "alternative"),
    [
        (trainings(3, soft_on_labels=0.2, soft_on_conditional=2.0), "explained", "beyond"),
        (trainings(3, soft_on_labels=0.2, soft_on_conditional=0.05), "reproduced", "beyond"),
        (trainings(3, soft_on_labels=3.0, soft_on_conditional=2.0), "not reproduced", "beyond"),
        (trainings(1, soft_on_labels=0.2, soft_on_conditional=2.0), "undecided", "undecided"),
    ],
)
def test_exact_loss(rows, substitute, alternative):
    found = studies.load("exact-loss").judge(rows)
    assert (found["exact-substitute"].verdict, found["exact-alternative"].verdict) == (substitute, alternative)
    assert "exact-sampling" not in found
