"""How a soft target becomes the α that is contrasted: itself, or something drawn from it."""

import torch

from softnce.targets import SoftTargets


class Categorical:
    """One label drawn from each soft target: soft distribution InfoNCE."""

    def __call__(self, targets: SoftTargets, generator: torch.Generator | None = None) -> SoftTargets:
        labels = targets.sample(generator)
        return SoftTargets(targets.num_classes, labels[:, None], None, mask=targets.mask)
