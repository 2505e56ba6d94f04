"""Slow, obvious references for the integral of exp(ω·x) over the simplex, and the method of the original authors."""

import math

import numpy as np
import torch
from mpmath import mp, mpf
from torch import Tensor


def exact_log_integral_and_moments(omega: list[float], classes: list[int] = (), digits: int = 30):
    """(log Z, [E x_i for i in classes], [E x_i x_j for i, j in classes]) in ``digits``-digit arithmetic.

    With ω shifted so that its smallest is 0, Z = Σ_n h_n(ω) / (n + K − 1)!, h_n the complete homogeneous symmetric
    polynomial: every term is positive, so nothing cancels, ties or not. Another class of the same ω_i multiplies the
    generating function Π 1/(1 − ω_k s) by 1/(1 − ω_i s), which is how the moments come: E x_i = Z(ω, ω_i) / Z(ω).
    """
    with mp.workdps(digits):
        shift = mpf(min(omega))
        values = [mpf(w) - shift for w in omega]
        largest = float(max(values))
        terms = int(largest + 9 * math.sqrt(largest + 1) + 40)

        def with_class(h, value):
            out, carry = [], mpf(0)
            for coefficient in h:
                carry = coefficient + value * carry
                out.append(carry)
            return out

        def total(h, classes):
            factor, result = 1 / mp.factorial(classes - 1), mpf(0)
            for n, coefficient in enumerate(h):
                result += coefficient * factor
                factor /= n + classes
            assert coefficient * factor * (n + classes) < result * mpf(10) ** (8 - digits), "series cut too early"
            return result

        h = [mpf(1)] + [mpf(0)] * terms
        for value in values:
            h = with_class(h, value)
        z = total(h, len(omega))
        extended = {i: with_class(h, values[i]) for i in classes}
        mean = [total(extended[i], len(omega) + 1) / z for i in classes]
        second = [
            [total(with_class(extended[i], values[j]), len(omega) + 2) / z * (2 if i == j else 1) for j in classes]
            for i in classes
        ]
        return shift + mp.log(z), mean, second


def series_log_integral(omega: np.ndarray) -> float:
    """The same series for large K, in fp64 logarithms, with h_n from power sums: n h_n = Σ_j p_j h_{n−j}."""
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


def cancelling_log_integral(omega: Tensor) -> Tensor:
    """The original authors' normaliser: Σ_k exp(ω_k) / Π_{j≠k} (ω_k − ω_j), in the dtype of ω."""
    differences = omega.unsqueeze(-1) - omega
    differences.diagonal().fill_(1.0)
    return (omega.exp() / differences.prod(-1)).sum().log()


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


def ordered_rejection_log_acceptance(omega: Tensor, log_integral: Tensor) -> Tensor:
    """Acceptance of ``ordered_rejection``: Z over the integral of the proposal's unnormalised density."""
    omega = omega.sort(descending=True).values
    rate = omega[0] - omega[1:]
    safe = torch.where(rate > 1e-8, rate, 1.0)
    return log_integral - omega[0] - torch.where(rate > 1e-8, -torch.expm1(-safe) / safe, 1.0).log().sum()


def parameters(classes: int, scale: float, seed: int) -> dict[str, Tensor]:
    """ω of one scale: distinct, with exact ties (of the largest too), and with ties up to a relative 1e-9."""
    generator = torch.Generator().manual_seed(seed)
    distinct = scale * torch.randn(classes, generator=generator, dtype=torch.float64)
    ties = distinct.clone()
    ties[: (classes + 1) // 2] = distinct.max()
    near = ties + 1e-9 * scale * torch.randn(classes, generator=generator, dtype=torch.float64)
    return {"distinct": distinct, "ties": ties, "near ties": near}
