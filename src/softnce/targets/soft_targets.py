"""Soft targets, stored as what people really have: a few (class, weight) pairs per row and one shared background."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsFloat, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from softnce._checks import (
    as_tensor,
    as_whole,
    check_generator,
    values_are_checked,
    values_are_readable,
)
from softnce.targets._background import common_dist, is_zero, mixed_dist, same_dist, same_number
from softnce.targets._constructors import FOR_COUNTS, ArrayLike, Constructors, check_smoothing
from softnce.targets._sampling import sample_labels
from softnce.targets._text import written_rows


class Form(enum.IntEnum):
    """How the rows of a :class:`SoftTargets` are stored."""

    LABELS = 0
    """One class per row: ``index`` (N, 1), its weight 1 − ε is implied."""
    PAIRS = 1
    """S weighted classes per row: ``index`` and ``weight`` (N, S)."""
    DENSE = 2
    """A weight for every class: ``weight`` (N, K)."""


LABELS, PAIRS, DENSE = Form


class SoftTargets(Constructors):
    """N points on the simplex of K classes.

    Row i is α_i = Σ_j w_ij e(index_ij) + ε_i ξ, where e(k) is class k: S weighted classes, and a background of mass ε
    spread over all classes as ξ. Memory is O(N·S + K), whatever K.

    | made by            | form   | index  | weight      | S                           |
    |--------------------|--------|--------|-------------|-----------------------------|
    | `from_labels`      | LABELS | (N, 1) | None: 1 − ε | 1                           |
    | `mix`              | PAIRS  | (N, S) | (N, S)      | 2 after MixUp or CutMix     |
    | `from_topk`        | PAIRS  | (N, k) | (N, k)      | k                           |
    | `from_pairs`       | PAIRS  | (N, S) | (N, S)      | given                       |
    | `from_annotations` | PAIRS  | (N, S) | (N, S)      | classes chosen for a sample |
    | `from_dense`       | DENSE  | None   | (N, K)      | K                           |

    ``from_votes`` makes pairs where few classes were chosen, else dense rows; ``from_dense`` recognises rows that are
    labels or pairs. The form decides what a loss costs, and ``repr`` names it.

    Attributes:
        index: class of each pair, int64, or None when ``weight`` runs over all classes.
        weight: weight of each pair. Pairs that fill up a row have weight 0. With the background they sum to 1.
        smoothing: ε, one number for all rows or a tensor (N,).
        smoothing_dist: ξ, a tensor (K,), or None for uniform.
        mask: (N,) rows that count, or None when all do. A masked row is neither a positive nor a candidate.

    Build it with the ``from_*`` methods; they take tensors, arrays and lists, and check them. Otherwise use it like a
    tensor (N, K): ``len``, ``shape``, ``dtype``, ``to``, ``argmax``, ``numpy``, indexing by rows; ``a == b`` compares
    row by row and gives (N,). A ``DataLoader`` collates rows ``t[i]``, also of a ``TensorDataset``; for Hugging Face's
    Trainer pass ``data_collator=torch.utils.data.default_collate``.

    >>> t = SoftTargets.from_labels(torch.tensor([0, 2]), num_classes=4, smoothing=0.1)
    >>> t.mix(t.flip(0), 0.7).dense()
    tensor([[0.6550, 0.0250, 0.2950, 0.0250],
            [0.2950, 0.0250, 0.6550, 0.0250]])
    """

    def __init__(
        self,
        num_classes: int,
        index: Tensor | None,
        weight: Tensor | None,
        smoothing: float | Tensor = 0.0,
        smoothing_dist: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        if index is None and weight is None:
            raise ValueError("SoftTargets needs index, weight or both")
        self.num_classes = num_classes
        self.index = index
        self.weight = weight
        self.smoothing = smoothing
        # Without a background there is nothing to spread; one form for one meaning.
        self.smoothing_dist = None if isinstance(smoothing, float) and smoothing == 0.0 else smoothing_dist
        self.mask = mask

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
        """The class of each row, (N,), of targets in the form LABELS; 0 where ``mask`` says that a row is ignored."""
        if self.form != LABELS:
            raise ValueError(f"labels are there in the form LABELS, these rows are {self.form.name}")
        return self.classes[:, 0]

    def __len__(self) -> int:
        return self._stored.shape[0]

    def __repr__(self) -> str:
        form = {LABELS: "labels", PAIRS: f"{self._stored.shape[1]} pairs per row", DENSE: "dense"}[self.form]
        mass = f"{self.smoothing:g}" if isinstance(self.smoothing, float) else "per row"
        ignored = ""
        if self.mask is not None:
            ignored = f", {int((~self.mask).sum())} ignored" if values_are_readable(self.mask) else ", with mask"
        head = f"{len(self)} rows, {self.num_classes} classes, {form}, smoothing {mass}{ignored}, {self.device}"
        rows = written_rows(self.index, self.weight, self.mask)
        return f"SoftTargets({head})" if rows is None else f"SoftTargets({head}:\n{rows})"

    @property
    def shape(self) -> torch.Size:
        """(N, K), as the dense rows have."""
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
        """The dtype of the weights; of labels, whose weights are implied, torch's default."""
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
        """Whether every row is one label and nothing else."""
        return self.form == LABELS and is_zero(self.smoothing)

    def pair_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weights (N, S), also where they are implied by the labels; in ``dtype`` where one is given."""
        if self.weight is not None:
            return self.weight if dtype is None else self.weight.to(dtype)
        dtype = dtype or torch.get_default_dtype()
        if isinstance(self.smoothing, Tensor):
            return (1 - self.smoothing.to(dtype))[:, None]
        return torch.full(self.classes.shape, 1 - self.smoothing, dtype=dtype, device=self.device)

    def background_mass(self, dtype: torch.dtype | None = None) -> Tensor:
        """ε of every row, (N,)."""
        if isinstance(self.smoothing, Tensor):
            return self.smoothing if dtype is None else self.smoothing.to(dtype)
        dtype = dtype or (torch.get_default_dtype() if self.weight is None else self.weight.dtype)
        return torch.full((len(self),), self.smoothing, dtype=dtype, device=self.device)

    def foreground(self, dtype: torch.dtype | None = None) -> Tensor:
        """The pairs as dense rows (N, K), without the background."""
        weight = self.pair_weight(dtype)
        if self.form == DENSE:
            return weight
        return weight.new_zeros(len(self), self.num_classes).scatter_add(1, self.classes, weight)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The rows as probabilities (N, K), NaN in rows that are ignored: they are of no class. Memory O(N·K)."""
        rows = self.unmasked_dense(dtype)
        return rows if self.mask is None else rows.masked_fill(self.mask.logical_not()[:, None], torch.nan)

    def unmasked_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """:meth:`dense` with ignored rows as they are stored, mostly as class 0: for sums that leave them out."""
        rows = self.foreground(dtype)
        if is_zero(self.smoothing):
            return rows
        return rows + self.background_mass(rows.dtype)[:, None] * self.background(rows.dtype)

    def to_dense(self) -> SoftTargets:
        """The same targets in the form DENSE, with the same rows ignored."""
        return SoftTargets(self.num_classes, None, self.unmasked_dense(), mask=self.mask)

    def numpy(self) -> Any:
        """The dense rows as a numpy array (N, K), NaN in rows that are ignored."""
        return self.dense().detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def background(self, dtype: torch.dtype) -> Tensor | float:
        """ξ, (K,), or the number 1/K where it is uniform."""
        return 1 / self.num_classes if self.smoothing_dist is None else self.smoothing_dist.to(dtype)

    def expectation(self, values: Tensor, background: bool = True) -> Tensor:
        """Σ_k α_ik·v_k for every row i, (N,), of ``values`` (K,) shared by the rows or (N, K).

        O(N·S), and O(K) or O(N·K) more for the background; without ``background`` only the pairs' part.
        """
        dtype, weight = values.dtype, self.pair_weight(values.dtype)
        if self.form == DENSE:
            total = (weight * values).sum(-1)
        else:
            picked = values[self.classes] if values.dim() == 1 else values.gather(1, self.classes)
            if self.form == PAIRS:  # one of weight 0 may be of a masked class
                picked = picked.masked_fill((weight == 0) & (picked == -torch.inf), 0)
            total = (weight * picked).sum(-1)
        if not background or is_zero(self.smoothing):
            return total
        return total + self.background_mass(dtype) * self.background_mean(values)

    def background_mean(self, values: Tensor) -> Tensor:
        """Σ_k ξ_k·v_k of ``values`` (K,) or (N, K)."""
        if self.smoothing_dist is None:
            return values.mean(-1)
        return (values * self.smoothing_dist.to(values.dtype)).sum(-1)

    def class_mass(self, dtype: torch.dtype | None = None) -> Tensor:
        """The sum of all rows that count, (K,), in ``dtype``, by default float32 or better. O(N·S + K)."""
        dtype = dtype or _at_least_float32(torch.float32 if self.weight is None else self.weight.dtype)
        weight = self.pair_weight(None if self.form == DENSE else dtype)
        weight = weight if self.mask is None else weight * self.mask[:, None]
        if self.form == DENSE:
            total = weight.sum(0, dtype=dtype)
        else:
            total = weight.new_zeros(self.num_classes).index_add(0, self.classes.flatten(), weight.flatten())
        if is_zero(self.smoothing):
            return total
        if self.mask is None and isinstance(self.smoothing, float):
            return total + self.smoothing * len(self) * self.background(total.dtype)
        mass = self.background_mass(dtype)
        return total + (mass if self.mask is None else mass * self.mask).sum() * self.background(total.dtype)

    def at(self, classes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """α_ik of the classes k named in row i of ``classes``, (N, C). O(N·C·S)."""
        weight = self.pair_weight(dtype)
        if self.form == DENSE:
            values = weight.gather(1, classes)
        else:
            same = classes[:, :, None] == self.classes[:, None, :]
            values = (same * weight[:, None, :]).sum(2)
        if is_zero(self.smoothing):
            return values
        background = self.background(values.dtype)
        spread = background[classes] if isinstance(background, Tensor) else background
        return values + self.background_mass(values.dtype)[:, None] * spread

    def argmax(self, ignore_index: int = -100) -> Tensor:
        """The likeliest class of each row, (N,); ``ignore_index`` for rows that are ignored."""
        ignore_index = as_whole(ignore_index, "ignore_index", None)
        if self.form == DENSE:
            best = self.unmasked_dense().argmax(1)
        else:
            named = self.classes
            if self.smoothing_dist is not None:  # the background's best class may be the best
                top = self.smoothing_dist.argmax().expand(len(self), 1)
                named = torch.cat([named, top], 1)
            best = named.gather(1, self.at(named).argmax(1, keepdim=True))[:, 0]
        return best if self.mask is None else torch.where(self.mask, best, ignore_index)

    def entropy(self) -> Tensor:
        """−Σ_k α_ik log α_ik of each row, (N,), in nats; NaN for rows that are ignored. O(N·S² + K)."""
        if self.form == DENSE:
            rows = self.unmasked_dense()
            total = -torch.xlogy(rows, rows).sum(1)
        else:
            values, same = self.at(self.classes), self.classes[:, :, None] == self.classes[:, None, :]
            first = same.int().argmax(2) == torch.arange(values.shape[1], device=self.device)
            total = -torch.xlogy(values, values)
            if not is_zero(self.smoothing):  # the classes that are not named hold background alone
                mass, spread = self.background_mass(values.dtype), self.background(values.dtype)
                each = spread if isinstance(spread, Tensor) else values.new_full((self.num_classes,), spread)
                alone = mass[:, None] * each[self.classes]
                total = total + torch.xlogy(alone, alone)
            total = (total * first).sum(1)
            if not is_zero(self.smoothing):
                total = total - torch.xlogy(mass, mass) - mass * torch.xlogy(each, each).sum()
        total = total.clamp(min=0)
        return total if self.mask is None else total.masked_fill(self.mask.logical_not(), torch.nan)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One label (N,) from each row. O(N·S), and O(N·log K) more for a background that is not uniform."""
        check_generator(generator)
        if self.form == DENSE and is_zero(self.smoothing):
            return torch.multinomial(self.pair_weight().clamp(min=0), 1, generator=generator)[:, 0]
        weight, mass = self.pair_weight(), self.background_mass()
        # The pairs' weights come first on the unit interval; past them lies the background.
        edges = weight.double().cumsum(1)
        total = edges[:, -1:] + mass.double()[:, None]
        u = torch.rand(len(self), 1, dtype=torch.float64, device=self.device, generator=generator) * total
        slot = (u >= edges).sum(1, keepdim=True)
        if is_zero(self.smoothing):  # u rounded up to the very end belongs to the last pair that has weight
            last = torch.where(weight > 0, torch.arange(weight.shape[1], device=self.device), 0).amax(1, keepdim=True)
            slot = torch.minimum(slot, last)
        inside = slot.clamp(max=weight.shape[1] - 1)
        label = inside if self.form == DENSE else self.classes.gather(1, inside)
        if not is_zero(self.smoothing):
            background = sample_labels(self.smoothing_dist, len(self), self.num_classes, self.device, generator)
            label = torch.where(slot < weight.shape[1], label, background[:, None])
        return label[:, 0]

    # -------------------------------------------------------------------------------------------- operations

    def smooth(self, smoothing: float, smoothing_dist: Tensor | None = None) -> SoftTargets:
        """Every row moved by ``smoothing`` towards ``smoothing_dist``: (1 − ε)·α + ε·ξ."""
        smoothing = check_smoothing(smoothing, smoothing_dist, self.num_classes)
        if smoothing == 0:
            return self
        weight = None if self.weight is None else self.weight * (1 - smoothing)
        mass = smoothing if is_zero(self.smoothing) else smoothing + (1 - smoothing) * self.smoothing
        if isinstance(mass, float):  # one mass for all rows: two backgrounds make one
            dist = mixed_dist(smoothing, smoothing_dist, mass - smoothing, self.smoothing_dist, self.num_classes)
        else:
            dist = common_dist([(self.smoothing, self.smoothing_dist), (smoothing, smoothing_dist)], self.num_classes)
        return SoftTargets(self.num_classes, self.index, weight, mass, dist, self.mask)

    def mix(self, other: SoftTargets, lam: float | Tensor) -> SoftTargets:
        """MixUp or CutMix of the targets: ``lam``·self + (1 − ``lam``)·other, ``lam`` one number or (N,).

        Pairs stay pairs (S adds up), and a background shared by both stays shared.
        """
        if not isinstance(other, SoftTargets):
            raise TypeError(f"other must be SoftTargets, got {type(other).__name__}")
        if other.num_classes != self.num_classes or len(other) != len(self):
            raise ValueError(
                f"other must have {len(self)} rows and {self.num_classes} classes as self has, "
                f"got {len(other)} rows and {other.num_classes} classes"
            )
        lam, column = self._share(lam)
        dist = common_dist(
            [(self.smoothing, self.smoothing_dist), (other.smoothing, other.smoothing_dist)], self.num_classes
        )
        if same_number(self.smoothing, other.smoothing):
            mass = self.smoothing
        else:
            mass = lam * self.smoothing + (1 - lam) * other.smoothing
        mask = self.mask if other.mask is None else other.mask
        if self.mask is not None and other.mask is not None:
            mask = self.mask & other.mask
        # Weights implied by labels are born here, in lam's precision.
        born = lam.dtype if isinstance(lam, Tensor) and lam.is_floating_point() else None
        if DENSE in (self.form, other.form):
            weight = column * self.foreground() + (1 - column) * other.foreground()
            return SoftTargets(self.num_classes, None, weight, mass, dist, mask)
        mine, its = (t.pair_weight(born if t.form == LABELS else None) for t in (self, other))
        weight = torch.cat([column * mine, (1 - column) * its], 1)
        return SoftTargets(self.num_classes, torch.cat([self.classes, other.classes], 1), weight, mass, dist, mask)

    def _share(self, lam: float | ArrayLike) -> tuple[float | Tensor, float | Tensor]:
        """λ of :meth:`mix`, checked, and as it multiplies rows."""
        if not isinstance(lam, (Tensor, SupportsFloat)) or getattr(lam, "ndim", 0) > 0:
            lam = as_tensor(lam, "lam")
        if isinstance(lam, Tensor) and lam.dim() == 0 and values_are_checked(lam):
            lam = float(lam)
        if isinstance(lam, Tensor):
            if lam.is_complex() or (lam.dim() > 0 and lam.shape != (len(self),)):
                raise ValueError(
                    f"lam must be a number or have shape ({len(self)},), got {tuple(lam.shape)} of {lam.dtype}"
                )
            if values_are_checked(lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
                raise ValueError(f"lam must lie in [0, 1], got values from {lam.min():.4g} to {lam.max():.4g}")
            lam = lam.to(self.device)
            return lam, lam[:, None] if lam.dim() else lam
        if not 0 <= float(lam) <= 1:
            raise ValueError(f"lam must lie in [0, 1], got {lam}")
        return float(lam), float(lam)

    def compact(self, *others: SoftTargets) -> tuple[Tensor, *tuple[SoftTargets, ...]]:
        r"""The classes that occur in these rows or in ``others``, and the same targets over those classes alone.

        With it the label table may live anywhere: ask its engine (a parameter server, TorchRec, an FSDP gather) for the
        rows of ``classes``, and take the loss of their logits. This equals the loss from the whole table, in value and
        gradient, with the noise of those classes: η[classes], normalised. (η is defined up to a factor: all scores move
        by one constant, which every contrast drops.) It holds for contrastive losses whose candidates are the batch or
        ``others``; candidates that reach further classes (``NoiseCandidates``, ``ClassCandidates``, and
        ``SampledCandidates``, which draw inside the loss) do not fit.

        Time O(N·S·log(N·S)), whatever K, or O(N·K) for dense rows. How many classes occur depends on the values, so on
        a GPU the host waits for them.

        Args:
            others: further targets of the same K classes, for example candidates (M, K).

        Returns:
            ``classes`` (U,), sorted, at least one; these rows over U classes; each of ``others`` over U classes.
            Weights, forms and ignored rows stay; pairs of weight 0 count as no class.

        >>> targets = SoftTargets.from_labels(torch.tensor([7, 90, 7]), num_classes=100)
        >>> drawn = SoftTargets.from_pairs([[5, 90]], [[0.5, 0.5]], num_classes=100)
        >>> classes, small, candidates = targets.compact(drawn)
        >>> classes, small.labels, candidates.index
        (tensor([ 5,  7, 90]), tensor([1, 2, 1]), tensor([[0, 2]]))
        """
        members = (self, *others)
        for other in others:
            if not isinstance(other, SoftTargets):
                raise TypeError(f"others must be SoftTargets, got {type(other).__name__}")
            if other.num_classes != self.num_classes or other.device != self.device:
                raise ValueError(
                    f"others must have {self.num_classes} classes on {self.device} as these rows have, "
                    f"got {other.num_classes} classes on {other.device}"
                )
        for member in members:
            if not is_zero(member.smoothing):
                raise ValueError(
                    f"{'these rows' if member is self else 'others'} must have no background, got smoothing, which "
                    "touches every class; compact unsmoothed targets and pass label_smoothing to SoftTargetInfoNCE"
                )
        classes = torch.cat([member._occurring() for member in members]).unique()
        if len(classes) == 0:
            classes = classes.new_zeros(1)
        return classes, *(member._over(classes) for member in members)

    def _occurring(self) -> Tensor:
        """Classes of the rows that count, with weight, repeated as they come."""
        if self.form == DENSE:
            occurs = self.pair_weight() != 0
            return (occurs if self.mask is None else occurs & self.mask[:, None]).any(0).nonzero()[:, 0]
        if self.weight is None:
            return self.labels if self.mask is None else self.labels[self.mask]
        occurs = self.weight != 0
        return self.classes[occurs if self.mask is None else occurs & self.mask[:, None]]

    def _over(self, classes: Tensor) -> SoftTargets:
        """These rows over some of the classes, sorted, which hold all that occur."""
        if self.form == DENSE:
            rows = self.pair_weight()[:, classes]
            if self.mask is not None:  # an ignored row, of whose classes none may be there, is a row too
                first = torch.arange(len(classes), device=self.device) == 0
                rows = torch.where(self.mask[:, None], rows, first.to(rows.dtype))
            return SoftTargets(len(classes), None, rows, mask=self.mask)
        # A pair without weight, or of an ignored row, may name a class that is not there.
        place = torch.searchsorted(classes, self.classes.contiguous()).clamp(max=len(classes) - 1)
        return SoftTargets(len(classes), place, self.weight, mask=self.mask)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        """Row by row, (N,): whether all weights are equal. Rows that are ignored in both are equal."""
        return self._close(other, 0.0, 0.0) if isinstance(other, SoftTargets) else NotImplemented

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return ~self._close(other, 0.0, 0.0) if isinstance(other, SoftTargets) else NotImplemented

    __hash__ = object.__hash__  # as tensors have it

    def allclose(self, other: SoftTargets, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether all weights of all rows agree, |a − b| ≤ atol + rtol·|b|, whatever form they are stored in."""
        if not isinstance(other, SoftTargets):
            raise TypeError(f"other must be SoftTargets, got {type(other).__name__}")
        return bool(self._close(other, rtol, atol).all())

    def _close(self, other: SoftTargets, rtol: float, atol: float) -> Tensor:
        """Which rows agree, (N,). O(N·S²) where the backgrounds allow it, else O(N·K)."""
        if self.shape != other.shape or self.device != other.device:
            raise ValueError(
                f"other must be of shape {tuple(self.shape)} on {self.device} as self is, "
                f"got {tuple(other.shape)} on {other.device}"
            )
        dtype = torch.promote_types(self.dtype, other.dtype)
        uniform = self.smoothing_dist is None and other.smoothing_dist is None
        named = None
        if DENSE not in (self.form, other.form) and (uniform or self.shares_background(other)):
            named = torch.cat([self.classes, other.classes], 1)
        if named is None or named.shape[1] >= self.num_classes:
            mine, its = (t.unmasked_dense(dtype) for t in (self, other))
        else:  # the other classes hold background alone, equal where it is shared
            mine, its = (torch.cat([t.at(named, dtype), t.background_mass(dtype)[:, None]], 1) for t in (self, other))
            mine[:, -1] /= self.num_classes
            its[:, -1] /= self.num_classes
        close = ((mine - its).abs() <= atol + rtol * its.abs()).all(1)
        if self.mask is None and other.mask is None:
            return close
        counts, its_counts = (torch.ones_like(close) if t.mask is None else t.mask for t in (self, other))
        return torch.where(counts & its_counts, close, counts == its_counts)

    def __getitem__(self, rows: int | slice | ArrayLike) -> SoftTargets:
        """The rows named by a number, a slice, integers (R,) or a mask (N,); a number gives SoftTargets of one row."""
        if not isinstance(rows, (int, slice)):
            rows = self._rows_named(rows)
        if not isinstance(rows, slice) and not isinstance(rows, Tensor):
            size = len(self)
            if isinstance(rows, bool) or not -size <= rows < size:
                raise IndexError(f"rows must be in 0 … {size - 1}, got {rows}")
            rows = slice(rows, rows + 1 or None)
        # Written out: a data set of rows comes here for every sample.
        index, weight, smoothing, mask = self.index, self.weight, self.smoothing, self.mask
        return SoftTargets(
            self.num_classes,
            None if index is None else index[rows],
            None if weight is None else weight[rows],
            smoothing if isinstance(smoothing, float) else smoothing[rows],
            self.smoothing_dist,
            None if mask is None else mask[rows],
        )

    def _rows_named(self, rows: Any) -> int | slice | Tensor:
        """What :meth:`__getitem__` was given, as a Python number or a tensor of integers or of booleans."""
        if isinstance(rows, tuple) and len(rows) == 2 and (rows[1] is Ellipsis or rows[1] == slice(None)):
            rows = rows[0]  # as arrays are indexed where they may have further dimensions
        if rows is None or isinstance(rows, tuple) or rows is Ellipsis:
            raise IndexError(f"SoftTargets are indexed by rows alone, got {rows!r}")
        if isinstance(rows, slice):
            return rows
        if isinstance(rows, SupportsIndex) and not getattr(rows, "ndim", 0):
            return operator.index(rows)
        try:
            found = as_tensor(rows, "rows")
        except TypeError as error:
            raise IndexError(f"SoftTargets are indexed by rows alone: {error}") from None
        if found.numel() == 0 and not isinstance(rows, Tensor):
            found = found.long()  # an empty list has no dtype of its own
        fits = found.shape == (len(self),) if found.dtype == torch.bool else found.dim() == 1
        if not fits or found.is_floating_point() or found.is_complex():
            raise IndexError(
                f"rows must be integers (R,) or a mask ({len(self)},), got {found.dtype} of shape {tuple(found.shape)}"
            )
        if found.dtype == torch.uint8:
            found = found.long()  # torch takes bytes for a mask
        if found.dtype != torch.bool and found.numel() and values_are_checked(found):
            low, high = (int(v) for v in torch.aminmax(found))
            if low < -len(self) or high >= len(self):
                wrong = low if low < -len(self) else high
                raise IndexError(f"rows must be in 0 … {len(self) - 1}, got {wrong}")
        return found

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
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating point dtype, got {dtype!r}")
        if device is not None and not isinstance(device, (torch.device, str, int)):
            raise TypeError(f"device must be a device or a dtype, got {type(device).__name__}")

        def move(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None, non_blocking=non_blocking)

        return self._map(move, shared=True)

    def cpu(self) -> SoftTargets:
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None, non_blocking: bool = False) -> SoftTargets:
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def detach(self) -> SoftTargets:
        if self.form == LABELS and isinstance(self.smoothing, float):
            return self  # labels have no gradient
        return self._map(lambda x: x.detach())

    def clone(self) -> SoftTargets:
        return self._map(lambda x: x.clone())

    def pin_memory(self) -> SoftTargets:
        return self._map(lambda x: x.pin_memory(), shared=True)

    def shares_background(self, other: SoftTargets) -> bool:
        """Whether every row of both has one and the same background, so that it cancels between their scores."""
        return same_number(self.smoothing, other.smoothing) and (is_zero(self.smoothing) or self.shares_dist(other))

    def shares_dist(self, other: SoftTargets) -> bool:
        """Whether both are known to spread their background alike."""
        return same_dist(self.smoothing_dist, other.smoothing_dist, self.num_classes, unread=False)

    @staticmethod
    def cat(parts: Sequence[SoftTargets]) -> SoftTargets:
        """All rows one after the other. Shorter pairs are filled up; pairs beside dense rows become dense."""
        if isinstance(parts, (SoftTargets, Tensor)) or not isinstance(parts, Iterable):
            raise TypeError(f"parts must be a list of SoftTargets, got {type(parts).__name__}")
        parts = list(parts)
        if not parts:
            raise ValueError("parts must hold at least one SoftTargets, got none")
        for part in parts:
            if not isinstance(part, SoftTargets):
                raise TypeError(
                    f"parts must be a list of SoftTargets: cat takes SoftTargets, got {type(part).__name__}"
                )
        first = parts[0]
        if len(parts) == 1:
            return first
        # In few passes over the parts: a batch of a data set's rows comes here row by row.
        num_classes = first.num_classes
        for part in parts:
            if part.num_classes != num_classes:
                raise ValueError(f"parts must have the same classes, got {num_classes} and {part.num_classes} classes")
        mass, dist = first.smoothing, first.smoothing_dist
        if not all(part.smoothing is mass and part.smoothing_dist is dist for part in parts):
            dist = common_dist([(part.smoothing, part.smoothing_dist) for part in parts], num_classes)
        if isinstance(mass, Tensor) or not all(same_number(part.smoothing, mass) for part in parts):
            mass = torch.cat([part.background_mass() for part in parts])
        mask = SoftTargets.joint_mask(parts)
        indices = [part.index for part in parts if part.index is not None]
        weights = [part.weight for part in parts if part.weight is not None]
        if len(indices) < len(parts):
            weight = torch.cat([part.foreground() for part in parts])
            return SoftTargets(num_classes, None, weight, mass, dist, mask)
        width = max(index.shape[1] for index in indices)
        index = torch.cat([_fill(index, width) for index in indices])
        if not weights:
            return SoftTargets(num_classes, index, None, mass, dist, mask)
        if len(weights) < len(parts):
            weights = [part.pair_weight() for part in parts]
        return SoftTargets(num_classes, index, torch.cat([_fill(w, width) for w in weights]), mass, dist, mask)

    @staticmethod
    def joint_mask(parts: Sequence[SoftTargets]) -> Tensor | None:
        """Which rows of all parts, one after the other, count; None when all do."""
        if all(part.mask is None for part in parts):
            return None
        everyone = [torch.ones(len(p), dtype=torch.bool, device=p.device) if p.mask is None else p.mask for p in parts]
        return torch.cat(everyone)

    def _map(self, f: Any, shared: bool = False) -> SoftTargets:
        """``f`` on every tensor with a row dimension, and on ξ where ``shared``."""
        dist = self.smoothing_dist
        return SoftTargets(
            self.num_classes,
            None if self.index is None else f(self.index),
            None if self.weight is None else f(self.weight),
            f(self.smoothing) if isinstance(self.smoothing, Tensor) else self.smoothing,
            f(dist) if shared and dist is not None else dist,
            None if self.mask is None else f(self.mask),
        )


