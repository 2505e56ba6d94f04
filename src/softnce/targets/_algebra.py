"""Algebra: the methods of :class:`~softnce.SoftTargets` that compute mixtures, statistics, draws and equality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch
from torch import Tensor
from torch.nn.functional import pad

from softnce import _inputs
from softnce.targets._sampling import class_edges, draw_by_edges, draw_uniform

if TYPE_CHECKING:
    from softnce.targets.soft_targets import SoftTargets


def smooth(self: SoftTargets, smoothing: float, smoothing_dist: Any = None) -> SoftTargets:
    """Every row moved by ``smoothing`` towards ``smoothing_dist`` (ξ, None = uniform): (1 − ε)·α + ε·ξ."""
    smoothing = _inputs.as_share(smoothing, "smoothing")
    added: Tensor | None = None if smoothing_dist is None else _inputs.as_tensor(smoothing_dist, "smoothing_dist")
    if added is not None:
        _inputs.check_distribution(added, "smoothing_dist", self.num_classes)
    if smoothing == 0:
        return self
    self.check_no_rest("smooth")
    weight = None if self.weight is None else _fine(self.weight) * (1 - smoothing)
    mass, dist = smoothing + (1 - smoothing) * self.smoothing, added
    if isinstance(mass, Tensor):
        dist = common_dist([self.smoothing_dist, added], self.num_classes)
    elif self.has_background and not same_dist(self.smoothing_dist, added, self.num_classes, unread=False):
        # one mass for all rows: two backgrounds make one
        before, after = (torch.tensor(1 / self.num_classes) if d is None else d for d in (self.smoothing_dist, added))
        dist = (smoothing * after + (mass - smoothing) * before) / mass
    return type(self)(self.num_classes, self.index, weight, mass, dist, self.mask, nominal_dtype=self.dtype)


def mix(self: SoftTargets, other: SoftTargets, lam: float | Any) -> SoftTargets:
    """MixUp or CutMix of the targets: ``lam``·self + (1 − ``lam``)·other, ``lam`` one number or (N,).

    Pairs stay pairs (S adds up), and a background shared by both stays shared.
    """
    _check_alike(self, other, "other", lambda t: f"{t.num_classes} classes and {len(t)} rows")
    for targets in (self, other):
        targets.check_no_rest("mix")
    lam = as_lam(lam, len(self))
    # Labels imply their weights, which are exact until λ rounds them.
    born, dtype = _inputs.exact_dtype(self.device), torch.promote_types(self.dtype, other.dtype)
    if isinstance(lam, Tensor):
        lam = lam.to(self.device)
        if lam.is_floating_point():
            born, dtype = _inputs.at_least_float32(lam.dtype), torch.promote_types(dtype, lam.dtype)
    column = lam[:, None] if isinstance(lam, Tensor) and lam.dim() else lam
    dist = common_dist([t.smoothing_dist for t in (self, other) if t.has_background], self.num_classes)
    mass = self.smoothing
    if isinstance(mass, Tensor) or isinstance(other.smoothing, Tensor) or mass != other.smoothing:
        mass = lam * mass + (1 - lam) * other.smoothing
        mass = mass.expand(len(self)) if isinstance(mass, Tensor) else mass
    mask = self.mask if other.mask is None else other.mask if self.mask is None else self.mask & other.mask
    if self.index is None or other.index is None:
        mine, its = (_fine(t.foreground(dtype if t.weight is None else None)) for t in (self, other))
        index, weight = None, column * mine + (1 - column) * its
    else:
        mine, its = (t.pair_weight(born) if t.weight is None else _fine(t.weight) for t in (self, other))
        index, weight = torch.cat([self.index, other.index], 1), torch.cat([column * mine, (1 - column) * its], 1)
    return type(self)(self.num_classes, index, weight, mass, dist, mask, nominal_dtype=dtype)


def as_lam(lam: Any, rows: int) -> float | Tensor:
    """λ as a number, or as a tensor (N,), or () whose value is not read; in [0, 1]."""
    if not isinstance(lam, (Tensor, SupportsFloat)) or getattr(lam, "ndim", 0) > 0:
        lam = _inputs.as_tensor(lam, "lam")
    if isinstance(lam, Tensor) and (lam.dim() > 0 or not _inputs.values_are_checked(lam)):
        if lam.is_complex() or (lam.dim() > 0 and lam.shape != (rows,)):
            raise ValueError(f"lam must be a number or have shape ({rows},), got {tuple(lam.shape)} of {lam.dtype}")
        _inputs.check_unit_interval(lam, "lam")
        return lam
    if not 0 <= float(lam) <= 1:
        raise ValueError(f"lam must lie in [0, 1], got {lam}")
    return float(lam)


def cat(cls: type[SoftTargets], parts: Sequence[SoftTargets]) -> SoftTargets:
    """All rows one after the other. Shorter pairs are filled up; pairs beside dense rows become dense."""
    parts = list(parts) if isinstance(parts, Iterable) else []
    if not parts or not all(isinstance(part, cls) for part in parts):
        raise TypeError(f"parts must be a list of SoftTargets, at least one, got {parts!r:.60}")
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(part.num_classes != first.num_classes for part in parts):
        raise ValueError(f"parts must have the same classes, got {sorted({part.num_classes for part in parts})}")
    exact, mass, index, weight, rest, mask = _inputs.exact_dtype(first.device), first.smoothing, None, None, None, None
    dist = common_dist([part.smoothing_dist for part in parts if part.has_background], first.num_classes)
    if any(isinstance(part.smoothing, Tensor) or part.smoothing != mass for part in parts):
        mass = torch.cat([p.background_mass(None if isinstance(p.smoothing, Tensor) else exact) for p in parts])
    if any(part.rest is not None for part in parts):
        rest = torch.cat([p.pair_weight().new_zeros(len(p)) if p.rest is None else p.rest for p in parts])
    if any(part.mask is not None for part in parts):
        mask = torch.cat([_kept(part) for part in parts])
    dtype = reduce(torch.promote_types, {part.dtype for part in parts})
    if any(part.index is None for part in parts):
        # an implied weight 1 − ε is not rounded; 1 needs not be
        dtypes = [None if p.weight is not None else exact if p.has_background else dtype for p in parts]
        weight = torch.cat([part.foreground(each) for part, each in zip(parts, dtypes, strict=True)])
    else:
        width = max(part.classes.shape[1] for part in parts)
        index = torch.cat([_filled(part.classes, width) for part in parts])
        if any(part.weight is not None for part in parts):
            weights = [part.pair_weight(exact) if part.weight is None else part.weight for part in parts]
            weight = torch.cat([pad(w, (0, width - w.shape[1])) for w in weights])
    return cls(first.num_classes, index, weight, mass, dist, mask, rest, dtype)


def _filled(index: Tensor, width: int) -> Tensor:
    """Classes filled up to ``width`` by the row's own first class: a filling may name no new one."""
    missing = width - index.shape[1]
    return torch.cat([index, index[:, :1].expand(-1, missing)], 1) if missing else index


