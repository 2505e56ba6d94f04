r"""The log-sum-exp behind the contrast, with its gradient taken on the way.

For row i with logits :math:`x_i` and candidates c the exponents are

.. math:: E_{ic} = t \sum_k c_k x_{ik} + o_c - \big(\text{the same of the row's own target}\big), \qquad
          L_i = \log \sum_{c \text{ allowed}} e^{E_{ic}}.

:math:`\partial L_i/\partial x_i` needs row i alone, so a block of rows can be finished, value and gradient, while it is
in the cache, and the (N, M) matrix is never held as a whole. Backward only multiplies the rows by what arrives.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from softnce._precision import at_least_float32

BLOCK = 1 << 17
"""Exponents worked on at a time: half a megabyte of float32, a share of the second-level cache."""


@dataclass
class Direction:
    """What targets have along one vector v besides their pairs: mass·Σ_k v_k x_ik."""

    vector: Tensor | None  # (K,), None: ones
    mass: Tensor | None  # (M,) of the candidates, None: 0
    own_mass: Tensor | None  # (N,) of the rows' own targets, None: 0

    def score(self, x: Tensor) -> Tensor:
        return x.sum(1) if self.vector is None else x @ self.vector


@dataclass
class Problem:
    """Everything but the logits. Weights and vectors have the dtype the sums are taken in."""

    scale: float  # t
    index: Tensor | None  # (M, S) classes of the candidates, None: weight is (M, K)
    weight: Tensor | None  # (M, S) or (M, K), None: all 1; where index is None too, the candidates are the K classes
    own_index: Tensor | None  # (N, S') or None, likewise for the rows' own targets
    own_weight: Tensor | None
    offset: Tensor | None  # (M,) o_c; there for classes
    own_offset: Tensor | None  # (N,)
    directions: list[Direction]
    mask: Tensor | None  # (M,) candidates that may be used
    position: Tensor | None = None  # (N,) the own target's place among the candidates; elsewhere if out of range
    hits: Tensor | None = None  # (N, M) candidates not to be used for a row
    block: int | None = None  # rows at a time

    @property
    def are_classes(self) -> bool:
        return self.index is None and self.weight is None

    def candidates(self) -> int:
        return next(len(given) for given in (self.index, self.weight, self.offset) if given is not None)


def logsumexp(logits: Tensor, problem: Problem) -> Tensor:
    """L, (N,), of logits (N, K). Time O(N·M·S), O(N·K) for classes, or an (N, K) × (K, M) product for dense candidates.

    Memory besides the gradient: the (N, M) weights of the candidates where classes are many (K > 2·M·S), nothing
    otherwise; and one block of rows.
    """
    # The compiler makes its own blocks of plain operations; function transforms see through nothing else.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _plain(logits, problem)
    value: Tensor = _LogSumExp.apply(logits, problem)
    return value


def _plain(logits: Tensor, problem: Problem) -> Tensor:
    """L by operations that autograd knows, through the whole (N, M) matrix."""
    x = logits.to(at_least_float32(logits.dtype))
    return _exponents(x, problem, slice(None)).logsumexp(1) - _own(x, problem, slice(None))


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, problem: Problem) -> Tensor:
        value, kept = _run(logits, problem, logits.requires_grad)
        # The targets are saved only for autograd to notice when they are overwritten before backward reads them.
        targets = (problem.index, problem.weight, problem.own_index, problem.own_weight)
        ctx.save_for_backward(logits, *(t for t in targets if t is not None))
        ctx.problem, ctx.kept = problem, kept  # type: ignore[attr-defined]
        return value

    @staticmethod
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor, None]:
        logits = ctx.saved_tensors[0]  # type: ignore[attr-defined]
        problem: Problem = ctx.problem  # type: ignore[attr-defined]
        kept: Tensor | None = ctx.kept  # type: ignore[attr-defined]
        if torch.is_grad_enabled():  # create_graph=True: the gradient will itself be differentiated
            with torch.autocast(logits.device.type, enabled=False):
                (gradient,) = torch.autograd.grad(_plain(logits, problem), logits, upstream, create_graph=True)
            return gradient, None
        if kept is None:  # a second backward through the same graph: what was kept is used up
            with torch.autocast(logits.device.type, enabled=False):
                _, kept = _run(logits, problem, True)
            assert kept is not None
        ctx.kept = None  # type: ignore[attr-defined]
        if _keeps_gradient(logits, problem):
            return kept.mul_(upstream[:, None]).to(logits.dtype), None
        gradient = torch.zeros_like(logits, dtype=kept.dtype)
        for rows in _blocks(logits, problem):
            weights = kept[rows].mul_(upstream[rows, None])
            _add_gradient(gradient[rows], weights, upstream[rows], problem, rows, torch.empty_like(weights))
        return gradient.to(logits.dtype), None


def _keeps_gradient(logits: Tensor, problem: Problem) -> bool:
    """Whether the gradient itself is kept for backward, or the smaller (N, M) weights it is made of."""
    return problem.index is None or bool(problem.directions) or logits.shape[1] <= 2 * problem.index.numel()


def _blocks(logits: Tensor, problem: Problem) -> list[slice]:
    block = problem.block or max(1, BLOCK // max(1, problem.candidates()))
    return [slice(start, start + block) for start in range(0, len(logits), block)]


def _run(logits: Tensor, problem: Problem, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """L, and what backward needs: the gradient (N, K) of each row's L, or the weights (N, M) to make it of."""
    dtype = at_least_float32(logits.dtype)
    keeps_gradient = _keeps_gradient(logits, problem)
    kept = None
    if with_gradient and problem.are_classes:
        kept = torch.empty_like(logits, dtype=dtype)
    elif with_gradient and keeps_gradient:
        kept = torch.zeros_like(logits, dtype=dtype)
    elif with_gradient:
        kept = torch.empty(len(logits), problem.candidates(), dtype=dtype, device=logits.device)
    values = []
    for rows in _blocks(logits, problem):
        x = logits[rows].to(dtype)
        exponents = _exponents(x, problem, rows)
        highest = exponents.amax(1)
        weights = torch.softmax(exponents, 1, out=None if kept is None or keeps_gradient else kept[rows])
        # max softmax = exp(highest − L): one fused kernel gives both the weights and L.
        values.append(highest - _own(x, problem, rows) - weights.amax(1).log())
        if kept is not None and keeps_gradient:
            _add_gradient(kept[rows], weights, torch.ones_like(highest), problem, rows, scratch=exponents)
    return torch.cat(values), kept


