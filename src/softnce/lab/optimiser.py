"""The optimiser of a recipe, and its parameter groups."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from softnce.lab.recipes.recipe import GraphOptimiser, Optimiser

Group = dict[str, Any]
"""``params``, their ``weight_decay`` and, where it is not 1, their share ``lr_scale`` of the learning rate."""


def build_optimiser(config: Optimiser | GraphOptimiser, groups: list[Group]) -> torch.optim.Optimizer:
    for group in groups:
        group["lr"] = config.lr * group.setdefault("lr_scale", 1.0)
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum)
    update = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    # One pass over the parameters, a fifth of the time on a CPU; elsewhere it would exclude clipping in half precision.
    is_fused = all(p.device.type == "cpu" for group in groups for p in group["params"])
    return update(groups, betas=(0.9, config.beta2), fused=is_fused or None)


def parameter_groups(network: nn.Module, config: Optimiser | GraphOptimiser) -> list[Group]:
    """The groups of a network that a recipe describes."""
    if isinstance(config, Optimiser):
        return _layer_groups(network, config.weight_decay, config.layer_decay)
    if not config.decayed:
        return decay_groups(network.parameters(), config.weight_decay)
    parts = dict(network.named_children())
    if config.decayed not in parts:
        raise ValueError(f"optimiser.decayed: got {config.decayed!r}, but the network has {', '.join(parts)}")
    decayed = set(parts[config.decayed].parameters())
    return _two_groups(network.parameters(), decayed, config.weight_decay)


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[Group]:
    """Trainable parameters in two groups: matrices, and vectors and scalars, which are not decayed."""
    trainable = [p for p in parameters if p.requires_grad]
    return _two_groups(trainable, {p for p in trainable if p.dim() > 1}, weight_decay)


def _two_groups(parameters: Iterable[nn.Parameter], decayed: set[nn.Parameter], weight_decay: float) -> list[Group]:
    every = list(parameters)
    return [
        {"params": [p for p in every if p in decayed], "weight_decay": weight_decay},
        {"params": [p for p in every if p not in decayed], "weight_decay": 0.0},
    ]


def _layer_groups(network: nn.Module, weight_decay: float, layer_decay: float) -> list[Group]:
    """Each layer of the backbone with its share ``lr_scale`` of the learning rate, then the head.

    The head has 1, and each layer below it ``layer_decay`` times that of the one above (BEiT's and MAE's rule, by
    timm). Vectors, scalars, position embeddings and class tokens are not decayed.
    """
    from timm.optim import param_groups_layer_decay

    backbone: Any = network.backbone
    exempt = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else ()
    groups: list[Group] = []
    if any(p.requires_grad for p in backbone.parameters()):
        groups = param_groups_layer_decay(backbone, weight_decay, no_weight_decay_list=exempt, layer_decay=layer_decay)
    head: Any = network.head
    return [*groups, *decay_groups(head.parameters(), weight_decay)]
