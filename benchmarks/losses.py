"""What is timed: a step (loss and gradient) of each Module as a user calls it, and cross-entropy on equal targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce import ExpectedInfoNCE, InfoNCE, SoftTargetInfoNCE, SoftTargets

SHAPES = [(128, 100), (256, 1000), (1024, 1000), (1024, 10000), (4096, 10)]
SMOOTHING = 0.1


@dataclass
class Batch:
    """One batch in every form its targets may have."""

    logits: Tensor
    labels: Tensor
    pairs: SoftTargets  # MixUp with a λ for each row
    pairs_dense: Tensor
    timm: Tensor  # smoothed and mixed with a λ for each row
    one_share: Tensor  # the same with one λ
    teacher: Tensor

    @classmethod
    def random(cls, n: int, classes: int) -> "Batch":
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(n, classes, generator=generator).requires_grad_()
        labels, share = torch.randint(classes, (n,), generator=generator), torch.rand(n, generator=generator)
        targets = SoftTargets.from_labels(labels, classes)
        pairs, once = targets.mix(targets.flip(0), share), targets.mix(targets.flip(0), 0.7)
        teacher = (2 * torch.randn(n, classes, generator=generator)).softmax(1)
        timm, one_share = (rows.smooth(SMOOTHING).dense() for rows in (pairs, once))
        return cls(logits, labels, pairs, pairs.dense(), timm, one_share, teacher)


LOSSES: dict[str, tuple[Callable[[], Any], str]] = {
    "`InfoNCE`, labels": (lambda: InfoNCE("uniform"), "labels"),
    "`InfoNCE`, labels, running η": (lambda: InfoNCE(), "labels"),
    "`ExpectedInfoNCE`, labels": (lambda: ExpectedInfoNCE("uniform"), "labels"),
    "`ExpectedInfoNCE`, pairs": (lambda: ExpectedInfoNCE("uniform"), "pairs"),
    "`ExpectedInfoNCE`, timm's rows": (lambda: ExpectedInfoNCE("uniform"), "timm"),
    "`ExpectedInfoNCE`, teacher": (lambda: ExpectedInfoNCE("uniform"), "teacher"),
    "`SoftTargetInfoNCE`, pairs": (lambda: SoftTargetInfoNCE("uniform"), "pairs"),
    "`SoftTargetInfoNCE`, timm's rows": (lambda: SoftTargetInfoNCE("uniform"), "timm"),
    "`SoftTargetInfoNCE`, one λ": (lambda: SoftTargetInfoNCE("uniform"), "one_share"),
}
"""A loss, and the form of its targets. η is uniform, but for the row of the estimate that is the default."""
COMPILED = ("`ExpectedInfoNCE`, labels", "`ExpectedInfoNCE`, pairs", "`ExpectedInfoNCE`, teacher")

Step = Callable[[], None]


def step(batch: Batch, loss: Callable[..., Tensor], targets: Any) -> Step:
    def run() -> None:
        batch.logits.grad = None
        loss(batch.logits, targets).backward()

    return run


def steps(batch: Batch) -> dict[str, tuple[Step, Step]]:
    """For each loss its step, and the step of cross-entropy on the same targets."""
    found = {}
    for name, (make, form) in LOSSES.items():
        theirs = batch.pairs_dense if form == "pairs" else getattr(batch, form)
        found[name] = step(batch, make(), getattr(batch, form)), step(batch, F.cross_entropy, theirs)
    return found


def compiled_steps(batch: Batch) -> dict[str, tuple[Step, Step]]:
    """For some losses the step under ``torch.compile``, and the eager one."""
    found = {}
    for name in COMPILED:
        make, form = LOSSES[name]
        compiled = torch.compile(make(), fullgraph=True)
        found[name] = step(batch, compiled, getattr(batch, form)), step(batch, make(), getattr(batch, form))
    return found
