"""Mixtures of Gaussians with known class conditionals, and all that is exact about them.

Every mode θ_k has unit length and is a class: points are drawn around 10·θ_k, labels from softmax(xᵀθ). ``alignment``
turns the modes towards the first one: 0 % orthogonal, 80 % an angle of 18°. Then: distances from the truth, and the
exact maximum-likelihood fit. Gradient noise is in :mod:`experiments.density.fits`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixture:
    """D data sets of the same size, double precision.

    The n samples are repetitions of M distinct points: what depends on x alone is stored and computed once per point.
    """

    modes: Tensor  # (D, K, d) true parameters θ
    points: Tensor  # (D, M, d) distinct points
    index: Tensor  # (D, n) the point of each sample
    labels: Tensor  # (D, n) drawn from the conditional at the sample's point
    conditional: Tensor  # (D, M, K) true p(k|x) at each point

    def __len__(self) -> int:
        return self.modes.shape[0]

    def __getitem__(self, keep: Tensor | list[int]) -> "Mixture":
        """The data sets named by ``keep``, an index or mask over D."""
        return Mixture(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})

    @property
    def num_classes(self) -> int:
        return self.modes.shape[1]

    @property
    def weight(self) -> Tensor:
        """(D, M) share of the samples at each point."""
        return self.label_share.sum(2)

    @property
    def label_share(self) -> Tensor:
        """(D, M, K) share of the samples at each point with each label; sums to one over M and K."""
        cell = self.index * self.num_classes + self.labels
        one = self.points.new_ones(()).expand_as(cell)
        counts = torch.zeros_like(self.conditional).flatten(1).scatter_add_(1, cell, one)
        return counts.view_as(self.conditional) / cell.shape[1]


def spherical_modes(alignment: float, num_modes: int, dimension: int) -> Tensor:
    """(K, d) unit vectors in nested spherical coordinates with one angle φ = (π/2)(1 − alignment/100):
    θ_i = (cos φ, sin φ cos φ, …, sin^{i−2}φ cos φ, sin^{i−1}φ, 0, …), every later mode at angle φ to the first.
    """
    if not 0 <= alignment < 100:
        raise ValueError(f"alignment: got {alignment:g} %, need a value in [0, 100)")
    if not 2 <= num_modes <= dimension:
        raise ValueError(f"num_modes: got {num_modes}, need 2 to {dimension}, the dimension")
    angle = math.pi / 2 * (1 - alignment / 100)
    power = math.sin(angle) ** torch.arange(num_modes, dtype=torch.float64)
    modes = torch.zeros(num_modes, dimension, dtype=torch.float64)
    for mode in range(num_modes):
        modes[mode, :mode] = power[:mode] * math.cos(angle)
        modes[mode, mode] = power[mode]
    return modes


def sample_mixtures(
    alignments: Sequence[float], seeds: Sequence[int], *,
    num_modes: int = 20, dimension: int = 20, num_points: int = 1600, num_samples: int = 32_000,
) -> Mixture:  # fmt: skip
    """One data set for each pair of ``zip(alignments, seeds)``.

    A seed fixes the mode each point belongs to, its noise, the resampling and the uniform numbers behind the
    labels; they are common to all alignments, so differences along alignment are not blurred by them.
    """
    sets = []
    for alignment, seed in zip(alignments, seeds, strict=True):
        generator = torch.Generator().manual_seed(3 * seed)
        modes = spherical_modes(alignment, num_modes, dimension)
        member = torch.randint(num_modes, (num_points,), generator=generator)
        noise = torch.randn(num_points, dimension, generator=generator, dtype=torch.float64)
        index = torch.randint(num_points, (num_samples,), generator=generator)
        uniform = torch.rand(num_samples, 1, generator=generator, dtype=torch.float64)
        points = 10 * modes[member] + noise
        conditional = torch.softmax(points @ modes.T, dim=1)
        below = conditional.cumsum(1)[index] < uniform  # (n, K): the classes whose cumulated mass u passed
        labels = below[:, :-1].sum(1)
        sets.append((modes, points, index, labels, conditional))
    return Mixture(*(torch.stack(parts) for parts in zip(*sets, strict=True)))


def kl_divergence(data: Mixture, weights: Tensor, smoothing: float = 0.0) -> Tensor:
    """(D, L) KL(p‖q) in nats, averaged over the samples' x, for ``weights`` (D, L, K, d).

    With smoothing ε, p is (1−ε)·p + ε/K, what soft distribution InfoNCE estimates.
    """
    log_q = torch.einsum("dmj,dlkj->dlmk", data.points, weights.double()).log_softmax(3)
    p = ((1 - smoothing) * data.conditional + smoothing / data.num_classes)[:, None]
    kl = torch.special.xlogy(p, p).sum(3) - (p * log_q).sum(3)
    return torch.einsum("dm,dlm->dl", data.weight, kl)


def best_temperature(data: Mixture, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(D, L) temperature that, dividing the scores, makes the KL smallest, and that KL.

    It separates what a fit gets wrong in scale from what it gets wrong in direction. KL is convex in 1/τ: bisection of
    its slope, E_q[s] − E_p[s], over log 1/τ in [−7, 7].
    """
    low, high = (torch.full(weights.shape[:2], end, dtype=torch.float64) for end in (-7.0, 7.0))
    scores = torch.einsum("dmj,dlkj->dlmk", data.points, weights.double())
    of_truth = (data.conditional[:, None] * scores).sum(3)
    for _ in range(40):
        middle = (low + high) / 2
        q = (middle.exp()[..., None, None] * scores).softmax(3)
        falling = torch.einsum("dm,dlm->dl", data.weight, (q * scores).sum(3) - of_truth) < 0
        low, high = torch.where(falling, middle, low), torch.where(falling, high, middle)
    scale = ((low + high) / 2).exp()
    return 1 / scale, kl_divergence(data, scale[..., None, None] * weights.double())


