r"""The log-sum-exp behind the contrast.

For row i with logits :math:`x_i` and candidates c the exponents are

.. math:: E_{ic} = t \sum_k c_k x_{ik} + o_c - \big(\text{the same of the row's own target}\big), \qquad
          L_i = \log \sum_{c \text{ allowed}} e^{E_{ic}}.

Pairs pick whole columns of a block of logits, so on a CPU the block is turned first: a column is then contiguous, and
picking it is a copy instead of a gather.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from softnce._precision import at_least_float32
from softnce._scores.kernel import Kernel, blocks


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

    scale: float  # t
    index: Tensor | None  # (M, S) classes of the candidates, None: weight is (M, K)
    weight: Tensor | None  # (M, S) or (M, K), None: all 1; where index is None too, the candidates are the K classes
    own_index: Tensor | None  # (N, S') or None, likewise for the rows' own targets
    own_weight: Tensor | None
    offset: Tensor | None = None  # (M,) o_c; there for classes
    own_offset: Tensor | None = None  # (N,)
    mask: Tensor | None = None  # (M,) candidates that may be used
    position: Tensor | None = None  # (N,) the own target's place among the candidates; elsewhere if out of range
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
        return [*tensors, self.position, self.hits, *along], [self.scale, self.chunk_size or 0]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None], numbers: Sequence[float]) -> Self:
        scale, chunk_size = numbers
        along = [Direction(*tensors[at : at + 3]) for at in range(9, len(tensors), 3)]
        return cls(scale, *tensors[:9], along, int(chunk_size) or None)

    def kept_size(self, logits: Tensor) -> int:
        """The gradient is kept for backward, or the (N, M) weights it is made of where these are smaller."""
        keeps_gradient = self.index is None or self.directions or logits.shape[1] <= 2 * self.index.numel()
        return logits.shape[1] if keeps_gradient else self.candidates()

    def run(self, logits: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        dtype = at_least_float32(logits.dtype)
        kept = logits.new_empty(len(logits), self.kept_size(logits), dtype=dtype) if with_gradient else None
        keeps_gradient = kept is not None and kept.shape == logits.shape
        values = []
        named = self._named(logits)
        for rows in blocks(len(logits), self.candidates(), logits.device, self.chunk_size):
            x = logits[rows].to(dtype)
            exponents = self._exponents(x, rows, named)
            highest = exponents.amax(1)
            weights = _softmax(exponents, None if kept is None or keeps_gradient else kept[rows])
            # max softmax = exp(highest − L): one fused kernel gives both the weights and L.
            values.append(highest - self._own(x, rows) - weights.amax(1).log())
            if kept is not None and keeps_gradient:
                self._write_gradient(kept[rows], weights, torch.ones_like(highest), rows, named)
        return torch.cat(values), kept

    def gradient(self, logits: Tensor, kept: Tensor, upstream: Tensor) -> Tensor:
        gradient = torch.empty_like(logits, dtype=kept.dtype)
        named = self._named(logits)
        for rows in blocks(len(logits), self.candidates(), logits.device, self.chunk_size):
            weights = kept[rows].view(self.candidates(), -1).t() * upstream[rows, None]  # turned, as they were kept
            self._write_gradient(gradient[rows], weights, upstream[rows], rows, named)
        return gradient

    def plain(self, logits: Tensor) -> Tensor:
        x = logits.to(at_least_float32(logits.dtype))
        return self._exponents(x, slice(None), None).logsumexp(1) - self._own(x, slice(None))

    def _named(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """The classes that occur, (U,), and the candidates' classes counted among them, where few of many do.

        Their number depends on the data, for which an accelerator would have to wait.
        """
        if self.index is None or logits.device.type != "cpu" or logits.shape[1] <= 2 * self.index.numel():
            return None
        return torch.unique(self.index, return_inverse=True)

    def _exponents(self, x: Tensor, rows: slice, named: tuple[Tensor, Tensor] | None) -> Tensor:
        """t·σ(c) + o_c of all candidates for a block of rows, (n, M), those not allowed far below all others."""
        if self.are_classes:
            assert self.offset is not None
            return torch.add(self.offset, x, alpha=self.scale)
        if self.index is None:
            assert self.weight is not None
            exponents = x @ self.weight.t()
        else:
            columns = (x if named is None else x.index_select(1, named[0])).t()
            columns = columns.contiguous() if x.device.type == "cpu" else columns
            first, *more = (self.index if named is None else named[1]).unbind(1)
            turned = columns.index_select(0, first)
            if self.weight is not None:
                turned.mul_(self.weight[:, :1])
                for j, column in enumerate(more, 1):
                    turned.addcmul_(columns.index_select(0, column), self.weight[:, j : j + 1])
            exponents = turned.t()
        for direction in self.directions:
            if direction.mass is not None:
                exponents.addcmul_(direction.score(x)[:, None], direction.mass)
        if self.scale != 1:
            exponents.mul_(self.scale)
        if self.offset is not None:
            exponents.add_(self.offset)
        # Half the lowest number, so that it can be added once more without becoming −∞, whose differences are no
        # numbers.
        excluded = torch.finfo(exponents.dtype).min / 2
        if self.mask is not None:
            exponents.masked_fill_(self.mask.logical_not(), excluded)
        if self.hits is not None:
            exponents.masked_fill_(self.hits[rows], excluded)
        if self.position is not None:
            place, m = self.position[rows, None], exponents.shape[1]
            inside = (place >= 0) & (place < m)
            exponents.scatter_add_(1, place.clamp(0, m - 1), inside * torch.full_like(exponents[:, :1], excluded))
        return exponents

    def _own(self, x: Tensor, rows: slice) -> Tensor:
        """The same of each row's own target, (n,)."""
        picked = x if self.own_index is None else x.gather(1, self.own_index[rows])
        score = (picked if self.own_weight is None else picked * self.own_weight[rows]).sum(1)
        for direction in self.directions:
            if direction.own_mass is not None:
                score = score + direction.score(x) * direction.own_mass[rows]
        score = score * self.scale
        return score if self.own_offset is None else score + self.own_offset[rows]

    def _write_gradient(
        self, gradient: Tensor, weights: Tensor, total: Tensor, rows: slice, named: tuple[Tensor, Tensor] | None
    ) -> None:
        """Write t·(Σ_c w_c·c − total·α) of a block to ``gradient``, (n, K); ``total`` (n,) is Σ_c w_c."""
        if self.are_classes:
            torch.mul(weights, self.scale, out=gradient)
        elif self.index is None:
            assert self.weight is not None
            torch.addmm(gradient, weights, self.weight, beta=0, alpha=self.scale, out=gradient)
        else:
            self._write_pairs(gradient, weights.t(), named)
        for direction in self.directions:
            along = torch.zeros_like(total) if direction.mass is None else weights @ direction.mass
            if direction.own_mass is not None:
                along = along - direction.own_mass[rows] * total
            along = (self.scale * along)[:, None]
            gradient.add_(along if direction.vector is None else along * direction.vector)
        less = (-self.scale * total)[:, None]
        if self.own_index is None:
            assert self.own_weight is not None
            gradient.addcmul_(self.own_weight[rows], less)
        else:
            own = self.own_index[rows]
            less = less.expand(own.shape) if self.own_weight is None else self.own_weight[rows] * less
            gradient.scatter_add_(1, own, less)

    def _write_pairs(self, gradient: Tensor, weights: Tensor, named: tuple[Tensor, Tensor] | None) -> None:
        """Write t·Σ_c w_c·c of candidates that are pairs, whose ``weights`` are (M, n)."""
        index = self.index if named is None else named[1]
        assert index is not None
        on_cpu = gradient.device.type == "cpu"
        size = gradient.shape[1] if named is None else len(named[0])
        sums = weights.new_zeros(size, len(gradient)) if on_cpu else gradient.zero_().t()
        for j, column in enumerate(index.unbind(1)):
            part = weights if self.weight is None else weights * self.weight[:, j : j + 1]
            sums.index_add_(0, column, part, alpha=self.scale)
        if named is not None:
            gradient.zero_().index_copy_(1, named[0], sums.t())
        elif on_cpu:
            gradient.copy_(sums.t())


def _softmax(exponents: Tensor, memory: Tensor | None) -> Tensor:
    """softmax over the candidates (n, M), laid out as the exponents are: by rows, or turned."""
    if exponents.is_contiguous():
        return torch.softmax(exponents, 1, out=memory)
    turned = exponents.t()
    return torch.softmax(turned, 0, out=None if memory is None else memory.view(turned.shape)).t()
