"""A problem of many classes whose best possible accuracy is known."""

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce import SoftTargets, functional


class Problem:
    """Classes are Gaussian clouds of one width around random points; samples are seen through a fixed network.

    Every layer of it is a rotation and a leaky rectifier, hence invertible: what can be known of the class from the
    sample can be known from its place in space, and the best guess is the nearest of the points, with a handicap for
    rare classes.

    Args:
        zipf: exponent of the classes' frequencies, 1/rank^zipf; 0: all are equally frequent.
    """

    def __init__(self, classes: int, latent: int, noise: float, seed: int, zipf: float = 0.0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._noise = noise
        self.points = torch.randn(classes, latent, generator=self._generator)
        layers = torch.randn(3, latent, latent, generator=self._generator)
        self._rotations = torch.linalg.qr(layers)[0]
        self._shifts = 0.5 * torch.randn(3, latent, generator=self._generator)
        self._left = torch.empty(0, dtype=torch.long)
        self.marginal: Tensor | None = None
        if zipf:
            frequency = torch.arange(1, classes + 1, dtype=torch.float64) ** -zipf
            self.marginal = (frequency / frequency.sum()).float()

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Samples (n, latent) and labels (n,); equally frequent classes come once before any comes again (n ≤ K)."""
        if self.marginal is not None:
            labels = self._drawn(rows)
            return self.seen(self._places(labels)), labels
        while len(self._left) < rows:  # a rest shorter than a batch is left out
            self._left = torch.randperm(len(self.points), generator=self._generator)
        labels, self._left = self._left[:rows], self._left[rows:]
        return self.seen(self._places(labels)), labels

    def test(self, rows: int) -> tuple[Tensor, Tensor, float]:
        """Samples, labels of classes drawn at random, and the accuracy of the best possible guess on them."""
        labels = self._drawn(rows)
        places = self._places(labels)
        # The nearest point has the largest u·p − |p|²/2; the likeliest of unequal classes that + σ² log of its share.
        bias = -self.points.square().sum(1) / 2
        if self.marginal is not None:
            bias += self._noise**2 * self.marginal.log()
        nearest = functional.linear_topk(places, self.points, 1, bias=bias, chunk_size=16384)[1][:, 0]
        return self.seen(places), labels, (nearest == labels).float().mean().item()

    def _drawn(self, rows: int) -> Tensor:
        if self.marginal is None:
            return torch.randint(len(self.points), (rows,), generator=self._generator)
        return torch.multinomial(self.marginal, rows, replacement=True, generator=self._generator)

    def seen(self, places: Tensor) -> Tensor:
        for rotation, shift in zip(self._rotations, self._shifts, strict=True):
            places = F.leaky_relu(places @ rotation + shift, 0.3)
        return places

    def _places(self, labels: Tensor) -> Tensor:
        noise = torch.randn(len(labels), self.points.shape[1], generator=self._generator)
        return self.points[labels] + self._noise * noise


def mixed(x: Tensor, labels: Tensor, classes: int, alpha: float) -> tuple[Tensor, SoftTargets]:
    """MixUp of each row with the next, a λ for every row."""
    lam = torch.distributions.Beta(alpha, alpha).sample((len(x),))
    plain = SoftTargets.from_labels(labels, classes)
    partner = SoftTargets.from_labels(labels.roll(1), classes)
    return torch.lerp(x.roll(1, 0), x, lam[:, None]), plain.mix(partner, lam)
