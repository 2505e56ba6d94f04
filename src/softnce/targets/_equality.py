"""Which targets are equal: whatever form they are stored in, and quickly where they are stored alike."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from softnce._checks import values_are_readable
from softnce.targets.soft_targets import DENSE, SoftTargets


def numbered(targets: SoftTargets, groups: Sequence[SoftTargets]) -> tuple[Tensor, Tensor]:
    """A number for each row and each candidate, equal where the targets are, with weights rounded to 5 decimals.

    Mixing a target with itself leaves a rounding error, which must not make it another target. Targets are still told
    apart where that error carries a weight across the edge between two rounded ones, however small it is.
    O((N + M)·S²), or O((N + M)·K) where some are dense.
    """
    members = [targets, *groups]
    if DENSE in {member.form for member in members} or not all(targets.shares_dist(group) for group in groups):
        rows = _rounded(torch.cat([member.unmasked_dense(torch.float64) for member in members]))
    else:
        everything = SoftTargets.cat(members)
        weight = everything.pair_weight(torch.float64)
        # One form for one target: a class named twice is merged, an empty pair forgotten, the rest sorted by class.
        same = everything.classes[:, :, None] == everything.classes[:, None, :]
        merged = _rounded((same * weight[:, None, :]).sum(2))
        first = same.int().argmax(2) == torch.arange(weight.shape[1], device=weight.device)
        kept = first & (merged > 0)
        classes, order = torch.where(kept, everything.classes, everything.num_classes).sort(1)
        mass = _rounded(everything.background_mass(torch.float64)[:, None])
        rows = torch.cat([classes.double(), torch.where(kept, merged, 0).gather(1, order), mass], 1)
    numbers = torch.unique(rows, dim=0, return_inverse=True)[1]
    return numbers[: len(targets)], numbers[len(targets) :]


def _rounded(weights: Tensor) -> Tensor:
    return (weights * 1e5).round()


class Distinct(NamedTuple):
    """Targets without repetition; each stands for ``counts`` rows that count, and row i for the one at ``place[i]``."""

    targets: SoftTargets
    counts: Tensor  # float64
    place: Tensor


def distinct(targets: SoftTargets) -> Distinct | None:
    """Labels or pairs, each that is stored more than once kept once.

    None where less than half would be saved, and where that cannot be known: for dense rows, and on an accelerator,
    which would have to wait. O(M·(S + log M)).
    """
    if targets.form == DENSE or not isinstance(targets.smoothing, float) or targets.device.type != "cpu":
        return None
    if not values_are_readable(targets.index, targets.weight, targets.mask):
        return None
    classes, bits = targets.classes, targets.pair_weight(torch.float64).view(torch.int64)
    key = torch.zeros_like(classes[:, 0])
    for j in range(classes.shape[1]):  # a hash: sums and products wrap around
        key = (key + bits[:, j] + classes[:, j] * 0x9E3779B97F4A7C1) * 0x5851F42D4C957F2D
    keys, place = torch.unique(key, return_inverse=True)
    if 2 * len(keys) > len(targets):
        return None
    one = torch.empty_like(keys).scatter_(0, place, torch.arange(len(place)))
    if not (torch.equal(classes[one][place], classes) and torch.equal(bits[one][place], bits)):
        return None  # two targets with one hash: once in 2⁶⁴ pairs of targets
    counts = torch.bincount(place, None if targets.mask is None else targets.mask.double())
    weight = None if targets.weight is None else targets.weight[one]
    kept = SoftTargets(targets.num_classes, classes[one], weight, targets.smoothing, targets.smoothing_dist)
    return Distinct(kept, counts.double(), place)
