"""Storage of soft targets: rows as labels, pairs or dense weights; views of them; choosing, moving and joining rows."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Self, SupportsIndex

import torch
from torch import Tensor

from softnce._checks import as_tensor, values_are_checked, values_are_readable
from softnce._precision import at_least_float32
from softnce.targets._background import common_dist, is_zero, same_dist, same_number

ArrayLike = Any
"""A tensor, an array of numpy, pandas or others, or a list of numbers."""


WRITTEN_ROWS, WRITTEN_PAIRS = 8, 10
"""The largest targets whose rows ``repr`` writes out."""


class Form(enum.IntEnum):
    """How the rows of a :class:`SoftTargets` are stored."""

    LABELS = 0
    """One class per row: ``index`` (N, 1), its weight 1 − ε is implied."""
    PAIRS = 1
    """S weighted classes per row: ``index`` and ``weight`` (N, S)."""
    DENSE = 2
    """A weight for every class: ``weight`` (N, K)."""


LABELS, PAIRS, DENSE = Form


class Storage:
    """The fields of :class:`~softnce.SoftTargets`, and everything that does not compute with their values."""

    rest: Tensor | None = None  # targets pickled before these fields existed have none
    nominal_dtype: torch.dtype | None = None

    def __init__(
        self,
        num_classes: int,
        index: Tensor | None,
        weight: Tensor | None,
        smoothing: float | Tensor = 0.0,
        smoothing_dist: Tensor | None = None,
        mask: Tensor | None = None,
        rest: Tensor | None = None,
        nominal_dtype: torch.dtype | None = None,
    ) -> None:
        if index is None and weight is None:
            raise ValueError("SoftTargets needs index, weight or both")
        self.num_classes = num_classes
        self.index = index
        self.weight = weight
        self.smoothing = smoothing
        self.smoothing_dist = None if is_zero(smoothing) else smoothing_dist  # nothing to spread: one form for it
        self.mask = mask
        self.rest = rest
        self.nominal_dtype = nominal_dtype

    # ------------------------------------------------------------------------------------------------- views

    @property
    def form(self) -> Form:
        """LABELS, PAIRS or DENSE."""
        return DENSE if self.index is None else LABELS if self.weight is None else PAIRS

    @property
    def classes(self) -> Tensor:
        """``index`` of labels or pairs, (N, S)."""
        if self.index is None:
            raise ValueError("dense rows have no index; they have a weight for every class")
        return self.index

    @property
    def labels(self) -> Tensor:
        """The class of each row, (N,), of targets in the form LABELS; 0 in ignored rows."""
        if self.form != LABELS:
            raise ValueError(f"`labels` needs targets stored as labels; these are {self.form.name} (use `argmax()`)")
        return self.classes[:, 0]

    def __len__(self) -> int:
        return self._stored.shape[0]

    def __repr__(self) -> str:
        form = {LABELS: "labels", PAIRS: f"{self._stored.shape[1]} pairs per row", DENSE: "dense"}[self.form]
        mass = f"{self.smoothing:g}" if isinstance(self.smoothing, float) else "per row"
        group = "" if self.rest is None else ", the rest as one group"
        ignored = ""
        if self.mask is not None:
            ignored = f", {int((~self.mask).sum())} ignored" if values_are_readable(self.mask) else ", with mask"
        head = f"{len(self)} rows, {self.num_classes} classes, {form}{group}, smoothing {mass}{ignored}, {self.device}"
        rows = self._written()
        return f"SoftTargets({head}:\n{rows})" if rows else f"SoftTargets({head})"

    def _written(self) -> str:
        """Labels in one line, else a line per row; "" if there are too many, or if they cannot be read now."""
        stored, weight, mask = self._stored, self.weight, self.mask
        is_small = 0 < len(stored) <= WRITTEN_ROWS and stored.shape[1] <= WRITTEN_PAIRS
        if not is_small or not values_are_readable(self.index, weight, mask) or stored.is_sparse:
            return ""
        counts = [True] * len(stored) if mask is None else mask.tolist()
        if weight is None:
            labels = (str(row[0]) if kept else "ignored" for row, kept in zip(stored.tolist(), counts, strict=True))
            return f"  {', '.join(labels)}"
        classes = [range(weight.shape[1])] * len(weight) if self.index is None else self.index.tolist()
        return "\n".join(
            "  " + ", ".join(f"{k}: {w:.4g}" for k, w in zip(named, weights, strict=True) if w) if kept else "  ignored"
            for named, weights, kept in zip(classes, weight.tolist(), counts, strict=True)
        )

    @property
    def shape(self) -> torch.Size:
        """(N, K), the shape of the dense rows."""
        return torch.Size((len(self), self.num_classes))

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 2

    @property
    def ndim(self) -> int:
        return 2

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of :meth:`dense`. Weights may be stored in a finer one, so that Python numbers do not round."""
        if self.nominal_dtype is not None:
            return self.nominal_dtype
        given = self.smoothing if self.weight is None else self.weight
        return given.dtype if isinstance(given, Tensor) else torch.get_default_dtype()

    @property
    def _stored(self) -> Tensor:
        """A tensor that every form has: ``index``, or the weights of dense rows."""
        stored = self.weight if self.index is None else self.index
        assert stored is not None
        return stored

    @property
    def device(self) -> torch.device:
        return self._stored.device

    @property
    def is_hard(self) -> bool:
        """Whether every row is stored as one label and nothing else."""
        return self.form == LABELS and is_zero(self.smoothing)

    def check_no_rest(self, user: str) -> None:
        """Refuse targets that know the other classes only as one group; ``user`` is the loss or method that refuses."""
        if self.rest is not None:
            raise ValueError(
                f"{user} needs the weight of every class, but these targets hold the classes beyond the top k as one "
                'group; use SoftTargetCrossEntropy, or make them with rest="spread" or "renormalise"'
            )

    def pair_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weights (N, S), also if labels imply them; in ``dtype`` if given."""
        if self.weight is not None:
            return self.weight if dtype is None else self.weight.to(dtype)
        if isinstance(self.smoothing, Tensor):
            return (1 - self.smoothing.to(dtype or self.smoothing.dtype))[:, None]
        return torch.full(
            self.classes.shape, 1 - self.smoothing, dtype=dtype or torch.get_default_dtype(), device=self.device
        )

    def background_mass(self, dtype: torch.dtype | None = None) -> Tensor:
        """ε of every row, (N,)."""
        if isinstance(self.smoothing, Tensor):
            return self.smoothing if dtype is None else self.smoothing.to(dtype)
        dtype = dtype or (torch.get_default_dtype() if self.weight is None else self.weight.dtype)
        return torch.full((len(self),), self.smoothing, dtype=dtype, device=self.device)

    def background(self, dtype: torch.dtype) -> Tensor | float:
        """ξ, (K,), or the number 1/K if it is uniform."""
        return 1 / self.num_classes if self.smoothing_dist is None else self.smoothing_dist.to(dtype)

    def foreground(self, dtype: torch.dtype | None = None) -> Tensor:
        """The pairs as dense rows (N, K), without the background."""
        self.check_no_rest("dense")
        weight = self.pair_weight(dtype)
        if self.form == DENSE:
            return weight
        return weight.new_zeros(len(self), self.num_classes).scatter_add(1, self.classes, weight)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The rows as probabilities (N, K); ignored rows are NaN. Memory O(N·K)."""
        rows = self.unmasked_dense(dtype)
        return rows if self.mask is None else rows.masked_fill(self.mask.logical_not()[:, None], torch.nan)

    def unmasked_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """:meth:`dense` with ignored rows as they are stored, mostly as class 0: for sums that leave them out."""
        rows = self.foreground(dtype)
        if not is_zero(self.smoothing):
            rows = rows + self.background_mass(rows.dtype)[:, None] * self.background(rows.dtype)
        return rows.to(dtype or self.dtype)

    def to_dense(self) -> Self:
        """The same targets in the form DENSE, with the same rows ignored."""
        return type(self)(self.num_classes, None, self.unmasked_dense(), mask=self.mask)

    def numpy(self) -> Any:
        """The dense rows as a numpy array (N, K); ignored rows are NaN."""
        return self.dense().detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def shares_background(self, other: Storage) -> bool:
        """Whether every row of both has one and the same background, so that it cancels between their scores."""
        return same_number(self.smoothing, other.smoothing) and (is_zero(self.smoothing) or self.shares_dist(other))

    def shares_dist(self, other: Storage) -> bool:
        """Whether both are known to spread their background alike."""
        return same_dist(self.smoothing_dist, other.smoothing_dist, self.num_classes, unread=False)

    # -------------------------------------------------------------------------------------------------- rows

    def __getitem__(self, rows: int | slice | ArrayLike) -> Self:
        """The rows named by a number, a slice, integers (R,) or a mask (N,); a number gives SoftTargets of one row."""
        if not isinstance(rows, (int, slice)):
            rows = self._rows_named(rows)
        if isinstance(rows, int):
            size = len(self)
            if isinstance(rows, bool) or not -size <= rows < size:
                raise IndexError(f"rows must be in 0 … {size - 1}, got {rows}")
            rows = slice(rows, rows + 1 or None)
        return self._map(lambda x: x[rows])

    def _rows_named(self, rows: Any) -> int | slice | Tensor:
        """The argument of :meth:`__getitem__` as a Python number or a tensor of integers or of booleans."""
        if isinstance(rows, tuple) and len(rows) == 2 and (rows[1] is Ellipsis or rows[1] == slice(None)):
            rows = rows[0]  # as code indexes arrays that may have further dimensions
        if isinstance(rows, slice):
            return rows
        if isinstance(rows, SupportsIndex) and not getattr(rows, "ndim", 0):
            return operator.index(rows)
        if rows is None or isinstance(rows, tuple) or rows is Ellipsis:
            raise IndexError(f"SoftTargets are indexed by rows alone, got {rows!r}")
        try:
            found = as_tensor(rows, "rows")
        except TypeError as error:
            raise IndexError(f"SoftTargets are indexed by rows alone: {error}") from None
        if found.dtype == torch.uint8 or (found.numel() == 0 and not isinstance(rows, Tensor)):
            found = found.long()  # torch takes bytes for a mask, and an empty list has no dtype of its own
        fits = found.shape == (len(self),) if found.dtype == torch.bool else found.dim() == 1
        if not fits or found.is_floating_point() or found.is_complex():
            raise IndexError(
                f"rows must be integers (R,) or a mask ({len(self)},), got {found.dtype} of shape {tuple(found.shape)}"
            )
        if found.dtype != torch.bool and found.numel() and values_are_checked(found):
            low, high = map(int, torch.aminmax(found))
            if low < -len(self) or high >= len(self):
                raise IndexError(f"rows must be in 0 … {len(self) - 1}, got {low} … {high}")
        return found

    def flip(self, dim: int = 0) -> Self:
        """The rows in reverse order: timm's partner for MixUp."""
        if dim not in (0, (0,), [0]):
            raise ValueError(f"dim must be 0, the rows, got {dim!r}")
        return self._map(lambda x: x.flip(0))

    def to(
        self,
        device: torch.device | str | int | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """On another device, with weights of another floating point dtype, or both; as ``Tensor.to``."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating point dtype, got {dtype!r}")
        if device is not None and not isinstance(device, (torch.device, str, int)):
            raise TypeError(f"device must be a device or a dtype, got {type(device).__name__}")
        if dtype is None and device is not None and not isinstance(device, int) and torch.device(device).type == "mps":
            dtype = self.dtype  # which has no float64

        def move(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None, non_blocking=non_blocking)

        moved = self._map(move, shared=True)
        moved.nominal_dtype = self.nominal_dtype if dtype is None else None
        return moved

    def cpu(self) -> Self:
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None, non_blocking: bool = False) -> Self:
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def detach(self) -> Self:
        return self if self.is_hard else self._map(lambda x: x.detach())

    def clone(self) -> Self:
        return self._map(lambda x: x.clone())

    def pin_memory(self) -> Self:
        return self._map(lambda x: x.pin_memory(), shared=True)

    def _map(self, f: Callable[[Tensor], Tensor], shared: bool = False) -> Self:
        """``f`` on every tensor with a row dimension, and on ξ if ``shared``."""
        names = ("index", "weight", "smoothing", "smoothing_dist", "mask", "rest")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, value in fields.items():
            if isinstance(value, Tensor) and (shared or name != "smoothing_dist"):
                fields[name] = f(value)
        return type(self)(self.num_classes, **fields, nominal_dtype=self.nominal_dtype)

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """All rows one after the other. Shorter pairs are filled up; pairs beside dense rows become dense."""
        if isinstance(parts, (Storage, Tensor)) or not isinstance(parts, Iterable):
            raise TypeError(f"parts must be a list of SoftTargets, got {type(parts).__name__}")
        parts = list(parts)
        if not parts:
            raise ValueError("parts must hold at least one SoftTargets, got none")
        first = parts[0]
        for part in parts:  # in few passes: a batch of a data set's rows comes here row by row
            if not isinstance(part, Storage):
                raise TypeError(f"parts must be a list of SoftTargets, got {type(part).__name__} among them")
            if part.num_classes != first.num_classes:
                raise ValueError(f"parts must have the same classes, got {first.num_classes} and {part.num_classes}")
        if len(parts) == 1:
            return first
        num_classes, exact = first.num_classes, exact_dtype(first.device)
        mass, dist = first.smoothing, first.smoothing_dist
        if not all(part.smoothing is mass and part.smoothing_dist is dist for part in parts):
            dist = common_dist([(part.smoothing, part.smoothing_dist) for part in parts], num_classes)
        if isinstance(mass, Tensor) or not all(same_number(part.smoothing, mass) for part in parts):
            mass = torch.cat([p.background_mass(None if isinstance(p.smoothing, Tensor) else exact) for p in parts])
        rest = None
        if any(part.rest is not None for part in parts):
            rest = torch.cat([p.pair_weight().new_zeros(len(p)) if p.rest is None else p.rest for p in parts])
        dtype = reduce(torch.promote_types, {part.dtype for part in parts})
        if any(part.index is None for part in parts):
            index = None
            weight = torch.cat([part.foreground(dtype if part.weight is None else None) for part in parts])
        else:
            width = max(part.classes.shape[1] for part in parts)
            index, weight = torch.cat([_fill(part.classes, width, repeat=True) for part in parts]), None
            if any(part.weight is not None for part in parts):
                weights = [part.pair_weight(exact) if part.weight is None else part.weight for part in parts]
                weight = torch.cat([_fill(w, width) for w in weights])
        return cls(num_classes, index, weight, mass, dist, cls.joint_mask(parts), rest, dtype)

    @staticmethod
    def joint_mask(parts: Sequence[Storage]) -> Tensor | None:
        """Which rows of all parts, one after the other, count; None if all do."""
        if all(part.mask is None for part in parts):
            return None
        return torch.cat([p._stored.new_ones(len(p), dtype=torch.bool) if p.mask is None else p.mask for p in parts])


def exact_dtype(device: torch.device) -> torch.dtype:
    """The dtype of weights that come from Python numbers or counts: float64 if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def fine(weight: Tensor) -> Tensor:
    """Weights in float32 or better, in which a product with 1 − ε keeps the sum of a row."""
    return weight.to(at_least_float32(weight.dtype))


def _fill(pairs: Tensor, width: int, repeat: bool = False) -> Tensor:
    """Pairs filled up to ``width`` by zeros, or by the row's own first class: a filling may name no new class."""
    missing = width - pairs.shape[1]
    if missing == 0:
        return pairs
    filling = pairs[:, :1].expand(-1, missing) if repeat else pairs.new_zeros(len(pairs), missing)
    return torch.cat([pairs, filling], 1)
