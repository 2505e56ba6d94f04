"""Verdicts on rows made by hand."""

import itertools
from dataclasses import replace

import pytest

from softnce.lab import studies
from softnce.lab.experiment.results import Row
from softnce.lab.studies.exact_loss import findings


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
            result = {"divergence_at_temperature": error + 0.001 * seed}
            rows.append(Row(str(len(rows)), config, result, 1.0, "2026-01-01", {}))
    return rows


def closely(seeds, *, kl, noise, noise_of_labels):
    """Runs of soft target cross-entropy at 1, soft distribution InfoNCE at 3, and expected InfoNCE as given."""
    rows = []
    values = {"soft-ce": (1.0, 1.0, 1.0), "soft-dist-info-nce": (3.0, 3.0, 3.0)}
    values["expected-info-nce"] = (kl, noise, noise_of_labels)
    for (kind, (its_kl, *noises)), seed in itertools.product(values.items(), range(seeds)):
        shared = {"method": {"kind": kind, "strength": 0.0}, "seed": seed}
        config = {"part": "training", "problem": "conditional", "epochs": 40} | shared
        rows.append(Row("", config, {"divergence": its_kl, "divergence_at_temperature": its_kl}, 1.0, "", {}))
        for problem, value in zip(("conditional", "labels", "digits"), (*noises, noises[1]), strict=True):
            config = {"part": "noise", "problem": problem, "batches": 9} | shared
            rows.append(Row("", config, {"gradient_noise": value + 0.01 * seed}, 1.0, "", {}))
    return rows


@pytest.mark.parametrize(
    ("rows", "conditional", "noise"),
    [
        (closely(5, kl=1.2, noise=1.0, noise_of_labels=0.9), "beyond", "beyond"),
        (closely(5, kl=1.4, noise=1.0, noise_of_labels=1.1), "not reproduced", "not reproduced"),
        (closely(5, kl=1.2, noise=1.2, noise_of_labels=1.1), "not reproduced", "not reproduced"),
        (closely(2, kl=1.2, noise=1.0, noise_of_labels=0.9), "undecided", "undecided"),
    ],
)
def test_verdicts_of_expected_info_nce(rows, conditional, noise):
    found = studies.load("exact-loss").judge(rows)
    assert (found["expected-conditional"].verdict, found["expected-noise"].verdict) == (conditional, noise)


def test_seeds_that_only_some_methods_have_are_left_out_where_all_are_compared():
    rows = trainings(3, soft_on_labels=0.2, soft_on_conditional=2.0)
    more = [replace(row, config=row.config | {"seed": 7}) for row in rows if row.config["method"]["kind"] == "averaged"]
    assert findings.trainings([*rows, *more]) == findings.trainings(rows)


@pytest.mark.parametrize(
    ("rows", "substitute", "alternative"),
    [
        (trainings(3, soft_on_labels=0.2, soft_on_conditional=2.0), "explained", "beyond"),
        (trainings(3, soft_on_labels=0.2, soft_on_conditional=0.05), "reproduced", "beyond"),
        (trainings(3, soft_on_labels=3.0, soft_on_conditional=2.0), "not reproduced", "beyond"),
        (trainings(1, soft_on_labels=0.2, soft_on_conditional=2.0), "undecided", "undecided"),
    ],
)
def test_verdicts(rows, substitute, alternative):
    found = studies.load("exact-loss").judge(rows)
    assert (found["exact-substitute"].verdict, found["exact-alternative"].verdict) == (substitute, alternative)
    assert "exact-sampling" not in found
