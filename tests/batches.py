"""Hypothesis strategies for what a loss is given."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from softnce import Candidates, QueueCandidates, SoftTargets


class Series:
    """As pandas has it: an array inside, indexed by labels that are no positions."""

    def __init__(self, values: list) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, label: object) -> object:
        raise KeyError(label)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


KINDS = ("labels", "smoothed", "ignored", "mixed", "duplicates", "top-k", "spread", "votes", "dense")


@dataclass
class Batch:
    logits: Tensor
    targets: SoftTargets
    noise: Tensor
    temperature: float

    @property
    def scores(self) -> Tensor:
        return self.logits / self.temperature - self.noise.log()


def make_targets(kind: str, n: int, k: int, generator: torch.Generator) -> SoftTargets:
    """Float64 targets of one kind, so that nothing is lost before the loss begins."""
    labels = torch.randint(k, (n,), generator=generator)
    lam = torch.rand(n, generator=generator, dtype=torch.float64)
    teacher = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    match kind:
        case "labels":
            return SoftTargets.from_labels(labels, k)
        case "smoothed":
            return SoftTargets.from_labels(labels, k, smoothing=0.1, smoothing_dist=torch.softmax(teacher[0], 0))
        case "ignored":
            labels[torch.rand(n, generator=generator) < 0.3] = -100
            return SoftTargets.from_labels(labels, k, smoothing=0.1)
        case "mixed":
            t = SoftTargets.from_labels(labels, k, smoothing=0.1)
            return t.mix(t.flip(0), lam)
        case "duplicates":
            t = SoftTargets.from_labels(labels % 2, k)
            return t.mix(t.flip(0), 0.5)
        case "top-k":
            return SoftTargets.from_topk(teacher, min(3, k), temperature=2.0)
        case "spread":
            return SoftTargets.from_topk(teacher, min(2, k), temperature=2.0, remainder="spread")
        case "votes":
            counts = torch.bincount(labels, minlength=k) + torch.randint(3, (n, k), generator=generator)
            counts[:, 0] += 1
            return SoftTargets.from_votes(counts, counts.shape[1])
        case "dense":
            return SoftTargets.from_dense(teacher.softmax(1))
    raise ValueError(kind)


@st.composite
def batches(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Batch:
    n, k = draw(st.integers(1, 9)), draw(st.integers(2, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    scale = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
    logits = (scale * torch.randn(n, k, generator=generator, dtype=torch.float64)).clamp(-1e4, 1e4)
    noise = torch.rand(k, generator=generator, dtype=torch.float64) + 0.05
    temperature = draw(st.sampled_from([0.07, 0.5, 1.0, 3.0]))
    targets = make_targets(draw(st.sampled_from(kinds)), n, k, generator)
    return Batch(logits, targets, noise / noise.sum(), temperature)


class Given(Candidates):
    """Groups of candidates, as a loss gets them."""

    def __init__(self, groups: list[SoftTargets], own: Tensor | None = None, noise_count: float = 0.0) -> None:
        super().__init__()
        self.groups, self.own, self.noise_count = groups, own, noise_count

    def forward(self, *_):
        return self.groups, self.own


def queue_of(size: int, targets: SoftTargets) -> QueueCandidates:
    queue = QueueCandidates(size)
    queue.remember(targets)
    return queue


def value_and_gradients(call: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """A loss of copies of these inputs, and the gradients of its sum."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = call(*leaves)
    return [value.detach(), *torch.autograd.grad(value.sum(), leaves)]


def assert_same(ours: list[Tensor], theirs: list[Tensor], bound: float = 1e-12) -> None:
    """Equal up to ``bound``, absolute for small tensors and relative for large ones."""
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=bound * (1 + float(b.abs().max())))
