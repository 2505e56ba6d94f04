r"""The log-sum-exp behind the contrast.

For row i with logits :math:`x_i` and candidates c the exponents are

.. math:: E_{ic} = \sum_k c_k x_{ik} + o_c - \big(\text{the same of the row's own target}\big), \qquad
          L_i = \log \sum_{c \text{ allowed}} e^{E_{ic}}.

Candidates are weighted sums of classes here, in which the temperature is contained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from softnce._precision import at_least_float32
from softnce._scores.kernel import Kernel, blocks, joined


@dataclass
class Direction:
    """What targets have along one vector v besides their pairs: mass·Σ_k v_k x_ik."""

    vector: Tensor | None  # (K,), None: ones
    mass: Tensor | None  # (M,) of the candidates, None: 0
    own_mass: Tensor | None  # (N,) of the rows' own targets, None: 0

    def score(self, x: Tensor) -> Tensor:
        return x.sum(1) if self.vector is None else x @ self.vector


@dataclass
class LogSumExp(Kernel):
    """L, (N,), of logits (N, K). Time O(N·M·S), O(N·K) for classes, or an (N, K) × (K, M) product for dense candidates.

    Memory besides the gradient: the (N, M) weights of the candidates where classes are many (K > 2·M·S), nothing
    otherwise; and one block of rows. Weights and vectors have the dtype the sums are taken in.
    """

    scale: float  # the weight of candidates and own targets that have none
    index: Tensor | None  # (M, S) classes of the candidates, None: weight is (M, K)
    weight: Tensor | None  # (M, S) or (M, K), None: scale; where index is None too, the candidates are the K classes
    own_index: Tensor | None  # (N, S') or None, likewise for the rows' own targets
    own_weight: Tensor | None
    offset: Tensor | None = None  # (M,) o_c; there for classes
    own_offset: Tensor | None = None  # (N,)
    mask: Tensor | None = None  # (M,) candidates that may be used
    position: Tensor | None = None  # (N,) the own target's place among the candidates …
    discount: Tensor | None = None  # (N,) … and what its exponent loses there by not being counted
    hits: Tensor | None = None  # (N, M) candidates not to be used for a row
    directions: Sequence[Direction] = ()
    chunk_size: int | None = None  # rows at a time

    @property
    def are_classes(self) -> bool:
        return self.index is None and self.weight is None

    def candidates(self) -> int:
        return next(len(given) for given in (self.index, self.weight, self.offset) if given is not None)

    def parts(self) -> tuple[list[Tensor | None], list[float]]:
        along = [part for d in self.directions for part in (d.vector, d.mass, d.own_mass)]
        tensors = [self.index, self.weight, self.own_index, self.own_weight, self.offset, self.own_offset, self.mask]
        return [*tensors, self.position, self.discount, self.hits, *along], [self.scale, self.chunk_size or 0]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None], numbers: Sequence[float]) -> Self:
        scale, chunk_size = numbers
        along = [Direction(*tensors[at : at + 3]) for at in range(10, len(tensors), 3)]
        return cls(scale, *tensors[:10], along, int(chunk_size) or None)  # type: ignore[arg-type,call-arg]

    def kept_size(self, logits: Tensor) -> int:
        """The gradient is kept for backward, or the (N, M) weights it is made of where these are smaller."""
        keeps_gradient = self.index is None or self.directions or logits.shape[1] <= 2 * self.index.numel()
        return logits.shape[1] if keeps_gradient else self.candidates()

    def run(self, logits: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        dtype = at_least_float32(logits.dtype)
        kept = logits.new_empty(len(logits), self.kept_size(logits), dtype=dtype) if with_gradient else None
        parts = blocks(len(logits), self.candidates(), logits.device, self.chunk_size)
        buffers = self._buffers(logits, parts)
        values = [self._block(logits[rows].to(dtype), rows, kept, buffers) for rows in parts]
        return joined(values), kept

    def _block(self, x: Tensor, rows: slice, kept: Tensor | None, buffers: Tensor | None) -> Tensor:
        """L of a block of rows, whose gradient or weights are written to ``kept``."""
        scratch, picked = (None, None) if buffers is None else buffers[:, : len(x)]
        exponents = self._exponents(x, rows, scratch, picked)
        highest = exponents.amax(1)
        keeps_gradient = kept is not None and kept.shape[1] == x.shape[1]
        out = kept[rows] if kept is not None and (self.are_classes or not keeps_gradient) else picked
        weights = torch.softmax(exponents, 1, out=out)
        # max softmax = exp(highest − L): one fused kernel gives both the weights and L.
        value = highest - self._own(x, rows) - weights.amax(1).log()
        if kept is not None and keeps_gradient:
            self._write_gradient(kept[rows], weights, torch.ones_like(highest), rows, exponents)
        return value

    def gradient(self, logits: Tensor, kept: Tensor, upstream: Tensor) -> Tensor:
        gradient = torch.empty_like(logits, dtype=kept.dtype)
        parts = blocks(len(logits), self.candidates(), logits.device, self.chunk_size)
        buffers = self._buffers(logits, parts)
        for rows in parts:
            scratch, out = (None, None) if buffers is None else buffers[:, : len(kept[rows])]
            weights = torch.mul(kept[rows], upstream[rows, None], out=out)
            self._write_gradient(gradient[rows], weights, upstream[rows], rows, scratch)
        return gradient

    def _buffers(self, logits: Tensor, parts: list[slice]) -> Tensor | None:
        """Two buffers for all blocks: on a CPU fresh memory for every temporary would cost more than what is computed
        in it. Elsewhere torch itself keeps memory to reuse."""
        if logits.device.type != "cpu":
            return None
        return logits.new_empty(2, parts[0].stop, self.candidates(), dtype=at_least_float32(logits.dtype))

    def plain(self, logits: Tensor) -> Tensor:
        x = logits.to(at_least_float32(logits.dtype))
        return self._exponents(x, slice(None)).logsumexp(1) - self._own(x, slice(None))

    def _exponents(self, x: Tensor, rows: slice, out: Tensor | None = None, picked: Tensor | None = None) -> Tensor:
        """Σ_k c_k x_k + o_c of all candidates for a block of rows, (n, M), those not allowed far below all others.

        Written to ``out``, with ``picked`` for what is added up, where they are given: autograd does not know these.
        """
        zero = x.new_zeros(()) if self.offset is None else self.offset
        if self.are_classes:
            return torch.add(zero, x, alpha=self.scale, out=out)
        if self.index is None:
            assert self.weight is not None
            exponents = torch.addmm(zero, x, self.weight.t(), out=out)
        else:
            # Whole columns: index_select is twice as quick as gather.
            first, *more = self.index.unbind(1)
            column = torch.index_select(x, 1, first, out=picked)
            if self.weight is None:
                exponents = torch.add(zero, column, alpha=self.scale, out=out)
            else:
                exponents = torch.addcmul(zero, column, self.weight[:, 0], out=out)
                for j, index in enumerate(more, 1):
                    exponents.addcmul_(torch.index_select(x, 1, index, out=picked), self.weight[:, j])
        for direction in self.directions:
            if direction.mass is not None:
                exponents.addcmul_(direction.score(x)[:, None], direction.mass)
        if self.mask is not None:
            exponents.masked_fill_(self.mask.logical_not(), excluded(x.dtype))
        if self.hits is not None:
            exponents.masked_fill_(self.hits[rows], excluded(x.dtype))
        if self.position is not None and self.discount is not None:
            exponents.scatter_add_(1, self.position[rows, None], self.discount[rows, None])
        return exponents

    def _own(self, x: Tensor, rows: slice) -> Tensor:
        """The same of each row's own target, (n,)."""
        picked = x if self.own_index is None else x.gather(1, self.own_index[rows])
        score = (picked * (self.scale if self.own_weight is None else self.own_weight[rows])).sum(1)
        for direction in self.directions:
            if direction.own_mass is not None:
                score = score + direction.score(x) * direction.own_mass[rows]
        return score if self.own_offset is None else score + self.own_offset[rows]

    def _write_gradient(
        self, gradient: Tensor, weights: Tensor, total: Tensor, rows: slice, scratch: Tensor | None
    ) -> None:
        """Write Σ_c w_c·c − total·α of a block to ``gradient``, (n, K); ``total`` (n,) is Σ_c w_c."""
        if self.are_classes:
            torch.mul(weights, self.scale, out=gradient)
        elif self.index is None:
            assert self.weight is not None
            torch.mm(weights, self.weight, out=gradient)
        else:
            gradient.zero_()
            for j, column in enumerate(self.index.unbind(1)):
                part = torch.mul(weights, self.scale if self.weight is None else self.weight[:, j], out=scratch)
                gradient.index_add_(1, column, part)
        for direction in self.directions:
            along = torch.zeros_like(total) if direction.mass is None else weights @ direction.mass
            if direction.own_mass is not None:
                along = along - direction.own_mass[rows] * total
            gradient.add_(along[:, None] if direction.vector is None else along[:, None] * direction.vector)
        if self.own_index is None:
            assert self.own_weight is not None
            gradient.addcmul_(self.own_weight[rows], total[:, None], value=-1)
        else:
            own = self.own_index[rows]
            less = total[:, None] * -(self.scale if self.own_weight is None else self.own_weight[rows])
            gradient.scatter_add_(1, own, less.expand(own.shape))


def excluded(dtype: torch.dtype) -> float:
    """The exponent of what is not to be counted: half the lowest number, so that it can be added once more without
    becoming −∞, whose differences are no numbers."""
    return torch.finfo(dtype).min / 2
