"""A loss per row of logits whose gradient is computed together with it, block of rows by block of rows.

The gradient of a row's loss needs that row alone. So a block of rows is finished, value and gradient, while it is in
the cache, and nothing of the size of all scores is held. Backward only multiplies by what arrives.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from softnce._checks import as_whole, values_are_readable
from softnce._precision import at_least_float32

CACHED = 1 << 17
"""Scores worked on at a time on a CPU: half a megabyte of float32, a share of the second-level cache."""
MATRICES = 3
"""Matrices of a block's rows × candidates that exist at once."""
_budget = 1 << 30
Reduced = Literal["mean", "none"]
"""What is wanted of the rows' losses: their mean, or all of them."""


def set_memory_budget(num_bytes: int) -> None:
    """Set how much memory a loss may use for a block of scores on an accelerator; 1 GiB by default.

    An accelerator works on as many rows at a time as fit, because every block is some twenty launches: at the default,
    8,192 rows against 8,192 candidates are one block. On a CPU blocks follow the cache, whatever the budget;
    ``chunk_size`` of a loss overrides both. Losses that were compiled keep the budget they were compiled with.

    >>> set_memory_budget(1 << 30)
    """
    global _budget
    _budget = as_whole(num_bytes, "num_bytes")


def blocks(rows: int, width: int, device: torch.device, chunk_size: int | None) -> list[slice]:
    """The rows in blocks, each row with ``width`` scores."""
    if chunk_size is None:
        scores = CACHED if device.type == "cpu" else _budget // (4 * MATRICES)
        chunk_size = max(1, scores // max(1, width))
    return [slice(start, min(start + chunk_size, rows)) for start in range(0, rows, chunk_size)]


def reduced(losses: Tensor, reduction: Reduced) -> Tensor:
    """The mean of losses (N,), or the losses."""
    return losses.mean() if reduction == "mean" else losses


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The values of all blocks."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Kernel(ABC):
    """Everything that a loss per row needs besides the logits."""

    kinds: ClassVar[dict[str, type["Kernel"]]] = {}
    share = 1.0
    """What the gradient of a row's loss is multiplied by: 1/N where the mean is wanted, which saves a pass over it."""

    def __init_subclass__(cls) -> None:
        Kernel.kinds[cls.__name__] = cls

    @abstractmethod
    def run(self, logits: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """The losses (N,) of logits (N, K), and what is kept for backward: their gradient (N, K) times ``share``, or
        something smaller that :meth:`gradient` turns into it, where ``share`` is 1."""

    def gradient(self, logits: Tensor, kept: Tensor, upstream: Tensor) -> Tensor:
        """The gradient (N, K) times ``upstream`` (N,), from what was kept where it is not the gradient."""
        raise NotImplementedError

    @abstractmethod
    def plain(self, logits: Tensor) -> Tensor:
        """The losses by operations that autograd knows, through whole matrices."""

    def kept_size(self, logits: Tensor) -> int:
        """Columns of what is kept."""
        return logits.shape[1]

    @abstractmethod
    def parts(self) -> tuple[list[Tensor | None], list[float]]:
        """All tensors and all numbers, for :meth:`of`: an operator that the compiler does not enter takes these."""

    @classmethod
    @abstractmethod
    def of(cls, tensors: Sequence[Tensor | None], numbers: Sequence[float]) -> Self: ...


def evaluate(logits: Tensor, kernel: Kernel, counted: Tensor | None = None, reduction: Reduced = "none") -> Tensor:
    """The losses (N,) of logits (N, K), or their mean, which is for kernels that keep the gradient.

    Rows that are not ``counted`` (N,) are zeros, whatever they hold.
    """
    is_mean = reduction == "mean"
    if torch._C._are_functorch_transforms_active():  # they see through plain operations alone
        losses = kernel.plain(blank(logits, counted))
    elif torch.compiler.is_compiling():
        if logits.device.type != "cpu" or logits.numel() <= CACHED:  # there the compiler's own blocks are the quicker
            losses = kernel.plain(blank(logits, counted))
        else:
            tensors, numbers = kernel.parts()
            with_gradient = torch.is_grad_enabled() and logits.requires_grad
            losses = _compiled(logits, tensors, numbers, type(kernel).__name__, with_gradient, counted)[0]
    else:
        if is_mean:
            kernel.share = 1 / len(logits)
        value: Tensor = _Evaluate.apply(blank(logits, counted), kernel, is_mean)
        return value
    return losses.mean() if is_mean else losses


def blank(rows: Tensor, counted: Tensor | None) -> Tensor:
    """Rows that are not ``counted`` (N,) as zeros, so that what they hold, NaN included, reaches neither loss nor
    gradient; None: all are."""
    return rows if counted is None else rows.masked_fill(counted.logical_not()[:, None], 0)


def lowest_logit(dtype: torch.dtype) -> float:
    """What stands for −∞, the logit of a masked class, where it is multiplied by weights that may be 0: 0·(−∞) is no
    number. A sum of K such logits over τ is still finite where K/τ is below 2²⁸. For float32 or better."""
    return torch.finfo(dtype).min / (1 << 28)


def finite(logits: Tensor) -> Tensor:
    """Logits in float32 or better, those of masked classes as numbers."""
    dtype = at_least_float32(logits.dtype)
    return logits.to(dtype).clamp(min=lowest_logit(dtype))


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, kernel: Kernel, is_mean: bool) -> Tensor:
        value, kept = kernel.run(logits, logits.requires_grad)
        # The targets are saved only for autograd to notice when they are overwritten before backward reads them.
        ctx.save_for_backward(logits, *(t for t in kernel.parts()[0] if t is not None))
        ctx.kernel, ctx.kept, ctx.is_mean = kernel, kept, is_mean  # type: ignore[attr-defined]
        return value.mean() if is_mean else value

    @staticmethod
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor, None, None]:
        logits = ctx.saved_tensors[0]  # type: ignore[attr-defined]
        kernel: Kernel = ctx.kernel  # type: ignore[attr-defined]
        kept: Tensor | None = ctx.kept  # type: ignore[attr-defined]
        if torch.is_grad_enabled():  # create_graph=True: the gradient will itself be differentiated
            with torch.autocast(logits.device.type, enabled=False):
                losses = kernel.plain(logits)
                losses = losses.mean() if ctx.is_mean else losses  # type: ignore[attr-defined]
                (gradient,) = torch.autograd.grad(losses, logits, upstream, create_graph=True)
            return gradient, None, None
        if kept is None:  # a second backward through the same graph: what was kept is used up
            with torch.autocast(logits.device.type, enabled=False):
                _, kept = kernel.run(logits, True)
            assert kept is not None
        ctx.kept = None  # type: ignore[attr-defined]
        if ctx.is_mean:  # type: ignore[attr-defined]
            gradient = kept if _is_one(upstream) else kept.mul_(upstream)
        elif kept.shape == logits.shape:
            gradient = kept.mul_(upstream[:, None])
        else:
            gradient = kernel.gradient(logits, kept, upstream)
        return gradient.to(logits.dtype), None, None


