"""From what a caller passes to rows: logits (N, K), SoftTargets of N rows, one weight a row; and back to a loss."""

from typing import Any

import torch
from torch import Tensor

from softnce.targets import SoftTargets, as_soft_targets
from softnce.validation import as_number, check_tensor, values_are_checked

REDUCTIONS = ("mean", "sum", "none")


def rows_of_logits(logits: Tensor, allow_empty: bool = False) -> tuple[Tensor, torch.Size]:
    """Logits (N, K, d₁, …) as (N·d₁·…, K), and the shape (N, d₁, …) of one number a sample."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a tensor, got {type(logits).__name__}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be a floating point tensor, got {logits.dtype}")
    if logits.dim() < 2:
        raise ValueError(f"logits must have shape (N, K) or (N, K, d1, ...), got {tuple(logits.shape)}")
    if logits.shape[1] == 0:
        raise ValueError("logits have no classes: shape (N, K) with K ≥ 1 is needed")
    if logits.numel() == 0 and not allow_empty:
        raise ValueError(f"the batch is empty: logits have shape {tuple(logits.shape)}")
    if logits.dim() == 2:
        return logits, logits.shape[:1]
    rows = logits.movedim(1, -1)
    return rows.reshape(-1, logits.shape[1]), rows.shape[:-1]


def rows_of_targets(
    targets: Tensor | SoftTargets, logits: Tensor, shape: torch.Size, label_smoothing: float, ignore_index: int
) -> SoftTargets:
    """Targets for the rows of ``logits`` as SoftTargets, given that one number a sample has ``shape``."""
    rows, num_classes = logits.shape
    if isinstance(targets, Tensor):
        spatial = tuple(shape[1:])
        if targets.shape == shape and (len(shape) > 1 or not targets.is_floating_point()):
            targets = targets if len(shape) == 1 else targets.reshape(-1)
        elif targets.shape == (shape[0], num_classes, *spatial):
            targets = targets.movedim(1, -1).reshape(-1, num_classes)
        else:
            kind = "(N, K)" if not spatial else "(N, K, d1, ...)"
            raise ValueError(
                f"targets must be labels of shape {tuple(shape)} or probabilities of shape "
                f"{(shape[0], num_classes, *spatial)} for these logits {kind}, got shape {tuple(targets.shape)} "
                f"of {targets.dtype}"
            )
    soft = as_soft_targets(targets, num_classes, label_smoothing, ignore_index)
    if len(soft) != rows:
        raise ValueError(f"targets have {len(soft)} rows, logits have {rows}")
    _check_device(soft, logits, "logits")
    return soft


def blank_ignored(rows: Tensor, targets: SoftTargets) -> Tensor:
    """Rows that do not count as zeros, so that whatever stood there, NaN too, reaches neither loss nor gradient."""
    return rows if targets.mask is None else rows.masked_fill(targets.mask.logical_not()[:, None], 0)


def _check_device(targets: SoftTargets, rows: Tensor, name: str) -> None:
    if targets.device != rows.device:
        raise ValueError(f"targets are on {targets.device}, {name} on {rows.device}; move one: targets.to(device)")


def rows_of_features(
    features: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor | SoftTargets,
    label_smoothing: float,
    ignore_index: int,
    allow_empty: bool = False,
) -> tuple[Tensor, SoftTargets, torch.Size]:
    """Features (N, d) and targets for a table of label embeddings (K, d), checked."""
    for name, tensor in (("input", features), ("weight", table)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() != 2:
            got = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"{name} must be a floating point matrix, got {got}")
    if features.shape[1] != table.shape[1]:
        raise ValueError(
            f"input has {features.shape[1]} features, the label embeddings in weight have {table.shape[1]}"
        )
    if len(features) == 0 and not allow_empty:
        raise ValueError(f"the batch is empty: input has shape {tuple(features.shape)}")
    if bias is not None and bias.shape != (len(table),):
        raise ValueError(f"bias must have shape ({len(table)},), got {tuple(bias.shape)}")
    soft = as_soft_targets(targets, len(table), label_smoothing, ignore_index)
    if len(soft) != len(features):
        raise ValueError(f"targets have {len(soft)} rows, input has {len(features)}")
    _check_device(soft, features, "input")
    return blank_ignored(features, soft), soft, torch.Size([len(features)])


def check_hard(targets: Tensor | SoftTargets, name: str) -> Tensor | SoftTargets:
    """Targets must be labels; a loss for soft ones is named otherwise."""
    is_soft = isinstance(targets, SoftTargets) and not targets.is_hard
    if is_soft or (isinstance(targets, Tensor) and targets.is_floating_point()):
        raise ValueError(
            f"{name} takes hard labels, got soft targets; for those use SoftTargetInfoNCE, SoftDistributionInfoNCE or "
            "SoftTargetCrossEntropy"
        )
    return targets


def check_candidates(candidates: SoftTargets, own: Tensor | None, rows: int, num_classes: int) -> None:
    if not isinstance(candidates, SoftTargets):
        raise TypeError(f"candidates must be SoftTargets, got {type(candidates).__name__}")
    if candidates.num_classes != num_classes:
        raise ValueError(f"candidates have {candidates.num_classes} classes, logits have {num_classes}")
    if own is None:
        return
    check_tensor(own, "own")
    if own.dtype in (torch.bool, torch.uint8):
        raise ValueError(f"own must hold positions as int64, got {own.dtype}")
    if own.shape != (rows,) or own.is_floating_point():
        raise ValueError(f"own must hold {rows} positions (N,), got shape {tuple(own.shape)} of {own.dtype}")
    if values_are_checked(own) and len(own):
        low, high = (int(v) for v in torch.aminmax(own))
        if low < 0 or high >= len(candidates):
            raise ValueError(f"own names candidate {low if low < 0 else high} of {len(candidates)}")


def check_own(candidates: SoftTargets, own: Tensor | None, targets: SoftTargets) -> None:
    """Where candidates and targets are both labels, ``own`` must name the row's label among them."""
    if own is None or candidates.index is None or targets.index is None or not values_are_checked(own):
        return
    if candidates.weight is None and targets.weight is None:
        wrong = candidates.index[own, 0] != targets.index[:, 0]
        if targets.mask is not None:
            wrong = wrong & targets.mask
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"own says that candidate {int(own[row])} is row {row}'s own target, but it has label "
                f"{int(candidates.index[own[row], 0])} and the row {int(targets.index[row, 0])}"
            )


