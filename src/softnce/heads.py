"""Classification heads: from features (N, dim) to class logits (N, K).

A plain linear head is ``nn.Linear(dim, num_classes, bias=False)``: its weight rows are the label embeddings y_k, its
logits the dot products z·y_k.
"""

import math
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softnce import functional
from softnce._core import options
from softnce._core.table import is_sharded
from softnce._inputs import as_positive, as_whole, check_flag
from softnce.label_index import LabelIndex
from softnce.losses import ClassifierLoss
from softnce.ranking import Exclude, excluded_classes
from softnce.targets import SoftTargets

__all__ = ["CosineHead", "LabelEmbeddingHead", "LabelIndex", "MLPHead"]


class MLPHead(nn.Sequential):
    """The paper's head: three linear layers without bias, dim → hidden → hidden → K; BatchNorm and ReLU between them.

    The authors' code, unlike the paper, appends a BatchNorm of the scores: ``nn.BatchNorm1d(K, affine=False)``.
    """

    def __init__(self, dim: int, num_classes: int, hidden: int = 4096) -> None:
        dim, num_classes = as_whole(dim, "dim"), as_whole(num_classes, "num_classes")
        layers: list[nn.Module] = []
        for before in (dim, as_whole(hidden, "hidden")):
            layers += [nn.Linear(before, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.Linear(hidden, num_classes, bias=False))


class CosineHead(nn.Module):
    """Cosine similarities of features and label embeddings, z·y_k / (‖z‖‖y_k‖), divided by a temperature.

    The temperature is learned on a log scale; leave the loss's own temperature at 1.
    """

    def __init__(self, dim: int, num_classes: int, temperature: float = 0.07) -> None:
        super().__init__()
        dim, num_classes = as_whole(dim, "dim"), as_whole(num_classes, "num_classes")
        self.weight = nn.Parameter(torch.randn(num_classes, dim) / math.sqrt(dim))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(as_positive(temperature, "temperature"))))

    def forward(self, features: Tensor) -> Tensor:
        return _cosine(features, self.weight) / self.log_temperature.exp()


