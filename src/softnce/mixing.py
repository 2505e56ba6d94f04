"""MixUp and CutMix of a batch: inputs and targets in, mixed inputs and :class:`~softnce.SoftTargets` out.

A row mixed of two labels is two (class, weight) pairs, never a row of K probabilities. Each row is mixed with a row of
the batch chosen at random; mixed with an ignored one it is ignored. Random numbers are drawn on the device of
``generator``, by default on the CPU, so that the host need not wait for a GPU.

References: Zhang et al. 2018 (MixUp); Yun et al. 2019 (CutMix).
"""

from typing import Any

import torch
from torch import Tensor

from softnce import _inputs
from softnce.targets._algebra import as_lam
from softnce.targets._sampling import sample_beta
from softnce.targets.soft_targets import SoftTargets, as_soft_targets

__all__ = ["cutmix", "draw_lam", "mixup"]


def mixup(
    inputs: Tensor,
    targets: Tensor | SoftTargets,
    *,
    num_classes: int | None = None,
    alpha: float = 1.0,
    lam: float | Tensor | None = None,
    per_row: bool = False,
    ignore_index: int = -100,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, SoftTargets]:
    """λ·x + (1 − λ)·x' of inputs and of targets.

    Args:
        inputs: (N, ...), floating point.
        targets: labels (N,), for which ``num_classes`` is needed; probabilities (N, K); or SoftTargets.
        alpha: λ ~ Beta(alpha, alpha), one for the batch, or one per row if ``per_row``.
        lam: λ itself, a number or (N,), instead of drawing it.

    Returns the mixed inputs, of the shape and dtype of ``inputs``, and the mixed targets.

    >>> inputs, targets = mixup(torch.eye(2), torch.tensor([0, 1]), num_classes=2, lam=1.0)
    >>> targets.dense()
    tensor([[1., 0.],
            [0., 1.]])
    """
    soft = _checked(inputs, targets, num_classes, ignore_index, generator)
    lam, partner = draw_lam(alpha, lam, per_row, len(inputs), generator), _partners(inputs, generator)
    column = lam.to(inputs.device, inputs.dtype).view(-1, *[1] * (inputs.dim() - 1))
    return torch.lerp(inputs[partner], inputs, column), _mixed(soft, partner, lam, inputs.dtype)


def cutmix(
    inputs: Tensor,
    targets: Tensor | SoftTargets,
    *,
    num_classes: int | None = None,
    alpha: float = 1.0,
    lam: float | Tensor | None = None,
    per_row: bool = False,
    ignore_index: int = -100,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, SoftTargets]:
    """A box of another image pasted in; targets are mixed in proportion to the areas.

    The box has the image's proportions, an area of 1 − λ before it is cut off at the border, and a centre uniform over
    the image. The targets' λ is the share of pixels kept.

    Images are (N, ..., H, W); ``per_row`` draws one λ and one box per row. The rest is as in :func:`mixup`.
    """
    soft = _checked(inputs, targets, num_classes, ignore_index, generator)
    if inputs.dim() < 3:
        raise ValueError(f"inputs must be images (N, ..., H, W), got shape {tuple(inputs.shape)}")
    lam, partner = draw_lam(alpha, lam, per_row, len(inputs), generator), _partners(inputs, generator)
    device = lam.device
    inside, pasted = torch.ones((), dtype=torch.bool, device=device), torch.ones_like(lam)
    boxes = len(inputs) if lam.dim() else 1
    for size, place in ((inputs.shape[-2], (-1, 1)), (inputs.shape[-1], (1, -1))):
        half = ((1 - lam).sqrt() * size / 2).floor()
        centre = torch.randint(size, (boxes,), device=_device(generator), generator=generator).to(device)
        low, high = (centre - half).clamp(min=0), (centre + half).clamp(max=size)
        pasted = pasted * (high - low) / size
        pixel = torch.arange(size, device=device)
        side = (pixel >= low[:, None]) & (pixel < high[:, None])  # (boxes, size)
        inside = inside & side.view(boxes, *[1] * (inputs.dim() - 3), *place)
    kept = (1 - pasted) if lam.dim() else (1 - pasted)[0]
    return torch.where(inside.to(inputs.device), inputs[partner], inputs), _mixed(soft, partner, kept, inputs.dtype)


def draw_lam(
    alpha: float, lam: float | Tensor | None, per_row: bool, rows: int, generator: torch.Generator | None = None
) -> Tensor:
    """λ ~ Beta(alpha, alpha) of a batch, (), or of each row, (N,), in float64; ``lam`` itself if it is given."""
    per_row, alpha = _inputs.check_flag(per_row, "per_row"), _inputs.as_positive(alpha, "alpha")
    if lam is None:
        drawn = sample_beta(alpha, rows if per_row else 1, _device(generator), generator)[:, 0]
        return drawn if per_row else drawn[0]
    lam = as_lam(lam, rows)
    return lam.double() if isinstance(lam, Tensor) else torch.tensor(lam, dtype=torch.float64, device="cpu")


def _checked(
    inputs: Tensor, targets: Any, num_classes: int | None, ignore_index: int, generator: torch.Generator | None
) -> SoftTargets:
    _inputs.check_floating(inputs, "inputs", "(N, d, ...)")
    _inputs.check_generator(generator)
    targets = targets if isinstance(targets, SoftTargets) else _inputs.as_tensor(targets, "targets")
    if num_classes is None and targets.dim() != 2:
        raise ValueError("num_classes is needed where targets are labels, got None")
    num_classes = targets.shape[1] if num_classes is None else _inputs.as_whole(num_classes, "num_classes")
    soft = as_soft_targets(targets, num_classes, ignore_index=_inputs.as_whole(ignore_index, "ignore_index", None))
    if len(soft) != len(inputs):
        raise ValueError(f"targets must have one row per row of inputs, {len(inputs)}, got {len(soft)}")
    return soft


def _device(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _partners(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
    order = torch.randperm(len(inputs), device=_device(generator), generator=generator)
    return order.to(inputs.device, non_blocking=True)


def _mixed(soft: SoftTargets, partner: Tensor, lam: Tensor, dtype: torch.dtype) -> SoftTargets:
    # One number stays exact; one per row has the precision that it has for the inputs.
    given = lam.to(soft.device, _inputs.at_least_float32(dtype)) if lam.dim() else float(lam)
    return soft.mix(soft[partner.to(soft.device)], given)
