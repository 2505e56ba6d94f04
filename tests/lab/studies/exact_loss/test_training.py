"""Draws, the noise of gradients, and what is learned."""

import pytest
import torch

from softnce.lab.studies.exact_loss import distribution, training
from softnce.lab.studies.exact_loss.training import Method


def test_nats_are_those_of_the_draws_distribution():
    """Labels are equally frequent in η here only nearly, hence the tolerance."""
    one = training.nats("digits", Method("soft-dist-info-nce"), 0)
    assert one == pytest.approx(distribution.shape(10)["label_nats"], rel=0.05)
    assert training.nats("digits", Method("averaged", 4), 0) == pytest.approx(4 * one, rel=1e-12)
    assert training.nats("digits", Method("soft-ce"), 0) is None
    weak, strong = (training.nats("digits", Method("continuous", k), 0) for k in (1.0, 10.0))
    assert weak < one < strong


def test_gradient_noise_of_stronger_draws_is_less():
    weak, strong = (training.gradient_noise("digits", Method("continuous", k), 0, 40) for k in (1.0, 10.0))
    assert weak > 3 * strong > 0


def test_gradient_noise_is_the_ratio_it_says(monkeypatch):
    """Gradients that are ±1 around a mean of 2, in one parameter: variance over squared mean is 1/4."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    signs = iter(torch.tensor([1.0, -1.0]).repeat(500))

    def loss(logits, targets, generator):
        return model[0].weight.sum() * (2 + next(signs))

    monkeypatch.setattr(training, "_model", lambda problem, generator: model)
    monkeypatch.setattr(training, "_fit", lambda *_: None)
    monkeypatch.setattr(training, "_loss", lambda *_: loss)
    monkeypatch.setattr(
        training, "data", lambda problem, seed: training.Data(*[torch.zeros(4, 1)] * 4, torch.ones(2) / 2, 2, 0.1)
    )
    assert training.gradient_noise("digits", Method("soft-ce"), 0, 1000) == pytest.approx(0.25, rel=0.01)


@pytest.mark.slow
def test_soft_target_info_nce_goes_astray_on_conditionals_and_draws_do_not():
    soft, label, exact = (
        training.train("conditional", method, seed=0, epochs=12)
        for method in (Method("soft-target-info-nce"), Method("soft-dist-info-nce"), Method("continuous", 10.0))
    )
    assert soft["accuracy"] < 0.7 * max(soft["course"])  # it had been better
    assert soft["accuracy"] < 0.4 * label["accuracy"]
    assert label["accuracy"] > 0.9 * label["best_accuracy"]
    assert exact["accuracy"] > 2 * soft["accuracy"]
    assert soft["divergence_at_temperature"] > 3 * label["divergence_at_temperature"]  # 5.3 times was measured