def _cosine(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(F.normalize(features, dim=-1), F.normalize(weight, dim=-1), bias)


class _Table(nn.Embedding):
    """Label embeddings. An ``nn.Embedding``, because DDP expects sparse gradients from no other module."""

    is_sharded = False  # whether FSDP2 holds the rows: it then puts a DTensor here, except during a forward

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and is_sharded(value):
            self.is_sharded = True
        super().__setattr__(name, value)


class LabelEmbeddingHead(nn.Module):
    """A table of K label embeddings whose training step does not depend on K.

    ``head.loss(features, targets, criterion)`` trains it without logits; ``head(features)`` gives all K logits, and
    ``head.topk`` or a :class:`LabelIndex` the best few of them.

    Args:
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
        self.table: nn.Embedding = _Table(num_classes, dim, sparse=check_flag(sparse, "sparse"))
        nn.init.normal_(self.table.weight, std=1 / math.sqrt(dim))
        self.cosine = check_flag(cosine, "cosine")
        self.register_parameter("bias", nn.Parameter(torch.zeros(num_classes)) if check_flag(bias, "bias") else None)

    @classmethod
    def from_linear(cls, linear: nn.Linear, sparse: bool = True) -> Self:
        """A head that starts with a copy of ``linear``'s weight and, where it has one, its bias."""
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        rows = linear.weight.detach().clone()
        head = cls.from_embedding(_Table.from_pretrained(rows, freeze=False, sparse=sparse))
        if linear.bias is not None:
            head.bias = nn.Parameter(linear.bias.detach().clone())
        return head

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, cosine: bool = False, bias: bool = False) -> Self:
        """A head on ``embedding`` itself: input and output are tied, and the gradients of both uses add up.

        They are sparse if the embedding is, ``nn.Embedding(..., sparse=True)``.
        """
        if not isinstance(embedding, nn.Embedding):
            raise TypeError(f"embedding must be an nn.Embedding, got {type(embedding).__name__}")
        if embedding.max_norm is not None or embedding.scale_grad_by_freq:
            raise ValueError("embedding must not use max_norm or scale_grad_by_freq, which a loss does not apply")
        head = cls(embedding.embedding_dim, 1, embedding.sparse, cosine)
        head.table = embedding
        if check_flag(bias, "bias"):
            head.bias = nn.Parameter(embedding.weight.new_zeros(embedding.num_embeddings))
        return head

    @property
    def sparse(self) -> bool:
        """Whether the gradients of the table are sparse."""
        return self.table.sparse

    @property
    def weight(self) -> Tensor:
        """The label embeddings, (K, d). For some classes call ``head.table(classes)``, whose gradient can be sparse."""
        return self.table.weight

    def extra_repr(self) -> str:
        num_classes, dim = self.weight.shape
        return f"{dim}, {num_classes}, sparse={self.sparse}, cosine={self.cosine}, bias={self.bias is not None}"

    def forward(
        self,
        features: Tensor,
        targets: Tensor | SoftTargets | None = None,
        criterion: ClassifierLoss | None = None,
        **given: Unpack[options.ExcludingCall],
    ) -> Tensor:
        """All logits, (N, K); with ``targets`` and a ``criterion``, :meth:`loss`.

        Wrappers such as DDP and FSDP see only calls of the module: call ``wrapped(features, targets, criterion)``.
        """
        if targets is not None and criterion is not None:
            return self.loss(features, targets, criterion, **given)
        if targets is not None or criterion is not None:
            raise ValueError("targets and criterion go together: pass both for the loss, none for the logits")
        return (_cosine if self.cosine else F.linear)(features, self.weight, self.bias)

    def loss(
        self,
        features: Tensor,
        targets: Tensor | SoftTargets,
        criterion: ClassifierLoss,
        **given: Unpack[options.ExcludingCall],
    ) -> Tensor:
        """``criterion(self(features), targets)`` without the logits; arguments as in ``criterion.linear``.

        Features may be (N, L, d), such as positions of sequences: with labels or weights (N, L), probabilities
        (N, L, K) or SoftTargets of N·L rows. Pad with the criterion's ``ignore_index``.
        """
        if not isinstance(criterion, ClassifierLoss):
            raise TypeError(f"criterion must be a loss of softnce such as InfoNCE(), got {type(criterion).__name__}")
        if self.sparse and getattr(self.table, "is_sharded", False) and torch.is_grad_enabled():
            raise ValueError("FSDP2 cannot exchange sparse gradients: make the head with sparse=False")
        if isinstance(targets, Tensor) and targets.dim() == features.dim() > 2:
            targets = targets.movedim(-1, 1)  # where a loss expects the classes
        return criterion.linear(
            features, self.weight, targets, bias=self.bias, sparse=self.sparse, cosine=self.cosine, **given
        )

    @torch.no_grad()
    def topk(
        self, features: Tensor, k: int, chunk_size: int = 65536, exclude: Exclude | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k best logits and their classes, (N, k) each, through the whole table in chunks. O(N·K·d).

        Features (N, L, d) give (N, L, k); ``exclude`` then has N·L rows. ``chunk_size`` classes are scored at a
        time. ``exclude`` leaves classes out per row, in a form of :data:`softnce.ranking.Exclude`; fewer than k classes
        left are filled up with class −1 and logit −∞.
        """
        k, num_classes = as_whole(k, "k"), len(self.weight)
        shape = features.shape[:-1]
        rows, classes = excluded_classes(exclude, shape.numel(), num_classes, self.weight.device)
        most = min(k + int(rows.bincount(minlength=1).max()), num_classes)
        values, best = functional.linear_topk(
            features, self.weight, max(k, most), bias=self.bias, cosine=self.cosine, chunk_size=chunk_size
        )
        if len(classes) == 0:
            return values, best
        row = torch.arange(shape.numel(), device=best.device).view(*shape, 1)
        away = torch.isin(row * num_classes + best, rows * num_classes + classes)
        values, order = values.masked_fill(away, -torch.inf).topk(k)
        return values, best.masked_fill(away, -1).gather(-1, order)
