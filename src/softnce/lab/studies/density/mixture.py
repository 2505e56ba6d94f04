"""Mixtures of Gaussians with known class conditionals (supplement, first experiment).

Every mode θ_k has unit length and is a class: points are drawn around 10·θ_k, labels from softmax(xᵀθ).
``alignment`` turns the modes towards the first one: 0 % orthogonal, 80 % an angle of 18°.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixture:
    """D data sets of the same size, double precision.

    The n samples are repetitions of M distinct points, so everything that depends on x alone is stored, and
    later computed, once per point: n/M = 20 times less than once per sample at the paper's sizes.

    Attributes:
        modes: (D, K, d) true parameters θ.
        points: (D, M, d) distinct points.
        index: (D, n) which point each sample is.
        labels: (D, n) drawn from the conditional at the sample's point.
        conditional: (D, M, K) true p(k|x) at each point.
    """

    modes: Tensor
    points: Tensor
    index: Tensor
    labels: Tensor
    conditional: Tensor

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
        num_points, num_samples = self.points.shape[1], self.index.shape[1]
        counts = self.points.new_zeros(len(self), num_points)
        return counts.scatter_add_(1, self.index, counts.new_ones(()).expand_as(self.index)) / num_samples

    @property
    def label_share(self) -> Tensor:
        """(D, M, K) share of the samples at each point with each label; sums to one over M and K."""
        num_points, num_samples, K = self.points.shape[1], self.index.shape[1], self.num_classes
        counts = self.points.new_zeros(len(self), num_points * K)
        cell = self.index * K + self.labels
        counts.scatter_add_(1, cell, counts.new_ones(()).expand_as(cell))
        return counts.view(len(self), num_points, K) / num_samples


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
    alignments: Sequence[float],
    seeds: Sequence[int],
    *,
    num_modes: int = 20,
    dimension: int = 20,
    num_points: int = 1600,
    num_samples: int = 32_000,
    radius: float = 10.0,
) -> Mixture:
    """One data set for each pair of ``zip(alignments, seeds)``.

    A seed fixes the mode each point belongs to, its noise, the resampling and the uniform numbers behind the
    labels; they are common to all alignments, so differences along alignment are not blurred by them.
    """
    if len(alignments) != len(seeds) or not seeds:
        raise ValueError(f"need one seed for each alignment, got {len(seeds)} for {len(alignments)}")
    if num_points < 1 or num_samples < 1:
        raise ValueError(f"need at least one point and one sample, got {num_points} and {num_samples}")
    sets = []
    for alignment, seed in zip(alignments, seeds, strict=True):
        generator = torch.Generator().manual_seed(3 * seed)
        modes = spherical_modes(alignment, num_modes, dimension)
        member = torch.randint(num_modes, (num_points,), generator=generator)
        noise = torch.randn(num_points, dimension, generator=generator, dtype=torch.float64)
        index = torch.randint(num_points, (num_samples,), generator=generator)
        uniform = torch.rand(num_samples, 1, generator=generator, dtype=torch.float64)
        points = radius * modes[member] + noise
        conditional = torch.softmax(points @ modes.T, dim=1)
        below = conditional.cumsum(1)[index] < uniform  # (n, K): the classes whose cumulated mass u passed
        labels = below[:, :-1].sum(1)
        sets.append((modes, points, index, labels, conditional))
    return Mixture(*(torch.stack(parts) for parts in zip(*sets, strict=True)))
