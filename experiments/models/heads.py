"""Heads by name: features (N, dim) to class scores (N, K)."""

import difflib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

from softnce.heads import CosineHead, MLPHead


@dataclass(frozen=True)
class Head:
    """From features to class scores.

    Attributes:
        kind: mlp: the paper's three layers; linear; or cosine.
        hidden: width of the MLP's hidden layers.
        output_norm: BatchNorm without parameters on the scores, as in the authors' code.
    """

    kind: str = "mlp"
    hidden: int = 4096
    output_norm: bool = False

    def __post_init__(self) -> None:
        if self.kind not in HEADS:
            near = difflib.get_close_matches(str(self.kind), HEADS, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise ValueError(f"head.kind: got {self.kind!r}, need one of {', '.join(HEADS)}{hint}")
        if self.hidden < 1:
            raise ValueError(f"head.hidden: got {self.hidden}, need at least 1")


HEADS: dict[str, Callable[[int, int, Head, bool], nn.Module]] = {
    "mlp": lambda dim, classes, config, bias: MLPHead(dim, classes, config.hidden),
    "linear": lambda dim, classes, config, bias: nn.Linear(dim, classes, bias=bias),
    "cosine": lambda dim, classes, config, bias: CosineHead(dim, classes),
}
"""By features, classes, configuration and a linear layer's bias."""


def build_head(config: Head, dim: int, num_classes: int, seed: int | None = None, *, bias: bool = False) -> nn.Module:
    """The head of a recipe.

    Args:
        config: the recipe's head.
        dim: features.
        num_classes: K.
        seed: of the initial weights; None draws them from torch's global generator.
        bias: of a linear head.
    """
    with ExitStack() as stack:
        if seed is not None:
            stack.enter_context(torch.random.fork_rng())
            torch.manual_seed(seed)
        head = HEADS[config.kind](dim, num_classes, config, bias)
    if not config.output_norm:
        return head
    layers = head if isinstance(head, nn.Sequential) else [head]
    return nn.Sequential(*layers, nn.BatchNorm1d(num_classes, affine=False))
