"""How a soft target λ becomes the α that is contrasted: λ itself, or something drawn from it.

Noise contrastive estimation asks which of several points was drawn from the target and not from the noise η. The answer
is the likelihood ratio of the two. For every draw here it is a power of the ratio of labels,

    p(α; λ)/p(α; η) ∝ Π_k (λ_k/η_k)^(n α_k) = exp(n σ(α))   where   s_k = log λ_k/η_k,

with n = 1 for a label, n for the mean of n labels, and n = κ for a continuous categorical draw of concentration κ. So
all of them fit the same class scores s, and differ in how much a draw says about its target. This is exact if λ is the
distribution of the label given the sample. If λ is a smoothed label instead, which changes whenever the sample is
labelled again, it is exact for n = 1 only; for larger n, n also acts as a temperature.

A draw works best when it carries about log M nats, enough to identify it among M candidates. Less makes gradients
noisy; more makes the task trivial (``python -m experiments run exact-loss`` measures both). Without a draw the loss is
sound for smoothed labels, which many samples share. It tells sample-specific targets, such as a teacher's outputs over
many classes, apart by any detail; draw from those, or use expected InfoNCE or cross-entropy.

| draw | α | contrasted with |
|---|---|---|
| None | the soft target | the batch's soft targets |
| ``Categorical()`` | a label | the batch's labels |
| ``Averaged(n)`` | the mean of n labels | means of n labels from η |
| ``ContinuousCategorical(κ)`` | a draw from CC(λ^κ) | draws from CC(η^κ) |

>>> from softnce import SoftTargetInfoNCE, draws
>>> loss = SoftTargetInfoNCE(draw=draws.Averaged(16, candidates=256), label_smoothing=0.1)
>>> loss(torch.randn(8, 10), torch.randint(10, (8,)), generator=torch.Generator().manual_seed(0)).shape
torch.Size([])
"""

import math

import torch
from torch import Tensor

from softnce import distributions
from softnce._checks import as_whole, check_generator, values_are_checked
from softnce.noise import Noise
from softnce.targets._sampling import drawn_by, sample_labels
from softnce.targets.soft_targets import DENSE, SoftTargets


