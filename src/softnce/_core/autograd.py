"""The three sums as losses: one entry each, whose gradient is computed block by block together with the value."""

from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from torch.autograd import forward_ad

from softnce._core import cpu
from softnce._core.contrast import Alpha, Counted, Expected, SoftTarget, Sum, Targets, row_blocks, weighted_losses
from softnce._precision import at_least_float32, full_precision

__all__ = ["counted", "expected", "soft_target"]

Gradients = tuple[Tensor | None, Tensor | None]
"""Of logits (N, K) and temperature ()."""


class How(TypedDict, total=False):
    """Options of every sum."""

    temperature: float | Tensor
    row_weight: Tensor | None  # (N,)
    divisor: float | Tensor | None
    reduced: bool  # Σ_i row_weight_i ℓ_i / divisor, () instead of row_weight_i ℓ_i, (N,)
    chunk_size: int | None
    overwrites: bool  # compiled rows write the gradient of contiguous logits over these


def counted(
    logits: Tensor,
    targets: Targets,
    *,
    log_noise: Tensor | None = None,
    counts: Tensor | None = None,
    adds_own: bool = False,
    class_weight: Tensor | None = None,
    **how: Unpack[How],
) -> Tensor:
    """ℓ = −Σ_k a_k s_k + A·log Σ_k n_k e^{s_k} of every row.

    Args:
        logits: (N, K); s = logits/temperature − log_noise. −∞ masks a class.
        targets: α, N rows; a_k = α_k·class_weight_k and A = Σ_k a_k.
        counts: n, (K,) float64; None: ones. A class with the count 0 is absent.
        adds_own: adds each row's α to n for that row.
    """
    problem = Counted(Alpha.of(targets), log_noise, counts, adds_own=adds_own, class_weight=class_weight)
    return _evaluate(problem, logits, targets.mask, **how)


def expected(
    logits: Tensor,
    targets: Targets,
    *,
    log_noise: Tensor | None = None,
    counts: Tensor,
    own: Targets | None = None,
    drop_own_classes: bool = False,
    exclude: Tensor | None = None,
    **how: Unpack[How],
) -> Tensor:
    """ℓ = Σ_k α_k log(1 + R/e^{s_k}) of every row, R = Σ_k (n_k − own_k) e^{s_k}; see :func:`counted` for the rest.

    Args:
        own: N rows that each row takes out of n; None: nothing.
        drop_own_classes: leaves every class with α_k > 0 out of R; ``own`` is then not used.
        exclude: (N, E) classes per row that are left out of R too; −1 is padding.
    """
    alpha = Alpha.of(targets)
    mine = None if own is None or drop_own_classes else alpha if own is targets else Alpha.of(own)
    problem = Expected(alpha, log_noise, counts, own=mine, drop_own_classes=drop_own_classes, exclude=exclude)
    return _evaluate(problem, logits, targets.mask, **how)


def soft_target(
    logits: Tensor,
    targets: Targets,
    candidates: Targets,
    *,
    log_noise: Tensor | None = None,
    own: Tensor | None = None,
    remove_hits: bool = False,
    **how: Unpack[How],
) -> Tensor:
    """ℓ = −σ(α) + log Σ_c v_c e^{σ(c)} of every row, σ(c) = Σ_k c_k s_k; see :func:`counted` for the rest.

    Args:
        candidates: M rows; ``mask`` marks those that are candidates.
        own: (N,) position of each row's own target among the candidates; None: it is added. It counts once.
        remove_hits: candidates equal to the row's target, in any storage form, do not count.
    """
    alpha = Alpha.of(targets)
    others = alpha if candidates is targets else Alpha.of(candidates)
    problem = SoftTarget(
        alpha, log_noise, candidates=others, candidate_mask=candidates.mask, place=own,
        shares_background=alpha.shares_background(others),
    )  # fmt: skip
    if remove_hits:
        problem.signatures, problem.candidate_signatures = (
            rows.signatures(logits.shape[1]) for rows in (alpha, others)
        )
    return _evaluate(problem, logits, targets.mask, **how)