def _fine(weight: Tensor) -> Tensor:
    """Weights in float32 or better, in which a product with 1 − ε keeps the sum of a row."""
    return weight.to(_inputs.at_least_float32(weight.dtype))


def _kept(targets: SoftTargets) -> Tensor:
    """Which rows count, (N,)."""
    return torch.ones(len(targets), dtype=torch.bool, device=targets.device) if targets.mask is None else targets.mask


def _check_alike(self: SoftTargets, other: object, name: str, said: Callable[[SoftTargets], str]) -> None:
    if not isinstance(other, type(self)):
        raise TypeError(f"{name} must be SoftTargets, got {type(other).__name__}")
    if said(self) != said(other):
        raise ValueError(f"{name} must have {said(self)} as these rows have, got {said(other)}")


def same_dist(a: Tensor | None, b: Tensor | None, num_classes: int, unread: bool) -> bool:
    """Whether two ξ are equal; ``unread`` for two tensors whose values cannot be read now.

    If that only decides the cost of a loss, ``unread`` is False, and an accelerator is not waited for.
    """
    if a is b:
        return True
    given = [dist for dist in (a, b) if dist is not None]
    if not _inputs.values_are_readable(*given) or not (unread or given[0].is_cpu):
        return unread and len(given) == 2
    return torch.equal(*given) if len(given) == 2 else bool((given[0] == 1 / num_classes).all())


def common_dist(dists: list[Tensor | None], num_classes: int) -> Tensor | None:
    """The one ξ that all of these are."""
    if not all(same_dist(dists[0], dist, num_classes, unread=True) for dist in dists[1:]):
        raise ValueError("backgrounds of different smoothing_dist: make them dense first: t.to_dense()")
    return dists[0] if dists else None


def expectation(self: SoftTargets, values: Tensor) -> Tensor:
    """Σ_k α_ik·v_k for every row i, (N,), of ``values`` (K,) shared by the rows or (N, K)."""
    self.check_no_rest("expectation")
    weight = self.pair_weight(values.dtype)
    if self.index is None:
        picked = values
    else:
        picked = values[self.index] if values.dim() == 1 else values.gather(1, self.index)
        if self.weight is not None:  # a pair of weight 0 may be of a masked class
            picked = picked.masked_fill((weight == 0) & (picked == -torch.inf), 0)
    total = (weight * picked).sum(-1)
    if not self.has_background:
        return total
    dist = self.smoothing_dist
    mean = values.mean(-1) if dist is None else (values * dist.to(values.dtype)).sum(-1)
    return total + self.background_mass(values.dtype) * mean


