"""Heads by name: features (N, dim) to class scores (N, K)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from experiments.harness.options import option
from softnce.heads import CosineHead, MLPHead


@dataclass(frozen=True)
class Head:
    """From features to class scores."""

    kind: Literal["mlp", "linear", "cosine"] = option("mlp", "mlp: the paper's three layers; linear; or cosine")
    hidden: int = option(4096, "width of the MLP's hidden layers", least=1)
    output_norm: bool = option(False, "BatchNorm without parameters on the scores, as in the authors' code")


def build_head(config: Head, dim: int, num_classes: int, seed: int | None = None, *, bias: bool = False) -> nn.Module:
    """The head of a recipe, ``bias`` of a linear one; without ``seed`` torch's global generator draws its weights."""
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        if config.kind == "mlp":
            head: nn.Module = MLPHead(dim, num_classes, config.hidden)
        else:
            is_linear = config.kind == "linear"
            head = nn.Linear(dim, num_classes, bias=bias) if is_linear else CosineHead(dim, num_classes)
    if not config.output_norm:
        return head
    layers = head if isinstance(head, nn.Sequential) else [head]
    return nn.Sequential(*layers, nn.BatchNorm1d(num_classes, affine=False))
