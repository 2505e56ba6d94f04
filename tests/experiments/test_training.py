"""Heads on fixed features: parts that do not overlap, trainings that follow from their settings, honest choices."""

from dataclasses import replace

import pytest
import torch

from experiments.data import features as data
from experiments.data.features import load
from experiments.harness import Diverged
from experiments.losses import STUDIED, Loss, build_loss, targets_for
from experiments.models.heads import Head, build_head
from experiments.training import HARD, MIXED, BestEpoch, Probe, fit, reliability, scores, train
from softnce import calibration
from softnce.targets import SoftTargets

SMALL = Probe("digits", head=Head(hidden=32), batch=64, epochs=1, lr=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIED)
def test_every_loss_learns_digits_and_repeats_itself(name):
    probe = replace(SMALL, loss=Loss(name), targets=targets_for(name, MIXED), epochs=4)
    result = train(probe)
    assert result["test"]["top1"] > 0.8
    assert result == train(probe)
    assert result["course"] != train(replace(probe, seed=1))["course"]


def test_the_best_held_out_epoch_is_reported():
    digits = load("digits")
    head = build_head(Head(kind="linear"), digits.dim, 10, seed=0)
    watch = BestEpoch(head, digits.held_out)
    truth = {}
    for epoch, scale in enumerate([1.0, -1.0], 1):
        with torch.no_grad():  # a nearest-mean classifier, then its opposite
            head.weight.copy_(torch.stack([digits.train.x[digits.train.y == k].mean(0) for k in range(10)]) * scale)
            truth[epoch] = scores(head(digits.test.x), digits.test.y)["top1"]
        watch(epoch)
    result = watch.measurements(digits)
    assert result["epoch"] == 1
    assert result["test"]["top1"] == truth[1] > truth[2]


def test_a_training_that_diverges_says_when():
    with pytest.raises(Diverged, match="the class scores are NaN after epoch 1"):
        train(replace(SMALL, loss=Loss("nll"), targets=HARD, lr=1e30))


def test_temperature_is_fitted_on_held_out_rows_and_keeps_accuracy():
    result = train(replace(SMALL, loss=Loss("soft-ce"), epochs=3))
    assert result["scaled"]["top1"] == result["test"]["top1"]
    assert result["scaled"]["nll"] < result["test"]["nll"]
    assert sum(result["reliability"]["count"]) == 359


def test_all_rows_of_whole_batches_are_seen_once():
    seen = []

    class Watched(torch.nn.Linear):
        def forward(self, x):
            if self.training:
                seen.append(x[:, 0].clone())
            return super().forward(x)

    x = torch.arange(10.0)[:, None].repeat(1, 2)
    loss = build_loss(Loss("nll"), HARD, torch.zeros(10, dtype=torch.long), 2)
    targets = SoftTargets.from_labels(torch.arange(10) % 2, 2)
    fit(Watched(2, 2), loss, x, targets, batch=4, lr=1e-3, epochs=2, seed=0)
    assert [len(rows) for rows in seen] == [4, 4, 4, 4]
    for epoch in (seen[:2], seen[2:]):
        assert len(torch.cat(epoch).unique()) == 8
    assert not torch.equal(torch.cat(seen[:2]), torch.cat(seen[2:]))


def test_a_step_is_adamws_with_decayed_matrices_and_the_rate_asked_for():
    x, targets = torch.randn(8, 3), SoftTargets.from_labels(torch.arange(8) % 2, 2)
    loss = build_loss(Loss("nll"), HARD, torch.zeros(8, dtype=torch.long), 2)
    for options, rate in (({"cosine": False, "weight_decay": 0.0}, 1.0), ({}, 0.5)):  # of the second of two epochs
        head, other = (build_head(Head("linear"), 3, 2, seed=0) for _ in range(2))
        fit(head, loss, x, targets, batch=8, lr=0.1, epochs=2, seed=0, **options)
        optimiser = torch.optim.AdamW(other.parameters(), lr=0.1, weight_decay=options.get("weight_decay", 0.05))
        for lr in (0.1, 0.1 * rate):
            optimiser.param_groups[0]["lr"] = lr
            optimiser.zero_grad()
            loss(other(x), targets).backward()
            optimiser.step()
        torch.testing.assert_close(head.weight, other.weight)


@pytest.mark.parametrize("candidates", ["batch", "sampled", "queue", "batch+classes"])
def test_candidates_of_every_kind_train(candidates):
    probe = replace(SMALL, loss=Loss(candidates=candidates, num_candidates=64), targets=MIXED, epochs=2)
    assert train(probe)["test"]["top1"] > 0.6


def test_clear_errors(monkeypatch):
    with pytest.raises(ValueError, match="nll takes hard labels"):
        Probe(loss=Loss("nll"), targets=MIXED)
    with pytest.raises(ValueError, match="batch: got 5000, but there are only 1295 rows"):
        train(replace(SMALL, batch=5000))
    monkeypatch.delenv(data.FOLDER, raising=False)
    with pytest.raises(ValueError, match="environment variable SOFTNCE_DATA"):
        data.prepare(["cifar100"])
    monkeypatch.setenv(data.FOLDER, "/nowhere")
    for name, words in (("cifar100", "is not in SOFTNCE_DATA=/nowhere"), ("mnist", "got 'mnist', need one of digits")):
        with pytest.raises(ValueError, match=f"data: .*{words}"):
            data.prepare([name])


def test_scores_are_shares_of_ranks_beside_the_calibration_of_the_library():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 6, generator=generator)
    logits[:5, 0] = 200.0  # a confidence of exactly 1
    labels = torch.randint(6, (500,), generator=generator)
    found, bins = scores(logits, labels), reliability(logits, labels)
    rank = (logits > logits.gather(1, labels[:, None])).sum(1)
    assert found["top1"] == pytest.approx((rank == 0).double().mean().item())
    assert found["top5"] == pytest.approx((rank < 5).double().mean().item())
    of_class = [(rank[labels == k] == 0).double().mean().item() for k in range(6)]
    assert found["class_average"] == pytest.approx(sum(of_class) / 6)
    meter = calibration.CalibrationMeter()
    meter.update(logits, labels)
    assert found.items() >= meter.compute().items()
    assert sum(bins["count"]) == 500
    assert bins["count"][-1] >= 5
