"""Targets and means across ranks.

A candidate is only a target: it carries no gradient, so gathering targets is exact, and it is small: (class, weight)
pairs travel, or class counts where these suffice and are smaller. Two collectives per step: a header of 200 bytes per
rank, then a block of 4-byte words; one more for ξ where only some ranks have it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import pad

from softnce.targets.soft_targets import DENSE, LABELS, SoftTargets

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def all_gather_single(received: Tensor, sent: Tensor, group: ProcessGroup | None) -> None:
    """``all_gather_into_tensor``, which torch 2.13 renamed."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(received, sent, group=group)


Scaling = Literal["mean", "sum"]
T = TypeVar("T")


class Exchange(NamedTuple):
    """Who exchanges, and who adds up the gradients.

    Attributes:
        group: the ranks that exchange; None: all.
        scaling: ``"mean"`` where the gradients of the ranks are then averaged, as DDP does; ``"sum"`` where they are
            added up.
        on_host: ``group`` exchanges memory of the host, and ranks may differ in precision.
        divisor: what averaged gradients are divided by; None: the number of ranks.
        options: the loss and its options in words, which all ranks must have alike.
    """

    group: ProcessGroup | None = None
    scaling: Scaling = "mean"
    on_host: bool = False
    divisor: int | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def world(self) -> int:
        return dist.get_world_size(self.group) if self.divisor is None else self.divisor

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all ranks, without gradient."""
        total = values.detach().to("cpu", torch.float64, copy=True) if self.on_host else values.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total.to(values)

    def total(self, number: int, device: torch.device) -> int:
        """The sum of a number over all ranks."""
        total = torch.tensor(number, device="cpu" if self.on_host else device)
        dist.all_reduce(total, group=self.group)
        return int(total)

    def share_gradient(self, parameter: Tensor) -> Tensor:
        """The parameter, its gradient averaged or added up over ranks: for one that DDP does not know."""
        return _SharedGradient.apply(parameter, self)

    def reduce(self, mine: Tensor, total: Tensor | float, reduction: str) -> Tensor:
        """This rank's sum of losses over the rows of all ranks: their mean or sum.

        ``total`` is this rank's share of the divisor of a mean. The gradient is right once those of the ranks are
        averaged or added up; where they are added up, values are too, and this rank's share is returned.
        """
        share = total.to(mine.dtype) if isinstance(total, Tensor) else mine.new_tensor(float(total))
        everyone = self.all_sum(torch.stack([mine.detach(), share]))
        shown = everyone[0]
        if reduction == "mean":
            divisor = torch.where(everyone[1] > 0, everyone[1], 1)
            mine, shown = mine / divisor, shown / divisor
        if self.scaling == "sum":
            return mine
        mine = self.world * mine
        return mine + (shown - mine).detach()

    def gather(self, targets: SoftTargets) -> tuple[SoftTargets, int]:
        """:func:`gather_targets` over these ranks."""
        gathered, start = gather_targets(self._sent(targets), self.group, self.options)
        return gathered.to(targets.device), start

    def class_counts(self, targets: SoftTargets) -> Tensor:
        """:func:`gather_class_counts` over these ranks."""
        return gather_class_counts(self._sent(targets), self.group, self.options).to(targets.device)

    def _sent(self, targets: SoftTargets) -> SoftTargets:
        return targets.cpu() if self.on_host else targets


def is_active(group: ProcessGroup | None = None) -> bool:
    """Whether there are other ranks to talk to."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def gather_objects(mine: T, group: ProcessGroup | None = None) -> list[T]:
    """The objects of all ranks, in their order. Every rank must call it."""
    everyone = [mine]
    if is_active(group):
        everyone *= dist.get_world_size(group)
        dist.all_gather_object(everyone, mine, group=group)
    return everyone


class _SharedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, parameter: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange  # type: ignore[attr-defined]
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        exchange: Exchange = ctx.exchange  # type: ignore[attr-defined]
        total = exchange.all_sum(gradient)
        return total / exchange.world if exchange.scaling == "mean" else total, None


