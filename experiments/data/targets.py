"""From labels to training targets: label smoothing, MixUp and CutMix of a batch with itself reversed."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.harness.options import later, option
from softnce import SoftTargets

IGNORED = -100
"""Label of a row that does not count."""


@dataclass(frozen=True)
class Targets:
    """How a label becomes the training target. All zero: hard labels."""

    smoothing: float = option(0.0, "ε of label smoothing, spread uniformly", least=0, most=1)
    mixup: float = option(0.0, "α of MixUp's Beta distribution, 0 for none", least=0)
    cutmix: float = option(0.0, "α of CutMix's Beta distribution, 0 for none", least=0)
    mix_probability: float = option(0.8, "share of batches that are mixed", least=0, most=1)
    switch_probability: float = option(0.5, "share of mixed batches for CutMix if both are on", least=0, most=1)
    mix_group: int = later(0, "rows mixed with each other by one λ, as on one device; 0: the whole batch", least=0)

    @property
    def hard(self) -> bool:
        return not self.mixes and self.smoothing == 0

    @property
    def mixes(self) -> bool:
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0


def soft_targets(labels: Tensor, num_classes: int, smoothing: float = 0.0) -> SoftTargets:
    """Targets before mixing.

    ``labels`` are (N,) classes, IGNORED for rows that do not count; or (N, K) votes or probabilities, rows of zeros for
    those that do not count.
    """
    if labels.dim() == 1:
        return SoftTargets.from_labels(labels, num_classes, smoothing, ignore_index=IGNORED)
    ignored = labels.sum(1) == 0
    votes = labels.clone()
    votes[ignored, 0] = 1  # any class: the mask leaves the row out
    soft = SoftTargets.from_votes(votes, num_classes).to(torch.get_default_dtype()).smooth(smoothing)
    mask = ~ignored if bool(ignored.any()) else None
    return SoftTargets(num_classes, soft.index, soft.weight, soft.smoothing, soft.smoothing_dist, mask)


def hard_labels(labels: Tensor) -> Tensor:
    """Labels (N,) of labels (N,) or of votes (N, K): the class with most votes, IGNORED for rows of zeros."""
    if labels.dim() == 1:
        return labels
    return torch.where(labels.sum(1) > 0, labels.argmax(1), IGNORED)


class Mix(NamedTuple):
    """How a batch, or a group of it, is mixed with itself reversed."""

    share: float  # of the sample itself in its target
    box: tuple[int, int, int, int] | None  # top, bottom, left, right of the region CutMix pastes; None: MixUp


@dataclass(frozen=True)
class BatchMix:
    """How a whole batch of ``size`` rows is mixed: groups of ``group`` consecutive rows, each by its own ``mixes``.

    The authors' code mixes per device: 8 λ in a batch of 8 · 128 rows. With groups of 128, any number of devices does.
    """

    mixes: list[Mix | None]
    size: int
    group: int

    def targets(self, soft: SoftTargets) -> SoftTargets:
        """The targets of the whole batch, mixed."""
        if len(self.mixes) == 1:
            (mix,) = self.mixes
            return soft if mix is None else soft.mix(soft.flip(0), mix.share)
        starts = torch.arange(self.size) // self.group * self.group
        mirrored = starts + (starts + self.group).clamp(max=self.size) - 1 - torch.arange(self.size)
        shares = torch.tensor([1.0 if mix is None else mix.share for mix in self.mixes])
        return soft.mix(soft[mirrored.to(soft.device)], shares[starts // self.group].to(soft.device))

    def inputs(self, inputs: Tensor, own: Tensor | None = None) -> Tensor:
        """The inputs of a share of the batch, mixed.

        ``own`` (n,) are their places in the batch, ascending, each with its mirror image in its group, and none for a
        row that only fills up; None: the batch.
        """
        places = torch.arange(self.size) if own is None else own.cpu()
        mixed = inputs.clone()
        for number in (places // self.group).unique().tolist():
            mix, rows = self.mixes[number], (places // self.group == number).nonzero()[:, 0].to(inputs.device)
            if mix is not None:
                mixed[rows] = mix_inputs(inputs[rows], mix)
        return mixed


def draw_batch(targets: Targets, size: int, shape: tuple[int, ...], seed: int, step: int) -> BatchMix:
    """Draws how to mix a whole batch of ``size`` rows whose shares are inputs of this ``shape``."""
    group = min(targets.mix_group or size, size)
    numbers = range(-(-size // max(group, 1)))
    keys = [(seed, step)] if len(numbers) == 1 else [(seed, step, number) for number in numbers]
    return BatchMix([draw_mix(targets, shape, *key) for key in keys], size, group)


def draw_mix(targets: Targets, shape: tuple[int, ...], *key: int) -> Mix | None:
    """Draws MixUp or CutMix for a batch of images (n, C, H, W) or vectors (n, d); None leaves the batch unmixed.

    The draw depends only on the ``key`` (seed, step and, with several groups, the group), so all shares of an update
    are mixed alike.
    """
    random = np.random.default_rng(key)
    if random.random() >= targets.mix_probability:
        return None
    cut = targets.cutmix > 0 and (targets.mixup == 0 or random.random() < targets.switch_probability)
    if not cut:
        return Mix(float(random.beta(targets.mixup, targets.mixup)), None)
    if len(shape) != 4:
        raise ValueError(f"targets.cutmix needs images (n, C, H, W), got inputs of shape {tuple(shape)}")
    size = np.array(shape[-2:])
    side = math.sqrt(1 - random.beta(targets.cutmix, targets.cutmix))
    middle, half = random.integers(size), (size * side).astype(int) // 2
    (top, left), (bottom, right) = (np.clip(middle + way * half, 0, size).tolist() for way in (-1, 1))
    return Mix(1 - (bottom - top) * (right - left) / int(size.prod()), (top, bottom, left, right))


def mix_inputs(inputs: Tensor, mix: Mix) -> Tensor:
    if mix.box is None:
        return mix.share * inputs + (1 - mix.share) * inputs.flip(0)
    top, bottom, left, right = mix.box
    mixed = inputs.clone()
    mixed[..., top:bottom, left:right] = inputs.flip(0)[..., top:bottom, left:right]
    return mixed
