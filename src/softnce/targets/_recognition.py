"""Recognition of labels and pairs in dense rows: a few peaks on a floor that all rows share, as MixUp makes them."""

import torch
from torch import Tensor

from softnce._checks import sum_slack
from softnce._core import cpu
from softnce._precision import at_least_float32

PROBED = 64
"""Rows that bound the number of peaks; most dense rows are known not to be pairs after these."""


def recognise(probs: Tensor) -> tuple[Tensor, Tensor | None, float] | None:
    """Probabilities (N, K) as classes (N, S), their weights (N, S) and a uniform background ε; None if they are dense.

    The floor is the smallest probability; a probability above it by more than rounding is a peak. No row may have more
    of them than the first rows, or than two; and at most a quarter of the classes may be peaks, or two if classes are
    few. The weights are None if every row is a label. Reads values, O(N·K).
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
    return index[:, :pairs].contiguous(), None if is_label else weight, mass


def _recognise_compiled(probs: Tensor, most: int) -> tuple[Tensor, Tensor | None, float] | None:
    """The same in one pass, which stops at the first row that is neither."""
    found = cpu.recognise(probs[:PROBED], most)
    pairs = 2 if found is None else max(2, found[0].shape[1])
    if found is None or pairs > most:
        return None
    return found if len(probs) <= PROBED else cpu.recognise(probs, pairs)
