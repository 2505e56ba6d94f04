"""Independent values of the integral of exp(ω·x) over the simplex, its moments and draws, and parameters to try.

Exact arithmetic of the integral and the original authors' normaliser are in experiments.exact_loss.original: a
figure shows both.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
import torch
from torch import Tensor

from experiments.exact_loss.original import exact_log_integral


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


def exact_moments(omega: Sequence[float], classes: Sequence[int]) -> tuple[list[Decimal], list[list[Decimal]]]:
    """([E x_i for i in classes], [E x_i x_j for i, j in classes]) of the density ∝ exp(ω·x), to about 30 digits.

    Another class of the same ω_i integrates x_i: E x_i = Z(ω, ω_i) / Z(ω), E x_i x_j = Z(ω, ω_i, ω_j) / Z(ω), twice
    that for i = j.
    """
    with localcontext(prec=30):
        log_z = exact_log_integral(omega)

        def ratio(*more: int) -> Decimal:
            return (exact_log_integral([*omega, *(omega[i] for i in more)]) - log_z).exp()

        second = [[ratio(i, j) * (2 if i == j else 1) for j in classes] for i in classes]
        return [ratio(i) for i in classes], second


def ordered_rejection(omega: Tensor, proposals: int) -> Tensor:
    """The original authors' sampler: every class but the largest gets an independent continuous Bernoulli draw
    (an exponential cut to [0, 1]) in order of decreasing ω, and a proposal is dropped once its sum exceeds 1.
    Returns what is accepted of ``proposals``, (accepted, K), largest class first. Their early stop saves work, not
    proposals, so it is left out.
    """
    omega = omega.sort(descending=True).values
    rate = omega[0] - omega[1:]
    u = torch.rand(proposals, len(rate), dtype=omega.dtype)
    safe = torch.where(rate > 1e-8, rate, 1.0)
    x = torch.where(rate > 1e-8, -torch.log1p(u * torch.expm1(-safe)) / safe, u)
    rest = 1 - x.sum(-1, keepdim=True)
    return torch.cat([rest, x], dim=-1)[rest[:, 0] >= 0]


def parameters(classes: int, scale: float, seed: int) -> dict[str, Tensor]:
    """ω of one scale: distinct, with exact ties (of the largest too), and with ties up to a relative 1e-9."""
    generator = torch.Generator().manual_seed(seed)
    distinct = scale * torch.randn(classes, generator=generator, dtype=torch.float64)
    ties = distinct.clone()
    ties[: (classes + 1) // 2] = distinct.max()
    near = ties + 1e-9 * scale * torch.randn(classes, generator=generator, dtype=torch.float64)
    return {"distinct": distinct, "ties": ties, "near ties": near}
