"""From what a caller passes to rows: inputs (N, K) or (N, d), SoftTargets of N rows, one weight per row; and back."""

from typing import Literal, get_args

import torch
from torch import Tensor

from softnce._checks import as_number, check_tensor, values_are_checked
from softnce._precision import at_least_float32
from softnce.targets.soft_targets import LABELS, SoftTargets, as_soft_targets

Reduction = Literal["mean", "sum", "none"]
OthersForm = Literal["mean", "drawn"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
OTHERS_FORMS: tuple[OthersForm, ...] = get_args(OthersForm)


def rows_of_logits(logits: Tensor, allow_empty: bool = False) -> tuple[Tensor, torch.Size]:
    """Logits (N, K, d₁, …) as (N·d₁·…, K), and the shape (N, d₁, …) of one number per sample."""
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


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor, whose module takes long to import."""
    return type(tensor).__name__ == "DTensor"


def check_table(features: Tensor, table: Tensor, bias: Tensor | None, allow_empty: bool = False) -> None:
    """Features (N, d), label embeddings (K, d) and their bias (K,) must fit each other."""
    for name, tensor in (("features", features), ("table", table)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() != 2:
            got = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"{name} must be a floating point matrix, got {got}")
    if is_sharded(table):
        raise ValueError(
            "table is sharded (a DTensor, as FSDP2 makes them outside of a module's forward); call the wrapped head "
            "itself, head(features, targets, criterion), which gathers it"
        )
    if features.shape[1] != table.shape[1]:
        raise ValueError(
            f"features have {features.shape[1]} columns, but the label embeddings in table have {table.shape[1]}"
        )
    if len(features) == 0 and not allow_empty:
        raise ValueError(f"the batch is empty: features have shape {tuple(features.shape)}")
    if bias is not None:
        check_tensor(bias, "bias")
        if bias.shape != (len(table),):
            raise ValueError(f"bias must have shape ({len(table)},), got {tuple(bias.shape)}")


def rows_of_targets(
    targets: Tensor | SoftTargets,
    rows: Tensor,
    num_classes: int,
    shape: torch.Size,
    name: str,
    label_smoothing: float,
    ignore_index: int,
) -> SoftTargets:
    """Targets for ``rows`` (the inputs called ``name``) as SoftTargets, where one number per sample has ``shape``."""
    if isinstance(targets, Tensor):
        spatial = tuple(shape[1:])
        if targets.shape == shape and (len(shape) > 1 or not targets.is_floating_point()):
            targets = targets if len(shape) == 1 else targets.reshape(-1)
        elif targets.shape == (shape[0], num_classes, *spatial):
            targets = targets.movedim(1, -1).reshape(-1, num_classes)
        elif targets.shape == shape:
            raise TypeError(f"targets of shape {tuple(shape)} must hold integer labels, got {targets.dtype}")
        else:
            raise ValueError(
                f"targets must be labels of shape {tuple(shape)} or probabilities of shape "
                f"{(shape[0], num_classes, *spatial)} for these {name}, got shape {tuple(targets.shape)} "
                f"of {targets.dtype}{'; classes are dimension 1, as for nn.CrossEntropyLoss' if spatial else ''}"
            )
    soft = as_soft_targets(targets, num_classes, label_smoothing, ignore_index)
    if len(soft) != rows.shape[0]:
        raise ValueError(f"targets have {len(soft)} rows, but {name} have {rows.shape[0]}")
    if soft.device != rows.device:
        raise ValueError(f"targets are on {soft.device}, but {name} are on {rows.device}; use targets.to(device)")
    return soft


def check_hard(targets: Tensor | SoftTargets, name: str) -> None:
    """Targets must be labels; otherwise the error names losses for soft targets."""
    is_soft = isinstance(targets, SoftTargets) and not targets.is_hard
    if is_soft or (isinstance(targets, Tensor) and targets.is_floating_point()):
        raise ValueError(
            f"{name} takes hard labels, got soft targets; use ExpectedInfoNCE, SoftTargetInfoNCE, "
            "SoftDistributionInfoNCE or SoftTargetCrossEntropy"
        )


Place = Tensor | range
"""Positions (N,) among candidates; a range where they are in order, as a batch's own are."""


def as_positions(place: Place, device: torch.device) -> Tensor:
    return torch.arange(place.start, place.stop, device=device) if isinstance(place, range) else place


OWN_TOLERANCE = 8 * torch.finfo(torch.bfloat16).eps
"""How far, by the rounding of dense rows in half precision, the weights of one target in two batches may be apart,
relative to them: recognised as labels or pairs, rows do not say what precision they came in."""


def check_own(holder: SoftTargets, own: Tensor, targets: SoftTargets, name: str) -> None:
    """``own`` (N,) must give the position of each row's target in ``holder``, the argument called ``name``."""
    check_tensor(own, "own")
    if own.dtype in (torch.bool, torch.uint8):
        raise ValueError(f"own must hold positions as int64, got {own.dtype}")
    if own.shape != (len(targets),) or own.is_floating_point():
        raise ValueError(f"own must hold {len(targets)} positions (N,), got shape {tuple(own.shape)} of {own.dtype}")
    if not values_are_checked(own) or len(own) == 0:
        return
    low, high = (int(v) for v in torch.aminmax(own))
    if low < 0 or high >= len(holder):
        raise ValueError(f"own contains {low if low < 0 else high}, but {name} has only {len(holder)} rows")
    mine = holder[own]
    mine.mask = targets.mask  # rows that are ignored need not agree
    wrong = mine._close(targets, OWN_TOLERANCE, 1e-5).logical_not()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"own says that row {int(own[row])} of {name} is the target of row {row}, but it is "
            f"{_described(mine, row)} and the target is {_described(targets, row)}"
        )


