"""Rare classes: what the correction does, in a problem whose optimum is known, and how a run is measured."""

from dataclasses import replace

import pytest
import torch

from softnce import InfoNCE, SoftTargets
from softnce.lab.configuration import to_mapping
from softnce.lab.data import features
from softnce.lab.data.imbalance import thirds
from softnce.lab.experiment.probe import fit
from softnce.lab.recipes.recipe import Loss
from softnce.lab.studies.long_tail import run as long_tail
from softnce.losses import NLL

PRIOR = torch.tensor([0.6, 0.25, 0.1, 0.05])


def scores_of(loss):
    """Class scores fitted to labels that no feature says anything about: p(y|x) = p(y)."""
    labels = torch.repeat_interleave(torch.arange(4), (PRIOR * 4000).long())
    head = torch.nn.Linear(1, 4, bias=False)
    torch.nn.init.zeros_(head.weight)
    targets = SoftTargets.from_labels(labels, 4)
    fit(head, loss, torch.ones(4000, 1), targets, batch=100, lr=0.05, epochs=8, seed=0)
    return head.weight.detach()[:, 0]


def test_the_correction_is_the_prior_and_without_it_the_prior_is_gone():
    """p(y|x)/p(y) is 1 for every class here. Scores are learned to about 0.1 in 320 steps at these batches."""
    expected = PRIOR.log() - PRIOR.log().mean()
    for loss, wanted in ((NLL(), expected), (InfoNCE(PRIOR), expected), (InfoNCE(None), 0 * expected)):
        found = scores_of(loss)
        assert found - found.mean() == pytest.approx(wanted, abs=0.15)


@pytest.fixture(scope="module")
def trained():
    run = long_tail.Run("digits", Loss("nll"), long_tail.targets_for("nll"), batch=32, epochs=2, imbalance=10.0)
    run = replace(run, head=replace(run.head, hidden=32))
    return run, long_tail.perform(run)


def test_the_tail_is_trained_on_less_and_measured_by_class(trained):
    _, result = trained
    counts, accuracy = result["class_counts"], result["class_accuracy"]
    assert counts[0] / counts[-1] == pytest.approx(10, rel=0.05)
    test = features.load("digits").test.y
    weights = torch.bincount(test).double() / len(test)
    assert (weights * torch.tensor(accuracy)).sum().item() == pytest.approx(result["test"]["top1"], abs=1e-3)
    many, _, few = thirds(torch.tensor(counts))
    assert result["groups"]["many"] == pytest.approx(torch.tensor(accuracy)[many].mean().item(), abs=1e-3)
    assert result["groups"]["few"] == pytest.approx(torch.tensor(accuracy)[few].mean().item(), abs=1e-3)
    assert result["switched"]["top1"] != result["test"]["top1"]
    assert sum(result["class_score"]) == pytest.approx(0, abs=1e-2)


def test_a_run_says_how_long_its_tail_is(trained):
    run, _ = trained
    assert to_mapping(run)["imbalance"] == 10.0


def test_every_contrastive_loss_is_trained_both_ways():
    settings = long_tail.settings(long_tail.PRESETS["paper"])
    found = {(run.loss.name, run.loss.noise, run.imbalance, run.loss.noise_count) for run in settings}
    assert len(found) == len(settings) == 2 * 8 + 4  # expected InfoNCE at one imbalance, with its default m and with 0
    for name in long_tail.CONTRASTIVE:
        assert {(name, kind, 100.0, None) for kind in ("labels", "uniform")} <= found
    assert {("expected-info-nce", kind, 100.0, 0) for kind in ("labels", "uniform")} <= found


def test_bad_settings_are_named():
    for options, word in (
        ({"imbalance": (0.1,)}, "imbalance"),
        ({"rates": (0.0,)}, "rates"),
        ({"epochs": 0}, "epochs"),
    ):
        with pytest.raises(ValueError, match=word):
            long_tail.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(made):
    assert len(made("long-tail", "--epochs", "1", "--rates", "[0.01]", "--seeds", "2")) == (8 + 4) * 2
