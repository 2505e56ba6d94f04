r"""The log-sum-exp behind the contrast.

For row i with logits :math:`x_i` and candidates c the exponents are

.. math:: E_{ic} = \sum_k c_k x_{ik} + o_c - \big(\text{the same of the row's own target}\big), \qquad
          L_i = \log \sum_{c \text{ allowed}} e^{E_{ic}}.

Candidates are weighted sums of classes here, in which the temperature is contained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from softnce._precision import at_least_float32
from softnce._scores.kernel import Kernel, blocks, finite, joined, lowest_logit


@dataclass
class Direction:
    """What targets have along one vector v besides their pairs: mass·Σ_k v_k x_ik."""

    vector: Tensor | None  # (K,), None: ones
    mass: Tensor | None  # (M,) of the candidates, None: 0
    own_mass: Tensor | None  # (N,) of the rows' own targets, None: 0

    def score(self, x: Tensor) -> Tensor:
        return x.sum(1) if self.vector is None else x @ self.vector


Buffers = tuple[Tensor | None, Tensor | None]
"""Two for the scores of a block of rows, (n, M), where they are reused."""


class Bags:
    """Pairs as bags of rows, which torch adds up in one pass: those of a candidate, and those of a class.

    What is added up has rows and columns exchanged in memory, so that a class or a candidate is contiguous.
    """

    def __init__(self, index: Tensor, weight: Tensor, num_classes: int, with_gradient: bool) -> None:
        candidates, size = index.shape
        self._classes, self._weight = index.flatten(), weight.flatten()
        self._starts = torch.arange(0, candidates * size, size)
        if with_gradient:  # the same pairs in the order of their classes
            sorted_classes, order = self._classes.sort()
            self._candidates, self._weight_by_class = order // size, self._weight[order]
            self._class_starts = torch.searchsorted(sorted_classes, torch.arange(num_classes))

    def of_candidates(self, x: Tensor) -> Tensor:
        """Σ_k c_k x_ik, (n, M), of ``x`` (n, K)."""
        return _bag_sums(finite(x), self._classes, self._starts, self._weight)

    def of_classes(self, weights: Tensor) -> Tensor:
        """Σ_c w_ic c_k, (n, K), of ``weights`` (n, M)."""
        return _bag_sums(weights, self._candidates, self._class_starts, self._weight_by_class)


def _bag_sums(values: Tensor, columns: Tensor, starts: Tensor, weight: Tensor) -> Tensor:
    """Σ_j w_j·v_{columns_j} over the columns of each bag, (n, bags), of ``values`` (n, columns)."""
    return torch.embedding_bag(values.t().contiguous(), columns, starts, per_sample_weights=weight)[0].t()


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

    @property
    def _own_is_few(self) -> bool:
        """Whether own targets are a few classes per row, and are taken into account once for all blocks."""
        return self.own_index is not None and not self.directions

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
        bags = self._bags(logits, dtype, with_gradient)
        width = self.candidates() if bags is None else max(self.candidates(), logits.shape[1])
        parts = blocks(len(logits), width, logits.device, self.chunk_size)
        buffers = self._buffers(logits, parts) if bags is None else (None, None)
        values = [self._block(self._logits(logits[rows]), rows, kept, bags, buffers) for rows in parts]
        if not self._own_is_few:
            return joined(values), kept
        if kept is not None and kept.shape == logits.shape:
            self._subtract_own(kept, kept.new_full((), self.share), slice(None))
        return joined(values) - self._own(logits, slice(None)), kept

    def _block(self, x: Tensor, rows: slice, kept: Tensor | None, bags: Bags | None, buffers: Buffers) -> Tensor:
        """L of a block of rows, whose gradient or weights are written to ``kept``, own targets left out where
        they are few classes."""
        scratch, picked = (None if buffer is None else buffer[: len(x)] for buffer in buffers)
        exponents = self._exponents(x, rows, bags, scratch, picked)
        highest = exponents.amax(1)
        kept = None if kept is None else kept[rows]
        keeps_gradient = kept is not None and kept.shape == x.shape
        if bags is not None or (scratch is not None and self.index is None and not self.are_classes):
            # In place. torch's softmax is also slow where rows are columns in memory; exp is where it rounds to 0.
            weights = exponents.sub_(highest[:, None]).clamp_(min=lowest_exponent(x.dtype)).exp_()
            total = weights.sum(1)
            log_total, factor = total.log(), total.reciprocal_()
        else:
            out = kept if kept is not None and (self.are_classes or not keeps_gradient) else picked
            weights = torch.softmax(exponents, 1, out=out)
            # max softmax = exp(highest − L): one fused kernel gives both the weights and L.
            log_total, factor = -weights.amax(1).log(), torch.ones_like(highest)
        if kept is not None and keeps_gradient:
            total = torch.ones_like(factor)
            self._write_gradient(kept, weights, factor, total, rows, bags, exponents)
            if not self._own_is_few:
                self._subtract_own(kept, total[:, None], rows)
        value = highest + log_total
        return value if self._own_is_few else value - self._own(x, rows)

    def gradient(self, logits: Tensor, kept: Tensor, upstream: Tensor) -> Tensor:
        gradient = torch.empty_like(logits, dtype=kept.dtype)
        parts = blocks(len(logits), self.candidates(), logits.device, self.chunk_size)
        buffers = self._buffers(logits, parts)
        for rows in parts:
            part = upstream[rows]
            scratch, out = (None if buffer is None else buffer[: len(part)] for buffer in buffers)
            weights = torch.mul(kept[rows], part[:, None], out=out)
            self._write_gradient(gradient[rows], weights, torch.ones_like(part), part, rows, None, scratch)
        self._subtract_own(gradient, upstream[:, None], slice(None))
        return gradient

    def _buffers(self, logits: Tensor, parts: list[slice]) -> Buffers:
        """For all blocks: on a CPU fresh memory for every temporary would cost more than what is computed in it.
        Elsewhere torch itself keeps memory to reuse."""
        if logits.device.type != "cpu":
            return None, None
        count = 1 if self.index is None else 2
        found = logits.new_empty(count, parts[0].stop, self.candidates(), dtype=at_least_float32(logits.dtype))
        return found[0], found[1] if count == 2 else None

    def _bags(self, logits: Tensor, dtype: torch.dtype, with_gradient: bool) -> Bags | None:
        """Pairs as bags, where that is quicker: on a CPU, and where they are many more than the classes, whose columns
        all have to become rows."""
        if self.index is None or self.directions or logits.device.type != "cpu":
            return None
        if 2 * self.index.numel() < 3 * logits.shape[1]:
            return None
        weight = self.weight
        if weight is None:
            weight = torch.full(self.index.shape, self.scale, dtype=dtype)
        return Bags(self.index, weight, logits.shape[1], with_gradient)

    def plain(self, logits: Tensor) -> Tensor:
        x = self._logits(logits)
        return self._exponents(x, slice(None)).logsumexp(1) - self._own(x, slice(None))

    def _logits(self, x: Tensor) -> Tensor:
        """Logits as the sums take them."""
        adds_up_all_classes = self.directions or (self.index is None and not self.are_classes)
        return finite(x) if adds_up_all_classes else x.to(at_least_float32(x.dtype))

    def _exponents(
        self,
        x: Tensor,
        rows: slice,
        bags: Bags | None = None,
        out: Tensor | None = None,
        picked: Tensor | None = None,
    ) -> Tensor:
        """Σ_k c_k x_k + o_c of all candidates for a block of rows, (n, M), those not allowed far below all others.

        Written to ``out``, with ``picked`` for what is added up, where they are given: autograd does not know these.
        """
        zero = x.new_zeros(()) if self.offset is None else self.offset
        if self.are_classes:
            return torch.add(zero, x, alpha=self.scale, out=out)
        if self.index is None:
            assert self.weight is not None
            exponents = torch.addmm(zero, x, self.weight.t(), out=out)
        elif bags is not None:
            exponents = bags.of_candidates(x)
            if self.offset is not None:
                exponents.add_(self.offset)
        else:
            # Whole columns: index_select is twice as quick as gather.
            first, *more = self.index.unbind(1)
            column = torch.index_select(x, 1, first, out=picked)
            if self.weight is None:
                exponents = torch.add(zero, column, alpha=self.scale, out=out)
            else:
                lowest = lowest_logit(x.dtype)
                exponents = torch.addcmul(zero, column.clamp_(min=lowest), self.weight[:, 0], out=out)
                for j, index in enumerate(more, 1):
                    column = torch.index_select(x, 1, index, out=picked).clamp_(min=lowest)
                    exponents.addcmul_(column, self.weight[:, j])
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
        if self.own_weight is None:
            score = (self.scale * picked.to(at_least_float32(x.dtype))).sum(1)
        else:
            score = (self.own_weight[rows] * finite(picked)).sum(1)
        for direction in self.directions:
            if direction.own_mass is not None:
                score = score + direction.score(x) * direction.own_mass[rows]
        return score if self.own_offset is None else score + self.own_offset[rows]

    def _write_gradient(
        self,
        gradient: Tensor,
        weights: Tensor,
        factor: Tensor,
        total: Tensor,
        rows: slice,
        bags: Bags | None,
        scratch: Tensor | None,
    ) -> None:
        """Write Σ_c w_c·c of a block to ``gradient``, (n, K), and what own targets have along the directions off it.

        ``total`` (n,) is Σ_c w_c, and w is ``weights`` times ``factor`` (n,), which is 1 for columns and classes.
        """
        if self.are_classes:
            if self.scale * self.share != 1 or weights is not gradient:
                torch.mul(weights, self.scale * self.share, out=gradient)
        elif self.index is None:
            assert self.weight is not None
            torch.mm(weights, self.weight, out=gradient).mul_(factor[:, None])
        elif bags is not None:
            gradient.copy_(bags.of_classes(weights).mul_(factor[:, None]))
        else:
            gradient.zero_()
            for j, column in enumerate(self.index.unbind(1)):
                part = torch.mul(weights, self.scale if self.weight is None else self.weight[:, j], out=scratch)
                gradient.index_add_(1, column, part)
        for direction in self.directions:
            along = torch.zeros_like(total) if direction.mass is None else factor * (weights @ direction.mass)
            if direction.own_mass is not None:
                along = along - direction.own_mass[rows] * total
            gradient.add_(along[:, None] if direction.vector is None else along[:, None] * direction.vector)

    def _subtract_own(self, gradient: Tensor, total: Tensor, rows: slice) -> None:
        """Take total·α of each row's own target off ``gradient`` (n, K); ``total`` is (n, 1) or ()."""
        if self.own_index is None:
            assert self.own_weight is not None
            gradient.addcmul_(self.own_weight[rows], total, value=-1)
        else:
            own = self.own_index[rows]
            less = total * -(self.scale if self.own_weight is None else self.own_weight[rows])
            gradient.scatter_add_(1, own, less.expand(own.shape))


def excluded(dtype: torch.dtype) -> float:
    """The exponent of what is not to be counted: half the lowest number, so that it can be added once more without
    becoming −∞, whose differences are no numbers."""
    return torch.finfo(dtype).min / 2


def lowest_exponent(dtype: torch.dtype) -> float:
    """What is that far below the highest adds nothing to a sum, and a product with it is still a normal number."""
    return math.log(torch.finfo(dtype).tiny) + 7
