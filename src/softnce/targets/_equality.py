"""Which targets are equal, whatever form they are stored in."""

from collections.abc import Sequence

import torch
from torch import Tensor

from softnce.targets.soft_targets import DENSE, SoftTargets


def numbered(targets: SoftTargets, groups: Sequence[SoftTargets]) -> tuple[Tensor, Tensor]:
    """A number for each row and each candidate, equal where the targets are, to within 1e-5 of a weight.

    Mixing a target with itself leaves a rounding error, which must not make it another target. O((N + M)·S²), or
    O((N + M)·K) where some are dense.
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
