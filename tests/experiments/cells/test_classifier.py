"""The classifier: MAE's schedule and layer decay, accumulation, ignored rows, ranks without rows."""

import math

import lightning as L
import pytest
import timm
import torch
from torch import nn

from experiments.cells.batches import deal
from experiments.cells.classifier import Batch, Classifier, build_optimiser, parameter_groups
from experiments.cells.recipes import Optimiser, Recipe, Schedule
from experiments.data.targets import IGNORED, Targets
from experiments.losses import STUDIED, Loss, build_loss, targets_for
from experiments.models import graphs, images
from experiments.models.heads import Head
from experiments.models.options import GraphModel, ImageModel
from experiments.training import Scores
from softnce import NLL, SoftTargetInfoNCE
from softnce.heads import MLPHead

K = 5
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
]
MIXED = Targets(smoothing=0.1, mixup=0.8, mix_probability=1.0)


def problem(n=12, seed=0, dim=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator), torch.randint(K, (n,), generator=generator)


def whole(inputs, labels):
    return Batch(inputs, labels, labels, torch.arange(len(labels)))


def fit(classifier, batches, accumulate=1):
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=1, accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(classifier, torch.utils.data.DataLoader(batches, batch_size=None))


def linear(seed=0, dim=7):
    torch.manual_seed(seed)
    return nn.Linear(dim, K)


def test_the_rate_is_maes_schedule():
    classifier = Classifier(
        linear(), NLL(), K, steps_per_epoch=30,
        recipe=Recipe(optimiser=Optimiser(batch=512, base_lr=5e-4),
                      schedule=Schedule(epochs=20, warmup_epochs=5, min_lr=1e-6)),
    )  # fmt: skip
    lr = 5e-4 * 512 / 256
    for step in (0, 1, 75, 149, 150, 151, 300, 599):
        epoch = step / 30  # as facebookresearch/mae's adjust_learning_rate counts it
        expected = lr * epoch / 5
        if epoch >= 5:
            expected = 1e-6 + (lr - 1e-6) * 0.5 * (1.0 + math.cos(math.pi * (epoch - 5) / (20 - 5)))
        assert classifier.rate(step) == pytest.approx(expected, rel=1e-12)


LOSSES = [
    *(Loss(name) for name in STUDIED),
    *(Loss(candidates=kind, num_candidates=20) for kind in ("sampled", "queue", "classes", "batch+classes")),
]


@pytest.mark.parametrize("config", LOSSES, ids=lambda config: f"{config.name}-{config.candidates}")
def test_accumulated_shares_give_the_whole_batchs_update(config):
    targets = targets_for(config.name, MIXED)

    def run(count):
        loss = build_loss(config, targets, problem(200)[1], K)
        optimiser = Optimiser("sgd", base_lr=3.0, batch=13, weight_decay=0.0)
        recipe = Recipe(seed=4, loss=config, targets=targets, optimiser=optimiser)
        classifier = Classifier(linear(), loss, K, recipe, steps_per_epoch=2)
        batches = []
        for step in range(2):  # 13 rows in pairs: shares of different size, one row its own partner
            inputs, labels = problem(13, seed=step)
            batches += [Batch(inputs[own], labels[own], labels, own, step) for own in deal(13, count, in_pairs=True)]
        fit(classifier, batches, count)
        return classifier

    whole, parts = run(1), run(3)
    torch.testing.assert_close(parts.model.weight, whole.model.weight, rtol=0, atol=1e-6)
    assert not torch.allclose(whole.model.weight, linear().weight, atol=1e-3)