Options = tuple[tuple[str, str], ...]


def gather_targets(
    targets: SoftTargets, group: ProcessGroup | None = None, options: Options = ()
) -> tuple[SoftTargets, int]:
    """The targets of all ranks in rank order, and where this rank's begin.

    Batches may be uneven, or empty on some ranks. Sends S int32 and S float32 per row (labels: one int32; dense rows: K
    float32); float64 weights travel as float64.
    """
    layout = _agree(targets, group, options)
    return _gather_rows(targets, layout, group), sum(layout.sizes[: dist.get_rank(group)])


def gather_class_counts(targets: SoftTargets, group: ProcessGroup | None = None, options: Options = ()) -> Tensor:
    """The class counts of all ranks' targets, (K,), in float64. Counts travel, or targets if they are fewer bytes."""
    layout = _agree(targets, group, options)
    if 2 * layout.num_classes < max(layout.sizes) * sum(layout.widths):  # words per rank
        total = targets.class_mass(torch.float64)
        dist.all_reduce(total, group=group)
        return total
    return _gather_rows(targets, layout, group).class_mass(torch.float64)


class _Layout(NamedTuple):
    """The rows of all ranks in the same columns of 4-byte words: classes, weights, ε and mask."""

    sizes: list[int]
    """Rows of each rank."""
    num_classes: int
    form: int
    pairs: int
    dtype: torch.dtype
    widths: list[int]
    """Of the four columns; 0 for those that do not travel."""
    smoothing: float
    """ε, if it has no column."""
    backgrounds: list[int]
    """Of each rank, see :class:`_Header`."""


def _agree(targets: SoftTargets, group: ProcessGroup | None, options: Options) -> _Layout:
    mine = [crc32(f"{name}={value}".encode()) for name, value in options]
    received = _exchange(_header(targets), mine, targets, group)
    everyone = [theirs for _, theirs in received]
    headers = [header for header, _ in received]
    for i, (name, value) in enumerate(options):
        if any(digests[i] != everyone[0][i] for digests in everyone):
            raise ValueError(f"{name} differs between ranks, which train one loss together; this rank has {value}")
    filled = [header for header in headers if header.rows] or headers
    first = filled[0]
    if len({header.digest for header in filled if header.digest}) > 1:
        raise ValueError("smoothing_dist differs between ranks, whose targets are contrasted with each other")
    if any(header.num_classes != first.num_classes for header in filled):
        raise ValueError(f"ranks have targets of different numbers of classes: {[h.num_classes for h in filled]}")
    form = max(header.form for header in filled)
    dtype = torch.float64 if any(header.is_double for header in filled) else torch.float32
    shared = all(header.smoothing == first.smoothing for header in filled)
    masked = any(header.is_masked for header in filled)
    size = torch.finfo(dtype).bits // 32
    pairs = first.num_classes if form == DENSE else max(header.pairs for header in filled)
    return _Layout(
        sizes=[header.rows for header in headers],
        num_classes=first.num_classes,
        form=form,
        pairs=pairs,
        dtype=dtype,
        widths=[pairs * (form != DENSE), pairs * size * (form != LABELS), size * (not shared), 1 * masked],
        smoothing=first.smoothing,
        backgrounds=[header.background for header in headers],
    )


