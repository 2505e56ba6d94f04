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

CACHED = 1 << 18
"""Scores in a block of rows on a CPU: a megabyte of float32, about the second-level cache."""
MATRICES = 4
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
            index = index * targets.mask[:, None]
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

    def pair_weight(self, dtype: torch.dtype) -> Tensor | float:
        """The weights (N, S) or (N, K); of labels (N, 1) or one number, which broadcasts."""
        if self.weight is not None:
            return self.weight.to(dtype)
        return (1 - self.mass.to(dtype))[:, None] if isinstance(self.mass, Tensor) else 1 - self.mass

    def pair_weights(self, dtype: torch.dtype) -> Tensor:
        """The weights, (N, S) or (N, K), of labels too."""
        weight, index = self.pair_weight(dtype), self.index
        if isinstance(weight, Tensor):
            return weight
        assert index is not None
        return torch.full(index.shape, weight, dtype=dtype, device=index.device)

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
        everywhere = background and self.has_background
        values = f(values) if f is not None and (everywhere or self.index is None) else values
        at, picked_cw = values, cw
        if self.index is not None:
            at = values.gather(1, self.index)
            at = f(at) if f is not None and not everywhere else at
            picked_cw = None if cw is None else cw[self.index]
        at = at if picked_cw is None else at * picked_cw
        total = (self.pair_weight(values.dtype) * at).sum(1)
        if everywhere:
            spread, mass = self.spread(values if cw is None else values * cw), self.mass
            total = total + mass * spread if isinstance(mass, Tensor) else total.add(spread, alpha=mass)
        return total

    def take_from(self, gradient: Tensor, times: Tensor, cw: Tensor | None = None, background: bool = True) -> Tensor:
        """``gradient`` (N, K) less α_ik·cw_k·times_i, in place: the pull of :meth:`mean` without f."""
        weight = self.pair_weight(gradient.dtype) * times[:, None]
        if self.index is None:
            gradient.sub_(weight if cw is None else weight * cw)
        else:
            weight = weight if cw is None else weight * cw[self.index]
            gradient.scatter_add_(1, self.index, weight.neg())
        if background and self.has_background:
            gradient.sub_(self.backdrop(times, gradient.shape[1], cw))
        return gradient

    def backdrop(self, times: Tensor, classes: int, cw: Tensor | None = None) -> Tensor:
        """The background ε_i ξ_k·times_i·cw_k, (N, K), or (N, 1) of a uniform one without ``cw``."""
        dist = None if self.dist is None else self.dist.to(times.dtype)
        if cw is not None:
            dist = cw / classes if dist is None else cw * dist
        mass = self.mass / classes if dist is None else self.mass
        each = (times * mass)[:, None]
        return each if dist is None else each * dist

    def total(self, shares: Tensor, classes: int, background: bool) -> Tensor:
        """Σ_c p_ic α_ck of ``shares`` p (n, N) of these rows: (n, K)."""
        index, weight = self.index, self.pair_weights(shares.dtype)
        if index is None:
            found = shares @ weight
        elif classes < PAIR * index.shape[1]:
            found = shares @ self.foreground(shares.dtype, classes)
        else:
            found = shares.new_zeros(len(shares), classes)
            for j in range(index.shape[1]):
                found.index_add_(1, index[:, j], shares * weight[:, j])
        if background and self.has_background:
            mass = self.mass
            each = shares @ mass.to(shares.dtype) if isinstance(mass, Tensor) else shares.sum(1) * mass
            found += each[:, None] * (1 / classes if self.dist is None else self.dist.to(shares.dtype))
        return found

    def foreground(self, dtype: torch.dtype, classes: int) -> Tensor:
        """The pairs as dense rows (N, K), without the background."""
        weight = self.pair_weights(dtype)
        if self.index is None:
            return weight
        zeros = torch.zeros(len(self.index), classes, dtype=dtype, device=self.index.device)
        return zeros.scatter_add(1, self.index, weight)

    def dense(self, dtype: torch.dtype, classes: int) -> Tensor:
        rows = self.foreground(dtype, classes)
        if not self.has_background:
            return rows
        mass = self.mass[:, None].to(dtype) if isinstance(self.mass, Tensor) else self.mass
        return rows + mass * (1 / classes if self.dist is None else self.dist.to(dtype))