def check_temperature(temperature: float | Tensor) -> float | Tensor:
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1:
            raise ValueError(f"temperature must be one number, got a tensor of shape {tuple(temperature.shape)}")
        if values_are_checked(temperature) and not float(temperature.detach()) > 0:
            raise ValueError(f"temperature must be positive, got {float(temperature.detach())}")
    else:
        temperature = as_number(temperature, "temperature", "a positive number")
        if not 0 < temperature < torch.inf:
            raise ValueError(f"temperature must be a positive number, got {temperature!r}")
    return temperature


def check_class_weight(class_weight: Tensor | None, num_classes: int | None = None) -> None:
    if class_weight is None:
        return
    check_tensor(class_weight, "class_weight")
    if not class_weight.is_floating_point():
        raise TypeError(f"class_weight must be a floating point tensor, got {class_weight.dtype}")
    if class_weight.dim() != 1 or (num_classes is not None and len(class_weight) != num_classes):
        wanted = "(K,)" if num_classes is None else f"({num_classes},)"
        raise ValueError(f"class_weight must have shape {wanted}, got {tuple(class_weight.shape)}")
    if values_are_checked(class_weight) and not bool(((class_weight >= 0) & (class_weight < torch.inf)).all()):
        raise ValueError("class_weight must hold finite numbers that are not negative")


def check_chunk_size(chunk_size: int | None) -> int | None:
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size must be a positive whole number of rows or None, got {chunk_size!r}")
    return chunk_size


def check_reduction(reduction: Any) -> str:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    return str(reduction)


def row_weight(targets: SoftTargets, shape: torch.Size, weight: Tensor | None) -> Tensor | None:
    """The weight of every row, (N,), 0 for those that do not count; None where all weigh 1."""
    if weight is not None:
        check_tensor(weight, "weight")
        if weight.shape != shape and weight.shape != (len(targets),):
            raise ValueError(f"weight must have one entry a sample, shape {tuple(shape)}, got {tuple(weight.shape)}")
        weight = weight.reshape(-1)
        if values_are_checked(weight) and not bool(((weight >= 0) & (weight < torch.inf)).all()):
            raise ValueError("weight must hold finite numbers that are not negative")
    if targets.mask is None:
        return weight
    counts = targets.mask.to(torch.get_default_dtype() if weight is None else weight.dtype)
    return counts if weight is None else counts * weight


def times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a·b, where None is 1."""
    return b if a is None else a if b is None else a * b


def reduce(
    losses: Tensor, weight: Tensor | None, reduction: str, shape: torch.Size, total: Tensor | None = None
) -> Tensor:
    """Losses (N,) to what ``reduction`` asks for. The mean divides by ``total``, else by the sum of the weights.

    Where nothing counts the mean is 0, not NaN.
    """
    check_reduction(reduction)
    weighted = losses if weight is None else losses * weight.to(losses.dtype)
    if reduction == "none":
        return weighted.reshape(shape)
    if reduction == "sum":
        return weighted.sum()
    if weight is None and total is None:
        return weighted.mean()
    return divide(weighted.sum(), total_weight(len(losses), weight, losses) if total is None else total)


def total_weight(rows: int, weight: Tensor | None, like: Tensor) -> Tensor:
    """The sum of the weights, or the number of rows where all weigh 1, in the dtype a loss of ``like`` has."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return like.new_full((), rows, dtype=dtype) if weight is None else weight.to(dtype).sum()


def divide(amount: Tensor, total: Tensor) -> Tensor:
    """amount/total, and 0 where the total is 0."""
    return amount / torch.where(total > 0, total, 1).to(amount.dtype)
