"""What the distributions here share: class probabilities that may be exactly zero, and their logarithms."""

import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = ["checked_parameter", "checked_shape", "finite_positive", "log_weights", "zero_safe_log"]


class _LogWeights(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value < torch.inf).all(-1) & (value > -torch.inf).any(-1)

    def __repr__(self) -> str:
        return "no +inf, no NaN, at least one class above -inf"


class _FinitePositive(constraints.Constraint):
    def check(self, value: Tensor) -> Tensor:
        return (value > 0) & (value < torch.inf)

    def __repr__(self) -> str:
        return "positive and finite"


log_weights = _LogWeights()
finite_positive = _FinitePositive()


def checked_shape(sample_shape: object) -> torch.Size:
    """What a ``sample`` method was given, as a shape."""
    try:
        shape = torch.Size(sample_shape)  # type: ignore[arg-type]
    except TypeError:
        shape = None
    if shape is None or any(size < 0 for size in shape):
        raise ValueError(f"sample_shape must hold sizes of at least 0, such as (5,), got {sample_shape!r}")
    return shape


def checked_parameter(probs: Tensor | None, logits: Tensor | None) -> Tensor:
    """The one of the two that was given, a floating-point tensor of shape (..., K)."""
    if (probs is None) == (logits is None):
        raise ValueError("pass either probs or logits, not both")
    name, given = ("probs", probs) if logits is None else ("logits", logits)
    if not isinstance(given, Tensor) or given.dim() < 1 or not given.is_floating_point():
        got = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"{name} must be a floating-point tensor of shape (..., K), got {got}")
    return given


def zero_safe_log(probs: Tensor) -> Tensor:
    """log, exactly −inf at 0 (torch's own distributions clamp it), with gradient 0 there instead of NaN."""
    positive = probs > 0
    return torch.where(positive, torch.where(positive, probs, 1.0).log(), -torch.inf)
