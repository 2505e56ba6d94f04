"""An independent series for the integral of exp(ω·x) over the simplex at large K, and parameters to try.

Exact arithmetic and the original authors' method are in softnce.lab.studies.exact_loss.original: a figure shows both.
"""

import math

import numpy as np
import torch
from torch import Tensor


def series_log_integral(omega: np.ndarray) -> float:
    """log Z = log Σ_n h_n(ω) / (n + K − 1)! in fp64 logarithms, ω shifted to be ≥ 0, with h_n from power sums:
    n h_n = Σ_j p_j h_{n−j}."""
    shift, classes = omega.min(), len(omega)
    values = omega - shift
    largest = values.max()
    log_factorial = math.lgamma(classes)
    if largest == 0:
        return shift - log_factorial
    terms = int(largest + 14 * math.sqrt(largest + 1) + 80)
    scaled, power = values / largest, np.ones_like(values)
    log_p, log_h = np.empty(terms), np.zeros(terms + 1)
    for n in range(1, terms + 1):
        power = power * scaled
        log_p[n - 1] = math.log(power.sum())
        parts = log_p[:n] + log_h[n - 1 :: -1][:n]
        log_h[n] = parts.max() + math.log(np.exp(parts - parts.max()).sum()) - math.log(n)
    n = np.arange(terms + 1)
    log_terms = log_h + n * math.log(largest)
    log_terms[1:] -= np.cumsum(np.log(n[1:] + classes - 1.0))
    assert log_terms[-1] < log_terms.max() - 40, "series cut too early"
    return shift + log_terms.max() + math.log(np.exp(log_terms - log_terms.max()).sum()) - log_factorial


def parameters(classes: int, scale: float, seed: int) -> dict[str, Tensor]:
    """ω of one scale: distinct, with exact ties (of the largest too), and with ties up to a relative 1e-9."""
    generator = torch.Generator().manual_seed(seed)
    distinct = scale * torch.randn(classes, generator=generator, dtype=torch.float64)
    ties = distinct.clone()
    ties[: (classes + 1) // 2] = distinct.max()
    near = ties + 1e-9 * scale * torch.randn(classes, generator=generator, dtype=torch.float64)
    return {"distinct": distinct, "ties": ties, "near ties": near}
