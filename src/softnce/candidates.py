"""What a target is contrasted with.

A candidate is only a target, never an embedding: it needs no forward pass, carries no gradient and never goes stale. So
a loss can take its candidates from anywhere: the batch, earlier batches, a sampler, the classes themselves. The objects
here do that and can be added: ``BatchCandidates() + ClassCandidates()``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from softnce._inputs import KeepsPrecision, as_not_negative, as_share, as_whole, check_distribution
from softnce.noise import Noise, draw_labels
from softnce.targets._sampling import class_edges, draw_by_edges, sample_beta
from softnce.targets.soft_targets import SoftTargets

Proposal = tuple[list[SoftTargets], Tensor | None]


class Candidates(nn.Module):
    """Base class of what proposes candidates for a batch.

    ``forward(batch, own, generator, noise)`` gets the targets of the whole batch (with ``uses_batch`` of all ranks),
    the positions of this call's rows in it, and the loss's η (None: uniform). It returns groups of candidates, and the
    positions of the rows' own targets among all of them (−1: not among them), or None if they hold no row's own target
    by construction; the loss then adds them.
    """

    uses_batch = False
    holds_batch = False  # the batch, and with it every row's own target, is among the candidates
    noise_count: float = 0  # further candidates from η, in expectation

    def remember(self, batch: SoftTargets) -> None:
        """Called once for every training batch, after its candidates were used."""

    def __add__(self, other: Candidates) -> Candidates:
        if isinstance(other, SoftTargets):
            raise TypeError("SoftTargets cannot be added to other candidates: pass candidates=targets alone")
        return CandidateSum(self, other) if isinstance(other, Candidates) else NotImplemented

    __radd__ = __add__  # for the sentence above; a sum of candidates calls __add__


class BatchCandidates(Candidates):
    """The targets of the batch, across all ranks: the paper's choice."""

    uses_batch = True
    holds_batch = True

    def forward(self, batch: SoftTargets, own: Tensor, *_: Any) -> Proposal:
        return [batch], own


class NoiseCandidates(Candidates):
    """``count`` = m ≥ 0 further draws from the noise η, in expectation: for :class:`~softnce.ExpectedInfoNCE` only.

    In the mean every class counts m·η_k more, at no cost if all logits are available. If the others are drawn, the
    default from a table, m labels are drawn from η. Other losses need draws: ``SampledCandidates(count, η)``.
    """

    def __init__(self, count: float) -> None:
        super().__init__()
        self.noise_count = as_not_negative(count, "count")

    def extra_repr(self) -> str:
        return f"count={self.noise_count:g}"

    def forward(self, *_: Any) -> Proposal:
        return [], None


class ClassCandidates(Candidates):
    """The K classes, each as a label smoothed by ``smoothing`` (None: as the batch's targets are).

    Plain vertices alone make :class:`~softnce.SoftTargetInfoNCE` soft target cross-entropy (for uniform noise): the one
    case in which the row's own target is not among the candidates. With :class:`~softnce.ExpectedInfoNCE` the
    negatives are the classes without the row's own share, R = Σ_k (1 − α_k) e^{s_k}: NLL for labels.
    """

    def __init__(self, smoothing: float | None = 0.0) -> None:
        super().__init__()
        self.smoothing = None if smoothing is None else as_share(smoothing, "smoothing")
        if self.smoothing == 1:
            raise ValueError("smoothing must be in [0, 1) or None, got 1")

    def extra_repr(self) -> str:
        return f"smoothing={self.smoothing}"

    def forward(self, batch: SoftTargets, own: Tensor, *_: Any) -> Proposal:
        smoothing = batch.smoothing if self.smoothing is None else self.smoothing
        if isinstance(smoothing, Tensor):
            raise ValueError("ClassCandidates(None) needs targets that share one smoothing; pass a number instead")
        labels = torch.arange(batch.num_classes, device=batch.device)[:, None]
        vertices = SoftTargets(batch.num_classes, labels, None, smoothing, batch.smoothing_dist)
        nearest, is_equal = batch[own].vertex(smoothing, batch.smoothing_dist)
        return [vertices], torch.where(is_equal, nearest, -1)


