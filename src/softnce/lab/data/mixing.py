"""MixUp and CutMix of a batch with itself reversed, or of its groups."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softnce.lab.targets import Targets
from softnce.targets import SoftTargets


class Mix(NamedTuple):
    """How a batch, or a group of it, is mixed with itself reversed."""

    share: float  # of the sample itself in its target
    box: tuple[int, int, int, int] | None  # top, bottom, left, right of what CutMix pastes; None: MixUp


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

        Args:
            inputs: of the share.
            own: (n,) their places in the batch, ascending, each with its mirror image in its group; None: the batch.
        """
        if own is not None and len(own) == 0:  # a row that only fills up
            return inputs
        if len(self.mixes) == 1:
            (mix,) = self.mixes
            return inputs if mix is None else mix_inputs(inputs, mix)
        groups = (torch.arange(self.size) if own is None else own.cpu()) // self.group
        mixed = inputs.clone()
        for number in groups.unique().tolist():
            mix, rows = self.mixes[number], (groups == number).nonzero()[:, 0].to(inputs.device)
            if mix is not None:
                mixed[rows] = mix_inputs(inputs[rows], mix)
        return mixed


def draw_batch(targets: Targets, size: int, shape: tuple[int, ...], seed: int, step: int) -> BatchMix:
    """How to mix a whole batch of ``size`` rows whose shares are inputs of this ``shape``; see :func:`draw_mix`."""
    group = min(targets.mix_group or size, size)
    numbers = range(-(-size // max(group, 1)))
    keys = [(seed, step)] if len(numbers) == 1 else [(seed, step, number) for number in numbers]
    return BatchMix([draw_mix(targets, shape, *key) for key in keys], size, group)


def draw_mix(targets: Targets, shape: tuple[int, ...], *key: int) -> Mix | None:
    """MixUp or CutMix for a batch of images (n, C, H, W) or vectors (n, d), None for this batch unmixed.

    The same for all shares of an update: whether, which, λ and the box depend only on the ``key``: the seed, the step
    and, where a batch has several groups, the number of the group.
    """
    random = np.random.default_rng(key)
    if random.random() >= targets.mix_probability:
        return None
    cut = targets.cutmix > 0 and (targets.mixup == 0 or random.random() < targets.switch_probability)
    if not cut:
        return Mix(float(random.beta(targets.mixup, targets.mixup)), None)
    if len(shape) != 4:
        raise ValueError(f"targets.cutmix needs images (n, C, H, W), got inputs of shape {tuple(shape)}")
    height, width = shape[-2:]
    side = math.sqrt(1 - random.beta(targets.cutmix, targets.cutmix))
    middle, halves = random.integers((height, width)), (int(height * side) // 2, int(width * side) // 2)
    (top, left), (bottom, right) = (
        (np.clip(middle + sign * np.array(halves), 0, (height, width)).tolist()) for sign in (-1, 1)
    )
    return Mix(1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right))


def mix_inputs(inputs: Tensor, mix: Mix) -> Tensor:
    if mix.box is None:
        return mix.share * inputs + (1 - mix.share) * inputs.flip(0)
    top, bottom, left, right = mix.box
    mixed = inputs.clone()
    mixed[..., top:bottom, left:right] = inputs.flip(0)[..., top:bottom, left:right]
    return mixed
