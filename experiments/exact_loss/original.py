"""The original authors' method for the continuous categorical, and exact arithmetic: small and slow references.

Gordon-Rodriguez, Loaiza-Ganem, Cunningham, "The continuous categorical: a novel simplex-valued exponential family",
ICML 2020. The library's tests use both.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext

import torch
from torch import Tensor


def exact_log_integral(omega: Sequence[float], digits: int = 30) -> Decimal:
    """log Z, Z the integral of exp(ω·x) over the simplex, to ``digits``.

    With ω shifted so that its smallest is 0, Z = Σ_n h_n(ω) / (n + K − 1)!, h_n the complete homogeneous symmetric
    polynomial with generating function Π 1/(1 − ω_k s): every term is positive, so nothing cancels, ties or not.
    """
    with localcontext(prec=digits, Emin=-999_999, Emax=999_999):
        shift = Decimal(min(omega))
        values = [Decimal(w) - shift for w in omega]
        largest = float(max(values))
        h = [Decimal(1)] + [Decimal(0)] * int(largest + 9 * math.sqrt(largest + 1) + 40)
        for value in values:  # times 1/(1 − value·s)
            carry = Decimal(0)
            for n, coefficient in enumerate(h):
                h[n] = carry = coefficient + value * carry
        factor, total, term = 1 / Decimal(math.factorial(len(omega) - 1)), Decimal(0), Decimal(0)
        for n, coefficient in enumerate(h):
            term = coefficient * factor
            total += term
            factor /= n + len(omega)
        if term >= total * Decimal(10) ** (8 - digits):
            raise ArithmeticError("the series was cut too early")
        return shift + total.ln()


def cancelling_log_integral(omega: Tensor) -> Tensor:
    """The original authors' normaliser: log of Σ_k exp(ω_k) / Π_{j≠k} (ω_k − ω_j), in the dtype of ω."""
    differences = omega.unsqueeze(-1) - omega
    differences.diagonal().fill_(1.0)
    return (omega.exp() / differences.prod(-1)).sum().log()


def ordered_rejection_log_acceptance(omega: Tensor, log_integral: Tensor) -> Tensor:
    """Acceptance of the original authors' sampler: Z over the integral of the proposal's unnormalised density."""
    omega = omega.sort(descending=True).values
    rate = omega[0] - omega[1:]
    safe = torch.where(rate > 1e-8, rate, 1.0)
    return log_integral - omega[0] - torch.where(rate > 1e-8, -torch.expm1(-safe) / safe, 1.0).log().sum()
