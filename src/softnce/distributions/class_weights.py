"""What the distributions here share: class probabilities that may be exactly zero, and their logarithms."""

import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = ["checked_parameter", "log_weights", "zero_safe_log"]


class _LogWeights(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value < torch.inf).all(-1) & (value > -torch.inf).any(-1)

    def __repr__(self) -> str:
        return "no +inf, no NaN, at least one class above -inf"


log_weights = _LogWeights()


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
