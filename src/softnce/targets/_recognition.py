"""Dense rows that are labels or pairs: a few peaks on a floor that all rows share, as MixUp and smoothing make them."""

import torch
from torch import Tensor

from softnce._precision import at_least_float32

PROBED = 8
"""Rows that are looked at first; most dense rows are known not to be pairs after these."""


def peaks(probs: Tensor) -> tuple[Tensor, Tensor | None, float] | None:
    """Probabilities (N, K) as ``index`` and ``weight`` (N, S) and ε of a uniform background; None where they are dense.

    The floor is the smallest probability; what lies above it by more than rounding is a peak. There must be few, at
    most a quarter of the classes, or two where classes are few. ``weight`` is None where every row is a label. Reads
    values, O(N·K).
    """
    n, classes = probs.shape
    most = min(max(2, classes // 4), classes - 1)
    if n == 0 or probs.requires_grad:
        return None
    # Mixing rounds each row's floor anew: it differs by an ulp or two between rows.
    floor, rounding = probs.amin(), 4 * torch.finfo(probs.dtype).eps
    above = floor * (1 + rounding)
    if not bool(floor >= 0) or bool((probs[:PROBED] > above).sum(1).amax() > most):
        return None
    row, column = (probs > above).nonzero(as_tuple=True)
    per_row = torch.bincount(row, minlength=n)
    pairs = max(1, int(per_row.amax()))
    if pairs > most:
        return None
    place = torch.arange(len(row), device=row.device) - (per_row.cumsum(0) - per_row)[row]
    index = row.new_zeros(n, pairs)
    index[row, place] = column
    weight = torch.zeros(n, pairs, dtype=at_least_float32(probs.dtype), device=probs.device)
    weight[row, place] = probs[row, column].to(weight.dtype) - floor
    mass = min(1.0, float(floor) * classes)
    is_label = pairs == 1 and bool(((weight - (1 - mass)).abs() <= rounding).all())
    return index, None if is_label else weight, mass
