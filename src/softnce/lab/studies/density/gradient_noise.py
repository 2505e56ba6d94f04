"""Gradient noise at the optimum, and the error it leaves behind.

Near the optimum a loss is a quadratic with curvature H, and a stochastic gradient is H·(w − w*) + ξ, ξ the noise
of the batch. Along an eigenvector of H with value h and noise variance c, a step of gradient descent is
w ← a·w − lr·ξ with a = 1 − lr·h. An epoch's m batches are drawn without replacement, so their noises sum to
(nearly) zero: any two have covariance −c/(m−1). At the end of an epoch the variance of w is then

    v = lr²·c·[S₂ − (S₁² − S₂)/(m−1)] / (1 − a^{2m}),        S_p = Σ_{t<m} a^{p·t},

and the excess KL is ½ Σ h·v over the eigenvectors. For m → ∞ and small lr it is (lr/4)·Σc: the learning rate
times the trace of the gradient's covariance, whatever H is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softnce.lab.studies.density.fits import Gradient, Variant
from softnce.lab.studies.density.maximum_likelihood import hessian
from softnce.lab.studies.density.mixture import Mixture


@dataclass(frozen=True)
class GradientNoise:
    """Attributes:
    curvature: (D, Kd) eigenvalues of the Hessian of the mean NLL at the point.
    variance: (D, L, Kd) variance of each variant's batch gradient along those eigenvectors.
    along_mean: (D, L) part of the total variance along the mean of x: Σ_k Var(g_k·x̄/‖x̄‖).
    """

    curvature: Tensor
    variance: Tensor
    along_mean: Tensor

    @property
    def total(self) -> Tensor:
        """(D, L) trace of the gradient's covariance."""
        return self.variance.sum(2)

    def excess_kl(self, lr: float, batches_per_epoch: int) -> Tensor:
        """(D, L) KL that gradient descent adds to the optimum's; infinite where it is unstable (lr·h ≥ 2)."""
        a = 1 - lr * self.curvature
        t = torch.arange(batches_per_epoch)
        S1, S2 = (a[..., None] ** t).sum(-1), (a[..., None] ** (2 * t)).sum(-1)
        repeated = (S1.square() - S2) / max(batches_per_epoch - 1, 1)
        # The flat directions, h = 0, cost nothing however far the weights drift.
        decay = torch.where(self.curvature > 1e-12, 1 - a ** (2 * batches_per_epoch), 1)
        gain = self.curvature * lr**2 * (S2 - repeated) / decay
        gain = torch.where(a.abs() < 1, gain, torch.where(self.curvature > 1e-12, torch.inf, 0))
        return (self.variance * gain[:, None]).sum(2) / 2


def measure(
    data: Mixture, weights: Tensor, variants: Sequence[Variant], *, batch_size: int, epochs: int, seed: int
) -> GradientNoise:
    """Variance of the batch gradient at ``weights`` (D, K, d), over ``epochs`` random orders of each data set.

    Batches are without replacement, as in a fit. Time O(epochs·n·L·K·d) per data set.
    """
    (D, n), (K, d), L = data.index.shape, weights.shape[1:], len(variants)
    q = torch.einsum("dmj,dkj->dmk", data.points, weights).softmax(2)
    systems = [torch.linalg.eigh(hessian(data.points[i], data.weight[i], q[i])) for i in range(D)]
    curvature = torch.stack([system.eigenvalues for system in systems]).clamp_min(0)
    basis = torch.stack([system.eigenvectors for system in systems])  # (D, Kd, Kd), columns

    gradient = Gradient(data, variants, torch.float64)
    generator = torch.Generator().manual_seed(seed)
    at = weights[:, None].expand(D, L, K, d).contiguous()
    mean = torch.nn.functional.normalize(torch.einsum("dm,dmj->dj", data.weight, data.points), dim=1)
    along, along_mean = [], []
    for _ in range(epochs):
        order = torch.randperm(n, generator=generator).expand(D, n)
        chance, drawn = torch.rand(D, n, generator=generator), torch.randint(K, (D, n), generator=generator)
        for start in range(0, n - batch_size + 1, batch_size):
            batch = slice(start, start + batch_size)
            redrawn = (chance[:, batch], drawn[:, batch]) if gradient.redraws else None
            g = gradient(at, order[:, batch], redrawn)
            along.append(torch.bmm(g.view(D, L, K * d), basis))
            along_mean.append(torch.einsum("dlkj,dj->dlk", g, mean))
    return GradientNoise(curvature, torch.stack(along).var(0), torch.stack(along_mean).var(0).sum(2))
