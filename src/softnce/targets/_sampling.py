"""Labels drawn from distributions over classes, and λ of MixUp."""

from typing import Any

import torch
from torch import Tensor

_STEPS = 1 << 52


def drawn_by(generator: torch.Generator | None) -> dict[str, Any]:
    """``generator`` as an argument, or none: torch.compile takes no None for it where a size varies."""
    return {} if generator is None else {"generator": generator}


def class_edges(probs: Tensor) -> Tensor:
    """Where each class ends on a line of 2⁵² steps, (..., K), for :func:`draw_by_edges`; whole numbers do not round."""
    cdf = probs.double().cumsum(-1)
    return (cdf / cdf.narrow(-1, -1, 1) * _STEPS).round().long()


def draw_by_edges(edges: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """n labels drawn by each row of :func:`class_edges`, (..., n). O(n·log K)."""
    u = torch.randint(_STEPS, (*edges.shape[:-1], n), device=edges.device, **drawn_by(generator))
    return torch.searchsorted(edges, u, right=True)


def draw_uniform(num_classes: int, shape: Any, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Classes of this shape, all alike."""
    return torch.randint(num_classes, shape, device=device, **drawn_by(generator))


def sample_beta(alpha: float, n: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """n draws of λ and 1 − λ with λ ~ Beta(alpha, alpha), (n, 2), float64."""
    # Two gamma variates over their sum; torch.distributions.Beta takes no generator. A small alpha makes variates so
    # small that torch raises them to the smallest number; where it did so with both, λ is 0 or 1 but for rounding.
    gamma = torch._standard_gamma(torch.full((n, 2), alpha, dtype=torch.float64, device=device), generator)
    known = gamma.amax(1, keepdim=True) > torch.finfo(torch.float64).tiny
    one_and_zero = 1 - torch.arange(2, dtype=gamma.dtype, device=device)
    return torch.where(known, gamma / gamma.sum(1, keepdim=True), one_and_zero)
