r"""Few candidates: all of them scored by one product, and the cross-entropy of these scores, in one piece.

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
from softnce._scores.kernel import Kernel


@dataclass
class Product(Kernel):
    """ℓ, (N,), of logits (N, K) against M candidates that hold the own ones.

    O(N·M·K), memory besides the gradient two of N × M and the candidates as dense rows.
    """

    rows: Tensor  # (M, K) the candidates over τ, in the dtype the sums are taken in
    offset: Tensor | None  # (M,) what −log η adds to their scores
    own: Tensor  # (N,) the place of each row's own target among them

    def parts(self) -> tuple[list[Tensor | None], list[float]]:
        return [self.rows, self.offset, self.own], []

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None], numbers: Sequence[float]) -> Self:
        return cls(*tensors)  # type: ignore[arg-type]

    def run(self, logits: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        products = self._products(logits)
        place = self.own[:, None]
        logs = torch.log_softmax(products, 1)
        value = logs.gather(1, place).neg_()[:, 0]
        if not with_gradient:
            return value, None
        weights = torch.exp(logs, out=products)
        del logs  # its memory is for the gradient
        weights.scatter_add_(1, place, weights.new_full((), -1.0).expand(place.shape))
        return value, torch.mm(weights, self.rows).mul_(self.share)

    def plain(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(self._products(logits), self.own, reduction="none")

    def _products(self, logits: Tensor) -> Tensor:
        x, columns = logits.to(at_least_float32(logits.dtype)), self.rows.t()
        return x @ columns if self.offset is None else torch.addmm(self.offset, x, columns)
