"""Long-tailed training sets, made from balanced ones."""

import torch
from torch import Tensor


def exponential_counts(counts: Tensor, imbalance: float) -> Tensor:
    """How many samples of each class are left: the first keeps all, the last 1/``imbalance`` of them.

    Class k of K keeps the share imbalance^(−k/(K−1)) of its ``counts`` (K,), rounded, and at least one sample. This is
    the usual exponential profile; classes are in the order of the data set, which is not an order of difficulty.
    """
    if not imbalance >= 1:
        raise ValueError(f"imbalance: got {imbalance:g}, need at least 1")
    place = torch.arange(len(counts), dtype=torch.float64) / max(1, len(counts) - 1)
    return (counts * imbalance**-place).round().long().clamp(min=1).minimum(counts)


def thinned(labels: Tensor, imbalance: float, num_classes: int) -> Tensor:
    """Indices, ascending, of the samples that stay when ``labels`` (N,) are made long-tailed; the same every time."""
    wanted = exponential_counts(torch.bincount(labels, minlength=num_classes), imbalance)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    kept = [shuffled[labels[shuffled] == k][: int(wanted[k])] for k in range(num_classes)]
    return torch.cat(kept).sort().values


def thirds(counts: Tensor) -> list[Tensor]:
    """Classes in three groups of (nearly) equal size: those with many samples, with some, with few."""
    order = counts.argsort(descending=True, stable=True)
    return list(order.tensor_split(3))
