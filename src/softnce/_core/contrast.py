r"""The three sums behind every loss, in plain torch: any device and dtype, differentiable as often as wanted.

With scores :math:`s_{ik}` of row i and class k, and the row's soft target α,

.. math::
    \text{counted} = -\sum_k a_k s_k + A \log \sum_k n_k e^{s_k}, \qquad
    \text{expected} = \sum_k \alpha_k \log(1 + R / e^{s_k}), \qquad
    \text{soft target} = \log \sum_c v_c e^{\sigma(c) - \sigma(\alpha)}.

``cpu.c`` computes the same rows in one pass. This file is the reference for it, and the path for everything else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

CACHED = 1 << 17
"""Scores in a block of rows on a CPU: half a megabyte of float32, a share of the second-level cache."""
MATRICES = 8
"""Matrices of a block's rows × width that exist at once while a block is differentiated."""
PAIR = 16
"""Classes that a product with dense rows works through in the time of one pair."""
HIT = 5e-6
"""Largest difference between the signatures of two targets that are equal up to rounding."""
ROUNDING = 1e-12
"""Share of a class's count below which what a row leaves of it is rounding, hence nothing."""
_budget = 1 << 30


def set_memory_budget(num_bytes: int) -> None:
    """Sets the memory in bytes that a loss may use for a block of scores on an accelerator; 1 GiB by default.

    On a CPU blocks follow the cache instead. ``chunk_size`` of a loss overrides both.

    >>> set_memory_budget(1 << 30)
    """
    global _budget
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 1:
        raise ValueError(f"num_bytes must be a positive int, got {num_bytes!r}")
    _budget = num_bytes


