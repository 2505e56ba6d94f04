"""How a soft target λ becomes the α that is contrasted: λ itself (draw=None), or something drawn from it.

Noise contrastive estimation asks which of several points was drawn from the target and not from the noise η. For every
draw here the likelihood ratio of the two is a power of that of labels,

    p(α; λ)/p(α; η) ∝ Π_k (λ_k/η_k)^(n α_k) = exp(n σ(α))   where   s_k = log λ_k/η_k,

with n = 1 for a label, n for the mean of n labels, and n = κ for a continuous categorical draw of concentration κ. So
all fit the same class scores s. This is exact if λ is the distribution of the label given the sample. If λ is a
smoothed label, which changes whenever the sample is labelled again, it is exact for n = 1 only; for larger n, n also
acts as a temperature. A draw works best when it carries about log M nats, enough to identify it among M candidates.

>>> from softnce import SoftTargetInfoNCE, draws
>>> loss = SoftTargetInfoNCE(draw=draws.Averaged(16, candidates=256), label_smoothing=0.1)
>>> loss(torch.randn(8, 10), torch.randint(10, (8,)), generator=torch.Generator().manual_seed(0)).shape
torch.Size([])
"""

from typing import Any

import torch
from torch import Generator, Tensor

from softnce import distributions
from softnce._inputs import as_positive, as_whole, check_generator, values_are_checked
from softnce.noise import Noise, draw_labels
from softnce.targets._algebra import sample_labels
from softnce.targets.soft_targets import SoftTargets


class Draw:
    """A way to draw α from a soft target, and candidates from the noise η to contrast it with.

    ``scale`` is n in exp(n·σ(α)), the likelihood ratio of α under target and noise: scores are multiplied by it.
    """

    scale: float = 1.0

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in vars(self).items() if name != "scale")
        return f"{type(self).__name__}({given})"

    def alpha(self, targets: SoftTargets, generator: Generator | None = None) -> SoftTargets:
        """One α for each row of ``targets``."""
        raise NotImplementedError

    def candidates_from(self, noise: Noise | None, rows: int, like: SoftTargets, *_: Any) -> SoftTargets | None:
        """Candidates for ``rows`` targets such as ``like``, drawn from η (None: uniform) by the generator that follows;
        None: the batch's own draws are the candidates."""
        return None


class Categorical(Draw):
    """One label drawn from each soft target, against the batch's drawn labels: soft distribution InfoNCE."""

    def alpha(self, targets: SoftTargets, generator: Generator | None = None) -> SoftTargets:
        return SoftTargets(targets.num_classes, targets.sample(generator)[:, None], None, mask=targets.mask)


class Averaged(Draw):
    """The mean of n labels drawn from each soft target, against means of n labels drawn from η.

    n = 1 is soft distribution InfoNCE with negatives from η itself, ``candidates`` of them (None: as many as the batch
    has rows); as n grows α tends to the soft target. α is stored as n pairs, as dense rows where n ≥ K. A call takes
    O((N + M)·n) and O(N·S) for targets of S pairs.
    """

    def __init__(self, n: int, candidates: int | None = None) -> None:
        self.n = as_whole(n, "n")
        self.candidates = None if candidates is None else as_whole(candidates, "candidates")
        self.scale = float(n)

    def alpha(self, targets: SoftTargets, generator: Generator | None = None) -> SoftTargets:
        labels = sample_labels(targets, self.n, generator)
        return self._mean(labels, targets.num_classes, targets.pair_weight().dtype, targets.mask)

    def candidates_from(
        self, noise: Noise | None, rows: int, like: SoftTargets, generator: Generator | None = None
    ) -> SoftTargets:
        size = self.candidates or rows
        labels = draw_labels(noise, size * self.n, like, generator)
        return self._mean(labels.view(size, self.n), like.num_classes, torch.float64)

    def _mean(self, labels: Tensor, num_classes: int, dtype: torch.dtype, mask: Tensor | None = None) -> SoftTargets:
        """Labels (N, n) as their mean."""
        if self.n == 1:
            return SoftTargets(num_classes, labels, None, mask=mask)
        ones = torch.ones(labels.shape, dtype=dtype, device=labels.device)
        if self.n < num_classes:
            return SoftTargets(num_classes, labels, ones / self.n, mask=mask)
        # Counted, then divided: n times 1/n in float32 would miss 1 by a percent at n = 10⁶.
        counts = ones.new_zeros(len(labels), num_classes).scatter_add_(1, labels, ones)
        return SoftTargets(num_classes, None, counts / self.n, mask=mask)


class ContinuousCategorical(Draw):
    """A draw from the continuous categorical CC(λ^κ) of each soft target λ, against draws from CC(η^κ).

    κ = 1, the ``concentration``, is the loss that soft target InfoNCE is derived from. A draw then says little where
    classes are many, because CC(λ) is nearly flat; a κ of the order of K makes it informative. Targets need mass on
    every class, so smooth them: else there is no likelihood ratio. α is dense: O((N + M)·K) memory for M
    ``candidates``, O(N·K log K) time besides the proposals (:class:`softnce.distributions.ContinuousCategorical`).
    """

    def __init__(self, concentration: float = 1.0, candidates: int | None = None) -> None:
        self.concentration = self.scale = as_positive(concentration, "concentration")
        self.candidates = None if candidates is None else as_whole(candidates, "candidates")

    def alpha(self, targets: SoftTargets, generator: Generator | None = None) -> SoftTargets:
        check_generator(generator)
        probs = targets.unmasked_dense()
        if values_are_checked(probs):
            empty = (probs <= 0).any(1) if targets.mask is None else (probs[targets.mask] <= 0).any(1)
            if bool(empty.any()):
                raise ValueError(
                    "targets must have mass on every class for a continuous categorical draw, but row "
                    f"{int(empty.nonzero()[0])} of those not ignored has a class with weight 0; smooth them, for "
                    "example with label_smoothing=0.1"
                )
        drawn = self._around(probs=probs).sample(generator=generator)
        return SoftTargets(targets.num_classes, None, drawn, mask=targets.mask)

    def candidates_from(
        self, noise: Noise | None, rows: int, like: SoftTargets, generator: Generator | None = None
    ) -> SoftTargets:
        logits = torch.zeros(like.num_classes, device=like.device) if noise is None else noise.log_probs()
        drawn = self._around(logits=logits).sample((self.candidates or rows,), generator=generator)
        return SoftTargets(like.num_classes, None, drawn)

    def _around(self, **point: Tensor) -> distributions.ContinuousCategorical:
        return distributions.ContinuousCategorical(**point, concentration=self.concentration, validate_args=False)