class SampledCandidates(Candidates, KeepsPrecision):
    """``size`` soft targets, drawn anew in every call, made as the training targets are.

    Each is a label from ``marginal`` (K,), by default the η of the loss, which corrects for it; with ``mix_alpha`` > 0
    two of them, mixed by λ ~ Beta(mix_alpha, mix_alpha). Then it is smoothed, towards what the batch's targets are;
    free of cost with their ε. O(size·log K) per call. Every rank draws its own.
    """

    edges: Tensor | None

    def __init__(
        self, size: int, marginal: Tensor | None = None, mix_alpha: float = 0.0, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.size = as_whole(size, "size")
        self.mix_alpha = as_not_negative(mix_alpha, "mix_alpha")
        self.smoothing = as_share(smoothing, "smoothing")
        if marginal is not None:
            check_distribution(marginal, "marginal")
        self.register_buffer("edges", None if marginal is None else class_edges(marginal))

    def extra_repr(self) -> str:
        marginal = "that of the loss" if self.edges is None else "given"
        return f"{self.size}, marginal={marginal}, mix_alpha={self.mix_alpha:g}, smoothing={self.smoothing:g}"

    def forward(
        self, batch: SoftTargets, own: Tensor, generator: torch.Generator | None = None, noise: Noise | None = None
    ) -> Proposal:
        num_classes, count = batch.num_classes, 2 * self.size if self.mix_alpha > 0 else self.size
        if self.edges is not None:
            if len(self.edges) != num_classes:
                raise ValueError(f"marginal has {len(self.edges)} classes, but the targets have {num_classes}")
            labels = draw_by_edges(self.edges, count, generator)
        else:
            labels = draw_labels(noise, count, batch, generator)
        weight = None
        if self.mix_alpha > 0:
            weight = sample_beta(self.mix_alpha, self.size, batch.device, generator) * (1 - self.smoothing)
            weight = weight.to(torch.get_default_dtype())
        labels = labels.view(self.size, -1)
        return [SoftTargets(num_classes, labels, weight, self.smoothing, batch.smoothing_dist)], None


class QueueCandidates(Candidates):
    """The last ``size`` targets of earlier batches, first in, first out. O(size·S) memory, or O(size·K) if dense.

    A batch enters after it was used, in training only; on several ranks the rows of all ranks enter, so that every rank
    holds the same queue. The queue is part of the ``state_dict``: a loaded one continues exactly where it was saved.
    """

    uses_batch = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = as_whole(size, "size")
        self.held: SoftTargets | None = None  # oldest first

    def extra_repr(self) -> str:
        return f"{self.size}, held={len(self)}"

    def __len__(self) -> int:
        """How many targets are held."""
        return 0 if self.held is None else len(self.held)

    def __bool__(self) -> bool:
        return True  # also while empty

    def forward(self, batch: SoftTargets, *_: Any) -> Proposal:
        if self.held is None:
            return [], None
        if batch.num_classes != self.held.num_classes:
            held = self.held.num_classes
            raise ValueError(f"the queue holds targets of {held} classes, the batch has {batch.num_classes}")
        self.held = self.held.to(batch.device)
        return [self.held], None

    def remember(self, batch: SoftTargets) -> None:
        latest = batch[-self.size :].detach().clone()  # the caller may reuse the memory of its batch
        self.held = latest if self.held is None else SoftTargets.cat([self.held.to(batch.device), latest])[-self.size :]

    def get_extra_state(self) -> dict[str, Any]:
        return {} if self.held is None else dict(vars(self.held))

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.held = SoftTargets(**state)[-self.size :] if state else None


class GivenCandidates(Candidates, KeepsPrecision):
    """Targets given once, moved and saved with the loss that holds them: ``candidates=SoftTargets`` of a Module."""

    def __init__(self, targets: SoftTargets) -> None:
        super().__init__()
        targets.check_no_rest("candidates")
        self.fields = {name: value for name, value in vars(targets).items() if not isinstance(value, Tensor)}
        for name in vars(targets).keys() - self.fields.keys():
            self.register_buffer(name, getattr(targets, name))

    @property
    def targets(self) -> SoftTargets:
        """The targets, on the device of the Module."""
        return SoftTargets(**self.fields | self._buffers)

    def __len__(self) -> int:
        return len(self.targets)


class CandidateSum(Candidates):
    """Several kinds of candidates together; at most one kind holds the rows' own targets."""

    terms: nn.ModuleList

    def __init__(self, *given: Candidates) -> None:
        super().__init__()
        terms: list[Any] = []
        for kind in given:
            terms += kind.terms if isinstance(kind, CandidateSum) else [kind]
        if sum(isinstance(term, BatchCandidates) for term in terms) > 1:
            raise ValueError("BatchCandidates twice would count every row's own target twice")
        self.terms = nn.ModuleList(terms)
        self.noise_count = math.fsum(term.noise_count for term in terms)
        self.uses_batch = any(term.uses_batch for term in terms)
        self.holds_batch = any(term.holds_batch for term in terms)

    def forward(self, batch: SoftTargets, own: Tensor, *given: Any) -> Proposal:
        groups: list[SoftTargets] = []
        place: Tensor | None = None
        for term in self.terms:
            more, position = term(batch, own, *given)
            if position is not None and (place is None or isinstance(term, BatchCandidates)):
                place = torch.where(position < 0, -1, position + sum(map(len, groups)))
            groups += more
        return groups, place

    def remember(self, batch: SoftTargets) -> None:
        for term in self.terms:
            term.remember(batch)  # type: ignore[operator]
