"""How a soft target becomes the α that is contrasted: itself, or something drawn from it."""

import torch
from torch import Tensor

from softnce.targets import SoftTargets


class Draw:
    """A way to draw α from a soft target, and candidates from the noise η to contrast it with.

    ``scale`` is n in exp(n·σ(α)), the likelihood ratio of α under target and noise: scores are multiplied by it.
    """

    scale: float = 1.0

    def alpha(self, targets: SoftTargets, generator: torch.Generator | None = None) -> SoftTargets:
        """One α for each row of ``targets``."""
        raise NotImplementedError

    def noise(
        self,
        rows: int,
        log_noise: Tensor | None,
        num_classes: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> SoftTargets | None:
        """Candidates for a batch of ``rows`` drawn from η, or None: the batch's own draws are the candidates."""
        return None


class Categorical(Draw):
    """One label drawn from each soft target, against the batch's drawn labels: soft distribution InfoNCE."""

    def alpha(self, targets: SoftTargets, generator: torch.Generator | None = None) -> SoftTargets:
        labels = targets.sample(generator)
        return SoftTargets(targets.num_classes, labels[:, None], None, mask=targets.mask)
