"""The table form: the logits form on the columns that occur.

With a linear last layer, logit_k = z·y_k + b_k. A contrast needs the logits of the classes of targets and candidates
alone, so a step takes those rows of the label table, whatever K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from softnce._checks import check_tensor, values_are_checked
from softnce._precision import at_least_float32
from softnce.targets.soft_targets import DENSE, SoftTargets

if TYPE_CHECKING:
    from softnce._core.call import Call


class Table:
    """Features (N, d) or (N, L, d) and label embeddings (K, d): the logits are ``features @ table.T + bias``.

    Attributes:
        rows: (N·L, d).
        shape: (N,) or (N, L), of one number per sample.
        num_classes: K.
        name: of the argument, for errors.
    """

    name = "features"

    def __init__(
        self,
        features: Tensor,
        table: Tensor,
        bias: Tensor | None = None,
        sparse: bool = False,
        cosine: bool = False,
        allow_empty: bool = False,
    ) -> None:
        check_table(features, table, bias, allow_empty)
        self.rows, self.shape = features.reshape(-1, table.shape[1]), features.shape[:-1]
        self.table, self.bias, self.sparse, self.cosine = table, bias, sparse, cosine
        self.num_classes = len(table)

    def logits(self, classes: Tensor | None) -> Callable[[Tensor], Tensor]:
        """A function from features (n, d) to logits (n, U) of ``classes`` (U,), or (n, K) of all if None."""
        dtype = at_least_float32(self.rows.dtype)
        if classes is None:
            rows, bias = self.table, self.bias
        else:  # an embedding: indexing would make the gradient of the table dense
            rows = F.embedding(classes, self.table, sparse=self.sparse)
            bias = None if self.bias is None else self.bias[classes]
        rows = self._vectors(rows, dtype)
        bias = None if bias is None else bias.to(dtype)
        return lambda features: F.linear(self._vectors(features, dtype), rows, bias)

    def _vectors(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        rows = rows.to(dtype)
        return F.normalize(rows, dim=1) if self.cosine else rows

    def check_not_sparse(self, reason: str) -> None:
        """Refuse a sparse gradient where every class is needed, for the ``reason``."""
        if self.sparse:
            raise ValueError(
                f"sparse=True needs a loss of few classes, but {reason} touches every class; use pairs without "
                "label_smoothing and drawn negatives, or sparse=False"
            )


class Columns(NamedTuple):
    """Columns of scores, and targets over them.

    Attributes:
        scores: makes logits (n, U) from features (n, d); None: the rows are logits.
        classes: the class of each column, (U,), sorted; None: all classes.
        members: targets over all classes, and
        mapped: the same targets over the columns.
    """

    scores: Callable[[Tensor], Tensor] | None
    classes: Tensor | None
    members: Sequence[SoftTargets]
    mapped: Sequence[SoftTargets]

    def of(self, member: SoftTargets) -> SoftTargets:
        """One of the ``members`` over the columns."""
        return next(small for big, small in zip(self.members, self.mapped, strict=True) if big is member)

    def exclude(self, call: Call) -> Tensor | None:
        """The option ``exclude``, (N, E), as columns; −1 for classes that have none."""
        exclude = check_exclude(call.options.get("exclude"), len(call.targets), call.source.num_classes)
        if exclude is None or self.classes is None:
            return exclude
        place = torch.searchsorted(self.classes, exclude.contiguous()).clamp(max=len(self.classes) - 1)
        return torch.where(self.classes[place] == exclude, place, -1)


def columns_that_score(
    call: Call, named: Sequence[SoftTargets | None], reason: str = "", cancels: bool = False
) -> Columns:
    """The columns that targets need: all of logits; of a table, those of the classes named, whatever K.

    All of a table too if there is a ``reason``, or if targets have weight on every class. Backgrounds that all share
    are left out where they ``cancel``.
    """
    source, members = call.source, [member for member in named if member is not None]
    if not isinstance(source, Table):
        return Columns(None, None, members, members)
    dense = any(member.form == DENSE for member in members)
    plain = not any(member.has_background for member in members)
    dropped = cancels and all(members[0].shares_background(member) for member in members[1:])
    if reason or dense or not (plain or dropped):
        source.check_not_sparse(reason or ("a dense row" if dense else "smoothing"))
        return Columns(source.logits(None), None, members, members)
    classes, place = distinct_classes(torch.cat([member.classes.flatten() for member in members]))
    parts = place.split([member.classes.numel() for member in members])
    mapped = [
        SoftTargets(len(classes), part.view_as(member.classes), foreground_weight(member), mask=member.mask)
        for part, member in zip(parts, members, strict=True)
    ]
    return Columns(source.logits(classes), classes, members, mapped)


def distinct_classes(named: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct classes (U,) of ``named`` (L,), sorted, and where each one is among them, (L,).

    On an accelerator U = L, so that no step waits for the host: the last class is repeated.
    """
    if len(named) == 0:
        return named.new_zeros(1), named
    if named.device.type == "cpu" and not torch.compiler.is_compiling():
        classes, place = named.unique(return_inverse=True)
        return classes, place
    ordered, order = named.sort()
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    rank = is_new.cumsum(0) - 1
    classes = ordered[-1:].repeat(len(ordered)).scatter_(0, rank, ordered)
    return classes, torch.empty_like(named).scatter_(0, order, rank)


