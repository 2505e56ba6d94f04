"""An approximate index over the label embeddings of a head."""

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._core.table import check_table
from softnce._inputs import as_whole, number

if TYPE_CHECKING:
    from softnce.heads import LabelEmbeddingHead


class LabelIndex:
    """An approximate index over a head's label embeddings for fast top-k (needs faiss).

    Clustering divides the table into ``cells``, by default about 4·√K; a search looks into the ``probes`` nearest.
    By default these are the fewest that find the share ``recall`` of the true ten best classes of ``features``, two
    standard errors to spare: a few hundred as they will come, or else 256 random directions, the hardest case. The
    index is a copy: build it anew when the table has changed. Building costs O(K·cells·d), and O(256·K·d) for the
    choice of ``probes``.
    """

    def __init__(
        self,
        head: "LabelEmbeddingHead",
        cells: int | None = None,
        probes: int | None = None,
        *,
        recall: float = 0.95,
        features: Tensor | None = None,
    ) -> None:
        try:
            import faiss
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("LabelIndex needs faiss: pip install faiss-cpu") from error
        weight = head.weight.detach()
        table = self._with(head.bias, F.normalize(weight, dim=1) if head.cosine else weight)
        num_classes, dim = table.shape
        if cells is None:
            cells = max(1, min(num_classes // 39, int(4 * math.sqrt(num_classes))))  # faiss wants 39 points per cell
        if as_whole(cells, "cells") > num_classes:
            raise ValueError(f"cells must be at most the {num_classes} classes, got {cells}")
        number("a number in (0, 1)", lambda x: 0 < x < 1)(recall, "recall")
        if features is None:
            features = torch.randn(256, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
        check_table(features, weight, None)
        self.head = head
        self.index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
        self.index.train(table)
        self.index.add(table)
        if probes is None:
            probes = self._fewest_probes(recall, features, min(10, num_classes))
        self.index.nprobe = min(as_whole(probes, "probes"), cells)

    def _fewest_probes(self, recall: float, features: Tensor, k: int) -> int:
        """The fewest cells that find enough, by bisection: more cells never find less."""
        true = self.head.topk(features, k)[1]

        def finds_enough(probes: int) -> bool:
            self.index.nprobe = probes
            found = self._share_found(features, true)
            return float(found.mean() - 2 * found.std(correction=0) / math.sqrt(len(found))) >= recall

        return 1 + bisect_left(range(1, self.index.nlist), True, key=finds_enough)

    @torch.no_grad()
    def topk(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As ``head.topk``, among the cells searched; class −1 where those hold fewer than k."""
        check_table(features, self.head.weight, None)
        if as_whole(k, "k") > self.index.ntotal:
            raise ValueError(f"k must be between 1 and the {self.index.ntotal} classes, got {k}")
        z = F.normalize(features, dim=1) if self.head.cosine else features
        ones = None if self.head.bias is None else torch.ones(len(z))
        values, classes = self.index.search(self._with(ones, z), int(k))
        return torch.from_numpy(values).to(features.device), torch.from_numpy(classes).to(features.device)

    @staticmethod
    def _with(extra: Tensor | None, rows: Tensor) -> Any:
        """Rows for faiss; a bias is one more column, which a feature of 1 picks."""
        columns = [rows] if extra is None else [rows, extra[:, None]]
        return torch.cat([column.detach().float().cpu() for column in columns], 1).contiguous().numpy()

    def recall(self, features: Tensor, k: int) -> float:
        """The share of the true k best classes that the index finds for these features."""
        if isinstance(features, Tensor) and len(features) == 0:
            raise ValueError("features are empty: recall needs at least one row")
        return float(self._share_found(features, self.head.topk(features, k)[1]).mean())

    def _share_found(self, features: Tensor, true: Tensor) -> Tensor:
        """Of the true best classes of each row, (N, k), the share that the index finds, (N,)."""
        found = self.topk(features, true.shape[1])[1]
        return (true[:, :, None] == found[:, None, :]).any(2).double().mean(1)
