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

from softnce._checks import as_number, as_whole, check_distribution
from softnce._precision import KeepsPrecision
from softnce.noise import Noise
from softnce.targets._sampling import class_edges, drawn_by, invert_edges, sample_beta
from softnce.targets.soft_targets import SoftTargets

Groups = list[SoftTargets]


class Candidates(nn.Module):
    """Base class of what proposes candidates for a batch.

    ``forward(batch, own, generator)`` gets the targets of the whole batch (of all ranks when training is distributed)
    and the positions of this call's rows in it. With ``uses_noise`` it also gets ``noise``, the loss's η (None:
    uniform). It returns groups of candidates, and the positions of the rows' own targets among all of them (−1: not
    among them), or None if they hold no row's own target by construction; the loss then adds them.
    """

    uses_batch = False
    """Whether the other ranks' targets are needed."""
    holds_batch = False
    """Whether the batch, and with it every row's own target, is among the candidates."""
    uses_noise = False
    """Whether ``forward`` takes the loss's η as ``noise``."""
    noise_count: float = 0
    """Number of further candidates from η, in expectation."""

    def forward(
        self, batch: SoftTargets, own: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Groups, Tensor | None]:
        raise NotImplementedError

    def remember(self, batch: SoftTargets) -> None:
        """Called once for every training batch, after its candidates were used."""

    def __add__(self, other: Candidates) -> Candidates:
        if isinstance(other, SoftTargets):
            raise TypeError("SoftTargets cannot be added to other candidates: pass candidates=targets alone")
        if not isinstance(other, Candidates):
            return NotImplemented
        return CandidateSum(*_terms(self), *_terms(other))

    def __radd__(self, other: object) -> Candidates:
        return self + other  # type: ignore[operator]  # the sentence above also for targets + candidates


class BatchCandidates(Candidates):
    """The targets of the batch, across all ranks: the paper's choice."""

    uses_batch = True
    holds_batch = True

    def forward(
        self, batch: SoftTargets, own: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Groups, Tensor | None]:
        return [batch], own


class NoiseCandidates(Candidates):
    """``count`` further draws from the noise η, in expectation: for :class:`~softnce.ExpectedInfoNCE` only.

    ``count`` is a knob between InfoNCE (0) and soft target cross-entropy (∞). In the mean every class counts count·η_k
    more, at no cost if all logits are available. If the others are drawn, the default from a table, ``count`` labels
    are drawn from η. The other losses score whole targets and need draws: ``SampledCandidates(count, η)``.

    Args:
        count: m ≥ 0.
    """

    def __init__(self, count: float) -> None:
        super().__init__()
        count = as_number(count, "count", "a number of at least 0")
        if not 0 <= count < torch.inf:
            raise ValueError(f"count must be a finite number of at least 0, got {count}")
        self.noise_count = count

    def extra_repr(self) -> str:
        return f"count={self.noise_count:g}"

    def forward(
        self, batch: SoftTargets, own: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Groups, Tensor | None]:
        return [], None


class ClassCandidates(Candidates):
    """The K classes, each as a label smoothed by ``smoothing`` (None: as the batch's targets are).

    Plain vertices alone make :class:`~softnce.SoftTargetInfoNCE` soft target cross-entropy (for uniform noise): the one
    case in which the row's own target is not among the candidates. With :class:`~softnce.ExpectedInfoNCE` the
    negatives are the classes without the row's own share, R = Σ_k (1 − α_k) e^{s_k}: NLL for labels.
    """

    def __init__(self, smoothing: float | None = 0.0) -> None:
        super().__init__()
        if smoothing is not None:
            smoothing = as_number(smoothing, "smoothing", "a number in [0, 1) or None")
            if not 0 <= smoothing < 1:
                raise ValueError(f"smoothing must be in [0, 1) or None, got {smoothing}")
        self.smoothing = smoothing

    def extra_repr(self) -> str:
        return f"smoothing={self.smoothing}"

    @property
    def are_plain_vertices(self) -> bool:
        """Whether the candidates are the labels themselves."""
        return self.smoothing == 0

    def forward(
        self, batch: SoftTargets, own: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Groups, Tensor | None]:
        smoothing = batch.smoothing if self.smoothing is None else float(self.smoothing)
        if isinstance(smoothing, Tensor):
            raise ValueError(
                "ClassCandidates(smoothing=None) needs targets that share one smoothing; pass a number instead"
            )
        labels = torch.arange(batch.num_classes, device=batch.device)[:, None]
        vertices = SoftTargets(batch.num_classes, labels, None, smoothing, batch.smoothing_dist)
        nearest, is_equal = batch[own].vertex(smoothing, batch.smoothing_dist)
        return [vertices], torch.where(is_equal, nearest, -1)


