"""Classification heads: from features (N, dim) to class logits (N, K).

A plain linear head is ``nn.Linear(dim, num_classes, bias=False)``: its weight rows are the label embeddings y_k, its
logits the dot products z·y_k.
"""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softnce import functional
from softnce._checks import as_number, as_whole, check_flag
from softnce._precision import autocast_is_on
from softnce._rows import check_table, is_sharded
from softnce.losses import ContrastiveLoss
from softnce.targets import SoftTargets


class MLPHead(nn.Sequential):
    """The paper's head: three linear layers without bias, dim → hidden → hidden → K.

    BatchNorm and ReLU follow the first two. The authors' code also normalises the output scores by a BatchNorm without
    affine parameters, which the paper does not mention; ``output_norm=True`` does that. It fixes the scale of the
    scores over the batch (unit variance per class), so it acts like a temperature, and at evaluation its running
    statistics take over.

    Args:
        dim: features.
        num_classes: K.
        hidden: width of the two hidden layers.
        output_norm: BatchNorm without affine parameters on the scores.
    """

    def __init__(self, dim: int, num_classes: int, hidden: int = 4096, output_norm: bool = False) -> None:
        dim, num_classes, hidden = (
            as_whole(dim, "dim"),
            as_whole(num_classes, "num_classes"),
            as_whole(hidden, "hidden"),
        )
        layers: list[nn.Module] = [
            nn.Linear(dim, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes, bias=False),
        ]
        if check_flag(output_norm, "output_norm"):
            layers.append(nn.BatchNorm1d(num_classes, affine=False))
        super().__init__(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (N, K)."""
        _check_features(features, self[0].weight)  # type: ignore[arg-type]
        scores: Tensor = super().forward(features)  # type: ignore[no-untyped-call]
        return scores


class CosineHead(nn.Module):
    """Cosine similarities of features and label embeddings, z·y_k / (‖z‖‖y_k‖), divided by a temperature.

    The similarity lies in [−1, 1], so the temperature sets how sharp a prediction can be. It is learned on a log scale
    unless ``learn_temperature`` is False; leave the loss's own temperature at 1.
    """

    log_temperature: Tensor

    def __init__(self, dim: int, num_classes: int, temperature: float = 0.07, learn_temperature: bool = True) -> None:
        super().__init__()
        dim, num_classes = as_whole(dim, "dim"), as_whole(num_classes, "num_classes")
        temperature = as_number(temperature, "temperature", "a positive number")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        self.weight = nn.Parameter(torch.randn(num_classes, dim) / math.sqrt(dim))
        log_temperature = torch.tensor(math.log(temperature))
        if check_flag(learn_temperature, "learn_temperature"):
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def forward(self, features: Tensor) -> Tensor:
        _check_features(features, self.weight)
        similarity = F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))
        return similarity / self.log_temperature.exp()


class _Table(nn.Embedding):
    """Label embeddings. An ``nn.Embedding``, because DDP expects sparse gradients from no other module."""

    is_sharded = False
    """Whether FSDP2 holds the rows: it then puts a DTensor here, except during a forward."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and is_sharded(value):
            self.is_sharded = True
        super().__setattr__(name, value)


class LabelEmbeddingHead(nn.Module):
    """A table of K label embeddings whose training step does not depend on K.

    ``head.loss(features, targets, criterion)`` trains it without logits; ``head(features)`` gives all K logits, and
    ``head.topk`` or a :class:`LabelIndex` the best few of them.

    Args:
        dim: features, d.
        num_classes: K.
        sparse: gradients as sparse tensors of the rows touched. Use :class:`softnce.optimisers.RowAdagrad`,
            ``torch.optim.SparseAdam`` or ``SGD`` for the table and any optimiser for the rest.
        cosine: logits are cosine similarities; give the criterion a temperature well below 1.
        bias: add a learned number to each class's logit. Its gradient is a dense (K,) tensor, also where ``sparse``.

    >>> import softnce
    >>> head, criterion = LabelEmbeddingHead(16, 100_000), softnce.SoftTargetInfoNCE()
    >>> features = torch.randn(8, 16, requires_grad=True)
    >>> head.loss(features, torch.arange(8), criterion).backward()
    >>> head.weight.grad.is_sparse, tuple(head.topk(features, 5)[1].shape)
    (True, (8, 5))
    """

    bias: Tensor | None

    def __init__(
        self, dim: int, num_classes: int, sparse: bool = True, cosine: bool = False, bias: bool = False
    ) -> None:
        super().__init__()
        dim, num_classes = as_whole(dim, "dim"), as_whole(num_classes, "num_classes")
        self.sparse = check_flag(sparse, "sparse")
        self.table = _Table(num_classes, dim, sparse=self.sparse)
        nn.init.normal_(self.table.weight, std=1 / math.sqrt(dim))
        self.cosine = check_flag(cosine, "cosine")
        self.register_parameter("bias", nn.Parameter(torch.zeros(num_classes)) if check_flag(bias, "bias") else None)

    @classmethod
    def from_linear(cls, linear: nn.Linear, sparse: bool = True) -> Self:
        """A head that starts with a copy of ``linear``'s weight and, where it has one, its bias.

        >>> linear, x = nn.Linear(16, 100), torch.randn(8, 16)
        >>> torch.equal(LabelEmbeddingHead.from_linear(linear)(x), linear(x))
        True
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        with torch.device(linear.weight.device):
            head = cls(linear.in_features, linear.out_features, sparse, bias=linear.bias is not None)
        head = head.to(linear.weight.dtype)
        with torch.no_grad():
            head.weight.copy_(linear.weight)
            if head.bias is not None:
                head.bias.copy_(linear.bias)
        return head

    @property
    def weight(self) -> Tensor:
        """The label embeddings, (K, d)."""
        return self.table.weight

    def extra_repr(self) -> str:
        num_classes, dim = self.weight.shape
        return f"{dim}, {num_classes}, sparse={self.sparse}, cosine={self.cosine}, bias={self.bias is not None}"

    def forward(
        self,
        features: Tensor,
        targets: Tensor | SoftTargets | None = None,
        criterion: ContrastiveLoss | None = None,
        *,
        sample_weight: Tensor | None = None,
        batch: SoftTargets | None = None,
        own: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """All logits, (N, K); with ``targets`` and a ``criterion``, :meth:`loss`.

        Under DDP, FSDP or other wrappers, which only see calls of the module, call ``wrapped(features, targets,
        criterion)``.
        """
        if targets is not None and criterion is not None:
            return self.loss(
                features, targets, criterion, sample_weight=sample_weight, batch=batch, own=own, generator=generator
            )
        if targets is not None or criterion is not None:
            raise ValueError("targets and criterion go together: pass both for the loss, none for the logits")
        _check_features(features, self.weight)
        if self.cosine:
            return F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1), self.bias)
        return F.linear(features, self.weight, self.bias)

    def loss(
        self,
        features: Tensor,
        targets: Tensor | SoftTargets,
        criterion: ContrastiveLoss,
        *,
        sample_weight: Tensor | None = None,
        batch: SoftTargets | None = None,
        own: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``criterion(self(features), targets)`` without the logits; arguments as in ``criterion.linear``."""
        if not isinstance(criterion, ContrastiveLoss):
            given = type(criterion).__name__
            if isinstance(criterion, nn.Module):
                given += ", which needs the logits: criterion(head(features), targets)"
            raise TypeError(f"criterion must be a contrastive loss such as ExpectedInfoNCE(), got {given}")
        if self.sparse and self.table.is_sharded and torch.is_grad_enabled():
            raise ValueError("FSDP2 cannot exchange sparse gradients: make the head with sparse=False")
        return criterion.linear(
            features, self.weight, targets, bias=self.bias, sparse=self.sparse, cosine=self.cosine,
            sample_weight=sample_weight, batch=batch, own=own, generator=generator,
        )  # fmt: skip

    @torch.no_grad()
    def topk(self, features: Tensor, k: int, chunk_size: int = 65536) -> tuple[Tensor, Tensor]:
        """The k best logits and their classes, (N, k) each, through the whole table in chunks. O(N·K·d)."""
        return functional.linear_topk(
            features, self.weight, k, bias=self.bias, cosine=self.cosine, chunk_size=chunk_size
        )


class LabelIndex:
    """An approximate index over a head's label embeddings for fast top-k (needs ``softnce[faiss]``).

    The table is divided into ``cells`` by clustering; a search looks into the ``probes`` nearest. Unless ``probes`` are
    given, the fewest are taken that find the share ``recall`` of the true ten best classes of some ``features``, with
    two standard errors to spare: few for a table with clusters, most of the cells for one without. :meth:`recall` tells
    how many of the true best are found for further features. The index is a copy: build it anew when the table has
    changed.

    Building costs O(K·cells·d) for the clusters and O(256·K·d) for the choice of ``probes``.

    Args:
        head: the trained head.
        cells: number of clusters, by default about 4·√K.
        probes: clusters searched for a query; None: as many as ``recall`` needs.
        recall: share of the true best classes to find, in (0, 1).
        features: (n, d), a few hundred features as they will come; None: 256 random directions, the hardest case.
    """

    def __init__(
        self,
        head: LabelEmbeddingHead,
        cells: int | None = None,
        probes: int | None = None,
        *,
        recall: float = 0.95,
        features: Tensor | None = None,
    ) -> None:
        try:
            import faiss
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("LabelIndex needs faiss: pip install 'softnce[faiss]'") from error
        if not isinstance(head, LabelEmbeddingHead):
            raise TypeError(f"head must be a LabelEmbeddingHead, got {type(head).__name__}")
        weight = head.weight.detach()
        table = self._with(head.bias, F.normalize(weight, dim=1) if head.cosine else weight)
        num_classes, dim = table.shape
        if cells is None:
            cells = max(1, min(num_classes // 39, int(4 * math.sqrt(num_classes))))  # faiss wants 39 points per cell
        cells = as_whole(cells, "cells")
        if cells > num_classes:
            raise ValueError(f"cells must be at most the {num_classes} classes, got {cells}")
        probes = None if probes is None else as_whole(probes, "probes")
        recall = as_number(recall, "recall", "a number in (0, 1)")
        if not 0 < recall < 1:
            raise ValueError(f"recall must be in (0, 1), got {recall}")
        if features is not None:
            check_table(features, weight, None)
        self.head = head
        self.index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
        self.index.train(table)
        self.index.add(table)
        if probes is None:
            probes = self._fewest_probes(recall, features, min(10, num_classes))
        self.index.nprobe = min(probes, cells)

    def _fewest_probes(self, recall: float, features: Tensor | None, k: int) -> int:
        """The fewest cells that find enough, by bisection: more cells never find less."""
        if features is None:
            weight = self.head.weight
            features = torch.randn(256, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
        true = self.head.topk(features, k)[1]
        low, high = 1, int(self.index.nlist)
        while low < high:
            self.index.nprobe = middle = (low + high) // 2
            found = self._share_found(features, true)
            if float(found.mean() - 2 * found.std(correction=0) / math.sqrt(len(found))) >= recall:
                high = middle
            else:
                low = middle + 1
        return high

    @torch.no_grad()
    def topk(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As ``head.topk``, among the cells searched; class −1 where those hold fewer than k."""
        check_table(features, self.head.weight, None, allow_empty=True)
        k = as_whole(k, "k")
        if k > self.index.ntotal:
            raise ValueError(f"k must be between 1 and the {self.index.ntotal} classes, got {k}")
        z = F.normalize(features, dim=1) if self.head.cosine else features
        ones = None if self.head.bias is None else torch.ones(len(z))
        values, classes = self.index.search(self._with(ones, z), k)
        return torch.from_numpy(values).to(features.device), torch.from_numpy(classes).to(features.device)

    @staticmethod
    def _with(extra: Tensor | None, rows: Tensor) -> Any:
        """Rows for faiss; a bias is one more column, which a feature of 1 picks."""
        rows = rows.detach().float().cpu()
        if extra is not None:
            rows = torch.cat([rows, extra.detach().float().cpu()[:, None]], 1)
        return rows.contiguous().numpy()

    def recall(self, features: Tensor, k: int) -> float:
        """The share of the true k best classes that the index finds for these features."""
        if isinstance(features, Tensor) and len(features) == 0:
            raise ValueError("features are empty: recall needs at least one row")
        return float(self._share_found(features, self.head.topk(features, k)[1]).mean())

    def _share_found(self, features: Tensor, true: Tensor) -> Tensor:
        """Of the true best classes of each row, (N, k), the share that the index finds, (N,)."""
        found = self.topk(features, true.shape[1])[1]
        return (true[:, :, None] == found[:, None, :]).any(2).double().mean(1)


def _check_features(features: Tensor, weight: Tensor) -> None:
    """Features (..., d) must fit label embeddings or a layer (·, d)."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        got = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TypeError(f"features must be a floating point tensor, got {got}")
    if features.dim() == 0 or features.shape[-1] != weight.shape[1]:
        raise ValueError(f"features must have {weight.shape[1]} columns, got shape {tuple(features.shape)}")
    if features.dtype != weight.dtype and not autocast_is_on(features.device):
        raise TypeError(f"features must be {weight.dtype} as the head is, got {features.dtype}")