def _gather_rows(targets: SoftTargets, layout: _Layout, group: ProcessGroup | None) -> SoftTargets:
    sizes, num_classes, form, pairs, dtype, widths, smoothing, _ = layout
    _, _, has_mass, is_masked = widths
    block = torch.zeros(len(targets), 0, dtype=torch.int32, device=targets.device)
    if len(targets):
        columns = [block]
        if form != DENSE:
            columns.append(pad(targets.classes.int(), (0, pairs - targets.classes.shape[1])))
        if form != LABELS:
            weight = targets.foreground(dtype) if form == DENSE else targets.pair_weight(dtype)
            columns.append(_words(pad(weight, (0, pairs - weight.shape[1]))))
        if has_mass:
            columns.append(_words(targets.background_mass(dtype)[:, None]))
        if is_masked:
            columns.append(block.new_ones(len(targets), 1) if targets.mask is None else targets.mask[:, None].int())
        block = torch.cat(columns, 1)
    longest = max(sizes)  # every rank fills its rows up to the longest batch
    sent = pad(block, (0, sum(widths) - block.shape[1], 0, longest - len(block))).contiguous()
    received = sent.new_empty(len(sizes) * longest, sum(widths))
    all_gather_single(received, sent, group=group)
    rows = torch.cat([received[r * longest : r * longest + n] for r, n in enumerate(sizes)])

    index, weight, mass, counts = (part.contiguous() for part in rows.split(widths, 1))
    return SoftTargets(
        num_classes,
        None if form == DENSE else index.long(),
        None if form == LABELS else weight.view(dtype),
        mass.view(dtype)[:, 0] if has_mass else smoothing,
        _shared_background(targets, layout, group),
        counts[:, 0].bool() if is_masked else None,
    )


def _shared_background(targets: SoftTargets, layout: _Layout, group: ProcessGroup | None) -> Tensor | None:
    """ξ, which ranks without rows or smoothing get from one that has it."""
    words = max(layout.backgrounds)
    if words in (0, min(layout.backgrounds)):
        return targets.smoothing_dist
    dtype = torch.float64 if words == 2 else torch.float32
    background = torch.zeros(layout.num_classes, dtype=dtype, device=targets.device)
    if targets.smoothing_dist is not None:
        background = targets.smoothing_dist.to(dtype, copy=True)
    source = layout.backgrounds.index(words)
    dist.broadcast(background, dist.get_process_group_ranks(group)[source], group=group)
    return background


class _Header(NamedTuple):
    rows: int
    num_classes: int
    form: int
    pairs: int
    is_double: bool
    is_masked: bool
    background: int
    """4-byte words per number of ξ; 0 where ξ is uniform or nothing is smoothed."""
    digest: int
    """Of the values of ξ; 0 where it is uniform or nothing is smoothed."""
    smoothing: float
    """ε; nan where it differs from row to row."""


def _header(targets: SoftTargets) -> _Header:
    return _Header(
        len(targets),
        targets.num_classes,
        targets.form,
        0 if targets.form == DENSE else targets.classes.shape[1],
        targets.weight is not None and targets.weight.dtype == torch.float64,
        targets.mask is not None,
        0 if targets.smoothing_dist is None else max(1, targets.smoothing_dist.element_size() // 4),
        0 if targets.smoothing_dist is None else _digest(targets.smoothing_dist),
        targets.smoothing if isinstance(targets.smoothing, float) else math.nan,
    )


def _digest(values: Tensor) -> int:
    """A number that differs where values do; sums and products of whole numbers wrap around."""
    bits = values.detach().to(torch.float32).contiguous().view(torch.int32).long()
    places = torch.arange(1, len(bits) + 1, device=bits.device) * 0x9E3779B97F4A7C1
    return int(((bits + 1) * (places | 1)).sum()) or 1


MOST_OPTIONS = 16


def _exchange(
    header: _Header, digests: Sequence[int], targets: SoftTargets, group: ProcessGroup | None
) -> list[tuple[_Header, list[int]]]:
    """The headers of all ranks and the digests of their options; of one length, whatever a rank's loss is."""
    filled = [*digests, *[0] * (MOST_OPTIONS - len(digests))]
    numbers = [*filled, *map(int, header[:-1]), *struct.unpack("<q", struct.pack("<d", header.smoothing))]
    mine = torch.tensor(numbers, device=targets.device)
    everyone = mine.new_empty(dist.get_world_size(group) * len(mine))
    all_gather_single(everyone, mine, group=group)
    return [
        (_Header(*row[MOST_OPTIONS:-1], *struct.unpack("<d", struct.pack("<q", row[-1]))), row[:MOST_OPTIONS])
        for row in everyone.view(-1, len(mine)).tolist()
    ]


def _words(floats: Tensor) -> Tensor:
    """The same bytes as int32."""
    return floats.contiguous().view(torch.int32)