def _evaluate(
    problem: Sum,
    logits: Tensor,
    mask: Tensor | None,
    temperature: float | Tensor = 1.0,
    row_weight: Tensor | None = None,
    divisor: float | Tensor | None = None,
    reduced: bool = False,
    chunk_size: int | None = None,
    overwrites: bool = False,
) -> Tensor:
    """The losses (N,), or their sum over ``divisor``, by whichever path can take this call."""
    learned = None
    if isinstance(temperature, Tensor):
        learned = temperature = temperature.reshape(())
    with full_precision(logits.device):
        if len(logits) == 0 or (problem.candidates is not None and len(problem.candidates) == 0):
            zeros = logits[:, :0].to(at_least_float32(logits.dtype)).sum(1)  # connected to the graph
            return zeros.sum() if reduced else zeros
        tensors = [t for t in (*problem.tensors(), mask, row_weight) if isinstance(t, Tensor)]
        plain = not is_eager() or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
        if isinstance(divisor, Tensor) and not plain and divisor.is_cpu and type(divisor) is Tensor:
            divisor = float(divisor)
        scale = 1.0 if divisor is None else divisor.reciprocal() if isinstance(divisor, Tensor) else 1 / divisor
        call = _Call(problem, temperature, mask, row_weight, scale, reduced, chunk_size, overwrites, tensors)
        if plain:
            return call.plain(logits, temperature)
        call.is_compiled = isinstance(scale, float) and cpu.can_run(problem, logits, tensors)
        if not call.is_compiled:
            _check_labels(problem, logits)
        value: Tensor = _Rows.apply(logits, learned, call)
        return value


@dataclass(slots=True)
class _Call:
    """One evaluation of a sum."""

    problem: Sum
    temperature: float | Tensor
    mask: Tensor | None
    row_weight: Tensor | None
    scale: float | Tensor
    reduced: bool
    chunk_size: int | None
    overwrites: bool
    tensors: list[Tensor]
    is_compiled: bool = False

    def plain(self, logits: Tensor, temperature: float | Tensor | None) -> Tensor:
        """The result by operations that autograd knows, all rows at once."""
        given = self.temperature if temperature is None else temperature
        losses, _ = weighted_losses(self.problem, logits, given, self.mask, self.row_weight)
        return losses.sum() * self.scale if self.reduced else losses

    def run(
        self, logits: Tensor, upstream: Tensor | float, wants: tuple[bool, bool] = (False, False)
    ) -> tuple[Tensor, Gradients]:
        """The losses (N,), or the reduced loss for an upstream gradient that is a float, and the gradients wanted."""
        if not self.is_compiled:
            losses, gradients = self.blocks(logits, upstream, wants)
            return losses.sum() * self.scale if self.reduced else losses, gradients
        weight, scale = self.row_weight, upstream
        if isinstance(upstream, Tensor):
            scale = float(upstream) if upstream.dim() == 0 else 1.0
            if upstream.dim():
                weight = upstream if weight is None else upstream * weight
        return cpu.run(
            self.problem, logits, self.temperature, self.mask, weight, float(scale), wants, self.reduced,
            self.overwrites,
        )  # fmt: skip

    def blocks(self, logits: Tensor, upstream: Tensor | float, wants: tuple[bool, bool]) -> tuple[Tensor, Gradients]:
        """The losses (N,), and the gradients of ``upstream`` · losses that are wanted."""
        values: list[Tensor] = []
        of_temperature: list[Tensor] = []
        parts = row_blocks(len(logits), self.problem.width(logits.shape[1]), logits.device, self.chunk_size)
        gradient, temperature = None, self.temperature
        for rows in parts:
            losses, pull = weighted_losses(
                self.problem, logits[rows].detach(), temperature, self.mask, self.row_weight, rows
            )
            values.append(losses)
            if not any(wants):
                continue
            found, bounded = pull(upstream[rows] if isinstance(upstream, Tensor) and upstream.dim() else upstream)
            if isinstance(temperature, Tensor) and wants[1]:
                of_temperature.append((found * bounded).sum().neg() / temperature)
            if len(parts) == 1:
                gradient = found.to(logits.dtype)
            else:
                gradient = logits.new_empty(logits.shape) if gradient is None else gradient
                gradient[rows] = found
            del pull, found, bounded  # which hold matrices while the next block makes its own
        losses = values[0] if len(values) == 1 else torch.cat(values)
        summed = torch.stack(of_temperature).sum(0).to(temperature.dtype) if of_temperature else None  # type: ignore[union-attr]
        return losses, (gradient if wants[0] else None, summed)


