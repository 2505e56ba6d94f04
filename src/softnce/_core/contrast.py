"""The three sums behind every loss, in plain torch: any device and dtype, differentiable as often as wanted.

Scores of row i are s_k = logit_k/temperature − log_noise_k, its soft target is α: see :class:`Counted`,
:class:`Expected` and :class:`SoftTarget`.
``cpu.c`` computes the same rows in one pass. This file is the reference for it, and the path for everything else.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._inputs import as_whole, at_least_float32

CACHED = 1 << 18  # scores in a block of rows on a CPU: a megabyte of float32, about the second-level cache
MATRICES = 4  # of a block's rows × width that exist at once while a block is differentiated
PAIR = 16  # classes that a product with dense rows works through in the time of one pair
HIT = 5e-6  # largest difference between the signatures of two targets that are equal up to rounding
ROUNDING = 1e-12  # share of a class's count below which what a row leaves of it is rounding, hence nothing
_budget = 1 << 30


def set_memory_budget(num_bytes: int) -> None:
    """Sets the memory in bytes that a loss may use for a block of scores on an accelerator; 1 GiB by default.

    On a CPU blocks follow the cache instead. ``chunk_size`` of a loss overrides both.

    >>> set_memory_budget(1 << 30)
    """
    global _budget
    _budget = as_whole(num_bytes, "num_bytes")


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

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def _stored(self) -> Tensor:
        return self.weight if self.index is None else self.index  # type: ignore[return-value]

    @property
    def has_background(self) -> bool:
        return isinstance(self.mass, Tensor) or self.mass != 0

    def shares_background(self, other: "Alpha") -> bool:
        """Whether every row of both has one and the same background, so that it cancels."""
        if isinstance(self.mass, Tensor) or isinstance(other.mass, Tensor) or self.mass != other.mass:
            return False
        if self.mass == 0 or self.dist is other.dist:
            return True
        if self.dist is None or other.dist is None or not self.dist.is_cpu or torch.compiler.is_compiling():
            return False  # only costs time; an accelerator is not waited for
        return torch.equal(self.dist, other.dist)

    def rows(self, rows: slice) -> "Alpha":
        if rows == slice(None):
            return self
        index, weight, mass = (t[rows] if isinstance(t, Tensor) else t for t in (self.index, self.weight, self.mass))
        return Alpha(index, weight, mass, self.dist)  # type: ignore[arg-type]

    def pair_weight(self, dtype: torch.dtype) -> Tensor | float:
        """The weights (N, S) or (N, K); of labels (N, 1) or one number, which broadcasts."""
        if self.weight is not None:
            return self.weight.to(dtype)
        return (1 - self.mass.to(dtype))[:, None] if isinstance(self.mass, Tensor) else 1 - self.mass

    def pair_weights(self, dtype: torch.dtype) -> Tensor:
        """The weights, (N, S) or (N, K), of labels too."""
        weight = self.pair_weight(dtype)
        if isinstance(weight, Tensor):
            return weight
        return torch.full(self._stored.shape, weight, dtype=dtype, device=self._stored.device)

    def uniform_or(self, dtype: torch.dtype, classes: int) -> Tensor | float:
        """ξ (K,), or 1/K."""
        return 1 / classes if self.dist is None else self.dist.to(dtype)

    def spread(self, values: Tensor) -> Tensor:
        """Σ_k ξ_k v_k of ``values`` (…, K)."""
        return values.mean(-1) if self.dist is None else values @ self.dist.to(values.dtype)

    def mean(self, values: Tensor, cw: Tensor | None = None, background: bool = True) -> Tensor:
        """Σ_k α_k v_k·cw_k of every row, (N,), for ``values`` (N, K); of pairs, only their classes are read."""
        at, picked_cw = values, cw
        if self.index is not None:
            at, picked_cw = values.gather(1, self.index), None if cw is None else cw[self.index]
        at = at if picked_cw is None else at * picked_cw
        total = (self.pair_weight(values.dtype) * at).sum(1)
        if background and self.has_background:
            spread, mass = self.spread(values if cw is None else values * cw), self.mass
            total = total + mass * spread if isinstance(mass, Tensor) else total.add(spread, alpha=mass)
        return total

    def take_from(self, gradient: Tensor, times: Tensor, cw: Tensor | None = None, background: bool = True) -> Tensor:
        """``gradient`` (N, K) less α_ik·cw_k·times_i, in place: the pull of :meth:`mean`."""
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
        dist = self.uniform_or(times.dtype, classes) if cw is None else cw * self.uniform_or(times.dtype, classes)
        if isinstance(dist, Tensor):
            return (times * self.mass)[:, None] * dist
        return (times * (self.mass * dist))[:, None]

    def scores(self, s: Tensor, background: bool) -> Tensor:
        """σ(c) = Σ_k c_k s_k of these candidates for all rows of ``s``, (n, M)."""
        index, weight, classes = self.index, self.pair_weights(s.dtype), s.shape[1]
        if index is None:
            total = s @ weight.T
        elif classes < PAIR * index.shape[1]:
            total = s @ self.dense(s.dtype, classes, background=False).T
        else:
            total = s[:, index[:, 0]] * weight[:, 0]
            for j in range(1, index.shape[1]):
                total = torch.addcmul(total, s[:, index[:, j]], weight[:, j])
        return total + self.spread(s)[:, None] * self.mass if background and self.has_background else total

    def total(self, shares: Tensor, classes: int, background: bool) -> Tensor:
        """Σ_c p_ic α_ck of ``shares`` p (n, M) of these candidates, (n, K): the pull of :meth:`scores`."""
        index, weight = self.index, self.pair_weights(shares.dtype)
        if index is None:
            found = shares @ weight
        elif classes < PAIR * index.shape[1]:
            found = shares @ self.dense(shares.dtype, classes, background=False)
        else:
            found = shares.new_zeros(len(shares), classes)
            for j in range(index.shape[1]):
                found.index_add_(1, index[:, j], shares * weight[:, j])
        if background and self.has_background:
            mass = self.mass
            each = shares @ mass.to(shares.dtype) if isinstance(mass, Tensor) else shares.sum(1) * mass
            found += each[:, None] * self.uniform_or(shares.dtype, classes)
        return found

    def dense(self, dtype: torch.dtype, classes: int, background: bool = True) -> Tensor:
        """The rows (N, K)."""
        rows = self.pair_weights(dtype)
        if self.index is not None:
            zeros = torch.zeros(len(rows), classes, dtype=dtype, device=rows.device)
            rows = zeros.scatter_add(1, self.index, rows)
        if not background or not self.has_background:
            return rows
        mass = self.mass[:, None].to(dtype) if isinstance(self.mass, Tensor) else self.mass
        return rows + mass * self.uniform_or(dtype, classes)

    def signatures(self, classes: int) -> Tensor:
        """Four sums Σ_k α_k v_k of fixed irregular numbers v, (N, 4): equal targets have equal ones in every form."""
        exact, device = torch.float64, self._stored.device
        place = torch.arange(1, classes + 1, dtype=exact, device=device)[:, None]
        angle = torch.tensor([12.9898, 78.233, 37.719, 4.1414], dtype=exact, device=device)
        values, weight = (place * angle).sin().mul(43758.5453).frac(), self.pair_weights(exact)
        total = weight @ values if self.index is None else (weight[:, :, None] * values[self.index]).sum(1)
        if not self.has_background:
            return total
        return total + (self.mass[:, None] if isinstance(self.mass, Tensor) else self.mass) * self.spread(values.T)


def masked_log(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """log of counts in ``dtype``; half the lowest number for 0, so that adding a score stays finite."""
    absent = nothing(dtype)
    return counts.log().to(dtype).nan_to_num(nan=absent, neginf=absent)


def nothing(dtype: torch.dtype) -> float:
    """The exponent of a class that is absent."""
    return torch.finfo(dtype).min / 2


def lowest_logit(dtype: torch.dtype) -> float:
    """The finite number that stands for a logit of −∞: times a weight of 0 it is 0, and a sum of many stays finite."""
    return torch.finfo(dtype).min / (1 << 28)


def left_of(counts: Tensor, taken: Tensor | float) -> Tensor:
    """Counts less what is taken out of them, without rounding's leftovers."""
    left = counts - taken
    return left * (left > ROUNDING * counts)