def _described(targets: SoftTargets, row: int) -> str:
    if targets.form == LABELS:
        return f"label {int(targets.labels[row])}"
    weight, label = targets[row].dense()[0].topk(1)
    return f"a row whose largest weight is {float(weight):.3g}, of class {int(label)}"


def check_group(group: SoftTargets, num_classes: int, device: torch.device, name: str) -> None:
    """Further targets, passed as the argument ``name``, must be of the same classes and on the same device."""
    if not isinstance(group, SoftTargets):
        raise TypeError(f"{name} must be SoftTargets, got {type(group).__name__}")
    if group.num_classes != num_classes:
        raise ValueError(f"{name} has {group.num_classes} classes, but the scores have {num_classes}")
    if group.device != device:
        raise ValueError(f"{name} is on {group.device}, but the scores are on {device}; use {name}.to(device)")


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


def check_label_smoothing(label_smoothing: float) -> float:
    label_smoothing = as_number(label_smoothing, "label_smoothing", "a number in [0, 1]")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    return label_smoothing


def check_others(others: object) -> OthersForm | None:
    if others is not None and others not in OTHERS_FORMS:
        raise ValueError(f"others must be one of {', '.join(OTHERS_FORMS)} or None, got {others!r}")
    return others


def check_reduction(reduction: object) -> Reduction:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    return reduction


def row_weight(targets: SoftTargets, shape: torch.Size, sample_weight: Tensor | None) -> Tensor | None:
    """The weight of every row, (N,), 0 for ignored ones; None where all weigh 1."""
    if sample_weight is not None:
        check_tensor(sample_weight, "sample_weight")
        if sample_weight.shape != shape and sample_weight.shape != (len(targets),):
            raise ValueError(
                f"sample_weight must have one entry per sample, shape {tuple(shape)}, got {tuple(sample_weight.shape)}"
            )
        sample_weight = sample_weight.reshape(-1)
        if values_are_checked(sample_weight) and not bool(((sample_weight >= 0) & (sample_weight < torch.inf)).all()):
            raise ValueError("sample_weight must hold finite numbers that are not negative")
    if targets.mask is None:
        return sample_weight
    counts = targets.mask.to(torch.get_default_dtype() if sample_weight is None else sample_weight.dtype)
    return counts if sample_weight is None else counts * sample_weight


def times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a·b, where None is 1."""
    return b if a is None else a if b is None else a * b


def total_weight(rows: int, weight: Tensor | None, like: Tensor) -> Tensor:
    """The sum of the weights, or the number of rows where all weigh 1, in the dtype a loss of ``like`` has."""
    dtype = at_least_float32(like.dtype)
    return like.new_full((), rows, dtype=dtype) if weight is None else weight.to(dtype).sum()


def divide(amount: Tensor, total: Tensor) -> Tensor:
    """amount/total, and 0 where the total is 0."""
    return amount / torch.where(total > 0, total, 1).to(amount.dtype)