def _is_one(number: Tensor) -> bool:
    """Whether it is seen to be 1, as where ``backward`` was called on the loss itself; an accelerator is not asked."""
    return number.device.type == "cpu" and values_are_readable(number) and float(number) == 1


@torch.library.custom_op("softnce::evaluate", mutates_args=())
def _compiled(
    logits: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    kind: str,
    with_gradient: bool,
    counted: Tensor | None,
) -> tuple[Tensor, Tensor]:
    # A compiled program cannot see whether a row is ignored, and would copy all logits; mostly none is.
    if counted is not None and not bool(counted.all()):
        logits = blank(logits, counted)
    value, kept = Kernel.kinds[kind].of(tensors, numbers).run(logits, with_gradient)
    return value, value.new_empty(0) if kept is None else kept


@_compiled.register_fake
def _(
    logits: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    kind: str,
    with_gradient: bool,
    counted: Tensor | None,
) -> tuple[Tensor, Tensor]:
    dtype = at_least_float32(logits.dtype)
    size = Kernel.kinds[kind].of(tensors, numbers).kept_size(logits)
    kept = (len(logits), size) if with_gradient else (0,)
    return logits.new_empty(len(logits), dtype=dtype), logits.new_empty(kept, dtype=dtype)


@torch.library.custom_op("softnce::evaluate_gradient", mutates_args=())
def _compiled_gradient(
    logits: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    kind: str,
    kept: Tensor,
    upstream: Tensor,
) -> Tensor:
    return Kernel.kinds[kind].of(tensors, numbers).gradient(logits, kept, upstream)


@_compiled_gradient.register_fake
def _(
    logits: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    kind: str,
    kept: Tensor,
    upstream: Tensor,
) -> Tensor:
    return kept.new_empty(logits.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, tensors, ctx.numbers, ctx.kind, *_ = inputs
    ctx.is_given = [tensor is not None for tensor in tensors]
    ctx.save_for_backward(logits, output[1], *(tensor for tensor in tensors if tensor is not None))
    ctx.set_materialize_grads(False)


def _compiled_backward(ctx: Any, upstream: Tensor, _: None) -> tuple[Tensor | None, ...]:
    logits, kept, *given = ctx.saved_tensors
    if kept.shape == logits.shape:
        gradient = kept * upstream[:, None]
    else:
        found = iter(given)
        tensors = [next(found) if is_given else None for is_given in ctx.is_given]
        gradient = _compiled_gradient(logits, tensors, ctx.numbers, ctx.kind, kept, upstream)
    return gradient.to(logits.dtype), None, None, None, None, None


_compiled.register_autograd(_compiled_backward, setup_context=_keep)