def agreement(data: Mixture, weights: Tensor) -> Tensor:
    """(D, L) share of the samples whose most probable class the fit gets right."""
    chosen = torch.einsum("dmj,dlkj->dlmk", data.points, weights.double()).argmax(3)
    right = (chosen == data.conditional.argmax(2)[:, None]).double()
    return torch.einsum("dm,dlm->dl", data.weight, right)


def statistical_limit(num_classes: int, dimension: int, num_samples: int) -> float:
    """Expected KL of the maximum-likelihood fit to sampled labels, (K−1)d/(2n): half a nat-sample for each free
    parameter. Asymptotic: it needs enough samples to determine every parameter, which nearly separable data lack."""
    return (num_classes - 1) * dimension / (2 * num_samples)


def maximum_likelihood(data: Mixture, share: Tensor | None = None, *, max_steps: int = 60) -> Tensor:
    """(D, K, d) weights that maximise Σ share·log q.

    Args:
        data: D data sets.
        share: (D, M, K) share of the samples at each point with each class; the training labels' if None.
        max_steps: of Newton's method, halved until the likelihood rises; ends if a step gains less than 1e-12 nats.
    """
    share = data.label_share if share is None else share
    return torch.stack([_newton(*one, max_steps) for one in zip(data.points, share, data.modes, strict=True)])


def hessian(points: Tensor, weight: Tensor, q: Tensor) -> Tensor:
    """(Kd, Kd) second derivative of the mean NLL: Σ_m weight_m (diag q_m − q_m q_mᵀ) ⊗ x_m x_mᵀ.

    Singular: it does not see the d directions that shift all classes alike.
    """
    outer = torch.einsum("mk,mj->mkj", q * weight.sqrt()[:, None], points).flatten(1)
    return torch.block_diag(*torch.einsum("mk,mi,mj->kij", q * weight[:, None], points, points)) - outer.T @ outer


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