Pull = Callable[[Tensor], Tensor]
"""From the gradient of losses (n,) to that of their scores (n, K): what autograd would do, in fewer operations.

It is called once at most, and may work in the memory of the losses.
"""


@dataclass(slots=True)
class Sum:
    """One of the three sums with everything but the logits; each reads a few of these."""

    kind: ClassVar[int]  # in cpu.c

    targets: Alpha
    mask: Tensor | None  # (N,), False: ignored
    log_noise: Tensor | None = None  # (K,)
    counts: Tensor | None = None  # n, (K,) float64; None: ones
    adds_own: bool = False  # each row's α is added to its n
    class_weight: Tensor | None = None  # (K,)
    own: Alpha | None = None  # (N, K), taken out of each row's n
    drop_own_classes: bool = False  # takes classes with α_k > 0 out of n
    exclude: Tensor | None = None  # (N, E), further classes to take out; −1: none
    candidates: Alpha | None = None
    candidate_mask: Tensor | None = None  # (M,)
    place: Tensor | None = None  # (N,) of the own target among the candidates, −1: not there; None: nowhere
    shares_background: bool = False
    signatures: Tensor | None = None  # (N, 4)
    candidate_signatures: Tensor | None = None  # (M, 4); those equal to the row's do not count
    temperature: float | Tensor = 1.0
    row_weight: Tensor | None = None  # (N,)
    divisor: float | Tensor | None = None
    reduced: bool = False  # Σ_i row_weight_i ℓ_i / divisor instead of row_weight_i ℓ_i, (N,)
    chunk_size: int | None = None  # rows in a block
    overwrites: bool = False  # the gradient is written over the logits
    scale: float | Tensor = 1.0  # 1 / divisor
    is_compiled: bool = False

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
        """The losses (n,) of the scores ``s`` (n, K) of these rows."""
        raise NotImplementedError

    def width(self, classes: int) -> int:
        """Scores of a row that are in memory at once."""
        return 2 * classes

    def weighted(
        self, logits: Tensor, rows: slice = slice(None)
    ) -> tuple[Tensor, Callable[..., tuple[Tensor, Tensor]]]:
        """The losses (n,) of the ``logits`` (n, K) of these rows times their weights; 0 for ignored rows.

        And what pulls a gradient of the losses, (n,) or one number, back to the logits; with their finite values.
        """
        dtype, temperature = at_least_float32(logits.dtype), self.temperature
        ignored = None if self.mask is None else self.mask[rows].logical_not()
        if ignored is not None:
            logits = logits.masked_fill(ignored[:, None], 0)
        bounded = logits.to(dtype).clamp(min=lowest_logit(dtype))
        is_one = isinstance(temperature, float) and temperature == 1
        scores = bounded if is_one else bounded / temperature
        losses, pull = self.losses(scores if self.log_noise is None else scores - self.log_noise.to(dtype), rows)
        if ignored is not None:
            losses = losses.masked_fill(ignored, 0)
        weight = None if self.row_weight is None else self.row_weight[rows].to(dtype)

        def pull_logits(upstream: Tensor | float) -> tuple[Tensor, Tensor]:
            upstream = upstream if is_one else upstream / temperature
            if weight is not None:
                each = (weight * upstream).to(dtype)
            elif isinstance(upstream, Tensor):
                each = upstream.to(dtype).expand(losses.shape)
            else:
                each = torch.full_like(losses, upstream)
            return pull(each if ignored is None else each.masked_fill(ignored, 0)), bounded

        return losses if weight is None else losses * weight, pull_logits


