"""MixUp and CutMix of a batch with itself reversed."""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from softnce.lab.targets import Targets


class Mix(NamedTuple):
    """How a batch is mixed with itself reversed."""

    share: float  # of the sample itself in its target
    box: tuple[int, int, int, int] | None  # top, bottom, left, right of what CutMix pastes; None: MixUp


def draw_mix(targets: Targets, shape: tuple[int, ...], seed: int, step: int) -> Mix | None:
    """MixUp or CutMix for a batch of images (n, C, H, W) or vectors (n, d), None for this batch unmixed.

    The same for all shares of update ``step``: whether, which, λ and the box depend only on the seed and the step.
    """
    random = np.random.default_rng([seed, step])
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
