"""How far a fit is from the truth."""

import torch
from torch import Tensor

from softnce.lab.studies.density.mixture import Mixture


def kl_divergence(data: Mixture, weights: Tensor, smoothing: float = 0.0) -> Tensor:
    """(D, L) KL(p‖q) in nats, averaged over the samples' x.

    ``weights`` are (D, L, K, d). With smoothing ε, p is (1−ε)·p + ε/K, what soft distribution InfoNCE estimates.
    """
    log_q = torch.einsum("dmj,dlkj->dlmk", data.points, weights.double()).log_softmax(3)
    p = torch.lerp(data.conditional, torch.full_like(data.conditional, 1 / data.num_classes), smoothing)[:, None]
    kl = torch.special.xlogy(p, p).sum(3) - (p * log_q).sum(3)
    return torch.einsum("dm,dlm->dl", data.weight, kl)


def parameter_error(data: Mixture, weights: Tensor) -> Tensor:
    """(D, L) root mean square error of the parameters after removing the shift common to all classes, to which a
    softmax is blind."""
    difference = weights.double() - data.modes[:, None]
    return (difference - difference.mean(2, keepdim=True)).square().mean((2, 3)).sqrt()


def best_temperature(data: Mixture, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(D, L) temperature that, dividing the scores, makes the KL smallest, and that KL.

    It separates what a fit gets wrong in scale from what it gets wrong in direction. KL is convex in 1/τ: golden
    section on log 1/τ in [−7, 7], one evaluation per step.
    """
    shape = weights.shape[:2]
    low, high = torch.full(shape, -7.0, dtype=torch.float64), torch.full(shape, 7.0, dtype=torch.float64)

    def kl(log_scale: Tensor) -> Tensor:
        return kl_divergence(data, weights * log_scale.exp()[..., None, None])

    golden = (5**0.5 - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = kl(left), kl(right)
    for _ in range(40):
        go_left = at_left < at_right
        low, high = torch.where(go_left, low, left), torch.where(go_left, right, high)
        # One of the two inner points of the shorter interval was an inner point of the longer one.
        new = torch.where(go_left, high - golden * (high - low), low + golden * (high - low))
        value = kl(new)
        left, right = torch.where(go_left, new, right), torch.where(go_left, left, new)
        at_left, at_right = torch.where(go_left, value, at_right), torch.where(go_left, at_left, value)
    middle = (low + high) / 2
    return (-middle).exp(), kl(middle)


def agreement(data: Mixture, weights: Tensor) -> Tensor:
    """(D, L) share of the samples whose most probable class the fit gets right."""
    chosen = torch.einsum("dmj,dlkj->dlmk", data.points, weights.double()).argmax(3)
    right = (chosen == data.conditional.argmax(2)[:, None]).double()
    return torch.einsum("dm,dlm->dl", data.weight, right)


def statistical_limit(num_classes: int, dimension: int, num_samples: int) -> float:
    """Expected KL of the maximum-likelihood fit to sampled labels, (K−1)d/(2n): half a nat-sample for each free
    parameter. Asymptotic: it needs enough samples to determine every parameter, which nearly separable data lack."""
    return (num_classes - 1) * dimension / (2 * num_samples)
