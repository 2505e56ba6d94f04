"""The heads of the laboratory, by name: the one registry that networks of every field and the probes use."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import softnce
from softnce.lab.configuration import option

if TYPE_CHECKING:  # reading a recipe needs no torch
    from torch import nn


def _linear(dim: int, classes: int, config: "Head", bias: bool) -> "nn.Module":
    from torch import nn

    return nn.Linear(dim, classes, bias=bias)


HEADS: dict[str, Callable[[int, int, "Head", bool], "nn.Module"]] = {
    "mlp": lambda dim, classes, config, bias: softnce.heads.MLPHead(dim, classes, config.hidden),
    "linear": _linear,
    "cosine": lambda dim, classes, config, bias: softnce.heads.CosineHead(dim, classes),
}
"""From the number of features, the number of classes, the configuration and whether linear scores have a bias."""

if TYPE_CHECKING:
    HeadName = str
else:
    HeadName = Literal[tuple(HEADS)]


@dataclass(frozen=True)
class Head:
    """From features to class scores."""

    kind: HeadName = option("mlp", "the paper's three layers, one layer, or cosines")
    hidden: int = option(4096, "width of the MLP's hidden layers", least=1)
    output_norm: bool = option(False, "BatchNorm without parameters on the scores, as the authors' code has it")


def build_head(config: Head, dim: int, num_classes: int, seed: int | None = None, *, bias: bool = False) -> "nn.Module":
    """The head a recipe describes: features (N, dim) to scores (N, num_classes).

    Args:
        config: the recipe's head.
        dim: features.
        num_classes: K.
        seed: of the initial weights; None draws them from torch's global generator.
        bias: whether the one layer of a linear head has a bias.
    """
    import torch
    from torch import nn

    with ExitStack() as stack:
        if seed is not None:
            stack.enter_context(torch.random.fork_rng())
            torch.manual_seed(seed)
        head = HEADS[config.kind](dim, num_classes, config, bias)
    if not config.output_norm:
        return head
    layers = head if isinstance(head, nn.Sequential) else [head]
    return nn.Sequential(*layers, nn.BatchNorm1d(num_classes, affine=False))