def at(self: SoftTargets, classes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """α_ik of the classes k named in row i of ``classes``, (N, C), whatever the form. O(N·C·S)."""
    weight = self.pair_weight(dtype)
    if self.index is None:
        values = weight.gather(1, classes)
    else:
        same = classes[:, :, None] == self.index[:, None, :]
        values = (same * weight[:, None, :]).sum(2)
    if not self.has_background:
        return values
    background = self.background(values.dtype)
    spread = background[classes] if isinstance(background, Tensor) else background
    return values + self.background_mass(values.dtype)[:, None] * spread


def vertex(self: SoftTargets, smoothing: float = 0.0, smoothing_dist: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The class k, (N,), whose vertex (1 − ε)·e_k + ε·ξ is nearest to each row, and whether the row equals it.

    By value to within rounding, without waiting for an accelerator. O(N·S²) if the rows have this ξ, else O(N·K).
    """
    self.check_no_rest("vertex")
    stored = [self.dtype] if self.weight is None else [self.dtype, self.weight.dtype]
    slack = max(1e-5, *(2 * torch.finfo(dtype).eps for dtype in stored))  # more than 1e-5 in half precision
    label = _likeliest(self, _inputs.exact_dtype(self.device), smoothing, smoothing_dist)
    vertices = type(self)(self.num_classes, label, None, smoothing, smoothing_dist, self.mask)
    return label[:, 0], self.close(vertices, 0, slack)


def argmax(self: SoftTargets, ignore_index: int = -100) -> Tensor:
    """The likeliest class of each row, (N,); ``ignore_index`` for rows that are ignored."""
    ignore_index = _inputs.as_whole(ignore_index, "ignore_index", None)
    best = _likeliest(self)[:, 0]
    return best if self.mask is None else torch.where(self.mask, best, ignore_index)


def _likeliest(
    self: SoftTargets, dtype: torch.dtype | None = None, smoothing: float = 0.0, xi: Tensor | None = None
) -> Tensor:
    """The class of each row, (N, 1), that is the most above ``smoothing``·ξ, of which a uniform one changes nothing."""
    named = self.index
    if named is not None and self.smoothing_dist is not None:  # the background's best class may be the best
        named = torch.cat([named, self.smoothing_dist.argmax().expand(len(self), 1)], 1)
    values = self.unmasked_dense(dtype) if named is None else self.at(named, dtype)
    if xi is not None:
        values = values - smoothing * (xi if named is None else xi[named])
    best = values.argmax(1, keepdim=True)
    return best if named is None else named.gather(1, best)


def entropy(self: SoftTargets) -> Tensor:
    """−Σ_k α_ik log α_ik of each row, (N,), in nats; NaN for rows that are ignored. O(N·S² + K)."""
    self.check_no_rest("entropy")
    if self.index is None:
        rows = self.unmasked_dense()
        total = -torch.xlogy(rows, rows).sum(1)
    else:
        values = self.at(self.index)
        mass, xi = self.background_mass(values.dtype), values.new_zeros(self.num_classes)
        xi += self.background(values.dtype)
        alone = mass[:, None] * xi[self.index]  # the classes that are not named hold background alone
        total = torch.xlogy(alone, alone) - torch.xlogy(values, values)
        total = (total * names_first(self.index)).sum(1)
        total = total - torch.xlogy(mass, mass) - mass * torch.xlogy(xi, xi).sum()
    total = total.clamp(min=0).to(self.dtype)
    return total if self.mask is None else total.masked_fill(self.mask.logical_not(), torch.nan)


def names_first(index: Tensor) -> Tensor:
    """Of pairs (N, S) that name one class in a row, the first."""
    return ~(index[:, :, None] == index[:, None, :]).tril(-1).any(2)


def sample(self: SoftTargets, generator: torch.Generator | None = None) -> Tensor:
    """One label (N,) from each row. O(N·S), and O(N·log K) more for a background that is not uniform."""
    return sample_labels(self, 1, generator)[:, 0]


def sample_labels(self: SoftTargets, count: int, generator: torch.Generator | None = None) -> Tensor:
    """``count`` labels from each row, (N, count)."""
    self.check_no_rest("sample")
    _inputs.check_generator(generator)
    weight, dist = self.pair_weight().clamp(min=0), self.smoothing_dist
    last = weight.shape[1]
    if self.has_background:  # one more pair, of a class yet to be drawn
        weight = torch.cat([weight, self.background_mass(weight.dtype)[:, None]], 1)
    slot = draw_by_edges(class_edges(weight), count, generator)
    labels = slot if self.index is None else self.index.gather(1, slot.clamp(max=last - 1))
    if not self.has_background:
        return labels
    if dist is None:
        background = draw_uniform(self.num_classes, slot.shape, self.device, generator)
    else:
        background = draw_by_edges(class_edges(dist), slot.numel(), generator).view_as(slot)
    return torch.where(slot < last, labels, background)


def close(self: SoftTargets, other: SoftTargets, rtol: float, atol: float) -> Tensor:
    """Which rows agree, (N,). O(N·S²) where the backgrounds allow it, else O(N·K)."""
    _check_alike(self, other, "other", lambda t: f"shape {tuple(t.shape)} on {t.device}")
    dtype, uniform = torch.promote_types(self.dtype, other.dtype), self.smoothing_dist is None is other.smoothing_dist
    named, has_rest = None, self.rest is not None or other.rest is not None
    if self.index is not None and other.index is not None and (uniform or self.shares_background(other)):
        named = torch.cat([self.index, other.index], 1)
    if named is not None and (named.shape[1] < self.num_classes or has_rest):  # else no class may be left unnamed
        mine, its = (_signature(t, named, dtype) for t in (self, other))
    else:
        mine, its = (t.unmasked_dense(dtype) for t in (self, other))
    agree = ((mine - its).abs() <= atol + rtol * its.abs()).all(1)
    if self.mask is None and other.mask is None:
        return agree
    mine, its = _kept(self), _kept(other)
    return torch.where(mine & its, agree, mine == its)


def _signature(self: SoftTargets, named: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights of the classes ``named``, −1 for those in the group beyond the top k; and what other classes hold."""
    values, background = self.at(named, dtype), self.background_mass(dtype)[:, None] / self.num_classes
    if self.rest is None:
        return torch.cat([values, background, torch.zeros_like(background)], 1)
    outside = (named[:, :, None] != self.classes[:, None, :]).all(2) & (self.rest > 0)[:, None]
    return torch.cat([values.masked_fill(outside, -1), background, self.rest[:, None].to(dtype)], 1)


def compact(self: SoftTargets, *others: SoftTargets) -> tuple[Tensor, *tuple[SoftTargets, ...]]:
    r"""The classes that occur in these rows or in ``others``, and the same targets over those classes alone.

    Fetch the rows of ``classes`` (U,), sorted, of a label table that may live anywhere, and take the loss of their
    logits with the noise η[classes]: value and gradient are those of the whole table if all candidates are the batch
    or ``others``. Forms and ignored rows stay; pairs of weight 0 count as no class. A GPU is waited for.

    >>> targets = SoftTargets.from_labels(torch.tensor([7, 90, 7]), num_classes=100)
    >>> drawn = SoftTargets.from_pairs([[5, 90]], [[0.5, 0.5]], num_classes=100)
    >>> classes, small, candidates = targets.compact(drawn)
    >>> classes, small.labels, candidates.index
    (tensor([ 5,  7, 90]), tensor([1, 2, 1]), tensor([[0, 2]]))
    """
    for name, member in (("these rows", self), *(("others", other) for other in others)):
        _check_alike(self, member, name, lambda t: f"{t.num_classes} classes on {t.device}")
        member.check_no_rest("compact")
        if member.has_background:
            raise ValueError(f"{name} must have no background, got smoothing: pass label_smoothing to the loss instead")
    classes = torch.cat([_occurring(member) for member in (self, *others)]).unique()
    if len(classes) == 0:
        classes = classes.new_zeros(1)
    return classes, *(_over(classes, member) for member in (self, *others))


def _occurring(self: SoftTargets) -> Tensor:
    """Classes of the rows that count, with weight, repeated as they come."""
    occurs = self.counted(self.pair_weight()) != 0
    return occurs.any(0).nonzero()[:, 0] if self.index is None else self.index[occurs]


def _over(classes: Tensor, self: SoftTargets) -> SoftTargets:
    """These rows over some of the classes, sorted, which hold all that occur."""
    index, weight = None, self.weight
    if self.index is not None:  # a pair without weight, or of an ignored row, may name a class that is not there
        index = torch.searchsorted(classes, self.index.contiguous()).clamp(max=len(classes) - 1)
    else:
        weight = self.pair_weight()[:, classes]
        if self.mask is not None:  # an ignored row, none of whose classes may be there, is a row too
            first = torch.eye(1, len(classes), dtype=weight.dtype, device=self.device)
            weight = torch.where(self.mask[:, None], weight, first)
    return type(self)(len(classes), index, weight, mask=self.mask, nominal_dtype=self.dtype)
