"""Algebra of soft targets: mixtures, statistics, draws, equality and the classes that occur."""

from __future__ import annotations

from typing import Any, Self, SupportsFloat

import torch
from torch import Tensor

from softnce._checks import (
    as_share,
    as_tensor,
    as_whole,
    check_distribution,
    check_generator,
    check_unit_interval,
    values_are_checked,
    values_are_readable,
)
from softnce._core import cpu
from softnce._precision import at_least_float32
from softnce.targets._background import common_dist, is_zero, same_dist, same_number
from softnce.targets._sampling import drawn_by, sample_labels
from softnce.targets._storage import DENSE, LABELS, PAIRS, ArrayLike, Storage, exact_dtype, fine


class Algebra(Storage):
    """The methods of :class:`~softnce.SoftTargets` that compute with the values of the rows."""

    # ---------------------------------------------------------------------------------------------- mixtures

    def smooth(self, smoothing: float, smoothing_dist: Tensor | None = None) -> Self:
        """Every row moved by ``smoothing`` towards ``smoothing_dist``: (1 − ε)·α + ε·ξ."""
        smoothing = check_smoothing(smoothing, smoothing_dist, self.num_classes)
        if smoothing == 0:
            return self
        self.check_no_rest("smooth")
        weight = None if self.weight is None else fine(self.weight) * (1 - smoothing)
        mass = smoothing if is_zero(self.smoothing) else smoothing + (1 - smoothing) * self.smoothing
        mine, its = self.smoothing_dist, smoothing_dist
        if not isinstance(mass, float):
            dist = common_dist([(self.smoothing, mine), (smoothing, its)], self.num_classes)
        elif is_zero(self.smoothing) or same_dist(mine, its, self.num_classes, unread=False):
            dist = its
        else:  # one mass for all rows: two backgrounds make one
            dists: list[Any] = [1 / self.num_classes if d is None else d for d in (its, mine)]
            dist = (smoothing * dists[0] + (mass - smoothing) * dists[1]) / mass
        return type(self)(self.num_classes, self.index, weight, mass, dist, self.mask, nominal_dtype=self.dtype)

    def mix(self, other: Self, lam: float | ArrayLike) -> Self:
        """MixUp or CutMix of the targets: ``lam``·self + (1 − ``lam``)·other, ``lam`` one number or (N,).

        Pairs stay pairs (S adds up), and a background shared by both stays shared.
        """
        self._check_alike(other, same_rows=True)
        for targets in (self, other):
            targets.check_no_rest("mix")
        lam, column = _share(lam, len(self), self.device)
        dist = common_dist([(t.smoothing, t.smoothing_dist) for t in (self, other)], self.num_classes)
        if same_number(self.smoothing, other.smoothing):
            mass = self.smoothing
        else:
            mass = lam * self.smoothing + (1 - lam) * other.smoothing
            mass = mass.expand(len(self)) if isinstance(mass, Tensor) else mass
        mask = self.mask if other.mask is None else other.mask if self.mask is None else self.mask & other.mask
        # Labels imply their weights, which are exact until λ rounds them.
        born, dtype = exact_dtype(self.device), torch.promote_types(self.dtype, other.dtype)
        if isinstance(lam, Tensor) and lam.is_floating_point():
            born, dtype = at_least_float32(lam.dtype), torch.promote_types(dtype, lam.dtype)
        if DENSE in (self.form, other.form):
            index, mine, its = None, *(fine(t.foreground(dtype if t.weight is None else None)) for t in (self, other))
            weight = column * mine + (1 - column) * its
        else:
            index = torch.cat([self.classes, other.classes], 1)
            mine, its = (t.pair_weight(born) if t.weight is None else fine(t.weight) for t in (self, other))
            weight = torch.cat([column * mine, (1 - column) * its], 1)
        return type(self)(self.num_classes, index, weight, mass, dist, mask, nominal_dtype=dtype)

    # -------------------------------------------------------------------------------------------- statistics

    def expectation(self, values: Tensor, background: bool = True) -> Tensor:
        """Σ_k α_ik·v_k for every row i, (N,), of ``values`` (K,) shared by the rows or (N, K).

        O(N·S), and O(K) or O(N·K) more for the background; without ``background`` only the pairs' part.
        """
        self.check_no_rest("expectation")
        dtype, weight = values.dtype, self.pair_weight(values.dtype)
        if self.form == DENSE:
            total = (weight * values).sum(-1)
        else:
            picked = values[self.classes] if values.dim() == 1 else values.gather(1, self.classes)
            if self.form == PAIRS:  # a pair of weight 0 may be of a masked class
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
        """The sum of all rows that count, (K,), added up in float64; in ``dtype`` if given. O(N·S + K)."""
        self.check_no_rest("class_mass")
        exact = exact_dtype(self.device)
        if self.device.type == "cpu" and is_zero(self.smoothing) and values_are_readable(self._stored):
            if self.form == DENSE and not self._stored.requires_grad:
                total = cpu.class_mass(self._stored, self.mask)
                return total if dtype is None else total.to(dtype)
            if self.form == LABELS and self.mask is None:
                return torch.bincount(self.labels, minlength=self.num_classes).to(dtype or exact)
        weight = self.pair_weight(None if self.form == DENSE else exact)
        weight = weight if self.mask is None else weight * self.mask[:, None]
        if self.form == DENSE:
            total = weight.sum(0, dtype=exact)
        else:
            total = weight.new_zeros(self.num_classes).index_add(0, self.classes.flatten(), weight.flatten())
        if not is_zero(self.smoothing):
            mass = self.background_mass(exact)
            mass = mass if self.mask is None else mass * self.mask
            total = total + mass.sum() * self.background(exact)
        return total if dtype is None else total.to(dtype)

    def at(self, classes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """α_ik of the classes k named in row i of ``classes``, (N, C), whatever the form. O(N·C·S)."""
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

    def vertex(self, smoothing: float = 0.0, smoothing_dist: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The class k, (N,), whose vertex (1 − ε)·e_k + ε·ξ is nearest to each row, and whether the row equals it.

        Decided by the values to within :func:`rounding`, whatever the form, and without waiting for an accelerator.
        O(N·S²) if the rows have this ξ, else O(N·K).
        """
        self.check_no_rest("vertex")
        vertices = type(self)(self.num_classes, self._stored[:1, :1].long(), None, smoothing, smoothing_dist)
        slack, exact = rounding(self), exact_dtype(self.device)
        is_short = self.form != DENSE and 2 * self.classes.shape[1] < self.num_classes
        if is_short and (is_zero(self.smoothing) or smoothing == 0 or self.shares_dist(vertices)):
            merged = (self.classes[:, :, None] == self.classes[:, None, :]) * self.pair_weight(exact)[:, None, :]
            highest, place = merged.sum(2).max(1)
            label = self.classes.gather(1, place[:, None])[:, 0]
            same_mass = (self.background_mass(exact) - smoothing).abs() <= slack
            return label, same_mass & (highest >= 1 - smoothing - slack)
        rows = self.unmasked_dense(exact) - smoothing * vertices.background(exact)
        highest, label = rows.max(1)
        return label, ((highest + smoothing - 1).abs() <= slack) & (rows.amin(1) >= -slack)

    def argmax(self, ignore_index: int = -100) -> Tensor:
        """The likeliest class of each row, (N,); ``ignore_index`` for rows that are ignored."""
        ignore_index = as_whole(ignore_index, "ignore_index", None)
        if self.form == DENSE:
            best = self.unmasked_dense().argmax(1)
        else:
            named = self.classes
            if self.smoothing_dist is not None:  # the background's best class may be the best
                named = torch.cat([named, self.smoothing_dist.argmax().expand(len(self), 1)], 1)
            best = named.gather(1, self.at(named).argmax(1, keepdim=True))[:, 0]
        return best if self.mask is None else torch.where(self.mask, best, ignore_index)

    def entropy(self) -> Tensor:
        """−Σ_k α_ik log α_ik of each row, (N,), in nats; NaN for rows that are ignored. O(N·S² + K)."""
        self.check_no_rest("entropy")
        if self.form == DENSE:
            rows = self.unmasked_dense()
            total = -torch.xlogy(rows, rows).sum(1)
        else:
            values = self.at(self.classes)
            total = -torch.xlogy(values, values)
            if not is_zero(self.smoothing):  # the classes that are not named hold background alone
                mass, each = self.background_mass(values.dtype), values.new_zeros(self.num_classes)
                each += self.background(values.dtype)
                alone = mass[:, None] * each[self.classes]
                total = total + torch.xlogy(alone, alone)
            same = self.classes[:, :, None] == self.classes[:, None, :]
            total = (total * ~same.tril(-1).any(2)).sum(1)  # of pairs that name one class, the first counts
            if not is_zero(self.smoothing):
                total = total - torch.xlogy(mass, mass) - mass * torch.xlogy(each, each).sum()
        total = total.clamp(min=0).to(self.dtype)
        return total if self.mask is None else total.masked_fill(self.mask.logical_not(), torch.nan)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One label (N,) from each row. O(N·S), and O(N·log K) more for a background that is not uniform."""
        self.check_no_rest("sample")
        check_generator(generator)
        if self.form == DENSE and is_zero(self.smoothing):
            return torch.multinomial(self.pair_weight().clamp(min=0), 1, **drawn_by(generator))[:, 0]
        weight, mass = self.pair_weight(), self.background_mass()
        # The pairs' weights come first on the unit interval; past them lies the background.
        edges = weight.double().cumsum(1)
        total = edges[:, -1:] + mass.double()[:, None]
        u = torch.rand(len(self), 1, dtype=torch.float64, device=self.device, **drawn_by(generator)) * total
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

    # ---------------------------------------------------------------------------------------------- equality

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        """Row by row, (N,): whether all weights are equal. Rows that are ignored in both are equal."""
        return self._close(other, 0.0, 0.0) if isinstance(other, Algebra) else NotImplemented

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return ~self._close(other, 0.0, 0.0) if isinstance(other, Algebra) else NotImplemented

    __hash__ = object.__hash__  # as tensors have it

    def allclose(self, other: Self, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether all weights of all rows agree, |a − b| ≤ atol + rtol·|b|, whatever form they are stored in."""
        if not isinstance(other, Algebra):
            raise TypeError(f"other must be SoftTargets, got {type(other).__name__}")
        return bool(self._close(other, rtol, atol).all())

    def _close(self, other: Algebra, rtol: float, atol: float) -> Tensor:
        """Which rows agree, (N,). O(N·S²) where the backgrounds allow it, else O(N·K)."""
        if self.shape != other.shape or self.device != other.device:
            raise ValueError(
                f"other must be of shape {tuple(self.shape)} on {self.device} as self is, "
                f"got {tuple(other.shape)} on {other.device}"
            )
        dtype = torch.promote_types(self.dtype, other.dtype)
        uniform = self.smoothing_dist is None and other.smoothing_dist is None
        has_rest = self.rest is not None or other.rest is not None
        named = None
        if DENSE not in (self.form, other.form) and (uniform or self.shares_background(other)):
            named = torch.cat([self.classes, other.classes], 1)
        if named is None or (named.shape[1] >= self.num_classes and not has_rest):
            mine, its = (t.unmasked_dense(dtype) for t in (self, other))
        else:  # the other classes hold background alone, equal if it is shared; or the group, if it is of these classes
            mine, its = (torch.cat([t.at(named, dtype), *t._beyond(named, dtype)], 1) for t in (self, other))
        close = ((mine - its).abs() <= atol + rtol * its.abs()).all(1)
        if self.mask is None and other.mask is None:
            return close
        counts, its = (torch.ones_like(close) if t.mask is None else t.mask for t in (self, other))
        return torch.where(counts & its, close, counts == its)

    def _beyond(self, named: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """What the classes that are not ``named`` hold: each its background; the group its mass, and who is in it."""
        background = self.background_mass(dtype)[:, None] / self.num_classes
        if self.rest is None:
            return [background, torch.zeros_like(background), torch.zeros_like(named, dtype=dtype)]
        outside = (named[:, :, None] != self.classes[:, None, :]).all(2) & (self.rest > 0)[:, None]
        return [background, self.rest[:, None].to(dtype), outside.to(dtype)]

    # --------------------------------------------------------------------------------- the classes that occur

    def compact(self, *others: Self) -> tuple[Tensor, *tuple[Self, ...]]:
        r"""The classes that occur in these rows or in ``others``, and the same targets over those classes alone.

        The label table may then live anywhere: fetch the rows of ``classes``, take the loss of their logits with the
        noise η[classes]. Value and gradient equal those of the whole table if all candidates are the batch or
        ``others``, further targets of the same K classes. O(N·S·log(N·S)), O(N·K) for dense rows; a GPU is waited for.

        Returns:
            ``classes`` (U,), sorted, at least one; these rows over U classes; each of ``others`` over U classes.
            Weights, forms and ignored rows stay; pairs of weight 0 count as no class.

        >>> targets = SoftTargets.from_labels(torch.tensor([7, 90, 7]), num_classes=100)
        >>> drawn = SoftTargets.from_pairs([[5, 90]], [[0.5, 0.5]], num_classes=100)
        >>> classes, small, candidates = targets.compact(drawn)
        >>> classes, small.labels, candidates.index
        (tensor([ 5,  7, 90]), tensor([1, 2, 1]), tensor([[0, 2]]))
        """
        for other in others:
            self._check_alike(other, name="others")
        for name, member in (("these rows", self), *(("others", other) for other in others)):
            member.check_no_rest("compact")
            if not is_zero(member.smoothing):
                raise ValueError(
                    f"{name} must have no background, got smoothing, which touches every class; compact unsmoothed "
                    "targets and pass label_smoothing to SoftTargetInfoNCE"
                )
        classes = torch.cat([member._occurring() for member in (self, *others)]).unique()
        if len(classes) == 0:
            classes = classes.new_zeros(1)
        return classes, *(member._over(classes) for member in (self, *others))

    def _occurring(self) -> Tensor:
        """Classes of the rows that count, with weight, repeated as they come."""
        if self.form == DENSE:
            occurs = self.pair_weight() != 0
            return (occurs if self.mask is None else occurs & self.mask[:, None]).any(0).nonzero()[:, 0]
        occurs = torch.ones_like(self.classes, dtype=torch.bool) if self.weight is None else self.weight != 0
        return self.classes[occurs if self.mask is None else occurs & self.mask[:, None]]

    def _over(self, classes: Tensor) -> Self:
        """These rows over some of the classes, sorted, which hold all that occur."""
        if self.form == DENSE:
            rows = self.pair_weight()[:, classes]
            if self.mask is not None:  # an ignored row, none of whose classes may be there, is a row too
                first = torch.eye(1, len(classes), dtype=rows.dtype, device=self.device)
                rows = torch.where(self.mask[:, None], rows, first)
            return type(self)(len(classes), None, rows, mask=self.mask, nominal_dtype=self.dtype)
        # A pair without weight, or of an ignored row, may name a class that is not there.
        place = torch.searchsorted(classes, self.classes.contiguous()).clamp(max=len(classes) - 1)
        return type(self)(len(classes), place, self.weight, mask=self.mask, nominal_dtype=self.dtype)

    def _check_alike(self, other: object, same_rows: bool = False, name: str = "other") -> None:
        if not isinstance(other, Algebra):
            raise TypeError(f"{name} must be SoftTargets, got {type(other).__name__}")

        def said(t: Algebra) -> str:
            return (
                f"{t.num_classes} classes and {len(t)} rows" if same_rows else f"{t.num_classes} classes on {t.device}"
            )

        if said(self) != said(other):
            raise ValueError(f"{name} must have {said(self)} as these rows have, got {said(other)}")


def rounding(*targets: Storage) -> float:
    """How far the weights of equal targets may be apart in sum: 1e-5, more if some are in half precision."""
    stored = [t.dtype for t in targets] + [t.weight.dtype for t in targets if t.weight is not None]
    return max(1e-5, *(2 * torch.finfo(dtype).eps for dtype in stored))


def check_smoothing(smoothing: float, dist: Tensor | None, num_classes: int) -> float:
    smoothing = as_share(smoothing, "smoothing")
    if dist is not None:
        check_distribution(dist, "smoothing_dist", num_classes)
    return smoothing


def _share(lam: float | ArrayLike, rows: int, device: torch.device) -> tuple[float | Tensor, float | Tensor]:
    """λ of :meth:`Algebra.mix`, checked, and as a factor on rows."""
    if not isinstance(lam, (Tensor, SupportsFloat)) or getattr(lam, "ndim", 0) > 0:
        lam = as_tensor(lam, "lam")
    if isinstance(lam, Tensor) and lam.dim() == 0 and values_are_checked(lam):
        lam = float(lam)
    if not isinstance(lam, Tensor):
        if not 0 <= float(lam) <= 1:
            raise ValueError(f"lam must lie in [0, 1], got {lam}")
        return float(lam), float(lam)
    if lam.is_complex() or (lam.dim() > 0 and lam.shape != (rows,)):
        raise ValueError(f"lam must be a number or have shape ({rows},), got {tuple(lam.shape)} of {lam.dtype}")
    check_unit_interval(lam, "lam")
    lam = lam.to(device)
    return lam, lam[:, None] if lam.dim() else lam
