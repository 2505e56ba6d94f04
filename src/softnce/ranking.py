"""How high the right answers rank among all classes: recall@k, nDCG@k, hits@k and MRR.

>>> logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
>>> found = ranks(logits, torch.tensor([2]))
>>> found.rank, float(found.mrr()), float(found.hits(1).nanmean())
(tensor([[2.]], dtype=torch.float64), 0.5, 0.0)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softnce._core.ranks import gather_objects
from softnce._core.table import Table
from softnce._inputs import as_tensor, as_whole, check_floating, check_places, full_precision
from softnce.targets import SoftTargets
from softnce.targets._algebra import names_first
from softnce.targets.soft_targets import as_soft_targets

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Exclude = Tensor | Sequence[Tensor | Sequence[int]] | tuple[Tensor, Tensor]
"""Classes left out per row: (N, E) padded by −1; a list of N tensors or lists; or a tuple of offsets (N + 1,) and
classes."""
ROWS = 256
FEW = 16
"""Right answers per row that are compared one by one; for more the scores are sorted."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of the right answers of N rows, and the metrics of every row, (N,).

    ``rank`` (N, S) counts from 1, NaN pads; ``weight`` (N, S) holds the grades of the answers, 0 pads. Rows without a
    right answer, ignored ones included, have NaN in every metric; take means by ``nanmean``.
    """

    rank: Tensor
    weight: Tensor

    def _or_nan(self, values: Tensor) -> Tensor:
        return values.masked_fill((self.weight == 0).all(1), torch.nan)

    def recall(self, k: int) -> Tensor:
        """The share of a row's right answers among its k best classes."""
        found = (self.rank <= as_whole(k, "k")).sum(1).double()
        return self._or_nan(found / (self.weight > 0).sum(1))

    def hits(self, k: int) -> Tensor:
        """1 if a right answer is among the k best classes, else 0."""
        return self._or_nan((self.rank <= as_whole(k, "k")).any(1).double())

    def mrr(self) -> Tensor:
        """1/rank of the best right answer."""
        return self._or_nan(self.rank.reciprocal().nan_to_num(nan=0).amax(1))

    def ndcg(self, k: int) -> Tensor:
        """Σ w/log2(1 + rank) over the answers among the k best, divided by its value in the best order."""
        k = as_whole(k, "k")
        gain = torch.where(self.rank <= k, self.weight / (1 + self.rank).log2(), 0).sum(1)
        best = self.weight.sort(1, descending=True).values[:, :k]
        place = torch.arange(best.shape[1], dtype=best.dtype, device=best.device)
        return self._or_nan(gain / (best / (place + 2).log2()).sum(1))


def ranks(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    *,
    exclude: Exclude | None = None,
    ignore_index: int = -100,
    chunk_size: int = 8192,
) -> Ranks:
    """The rank of every right answer among the classes of ``logits`` (N, K).

    Ties share their mean rank: an answer level with c other classes has 1 + (number higher) + c/2. NaN is the lowest
    score.

    Args:
        targets: labels (N,), or several right answers as probabilities (N, K) or SoftTargets: the classes with a weight
            above 0 (a background is not an answer).
        exclude: classes that do not compete, see :data:`Exclude`; right answers stay.
        ignore_index: label of rows that are left out.
        chunk_size: classes compared at a time.
    """
    check_floating(logits, "logits", "(N, K)")
    return _ranks(
        lambda rows, part: logits[rows, part], logits, logits.shape[1], targets, exclude, ignore_index, chunk_size
    )


def linear_ranks(
    features: Tensor,
    table: Tensor,
    targets: Tensor | SoftTargets,
    *,
    bias: Tensor | None = None,
    cosine: bool = False,
    exclude: Exclude | None = None,
    ignore_index: int = -100,
    chunk_size: int = 8192,
) -> Ranks:
    """:func:`ranks` of the logits ``features @ table.T + bias``, a block of rows and classes at a time.

    Every score is computed twice, O(N·K·d): answers are compared with scores of the same matrix product.
    """
    check_floating(features, "features", "(N, d)")
    check_floating(table, "table", "(K, d)")
    source = Table(features.to(torch.promote_types(features.dtype, table.dtype)), table, bias, cosine=cosine)

    def scores(rows: slice, part: slice) -> Tensor:
        return source.logits(torch.arange(part.start, part.stop, device=table.device))(source.rows[rows])

    return _ranks(scores, features, len(table), targets, exclude, ignore_index, chunk_size)


class RankingMeter:
    """Means of recall@k, nDCG@k, hits@k and MRR over batches and over the ranks of ``torch.distributed``."""

    def __init__(self, ks: Sequence[int] = (1, 10), process_group: "ProcessGroup | None" = None) -> None:
        self.ks, self.process_group = [as_whole(k, "ks") for k in ks], process_group
        self.names = ["mrr", *(f"{name}@{k}" for k in self.ks for name in ("recall", "ndcg", "hits"))]
        self.reset()

    def reset(self) -> None:
        self.sums = torch.zeros(1 + len(self.names), dtype=torch.float64)

    def update(self, found: Ranks) -> None:
        """Add the ranks of a batch."""
        each = [found.mrr(), *(metric(k) for k in self.ks for metric in (found.recall, found.ndcg, found.hits))]
        rows = (found.weight > 0).any(1).sum(dtype=torch.float64)
        self.sums = self.sums.to(found.rank.device) + torch.stack([rows, *(values.nansum() for values in each)])

    def compute(self) -> dict[str, float]:
        """The means over all rows so far, of all ranks; NaN without rows."""
        count, *totals = torch.stack(gather_objects(self.sums.cpu(), self.process_group)).sum(0).tolist()
        return {name: total / count if count else float("nan") for name, total in zip(self.names, totals, strict=True)}


