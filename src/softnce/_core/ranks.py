"""Targets and means across ranks.

A candidate carries no gradient, so gathering targets is exact, and it is small: (class, weight) pairs travel, or class
counts where these suffice and are smaller. Two collectives per step: a header of 200 bytes per rank, then a block of
4-byte words; one more for ξ where only some ranks have it. The first exchange of every loss is such a header, so that
ranks whose losses differ get an error, not a wrong value or a wait; cross-entropy's carries the value itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

from softnce._inputs import values_are_readable
from softnce.candidates import Candidates
from softnce.draws import Draw
from softnce.noise import FixedNoise, RunningNoise
from softnce.targets.soft_targets import DENSE, LABELS, SoftTargets

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

MOST_OPTIONS = 16
Scaling = Literal["mean", "sum"]
Options = tuple[tuple[str, str], ...]
T = TypeVar("T")


def all_gather_single(received: Tensor, sent: Tensor, group: ProcessGroup | None) -> None:
    """``all_gather_into_tensor``, which torch 2.13 renamed."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(received, sent, group=group)


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


_read: set[Options] = set()
"""Options that were compared on an accelerator, whose memory is not read in every step."""
_known_sums = WeakTensorKeyDictionary()
"""Versions of the tensors among the options, and their sums in words."""


class LossCall(NamedTuple):
    """A call of a loss, as far as it decides what ranks exchange. Ranks that still have batches make the same one."""

    has_batch: bool = False  # else none is left
    num_classes: int = 0
    from_table: bool = False  # else from logits
    is_part: bool = False  # given with ``batch`` and ``own``
    is_memory: bool = False  # ``remember``


@dataclass
class Exchange:
    """Who exchanges in one call of a loss, and who adds up the gradients."""

    group: ProcessGroup | None = None  # None: all ranks
    scaling: Scaling = "mean"  # of the ranks' gradients: "mean" as DDP does
    on_host: bool = False  # ``group`` exchanges memory of the host, and ranks may differ in precision
    divisor: int | None = None  # of averaged gradients; None: the number of ranks
    options: Options = ()  # the loss and its options in words, which all ranks must have alike
    has_header: bool = False  # the ranks have sent one in this call

    @property
    def world(self) -> int:
        return dist.get_world_size(self.group) if self.divisor is None else self.divisor

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all ranks, without gradient."""
        total = values.detach().to("cpu", torch.float64, copy=True) if self.on_host else values.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total.to(values)

    def share_gradient(self, parameter: Tensor) -> Tensor:
        """The parameter, its gradient averaged or added up over ranks: for one that DDP does not know."""
        shared = parameter.view_as(parameter)
        shared.register_hook(lambda g: self.all_sum(g) / (self.world if self.scaling == "mean" else 1))
        return shared

    def reduce(self, mine: Tensor, total: Tensor | float, reduction: str) -> Tensor:
        """The mean or sum over the rows of all ranks; ``total`` is this rank's share of the divisor of a mean.

        The gradient is right once those of the ranks are averaged. Where they are added up, values are too: this rank's
        share.
        """
        share = total.to(mine.dtype) if isinstance(total, Tensor) else mine.new_tensor(float(total))
        pair = torch.stack([mine.detach(), share])
        everyone = self.all_sum(pair) if self.has_header else self._sum_in_header(pair)
        shown = everyone[0]
        if reduction == "mean":
            divisor = torch.where(everyone[1] > 0, everyone[1], 1)
            mine, shown = mine / divisor, shown / divisor
        if self.scaling == "sum":
            return mine
        mine = self.world * mine
        return mine + (shown - mine).detach()

    def _sum_in_header(self, values: Tensor) -> Tensor:
        """:meth:`all_sum` of the first values that a call exchanges. On an accelerator, options are read when new."""
        sent = values.to("cpu" if self.on_host else values.device, torch.float64)
        rows, options = _gather_headers("values", pad(sent, (0, len(_Header._fields) - len(values))), self)
        if values_are_readable(rows) and (rows.is_cpu or options not in _read):
            _check_options(rows.tolist(), options)
            if not rows.is_cpu:
                _read.add(options)
        return rows[:, MOST_OPTIONS : MOST_OPTIONS + len(values)].sum(0).to(values)

    def rows(self, targets: SoftTargets) -> int:
        """The number of rows of all ranks."""
        return sum(header.rows for header in _agree(targets.cpu() if self.on_host else targets, self)[0])

    def gather(self, targets: SoftTargets) -> tuple[SoftTargets, int]:
        """The targets of all ranks in rank order, and where this rank's begin; some may have none.

        Sends S int32 and S float32 per row (labels: one int32; dense rows: K float32), float64 weights as float64.
        """
        sent = targets.cpu() if self.on_host else targets
        headers, common = _agree(sent, self)
        start = sum(header.rows for header in headers[: dist.get_rank(self.group)])
        return _gather_rows(sent, headers, common, self.group).to(targets.device), start

    def class_counts(self, targets: SoftTargets) -> Tensor:
        """The class counts of all ranks' targets, (K,), float64. Counts travel, or targets if they are fewer bytes."""
        sent = targets.cpu() if self.on_host else targets
        headers, common = _agree(sent, self)
        if 2 * common.num_classes < common.rows * sum(common.widths()):  # words per rank
            return self.all_sum(targets.class_mass(torch.float64))
        return _gather_rows(sent, headers, common, self.group).class_mass(torch.float64).to(targets.device)


