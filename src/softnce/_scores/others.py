"""Candidates of the expected contrast; only their class counts matter."""

from dataclasses import dataclass

import torch
from torch import Tensor

from softnce._rows import Place, as_positions
from softnce.targets._sampling import sample_labels
from softnce.targets.soft_targets import SoftTargets


@dataclass(frozen=True)
class Others:
    """Candidates in groups, and what each row has among them.

    Attributes:
        groups: soft targets, in the mean; or labels, drawn.
        place: (N,) the position of each row's own target among all candidates; None: it is not among them.
        held: what each row has among them, N rows: its target, or the label drawn from it; None: the row's own
            target is not among them.
        noise_mass: (K,) or a number per class, further candidates in expectation; 0 for none.
        num_classes: K.
        device: of the scores.
    """

    groups: list[SoftTargets]
    place: Place | None
    held: SoftTargets | None
    noise_mass: Tensor | float
    num_classes: int
    device: torch.device

    def counts(self) -> Tensor:
        """The class counts of all candidates, (K,), in float64. O(M·S + K)."""
        total: Tensor | float = self.noise_mass
        for group in self.groups:
            total = group.class_mass(torch.float64) + total
        if isinstance(total, Tensor):
            return total
        return torch.full((self.num_classes,), total, dtype=torch.float64, device=self.device)


def in_the_mean(
    groups: list[SoftTargets],
    place: Place | None,
    targets: SoftTargets,
    noise_count: float,
    log_noise: Tensor | None,
) -> Others:
    """Every candidate counts with all its classes, and ``noise_count`` draws from η with η."""
    mass: Tensor | float = 0.0
    if noise_count:
        mass = noise_count / targets.num_classes if log_noise is None else noise_count * log_noise.double().exp()
    return Others(
        groups, place, None if place is None else targets, mass, targets.num_classes, targets.device
    )  # fmt: skip


def drawn(
    groups: list[SoftTargets],
    place: Place | None,
    targets: SoftTargets,
    noise_count: float,
    log_noise: Tensor | None,
    generator: torch.Generator | None,
) -> Others:
    """One label drawn from every candidate, and ``noise_count`` labels from η."""
    classes, device = targets.num_classes, targets.device
    labels = [SoftTargets(classes, group.sample(generator)[:, None], None, mask=group.mask) for group in groups]
    held = None
    if place is not None:
        place = as_positions(place, device)
        held = SoftTargets(classes, torch.cat([part.labels for part in labels])[place][:, None], None)
    if noise_count:
        probs = None if log_noise is None else log_noise.exp()
        more = sample_labels(probs, round(noise_count), classes, device, generator)
        labels.append(SoftTargets(classes, more[:, None], None))
    return Others(labels, place, held, 0.0, classes, device)
