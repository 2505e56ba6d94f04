"""What is timed: a step (loss and gradient) of each loss, and of cross-entropy on the same targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._core import cpu
from softnce._core.autograd import counted, expected, soft_target

SHAPES = [(128, 100), (256, 1000), (1024, 1000), (1024, 10000), (4096, 10)]
SMOOTHING = 0.1


@dataclass
class Rows:
    """Soft targets as the sums read them."""

    index: Tensor | None
    weight: Tensor | None
    smoothing: float | Tensor = 0.0
    smoothing_dist: Tensor | None = None
    mask: Tensor | None = None

    def counts(self, classes: int) -> Tensor:
        if self.index is None:
            assert self.weight is not None
            return cpu.class_mass(self.weight)
        weight = None if self.weight is None else self.weight.flatten().double()
        counts = torch.bincount(self.index.flatten(), weight, minlength=classes).double()
        if self.smoothing:
            counts = counts * (1 - self.smoothing if weight is None else 1) + self.smoothing * len(self.index) / classes
        return counts


@dataclass
class Batch:
    """One batch in every form its targets may have."""

    logits: Tensor
    labels: Tensor
    pairs: Rows  # MixUp with a λ for each row
    pairs_dense: Tensor
    timm: Tensor  # smoothed and mixed with a λ for each row
    one_share: Tensor  # the same with one λ
    teacher: Tensor

    @classmethod
    def random(cls, n: int, classes: int) -> "Batch":
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(n, classes, generator=generator).requires_grad_()
        labels = torch.randint(classes, (n,), generator=generator)
        other, share = labels.flip(0), torch.rand(n, 1, generator=generator)
        one_hot, mixed_in = F.one_hot(labels, classes).float(), F.one_hot(other, classes).float()
        pairs = Rows(torch.stack([labels, other], 1), torch.cat([share, 1 - share], 1))
        mixed = share * one_hot + (1 - share) * mixed_in

        def smooth(rows: Tensor) -> Tensor:
            return rows * (1 - SMOOTHING) + SMOOTHING / classes

        teacher = (2 * torch.randn(n, classes, generator=generator)).softmax(1)
        once = 0.7 * one_hot + 0.3 * mixed_in
        return cls(logits, labels, pairs, mixed, smooth(mixed), smooth(once), teacher)


def recognised(dense: Tensor) -> Rows:
    found = cpu.recognise(dense, 2)
    return Rows(None, dense) if found is None else Rows(*found)


def info_nce(logits: Tensor, labels: Tensor) -> Tensor:
    rows, n = Rows(labels[:, None], None), len(labels)
    return counted(logits, rows, counts=rows.counts(logits.shape[1]), reduced=True, divisor=n)


def expected_info_nce(logits: Tensor, rows: Rows) -> Tensor:
    counts = rows.counts(logits.shape[1])
    return expected(logits, rows, counts=counts, own=rows, reduced=True, divisor=len(logits))


def soft_target_info_nce(logits: Tensor, rows: Rows) -> Tensor:
    place = torch.arange(len(logits))
    return soft_target(logits, rows, rows, own=place, reduced=True, divisor=len(logits))


LOSSES: dict[str, tuple[Callable[[Batch], Any], Callable[[Batch], Any]]] = {
    "labels InfoNCE": (lambda b: info_nce(b.logits, b.labels), lambda b: b.labels),
    "expected, labels": (lambda b: expected_info_nce(b.logits, Rows(b.labels[:, None], None)), lambda b: b.labels),
    "expected, pairs": (lambda b: expected_info_nce(b.logits, b.pairs), lambda b: b.pairs_dense),
    "expected, timm's rows": (lambda b: expected_info_nce(b.logits, recognised(b.timm)), lambda b: b.timm),
    "expected, teacher": (lambda b: expected_info_nce(b.logits, recognised(b.teacher)), lambda b: b.teacher),
    "soft target, pairs": (lambda b: soft_target_info_nce(b.logits, b.pairs), lambda b: b.pairs_dense),
    "soft target, timm's rows": (lambda b: soft_target_info_nce(b.logits, recognised(b.timm)), lambda b: b.timm),
    "soft target, one λ": (lambda b: soft_target_info_nce(b.logits, recognised(b.one_share)), lambda b: b.one_share),
}


def steps(batch: Batch) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """For each loss its step, and the step of cross-entropy on the same targets."""

    def step(loss: Callable[[Batch], Tensor]) -> Callable[[], None]:
        def run() -> None:
            batch.logits.grad = None
            loss(batch).backward()

        return run

    def cross_entropy(targets: Callable[[Batch], Tensor]) -> Callable[[], None]:
        return step(lambda b: F.cross_entropy(b.logits, targets(b)))

    return {name: (step(loss), cross_entropy(targets)) for name, (loss, targets) in LOSSES.items()}