def masked_log(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """log of counts in ``dtype``; half the lowest number for 0, so that adding a score stays finite."""
    absent = nothing(dtype)
    return counts.log().to(dtype).nan_to_num(nan=absent, neginf=absent)


def nothing(dtype: torch.dtype) -> float:
    """The exponent of a class that is absent."""
    return torch.finfo(dtype).min / 2


def left_of(counts: Tensor, taken: Tensor | float) -> Tensor:
    """Counts less what is taken out of them, without rounding's leftovers."""
    left = counts - taken
    return left * (left > ROUNDING * counts)


Pull = Callable[[Tensor], Tensor]
"""From the gradient of losses (n,) to that of their scores (n, K): what autograd would do, in fewer operations."""


class Sum(Protocol):
    """One of the three sums with everything but the logits."""

    targets: Alpha
    log_noise: Tensor | None

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
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
        return 2 * classes

    def parts(self) -> tuple[Tensor | float | None, ...]:
        return *self.targets.parts(), self.log_noise, self.counts, self.class_weight

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
        alpha = self.targets.rows(rows)
        s = s - s.amax(1, keepdim=True).detach()  # keeps the two parts small, which cancel
        cw = None if self.class_weight is None else self.class_weight.to(s.dtype)
        mass = alpha.mean(torch.ones_like(s), cw=cw)
        counts, exponents = self.counts, s
        if self.adds_own:
            counts = (1.0 if counts is None else counts) + alpha.dense(torch.float64, s.shape[1])
        if counts is not None:
            exponents = s + masked_log(counts, s.dtype)
        total = exponents.logsumexp(1)
        is_empty = total < nothing(s.dtype) / 2

        def pull(upstream: Tensor) -> Tensor:
            upstream = upstream.masked_fill(is_empty, 0)
            gradient = (exponents - total[:, None]).exp_().mul_((upstream * mass)[:, None])
            return alpha.take_from(gradient, upstream, cw)

        return (mass * total - alpha.mean(s, cw=cw)).masked_fill(is_empty, 0), pull


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
        own = self.own
        is_matrix = own is not None and (own.index is None or own.index.shape[1] > 1 or isinstance(own.mass, Tensor))
        return 4 * classes if is_matrix else 2 * classes  # in float64

    def parts(self) -> tuple[Tensor | float | None, ...]:
        own = () if self.own is None or self.own is self.targets else self.own.parts()
        return *self.targets.parts(), self.log_noise, self.counts, self.exclude, *own

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
        alpha, classes = self.targets.rows(rows), s.shape[1]
        exponents = self.exponents(s, alpha, rows)
        rest = exponents.logsumexp(1, keepdim=True)  # of nothing: so low that every term below is 0

        def above(at: Tensor) -> Tensor:
            return F.softplus(rest - at, threshold=50)

        def pull(upstream: Tensor) -> Tensor:
            share = alpha.pair_weight(s.dtype) * upstream[:, None]
            if alpha.index is None or alpha.has_background:
                near = (rest - s).sigmoid_()
                if alpha.index is None:
                    part = near.mul_(share + alpha.backdrop(upstream, classes) if alpha.has_background else share)
                else:
                    own = near.gather(1, alpha.index).mul_(share)
                    part = near.mul_(alpha.backdrop(upstream, classes)).scatter_add_(1, alpha.index, own)
                return (exponents - rest).exp_().mul_(part.sum(1, keepdim=True)).sub_(part)
            part = (rest - s.gather(1, alpha.index)).sigmoid_().mul_(share)
            gradient = (exponents - rest).exp_().mul_(part.sum(1, keepdim=True))
            return gradient.scatter_add_(1, alpha.index, part.neg_())

        return alpha.mean(s, above), pull

    def exponents(self, s: Tensor, alpha: Alpha, rows: slice) -> Tensor:
        """s_k + log of the count of class k in R, (n, K)."""
        classes, counts = s.shape[1], self.counts
        if self.drop_own_classes:
            found = s + masked_log(counts, s.dtype)
            found = found.masked_fill(alpha.dense(s.dtype, classes) > 0, nothing(s.dtype))
        elif self.own is None:
            found = s + masked_log(counts, s.dtype)
        else:
            found = self.exponents_without(s, self.own.rows(rows))
        if self.exclude is None:
            return found
        excluded = self.exclude[rows]
        dropped = torch.zeros(len(s), classes + 1, dtype=torch.bool, device=s.device)
        dropped = dropped.scatter(1, torch.where(excluded < 0, classes, excluded), True)
        return found.masked_fill(dropped[:, :classes], nothing(s.dtype))

    def exponents_without(self, s: Tensor, own: Alpha) -> Tensor:
        """Those of the counts less ``own``; where that is pairs, only their classes differ from row to row."""
        classes, counts, exact = s.shape[1], self.counts, torch.float64
        if own.index is None or isinstance(own.mass, Tensor):
            return s + masked_log(left_of(counts, own.dense(exact, classes)), s.dtype)
        if own.has_background:
            counts = left_of(counts, own.mass / classes if own.dist is None else own.mass * own.dist.to(exact))
        if own.index.shape[1] == 1:
            taken = own.pair_weight(exact)
        else:  # a class named twice has both weights
            taken = own.foreground(exact, classes).gather(1, own.index)
        left = masked_log(left_of(counts[own.index], taken), s.dtype)
        logs = masked_log(counts, s.dtype).expand(s.shape)
        return s + logs.scatter(1, own.index, left)  # constants: a score scattered twice would be pulled twice


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
        return max(2 * classes, len(self.candidates))

    def parts(self) -> tuple[Tensor | float | None, ...]:
        candidates = () if self.candidates is self.targets else self.candidates.parts()
        return *self.targets.parts(), self.log_noise, self.candidate_mask, self.own, *candidates

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
        alpha, candidates = self.targets.rows(rows), self.candidates
        background = not self.shares_background  # a shared one cancels
        if alpha.index is None and candidates.index is None:  # and so does the floor of each class in dense rows
            assert candidates.weight is not None
            floor = candidates.weight.detach().amin(0)
            alpha, candidates = alpha.above(floor), candidates.above(floor)
        exponents = scores_of(s, candidates, background) - alpha.mean(s, background=background)[:, None]
        lowest = nothing(s.dtype)
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
        losses = F.softplus(exponents.logsumexp(1), threshold=50)  # the own target is the 1 of log(1 + …)

        def pull(upstream: Tensor) -> Tensor:
            shares = (exponents - losses[:, None]).exp_().mul_(upstream[:, None])
            return alpha.take_from(candidates.total(shares, s.shape[1], background), shares.sum(1), None, background)

        return losses, pull


def scores_of(s: Tensor, candidates: Alpha, background: bool) -> Tensor:
    """σ(c) of all candidates for all rows, (n, M)."""
    index, weight = candidates.index, candidates.pair_weights(s.dtype)
    if index is None:
        total = s @ weight.T
    elif s.shape[1] < PAIR * index.shape[1]:
        total = s @ candidates.foreground(s.dtype, s.shape[1]).T
    else:
        total = s[:, index[:, 0]] * weight[:, 0]
        for j in range(1, index.shape[1]):
            total = torch.addcmul(total, s[:, index[:, j]], weight[:, j])
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
        total = alpha.pair_weights(torch.float64) @ values
    else:
        weight = alpha.pair_weights(torch.float64)
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
) -> tuple[Tensor, Callable[[Tensor | float], tuple[Tensor, Tensor]]]:
    """The losses (n,) of the ``logits`` (n, K) of these rows times their weights; 0 for ignored rows.

    And what pulls a gradient of the losses, (n,) or one number, back to the logits, and to scores of temperature 1.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    ignored = None if mask is None else mask[rows].logical_not()
    if ignored is not None:
        logits = logits.masked_fill(ignored[:, None], 0)
    bounded = logits.to(dtype).clamp(min=lowest_logit(dtype))
    is_one = isinstance(temperature, float) and temperature == 1
    scores = bounded if is_one else bounded / temperature
    losses, pull = problem.losses(scores if problem.log_noise is None else scores - problem.log_noise.to(dtype), rows)
    if ignored is not None:
        losses = losses.masked_fill(ignored, 0)
    weight = None if row_weight is None else row_weight[rows].to(dtype)

    def pull_logits(upstream: Tensor | float) -> tuple[Tensor, Tensor]:
        upstream = upstream if is_one else upstream / temperature
        if weight is not None:
            each = (weight * upstream).to(dtype)
        elif isinstance(upstream, Tensor):
            each = upstream.to(dtype).expand(losses.shape)
        else:
            each = torch.full_like(losses, upstream)
        gradient = pull(each if ignored is None else each.masked_fill(ignored, 0))
        return gradient, bounded

    return losses if weight is None else losses * weight, pull_logits
