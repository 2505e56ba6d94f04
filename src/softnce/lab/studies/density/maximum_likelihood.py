"""The exact optimum of the label likelihood, by Newton's method in double precision."""

import torch
from torch import Tensor

from softnce.lab.studies.density.mixture import Mixture


def maximum_likelihood(data: Mixture, share: Tensor | None = None, *, max_steps: int = 60) -> Tensor:
    """(D, K, d) weights that maximise Σ share·log q.

    Args:
        data: D data sets.
        share: (D, M, K) share of the samples at each point with each class; the training labels' where None. With
            weight·p^ε it gives the best linear model of a smoothed conditional.
        max_steps: of Newton's method, halved until the likelihood rises.

    Where classes are separable the maximum lies at infinity; then the weights at which a step gains less than 1e-12
    nats are returned. Time per step and data set: O(M·(Kd)² + (Kd)³).
    """
    if share is None:
        share = data.label_share
    return torch.stack([_newton(data.points[i], share[i], data.modes[i], max_steps) for i in range(len(data))])


def hessian(points: Tensor, weight: Tensor, q: Tensor) -> Tensor:
    """(Kd, Kd) second derivative of the mean NLL: Σ_m weight_m (diag q_m − q_m q_mᵀ) ⊗ x_m x_mᵀ.

    Singular: it does not see the d directions that shift all classes alike.
    """
    M, d = points.shape
    K = q.shape[1]
    outer = torch.einsum("mk,mj->mkj", q * weight.sqrt()[:, None], points).view(M, K * d)
    result = -(outer.T @ outer)
    blocks = torch.einsum("mk,mi,mj->kij", q * weight[:, None], points, points)
    for k in range(K):
        result[k * d : (k + 1) * d, k * d : (k + 1) * d] += blocks[k]
    return result


def _newton(points: Tensor, share: Tensor, start: Tensor, max_steps: int) -> Tensor:
    K, d = start.shape
    weight = share.sum(1)
    # Fixes the shift: any multiple of this projection leaves the likelihood as it is.
    shift = torch.kron(torch.full((K, K), 1 / K, dtype=torch.float64), torch.eye(d, dtype=torch.float64))
    ridge = 1e-12 * torch.eye(K * d, dtype=torch.float64)

    def objective(weights: Tensor) -> Tensor:
        return -(share * (points @ weights.T).log_softmax(1)).sum()

    weights = start
    value = objective(weights)
    for _ in range(max_steps):
        q = (points @ weights.T).softmax(1)
        gradient = (q * weight[:, None] - share).T @ points  # (K, d)
        curvature = hessian(points, weight, q) + shift + ridge
        step = torch.cholesky_solve(gradient.reshape(-1, 1), torch.linalg.cholesky(curvature)).view(K, d)
        gain = (gradient * step).sum() / 2
        if gain < 1e-12:
            break
        scale = 1.0
        while (trial := objective(weights - scale * step)) > value - 1e-4 * scale * gain and scale > 1e-4:
            scale /= 2
        weights, value = weights - scale * step, trial
    return weights
