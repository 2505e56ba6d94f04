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
from softnce._checks import as_positive, as_whole, check_flag
from softnce._core import options
from softnce._core.table import is_sharded
from softnce._precision import autocast_is_on
from softnce.label_index import LabelIndex
from softnce.losses import ClassifierLoss
from softnce.ranking import Exclude, excluded_classes
from softnce.targets import SoftTargets

__all__ = ["CosineHead", "LabelEmbeddingHead", "LabelIndex", "MLPHead"]


class MLPHead(nn.Sequential):
    """The paper's head: three linear layers without bias, dim → hidden → hidden → K.

    BatchNorm and ReLU follow the first two. ``output_norm=True`` adds a BatchNorm without affine parameters on the
    scores, as the authors' code does and the paper does not say. It fixes the scale of the scores over the batch (unit
    variance per class), so it acts like a temperature; at evaluation its running statistics take over.
    """

    def __init__(self, dim: int, num_classes: int, hidden: int = 4096, output_norm: bool = False) -> None:
        dim, num_classes = as_whole(dim, "dim"), as_whole(num_classes, "num_classes")
        hidden = as_whole(hidden, "hidden")
        layers: list[nn.Module] = []
        for before in (dim, hidden):
            layers += [nn.Linear(before, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
        layers.append(nn.Linear(hidden, num_classes, bias=False))
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
        self.weight = nn.Parameter(torch.randn(num_classes, dim) / math.sqrt(dim))
        log_temperature = torch.tensor(math.log(as_positive(temperature, "temperature")))
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
        self.table: nn.Embedding = _Table(num_classes, dim, sparse=check_flag(sparse, "sparse"))
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

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, cosine: bool = False, bias: bool = False) -> Self:
        """A head on ``embedding`` itself: input and output are tied, and the gradients of both uses add up.

        They are sparse if the embedding is, ``nn.Embedding(..., sparse=True)``.

        >>> items = nn.Embedding(100_000, 16, sparse=True)
        >>> head = LabelEmbeddingHead.from_embedding(items)
        >>> head.weight is items.weight, head.sparse
        (True, True)
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
        _check_features(features, self.weight)
        if self.cosine:
            return F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1), self.bias)
        return F.linear(features, self.weight, self.bias)

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
        _check_features(features, self.weight, same_dtype=False)
        shape = features.shape[:-1]
        if len(shape) > 1:
            features = features.flatten(0, -2)
            if isinstance(targets, Tensor) and targets.shape[: len(shape)] != shape:
                raise ValueError(f"targets must have shape {tuple(shape)} as features, got {tuple(targets.shape)}")
            if isinstance(targets, Tensor):
                targets = targets.flatten(0, len(shape) - 1)
            if (weight := given.get("sample_weight")) is not None:
                given["sample_weight"] = weight.flatten()
        value = criterion.linear(
            features, self.weight, targets, bias=self.bias, sparse=self.sparse, cosine=self.cosine, **given
        )
        return value.reshape(shape) if value.dim() else value

    @torch.no_grad()
    def topk(
        self, features: Tensor, k: int, chunk_size: int = 65536, exclude: Exclude | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k best logits and their classes, (N, k) each, through the whole table in chunks. O(N·K·d).

        ``chunk_size`` classes are scored at a time. ``exclude`` leaves classes out per row, in a form
        of :data:`softnce.ranking.Exclude`; fewer than k classes left are filled up with class −1 and logit −∞.
        """
        num_classes, more = len(self.weight), 0
        k = as_whole(k, "k")
        if exclude is not None and k <= num_classes:
            rows, classes = excluded_classes(exclude, len(features), num_classes, features.device)
            more = int(rows.bincount(minlength=1).max())
        most = min(k + more, num_classes) if more else k  # an impossible k is refused there
        values, best = functional.linear_topk(
            features, self.weight, most, bias=self.bias, cosine=self.cosine, chunk_size=chunk_size
        )
        if not more:
            return values, best
        row = torch.arange(len(best), device=best.device)[:, None]
        away = torch.isin(row * num_classes + best, rows * num_classes + classes)
        values, order = values.masked_fill(away, -torch.inf).topk(k, dim=1)
        return values, best.masked_fill(away, -1).gather(1, order)


def _check_features(features: Tensor, weight: Tensor, same_dtype: bool = True) -> None:
    """Features (..., d) must fit label embeddings or a layer (·, d)."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        got = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TypeError(f"features must be a floating point tensor, got {got}")
    if features.dim() == 0 or features.shape[-1] != weight.shape[1]:
        raise ValueError(f"features must have {weight.shape[1]} columns, got shape {tuple(features.shape)}")
    if same_dtype and features.dtype != weight.dtype and not autocast_is_on(features.device):
        raise TypeError(f"features must be {weight.dtype} as the head is, got {features.dtype}")
