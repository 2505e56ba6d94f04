"""How a label becomes the target of training: smoothing, MixUp and CutMix as a recipe says them, and soft targets."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import softnce
from softnce.lab.configuration import later, option

if TYPE_CHECKING:  # reading a recipe needs no torch
    from torch import Tensor

IGNORED = -100
"""Label of a row that does not count."""


@dataclass(frozen=True)
class Targets:
    """How a label becomes the target of training. All zero: hard labels."""

    smoothing: float = option(0.0, "ε of label smoothing, spread uniformly", least=0, most=1)
    mixup: float = option(0.0, "α of MixUp's Beta distribution, 0 for none", least=0)
    cutmix: float = option(0.0, "α of CutMix's Beta distribution, 0 for none", least=0)
    mix_probability: float = option(0.8, "share of batches that are mixed", least=0, most=1)
    switch_probability: float = option(
        0.5, "share of the mixed batches that take CutMix where both are on", least=0, most=1
    )
    mix_group: int = later(
        0, "rows that share a λ and are mixed with each other, as if a device had so many; 0: the whole batch"
    )

    @property
    def hard(self) -> bool:
        return not self.mixes and self.smoothing == 0

    @property
    def mixes(self) -> bool:
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0


def soft_targets(labels: "Tensor", votes: "Tensor | None", num_classes: int, smoothing: float) -> "softnce.SoftTargets":
    """Soft targets before mixing.

    Args:
        labels: (N,); rows labelled IGNORED do not count.
        votes: (N, K) annotators by class, whose shares replace the labels; None: labels alone.
        num_classes: K.
        smoothing: ε of label smoothing.
    """
    if votes is None:
        return softnce.SoftTargets.from_labels(labels, num_classes, smoothing, ignore_index=IGNORED)
    ignored = labels == IGNORED
    votes = votes.masked_fill(ignored[:, None], 0)
    votes[ignored, 0] = 1  # any class: the mask leaves the row out
    soft = softnce.SoftTargets.from_votes(votes, num_classes).smooth(smoothing)
    mask = ~ignored if bool(ignored.any()) else None
    return softnce.SoftTargets(num_classes, soft.index, soft.weight, soft.smoothing, soft.smoothing_dist, mask)