def _exponents(x: Tensor, problem: Problem, rows: slice) -> Tensor:
    """t·σ(c) + o_c of all candidates for a block of rows, (n, M), those not allowed far below all others."""
    n, m = len(x), problem.candidates()
    if problem.are_classes:
        assert problem.offset is not None
        return torch.add(problem.offset, x, alpha=problem.scale)
    if problem.index is None:
        assert problem.weight is not None
        exponents = x @ problem.weight.t()
    else:
        first, *more = problem.index.unbind(1)
        exponents = x.gather(1, first.expand(n, m))
        if problem.weight is not None:
            exponents.mul_(problem.weight[:, 0])
            for j, column in enumerate(more, 1):
                exponents.addcmul_(x.gather(1, column.expand(n, m)), problem.weight[:, j])
    for direction in problem.directions:
        if direction.mass is not None:
            exponents.addcmul_(direction.score(x)[:, None], direction.mass)
    if problem.scale != 1:
        exponents.mul_(problem.scale)
    if problem.offset is not None:
        exponents.add_(problem.offset)
    # Half the lowest number, so that it can be added once more without becoming −∞, whose differences are no numbers.
    excluded = torch.finfo(exponents.dtype).min / 2
    if problem.mask is not None:
        exponents.masked_fill_(problem.mask.logical_not(), excluded)
    if problem.hits is not None:
        exponents.masked_fill_(problem.hits[rows], excluded)
    if problem.position is not None:
        place = problem.position[rows, None]
        inside = (place >= 0) & (place < m)
        exponents.scatter_add_(1, place.clamp(0, m - 1), inside * torch.full_like(exponents[:, :1], excluded))
    return exponents


def _own(x: Tensor, problem: Problem, rows: slice) -> Tensor:
    """The same of each row's own target, (n,)."""
    picked = x if problem.own_index is None else x.gather(1, problem.own_index[rows])
    score = (picked if problem.own_weight is None else picked * problem.own_weight[rows]).sum(1)
    for direction in problem.directions:
        if direction.own_mass is not None:
            score = score + direction.score(x) * direction.own_mass[rows]
    score = score * problem.scale
    return score if problem.own_offset is None else score + problem.own_offset[rows]


def _add_gradient(
    gradient: Tensor,
    weights: Tensor,
    total: Tensor,
    problem: Problem,
    rows: slice,
    scratch: Tensor,
) -> None:
    """Add t·(Σ_c w_c·c − total·α) to a block of the gradient, (n, K); ``total`` (n,) is Σ_c w_c. Where the candidates
    are the classes, whose gradient has nothing yet, it is written over what is there."""
    n, m = weights.shape
    if problem.are_classes:
        torch.mul(weights, problem.scale, out=gradient)
    elif problem.index is None:
        assert problem.weight is not None
        gradient.addmm_(weights, problem.weight, alpha=problem.scale)
    else:
        for j, column in enumerate(problem.index.unbind(1)):
            factor = problem.scale if problem.weight is None else problem.weight[:, j] * problem.scale
            gradient.scatter_add_(1, column.expand(n, m), torch.mul(weights, factor, out=scratch))
    for direction in problem.directions:
        along = torch.zeros_like(total) if direction.mass is None else weights @ direction.mass
        if direction.own_mass is not None:
            along = along - direction.own_mass[rows] * total
        along = (problem.scale * along)[:, None]
        gradient.add_(along if direction.vector is None else along * direction.vector)
    less = (-problem.scale * total)[:, None]
    if problem.own_index is None:
        assert problem.own_weight is not None
        gradient.addcmul_(problem.own_weight[rows], less)
    else:
        own = problem.own_index[rows]
        gradient.scatter_add_(
            1, own, less.expand(own.shape) if problem.own_weight is None else problem.own_weight[rows] * less
        )
