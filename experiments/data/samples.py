"""Samples of a data set: inputs, labels or votes, and the names of the classes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from experiments.data.targets import hard_labels


@dataclass(frozen=True)
class Samples:
    """Labelled samples."""

    inputs: np.ndarray  # (N,) files or sentences, or (N, H, W[, 3]) bytes of images
    targets: Tensor  # (N,) classes, or (N, K) votes or probabilities
    classes: list[str]  # K names
    source: str = ""  # where they come from, for messages

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: Tensor) -> Self:
        return replace(self, inputs=self.inputs[rows.numpy()], targets=self.targets[rows])

    @property
    def labels(self) -> Tensor:
        """(N,) classes: of votes the one with most."""
        return hard_labels(self.targets)

    def split(self, share: float) -> tuple[Self, Self]:
        """All but ``share`` of every class, and that share."""
        kept, held = stratified(self.labels, share)
        return self[kept], self[held]


def stratified(labels: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of two parts, ascending; the second holds ``share`` of every class, rounded."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    members = [shuffled[labels[shuffled] == label] for label in labels.unique()]
    second = torch.zeros(len(labels), dtype=torch.bool)
    second[torch.cat([rows[: round(share * len(rows))] for rows in members])] = True
    if second.all() or not second.any():
        raise ValueError(f"a share of {share:g} leaves one part of the {len(labels)} training samples empty")
    return (~second).nonzero()[:, 0], second.nonzero()[:, 0]


def first_of(folder: Path, *names: str) -> Path:
    """The first of these files or folders that is there."""
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if path is None:
        raise ValueError(f"data.dir {folder} has no {' or '.join(names)} (see docs/experiments.md)")
    return path


def numbered(labels: Iterable[str], classes: list[str], source: Path) -> Tensor:
    """The numbers (N,) of names of classes; raises ValueError for a name that training has not."""
    labels, numbers = list(labels), {name: number for number, name in enumerate(classes)}
    if strangers := sorted(set(labels) - set(classes)):
        raise ValueError(f"{source} has classes that training has not: {', '.join(strangers[:5])}")
    return torch.tensor([numbers[name] for name in labels])


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