class _Header(NamedTuple):
    """How a rank's targets are stored; the largest of each is how those of all ranks travel."""

    rows: int
    num_classes: int
    form: int
    pairs: int
    weight_words: int  # of 4 bytes, per weight
    is_masked: int
    background: int  # words per number of ξ; 0 where ξ is uniform or nothing is smoothed
    digest: int  # of the values of ξ, likewise
    smoothing: float  # ε; nan where it differs from row to row

    def widths(self) -> list[int]:
        """Words per row of classes, weights, ε and mask; 0 for what does not travel."""
        pairs, words = self.num_classes if self.form == DENSE else self.pairs, self.weight_words
        of_weights = 0 if self.form == LABELS else pairs * words
        return [pairs * (self.form != DENSE), of_weights, words * math.isnan(self.smoothing), self.is_masked]


def _agree(targets: SoftTargets, exchange: Exchange) -> tuple[list[_Header], _Header]:
    """The headers of all ranks, and what they have in common."""
    background = targets.smoothing_dist
    mine = _Header(
        len(targets),
        targets.num_classes,
        targets.form,
        0 if targets.form == DENSE else targets.classes.shape[1],
        2 if targets.weight is not None and targets.weight.dtype == torch.float64 else 1,
        targets.mask is not None,
        0 if background is None else max(1, background.element_size() // 4),
        0 if background is None else _digest(background),
        targets.smoothing if isinstance(targets.smoothing, float) else math.nan,
    )
    numbers = torch.tensor([*mine], dtype=torch.float64, device=targets.device)  # whole numbers up to 2⁵³ are exact
    gathered, options = _gather_headers("targets", numbers, exchange)
    rows = gathered.tolist()
    _check_options(rows, options)
    headers = [_Header(*[*map(int, row[MOST_OPTIONS:-1]), row[-1]]) for row in rows]
    filled = [header for header in headers if header.rows] or headers
    if len({header.digest for header in filled if header.digest}) > 1:
        raise ValueError("smoothing_dist differs between ranks, whose targets are contrasted with each other")
    if len({header.num_classes for header in filled}) > 1:
        raise ValueError(f"ranks have targets of different numbers of classes: {[h.num_classes for h in filled]}")
    common = _Header(*map(max, zip(*filled, strict=True)))
    is_shared = all(header.smoothing == filled[0].smoothing for header in filled)
    return headers, common._replace(smoothing=filled[0].smoothing if is_shared else math.nan)


def _gather_headers(content: str, numbers: Tensor, exchange: Exchange) -> tuple[Tensor, Options]:
    """What every rank sends first, digests of its options and ``numbers``, one length whatever its loss is."""
    options = (*exchange.options, ("what the loss exchanges", content))
    sent = torch.cat([_digests(options, numbers.device), numbers])
    received = sent.new_empty(dist.get_world_size(exchange.group) * len(sent))
    all_gather_single(received, sent, group=exchange.group)
    exchange.has_header = True
    return received.view(-1, len(sent)), options


@lru_cache(maxsize=64)
def _digests(options: Options, device: torch.device) -> Tensor:
    found = [crc32(f"{name}={value}".encode()) if value else 0 for name, value in options]
    return torch.tensor([*found, *[0] * (MOST_OPTIONS - len(found))], dtype=torch.float64, device=device)


def _check_options(rows: list[list[float]], options: Options) -> None:
    for i, (name, value) in enumerate(options):
        if len({row[i] for row in rows if row[i]}) > 1:
            raise ValueError(f"{name} differs between ranks, which train one loss together; this rank has {value}")


def in_words(options: Mapping[str, object]) -> Options:
    """The options of a loss in words that differ where they do; what ranks learn or hold of their own is left out.

    A tensor has two entries, its size and its values; values that are learned or on an accelerator have no words.
    """
    found = []
    for name, option in options.items():
        found.append((name, _kind(option)))
        values = option.log_eta if isinstance(option, FixedNoise) else option
        if isinstance(values, Tensor):
            is_read = values.is_cpu and not values.requires_grad and values_are_readable(values)
            found.append((name, _sums(values) if is_read else ""))
    return tuple(found)


def _kind(option: object) -> str:
    if isinstance(option, Tensor):
        return f"a tensor of {option.numel()} numbers"
    if isinstance(option, RunningNoise):
        return f"a running estimate, decay={option.decay:g}, prior={option.prior:g}"
    if isinstance(option, FixedNoise):
        return f"probabilities of {option.num_classes} classes"
    if isinstance(option, Candidates):
        terms: Sequence[nn.Module] = getattr(option, "terms", [option])
        return " + ".join(f"{type(term).__name__}({term.extra_repr()})" for term in terms)
    if isinstance(option, Draw):
        plain = [f"{name}={value}" for name, value in vars(option).items() if isinstance(value, str | float | int)]
        return f"{type(option).__name__}({', '.join(plain)})"
    return str(option)


def _sums(values: Tensor) -> str:
    """Three weighted sums of a tensor, which rounding errors do not change. Once per tensor, and change."""
    version = 0 if values.is_inference() else values._version
    known = _known_sums.get(values)
    if known is None or known[0] != version:
        places = torch.arange(values.numel(), dtype=torch.float64)
        sums = [float((values.flatten() * (2 + (speed * places).cos())).sum()) for speed in (0, 1, 2)]
        known = version, f"weighted sums {', '.join(f'{x:.4g}' for x in sums)}"
        _known_sums[values] = known
    return str(known[1])


def _gather_rows(
    targets: SoftTargets, headers: list[_Header], common: _Header, group: ProcessGroup | None
) -> SoftTargets:
    form, widths, dtype = common.form, common.widths(), torch.float64 if common.weight_words == 2 else torch.float32
    of_classes, of_weights, has_mass, is_masked = widths
    block = torch.zeros(len(targets), 0, dtype=torch.int32, device=targets.device)
    if len(targets):
        columns = [block]
        if of_classes:
            columns.append(pad(targets.classes.int(), (0, of_classes - targets.classes.shape[1])))
        if of_weights:
            weight = (targets.foreground if form == DENSE else targets.pair_weight)(dtype)
            columns.append(_words(weight, of_weights))
        if has_mass:
            columns.append(_words(targets.background_mass(dtype)[:, None], has_mass))
        if is_masked:
            columns.append(block.new_ones(len(targets), 1) if targets.mask is None else targets.mask[:, None].int())
        block = torch.cat(columns, 1)
    longest = common.rows  # every rank fills its rows up to the longest batch
    sent = pad(block, (0, sum(widths) - block.shape[1], 0, longest - len(block))).contiguous()
    received = sent.new_empty(len(headers) * longest, sum(widths))
    all_gather_single(received, sent, group=group)
    rows = torch.cat([received[r * longest :][: header.rows] for r, header in enumerate(headers)])

    index, weight, mass, counts = (part.contiguous() for part in rows.split(widths, 1))
    return SoftTargets(
        common.num_classes,
        None if form == DENSE else index.long(),
        None if form == LABELS else weight.view(dtype),
        mass.view(dtype)[:, 0] if has_mass else common.smoothing,
        _shared_background(targets, [header.background for header in headers], group),
        counts[:, 0].bool() if is_masked else None,
    )


def _words(floats: Tensor, width: int) -> Tensor:
    """The same bytes as int32, (N, width); zeros fill up the row."""
    words = floats.contiguous().view(torch.int32)
    return pad(words, (0, width - words.shape[1]))


def _shared_background(targets: SoftTargets, words: list[int], group: ProcessGroup | None) -> Tensor | None:
    """ξ, which ranks without rows or smoothing get from one that has it; ``words`` per number of each rank."""
    if max(words) in (0, min(words)):
        return targets.smoothing_dist
    dtype = torch.float64 if max(words) == 2 else torch.float32
    background = torch.zeros(targets.num_classes, dtype=dtype, device=targets.device)
    if targets.smoothing_dist is not None:
        background = targets.smoothing_dist.to(dtype, copy=True)
    source = dist.get_process_group_ranks(group)[words.index(max(words))]
    dist.broadcast(background, source, group=group)
    return background


def _digest(values: Tensor) -> int:
    """A number below 2⁵³ that differs where values do; sums and products of whole numbers wrap around."""
    bits = values.detach().to(torch.float32).contiguous().view(torch.int32).long()
    places = torch.arange(1, len(bits) + 1, device=bits.device) * 0x9E3779B97F4A7C1
    return int(((bits + 1) * (places | 1)).sum()) % 2**53 or 1
