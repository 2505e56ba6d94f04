"""Long-tailed training sets, made from balanced ones."""

import torch
from torch import Tensor


def exponential_counts(counts: Tensor, imbalance: float) -> Tensor:
    """Returns how many samples each class keeps: all of the first, 1/``imbalance`` of the last.

    Class k of K keeps the share imbalance^(−k/(K−1)) of its ``counts`` (K,), rounded, and at least one sample: the
    usual exponential profile. The classes' order is that of the data set, not of difficulty.
    """
    if not imbalance >= 1:
        raise ValueError(f"imbalance: got {imbalance:g}, need at least 1")
    place = torch.arange(len(counts), dtype=torch.float64) / max(1, len(counts) - 1)
    return (counts * imbalance**-place).round().long().clamp(min=1).minimum(counts)


def thinned(labels: Tensor, imbalance: float, num_classes: int) -> Tensor:
    """Returns the indices, ascending, of the samples a long-tailed copy of ``labels`` (N,) keeps; deterministic."""
    wanted = exponential_counts(torch.bincount(labels, minlength=num_classes), imbalance)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    kept = [shuffled[labels[shuffled] == k][: int(wanted[k])] for k in range(num_classes)]
    return torch.cat(kept).sort().values


def thirds(counts: Tensor) -> list[Tensor]:
    """Returns the classes in three groups of (nearly) equal size: many samples, some, few."""
    return list(counts.argsort(descending=True, stable=True).tensor_split(3))
