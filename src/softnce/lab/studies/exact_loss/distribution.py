"""The continuous categorical distribution of a smoothed label, as the number of classes grows."""

import math
import statistics
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from softnce.distributions import AveragedCategorical, ContinuousCategorical
from softnce.distributions.simplex_integral import SimplexIntegral
from softnce.lab.studies.exact_loss.original import (
    cancelling_log_integral,
    exact_log_integral,
    ordered_rejection_log_acceptance,
)

SMOOTHING = 0.1
CONCENTRATIONS = {"1": lambda k: 1.0, "√K": math.sqrt, "K": float}
EXACT_UP_TO = 300  # classes; exact arithmetic takes time ~ K


def smoothed_label(classes: int) -> Tensor:
    probs = torch.full((classes,), SMOOTHING / classes, dtype=torch.float64)
    probs[0] += 1 - SMOOTHING
    return probs


def shape(classes: int) -> dict[str, Any]:
    """Strength of a draw and proposals it takes, for a smoothed label; error of log Z, for normal ω."""
    target, flat = smoothed_label(classes), torch.full((classes,), 1 / classes, dtype=torch.float64)
    strength = {}
    for name, of_classes in CONCENTRATIONS.items():
        drawn, noise = (ContinuousCategorical(p, concentration=of_classes(classes)) for p in (target, flat))
        strength[name] = {"nats": kl_divergence(drawn, noise).item(), "mean_of_true_class": drawn.mean[0].item()}
    drawn = ContinuousCategorical(target)
    log_acceptance = ordered_rejection_log_acceptance(drawn.natural_parameters, drawn.log_normalizer).item()
    result: dict[str, Any] = {
        "strength": strength,
        "label_nats": kl_divergence(AveragedCategorical(1, target), AveragedCategorical(1, flat)).item(),
        "proposals": drawn.expected_proposals.item(),
        "log10_original_proposals": -log_acceptance / math.log(10),
    }
    if classes <= EXACT_UP_TO:
        ours, original = [], []
        for seed in range(5):
            omega = torch.randn(classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            exact = exact_log_integral(omega.tolist())
            ours.append(_error(SimplexIntegral(omega).log_value, exact))
            original.append(_error(cancelling_log_integral(omega), exact))
        result |= {"error": statistics.median(ours), "original_error": statistics.median(original)}
    return result


def _error(found: Tensor, exact: Decimal) -> float:
    value = found.item()
    return abs(float(Decimal(value) - exact)) if math.isfinite(value) else math.inf
