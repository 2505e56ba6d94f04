"""Recognition of labels and pairs in dense rows: a few peaks on a floor that all rows share, as MixUp makes them."""

from typing import NamedTuple

import torch
from torch import Tensor

from softnce._checks import sum_slack
from softnce._core import cpu
from softnce._precision import at_least_float32

PROBED = 64
"""Rows that bound the number of peaks; most dense rows are known not to be pairs after these."""


class SparseForm(NamedTuple):
    """Labels or pairs on a uniform background."""

    classes: Tensor  # (N, S)
    weight: Tensor | None  # (N, S), None: labels
    smoothing: float  # ε

    def sums_to_one(self, dtype: torch.dtype) -> bool:
        """Whether the rows, given in ``dtype``, sum to 1 to within its rounding; labels always do."""
        return self.weight is None or bool((self.weight.sum(1) + (self.smoothing - 1)).abs().amax() <= sum_slack(dtype))


def recognise(probs: Tensor) -> SparseForm | None:
    """Probabilities (N, K) as labels or pairs; None if they are dense.

    The floor is the smallest probability; a probability above it by more than rounding is a peak. No row may have more
    of them than the first rows, or than two; and at most a quarter of the classes may be peaks, or two if classes are
    few. ``weight`` is None if every row is a label. Reads values, O(N·K).
    """
    n, classes = probs.shape
    most = min(max(2, classes // 4), classes - 1)
    if n == 0 or most == 0 or probs.requires_grad:
        return None
    if cpu.library is not None and probs.is_cpu and probs.dtype in (torch.float32, torch.float64):
        return _recognise_compiled(probs, most)
    # Mixing rounds each row's floor anew: it differs by an ulp or two between rows.
    floor, rounding = float(probs.amin()), 4 * torch.finfo(probs.dtype).eps
    above = floor * (1 + rounding)
    are_above = (probs[:PROBED] - above).sign_().clamp_(min=0)  # as numbers, which torch adds up faster than truths
    pairs = max(2, int(are_above.sum(1, dtype=torch.float32).amax()))
    if not 0 <= floor * classes <= 1 + sum_slack(probs.dtype) or pairs > most:
        return None
    highest, index = probs.topk(pairs + 1, 1)
    is_peak = highest > above
    counts = is_peak.sum(0).tolist()
    if counts[pairs]:
        return None
    pairs = 1 if counts[1] == 0 else pairs
    mass = min(1.0, floor * classes)
    weight = ((highest.to(at_least_float32(probs.dtype)) - floor) * is_peak)[:, :pairs]
    is_label = pairs == 1 and bool(((weight - (1 - mass)).abs() <= rounding).all())
    return SparseForm(index[:, :pairs].contiguous(), None if is_label else weight, mass)


def _recognise_compiled(probs: Tensor, most: int) -> SparseForm | None:
    """The same in one pass, which stops at the first row that is neither."""
    found = cpu.recognise(probs[:PROBED], most)
    pairs = 2 if found is None else max(2, found[0].shape[1])
    if found is None or pairs > most:
        return None
    found = found if len(probs) <= PROBED else cpu.recognise(probs, pairs)
    return None if found is None else SparseForm(*found)
