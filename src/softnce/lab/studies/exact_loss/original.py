"""What the continuous categorical distribution is compared with: its original authors' method, and exact arithmetic.

Both are small and slow on purpose. The tests hold the library to the exact arithmetic, and the figure of the study
``exact-loss`` shows it beside the original method.

Reference: Gordon-Rodriguez, Loaiza-Ganem, Cunningham, "The continuous categorical: a novel simplex-valued exponential
family", ICML 2020.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext

import torch
from torch import Tensor

Moments = tuple[Decimal, list[Decimal], list[list[Decimal]]]


def exact_log_integral_and_moments(omega: Sequence[float], classes: Sequence[int] = (), digits: int = 30) -> Moments:
    """(log Z, [E x_i for i in classes], [E x_i x_j for i, j in classes]) of exp(ω·x) on the simplex, to ``digits``.

    With ω shifted so that its smallest is 0, Z = Σ_n h_n(ω) / (n + K − 1)!, h_n the complete homogeneous symmetric
    polynomial: every term is positive, so nothing cancels, ties or not. Another class of the same ω_i multiplies the
    generating function Π 1/(1 − ω_k s) by 1/(1 − ω_i s), which is how the moments come: E x_i = Z(ω, ω_i) / Z(ω).
    """
    with localcontext(prec=digits, Emin=-999_999, Emax=999_999):
        shift = Decimal(min(omega))
        values = [Decimal(w) - shift for w in omega]
        largest = float(max(values))
        terms = int(largest + 9 * math.sqrt(largest + 1) + 40)

        def with_class(h: list[Decimal], value: Decimal) -> list[Decimal]:
            out, carry = [], Decimal(0)
            for coefficient in h:
                carry = coefficient + value * carry
                out.append(carry)
            return out

        def total(h: list[Decimal], classes: int) -> Decimal:
            factor, result, term = 1 / Decimal(math.factorial(classes - 1)), Decimal(0), Decimal(0)
            for n, coefficient in enumerate(h):
                term = coefficient * factor
                result += term
                factor /= n + classes
            if term >= result * Decimal(10) ** (8 - digits):
                raise ArithmeticError("the series was cut too early")
            return result

        h = [Decimal(1)] + [Decimal(0)] * terms
        for value in values:
            h = with_class(h, value)
        z = total(h, len(omega))
        extended = {i: with_class(h, values[i]) for i in classes}
        mean = [total(extended[i], len(omega) + 1) / z for i in classes]
        second = [
            [total(with_class(extended[i], values[j]), len(omega) + 2) / z * (2 if i == j else 1) for j in classes]
            for i in classes
        ]
        return shift + z.ln(), mean, second


def cancelling_log_integral(omega: Tensor) -> Tensor:
    """The original authors' normaliser: log of Σ_k exp(ω_k) / Π_{j≠k} (ω_k − ω_j), in the dtype of ω."""
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