class SampledCandidates(Candidates, KeepsPrecision):
    """``size`` soft targets, drawn anew in every call, made as the training targets are.

    Each is a label from ``marginal``, or, with ``mix_alpha`` > 0, two of them mixed by λ ~ Beta(mix_alpha, mix_alpha);
    then smoothed. O(size·log K) per call. Every rank draws its own.

    Args:
        size: M, the number of candidates.
        marginal: class probabilities (K,) to draw labels from; None: the η of the loss, which corrects for it.
        mix_alpha: parameter of MixUp's Beta distribution, 0 for no mixing.
        smoothing: ε. Free of cost if it equals the targets' ε.
        smoothing_dist: ξ (K,), None for uniform.
    """

    uses_noise = True
    edges: Tensor | None
    smoothing_dist: Tensor | None

    def __init__(
        self,
        size: int,
        marginal: Tensor | None = None,
        mix_alpha: float = 0.0,
        smoothing: float = 0.0,
        smoothing_dist: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.size = as_whole(size, "size")
        mix_alpha = as_number(mix_alpha, "mix_alpha", "a number of at least 0")
        smoothing = as_number(smoothing, "smoothing", "a number in [0, 1]")
        if not 0 <= mix_alpha < torch.inf:
            raise ValueError(f"mix_alpha must be finite and not negative, got {mix_alpha}")
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing must be in [0, 1], got {smoothing}")
        if marginal is not None:
            check_distribution(marginal, "marginal")
        if smoothing_dist is not None:
            check_distribution(smoothing_dist, "smoothing_dist", None if marginal is None else len(marginal))
        self.mix_alpha = float(mix_alpha)
        self.smoothing = float(smoothing)
        self.register_buffer("edges", None if marginal is None else class_edges(marginal))
        self.register_buffer("smoothing_dist", smoothing_dist)

    def extra_repr(self) -> str:
        marginal = "that of the loss" if self.edges is None else "given"
        return f"{self.size}, marginal={marginal}, mix_alpha={self.mix_alpha:g}, smoothing={self.smoothing:g}"

    def forward(
        self,
        batch: SoftTargets,
        own: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> tuple[Groups, Tensor | None]:
        num_classes, device = batch.num_classes, batch.device
        count = self.size * (2 if self.mix_alpha > 0 else 1)
        if self.edges is not None:
            if len(self.edges) != num_classes:
                raise ValueError(f"marginal has {len(self.edges)} classes, but the targets have {num_classes}")
            labels = invert_edges(self.edges, count, generator)
        elif noise is None:
            labels = torch.randint(num_classes, (count,), device=device, **drawn_by(generator))
        else:
            labels = noise.sample(count, generator)
        labels = labels.view(self.size, -1)
        weight = None
        if self.mix_alpha > 0:
            weight = sample_beta(self.mix_alpha, self.size, device, generator) * (1 - self.smoothing)
            weight = weight.to(torch.get_default_dtype())
        return [SoftTargets(num_classes, labels, weight, self.smoothing, self.smoothing_dist)], None


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

    def forward(
        self, batch: SoftTargets, own: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Groups, Tensor | None]:
        if self.held is None:
            return [], None
        if batch.num_classes != self.held.num_classes:
            raise ValueError(
                f"the queue holds targets of {self.held.num_classes} classes, the batch has {batch.num_classes}"
            )
        self.held = self.held.to(batch.device)
        return [self.held], None

    def remember(self, batch: SoftTargets) -> None:
        # A copy: the caller may reuse the memory of its batch.
        latest = batch[-self.size :].detach().clone()
        self.held = latest if self.held is None else SoftTargets.cat([self.held.to(batch.device), latest])[-self.size :]

    def get_extra_state(self) -> dict[str, Any]:
        return {} if self.held is None else dict(vars(self.held))

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.held = SoftTargets(**state)[-self.size :] if state else None


class GivenCandidates(Candidates, KeepsPrecision):
    """Targets given once, moved and saved with the loss that holds them: ``candidates=SoftTargets`` of a Module."""

    index: Tensor | None
    weight: Tensor | None
    smoothing: float | Tensor
    smoothing_dist: Tensor | None
    mask: Tensor | None

    def __init__(self, targets: SoftTargets) -> None:
        super().__init__()
        targets.check_no_rest("candidates")
        self.num_classes, self.smoothing = targets.num_classes, targets.smoothing
        for name in ("index", "weight", "smoothing", "smoothing_dist", "mask"):
            value = getattr(targets, name)
            if value is None or isinstance(value, Tensor):
                self.register_buffer(name, value)

    @property
    def targets(self) -> SoftTargets:
        """The targets, on the device of the Module."""
        return SoftTargets(self.num_classes, self.index, self.weight, self.smoothing, self.smoothing_dist, self.mask)

    def __len__(self) -> int:
        return len(self.targets)


class CandidateSum(Candidates):
    """Several kinds of candidates together; at most one kind holds the rows' own targets."""

    uses_noise = True

    def __init__(self, *terms: Candidates) -> None:
        super().__init__()
        if sum(isinstance(term, BatchCandidates) for term in terms) > 1:
            raise ValueError("BatchCandidates twice would count every row's own target twice")
        self.terms = nn.ModuleList(terms)
        self.noise_count = math.fsum(float(term.noise_count) for term in terms)

    @property
    def uses_batch(self) -> bool:  # type: ignore[override]
        return any(term.uses_batch for term in self.terms)

    @property
    def holds_batch(self) -> bool:  # type: ignore[override]
        return any(term.holds_batch for term in self.terms)

    def forward(
        self,
        batch: SoftTargets,
        own: Tensor,
        generator: torch.Generator | None = None,
        noise: Noise | None = None,
    ) -> tuple[Groups, Tensor | None]:
        groups: Groups = []
        place: Tensor | None = None
        for term in self.terms:
            given = {"noise": noise} if term.uses_noise else {}
            more, position = term(batch, own, generator, **given)
            if position is not None and (place is None or isinstance(term, BatchCandidates)):
                place = torch.where(position < 0, -1, position + sum(map(len, groups)))
            groups += more
        return groups, place

    def remember(self, batch: SoftTargets) -> None:
        for term in self.terms:
            term.remember(batch)  # type: ignore[operator]


def _terms(candidates: Candidates) -> list[Candidates]:
    return list(candidates.terms) if isinstance(candidates, CandidateSum) else [candidates]  # type: ignore[arg-type]
