"""Exact cross-entropy of features and a table of label embeddings, without an N × K matrix.

Rows are taken in blocks: their scores, the gradient of these, and its products with the embeddings and the features.
That makes three products of 2·N·K·d operations, as for the logits.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._core import cpu
from softnce._core.autograd import counted, is_eager, is_one
from softnce._core.contrast import row_blocks
from softnce._inputs import at_least_float32, full_precision, values_are_checked
from softnce.targets import SoftTargets

KEPT, FEWEST = 0.6, 1 << 17  # scores of a block as a share of the table's numbers; of a small table, the fewest
TINY = 1e-12  # smallest length that F.normalize divides by


def exact_cross_entropy(
    features: Tensor,
    table: Tensor,
    targets: SoftTargets,
    *,
    bias: Tensor | None = None,
    cosine: bool = False,
    temperature: float | Tensor = 1.0,
    class_weight: Tensor | None = None,
    row_weight: Tensor | None = None,
    divisor: float | Tensor | None = None,
    reduced: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """−Σ_k w_k α_k·log softmax((z·y + b)/τ)_k of every row, (N,), or their weighted sum over ``divisor``.

    Args:
        features, table: z (N, d) and y (K, d); ``cosine`` normalises both to unit length.
        targets: N rows; a mass ``rest`` counts as in :func:`group_cross_entropy`.
        bias: b, (K,). −∞ masks a class.
        class_weight: w, (K,).
        chunk_size: rows B in a block; by default B·K numbers are two thirds of the table.

    Gradients are dense. Under ``torch.func``, ``torch.compile``, with ``create_graph=True`` or targets that carry a
    gradient, all N × K logits are computed.
    """
    if targets.rest is not None and class_weight is not None:
        raise ValueError("class_weight has no meaning for targets with a rest, whose classes are not known")
    with full_precision(features.device):
        z = features.to(at_least_float32(torch.promote_types(features.dtype, table.dtype)))
        if targets.mask is not None:  # 0·nan in the gradient of the table
            z = z.where(targets.mask[:, None], 0)
        z = F.normalize(z, dim=1) if cosine else z
        bias = None if bias is None else bias.to(z.dtype)
        if isinstance(temperature, Tensor) or temperature != 1:
            z, bias = z / temperature, None if bias is None else bias / temperature
        weight = z.new_ones(len(z)) if row_weight is None else row_weight.to(z.dtype)
        weight = weight if divisor is None or not reduced else weight / divisor
        call = _Call(targets, class_weight, weight, cosine, reduced, chunk_size)
        parts = (targets.weight, targets.smoothing, targets.rest, weight)
        graph = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in parts)
        value: Tensor = _Exact.apply(z, table, bias, call) if is_eager() and not graph else call.plain(z, table, bias)
        return value


@dataclass(slots=True)
class _Call:
    targets: SoftTargets
    class_weight: Tensor | None
    weight: Tensor  # (N,)
    cosine: bool
    reduced: bool
    chunk_size: int | None

    def losses(self, scores: Tensor, rows: slice | Tensor, weight: Tensor, reduced: bool, **how: Any) -> Tensor:
        """The losses of some rows times ``weight``, or their sum."""
        targets, scale = self.targets[rows], weight[rows]
        if targets.rest is None:
            return counted(scores, targets, class_weight=self.class_weight, row_weight=scale, reduced=reduced, **how)
        found = group_cross_entropy(scores, targets) * scale
        return found.sum() if reduced else found

    def plain(self, z: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
        """The result from all logits, by operations that autograd knows."""
        y = table.to(z.dtype)
        scores = F.linear(z, F.normalize(y, dim=1) if self.cosine else y, bias)
        return self.losses(scores, slice(None), self.weight, self.reduced)

    def in_blocks(
        self, z: Tensor, table: Tensor, bias: Tensor | None, weight: Tensor, reduced: bool, wants: tuple[bool, ...]
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The losses (N,) times ``weight`` or their sum, and the gradients of the sum that are wanted."""
        y, inverse, (classes, dim) = table.to(z.dtype), None, table.shape
        if self.cosine:  # the length of an embedding divides its scores
            inverse = y.norm(dim=1).clamp(min=TINY).reciprocal()
        makes_more = self.targets.rest is not None or (z.is_cpu and cpu.library is None)  # matrices of a block
        step = self.chunk_size or max(1, int(KEPT * dim) // (4 if makes_more else 1), FEWEST // classes)
        found = z.new_zeros(() if reduced else len(z))
        of_z, of_table, of_bias = (
            torch.zeros_like(t) if t is not None and want else None for t, want in zip((z, y, bias), wants, strict=True)
        )
        blocks, mask = row_blocks(len(z), classes, z.device, step), self.targets.mask
        if mask is not None and mask.is_cpu:
            blocks = mask.nonzero()[:, 0].split(step)
        room = z.new_empty(min(step, len(z)), classes)
        for rows in blocks:
            x = z[rows]
            scores = torch.mm(x, y.t(), out=room[: len(x)])
            if inverse is not None:
                scores *= inverse
            if bias is not None:
                scores += bias
            scores = scores.detach().requires_grad_(any(wants))
            with torch.enable_grad():
                value = self.losses(scores, rows, weight, reduced, overwrites=True)
            found[... if reduced else rows] += value.detach()
            if not any(wants):
                continue
            (pulled,) = torch.autograd.grad(value, scores)
            if of_bias is not None:
                of_bias += pulled.sum(0)
            if inverse is not None:
                pulled *= inverse
            if of_z is not None:
                of_z[rows] = pulled @ y
            if of_table is not None:
                of_table.addmm_(pulled.t(), x)
        if inverse is not None and of_table is not None:
            of_table.addcmul_(y, (torch.linalg.vecdot(of_table, y) * inverse.square())[:, None], value=-1)
        return found, (of_z, None if of_table is None else of_table.to(table.dtype), of_bias)


class _Exact(torch.autograd.Function):
    """The gradient of a reduced loss comes with the value; that of each row's loss is computed in backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, table: Tensor, bias: Tensor | None, call: _Call) -> Tensor:
        ctx.call, ctx.is_kept = call, call.reduced
        ctx.save_for_backward(z, table, bias)
        wants = ctx.needs_input_grad[:3] if call.reduced else (False, False, False)
        value, ctx.kept = call.in_blocks(z, table, bias, call.weight, call.reduced, wants)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        call, inputs, wants = ctx.call, ctx.saved_tensors, ctx.needs_input_grad[:3]
        if not torch._C._has_storage(upstream):
            raise RuntimeError("is_grads_batched needs the logits form: the exact cross-entropy of a table has none")
        with full_precision(inputs[0].device):
            if torch.is_grad_enabled():  # create_graph=True: the gradient will itself be differentiated
                wanted = [t for t, want in zip(inputs, wants, strict=True) if want]
                found = iter(torch.autograd.grad(call.plain(*inputs), wanted, upstream, create_graph=True))
                return *(next(found) if want else None for want in wants), None
            kept, is_kept = ctx.kept, ctx.is_kept
            ctx.kept, ctx.is_kept = None, False
            if not is_kept:  # of each row, or a second backward through the same graph
                _, kept = call.in_blocks(*inputs, call.weight * upstream, True, wants)
            elif not is_one(upstream):
                kept = tuple(None if gradient is None else gradient.mul_(upstream) for gradient in kept)
            return *kept, None


def group_cross_entropy(scores: Tensor, targets: SoftTargets) -> Tensor:
    """−Σ_top α_k log p_k − r·log Σ_rest p_k of every row, (N,), with p the softmax of ``scores`` (N, K).

    Exact for all that such a target says; the gradient is p_j − α_j in the top k and p_j − r·p_j/P_rest in the rest.
    """
    index, weight, rest = targets.classes, targets.pair_weight(scores.dtype), targets.rest
    if rest is None:
        raise ValueError("targets must hold the classes beyond the top k as one group (rest), these hold none")
    rest, total = rest.to(scores.dtype), scores.logsumexp(1)
    is_named = torch.zeros_like(scores, dtype=torch.bool).scatter(1, index, True)
    if values_are_checked(scores, rest):
        is_empty = (scores.masked_fill(is_named, -torch.inf) == -torch.inf).all(1) & (rest > 0)
        is_empty = is_empty if targets.mask is None else is_empty & targets.mask
        if bool(is_empty.any()):
            row = int(is_empty.nonzero()[0])
            raise ValueError(f"targets leave {float(rest[row]):.4g} to a group without classes in row {row}")
    # A class of weight 0 may have a score of −∞, and a group of weight 0 may be empty: neither has a share in the loss.
    named = torch.where(weight > 0, scores.gather(1, index) - total[:, None], 0)
    others = scores.masked_fill(is_named & (rest > 0)[:, None], -torch.inf).logsumexp(1) - total
    loss = -(weight * named).sum(1) - rest * others
    return loss if targets.mask is None else torch.where(targets.mask, loss, 0)