@torch.no_grad()
def _ranks(
    scores: Callable[[slice, slice], Tensor],
    like: Tensor,
    num_classes: int,
    targets: Tensor | SoftTargets,
    exclude: Exclude | None,
    ignore_index: int,
    chunk_size: int,
) -> Ranks:
    chunk_size = as_whole(chunk_size, "chunk_size")
    answers, weight = _answers(as_soft_targets(targets, num_classes, 0.0, ignore_index))
    if len(answers) != len(like):
        raise ValueError(f"targets have {len(answers)} rows, but there are {len(like)} rows of scores")
    row, excluded = excluded_classes(exclude, len(like), num_classes, like.device)
    right_ones = torch.arange(len(like), device=like.device)[:, None] * num_classes + answers
    stays = torch.isin(row * num_classes + excluded, right_ones[weight > 0])
    row, excluded = row[~stays], excluded[~stays]
    offsets = torch.searchsorted(row, torch.arange(0, len(like) + ROWS, ROWS, device=row.device)).tolist()
    parts = [slice(k, min(k + chunk_size, num_classes)) for k in range(0, num_classes, chunk_size)]
    found = torch.empty_like(weight)

    def block(rows: slice, part: slice) -> Tensor:
        return scores(rows, part).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)

    with full_precision(like.device):
        for start, *those in zip(range(0, len(like), ROWS), offsets, offsets[1:], strict=False):
            rows, away = slice(start, min(start + ROWS, len(like))), slice(*those)
            mine, is_answer = answers[rows], weight[rows] > 0
            right, higher, level = weight.new_zeros(()), torch.zeros_like(weight[rows]), torch.zeros_like(weight[rows])
            for part in parts:
                inside = (mine >= part.start) & (mine < part.stop)
                right = torch.where(inside, block(rows, part).gather(1, (mine - part.start).where(inside, 0)), right)
            for part in parts:
                s = block(rows, part)
                inside = (excluded[away] >= part.start) & (excluded[away] < part.stop)
                out = torch.zeros_like(s, dtype=torch.bool)
                out[row[away][inside] - start, excluded[away][inside] - part.start] = True
                above, equal = _compared(s.masked_fill_(out, -torch.inf), right)
                higher += above
                level += equal - out.sum(1, keepdim=True) * (right == -torch.inf)
            found[rows] = torch.where(is_answer, 1 + higher + (level - 1) / 2, torch.nan)
    return Ranks(found, weight)


def _answers(targets: SoftTargets) -> tuple[Tensor, Tensor]:
    """The classes of the right answers and their weights, (N, S) each; every class once, weight 0 for no answer."""
    weight, classes = targets.counted(targets.pair_weight(torch.float64)).detach(), targets.index
    if classes is not None:
        return classes, SoftTargets(targets.num_classes, classes, weight).at(classes) * names_first(classes)
    width = int((weight > 0).sum(1).max()) if len(weight) else 0
    weight, classes = weight.topk(max(width, 1), dim=1)
    return classes, weight


def excluded_classes(
    exclude: Exclude | None, rows: int, num_classes: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rows, in order, and the classes excluded in them, (T,) each."""
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    if exclude is None:
        return nothing, nothing
    if isinstance(exclude, Tensor):
        if exclude.dim() != 2 or len(exclude) != rows or exclude.is_floating_point() or exclude.dtype == torch.bool:
            got = f"{exclude.dtype} {tuple(exclude.shape)}"
            raise ValueError(f"exclude must be integers ({rows}, E), padded by -1, got {got}")
        exclude = exclude.long()
        there = exclude != -1
        lengths, classes = there.sum(1), exclude[there]
    elif isinstance(exclude, tuple):
        offsets, classes = (as_tensor(each, "exclude") for each in exclude)
        if offsets.shape != (rows + 1,) or int(offsets[0]) != 0 or int(offsets[-1]) != len(classes):
            raise ValueError(f"exclude must hold offsets ({rows + 1},) from 0 to the number of classes, {len(classes)}")
        lengths = offsets.diff()
    else:
        if len(exclude) != rows:
            raise ValueError(f"exclude must hold one tensor for each of the {rows} rows, got {len(exclude)}")
        each_row = [as_tensor(each, "exclude").to(device) for each in exclude]
        lengths = torch.tensor([len(each) for each in each_row], dtype=torch.long)
        classes = torch.cat([nothing, *(each for each in each_row if len(each))])  # an empty list has no dtype
    if lengths.numel() and int(lengths.min()) < 0:
        raise ValueError("exclude must hold offsets that do not fall")
    check_places(classes, (len(classes),), num_classes, "exclude")
    return torch.repeat_interleave(lengths).to(device), classes.to(device, torch.long)


def _compared(s: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """How many scores (n, C) are above each of ``right`` (n, S), and how many equal it, (n, S) each."""
    if right.shape[1] <= FEW:
        each = right.split(1, dim=1)
        above, equal = (torch.cat([f(s, one).sum(1, keepdim=True) for one in each], 1) for f in (torch.gt, torch.eq))
        return above, equal
    ascending, right = s.sort(1).values, right.contiguous()
    below, not_above = (torch.searchsorted(ascending, right, right=after) for after in (False, True))
    return s.shape[1] - not_above, not_above - below
