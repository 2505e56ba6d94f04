"""Classification heads: from features (N, dim) to class logits (N, K).

A plain linear head is ``nn.Linear(dim, num_classes, bias=False)``: its weight rows are the label embeddings y_k, its
logits the dot products z·y_k.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softnce import functional
from softnce.losses import ContrastiveLoss
from softnce.targets import SoftTargets


class MLPHead(nn.Sequential):
    """The paper's head: three linear layers without bias, dim → hidden → hidden → K.

    BatchNorm and ReLU follow the first two. The authors' code also normalises the output scores by a BatchNorm without
    affine parameters, which the paper does not mention; ``output_norm=True`` does that. It fixes the scale of the
    scores over the batch (unit variance a class), so it acts like a temperature, and at evaluation its running
    statistics take over.

    Args:
        dim: features.
        num_classes: K.
        hidden: width of the two hidden layers.
        output_norm: BatchNorm without affine parameters on the scores.
    """

    def __init__(self, dim: int, num_classes: int, hidden: int = 4096, output_norm: bool = False) -> None:
        layers: list[nn.Module] = [
            nn.Linear(dim, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes, bias=False),
        ]
        if output_norm:
            layers.append(nn.BatchNorm1d(num_classes, affine=False))
        super().__init__(*layers)


class CosineHead(nn.Module):
    """Cosine similarities of features and label embeddings, z·y_k / (‖z‖‖y_k‖), divided by a temperature.

    The similarity lies in [−1, 1], so the temperature sets how sharp a prediction can be. It is learned on a log scale
    unless ``learn_temperature`` is False; leave the loss's own temperature at 1.
    """

    log_temperature: Tensor

    def __init__(self, dim: int, num_classes: int, temperature: float = 0.07, learn_temperature: bool = True) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.weight = nn.Parameter(torch.randn(num_classes, dim) / math.sqrt(dim))
        log_temperature = torch.tensor(math.log(temperature))
        if learn_temperature:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def forward(self, features: Tensor) -> Tensor:
        similarity = F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))
        return similarity / self.log_temperature.exp()


class LabelEmbeddingHead(nn.Module):
    """A table of K label embeddings whose training step does not depend on K.

    ``head.loss(features, targets, criterion)`` trains it without logits; ``head(features)`` gives all K logits, and
    ``head.topk`` or a :class:`LabelIndex` the best few of them.

    Args:
        dim: features, d.
        num_classes: K.
        sparse: gradients as sparse tensors of the rows touched. Use ``torch.optim.SparseAdam`` or ``SGD`` for the table
            and any optimiser for the rest.
        cosine: logits are cosine similarities; give the criterion a temperature well below 1.

    >>> import softnce
    >>> head, criterion = LabelEmbeddingHead(16, 100_000), softnce.SoftTargetInfoNCE()
    >>> features = torch.randn(8, 16, requires_grad=True)
    >>> head.loss(features, torch.arange(8), criterion).backward()
    >>> head.weight.grad.is_sparse, tuple(head.topk(features, 5)[1].shape)
    (True, (8, 5))
    """

    def __init__(self, dim: int, num_classes: int, sparse: bool = True, cosine: bool = False) -> None:
        super().__init__()
        if dim < 1 or num_classes < 1:
            raise ValueError(f"dim and num_classes must be at least 1, got {dim} and {num_classes}")
        self.weight = nn.Parameter(torch.randn(num_classes, dim) / math.sqrt(dim))
        self.sparse = sparse
        self.cosine = cosine

    def extra_repr(self) -> str:
        num_classes, dim = self.weight.shape
        return f"{dim}, {num_classes}, sparse={self.sparse}, cosine={self.cosine}"

    def forward(self, features: Tensor) -> Tensor:
        """All logits, (N, K)."""
        if self.cosine:
            return F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))
        return F.linear(features, self.weight)

    def loss(
        self,
        features: Tensor,
        targets: Tensor | SoftTargets,
        criterion: ContrastiveLoss,
        *,
        bias: Tensor | None = None,
        sample_weight: Tensor | None = None,
        batch: SoftTargets | None = None,
        own: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``criterion(self(features), targets)`` without the logits; arguments as in ``criterion.linear``."""
        if not isinstance(criterion, ContrastiveLoss):
            raise TypeError(
                f"criterion must be a contrastive loss such as SoftTargetInfoNCE, got {type(criterion).__name__}, "
                "which needs the logits: criterion(head(features), targets)"
            )
        return criterion.linear(
            features, self.weight, targets, bias=bias, sparse=self.sparse, cosine=self.cosine,
            sample_weight=sample_weight, batch=batch, own=own, generator=generator,
        )  # fmt: skip

    @torch.no_grad()
    def topk(self, features: Tensor, k: int, chunk_size: int = 65536) -> tuple[Tensor, Tensor]:
        """The k best logits and their classes, (N, k) each, through the whole table in chunks. O(N·K·d)."""
        return functional.linear_topk(features, self.weight, k, cosine=self.cosine, chunk_size=chunk_size)


class LabelIndex:
    """An approximate index over a head's label embeddings for fast top-k (needs ``softnce[faiss]``).

    The table is divided into ``cells`` by clustering; a search looks into the ``probes`` nearest. :meth:`recall` tells
    how many of the true best that finds. The index is a copy: build it anew when the table has changed.

    Args:
        head: the trained head.
        cells: number of clusters, by default about 4·√K.
        probes: clusters searched for a query.
    """

    def __init__(self, head: LabelEmbeddingHead, cells: int | None = None, probes: int = 16) -> None:
        try:
            import faiss
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("LabelIndex needs faiss: pip install 'softnce[faiss]'") from error
        weight = head.weight.detach()
        table = (F.normalize(weight, dim=1) if head.cosine else weight).float().cpu().contiguous().numpy()
        num_classes, dim = table.shape
        cells = cells or max(1, min(num_classes // 39, int(4 * math.sqrt(num_classes))))  # faiss wants 39 points a cell
        if probes < 1 or not 1 <= cells <= num_classes:
            raise ValueError(f"cells must be in [1, {num_classes}] and probes positive, got {cells} and {probes}")
        self.head = head
        self.index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
        self.index.train(table)
        self.index.add(table)
        self.index.nprobe = min(probes, cells)

    @torch.no_grad()
    def topk(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As ``head.topk``, among the cells searched; class −1 where those hold fewer than k."""
        z = F.normalize(features, dim=1) if self.head.cosine else features
        values, classes = self.index.search(z.float().cpu().contiguous().numpy(), k)
        return torch.from_numpy(values).to(features.device), torch.from_numpy(classes).to(features.device)

    def recall(self, features: Tensor, k: int) -> float:
        """The share of the true k best classes that the index finds for these features."""
        found, true = self.topk(features, k)[1], self.head.topk(features, k)[1]
        return float((true[:, :, None] == found[:, None, :]).any(2).float().mean())