def without_background(targets: SoftTargets) -> SoftTargets:
    """Smoothed labels as labels."""
    return SoftTargets(targets.num_classes, targets.index, None, mask=targets.mask)


def foreground_weight(targets: SoftTargets) -> Tensor | None:
    """The weights of the pairs; None for labels without a background, whose weight is 1."""
    return targets.pair_weight(torch.float64) if targets.has_background else targets.weight


def check_exclude(exclude: Tensor | None, rows: int, num_classes: int) -> Tensor | None:
    """``exclude`` must hold (N, E) classes, or −1."""
    if exclude is None:
        return None
    check_tensor(exclude, "exclude")
    if exclude.dim() != 2 or len(exclude) != rows or exclude.dtype != torch.int64:
        raise ValueError(f"exclude must be int64 of shape ({rows}, E), got {exclude.dtype} of {tuple(exclude.shape)}")
    if exclude.numel() and values_are_checked(exclude):
        low, high = (int(v) for v in torch.aminmax(exclude))
        if low < -1 or high >= num_classes:
            raise ValueError(f"exclude must hold classes in 0 … {num_classes - 1}, or -1, got {low} … {high}")
    return exclude


def in_chunks(losses: Callable[[Tensor, slice], Tensor], rows: Tensor, chunk_size: int) -> Tensor:
    """``losses(rows, part)`` of all rows, ``chunk_size`` at a time, computed again in backward."""
    parts = [slice(start, start + chunk_size) for start in range(0, len(rows), chunk_size)] or [slice(0, 0)]
    return torch.cat([checkpoint(losses, rows[part], part, use_reentrant=False) for part in parts])


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor, whose module takes long to import."""
    return type(tensor).__name__ == "DTensor"


def check_table(features: Tensor, table: Tensor, bias: Tensor | None, allow_empty: bool = False) -> None:
    """Features (N, d) or (N, L, d), label embeddings (K, d) and their bias (K,) must fit each other."""
    for name, tensor, most in (("features", features, 3), ("table", table, 2)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not 2 <= tensor.dim() <= most:
            got = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"{name} must be a floating point matrix, got {got}")
    if is_sharded(table):
        raise ValueError(
            "table is sharded (a DTensor, as FSDP2 makes them outside of a module's forward); call the wrapped head "
            "itself, head(features, targets, criterion), which gathers it"
        )
    if features.shape[-1] != table.shape[1]:
        raise ValueError(
            f"features have {features.shape[-1]} columns, but the label embeddings in table have {table.shape[1]}"
        )
    if features.numel() == 0 and not allow_empty:
        raise ValueError(f"the batch is empty: features have shape {tuple(features.shape)}")
    if bias is not None:
        check_tensor(bias, "bias")
        if bias.shape != (len(table),):
            raise ValueError(f"bias must have shape ({len(table)},), got {tuple(bias.shape)}")