class _Rows(torch.autograd.Function):
    """The gradient of the reduced loss comes with the value; that of each row's loss is computed in backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: Tensor | None, call: _Call) -> Tensor:
        wants = ctx.needs_input_grad[:2] if call.reduced else (False, False)
        value, ctx.kept = call.run(logits, call.scale, wants)
        ctx.call, ctx.is_kept = call, call.reduced
        # The targets are saved for autograd to notice when they are overwritten before backward reads them.
        ctx.save_for_backward(logits, temperature, *call.tensors)
        call.tensors = []
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        wants_graph = torch.is_grad_enabled()  # create_graph=True: the gradient will itself be differentiated
        if not torch._C._has_storage(upstream) and not wants_graph:  # of is_grads_batched=True
            return _Rows._batched(ctx, upstream)
        if ctx.is_kept and not wants_graph:
            gradient, of_temperature = ctx.kept
            ctx.kept, ctx.is_kept = (None, None), False
            if not is_one(upstream):
                gradient = gradient if gradient is None else gradient.mul_(upstream)
                of_temperature = of_temperature if of_temperature is None else of_temperature * upstream
            return gradient, of_temperature, None
        logits, temperature, *_ = ctx.saved_tensors
        call, wants = ctx.call, ctx.needs_input_grad[:2]
        with full_precision(logits.device):
            if wants_graph:
                inputs = [t for t, wanted in zip((logits, temperature), wants, strict=True) if wanted]
                value = call.plain(logits, temperature)
                found = list(torch.autograd.grad(value, inputs, upstream, create_graph=True))
                return found.pop(0) if wants[0] else None, found.pop(0) if wants[1] else None, None
            # The losses of the rows, or a second backward through the same graph.
            _, gradients = call.run(logits, upstream * call.scale if call.reduced else upstream, wants)
            return *gradients, None

    @staticmethod
    def _batched(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Backward of is_grads_batched: rows do not mix, so one gradient serves every ``upstream``."""
        call, wants = ctx.call, ctx.needs_input_grad[:2]
        logits = ctx.saved_tensors[0]
        if wants[1] and not call.reduced:
            raise RuntimeError("is_grads_batched with a learned temperature needs a loss that is reduced to one number")
        gradient, of_temperature = ctx.kept
        if not ctx.is_kept:
            ones = call.scale if call.reduced else logits.new_ones(len(logits), dtype=at_least_float32(logits.dtype))
            _, (gradient, of_temperature) = call.run(logits, ones, wants)
        if gradient is not None:
            gradient = gradient * (upstream if call.reduced else upstream[:, None]).to(gradient.dtype)
        return gradient, of_temperature if of_temperature is None else of_temperature * upstream, None


def is_one(number: Tensor) -> bool:
    """Whether a number on the host is 1, as after ``loss.backward()``; an accelerator is not asked."""
    return number.is_cpu and type(number) is Tensor and number.item() == 1


def is_eager() -> bool:
    """Whether ordinary reverse mode is all there is: no compiler, no functorch transform, no forward mode."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return forward_ad._current_level < 0


def _check_labels(problem: Sum, logits: Tensor) -> None:
    """Raises for a class number outside [0, K) on a CPU; an accelerator would have to wait."""
    index, classes = problem.targets.index, logits.shape[1]
    if index is None or not index.is_cpu or type(index) is not Tensor:
        return
    low, high = index.aminmax()
    if low < 0 or high >= classes:
        row = int(((index < 0) | (index >= classes)).any(1).nonzero()[0])
        raise ValueError(f"targets must be classes in [0, {classes}), got {index[row].tolist()} in row {row}")
