"""Soft targets, stored as what people really have: a few (class, weight) pairs per row and one shared background."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from softnce._core import cpu
from softnce._inputs import as_tensor, as_whole, check_labels, exact_dtype, values_are_readable
from softnce.targets import _algebra, _constructors
from softnce.targets._constructors import FOR_COUNTS, ArrayLike, Rest

__all__ = ["DENSE", "LABELS", "PAIRS", "ArrayLike", "Form", "Rest", "SoftTargets", "as_soft_targets"]


class Form(enum.IntEnum):
    """How the rows of a :class:`SoftTargets` are stored."""

    LABELS = 0  # one class per row: index (N, 1), its weight 1 − ε is implied
    PAIRS = 1  # S weighted classes per row: index and weight (N, S)
    DENSE = 2  # a weight for every class: weight (N, K)


LABELS, PAIRS, DENSE = Form


@dataclass(eq=False, repr=False)
class SoftTargets:
    """N points on the simplex of K classes, made by the ``from_*`` methods and used like a tensor (N, K).

    Row i is α_i = Σ_j w_ij e(index_ij) + ε_i ξ, where e(k) is class k: S weighted classes, and a background of mass ε
    spread over all classes as ξ. Memory is O(N·S + K). The form decides the cost of a loss, never its value.

    Attributes:
        index: class of each pair, int64 (N, S), or None when ``weight`` runs over all classes, (N, K).
        weight: weight of each pair, or None for labels, whose weight is 1 − ε. Pairs that fill up a row have weight 0.
        smoothing: ε, one number for all rows or a tensor (N,).
        smoothing_dist: ξ, a tensor (K,), or None for uniform.
        mask: (N,) rows that count, or None when all do. A masked row is neither a positive nor a candidate.
        rest: (N,) mass of all classes that a row does not name, as one group, or None. Cross-entropy alone takes it.
        nominal_dtype: dtype of :meth:`dense` if the weights are stored in a finer one, so that numbers do not round.

    >>> t = SoftTargets.from_labels(torch.tensor([0, 2]), num_classes=4, smoothing=0.1)
    >>> t.mix(t.flip(0), 0.7).dense()
    tensor([[0.6550, 0.0250, 0.2950, 0.0250],
            [0.2950, 0.0250, 0.6550, 0.0250]])
    """

    num_classes: int
    index: Tensor | None
    weight: Tensor | None
    smoothing: float | Tensor = 0.0
    smoothing_dist: Tensor | None = None
    mask: Tensor | None = None
    rest: Tensor | None = None
    nominal_dtype: torch.dtype | None = None
    ndim = 2

    def __post_init__(self) -> None:
        if self.index is None and self.weight is None:
            raise ValueError("SoftTargets needs index, weight or both")
        if not self.has_background:
            self.smoothing_dist = None

    @classmethod
    def from_labels(
        cls,
        labels: ArrayLike,
        num_classes: int,
        smoothing: float = 0.0,
        smoothing_dist: ArrayLike | None = None,
        ignore_index: int = -100,
    ) -> SoftTargets:
        """Labels (N,), smoothed by ``smoothing`` towards ``smoothing_dist`` (ξ, None = uniform).

        Rows with the label ``ignore_index`` are ignored: neither positives nor candidates.
        """
        labels, num_classes = as_tensor(labels, "labels"), as_whole(num_classes, "num_classes")
        return _of_labels(labels, num_classes, ignore_index, "labels").smooth(smoothing, smoothing_dist)

    from_dense = classmethod(_constructors.from_dense)
    from_pairs = classmethod(_constructors.from_pairs)
    from_topk = classmethod(_constructors.from_topk)
    from_topk_log_probs = classmethod(_constructors.from_topk_log_probs)
    from_votes = classmethod(_constructors.from_votes)
    from_annotations = classmethod(_constructors.from_annotations)
    cat = classmethod(_algebra.cat)

    smooth = _algebra.smooth
    mix = _algebra.mix
    expectation = _algebra.expectation
    at = _algebra.at
    vertex = _algebra.vertex
    argmax = _algebra.argmax
    entropy = _algebra.entropy
    sample = _algebra.sample
    close = _algebra.close
    compact = _algebra.compact

    def allclose(self, other: SoftTargets, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether all weights of all rows agree, |a − b| ≤ atol + rtol·|b|, whatever form they are stored in."""
        return bool(self.close(other, rtol, atol).all())

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        """Row by row, (N,): whether all weights are equal. Rows that are ignored in both are equal."""
        return self.close(other, 0.0, 0.0) if isinstance(other, SoftTargets) else NotImplemented

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return ~(self == other) if isinstance(other, SoftTargets) else NotImplemented

    __hash__ = object.__hash__  # as tensors have it

    # ------------------------------------------------------------------------------------------- what is stored

    def __len__(self) -> int:
        return len(self.weight if self.index is None else self.index)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        return (self.weight if self.index is None else self.index).device  # type: ignore[union-attr]

    @property
    def shape(self) -> torch.Size:
        """(N, K), the shape of the dense rows."""
        return torch.Size((len(self), self.num_classes))

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 2

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of :meth:`dense`."""
        if self.nominal_dtype is not None:
            return self.nominal_dtype
        given = self.smoothing if self.weight is None else self.weight
        return given.dtype if isinstance(given, Tensor) else torch.get_default_dtype()

    @property
    def form(self) -> Form:
        """LABELS, PAIRS or DENSE."""
        return DENSE if self.index is None else LABELS if self.weight is None else PAIRS

    @property
    def is_hard(self) -> bool:
        """Whether every row is stored as one label and nothing else."""
        return self.weight is None and not self.has_background

    @property
    def has_background(self) -> bool:
        """Whether mass is spread over all classes."""
        return isinstance(self.smoothing, Tensor) or self.smoothing != 0

    @property
    def classes(self) -> Tensor:
        """``index`` of labels or pairs, (N, S)."""
        if self.index is None:
            raise ValueError("dense rows have no index; they have a weight for every class")
        return self.index

    @property
    def labels(self) -> Tensor:
        """The class of each row, (N,), of targets in the form LABELS; 0 in ignored rows."""
        if self.index is None or self.weight is not None:
            raise ValueError(f"`labels` needs targets stored as labels; these are {self.form.name} (use `argmax()`)")
        return self.index[:, 0]

    def check_no_rest(self, user: str) -> None:
        """Refuse targets that know the other classes only as one group; ``user`` is the loss or method that refuses."""
        if self.rest is not None:
            raise ValueError(
                f"{user} needs the weight of every class, but these targets hold the classes beyond the top k as one "
                'group; use SoftTargetCrossEntropy, or make them with rest="spread" or "renormalise"'
            )

    def __repr__(self) -> str:
        width = self.num_classes if self.index is None else self.index.shape[1]
        form = {LABELS: "labels", PAIRS: f"{width} pairs per row", DENSE: "dense"}[self.form]
        mass = "per row" if isinstance(self.smoothing, Tensor) else f"{self.smoothing:g}"
        group = "" if self.rest is None else ", the rest as one group"
        ignored = ""
        if self.mask is not None:
            ignored = f", {int((~self.mask).sum())} ignored" if values_are_readable(self.mask) else ", with mask"
        head = f"{len(self)} rows, {self.num_classes} classes, {form}{group}, smoothing {mass}{ignored}, {self.device}"
        is_small = len(self) <= 8 and self.num_classes <= 10 and self.rest is None
        rows = f":\n{self.dense()}" if is_small and values_are_readable(self.index, self.weight, self.mask) else ""
        return f"SoftTargets({head}{rows})"

    # --------------------------------------------------------------------------------------------- weights

    def pair_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weights (N, S), also if labels imply them; in ``dtype`` if given."""
        if self.weight is not None:
            return self.weight if dtype is None else self.weight.to(dtype)
        return 1 - self.background_mass(dtype)[:, None]

    def background_mass(self, dtype: torch.dtype | None = None) -> Tensor:
        """ε of every row, (N,)."""
        if isinstance(self.smoothing, Tensor):
            return self.smoothing if dtype is None else self.smoothing.to(dtype)
        dtype = dtype or (torch.get_default_dtype() if self.weight is None else self.weight.dtype)
        return torch.full((len(self),), self.smoothing, dtype=dtype, device=self.device)

    def background(self, dtype: torch.dtype) -> Tensor | float:
        """ξ, (K,), or the number 1/K if it is uniform."""
        return 1 / self.num_classes if self.smoothing_dist is None else self.smoothing_dist.to(dtype)

    def shares_dist(self, other: SoftTargets) -> bool:
        """Whether both are known to spread their background alike."""
        mine, its = self.smoothing_dist, other.smoothing_dist
        return mine is its or _algebra.same_dist(mine, its, self.num_classes, unread=False)

    def shares_background(self, other: SoftTargets) -> bool:
        """Whether every row of both has one and the same background, so that it cancels between their scores."""
        mine, its = self.smoothing, other.smoothing
        if isinstance(mine, Tensor) or isinstance(its, Tensor) or mine != its:
            return False
        return mine == 0 or self.shares_dist(other)

    def counted(self, values: Tensor) -> Tensor:
        """Numbers of the rows, (N,) or (N, S), with 0 for rows that are ignored."""
        return values if self.mask is None else values * (self.mask if values.dim() == 1 else self.mask[:, None])

    def foreground(self, dtype: torch.dtype | None = None) -> Tensor:
        """The pairs as dense rows (N, K), without the background."""
        self.check_no_rest("dense")
        weight = self.pair_weight(dtype)
        if self.index is None:
            return weight
        return weight.new_zeros(len(self), self.num_classes).scatter_add(1, self.index, weight)

    def unmasked_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """:meth:`dense` with ignored rows as they are stored, mostly as class 0: for sums that leave them out."""
        rows = self.foreground(dtype)
        if self.has_background:
            rows = rows + self.background_mass(rows.dtype)[:, None] * self.background(rows.dtype)
        return rows.to(dtype or self.dtype)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The rows as probabilities (N, K); ignored rows are NaN. Memory O(N·K)."""
        rows = self.unmasked_dense(dtype)
        return rows if self.mask is None else rows.masked_fill(self.mask.logical_not()[:, None], torch.nan)

    def to_dense(self) -> SoftTargets:
        """The same targets in the form DENSE, with the same rows ignored."""
        return SoftTargets(self.num_classes, None, self.unmasked_dense(), mask=self.mask)

    def numpy(self) -> Any:
        """The dense rows as a numpy array (N, K); ignored rows are NaN."""
        return self.dense().detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def class_mass(self, dtype: torch.dtype | None = None) -> Tensor:
        """The sum of all rows that count, (K,), added up in float64; in ``dtype`` if given. O(N·S + K)."""
        self.check_no_rest("class_mass")
        exact, index, weight = exact_dtype(self.device), self.index, self.weight
        is_plain = not self.has_background and self.device.type == "cpu" and values_are_readable(index, weight)
        if is_plain and weight is None and self.mask is None:
            total = torch.bincount(self.labels, minlength=self.num_classes)
        elif is_plain and index is None and weight is not None and not weight.requires_grad:
            total = cpu.class_mass(weight, self.mask)
        elif index is None:
            total = self.counted(self.pair_weight()).sum(0, dtype=exact)
        else:
            mass = self.counted(self.pair_weight(exact)).flatten()
            total = mass.new_zeros(self.num_classes).index_add(0, index.flatten(), mass)
        if self.has_background:
            total = total + self.counted(self.background_mass(exact)).sum() * self.background(exact)
        return total.to(dtype or exact)

    # -------------------------------------------------------------------------------------------------- rows

    def __getitem__(self, rows: int | slice | ArrayLike) -> SoftTargets:
        """The rows named by a number, a slice, integers (R,) or a mask (N,); a number gives SoftTargets of one row."""
        if isinstance(rows, tuple) and len(rows) == 2 and (rows[1] is Ellipsis or rows[1] == slice(None)):
            rows = rows[0]  # as code indexes arrays that may have further dimensions
        if isinstance(rows, slice):  # first: torch.compile does not trace `hasattr` of a slice
            return self._map(lambda x: x[rows])
        try:
            if type(rows) is not bool and hasattr(rows, "__index__") and not getattr(rows, "ndim", 0):
                row = range(len(self))[rows]
                rows = slice(row, row + 1)
            else:
                given, rows = rows, torch.zeros(0, 0) if isinstance(rows, tuple) else as_tensor(rows, "rows")
                if rows.dim() != 1:
                    raise IndexError(f"got {given!r:.80}")
                if rows.dtype == torch.uint8 or (len(rows) == 0 and not isinstance(given, Tensor)):
                    rows = rows.long()  # torch takes bytes for a mask, and an empty list has no dtype of its own
            return self._map(lambda x: x[rows])
        except IndexError as error:
            raise IndexError(f"rows must be in 0 … {len(self) - 1}, or a mask ({len(self)},): {error}") from None

    def flip(self, dim: int = 0) -> SoftTargets:
        """The rows in reverse order: timm's partner for MixUp."""
        if dim not in (0, (0,), [0]):
            raise ValueError(f"dim must be 0, the rows, got {dim!r}")
        return self._map(lambda x: x.flip(0))

    def to(
        self,
        device: torch.device | str | int | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> SoftTargets:
        """On another device, with weights of another floating point dtype, or both; as ``Tensor.to``."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        is_weight = dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
        if not is_weight or not isinstance(device, (torch.device, str, int, type(None))):
            raise TypeError(f"to takes a device and a floating point dtype, got {device=} and {dtype=}")
        if dtype is None and isinstance(device, (str, torch.device)) and torch.device(device).type == "mps":
            dtype = self.dtype  # which has no float64

        moved = self._map(lambda x: x.to(device, dtype if x.is_floating_point() else None, non_blocking), shared=True)
        moved.nominal_dtype = self.nominal_dtype if dtype is None else None
        return moved

    def cpu(self) -> SoftTargets:
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None, non_blocking: bool = False) -> SoftTargets:
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def detach(self) -> SoftTargets:
        return self if self.is_hard else self._map(lambda x: x.detach())

    def clone(self) -> SoftTargets:
        return self._map(lambda x: x.clone())

    def pin_memory(self) -> SoftTargets:
        return self._map(lambda x: x.pin_memory(), shared=True)

    def _map(self, f: Callable[[Tensor], Tensor], shared: bool = False) -> SoftTargets:
        """``f`` on every tensor with a row dimension, and on ξ if ``shared``."""
        fields: dict[str, Any] = dict(vars(self))
        for name, value in fields.items():
            if isinstance(value, Tensor) and (shared or name != "smoothing_dist"):
                fields[name] = f(value)
        return SoftTargets(**fields)


def as_soft_targets(
    targets: Tensor | SoftTargets,
    num_classes: int,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    allow_rest: bool = False,
) -> SoftTargets:
    """The targets of a loss, labels (N,), probabilities (N, K) or SoftTargets, as SoftTargets."""
    if isinstance(targets, SoftTargets):
        if targets.num_classes != num_classes:
            raise ValueError(f"targets have {targets.num_classes} classes, {num_classes} are needed")
        if not allow_rest:
            targets.check_no_rest("this loss")
        return targets.smooth(label_smoothing) if label_smoothing else targets
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor or SoftTargets, got {type(targets).__name__}")
    if targets.dim() == 1:
        return _of_labels(targets, num_classes, ignore_index, "targets", label_smoothing)
    if targets.dim() != 2 or targets.shape[1] != num_classes:
        raise ValueError(f"targets must be labels (N,) or probabilities (N, {num_classes}), got {tuple(targets.shape)}")
    if not targets.is_floating_point():
        raise TypeError(f"targets (N, K) must be floating point probabilities, got {targets.dtype}{FOR_COUNTS}")
    recognised = targets.device.type == "cpu" and values_are_readable(targets)  # an accelerator would have to wait
    soft = _constructors.of_probabilities(SoftTargets, targets, "targets", recognised)
    return soft.smooth(label_smoothing) if label_smoothing else soft


def _of_labels(labels: Tensor, num_classes: int, ignore_index: int, name: str, smoothing: float = 0.0) -> SoftTargets:
    if labels.dim() != 1:
        raise ValueError(f"{name} must have shape (N,), got {tuple(labels.shape)}")
    if labels.numel() == 0 and labels.dtype == torch.get_default_dtype():
        labels = labels.long()  # an empty list has no dtype of its own
    ignore_index = as_whole(ignore_index, "ignore_index", None)
    may_ignore = check_labels(labels, num_classes, name, ignore_index)
    index, mask = labels.long(), None
    if may_ignore:
        mask = index != ignore_index
        index = index * mask
    return SoftTargets(num_classes, index[:, None], None, smoothing, mask=mask)


# Soft targets saved with torch.save load with weights_only=True, as a file of a teacher's outputs should.
torch.serialization.add_safe_globals([SoftTargets])


def _collated(batch: Sequence[SoftTargets], *, collate_fn_map: object = None) -> SoftTargets:
    """A batch of rows; of a single one a copy, because ``t[i]`` is a view that would keep the whole data set."""
    return SoftTargets.cat(batch) if len(batch) > 1 else batch[0].clone()


default_collate_fn_map[SoftTargets] = _collated