class Draw:
    """A way to draw α from a soft target, and candidates from the noise η to contrast it with.

    ``scale`` is n in exp(n·σ(α)), the likelihood ratio of α under target and noise: scores are multiplied by it.
    """

    scale: float = 1.0

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in vars(self).items() if name != "scale")
        return f"{type(self).__name__}({given})"

    def alpha(self, targets: SoftTargets, generator: torch.Generator | None = None) -> SoftTargets:
        """One α for each row of ``targets``."""
        raise NotImplementedError

    def candidates_from(
        self,
        noise: Noise | None,
        rows: int,
        num_classes: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> SoftTargets | None:
        """Candidates for a batch of ``rows`` drawn from η (None: uniform), or None: the batch's own draws are the
        candidates."""
        return None


class Categorical(Draw):
    """One label drawn from each soft target, against the batch's drawn labels: soft distribution InfoNCE."""

    def alpha(self, targets: SoftTargets, generator: torch.Generator | None = None) -> SoftTargets:
        _check_targets(targets)
        labels = targets.sample(generator)
        return SoftTargets(targets.num_classes, labels[:, None], None, mask=targets.mask)


class Averaged(Draw):
    """The mean of n labels drawn from each soft target, against means of n labels drawn from η.

    An efficient replacement for the continuous categorical draw: its likelihood ratio is exp(n·σ(α)) without a
    normaliser. n = 1 is soft distribution InfoNCE with negatives from η itself instead of the batch; as n grows α tends
    to the soft target.

    Args:
        n: labels to average.
        candidates: number of means drawn from η per call; None: as many as the batch has rows.

    α is stored as n pairs (as dense rows where n ≥ K). A call takes O((N + M)·n) and O(N·S) for targets of S pairs, or
    O(N·K) for dense ones.
    """

    def __init__(self, n: int, candidates: int | None = None) -> None:
        self.n = as_whole(n, "n")
        self.candidates = None if candidates is None else as_whole(candidates, "candidates")
        self.scale = float(n)

    def alpha(self, targets: SoftTargets, generator: torch.Generator | None = None) -> SoftTargets:
        _check_targets(targets)
        check_generator(generator)
        shares = targets.pair_weight()
        if targets.has_background:  # the background is one more pair, of a class yet to be drawn
            shares = torch.cat([shares, targets.background_mass(shares.dtype)[:, None]], 1)
        mean = distributions.AveragedCategorical(self.n, probs=shares, validate_args=False)
        slots = mean.sample_labels(generator=generator)
        inside = slots
        if targets.form != DENSE:
            inside = targets.classes.gather(1, slots.clamp(max=targets.classes.shape[1] - 1))
        if targets.has_background:
            background = sample_labels(
                targets.smoothing_dist, slots.numel(), targets.num_classes, targets.device, generator
            )
            inside = torch.where(slots < shares.shape[1] - 1, inside, background.view_as(slots))
        return self._mean(inside, targets.num_classes, shares.dtype, targets.mask)

    def candidates_from(
        self,
        noise: Noise | None,
        rows: int,
        num_classes: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> SoftTargets:
        size = rows if self.candidates is None else self.candidates
        count = size * self.n
        if noise is None:
            labels = torch.randint(num_classes, (count,), device=device, **drawn_by(generator))
        else:
            labels = noise.sample(count, generator)
        return self._mean(labels.view(size, self.n), num_classes, torch.float64)

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

    κ = 1 is the loss that soft target InfoNCE is derived from (``eq:theo-soft-target-infonce``). A draw then says
    little where classes are many, because CC(λ) is nearly flat: at K = 1000 and ε = 0.1 the true class has mean
    0.00101, the others 0.00100. A κ of the order of K makes it informative.

    Args:
        concentration: κ > 0; the likelihood ratio is exp(κ·σ(α)) up to a factor that is the same for every α.
        candidates: number of draws from η per call; None: as many as the batch has rows.

    Targets need mass on every class, so smooth them: where λ is zero, the draw lies on a face of the simplex, where no
    draw from η ever lies, and there is no likelihood ratio. α is dense: O((N + M)·K) memory, O(N·K log K) time besides
    the proposals (see :class:`softnce.distributions.ContinuousCategorical`).
    """

    def __init__(self, concentration: float = 1.0, candidates: int | None = None) -> None:
        number = isinstance(concentration, (int, float)) and not isinstance(concentration, bool)
        if not number or not 0 < concentration < math.inf:
            raise ValueError(f"concentration must be a positive number, got {concentration!r}")
        self.concentration = self.scale = float(concentration)
        self.candidates = None if candidates is None else as_whole(candidates, "candidates")

    def alpha(self, targets: SoftTargets, generator: torch.Generator | None = None) -> SoftTargets:
        _check_targets(targets)
        check_generator(generator)
        probs = targets.unmasked_dense()
        if values_are_checked(probs):
            counted = probs if targets.mask is None else probs[targets.mask]
            if bool((counted <= 0).any()):
                row = int((counted <= 0).any(1).nonzero()[0])
                raise ValueError(
                    f"targets must have mass on every class for a continuous categorical draw, but row {row} of those "
                    "not ignored has a class with weight 0; smooth them, for example with label_smoothing=0.1"
                )
        around = distributions.ContinuousCategorical(probs, concentration=self.concentration, validate_args=False)
        return SoftTargets(targets.num_classes, None, around.sample(generator=generator), mask=targets.mask)

    def candidates_from(
        self,
        noise: Noise | None,
        rows: int,
        num_classes: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> SoftTargets:
        size = rows if self.candidates is None else self.candidates
        logits = torch.zeros(num_classes, device=device) if noise is None else noise.log_probs()
        around = distributions.ContinuousCategorical(
            logits=logits, concentration=self.concentration, validate_args=False
        )
        return SoftTargets(num_classes, None, around.sample((size,), generator=generator))


def _check_targets(targets: object) -> None:
    if not isinstance(targets, SoftTargets):
        raise TypeError(f"targets must be SoftTargets, got {type(targets).__name__}")