def test_rows_outside_a_mask_neither_train_nor_count():
    x, labels = problem(30)
    masked = labels.clone()
    masked[::2] = IGNORED

    def run(inputs, targets):
        model = linear()
        recipe = Recipe(targets=Targets(smoothing=0.1), optimiser=Optimiser(base_lr=0.1, batch=256))
        fit(Classifier(model, SoftTargetInfoNCE(torch.full((K,), 1 / K)), K, recipe), [whole(inputs, targets)])
        scores = Scores(K)
        scores.update(model(inputs).detach(), targets)
        return model.weight, scores.compute()

    weight, measured = run(x, masked)
    expected_weight, expected = run(x[masked >= 0], masked[masked >= 0])
    torch.testing.assert_close(weight, expected_weight)
    assert measured == pytest.approx(expected, abs=1e-6)


def test_votes_are_trained_on_as_soft_targets():
    x, votes = problem(20)[0], torch.rand(20, K)
    loss = build_loss(Loss("soft-ce"), Targets(), votes, K)
    value, _ = Classifier(model := linear(), loss, K).step_loss(whole(x, votes))
    expected = -(votes / votes.sum(1, keepdim=True) * model(x).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(value, expected)


def test_a_rank_whose_first_share_is_empty_gathers_nothing():
    """Else it would wait in ``remember``, which the other ranks, told not to gather, never enter together with it."""
    x, labels = problem(2)
    classifier = Classifier(linear(), build_loss(Loss("expected-info-nce"), Targets(), problem(99)[1], K), K)
    assert classifier.loss.distributed
    value, _ = classifier.step_loss(Batch(x[:1], labels[:0], labels, torch.empty(0, dtype=torch.long)))
    assert value == 0
    assert not classifier.loss.distributed


def test_layer_decay_is_maes():
    """facebookresearch/mae's util/lr_decay.py: layers 0 … L, layer L+1 is the head; scale 0.65^(L + 1 − layer)."""
    backbone = timm.create_model("vit_tiny_patch16_224", num_classes=0, global_pool="avg", embed_dim=24, num_heads=2)
    network = images.Network(backbone, MLPHead(24, 7, 16), 24)
    names, scale, decay = {id(p): name for name, p in network.named_parameters()}, {}, {}
    for group in parameter_groups(network, Optimiser(weight_decay=0.05, layer_decay=0.65)):
        for p in group["params"]:
            scale[names[id(p)]], decay[names[id(p)]] = group.get("lr_scale", 1.0), group["weight_decay"]
    assert scale.keys() == dict(network.named_parameters()).keys()
    for name, p in network.named_parameters():
        layer = 13
        if name.startswith(("backbone.cls_token", "backbone.pos_embed", "backbone.patch_embed")):
            layer = 0
        elif name.startswith("backbone.blocks."):
            layer = int(name.split(".")[2]) + 1
        assert scale[name] == pytest.approx(0.65 ** (13 - layer)), name
        vector = p.dim() <= 1 or name in ("backbone.cls_token", "backbone.pos_embed")
        assert decay[name] == (0.0 if vector else 0.05), name


def test_frozen_and_named_parts():
    frozen = ImageModel("test_vit", freeze="backbone", drop_path=0.0)
    network = images.build_network(frozen, Head(hidden=16), 5, 32)
    groups = parameter_groups(network, Optimiser(weight_decay=0.05, layer_decay=0.65))
    assert {id(p) for g in groups for p in g["params"]} == {id(p) for p in network.head.parameters()}
    gcn = graphs.build_network(GraphModel("gcn", hidden=4), Head("linear"), 5, 0, 3)
    decayed, others = parameter_groups(gcn, Optimiser(weight_decay=0.1, decayed="first"))
    assert {id(p) for p in decayed["params"]} == {id(p) for p in gcn.first.parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    with pytest.raises(ValueError, match=r"optimiser.decayed: got 'third', but the network has first, second"):
        parameter_groups(gcn, Optimiser(decayed="third"))


def test_update_rules_and_shares_of_the_rate():
    for name, rule in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        groups = [{"params": list(linear().parameters()), "lr_scale": 0.5, "weight_decay": 0.0}]
        update = build_optimiser(Optimiser(name, lr=0.2), groups)
        assert type(update) is rule
        assert update.param_groups[0]["lr"] == 0.1
