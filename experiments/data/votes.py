"""Features of images and people's votes: CIFAR-10H, and a simulation on digits."""

from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from experiments.data import features
from experiments.data.features import Features, Part
from experiments.data.samples import stratified

Source = Literal["cifar10h", "simulated"]


@cache
def load(source: Source) -> Features:
    """CIFAR-10H with features of a ResNet-56 that was trained on CIFAR-10's training images; or simulated votes.

    Half of the images are for training, a tenth for choices, the others for the test. ``cifar10h`` is read from
    cifar10h.npz in the folder cifar10h of the one that SOFTNCE_DATA names: arrays y (N,), votes (N, K) and
    resnet56_feat (N, d).
    """
    everything = _cifar10h() if source == "cifar10h" else simulated()
    rest, test = stratified(everything.y, 0.4)
    return features.split(everything[rest], everything[test], 10, held_out=1 / 6).standardised()


def draw(votes: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Draws ``number`` of each row's votes (N, K) without replacement; all votes of a row that has fewer."""
    if number < 1:
        raise ValueError(f"number: got {number}, need at least 1")
    n, k = votes.shape
    totals = votes.sum(1)
    row = torch.arange(n).repeat_interleave(totals)
    choice = torch.arange(k).repeat(n).repeat_interleave(votes.flatten())
    # every vote in a random place among those of its row, the rows in order
    order = (row + torch.rand(len(row), dtype=torch.float64, generator=generator)).argsort()
    place = torch.arange(len(row)) - (totals.cumsum(0) - totals)[row]
    kept = place < number
    return torch.bincount(row[kept] * k + choice[order][kept], minlength=n * k).view(n, k)


def majority(votes: Tensor, generator: torch.Generator) -> Tensor:
    """The class with the most votes, (N,); ties are broken at random."""
    return (votes + torch.rand(votes.shape, generator=generator)).argmax(1)


def simulated(voters: int = 51, width: float = 10.0, insight: float = 1.5, seed: int = 0) -> Part:
    """scikit-learn's digits with made-up votes: voters confuse digits whose mean images (standardised) are near.

    A vote is k with probability ∝ exp(−‖image − mean of k‖²/``width`` + ``insight``·[k is the label]). These
    are not real votes; they serve demonstrations and tests that need no data.
    """
    digits = features.load("digits")
    x, y = (torch.cat([getattr(part, name) for part in (digits.train, digits.held_out, digits.test)]) for name in "xy")
    means = torch.stack([x[y == k].mean(0) for k in range(10)])
    distance = (x[:, None] - means).square().sum(2)
    likely = (insight * one_hot(y, 10) - distance / width).softmax(1)
    chosen = torch.multinomial(likely, voters, replacement=True, generator=torch.Generator().manual_seed(seed))
    return Part(x, y, one_hot(chosen, 10).sum(1))


def _cifar10h() -> Part:
    path = features.folder("cifar10h") / "cifar10h.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y, votes = (torch.from_numpy(file[name]) for name in ("resnet56_feat", "y", "votes"))
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"data: {path} cannot be read as CIFAR-10H with features: {error}") from None
    if not len(x) == len(y) == len(votes) or votes.shape[1:] != (10,) or bool((votes < 0).any()):
        shapes = f"{tuple(x.shape)}, {tuple(y.shape)} and {tuple(votes.shape)}"
        raise ValueError(f"data: {path} needs resnet56_feat (N, d), y (N,) and votes (N, 10), got shapes {shapes}")
    return Part(x.float(), y.long(), votes.long())
