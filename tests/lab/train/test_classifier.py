import math

import pytest
import torch
from torch import nn

from softnce import NLL, SoftTargetInfoNCE, SoftTargets
from softnce.lab.losses import build_loss
from softnce.lab.recipes.recipe import Loss, Optimiser, Schedule, Targets
from softnce.lab.scores import Scores
from softnce.lab.targets import IGNORED
from softnce.lab.train.classifier import Batch, Classifier

import lightning as L  # isort: skip


K = 5
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
]


def problem(n=12, seed=0, dim=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator), torch.randint(K, (n,), generator=generator)


def trainer(**options):
    return L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=1, **options,
    )  # fmt: skip


def linear(seed=0, dim=7):
    torch.manual_seed(seed)
    return nn.Linear(dim, K)


def test_rate_is_maes_schedule():
    classifier = Classifier(
        linear(), NLL(), K,
        optimiser=Optimiser(batch=512, base_lr=5e-4), schedule=Schedule(epochs=20, warmup_epochs=5, min_lr=1e-6),
        steps_per_epoch=30,
    )  # fmt: skip
    lr = 5e-4 * 512 / 256
    for step in (0, 1, 75, 149, 150, 151, 300, 599):
        epoch = step / 30  # as facebookresearch/mae's adjust_learning_rate counts it
        if epoch < 5:
            expected = lr * epoch / 5
        else:
            expected = 1e-6 + (lr - 1e-6) * 0.5 * (1.0 + math.cos(math.pi * (epoch - 5) / (20 - 5)))
        assert classifier.rate(step) == pytest.approx(expected, rel=1e-12)


def losses():
    targets = Targets(smoothing=0.1, mixup=0.8, mix_probability=1.0)
    labels = problem(200)[1]
    for config in (
        Loss("nll"), Loss("info-nce"), Loss("soft-ce"), Loss("soft-dist-info-nce"), Loss("soft-target-info-nce"),
        Loss(candidates="sampled", num_candidates=30), Loss(candidates="queue", num_candidates=20),
        Loss(candidates="classes"), Loss(candidates="batch+classes"),
    ):  # fmt: skip
        policy = Targets() if config.name in ("nll", "info-nce") else targets
        yield pytest.param(config, policy, labels, id=f"{config.name}-{config.candidates}")


def shares_of(inputs, labels, count, step):
    from softnce.lab.data.batches import deal

    parts = deal(len(labels), count, in_pairs=True)
    return [Batch(inputs[own], labels[own], labels, own, step) for own in parts]


@pytest.mark.parametrize(("config", "policy", "labels"), list(losses()))
def test_accumulated_shares_give_the_whole_batchs_update(config, policy, labels):
    def run(count):
        loss = build_loss(config, policy, labels, K)
        classifier = Classifier(
            linear(), loss, K, targets=policy, seed=4,
            optimiser=Optimiser("sgd", base_lr=3.0, batch=13, weight_decay=0.0, momentum=0.0),
            schedule=Schedule(epochs=100, warmup_epochs=0.0), steps_per_epoch=2,
        )  # fmt: skip
        batches = []
        for step in range(2):  # 13 rows in pairs: shares of different size, one row its own partner
            batches += shares_of(*problem(13, seed=step), count, step)
        loader = torch.utils.data.DataLoader(batches, batch_size=None)
        trainer(accumulate_grad_batches=count).fit(classifier, loader)
        return classifier

    whole, parts = run(1), run(3)
    torch.testing.assert_close(parts.model.weight, whole.model.weight, rtol=0, atol=1e-6)
    assert not torch.allclose(whole.model.weight, linear().weight, atol=1e-3)
    if config.candidates == "queue":
        queue = next(m for m in parts.loss.candidates.modules() if hasattr(m, "held")).held
        other = next(m for m in whole.loss.candidates.modules() if hasattr(m, "held")).held
        assert len(queue) == 20
        torch.testing.assert_close(queue.dense(), other.dense())


def test_one_share_equals_the_plain_loss():
    inputs, labels = problem()
    policy = Targets(smoothing=0.1)
    loss = build_loss(Loss(), policy, labels, K)
    assert isinstance(loss, SoftTargetInfoNCE)
    for batch in (Batch(inputs, labels), Batch(inputs, labels, labels, torch.arange(len(labels)), 0)):
        model = linear()
        expected = loss(model(inputs), SoftTargets.from_labels(labels, K, 0.1))
        seen = []
        classifier = Classifier(model, loss, K, targets=policy, optimiser=Optimiser("sgd", base_lr=1e-9))
        classifier.log = lambda name, value, seen=seen, **k: seen.append((name, value))
        trainer().fit(classifier, torch.utils.data.DataLoader([batch], batch_size=None))
        assert dict(seen)["train/loss"] == pytest.approx(expected.item(), rel=1e-6)


class NodeModel(nn.Module):
    """Scores nodes of a dictionary, as a model of graphs does of its batch."""

    def __init__(self):
        super().__init__()
        self.linear = linear()

    def forward(self, graph):
        return self.linear(graph["x"])


def test_rows_outside_a_mask_neither_train_nor_count():
    x, labels = problem(30)
    masked = labels.clone()
    masked[::2] = IGNORED

    def run(inputs, targets):
        model = NodeModel()
        loss = SoftTargetInfoNCE()
        classifier = Classifier(
            model, loss, K, targets=Targets(smoothing=0.1), optimiser=Optimiser(base_lr=0.1, batch=256)
        )
        batch = Batch({"x": inputs}, targets)
        loader = torch.utils.data.DataLoader([batch], batch_size=None)
        run = trainer()
        run.fit(classifier, loader)
        scores = Scores(K)
        scores.update(model({"x": inputs}).detach(), targets)
        return model.linear.weight, scores.compute()

    weight, measured = run(x, masked)
    expected_weight, expected = run(x[masked >= 0], masked[masked >= 0])
    torch.testing.assert_close(weight, expected_weight)
    assert measured == pytest.approx(expected, abs=1e-6)
