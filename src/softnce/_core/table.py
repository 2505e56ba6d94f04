"""The table form: the logits form on the columns that occur.

With a linear last layer, logit_k = z·y_k + b_k. A contrast needs the logits of the classes of targets and candidates
alone, so a step takes those rows of the label table, whatever K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._inputs import at_least_float32, check_flag, check_tensor
from softnce.targets.soft_targets import DENSE, SoftTargets

Scores = Callable[[Tensor], Tensor]
"""Makes logits (n, U) from features (n, d)."""
Columns = tuple[Scores | None, Tensor | None, Sequence[SoftTargets | None]]
"""Scores of some columns (None: logits as they are), their classes (None: all), and targets over these columns."""


class Table:
    """Features (N, d) or (N, L, d) and label embeddings (K, d): the logits are ``features @ table.T + bias``.

    Attributes:
        rows: (N·L, d).
        shape: (N,) or (N, L), of one number per sample.
    """

    name = "features"

    def __init__(
        self, features: Tensor, table: Tensor, bias: Tensor | None = None, sparse: bool = False, cosine: bool = False
    ) -> None:
        check_table(features, table, bias)
        self.rows, self.shape, self.num_classes = features.reshape(-1, table.shape[1]), features.shape[:-1], len(table)
        self.table, self.bias = table, bias
        self.sparse, self.cosine = check_flag(sparse, "sparse"), check_flag(cosine, "cosine")

    def logits(self, classes: Tensor | None) -> Scores:
        """The logits of ``classes`` (U,), or of all if None."""
        dtype, table, bias = at_least_float32(self.rows.dtype), self.table, self.bias
        if classes is not None:  # an embedding: indexing would make the gradient of the table dense
            table, bias = F.embedding(classes, table, sparse=self.sparse), None if bias is None else bias[classes]

        def vectors(rows: Tensor) -> Tensor:
            return F.normalize(rows.to(dtype), dim=1) if self.cosine else rows.to(dtype)

        weight, bias = vectors(table), None if bias is None else bias.to(dtype)
        return lambda features: F.linear(vectors(features), weight, bias)

    def columns(self, named: Sequence[SoftTargets | None], reason: str, cancels: bool) -> Columns:
        """The columns that the targets ``named`` need.

        All if there is a ``reason``, or if targets have weight on every class. Backgrounds that all share are left out
        where they ``cancel``.
        """
        members = list({id(member): member for member in named if member is not None}.values())
        plain = not any(member.has_background for member in members)
        dropped = cancels and all(members[0].shares_background(member) for member in members)
        dense = any(member.form == DENSE for member in members)
        if reason or dense or not (plain or dropped):
            if self.sparse:
                reason = reason or ("a dense row" if dense else "smoothing")
                raise ValueError(
                    f"sparse=True needs a loss of few classes, but {reason} touches every class; use pairs without "
                    "label_smoothing and drawn negatives, or sparse=False"
                )
            return self.logits(None), None, named
        classes, place = distinct_classes(torch.cat([member.classes.flatten() for member in members]))
        over: dict[int, SoftTargets | None] = {id(None): None}
        for member, part in zip(members, place.split([member.classes.numel() for member in members]), strict=True):
            weight = member.pair_weight(torch.float64) if member.has_background else member.weight
            over[id(member)] = SoftTargets(len(classes), part.view_as(member.classes), weight, mask=member.mask)
        return self.logits(classes), classes, [over[id(member)] for member in named]


def distinct_classes(named: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct classes (U,) of ``named`` (L,), sorted, and the place of each one among them, (L,).

    On an accelerator U = L, so that no step waits for the host: classes repeat, and the first of equal ones is used.
    """
    if len(named) == 0:
        return named.new_zeros(1), named
    if named.device.type == "cpu" and not torch.compiler.is_compiling():
        classes, place = named.unique(return_inverse=True)
        return classes, place
    classes = named.sort().values
    return classes, torch.searchsorted(classes, named)


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor, whose module takes long to import."""
    return type(tensor).__name__ == "DTensor"


def check_table(features: Tensor, table: Tensor, bias: Tensor | None) -> None:
    """Features (N, d) or (N, L, d), label embeddings (K, d) and their bias (K,) must fit each other."""
    for name, tensor, most in (("features", features, 3), ("table", table, 2)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not 2 <= tensor.dim() <= most:
            got = f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"{name} must be a floating point matrix, got {got}")
    if is_sharded(table):
        advice = "call the wrapped head itself, head(features, targets, criterion), which gathers it"
        raise ValueError(f"table is sharded (a DTensor, as FSDP2 makes them outside of a module's forward); {advice}")
    if features.shape[-1] != table.shape[1]:
        raise ValueError(f"features have {features.shape[-1]} columns, but table has {table.shape[1]}")
    if bias is not None:
        check_tensor(bias, "bias")
        if bias.shape != (len(table),):
            raise ValueError(f"bias must have shape ({len(table)},), got {tuple(bias.shape)}")
