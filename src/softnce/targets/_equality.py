"""Groups of equal targets: by value in any form, and quickly if they are stored alike."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from softnce._checks import values_are_readable
from softnce.targets._algebra import rounding
from softnce.targets._storage import DENSE, exact_dtype
from softnce.targets.soft_targets import SoftTargets

PROJECTIONS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB)


def group_ids(targets: SoftTargets, groups: Sequence[SoftTargets]) -> tuple[Tensor, Tensor]:
    """A number for each row and each candidate, equal if the targets are equal by value, whatever their form.

    Equal means weights that agree to within :func:`rounding` in sum. Rows are projected on three pseudo-random
    directions; neighbours in all three are one group. Different targets fall together with a chance near 1e-15.
    O((N + M)·(S + log(N + M))) without waiting for an accelerator; O(K) or O((N + M)·K) more if some are smoothed
    towards ξ or dense.
    """
    members = [targets, *groups]
    for member in members:
        member.check_no_rest("remove_accidental_hits")
    first, exact = members[0], exact_dtype(targets.device)
    # If pairs name few classes and backgrounds share ξ, equal targets have equal backgrounds: their mass says enough.
    widest = max(m.num_classes if m.form == DENSE else m.classes.shape[1] for m in members)
    is_short = 2 * widest < first.num_classes and all(m.smoothing_dist is None for m in members)
    everything = None if is_short else torch.arange(first.num_classes, device=targets.device)
    ids = torch.zeros(sum(map(len, members)), dtype=torch.long, device=targets.device)
    for factor in PROJECTIONS:
        values = None if everything is None else _direction(everything, factor, exact)
        projected = torch.cat([_projected(member, values, factor, exact) for member in members])
        order = projected.argsort()
        order = order[ids[order].argsort(stable=True)]
        is_new = (projected[order].diff().abs() > rounding(*members)) | (ids[order].diff() != 0)
        ids = torch.zeros_like(ids).scatter_(0, order[1:], is_new.cumsum(0))
    return ids[: len(targets)], ids[len(targets) :]


numbered = group_ids  # the name until the losses that import it are rewritten


def _direction(classes: Tensor, factor: int, dtype: torch.dtype) -> Tensor:
    """Pseudo-random numbers in [0, 1) of classes; integer products wrap around."""
    mixed = (classes + 1) * factor
    mixed = (mixed ^ (mixed >> 31)) * factor
    return ((mixed >> 11) & 0xFFFFFFFF).to(dtype) / 2**32


def _projected(targets: SoftTargets, values: Tensor | None, factor: int, dtype: torch.dtype) -> Tensor:
    if values is not None:
        return targets.expectation(values)
    pairs = (targets.pair_weight(dtype) * _direction(targets.classes, factor, dtype)).sum(1)
    return pairs + targets.background_mass(dtype) / 2


class Distinct(NamedTuple):
    """Targets without repetition; each stands for ``counts`` rows that count, and row i for the one at ``place[i]``."""

    targets: SoftTargets
    counts: Tensor  # float64
    place: Tensor


def distinct(targets: SoftTargets) -> Distinct | None:
    """Labels or pairs without those stored twice; None if that saves less than half or cannot be known.

    It cannot be known for dense rows, and on an accelerator, which would have to wait. O(M·(S + log M)).
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
    one = torch.empty_like(keys).scatter_(0, place, torch.arange(len(place), device=place.device))
    if not (torch.equal(classes[one][place], classes) and torch.equal(bits[one][place], bits)):
        return None  # two targets with one hash: once in 2⁶⁴ pairs of targets
    counts = torch.bincount(place, None if targets.mask is None else targets.mask.double())
    weight = None if targets.weight is None else targets.weight[one]
    kept = SoftTargets(targets.num_classes, classes[one], weight, targets.smoothing, targets.smoothing_dist)
    return Distinct(kept, counts.double(), place)