class Counted(Sum):
    """ℓ = −Σ_k a_k s_k + A·log Σ_k n_k e^{s_k}, a_k = α_k·class_weight_k, A = Σ a_k."""

    __slots__ = ()
    kind = 0

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
        alpha = self.targets.rows(rows)
        s = s - s.amax(1, keepdim=True).detach()  # keeps the two parts small, which cancel
        cw = None if self.class_weight is None else self.class_weight.to(s.dtype)
        mass = alpha.mean(torch.ones_like(s), cw)
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

        return (mass * total - alpha.mean(s, cw)).masked_fill(is_empty, 0), pull


class Expected(Sum):
    """ℓ = Σ_k α_k log(1 + R/e^{s_k}), R = Σ_k (n_k − own_k) e^{s_k} over the classes that are not excluded."""

    __slots__ = ()
    kind = 1

    def width(self, classes: int) -> int:
        own = self.own
        is_matrix = own is not None and (own.index is None or own.index.shape[1] > 1 or isinstance(own.mass, Tensor))
        return 4 * classes if is_matrix else 2 * classes  # in float64

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
        alpha, classes = self.targets.rows(rows), s.shape[1]
        exponents = self.exponents(s, alpha, rows)
        rest = exponents.logsumexp(1, keepdim=True)  # of nothing: so low that every term below is 0
        index = None if alpha.has_background else alpha.index  # of the only classes that have weight
        gap = rest - (s if index is None else s.gather(1, index))
        terms = F.softplus(gap, threshold=50)
        losses = alpha.mean(terms) if index is None else (alpha.pair_weight(s.dtype) * terms).sum(1)

        def pull(upstream: Tensor) -> Tensor:
            share, near = alpha.pair_weight(s.dtype) * upstream[:, None], gap.sigmoid_()
            if alpha.index is None:
                near.mul_(share + alpha.backdrop(upstream, classes) if alpha.has_background else share)
            elif index is None:
                own = near.gather(1, alpha.index).mul_(share)
                near.mul_(alpha.backdrop(upstream, classes)).scatter_add_(1, alpha.index, own)
            else:
                near.mul_(share)
            gradient = (exponents - rest).exp_().mul_(near.sum(1, keepdim=True))
            return gradient.sub_(near) if index is None else gradient.scatter_add_(1, index, near.neg_())

        return losses, pull

    def exponents(self, s: Tensor, alpha: Alpha, rows: slice) -> Tensor:
        """s_k + log of the count of class k in R, (n, K)."""
        classes, counts, lowest = s.shape[1], self.counts, nothing(s.dtype)
        assert counts is not None
        if self.own is None:
            found = s + masked_log(counts, s.dtype)
        else:
            found = self.exponents_without(s, counts, self.own.rows(rows))
        if self.drop_own_classes:
            found = found.masked_fill(alpha.dense(s.dtype, classes) > 0, lowest)
        if self.exclude is None:
            return found
        excluded = self.exclude[rows]
        dropped = torch.zeros(len(s), classes + 1, dtype=torch.bool, device=s.device)
        dropped = dropped.scatter(1, torch.where(excluded < 0, classes, excluded), True)
        return found.masked_fill(dropped[:, :classes], lowest)

    @staticmethod
    def exponents_without(s: Tensor, counts: Tensor, own: Alpha) -> Tensor:
        """Those of the counts less ``own``; where that is pairs, only their classes differ from row to row."""
        classes, exact = s.shape[1], torch.float64
        if own.index is None or isinstance(own.mass, Tensor):
            return s + masked_log(left_of(counts, own.dense(exact, classes)), s.dtype)
        if own.has_background:
            counts = left_of(counts, own.mass * own.uniform_or(exact, classes))
        taken = own.pair_weight(exact)
        if own.index.shape[1] > 1:  # a class named twice has both weights
            taken = own.dense(exact, classes, background=False).gather(1, own.index)
        left = masked_log(left_of(counts[own.index], taken), s.dtype)
        logs = masked_log(counts, s.dtype).expand(s.shape)
        return s + logs.scatter(1, own.index, left)  # constants: a score scattered twice would be pulled twice