def row_blocks(rows: int, width: int, device: torch.device, chunk_size: int | None) -> list[slice]:
    """Splits ``rows`` rows of ``width`` scores into blocks of ``chunk_size``, or of a size that fits."""
    if chunk_size is None:
        scores = CACHED if device.type == "cpu" else _budget // (4 * MATRICES)
        chunk_size = max(1, scores // max(1, width))
    return [slice(start, min(start + chunk_size, rows)) for start in range(0, rows, chunk_size)]


class Targets(Protocol):
    """The attributes of SoftTargets that the sums read."""

    index: Tensor | None
    weight: Tensor | None
    smoothing: float | Tensor
    smoothing_dist: Tensor | None
    mask: Tensor | None


@dataclass(slots=True)
class Alpha:
    """Soft targets as tensors: pairs (``index`` and ``weight``, None: 1 − mass) or dense rows, and a background."""

    index: Tensor | None  # (N, S)
    weight: Tensor | None  # (N, S), or (N, K) without index
    mass: float | Tensor  # ε, or (N,)
    dist: Tensor | None  # ξ (K,), None: uniform

    @classmethod
    def of(cls, targets: Targets) -> Self:
        index = targets.index
        if index is not None and targets.mask is not None:  # the class of an ignored row may be anything
            index = torch.where(targets.mask[:, None], index, 0)
        return cls(index, targets.weight, targets.smoothing, targets.smoothing_dist)

    def __len__(self) -> int:
        stored = self.weight if self.index is None else self.index
        assert stored is not None
        return len(stored)

    def parts(self) -> tuple[Tensor | float | None, ...]:
        return self.index, self.weight, self.mass, self.dist

    @property
    def has_background(self) -> bool:
        return isinstance(self.mass, Tensor) or self.mass != 0

    def rows(self, rows: slice) -> "Alpha":
        if rows == slice(None):
            return self
        index, weight, mass = (t[rows] if isinstance(t, Tensor) else t for t in (self.index, self.weight, self.mass))
        return Alpha(index, weight, mass, self.dist)  # type: ignore[arg-type]

    def above(self, floor: Tensor) -> "Alpha":
        """Dense rows with ``floor`` (K,) taken out of them."""
        assert self.weight is not None
        return Alpha(None, self.weight - floor, self.mass, self.dist)

    def pair_weight(self, dtype: torch.dtype) -> Tensor:
        """The weights (N, S) or (N, K); of labels (N, 1) or (), which broadcasts."""
        if self.weight is not None:
            return self.weight.to(dtype)
        if isinstance(self.mass, Tensor):
            return (1 - self.mass.to(dtype))[:, None]
        assert self.index is not None
        return torch.full((), 1 - self.mass, dtype=dtype, device=self.index.device)

    def spread(self, values: Tensor) -> Tensor:
        """Σ_k ξ_k v_k of ``values`` (…, K)."""
        return values.mean(-1) if self.dist is None else values @ self.dist.to(values.dtype)

    def mean(
        self,
        values: Tensor,
        f: Callable[[Tensor], Tensor] | None = None,
        cw: Tensor | None = None,
        background: bool = True,
    ) -> Tensor:
        """Σ_k α_k f(v_k)·cw_k of every row, (N,), for ``values`` (N, K); of pairs, only their classes are read."""
        at, picked_cw = values, cw
        if self.index is not None:
            at = values.gather(1, self.index)
            picked_cw = None if cw is None else cw[self.index]
        at = at if f is None else f(at)
        at = at if picked_cw is None else at * picked_cw
        total = (self.pair_weight(values.dtype) * at).sum(1)
        if background and self.has_background:
            all_classes = values if f is None else f(values)
            total = total + self.mass * self.spread(all_classes if cw is None else all_classes * cw)
        return total

    def foreground(self, dtype: torch.dtype, classes: int) -> Tensor:
        """The pairs as dense rows (N, K), without the background."""
        weight = self.pair_weight(dtype)
        if self.index is None:
            return weight
        zeros = torch.zeros(len(self.index), classes, dtype=dtype, device=self.index.device)
        return zeros.scatter_add(1, self.index, weight.expand(self.index.shape))

    def dense(self, dtype: torch.dtype, classes: int) -> Tensor:
        rows = self.foreground(dtype, classes)
        if not self.has_background:
            return rows
        mass = self.mass[:, None].to(dtype) if isinstance(self.mass, Tensor) else self.mass
        return rows + mass * (1 / classes if self.dist is None else self.dist.to(dtype))


def masked_log(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """log of counts in ``dtype``; half the lowest number for 0, so that adding a score stays finite."""
    is_there = counts > 0
    return (
        torch.where(is_there, counts, 1).log().to(dtype).masked_fill(is_there.logical_not(), torch.finfo(dtype).min / 2)
    )


class Sum(Protocol):
    """One of the three sums with everything but the logits."""

    targets: Alpha
    log_noise: Tensor | None

    def losses(self, s: Tensor, rows: slice) -> Tensor:
        """The losses (n,) of the scores ``s`` (n, K) of these rows."""

    def width(self, classes: int) -> int:
        """Scores of a row that are in memory at once."""

    def parts(self) -> tuple[Tensor | float | None, ...]:
        """Every tensor, among others."""


@dataclass(slots=True)
class Counted:
    """ℓ = −Σ_k a_k s_k + A·log Σ_k n_k e^{s_k}, a_k = α_k·class_weight_k, A = Σ a_k."""

    targets: Alpha
    log_noise: Tensor | None
    counts: Tensor | None  # (K,) float64
    adds_own: bool
    class_weight: Tensor | None

    def width(self, classes: int) -> int:
        return classes

    def parts(self) -> tuple[Tensor | float | None, ...]:
        return *self.targets.parts(), self.log_noise, self.counts, self.class_weight

    def losses(self, s: Tensor, rows: slice) -> Tensor:
        alpha = self.targets.rows(rows)
        s = s - s.amax(1, keepdim=True).detach()  # keeps the two parts small, which cancel
        cw = None if self.class_weight is None else self.class_weight.to(s.dtype)
        mass = alpha.mean(torch.ones_like(s), cw=cw)
        counts = self.counts
        if self.adds_own:
            counts = (1.0 if counts is None else counts) + alpha.dense(torch.float64, s.shape[1])
        if counts is None:
            return mass * s.logsumexp(1) - alpha.mean(s, cw=cw)
        total = (s + masked_log(counts, s.dtype)).logsumexp(1)
        return torch.where((counts > 0).any(-1), mass * total - alpha.mean(s, cw=cw), 0)


@dataclass(slots=True)
class Expected:
    """ℓ = Σ_k α_k log(1 + R/e^{s_k}), R = Σ_k (n_k − own_k) e^{s_k} over the classes that are not excluded."""

    targets: Alpha
    log_noise: Tensor | None
    counts: Tensor  # (K,) float64
    own: Alpha | None
    drop_own_classes: bool
    exclude: Tensor | None  # (N, E), −1: none

    def width(self, classes: int) -> int:
        return classes if self.own is None else 2 * classes  # in float64

    def parts(self) -> tuple[Tensor | float | None, ...]:
        own = () if self.own is None or self.own is self.targets else self.own.parts()
        return *self.targets.parts(), self.log_noise, self.counts, self.exclude, *own

    def losses(self, s: Tensor, rows: slice) -> Tensor:
        alpha, classes = self.targets.rows(rows), s.shape[1]
        counts = self.counts
        if self.drop_own_classes:
            counts = counts * (alpha.dense(s.dtype, classes) <= 0)
        elif self.own is not None:
            left = counts - self.own.rows(rows).dense(torch.float64, classes)
            counts = left * (left > ROUNDING * counts)
        if self.exclude is not None:
            excluded = self.exclude[rows]
            kept = torch.ones(len(s), classes + 1, dtype=torch.bool, device=s.device)
            kept = kept.scatter(1, torch.where(excluded < 0, classes, excluded), False)
            counts = counts * kept[:, :classes]
        rest = (s + masked_log(counts, s.dtype)).logsumexp(1, keepdim=True)

        def above(at: Tensor) -> Tensor:
            return F.softplus(rest - at, threshold=50)

        return torch.where((counts > 0).any(-1), alpha.mean(s, above), 0)


@dataclass(slots=True)
class SoftTarget:
    """ℓ = −σ(α) + log Σ_c v_c e^{σ(c)}, σ(c) = Σ_k c_k s_k; the row's own target counts exactly once."""

    targets: Alpha
    log_noise: Tensor | None
    candidates: Alpha
    candidate_mask: Tensor | None  # (M,)
    own: Tensor | None  # (N,)
    remove_hits: bool
    shares_background: bool
    signatures: Tensor | None = None  # (N, 4)
    candidate_signatures: Tensor | None = None  # (M, 4)

    def width(self, classes: int) -> int:
        return max(classes, len(self.candidates))

    def parts(self) -> tuple[Tensor | float | None, ...]:
        candidates = () if self.candidates is self.targets else self.candidates.parts()
        return *self.targets.parts(), self.log_noise, self.candidate_mask, self.own, *candidates

    def losses(self, s: Tensor, rows: slice) -> Tensor:
        alpha, candidates = self.targets.rows(rows), self.candidates
        background = not self.shares_background  # a shared one cancels
        if alpha.index is None and candidates.index is None:  # and so does the floor of each class in dense rows
            assert candidates.weight is not None
            floor = candidates.weight.detach().amin(0)
            alpha, candidates = alpha.above(floor), candidates.above(floor)
        exponents = scores_of(s, candidates, background) - alpha.mean(s, background=background)[:, None]
        lowest = torch.finfo(s.dtype).min / 2
        if self.candidate_mask is not None:
            exponents = exponents.masked_fill(self.candidate_mask.logical_not(), lowest)
        if self.signatures is not None and self.candidate_signatures is not None:
            hits = torch.ones_like(exponents, dtype=torch.bool)
            for ours, theirs in zip(self.signatures[rows].unbind(1), self.candidate_signatures.unbind(1), strict=True):
                hits = hits & ((ours[:, None] - theirs).abs() < HIT)
            exponents = exponents.masked_fill(hits, lowest)
        if self.own is not None:
            own = self.own[rows, None]  # −1: not among them
            held = own.clamp(min=0)
            exponents = exponents.scatter(1, held, exponents.gather(1, held).masked_fill(own >= 0, lowest))
        return F.softplus(exponents.logsumexp(1), threshold=50)  # the own target is the 1 of log(1 + …)


def scores_of(s: Tensor, candidates: Alpha, background: bool) -> Tensor:
    """σ(c) of all candidates for all rows, (n, M)."""
    index, weight = candidates.index, candidates.pair_weight(s.dtype)
    if index is None:
        total = s @ weight.T
    elif s.shape[1] < PAIR * index.shape[1]:
        total = s @ candidates.foreground(s.dtype, s.shape[1]).T
    else:
        weight = weight.expand(index.shape)
        total = sum((s[:, index[:, j]] * weight[:, j] for j in range(index.shape[1])), start=s.new_zeros(()))
    if background and candidates.has_background:
        total = total + candidates.spread(s)[:, None] * candidates.mass
    return total


def signatures(alpha: Alpha, classes: int) -> Tensor:
    """Four sums Σ_k α_k v_k of fixed irregular numbers v, (N, 4): equal targets have equal ones in every form."""
    device = alpha.weight.device if alpha.index is None else alpha.index.device  # type: ignore[union-attr]
    place = torch.arange(1, classes + 1, dtype=torch.float64, device=device)[:, None]
    angle = torch.tensor([12.9898, 78.233, 37.719, 4.1414], dtype=torch.float64, device=device)
    values = (place * angle).sin().mul(43758.5453).frac()
    if alpha.index is None:
        total = alpha.pair_weight(torch.float64) @ values
    else:
        weight = alpha.pair_weight(torch.float64).expand(alpha.index.shape)
        total = (weight[:, :, None] * values[alpha.index]).sum(1)
    if alpha.has_background:
        mass = alpha.mass[:, None] if isinstance(alpha.mass, Tensor) else alpha.mass
        total = total + mass * alpha.spread(values.T)
    return total


def lowest_logit(dtype: torch.dtype) -> float:
    """The finite number that stands for a logit of −∞: times a weight of 0 it is 0, and a sum of many stays finite."""
    return torch.finfo(dtype).min / (1 << 28)


def weighted_losses(
    problem: Sum,
    logits: Tensor,
    temperature: float | Tensor,
    mask: Tensor | None,
    row_weight: Tensor | None,
    rows: slice = slice(None),
) -> Tensor:
    """The losses (n,) of the ``logits`` (n, K) of these rows times their weights; 0 for ignored rows."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if mask is not None:
        mask = mask[rows]
        logits = logits.masked_fill(mask.logical_not()[:, None], 0)
    scores = logits.to(dtype).clamp(min=lowest_logit(dtype)) / temperature
    losses = problem.losses(scores if problem.log_noise is None else scores - problem.log_noise.to(dtype), rows)
    if mask is not None:
        losses = torch.where(mask, losses, 0)
    return losses if row_weight is None else losses * row_weight[rows].to(dtype)
