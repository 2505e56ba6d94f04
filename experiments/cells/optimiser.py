"""The optimiser of a recipe, and its parameter groups."""

from typing import Any

import torch
from torch import nn

from experiments.cells.recipes import Optimiser
from experiments.training import decay_groups

Group = dict[str, Any]
"""``params``, their ``weight_decay`` and, if it is not 1, their share ``lr_scale`` of the learning rate."""


def build_optimiser(config: Optimiser, groups: list[Group]) -> torch.optim.Optimizer:
    for group in groups:
        group["lr"] = config.rate * group.setdefault("lr_scale", 1.0)
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=0.9)
    update = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    # one pass over the parameters, a fifth of the time on a CPU
    is_fused = all(p.device.type == "cpu" for group in groups for p in group["params"])
    return update(groups, fused=is_fused or None)


def parameter_groups(network: nn.Module, config: Optimiser) -> list[Group]:
    """The groups of a network: by its layers, by the part that is decayed, or matrices and the rest.

    ``layer_decay`` is BEiT's and MAE's rule, by timm. Vectors, position embeddings and class tokens are not decayed.
    """
    parts: dict[str, Any] = dict(network.named_children())
    if config.decayed:
        if config.decayed not in parts:
            raise ValueError(f"optimiser.decayed: got {config.decayed!r}, but the network has {', '.join(parts)}")
        return [
            {"params": list(part.parameters()), "weight_decay": config.weight_decay * (name == config.decayed)}
            for name, part in parts.items()
        ]
    if "backbone" not in parts:
        if config.layer_decay != 1:
            raise ValueError(f"optimiser.layer_decay: got {config.layer_decay:g}, but this network needs 1")
        return decay_groups(network.parameters(), config.weight_decay)
    from timm.optim import param_groups_layer_decay

    groups, backbone = decay_groups(parts["head"].parameters(), config.weight_decay), parts["backbone"]
    if not any(p.requires_grad for p in backbone.parameters()):
        return groups
    exempt = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else ()
    layers = param_groups_layer_decay(
        backbone, config.weight_decay, no_weight_decay_list=exempt, layer_decay=config.layer_decay
    )
    return [*layers, *groups]
