"""How differences are taken."""

import pytest

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.studies.noisy_steps import findings, page
from softnce.lab.studies.noisy_steps import run as steps


def rows_with(nll, data="tiny-imagenet"):
    """Rows of three seeds whose NLL is given by loss and rate."""
    config = steps.Config(seeds=3, data=data, rates=(1.0, 3.0, 10.0))
    found = []
    for run in steps.runs(config):
        scores = {"nll": nll[run.loss][run.lr] + 0.1 * run.seed, "top1": 0.5}
        found.append(Row(str(len(found)), to_mapping(run), {"held_out": scores, "test": scores}, 1.0, "", {}))
    return found


NLL = {
    "nll": {1.0: 2.0, 3.0: 1.5, 10.0: 3.0},
    "info-nce": {1.0: 1.6, 3.0: 1.7, 10.0: 2.0},
    "expected-info-nce": {1.0: 2.0, 3.0: 1.4, 10.0: 1.9},
}


def test_each_at_its_best_rate_and_all_at_one():
    found = findings.find(rows_with(NLL))
    assert {loss: found.best_rate(loss) for loss in NLL} == {"nll": 3.0, "info-nce": 1.0, "expected-info-nce": 3.0}
    assert found.at_best("info-nce").mean == pytest.approx(0.1)
    assert found.at_best("expected-info-nce").mean == pytest.approx(-0.1)
    assert found.at_rate("expected-info-nce", 10.0).mean == pytest.approx(-1.1)
    said = findings.claims(rows_with(NLL))["noisy-steps"].ours
    assert "−1.100 [−1.100, −1.100] at 3.3 times NLL's best rate" in said


def test_digits_and_unfinished_runs_decide_nothing():
    assert not findings.claims(rows_with(NLL, "digits"))
    assert not findings.claims(rows_with(NLL)[:5])
    assert page.section(rows_with(NLL)[:5]).title == page.TITLE
