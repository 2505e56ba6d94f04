r"""The contrast from embeddings and a table of label embeddings, without logits.

When the last layer is linear, logit_k = z·y_k + b_k, the score of a target is that of its mixed label embedding,
:math:`\sigma(c) = z \cdot \big(\sum_k c_k y_k\big)/\tau + \dots`: mix S rows of the table for each of the M candidates,
then take one (N, d) × (d, M) product. No step depends on K, and the table's gradient touches M·S rows. What all targets
have in common cancels, so a shared label smoothing needs no sum over the classes either.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from softnce._checks import check_flag
from softnce._precision import at_least_float32, full_precision
from softnce._rows import Place, as_positions, check_table, rows_of_targets
from softnce._scores.arithmetic import expected, log_counts
from softnce._scores.blocks import excluded
from softnce._scores.classes import class_scores, cross_entropy
from softnce._scores.kernel import Reduced, blank, reduced
from softnce._scores.others import Others
from softnce.targets._background import is_zero
from softnce.targets._equality import numbered
from softnce.targets.soft_targets import DENSE, SoftTargets


class Table:
    """Features (N, d) and a table of label embeddings (K, d): the logits are ``features @ table.T + bias``.

    Attributes:
        rows: the features.
        shape: (N,).
        num_classes: K.
    """

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
        self.rows, self.shape = features, features.shape[:1]
        self.table, self.bias = table, bias
        self.sparse, self.cosine = check_flag(sparse, "sparse"), check_flag(cosine, "cosine")
        self.num_classes = len(table)

    def accept(self, targets: Tensor | SoftTargets, label_smoothing: float, ignore_index: int) -> SoftTargets:
        """The targets of the rows; ignored rows are set to 0."""
        soft = rows_of_targets(
            targets, self.rows, self.num_classes, self.shape, "features", label_smoothing, ignore_index
        )
        self.rows = blank(self.rows, soft.mask)
        return soft

    def geometric(
        self,
        temperature: float | Tensor,
        log_noise: Tensor | None,
        targets: SoftTargets,
        candidates: Sequence[SoftTargets],
        own: Place | None = None,
        remove_accidental_hits: bool = False,
        chunk_size: int | None = None,
        reduction: Reduced = "none",
    ) -> Tensor:
        """ℓ of every row, (N,), or their mean; arguments as in :func:`softnce._scores.geometric.contrast`.

        Time O(N·M·d + M·S·d), memory O(N·M + M·S·d), whatever K; with ``chunk_size`` rows at a time, recomputed in
        backward, O(chunk_size·M). Dense targets, and backgrounds that are not shared, cost O(K·d) more.
        """
        with full_precision(self.rows.device):
            groups = [group for group in candidates if len(group)]
            if not groups or len(self.rows) == 0:
                return reduced(self._zeros(temperature, targets), reduction)
            own = None if own is None else as_positions(own, self.rows.device)
            shared = all(targets.shares_background(group) for group in groups)
            if self.sparse and not shared:
                raise ValueError("sparse=True needs targets and candidates that share their label smoothing")
            members = groups if own is not None else [*groups, targets]
            embeddings = self._mixed_embeddings(members)
            offsets = self._offsets(members, temperature, log_noise, shared)
            if not shared:
                embeddings = embeddings + self._background_embeddings(members)
            count = sum(map(len, groups))
            if own is None:
                mine, my_offset = embeddings[count:], offsets[count:]
                embeddings, offsets = embeddings[:count], offsets[:count]
            else:
                mine, my_offset = embeddings[own], offsets[own]
            mask = SoftTargets.joint_mask(groups)
            numbers = numbered(targets, groups) if remove_accidental_hits else (None, None)
            z = self._vectors(self.rows) / temperature
            own_score = (z * mine).sum(1) + my_offset
            per_row, per_call = (z, own_score, own, numbers[0]), (embeddings, offsets, mask, numbers[1])
            total = _in_chunks(_rest, per_row, per_call, len(z), chunk_size)
            losses = torch.logaddexp(total, total.new_zeros(()))
            return reduced(losses, reduction)

    def expected(
        self,
        temperature: float | Tensor,
        log_noise: Tensor | None,
        targets: SoftTargets,
        others: Others,
        chunk_size: int | None,
        reduction: Reduced,
    ) -> Tensor:
        """ℓ of every row, (N,), or their mean, see :mod:`softnce._scores.arithmetic`, from the classes that occur.

        With M candidates of S pairs time is O(N·M·S·d) and memory O(N·M·S), whatever K; labels have S = 1. Dense
        targets, smoothing and noise in expectation touch every class: they take all logits, O(N·K·d).
        """
        groups = [group for group in others.groups if len(group)]
        members = [targets, *groups]
        touches_all = isinstance(others.noise_mass, Tensor) or others.noise_mass > 0 or any(map(_touches_all, members))
        if touches_all and self.sparse:
            raise ValueError(
                "sparse=True needs targets and candidates without smoothing, dense rows or noise in expectation: they "
                "touch every class; use pairs, no label_smoothing and others='drawn', or sparse=False"
            )
        with full_precision(self.rows.device):
            if touches_all:
                return expected(
                    self._logits(), temperature, log_noise, targets, others.counts(), others.held, chunk_size, reduction
                )
            if not groups or len(self.rows) == 0:
                return reduced(self._zeros(temperature, targets), reduction)
            z = self._vectors(self.rows) / temperature
            classes = torch.cat([member.classes.flatten() for member in members])
            rows = self._vectors(F.embedding(classes, self.table, sparse=self.sparse))
            split = targets.classes.numel()
            own_rows = rows[:split].view(*targets.classes.shape, -1)
            own = torch.einsum("nd,nsd->ns", z, own_rows) + self._shift(targets.classes, temperature, log_noise)
            logs = [log_counts(group.pair_weight(z.dtype), z.dtype) for group in groups]
            shifts = [self._shift(group.classes, temperature, log_noise) for group in groups]
            offset = torch.cat([(log + shift).flatten() for log, shift in zip(logs, shifts, strict=True)])
            place = None if others.place is None else as_positions(others.place, z.device)
            mask = SoftTargets.joint_mask(groups)
            if mask is not None:
                mask = mask.repeat_interleave(
                    torch.cat([torch.full_like(g.classes[:, 0], g.classes.shape[1]) for g in groups])
                )
            per_row, per_call = (z, _own_columns(place, groups)), (rows[split:], offset, mask)
            rest = _in_chunks(_counted_rest, per_row, per_call, len(z), chunk_size)
            gap = rest[:, None] - own
            losses = (targets.pair_weight(z.dtype) * F.softplus(gap, threshold=50)).sum(1)
            return reduced(losses, reduction)

    def cross_entropy(
        self,
        temperature: float | Tensor,
        log_noise: Tensor | None,
        targets: SoftTargets,
        class_weight: Tensor | None = None,
    ) -> Tensor:
        """The cross-entropy of every row, (N,), through all logits. O(N·K·d)."""
        if self.sparse:
            raise ValueError("sparse=True cannot be combined with class vertices as candidates: they touch every class")
        with full_precision(self.rows.device):
            return cross_entropy(class_scores(self._logits(), temperature, log_noise), targets, class_weight)

    @property
    def _dtype(self) -> torch.dtype:
        return at_least_float32(self.rows.dtype)

    def _vectors(self, rows: Tensor) -> Tensor:
        """Features or label embeddings, of unit length where ``cosine``."""
        rows = rows.to(self._dtype)
        return F.normalize(rows, dim=1) if self.cosine else rows

    def _logits(self) -> Tensor:
        """All logits, (N, K)."""
        bias = None if self.bias is None else self.bias.to(self._dtype)
        return F.linear(self._vectors(self.rows), self._vectors(self.table), bias)

    def _zeros(self, temperature: float | Tensor, targets: SoftTargets) -> Tensor:
        """The losses of rows without candidates, (N,): zero, but they keep the autograd graph connected."""
        scores = self._vectors(self.rows) / temperature * self._mixed_embeddings([targets])
        zeros = scores[:, :0].sum(1)
        return zeros if self.bias is None else zeros + self.bias[:0].sum()

    def _shift(self, classes: Tensor, temperature: float | Tensor, log_noise: Tensor | None) -> Tensor | float:
        """b/τ − log η at ``classes``."""
        shift: Tensor | float = 0.0 if self.bias is None else self.bias[classes].to(self._dtype) / temperature
        return shift if log_noise is None else shift - log_noise.to(self._dtype)[classes]

    def _offsets(
        self, members: Sequence[SoftTargets], temperature: float | Tensor, log_noise: Tensor | None, shared: bool
    ) -> Tensor:
        """Σ_k c_k (b_k/τ − log η_k) of every target, (M,), without what all targets share."""
        if self.bias is None and log_noise is None:
            return torch.zeros(sum(map(len, members)), dtype=self._dtype, device=self.table.device)

        def expectation(values: Tensor) -> Tensor:
            return torch.cat([member.expectation(values.to(self._dtype), background=not shared) for member in members])

        if self.bias is None:
            assert log_noise is not None
            return -expectation(log_noise)
        offset = expectation(self.bias) / temperature
        return offset if log_noise is None else offset - expectation(log_noise)

    def _mixed_embeddings(self, members: Sequence[SoftTargets]) -> Tensor:
        """Σ_j w_cj·y_{index_cj} of every target, (M, d), by one look-up in the table."""
        if DENSE in {member.form for member in members}:
            if self.sparse:
                raise ValueError("sparse=True needs targets as pairs; dense rows touch every class (see SoftTargets)")
            whole = self._vectors(self.table)
            return torch.cat([member.foreground(self._dtype) @ whole for member in members])
        indices = [member.classes for member in members]
        classes = torch.cat([index.flatten() for index in indices])
        rows = self._vectors(F.embedding(classes, self.table, sparse=self.sparse))
        pieces = rows.split([index.numel() for index in indices])
        return torch.cat([
            torch.einsum("cs,csd->cd", member.pair_weight(self._dtype), piece.view(*index.shape, self.table.shape[1]))
            for member, index, piece in zip(members, indices, pieces, strict=True)
        ])  # fmt: skip

    def _background_embeddings(self, members: Sequence[SoftTargets]) -> Tensor:
        """ε_c·Σ_k ξ_k y_k of every target, (M, d). O(K·d)."""
        whole = self._vectors(self.table)
        parts = []
        for member in members:
            if is_zero(member.smoothing):
                parts.append(whole.new_zeros(len(member), whole.shape[1]))
            else:
                parts.append(member.background_mass(self._dtype)[:, None] * member.background_mean(whole.t()))
        return torch.cat(parts)


def _touches_all(targets: SoftTargets) -> bool:
    return targets.form == DENSE or not is_zero(targets.smoothing)


def _own_columns(place: Tensor | None, groups: Sequence[SoftTargets]) -> Tensor | None:
    """Which columns, counted through the pairs of all groups, are the pairs of each row's own target, (N, S).

    The own targets lie in one group.
    """
    if place is None:
        return None
    start = column = 0
    columns = torch.zeros(len(place), 0, dtype=torch.long, device=place.device)
    for group in groups:
        pairs = group.classes.shape[1]
        if pairs > columns.shape[1]:
            columns = F.pad(columns, (0, pairs - columns.shape[1]), value=-1)
        inside = (place >= start) & (place < start + len(group))
        first = column + (place - start) * pairs
        mine = first[:, None] + torch.arange(pairs, device=place.device)
        columns = torch.where(inside[:, None], F.pad(mine, (0, columns.shape[1] - pairs), value=-1), columns)
        start, column = start + len(group), column + group.classes.numel()
    return columns


def _in_chunks(
    rest: Callable[..., Tensor],
    per_row: Sequence[Tensor | None],
    per_call: Sequence[Tensor | None],
    rows: int,
    chunk_size: int | None,
) -> Tensor:
    """``rest`` of all rows; with ``chunk_size``, of that many at a time, recomputed in backward."""
    if chunk_size is None:
        return rest(*per_row, *per_call)
    parts = []
    for start in range(0, rows, chunk_size):
        chunk = [None if x is None else x[start : start + chunk_size] for x in per_row]
        parts.append(checkpoint(rest, *chunk, *per_call, use_reentrant=False))
    return torch.cat(parts)


def _counted_rest(z: Tensor, columns: Tensor | None, rows: Tensor, offset: Tensor, mask: Tensor | None) -> Tensor:
    """log R of every row, (N,): the columns' scores without those of the row's own target and of masked ones."""
    exponents = torch.addmm(offset, z, rows.t())
    lowest = excluded(exponents.dtype)
    if mask is not None:
        exponents = exponents.masked_fill(mask.logical_not(), lowest)
    if columns is not None:
        inside = (columns >= 0).to(exponents.dtype)
        exponents = exponents.scatter_add(1, columns.clamp(min=0), inside * lowest)
    return exponents.logsumexp(1)


def _rest(
    z: Tensor,
    own_score: Tensor,
    position: Tensor | None,
    number: Tensor | None,
    embeddings: Tensor,
    offsets: Tensor,
    mask: Tensor | None,
    numbers: Tensor | None,
) -> Tensor:
    """log Σ_c exp(σ(c) − σ(own)) over the candidates without the own target, (N,)."""
    exponents = torch.addmm(offsets - own_score[:, None], z, embeddings.t())
    lowest = excluded(exponents.dtype)
    if mask is not None:
        exponents = exponents.masked_fill(mask.logical_not(), lowest)
    if number is not None and numbers is not None:
        exponents = exponents.masked_fill(number[:, None].eq(numbers), lowest)
    if position is not None:
        place = position[:, None]
        exponents = exponents.scatter_add(1, place, torch.full_like(place, lowest, dtype=exponents.dtype))
    return exponents.logsumexp(1)
