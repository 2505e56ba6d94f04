"""The three sums as losses: one entry each, whose gradient is computed block by block together with the value."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from softnce._core import compiled, cpu
from softnce._core.contrast import Alpha, Counted, Expected, SoftTarget, Sum, Targets, row_blocks
from softnce._inputs import at_least_float32, autocast_is_on, full_precision


def counted(logits: Tensor, targets: Targets, **given: Any) -> Tensor:
    """ℓ = −Σ_k a_k s_k + A·log Σ_k n_k e^{s_k} of every row.

    Args:
        logits: (N, K); s = logits/temperature − log_noise. −∞ masks a class.
        targets: α, N rows; a_k = α_k·class_weight_k and A = Σ_k a_k.
        given: fields of :class:`~softnce._core.contrast.Sum`, here and below.
    """
    return _evaluate(Counted(_alpha(targets), targets.mask, **given), logits)


def expected(
    logits: Tensor, targets: Targets, own: Targets | None = None, drop_own_classes: bool = False, **given: Any
) -> Tensor:
    """ℓ = Σ_k α_k log(1 + R/e^{s_k}) of every row, R = Σ_k (n_k − own_k) e^{s_k}.

    With ``drop_own_classes``, ``own`` is not used.
    """
    alpha = _alpha(targets)
    mine = None if own is None or drop_own_classes else alpha if own is targets else _alpha(own)
    problem = Expected(alpha, targets.mask, own=mine, drop_own_classes=drop_own_classes, **given)
    return _evaluate(problem, logits)


def soft_target(
    logits: Tensor,
    targets: Targets,
    candidates: Targets,
    own: Tensor | None = None,
    remove_hits: bool = False,
    **given: Any,
) -> Tensor:
    """ℓ = −σ(α) + log Σ_c v_c e^{σ(c)} of every row, σ(c) = Σ_k c_k s_k.

    Args:
        candidates: M rows; ``mask`` marks those that are candidates.
        own: (N,) position of each row's own target among the candidates; None: it is added. It counts once.
        remove_hits: candidates equal to the row's target, in any storage form, do not count.
    """
    alpha = _alpha(targets)
    others = alpha if candidates is targets else _alpha(candidates)
    problem = SoftTarget(alpha, targets.mask, candidates=others, candidate_mask=candidates.mask, place=own, **given)
    problem.shares_background = alpha.shares_background(others)
    if remove_hits:
        problem.signatures, problem.candidate_signatures = (
            rows.signatures(logits.shape[1]) for rows in (alpha, others)
        )
    return _evaluate(problem, logits)


def _alpha(targets: Targets) -> Alpha:
    index = targets.index
    if index is not None and targets.mask is not None:  # the class of an ignored row may be anything
        index = index * targets.mask[:, None]
    return Alpha(index, targets.weight, targets.smoothing, targets.smoothing_dist)


def _tensors(problem: Sum) -> list[Tensor]:
    """Every tensor that a sum reads, but the logits and the temperature."""
    found = [problem.mask, problem.row_weight, problem.log_noise, problem.counts, problem.class_weight, problem.exclude]
    found += problem.candidate_mask, problem.place
    own = None if problem.own is problem.targets else problem.own
    for alpha in (problem.targets, own, problem.candidates):
        if alpha is not None:
            found += alpha.index, alpha.weight, alpha.mass, alpha.dist  # type: ignore[arg-type]
    return [t for t in found if isinstance(t, Tensor)]


def _evaluate(problem: Sum, logits: Tensor) -> Tensor:
    """The losses (N,), or their sum over ``divisor``, by whichever path can take this call."""
    if autocast_is_on(logits.device):
        with full_precision(logits.device):
            return _evaluate(problem, logits)
    learned, divisor = None, problem.divisor
    if isinstance(problem.temperature, Tensor):
        learned = problem.temperature = problem.temperature.reshape(())
    if len(logits) == 0 or (problem.candidates is not None and len(problem.candidates) == 0):
        zeros = logits[:, :0].to(at_least_float32(logits.dtype)).sum(1)  # connected to the graph
        return zeros.sum() if problem.reduced else zeros
    tensors = _tensors(problem)
    is_learned = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    is_plain = is_learned or not is_eager()
    if divisor is not None:
        is_number = not is_plain and (not isinstance(divisor, Tensor) or (divisor.is_cpu and type(divisor) is Tensor))
        problem.scale = 1 / (float(divisor) if is_number else divisor)
    if is_plain:
        if torch.compiler.is_compiling() and not is_learned and is_reverse() and cpu.can_run(problem, logits, tensors):
            return compiled.losses(problem, logits) * problem.scale
        return _plain(problem, logits)
    problem.is_compiled = isinstance(problem.scale, float) and cpu.can_run(problem, logits, tensors)
    if not problem.is_compiled:
        _check_labels(problem, logits)
    value: Tensor = _Rows.apply(logits, learned, problem, tensors)
    return value


Wants = tuple[bool, bool]
Gradients = tuple[Tensor | None, Tensor | None]
"""Of logits (N, K) and temperature ()."""


def _plain(problem: Sum, logits: Tensor) -> Tensor:
    """The result by operations that autograd knows, all rows at once."""
    losses, _ = problem.weighted(logits)
    return losses.sum() * problem.scale if problem.reduced else losses


def _run(problem: Sum, logits: Tensor, upstream: Tensor | float, wants: Wants) -> tuple[Tensor, Gradients]:
    """The losses (N,), or the reduced loss for an upstream gradient that is a float, and the gradients wanted."""
    if not problem.is_compiled:
        losses, gradients = _blocks(problem, logits, upstream, wants)
        return losses.sum() * problem.scale if problem.reduced else losses, gradients
    return cpu.run(problem, logits, upstream, wants)


def _blocks(problem: Sum, logits: Tensor, upstream: Tensor | float, wants: Wants) -> tuple[Tensor, Gradients]:
    """The losses (N,), and the gradients of ``upstream`` · losses that are wanted."""
    values: list[Tensor] = []
    of_temperature: list[Tensor] = []
    parts = row_blocks(len(logits), problem.width(logits.shape[1]), logits.device, problem.chunk_size)
    gradient, temperature = logits.detach() if problem.overwrites else None, problem.temperature
    for rows in parts:
        losses, pull = problem.weighted(logits[rows].detach(), rows)
        values.append(losses)
        if not any(wants):
            continue
        found, bounded = pull(upstream[rows] if isinstance(upstream, Tensor) and upstream.dim() else upstream)
        if wants[1]:
            of_temperature.append((found * bounded).sum().neg() / temperature)
        if gradient is None and len(parts) == 1:
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
    def forward(ctx: Any, logits: Tensor, temperature: Tensor | None, problem: Sum, tensors: list[Tensor]) -> Tensor:
        wants = ctx.needs_input_grad[:2] if problem.reduced else (False, False)
        value, ctx.kept = _run(problem, logits, problem.scale, wants)
        ctx.problem, ctx.is_kept = problem, problem.reduced
        # The targets are saved for autograd to notice when they are overwritten before backward reads them.
        ctx.save_for_backward(logits, temperature, *tensors)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        wants_graph = torch.is_grad_enabled()  # create_graph=True: the gradient will itself be differentiated
        if not torch._C._has_storage(upstream) and not wants_graph:  # of is_grads_batched=True
            return _Rows._batched(ctx, upstream)
        if ctx.is_kept and not wants_graph:
            gradient, of_temperature = ctx.kept
            ctx.kept, ctx.is_kept = (None, None), False
            if not is_one(upstream):
                gradient = gradient if gradient is None else gradient.mul_(upstream)
                of_temperature = of_temperature if of_temperature is None else of_temperature * upstream
            return gradient, of_temperature, None, None
        logits, temperature, *_ = ctx.saved_tensors
        problem, wants = ctx.problem, ctx.needs_input_grad[:2]
        with full_precision(logits.device):
            if wants_graph:
                inputs = [t for t, wanted in zip((logits, temperature), wants, strict=True) if wanted]
                found = list(torch.autograd.grad(_plain(problem, logits), inputs, upstream, create_graph=True))
                return found.pop(0) if wants[0] else None, found.pop(0) if wants[1] else None, None, None
            # The losses of the rows, or a second backward through the same graph.
            _, gradients = _run(problem, logits, upstream * problem.scale if problem.reduced else upstream, wants)
            return *gradients, None, None

    @staticmethod
    def _batched(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Backward of is_grads_batched: rows do not mix, so one gradient serves every ``upstream``."""
        problem, wants, (gradient, of_temperature) = ctx.problem, ctx.needs_input_grad[:2], ctx.kept
        logits, each = ctx.saved_tensors[0], upstream if ctx.problem.reduced else upstream[:, None]
        if wants[1] and not problem.reduced:
            raise RuntimeError("is_grads_batched with a learned temperature needs a loss that is reduced to one number")
        if not ctx.is_kept:
            ones = logits.new_ones(len(logits), dtype=at_least_float32(logits.dtype))
            _, (gradient, of_temperature) = _run(problem, logits, problem.scale if problem.reduced else ones, wants)
        gradient = gradient if gradient is None else gradient * each.to(gradient.dtype)
        return gradient, of_temperature if of_temperature is None else of_temperature * upstream, None, None


def is_one(number: Tensor) -> bool:
    """Whether a number on the host is 1, as after ``loss.backward()``; an accelerator is not asked."""
    return number.is_cpu and type(number) is Tensor and number.item() == 1


def is_eager() -> bool:
    """Whether ordinary reverse mode is all there is: no compiler, no functorch transform, no forward mode."""
    return not torch.compiler.is_compiling() and is_reverse()


def is_reverse() -> bool:
    """Whether no functorch transform and no forward mode is active."""
    return not torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0


def _check_labels(problem: Sum, logits: Tensor) -> None:
    """Raises for a class number outside [0, K) on a CPU; an accelerator would have to wait."""
    index, classes = problem.targets.index, logits.shape[1]
    if index is None or not index.is_cpu or type(index) is not Tensor:
        return
    low, high = index.aminmax()
    if low < 0 or high >= classes:
        row = int(((index < 0) | (index >= classes)).any(1).nonzero()[0])
        raise ValueError(f"targets must be classes in [0, {classes}), got {index[row].tolist()} in row {row}")
