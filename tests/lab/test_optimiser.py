import pytest
import torch

from softnce.heads import MLPHead
from softnce.lab.models import graphs, images
from softnce.lab.optimiser import build_optimiser, decay_groups, parameter_groups
from softnce.lab.recipes.recipe import GraphModel, GraphOptimiser, Head, Model, Optimiser

import timm  # isort: skip


def test_layer_decay_is_maes():
    """facebookresearch/mae's util/lr_decay.py: layers 0 … L, layer L+1 is the head; scale 0.65^(L + 1 − layer)."""
    backbone = timm.create_model("vit_tiny_patch16_224", num_classes=0, global_pool="avg", embed_dim=24, num_heads=2)
    network = images.Network(backbone, MLPHead(24, 7, 16), 24)
    scale, decay = {}, {}
    names = {id(p): name for name, p in network.named_parameters()}
    for group in parameter_groups(network, Optimiser(weight_decay=0.05, layer_decay=0.65)):
        for p in group["params"]:
            scale[names[id(p)]] = group.get("lr_scale", 1.0)
            decay[names[id(p)]] = group["weight_decay"]
    assert scale.keys() == dict(network.named_parameters()).keys()
    depth = 12
    for name, p in network.named_parameters():
        if name.startswith(("backbone.cls_token", "backbone.pos_embed", "backbone.patch_embed")):
            layer = 0
        elif name.startswith("backbone.blocks."):
            layer = int(name.split(".")[2]) + 1
        else:
            layer = depth + 1
        assert scale[name] == pytest.approx(0.65 ** (depth + 1 - layer)), name
        vector = p.dim() <= 1 or name in ("backbone.cls_token", "backbone.pos_embed")
        assert decay[name] == (0.0 if vector else 0.05), name


def test_frozen_backbone_has_nothing_to_train():
    network = images.build_network(Model("test_vit", freeze="backbone", drop_path=0.0), Head(hidden=16), 5, 32)
    groups = parameter_groups(network, Optimiser(weight_decay=0.05, layer_decay=0.65))
    trained = {id(p) for group in groups for p in group["params"]}
    assert trained == {id(p) for p in network.head.parameters()}


def test_weight_decay_acts_on_the_part_named():
    network = graphs.build_network(GraphModel("gcn", hidden=4), Head("linear"), 5, 0, 3)
    decayed, others = parameter_groups(network, GraphOptimiser(weight_decay=0.1, decayed="first"))
    assert {id(p) for p in decayed["params"]} == {id(p) for p in network.first.parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    matrices, vectors = parameter_groups(network, GraphOptimiser(weight_decay=0.1))
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}


def test_groups_get_their_share_of_the_learning_rate():
    first, second = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    groups = [{"params": first.parameters(), "lr_scale": 0.5, "weight_decay": 0.0}]
    groups += decay_groups(second.parameters(), 0.1)
    update = build_optimiser(GraphOptimiser("sgd", lr=0.2, momentum=0.7), groups)
    assert isinstance(update, torch.optim.SGD)
    assert [(g["lr"], g["weight_decay"], g["momentum"]) for g in update.param_groups] == [
        (0.1, 0.0, 0.7), (0.2, 0.1, 0.7), (0.2, 0.0, 0.7),
    ]  # fmt: skip


def test_update_rules_by_name():
    weight = [torch.nn.Parameter(torch.zeros(2, 2))]
    for name, rule in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        assert type(build_optimiser(GraphOptimiser(name), decay_groups(weight, 0.0))) is rule
