"""The noise η: how often each class occurs among the candidates. Every function returns probabilities (K,)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from softnce._checks import as_number, as_tensor, as_whole, check_distribution, check_labels, values_are_checked
from softnce._precision import KeepsPrecision
from softnce.targets import SoftTargets


def uniform(num_classes: int) -> Tensor:
    """η_k = 1/K."""
    num_classes = as_whole(num_classes, "num_classes")
    return torch.full((num_classes,), 1 / num_classes)


def from_counts(counts: Tensor, floor: float | None = None) -> Tensor:
    """η from class counts (K,).

    A class that never occurs has no finite log η. It is an error, unless ``floor`` is given: every class then has at
    least that many counts (1 is a common choice).
    """
    counts = as_tensor(counts, "counts")
    if counts.dim() != 1 or len(counts) == 0 or counts.dtype == torch.bool or counts.is_complex():
        raise ValueError(f"counts must be numbers of shape (K,), got {counts.dtype} of shape {tuple(counts.shape)}")
    counts = counts.double()
    if not bool(counts.isfinite().all()) or bool((counts < 0).any()):
        raise ValueError("counts must be finite and not negative")
    if floor is not None:
        floor = as_number(floor, "floor", "a positive number or None")
        if not 0 < floor < torch.inf:
            raise ValueError(f"floor must be positive and finite, got {floor}")
        counts = counts.clamp(min=floor)
    empty = (counts == 0).nonzero()[:, 0].tolist()
    if empty:
        named = ", ".join(map(str, empty[:5])) + (", …" if len(empty) > 5 else "")
        raise ValueError(
            f"counts: {len(empty)} of {len(counts)} classes have no count ({named}), so −log η is infinite; "
            "pass floor=1 to give every class at least one count"
        )
    return (counts / counts.sum()).to(torch.get_default_dtype())


def from_labels(labels: Tensor, num_classes: int, floor: float | None = None, ignore_index: int = -100) -> Tensor:
    """η from the training labels, of any shape. See :func:`from_counts` for ``floor``."""
    labels, num_classes = as_tensor(labels, "labels").flatten(), as_whole(num_classes, "num_classes")
    ignore_index = as_whole(ignore_index, "ignore_index", None)
    check_labels(labels, num_classes, "labels", ignore_index)
    return from_counts(torch.bincount(labels[labels != ignore_index].long(), minlength=num_classes), floor)


def from_loader(
    loader: Iterable[Any], num_classes: int, floor: float | None = None, ignore_index: int = -100
) -> Tensor:
    """η from one pass over a loader whose batches end in their targets: labels, (N, K) probabilities or SoftTargets.

    If you have the labels, :func:`from_labels` is faster.
    """
    num_classes, ignore_index = as_whole(num_classes, "num_classes"), as_whole(ignore_index, "ignore_index", None)
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise TypeError(f"loader must give batches, got {type(loader).__name__}")
    counts, seen = torch.zeros(num_classes, dtype=torch.float64), False
    for batch in loader:
        seen = True
        targets = batch[-1] if isinstance(batch, (tuple, list)) else batch
        try:
            if isinstance(targets, Tensor) and targets.is_floating_point():
                targets = SoftTargets.from_dense(targets)
            elif isinstance(targets, Tensor):
                targets = SoftTargets.from_labels(targets.flatten(), num_classes, ignore_index=ignore_index)
        except (ValueError, TypeError) as error:
            raise type(error)(f"a batch of loader must end in targets of {num_classes} classes: {error}") from None
        if not isinstance(targets, SoftTargets) or targets.num_classes != num_classes:
            raise ValueError(f"a batch of loader must end in targets of {num_classes} classes, got {targets!r}")
        counts += targets.class_mass().double().cpu()
    if not seen:
        raise ValueError("loader gave no batch")
    return from_counts(counts, floor)


class RunningNoise(KeepsPrecision):
    """η estimated during training, for streams whose class marginal is unknown or drifts.

    Keeps a decaying sum of the targets seen in training, plus ``prior`` counts spread uniformly, which keep every class
    above zero. Pass it to a loss as ``noise_probs``. The loss passes on its targets as they are contrasted, smoothed by
    ``label_smoothing`` and drawn, so the estimate is that of smoothed targets.

    Args:
        num_classes: K.
        decay: factor on the weight of earlier batches at each new batch; 1 never forgets.
        prior: uniform counts that never decay.

    >>> running = RunningNoise(4, decay=1.0, prior=4.0)
    >>> running.update(SoftTargets.from_labels(torch.tensor([0, 0, 0, 1]), 4))
    >>> running.probs()
    tensor([0.5000, 0.2500, 0.1250, 0.1250])
    """

    mass: Tensor

    def __init__(self, num_classes: int, decay: float = 0.999, prior: float = 1.0) -> None:
        super().__init__()
        num_classes, decay = as_whole(num_classes, "num_classes"), as_number(decay, "decay", "a number in (0, 1]")
        prior = as_number(prior, "prior", "a positive number")
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {decay}")
        if not 0 < prior < torch.inf:
            raise ValueError(f"prior must be positive and finite, got {prior}")
        self.decay = decay
        self.prior = prior
        self.register_buffer("mass", torch.zeros(num_classes))

    @torch.no_grad()
    def update(self, targets: SoftTargets) -> None:
        """Take in a batch of targets. O(N·S + K)."""
        if not isinstance(targets, SoftTargets) or targets.num_classes != len(self.mass):
            got = f"{targets.num_classes} classes" if isinstance(targets, SoftTargets) else type(targets).__name__
            raise ValueError(f"targets must be SoftTargets of {len(self.mass)} classes, got {got}")
        # Out of place: the last loss may still need the old values in its backward.
        self.mass = self.mass * self.decay + targets.class_mass().to(self.mass.dtype)

    def probs(self) -> Tensor:
        """The current estimate of η, (K,)."""
        counts = self.mass + self.prior / len(self.mass)
        return counts / counts.sum()


def log_noise(noise_probs: Tensor | None, num_classes: int | None = None) -> Tensor | None:
    """log η of checked probabilities, None for uniform."""
    if noise_probs is None:
        return None
    if not isinstance(noise_probs, Tensor):
        raise TypeError(f"noise_probs must be a tensor (K,) or None, got {type(noise_probs).__name__}")
    try:
        check_distribution(noise_probs, "noise_probs", num_classes)
    except ValueError as error:
        raise ValueError(f"{error}; if these are class weights, write class_weight=...") from None
    if values_are_checked(noise_probs) and bool((noise_probs == 0).any()):
        first = int((noise_probs == 0).nonzero()[0])
        raise ValueError(
            f"noise_probs is zero for class {first}, so −log η is infinite; floor it, for example with "
            "noise.from_counts(counts, floor=1)"
        )
    return noise_probs.detach().to(torch.promote_types(noise_probs.dtype, torch.float32)).log()
