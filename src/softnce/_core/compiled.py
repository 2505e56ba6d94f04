"""The compiled rows as an operator that ``torch.compile`` keeps: value in forward, gradient in backward.

The gradient is computed in backward, not kept from forward: no N×K tensor lives between them, and none is multiplied by
the upstream gradient afterwards.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softnce._core import cpu
from softnce._core.contrast import Alpha, Counted, Expected, SoftTarget, Sum
from softnce._inputs import at_least_float32

KINDS = {kind.kind: kind for kind in (Counted, Expected, SoftTarget)}
OPTIONAL = ("log_noise", "counts", "class_weight", "exclude", "candidate_mask", "place", "signatures",
            "candidate_signatures", "row_weight")  # fmt: skip
FLAGS = ("adds_own", "drop_own_classes", "shares_background", "reduced")


def losses(problem: Sum, logits: Tensor) -> Tensor:
    """The losses (N,) or their sum, without ``scale``, as one node of the compiled graph."""
    tensors: list[Tensor | None] = [problem.mask]
    numbers: list[float] = []
    for alpha in (problem.targets, problem.own, problem.candidates):
        alpha = Alpha(None, None, 0.0, None) if alpha is None else alpha
        masses = alpha.mass if isinstance(alpha.mass, Tensor) else None
        tensors += [alpha.index, alpha.weight, masses, alpha.dist]
        numbers.append(0.0 if isinstance(alpha.mass, Tensor) else float(alpha.mass))
    tensors += [getattr(problem, name) for name in OPTIONAL]
    numbers += [float(getattr(problem, name)) for name in FLAGS]
    temperature = problem.temperature
    if isinstance(temperature, Tensor):
        return rows(logits, temperature, tensors, [*numbers, 1.0], problem.kind)
    return rows(logits, None, tensors, [*numbers, float(temperature)], problem.kind)


def _problem(kind: int, tensors: Sequence[Tensor | None], numbers: Sequence[float], temperature: Tensor | None) -> Sum:
    """The sum that :func:`losses` took apart."""
    alphas = []
    for i, number in enumerate(numbers[:3]):
        index, weight, mass, dist = tensors[1 + 4 * i : 5 + 4 * i]
        is_there = index is not None or weight is not None
        alphas.append(Alpha(index, weight, number if mass is None else mass, dist) if is_there else None)
    targets, own, candidates = alphas
    assert targets is not None
    given: dict[str, Any] = dict(zip(OPTIONAL, tensors[13:], strict=True))
    given |= {name: bool(number) for name, number in zip(FLAGS, numbers[3:7], strict=True)}
    scale = numbers[7] if temperature is None else temperature
    return KINDS[kind](targets, tensors[0], own=own, candidates=candidates, temperature=scale, **given)


@torch.library.custom_op("softnce::rows", mutates_args=())
def rows(
    logits: Tensor, temperature: Tensor | None, tensors: Sequence[Tensor | None], numbers: Sequence[float], kind: int
) -> Tensor:
    problem = _problem(kind, tensors, numbers, temperature)
    return cpu.run(problem, logits, 1.0, (False, False))[0]


@torch.library.custom_op("softnce::rows_gradient", mutates_args=())
def rows_gradient(
    upstream: Tensor,
    logits: Tensor,
    temperature: Tensor | None,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    kind: int,
) -> tuple[Tensor, Tensor]:
    problem = _problem(kind, tensors, numbers, temperature)
    gradient, of_temperature = cpu.run(problem, logits, upstream, (True, temperature is not None))[1]
    assert gradient is not None
    return gradient, logits.new_zeros(()) if of_temperature is None else of_temperature


@rows.register_fake
def _(logits: Tensor, temperature: Any, tensors: Any, numbers: Sequence[float], kind: int) -> Tensor:
    shape = () if numbers[6] else logits.shape[:1]
    return logits.new_empty(shape, dtype=at_least_float32(logits.dtype))


@rows_gradient.register_fake
def _(upstream: Tensor, logits: Tensor, temperature: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape), (logits if temperature is None else temperature).new_empty(())


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *ctx.tensors, ctx.given, ctx.numbers, ctx.kind = inputs
    ctx.save_for_backward(*ctx.tensors)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    logits, temperature = ctx.saved_tensors
    gradient, of_temperature = rows_gradient(upstream, logits, temperature, ctx.given, ctx.numbers, ctx.kind)
    return gradient, None if temperature is None else of_temperature, None, None, None


def _twice(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    """Backward of the gradient, by operations that autograd knows."""
    with torch.enable_grad():
        inputs: list[Any] = [None if t is None else t.detach().requires_grad_() for t in ctx.saved_tensors]
        first, logits, temperature = inputs
        value, _ = _problem(ctx.kind, ctx.given, ctx.numbers, temperature).weighted(logits)
        value = value if first.dim() else value.sum()
        known = [t for t in (logits, temperature) if t is not None]
        found = torch.autograd.grad(value, known, first, create_graph=True)
        wanted = [t for t in inputs if t is not None]
        second = list(torch.autograd.grad(found, wanted, upstream[: len(found)], allow_unused=True))
    return *(None if t is None else second.pop(0) for t in inputs), None, None, None


rows.register_autograd(_backward, setup_context=_keep)
rows_gradient.register_autograd(_twice, setup_context=_keep)