class SoftTarget(Sum):
    """ℓ = −σ(α) + log Σ_c v_c e^{σ(c)}, σ(c) = Σ_k c_k s_k; the row's own target counts exactly once."""

    __slots__ = ()
    kind = 2

    def width(self, classes: int) -> int:
        assert self.candidates is not None
        return max(2 * classes, len(self.candidates))

    def losses(self, s: Tensor, rows: slice) -> tuple[Tensor, Pull]:
        alpha, candidates = self.targets.rows(rows), self.candidates
        assert candidates is not None
        background = not self.shares_background  # a shared one cancels
        if alpha.index is None and candidates.index is None:  # and so does the floor of each class in dense rows
            floor = candidates.weight.detach().amin(0)  # type: ignore[union-attr]
            alpha, candidates = (replace(r, weight=r.weight - floor) for r in (alpha, candidates))  # type: ignore[operator]
        exponents = candidates.scores(s, background) - alpha.mean(s, background=background)[:, None]
        lowest = nothing(s.dtype)
        if self.candidate_mask is not None:
            exponents = exponents.masked_fill(self.candidate_mask.logical_not(), lowest)
        if self.signatures is not None and self.candidate_signatures is not None:
            hits = torch.ones_like(exponents, dtype=torch.bool)
            for ours, theirs in zip(self.signatures[rows].unbind(1), self.candidate_signatures.unbind(1), strict=True):
                hits = hits & ((ours[:, None] - theirs).abs() < HIT)
            exponents = exponents.masked_fill(hits, lowest)
        if self.place is not None:
            own = self.place[rows, None]  # −1: not among them
            held = own.clamp(min=0)
            exponents = exponents.scatter(1, held, exponents.gather(1, held).masked_fill(own >= 0, lowest))
        losses = F.softplus(exponents.logsumexp(1), threshold=50)  # the own target is the 1 of log(1 + …)

        def pull(upstream: Tensor) -> Tensor:
            shares = (exponents - losses[:, None]).exp_().mul_(upstream[:, None])
            return alpha.take_from(candidates.total(shares, s.shape[1], background), shares.sum(1), None, background)

        return losses, pull
