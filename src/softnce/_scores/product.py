r"""Few candidates: all of them scored at once, and the cross-entropy of these scores, in one piece.

For row i with scores s and candidates c, of which one is its own,
:math:`\ell_i = -\log\text{softmax}_c(\sum_k c_k s_{ik})` at its own. Where launching operations takes the time, these
are the fewest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._precision import at_least_float32
from softnce._scores.kernel import Kernel, finite


@dataclass
class Product(Kernel):
    """ℓ, (N,), of logits (N, K) against M candidates that hold the own ones.

    The sums over classes are one product with the candidates as dense rows, O(N·M·K); of labels, they are the logits'
    columns, O(N·M + N·K). Memory besides the gradient two of N × M, and the dense rows.
    """

    rows: Tensor | None  # (M, K) the candidates over τ, in the dtype the sums are taken in; None: labels
    labels: Tensor | None  # (M,) the candidates' classes …
    scale: float  # … and the weight over τ that they all have
    offset: Tensor | None  # (M,) what −log η adds to their scores
    own: Tensor  # (N,) the place of each row's own target among them

    def parts(self) -> tuple[list[Tensor | None], list[float]]:
        return [self.rows, self.labels, self.offset, self.own], [self.scale]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None], numbers: Sequence[float]) -> Self:
        rows, labels, offset, own = tensors
        assert own is not None
        return cls(rows, labels, numbers[0], offset, own)

    def run(self, logits: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        scores = self._scores(logits)
        place = self.own[:, None]
        logs = torch.log_softmax(scores, 1)
        value = logs.gather(1, place).neg_()[:, 0]
        if not with_gradient:
            return value, None
        weights = torch.exp(logs, out=scores)
        del logs  # its memory is for the gradient
        weights.scatter_add_(1, place, weights.new_full((), -1.0).expand(place.shape))
        if self.rows is not None:
            return value, torch.mm(weights, self.rows).mul_(self.share)
        assert self.labels is not None
        gradient = torch.zeros_like(logits, dtype=weights.dtype)
        return value, gradient.scatter_add_(1, self.labels.expand(weights.shape), weights.mul_(self.scale * self.share))

    def plain(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(self._scores(logits), self.own, reduction="none")

    def _scores(self, logits: Tensor) -> Tensor:
        """Of all candidates for every row, (N, M), in memory of their own."""
        if self.labels is not None:
            picked = logits.index_select(1, self.labels).to(at_least_float32(logits.dtype))
            if self.offset is not None:
                return torch.add(self.offset, picked, alpha=self.scale)
            return picked if self.scale == 1 else picked * self.scale
        assert self.rows is not None
        x, columns = finite(logits), self.rows.t()
        return x @ columns if self.offset is None else torch.addmm(self.offset, x, columns)
