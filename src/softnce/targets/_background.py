"""The background of soft targets: a mass ε, one number or one per row, spread over the classes as ξ."""

from collections.abc import Sequence

import torch
from torch import Tensor

from softnce._checks import values_are_readable


def is_zero(mass: float | Tensor) -> bool:
    return isinstance(mass, float) and mass == 0.0


def same_number(a: float | Tensor, b: float | Tensor) -> bool:
    """Whether both are one number for all rows, and the same."""
    return isinstance(a, float) and isinstance(b, float) and a == b


def same_dist(a: Tensor | None, b: Tensor | None, num_classes: int, unread: bool) -> bool:
    """Whether two ξ are equal; ``unread`` for two tensors whose values cannot be read now.

    If that only decides the cost of a loss, ``unread`` is False, and an accelerator is not waited for.
    """
    if a is b:
        return True
    given = b if a is None else a
    assert given is not None
    if not values_are_readable(a, b) or not (unread or given.device.type == "cpu"):
        return unread and a is not None and b is not None
    if a is None or b is None:
        return bool((given == 1 / num_classes).all())
    return torch.equal(a, b)


def common_dist(parts: Sequence[tuple[float | Tensor, Tensor | None]], num_classes: int) -> Tensor | None:
    """The one distribution that all parts with a background spread it as."""
    dists = [dist for mass, dist in parts if not is_zero(mass)]
    if not all(same_dist(dists[0], dist, num_classes, unread=True) for dist in dists[1:]):
        raise ValueError(
            "the targets have backgrounds of different smoothing_dist; make them dense first: t.to_dense()"
        )
    return dists[0] if dists else None