def as_soft_targets(
    targets: Tensor | SoftTargets,
    num_classes: int,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> SoftTargets:
    """What a loss was given, labels (N,), probabilities (N, K) or SoftTargets, as SoftTargets."""
    if isinstance(targets, SoftTargets):
        if targets.num_classes != num_classes:
            raise ValueError(f"targets have {targets.num_classes} classes, logits have {num_classes}")
        return targets.smooth(label_smoothing)
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor or SoftTargets, got {type(targets).__name__}")
    if targets.dim() == 1:
        return SoftTargets._from_labels(targets, num_classes, label_smoothing, None, ignore_index, "targets")
    if targets.dim() != 2 or targets.shape[1] != num_classes:
        raise ValueError(
            f"targets must be (N,) labels or (N, {num_classes}) probabilities, got shape {tuple(targets.shape)}"
        )
    if not targets.is_floating_point():
        raise TypeError(
            f"targets of shape (N, K) must be floating point probabilities, got {targets.dtype}{FOR_COUNTS}"
        )
    recognise = targets.device.type == "cpu" and values_are_readable(targets)  # an accelerator would have to wait
    return SoftTargets._from_dense(targets, "targets", recognise).smooth(label_smoothing)


def _fill(pairs: Tensor, width: int) -> Tensor:
    return pairs if pairs.shape[1] == width else torch.nn.functional.pad(pairs, (0, width - pairs.shape[1]))


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


# Soft targets saved with torch.save load with weights_only=True, as a file of a teacher's outputs should.
torch.serialization.add_safe_globals([SoftTargets])

# A DataLoader whose data set returns rows (``t[i]``) collates them as it does tensors.
default_collate_fn_map[SoftTargets] = lambda batch, *, collate_fn_map=None: SoftTargets.cat(batch)
