"""Soft targets, stored as what people really have: a few (class, weight) pairs per row and one shared background."""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from typing import Any, Literal, SupportsFloat, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from softnce._checks import (
    as_number,
    check_distribution,
    check_labels,
    check_rows_sum_to_one,
    check_tensor,
    values_are_checked,
)
from softnce.targets._background import common_dist, is_zero, mixed_dist, same_dist, same_number
from softnce.targets._sampling import sample_labels


class Form(enum.IntEnum):
    """How the rows of a :class:`SoftTargets` are stored."""

    LABELS = 0
    """One class per row: ``index`` (N, 1), its weight 1 − ε is implied."""
    PAIRS = 1
    """S weighted classes per row: ``index`` and ``weight`` (N, S)."""
    DENSE = 2
    """A weight for every class: ``weight`` (N, K)."""


LABELS, PAIRS, DENSE = Form


class SoftTargets:
    r"""N points on the simplex of K classes.

    Row i is :math:`\alpha_i = \sum_j w_{ij}\, e_{index_{ij}} + \varepsilon_i\, \xi`: S weighted classes and a
    background of mass ε spread over all classes as ξ. Memory is O(N·S + K), whatever K.

    ================  ==========  =============  ==============  ============================
    made by           ``form``    ``index``      ``weight``      S
    ================  ==========  =============  ==============  ============================
    ``from_labels``   LABELS      (N, 1)         None: 1 − ε     1
    ``mix``           PAIRS       (N, S)         (N, S)          2 after MixUp or CutMix
    ``from_topk``     PAIRS       (N, k)         (N, k)          k
    ``from_pairs``    PAIRS       (N, S)         (N, S)          given
    ``from_dense``    DENSE       None           (N, K)          K
    ================  ==========  =============  ==============  ============================

    Attributes:
        index: class of each pair, int64, or None when ``weight`` runs over all classes.
        weight: weight of each pair. Pairs that fill up a row have weight 0. With the background they sum to 1.
        smoothing: ε, one number for all rows or a tensor (N,).
        smoothing_dist: ξ, a tensor (K,), or None for uniform.
        mask: (N,) rows that count, or None when all do. A masked row is neither a positive nor a candidate.

    Build it with the ``from_*`` methods; they check their input.

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

    # ------------------------------------------------------------------------------------------ constructors

    @classmethod
    def from_labels(
        cls,
        labels: Tensor,
        num_classes: int,
        smoothing: float = 0.0,
        smoothing_dist: Tensor | None = None,
        ignore_index: int = -100,
    ) -> SoftTargets:
        """Labels (N,), smoothed by ``smoothing`` towards ``smoothing_dist`` (ξ, None = uniform)."""
        return _from_labels(labels, num_classes, smoothing, smoothing_dist, ignore_index, "labels")

    @classmethod
    def from_dense(cls, probs: Tensor) -> SoftTargets:
        """Probabilities (N, K), such as timm's or torchvision's MixUp returns."""
        check_tensor(probs, "probs")
        if probs.dim() != 2 or not probs.is_floating_point():
            raise ValueError(
                f"probs must be a floating point (N, K) tensor, got shape {tuple(probs.shape)} of {probs.dtype}"
            )
        if values_are_checked(probs):
            check_rows_sum_to_one(probs, "probs")
        return cls(probs.shape[1], None, probs)

    @classmethod
    def from_pairs(cls, index: Tensor, weight: Tensor, num_classes: int) -> SoftTargets:
        """S weighted classes per row: ``index`` (N, S) and ``weight`` (N, S), each row of which sums to 1.

        Rows with fewer pairs are filled up with weight 0 (the index is then ignored, but must be in range); a class
        named twice counts with the sum of its weights.
        """
        check_tensor(index, "index")
        check_tensor(weight, "weight")
        if index.dim() != 2 or index.shape != weight.shape or index.shape[1] == 0:
            raise ValueError(
                "index and weight must have one shape (N, S) with S ≥ 1, "
                f"got {tuple(index.shape)} and {tuple(weight.shape)}"
            )
        if not weight.is_floating_point():
            raise TypeError(f"weight must be a floating point tensor, got {weight.dtype}")
        check_labels(index, num_classes, "index")
        if values_are_checked(weight):
            check_rows_sum_to_one(weight, "weight")
        return cls(num_classes, index.long(), weight)

    @classmethod
    def from_topk(
        cls,
        logits: Tensor,
        k: int,
        temperature: float = 1.0,
        remainder: Literal["renormalise", "spread"] = "renormalise",
    ) -> SoftTargets:
        """The k likeliest classes of a teacher with these ``logits`` (N, K), softened by ``temperature``.

        What the other classes had is given to the k in proportion (``"renormalise"``) or spread uniformly over all
        classes (``"spread"``; then the background's mass differs from row to row).
        """
        check_tensor(logits, "logits")
        if logits.dim() != 2 or not logits.is_floating_point():
            raise ValueError(f"logits must be floating point (N, K), got {tuple(logits.shape)} {logits.dtype}")
        num_classes = logits.shape[1]
        if not 1 <= k <= num_classes:
            raise ValueError(f"k must be between 1 and the {num_classes} classes, got {k}")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        if remainder not in ("renormalise", "spread"):
            raise ValueError(f"remainder must be 'renormalise' or 'spread', got {remainder!r}")
        if values_are_checked(logits) and not bool((logits < torch.inf).all()):
            raise ValueError("logits hold NaN or +inf")
        scaled = logits.to(_at_least_float32(logits.dtype)) / temperature
        top, index = scaled.topk(k, dim=1)
        if remainder == "renormalise":
            return cls(num_classes, index, top.softmax(1))
        weight = (top - scaled.logsumexp(1, keepdim=True)).exp()
        return cls(num_classes, index, weight, (1 - weight.sum(1)).clamp(0, 1))

    @classmethod
    def from_votes(cls, counts: Tensor) -> SoftTargets:
        """Annotators' votes (N, K): row i is the share of annotators of sample i that chose each class.

        Stored as pairs when few of the K classes were ever chosen for one sample, else as dense rows.
        """
        check_tensor(counts, "counts")
        if counts.dim() != 2:
            raise ValueError(f"counts must have shape (N, K), got {tuple(counts.shape)}")
        share = counts.to(torch.get_default_dtype())
        total = share.sum(1, keepdim=True)
        if not bool(share.isfinite().all()) or bool((share < 0).any()):
            raise ValueError("counts must be finite and not negative")
        if bool((total == 0).any()):
            row = int((total[:, 0] == 0).nonzero()[0])
            raise ValueError(f"counts has no vote in row {row}; leave such rows out")
        share = share / total
        chosen = max(1, int((counts > 0).sum(1).amax())) if len(counts) else 1
        if 4 * chosen > counts.shape[1]:
            return cls(counts.shape[1], None, share)
        weight, index = share.topk(chosen, dim=1)
        return cls(counts.shape[1], index, weight)

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
        """The class of each row, (N,), of targets in the form LABELS."""
        if self.form != LABELS:
            raise ValueError(f"labels are there in the form LABELS, these rows are {self.form.name}")
        return self.classes[:, 0]

    def __len__(self) -> int:
        return len(self._stored)

    def __repr__(self) -> str:
        form = {LABELS: "labels", PAIRS: f"{self._stored.shape[1]} pairs per row", DENSE: "dense"}[self.form]
        mass = f"{self.smoothing:g}" if isinstance(self.smoothing, float) else "per row"
        return f"SoftTargets({len(self)} rows, {self.num_classes} classes, {form}, smoothing {mass}, {self.device})"

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
        """The rows as probabilities (N, K). Memory O(N·K)."""
        rows = self.foreground(dtype)
        if is_zero(self.smoothing):
            return rows
        return rows + self.background_mass(rows.dtype)[:, None] * self.background(rows.dtype)

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
        elif values.dim() == 1:
            total = (weight * values[self.classes]).sum(-1)
        else:
            total = (weight * values.gather(1, self.classes)).sum(-1)
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
        weight, mass = self.pair_weight(None if self.form == DENSE else dtype), self.background_mass(dtype)
        if self.mask is not None:
            weight, mass = weight * self.mask[:, None], mass * self.mask
        if self.form == DENSE:
            total = weight.sum(0, dtype=dtype)
        else:
            total = weight.new_zeros(self.num_classes).index_add(0, self.classes.flatten(), weight.flatten())
        if is_zero(self.smoothing):
            return total
        return total + mass.sum() * self.background(total.dtype)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One label (N,) from each row. O(N·S), and O(N·log K) more for a background that is not uniform."""
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
        smoothing = _check_smoothing(smoothing, smoothing_dist, self.num_classes)
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
        if isinstance(lam, Tensor) and lam.dim() == 0 and values_are_checked(lam):
            lam = float(lam)
        if isinstance(lam, Tensor):
            if lam.dim() > 0 and lam.shape != (len(self),):
                raise ValueError(f"lam must be a number or have shape ({len(self)},), got {tuple(lam.shape)}")
            if values_are_checked(lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
                raise ValueError(f"lam must lie in [0, 1], got values from {lam.min():.4g} to {lam.max():.4g}")
            lam = lam.to(self.device)
            column: float | Tensor = lam[:, None] if lam.dim() else lam
        else:
            if not isinstance(lam, SupportsFloat):
                raise TypeError(f"lam must be a number or a tensor (N,), got {type(lam).__name__}")
            lam = float(lam)
            if not 0 <= lam <= 1:
                raise ValueError(f"lam must lie in [0, 1], got {lam}")
            column = lam
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

    def __getitem__(self, rows: int | slice | Tensor | Sequence[int]) -> SoftTargets:
        """The rows named; a single number, of Python, numpy or torch, gives a SoftTargets of one row."""
        if rows is None or isinstance(rows, tuple) or rows is Ellipsis:
            raise IndexError(f"SoftTargets are indexed by rows alone, got {rows!r}")
        if isinstance(rows, SupportsIndex) and not (isinstance(rows, Tensor) and rows.dim() > 0):
            row = operator.index(rows)
            if not -len(self) <= row < len(self):
                raise IndexError(f"row {row} of {len(self)}")
            rows = slice(row, row + 1 or None)
        return self._map(lambda x: x[rows])

    def flip(self, dim: int = 0) -> SoftTargets:
        """The rows in reverse order: timm's partner for MixUp."""
        if dim != 0:
            raise ValueError(f"dim must be 0, the rows, got {dim}")
        return self._map(lambda x: x.flip(0))

    def to(self, device: torch.device | str | int | torch.dtype, non_blocking: bool = False) -> SoftTargets:
        """On another device, or with weights of another floating point dtype."""
        if isinstance(device, torch.dtype):
            return self._map(lambda x: x.to(device) if x.is_floating_point() else x, shared=True)
        return self._map(lambda x: x.to(device, non_blocking=non_blocking), shared=True)

    def cpu(self) -> SoftTargets:
        return self.to("cpu")

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
        parts = list(parts)
        if not parts:
            raise ValueError("SoftTargets.cat needs at least one part")
        for part in parts:
            if not isinstance(part, SoftTargets):
                raise TypeError(f"SoftTargets.cat takes SoftTargets, got {type(part).__name__}")
        first = parts[0]
        if len(parts) == 1:
            return first
        for part in parts[1:]:
            if part.num_classes != first.num_classes:
                raise ValueError(f"parts have {first.num_classes} and {part.num_classes} classes")
        dist = common_dist([(part.smoothing, part.smoothing_dist) for part in parts], first.num_classes)
        mask = SoftTargets.joint_mask(parts)
        mass = first.smoothing
        if not all(same_number(part.smoothing, mass) for part in parts):
            mass = torch.cat([part.background_mass() for part in parts])
        form = max(part.form for part in parts)
        if form == DENSE:
            weight = torch.cat([part.foreground() for part in parts])
            return SoftTargets(first.num_classes, None, weight, mass, dist, mask)
        width = max(part.classes.shape[1] for part in parts)
        index = torch.cat([_fill(part.classes, width) for part in parts])
        if form == LABELS:
            return SoftTargets(first.num_classes, index, None, mass, dist, mask)
        weight = torch.cat([_fill(part.pair_weight(), width) for part in parts])
        return SoftTargets(first.num_classes, index, weight, mass, dist, mask)

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
        return _from_labels(targets, num_classes, label_smoothing, None, ignore_index, "targets")
    if targets.dim() != 2 or targets.shape[1] != num_classes:
        raise ValueError(
            f"targets must be (N,) labels or (N, {num_classes}) probabilities, got shape {tuple(targets.shape)}"
        )
    if not targets.is_floating_point():
        raise TypeError(f"targets of shape (N, K) must be floating point probabilities, got {targets.dtype}")
    if values_are_checked(targets):
        check_rows_sum_to_one(targets, "targets")
    return SoftTargets(num_classes, None, targets).smooth(label_smoothing)


def _from_labels(
    labels: Tensor, num_classes: int, smoothing: float, smoothing_dist: Tensor | None, ignore_index: int, name: str
) -> SoftTargets:
    check_tensor(labels, name)
    if labels.dim() != 1:
        raise ValueError(f"{name} must have shape (N,), got {tuple(labels.shape)}")
    may_ignore = check_labels(labels, num_classes, name, ignore_index)
    smoothing = _check_smoothing(smoothing, smoothing_dist, num_classes)
    index, mask = labels.long(), None
    if may_ignore:
        mask = index != ignore_index
        index = torch.where(mask, index, 0)
    return SoftTargets(num_classes, index[:, None], None, smoothing, smoothing_dist, mask)


def _check_smoothing(smoothing: float, dist: Tensor | None, num_classes: int) -> float:
    smoothing = as_number(smoothing, "smoothing", "a number in [0, 1]")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must be a number in [0, 1], got {smoothing!r}")
    if dist is not None:
        check_distribution(dist, "smoothing_dist", num_classes)
    return smoothing


def _fill(pairs: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(pairs, (0, width - pairs.shape[1]))


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


# Soft targets saved with torch.save load with weights_only=True, as a file of a teacher's outputs should.
torch.serialization.add_safe_globals([SoftTargets])

# A DataLoader whose data set returns rows (``t[i]``) collates them as it does tensors.
default_collate_fn_map[SoftTargets] = lambda batch, *, collate_fn_map=None: SoftTargets.cat(batch)
