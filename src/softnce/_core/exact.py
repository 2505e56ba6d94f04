"""Exact soft target cross-entropy of features and a table of label embeddings, without an N × K matrix.

    ℓ = A·log Σ_k e^{s_k} − Σ_k a_k s_k − r·log Σ_{k ∉ named} e^{s_k},   s = (z·y_k + b_k)/τ

Rows are taken in blocks of B. A first pass over blocks of classes keeps e^{s} of the B rows and sums it; a second one
makes the gradients of the same rows. Scores are computed once: three products of 2·N·K·d operations as for the logits,
B·K numbers of memory. Losses that are not reduced get their gradients in backward, which starts anew.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from softnce._precision import at_least_float32, full_precision
from softnce.targets import SoftTargets

CLASSES = 2048
"""Classes in a block on a CPU, whose embeddings and scores then stay in the cache."""
CLASSES_ELSEWHERE = 1 << 16
SCORES = 1 << 21
"""Scores of a block whose exponentials are not kept."""
KEPT, FEWEST = 0.2, 1 << 17
"""Size of the exponentials that are kept, as a share of the table; of a small table, the fewest of a block."""
TINY = 1e-12
"""Smallest length that ``F.normalize`` divides by."""


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
        targets: N rows. A mass ``rest`` counts as −r·log of the probability of all classes that a row does not name.
        bias: b, (K,). −∞ masks a class.
        class_weight, row_weight: w (K,), and one weight per row (N,).
        reduced: returns Σ_i row_weight_i ℓ_i / divisor instead of row_weight_i ℓ_i.
        chunk_size: rows B in a block; by default B·K is a fifth of the table.

    Gradients are dense. Under ``torch.func``, ``torch.compile``, with ``create_graph=True`` or targets that carry a
    gradient, all N × K logits are computed.
    """
    with full_precision(features.device):
        rows = len(features)
        targets, features, row_weight, kept = _rows_that_count(targets, features, row_weight)
        z = features.to(at_least_float32(torch.promote_types(features.dtype, table.dtype)))
        z = F.normalize(z, dim=1) if cosine else z
        shift = None if bias is None else bias.to(z.dtype)
        if isinstance(temperature, Tensor) or temperature != 1:
            z, shift = z / temperature, None if shift is None else shift / temperature
        alpha = _Alpha.of(targets, class_weight, z.dtype)
        weight = z.new_ones(len(z)) if row_weight is None else row_weight.to(z.dtype)
        weight = weight if divisor is None or not reduced else weight / divisor
        graph = any(t is not None and t.requires_grad for t in (alpha.weight, alpha.mass, alpha.rest, weight))
        if (graph and torch.is_grad_enabled()) or not _is_eager():
            losses = _plain(z, table, shift, alpha, cosine) * weight
            losses = losses.sum() if reduced else losses
        else:
            losses = _Exact.apply(z, table, shift, _Call(alpha, weight.detach(), cosine, reduced, chunk_size))
        if reduced or kept is None:
            return losses
        return losses.new_zeros(rows).index_put((kept,), losses)


def _rows_that_count(
    targets: SoftTargets, features: Tensor, row_weight: Tensor | None
) -> tuple[SoftTargets, Tensor, Tensor | None, Tensor | None]:
    """The rows without ignored ones and their positions. An accelerator is not waited for: there all, with weight 0."""
    mask = targets.mask
    if mask is None:
        return targets, features, row_weight, None
    if mask.device.type == "cpu" and _is_eager():
        kept = mask.nonzero()[:, 0]
        return targets[kept], features[kept], None if row_weight is None else row_weight[kept], kept
    weight = mask.to(features.dtype) if row_weight is None else row_weight.where(mask, 0)
    targets = targets[:]
    if targets.index is not None:
        targets.index = targets.index.where(mask[:, None], 0)
    return targets, features.where(mask[:, None], 0), weight, None


@dataclass(slots=True)
class _Alpha:
    """a = class_weight · α as tensors."""

    classes: Tensor | None  # (N, S)
    weight: Tensor  # (N, S); (N, K) without classes
    mass: Tensor | None  # (N,) of the background
    spread: Tensor | None  # (K,) of the background; None: 1/K
    rest: Tensor | None  # (N,) of the classes that are not named, as one group
    total: Tensor  # (N,), A: their sum

    @classmethod
    def of(cls, targets: SoftTargets, class_weight: Tensor | None, dtype: torch.dtype) -> Self:
        classes, weight, spread = targets.index, targets.pair_weight(dtype), None
        mass = targets.background_mass(dtype) if targets.has_background else None
        rest = targets.rest
        if mass is not None and targets.smoothing_dist is not None:
            spread = targets.smoothing_dist.to(dtype)
        if class_weight is not None:
            if rest is not None:
                raise ValueError("class_weight has no meaning for targets with a rest, whose classes are not known")
            class_weight = class_weight.to(dtype)
            weight = weight * (class_weight if classes is None else class_weight[classes])
            spread = class_weight / targets.num_classes if spread is None else spread * class_weight
        total = weight.sum(1)
        if mass is not None:
            total = total + (mass if spread is None else mass * spread.sum())
        if rest is not None:
            rest = rest.to(dtype)
            total = total + rest
        return cls(classes, weight, mass, spread, rest, total)

    def first(self) -> Tensor:
        """Pairs that name a class first in their row, (N, S)."""
        assert self.classes is not None
        same = self.classes[:, :, None] == self.classes[:, None, :]
        return ~same.tril(-1).any(2)


def _is_eager() -> bool:
    """Whether ordinary reverse mode is all there is: no compiler, no functorch transform, no forward mode."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return forward_ad._current_level < 0


def _plain(z: Tensor, table: Tensor, bias: Tensor | None, alpha: _Alpha, cosine: bool) -> Tensor:
    """The losses (N,) from all logits, by operations that autograd knows."""
    y = table.to(z.dtype)
    s = F.linear(z, F.normalize(y, dim=1) if cosine else y, bias)
    logs = s.log_softmax(1)
    named = logs if alpha.classes is None else logs.gather(1, alpha.classes)
    total = (alpha.weight * named.masked_fill(alpha.weight == 0, 0)).sum(1)
    if alpha.mass is not None:
        total = total + alpha.mass * (logs.mean(1) if alpha.spread is None else logs @ alpha.spread)
    if alpha.rest is not None:
        assert alpha.classes is not None
        others = logs.scatter(1, alpha.classes, -torch.inf).logsumexp(1)
        total = total + alpha.rest * others.masked_fill(alpha.rest == 0, 0)
    return -total


@dataclass(slots=True)
class _Call:
    alpha: _Alpha
    weight: Tensor  # (N,)
    cosine: bool
    reduced: bool
    chunk_size: int | None


class _Exact(torch.autograd.Function):
    """The gradient of a reduced loss comes with the value; that of each row's loss is computed in backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, table: Tensor, bias: Tensor | None, call: _Call) -> Tensor:
        ctx.call, ctx.wants = call, ctx.needs_input_grad[:3]
        sweep = _Sweep(z, table, bias, call, ctx.wants)
        ctx.kept = None
        if call.reduced and any(ctx.wants):
            losses = sweep.losses_and_gradients(call.weight)
            ctx.kept = sweep.gradients()
        else:
            losses = sweep.losses()
        ctx.save_for_backward(z, table, bias)
        losses = losses * call.weight
        return losses.sum() if call.reduced else losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        call, kept, inputs = ctx.call, ctx.kept, ctx.saved_tensors
        if not torch._C._has_storage(upstream):
            raise RuntimeError("is_grads_batched needs the logits form: the exact cross-entropy of a table has none")
        ctx.kept = None
        with full_precision(inputs[0].device):
            if torch.is_grad_enabled():  # create_graph=True: the gradient will itself be differentiated
                z, table, bias = inputs
                value = _plain(z, table, bias, call.alpha, call.cosine) * call.weight
                wanted = [t for t, want in zip(inputs, ctx.wants, strict=True) if want]
                found = torch.autograd.grad(value.sum() if call.reduced else value, wanted, upstream, create_graph=True)
                given = iter(found)
                return *(next(given) if want else None for want in ctx.wants), None
            if kept is None:  # of each row, or a second backward through the same graph
                z, table, bias = inputs
                sweep = _Sweep(z, table, bias, call, ctx.wants)
                sweep.losses_and_gradients(call.weight * upstream)
                return *sweep.gradients(), None
            if not (upstream.device.type == "cpu" and upstream.item() == 1):  # an accelerator is not asked
                kept = tuple(None if g is None else g.mul_(upstream) for g in kept)
            return *kept, None


class _Sweep:
    """Passes over rows and classes in blocks, for values and gradients.

    Named classes of targets with a rest are masked in the blocks, so that the sums are those of the rest, and are added
    as pairs.
    """

    def __init__(
        self, z: Tensor, table: Tensor, bias: Tensor | None, call: _Call, wants: tuple[bool, ...] = (False,) * 3
    ) -> None:
        self.z, self.table, self.bias, self.alpha, self.cosine = z, table, bias, call.alpha, call.cosine
        self.wants, self.chunk_size = wants, call.chunk_size
        size = CLASSES if z.device.type == "cpu" else CLASSES_ELSEWHERE
        self.blocks = [slice(k, min(k + size, len(table))) for k in range(0, len(table), size)]
        self._width = self.blocks[0].stop
        self.background = self._background()

    # ------------------------------------------------------------------------------------------------ scores

    def _vectors(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.z.dtype)
        return F.normalize(rows, dim=-1, eps=TINY) if self.cosine else rows

    def _background(self) -> tuple[Tensor, Tensor | float] | None:
        """Σ_k ξ_k y_k, (d,), and Σ_k ξ_k b_k."""
        alpha, table = self.alpha, self.table
        if alpha.mass is None:
            return None
        mean = self.z.new_zeros(table.shape[1])
        for part in self.blocks:
            share = mean.new_full((len(table[part]),), 1 / len(table)) if alpha.spread is None else alpha.spread[part]
            mean.addmv_(self._vectors(table[part]).t(), share)
        if self.bias is None:
            return mean, 0.0
        return mean, self.bias.mean() if alpha.spread is None else self.bias @ alpha.spread

    def _scores(self, rows: slice, part: slice, out: Tensor) -> Tensor:
        """s of a block, written to ``out``; −∞ for named classes of targets with a rest."""
        torch.mm(self.z[rows], self._vectors(self.table[part]).t(), out=out)
        if self.bias is not None:
            out += self.bias[part]
        if self.alpha.rest is not None:
            assert self.alpha.classes is not None
            place = self.alpha.classes[rows] - part.start
            inside = (place >= 0) & (place < part.stop - part.start)
            out.scatter_add_(1, place.where(inside, 0), torch.where(inside, -torch.inf, 0.0).to(out.dtype))
        return out

    def _pairs(self, rows: slice) -> tuple[Tensor, Tensor] | None:
        """The embeddings (n, S, d) of the named classes and their scores (n, S)."""
        if self.alpha.classes is None:
            return None
        classes = self.alpha.classes[rows]
        y = self._vectors(F.embedding(classes, self.table))
        s = torch.einsum("nd,nsd->ns", self.z[rows], y)
        return y, s if self.bias is None else s + self.bias[classes]

    # ------------------------------------------------------------------------------------------------ values

    @torch.no_grad()
    def losses(self) -> Tensor:
        """The losses (N,)."""
        found, blocks = self.z.new_empty(len(self.z)), self._row_blocks(keeps=False)
        buffer = self.z.new_empty(max((b.stop - b.start for b in blocks), default=0) * self._width)
        for rows in blocks:
            found[rows] = self._values(rows, self._sums(rows, buffer, []), self._pairs(rows))[0]
        return found

    def _sums(self, rows: slice, buffer: Tensor, shifts: list[Tensor], keeps: bool = False) -> tuple[Tensor, ...]:
        """The largest score m and Σ e^{s−m} of the classes in the blocks, and Σ a s of dense targets, (n,) each.

        With ``keeps`` the buffer holds e^{s − shift} of all blocks, and ``shifts`` their shifts.
        """
        n, lowest = rows.stop - rows.start, torch.finfo(self.z.dtype).min
        high, total = self.z.new_full((n,), lowest), self.z.new_zeros(n)
        dense = self.z.new_zeros(n)
        for part in self.blocks:
            s = self._scores(rows, part, self._view(buffer, n, part, keeps))
            if self.alpha.classes is None:
                a = self.alpha.weight[rows, part]
                dense += (a * s.masked_fill(a == 0, 0)).sum(1)
            top = torch.maximum(high, s.amax(1))
            s.sub_(top[:, None]).exp_()
            total.mul_((high - top).exp_()).add_(s.sum(1))
            high = top
            shifts.append(top)
        return high, total, dense

    def _values(
        self, rows: slice, sums: tuple[Tensor, ...], pairs: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The losses (n,), and of all classes the largest score m and Σ_k e^{s_k − m}, (n,) each."""
        high, total, dense = sums
        a, m, inner = self.alpha, high, high + total.log()
        if a.rest is not None:
            assert pairs is not None
            m = torch.maximum(high, pairs[1].amax(1))
            named = ((pairs[1] - m[:, None]).exp() * a.first()[rows]).sum(1)
            total = total * (high - m).exp() + named
        # The maximum is taken out of every part, so that small losses are no difference of large numbers.
        if pairs is None:
            value = a.weight[rows].sum(1) * m - dense
        else:
            weight = a.weight[rows]
            value = (weight * (m[:, None] - pairs[1]).masked_fill(weight == 0, 0)).sum(1)
        if a.mass is not None:
            assert self.background is not None
            mean = self.z[rows] @ self.background[0] + self.background[1]
            value += a.mass[rows] * ((m if a.spread is None else m * a.spread.sum()) - mean)
        if a.rest is not None:
            value += a.rest[rows] * (m - inner).masked_fill(a.rest[rows] == 0, 0)
        return value + a.total[rows] * total.log(), m, total

    # --------------------------------------------------------------------------------------------- gradients

    @torch.no_grad()
    def losses_and_gradients(self, weight: Tensor) -> Tensor:
        """The losses (N,); the gradients of ``weight`` · losses are left in :meth:`gradients`."""
        found = self.z.new_empty(len(self.z))
        self._start_gradients(weight)
        blocks, table = self._row_blocks(keeps=True), self.of_table
        in_place = table is not None and bool(blocks)
        if in_place:  # the first rows keep their exponentials where their gradient will be
            first = min(len(self.z), self.table.shape[1])
            blocks = [slice(0, first), *self._row_blocks(keeps=True, start=first)]
        elif table is not None:
            for part in self.blocks:
                self._begin_table(part)
        size = max((b.stop - b.start for b in blocks[int(in_place) :]), default=0)
        buffer = self.z.new_empty(size * len(self.table))
        for number, rows in enumerate(blocks):
            starts = in_place and number == 0
            room = buffer if not starts else table.view(-1)  # type: ignore[union-attr]
            shifts: list[Tensor] = []
            sums, pairs = self._sums(rows, room, shifts, keeps=True), self._pairs(rows)
            found[rows], *of_all = self._values(rows, sums, pairs)
            self._add_blocks(rows, weight[rows], room, shifts, of_all, sums, starts)
            if pairs is not None:
                self._add_pairs(rows, weight[rows], pairs, *of_all)
        return found

    def _start_gradients(self, weight: Tensor) -> None:
        """Gradients of the background's part, which is the same for all classes but for ξ; the table's comes later."""
        wants, alpha, (classes, dim) = self.wants, self.alpha, self.table.shape
        self.of_z = self.z.new_zeros(self.z.shape) if wants[0] else None
        self.of_table = self.z.new_empty(classes, dim) if wants[1] else None
        self.of_bias = self.z.new_zeros(classes) if wants[2] else None
        self.of_background: Tensor | None = None
        if alpha.mass is None:
            return
        assert self.background is not None
        mass = weight * alpha.mass
        self.of_background = mass @ self.z
        if self.of_z is not None:
            self.of_z.addr_(mass, self.background[0], alpha=-1)
        if self.of_bias is not None:
            self.of_bias.sub_(mass.sum() * (1 / classes if alpha.spread is None else alpha.spread))

    def _begin_table(self, part: slice) -> None:
        """The gradient of these classes before any row: of the background alone."""
        assert self.of_table is not None
        of_part, spread = self.of_table[part], self.alpha.spread
        if self.of_background is None:
            of_part.zero_()
        elif spread is None:
            of_part.copy_(self.of_background / -len(self.table))
        else:
            torch.outer(spread[part], -self.of_background, out=of_part)

    def _add_blocks(
        self,
        rows: slice,
        weight: Tensor,
        buffer: Tensor,
        shifts: list[Tensor],
        of_all: list[Tensor],
        of_blocks: tuple[Tensor, ...],
        starts: bool,
    ) -> None:
        """Gradients through the classes in the blocks: A·p of all, A·p − r·q of a rest whose softmax is q.

        If ``starts``, the buffer is the table's gradient. Blocks are then replaced from the last to the first: n ≤ d,
        so the gradient of a block covers exponentials of later blocks only.
        """
        alpha, n, z = self.alpha, rows.stop - rows.start, self.z[rows]
        (m, total), (high, inner, _) = of_all, of_blocks
        inner = inner.clamp(min=torch.finfo(inner.dtype).tiny)  # 0 if no class is left for the rest
        for i in reversed(range(len(self.blocks))):
            part = self.blocks[i]
            y = self._vectors(self.table[part])
            p, shift = self._view(buffer, n, part, keeps=True), shifts[i]
            scale = alpha.total[rows] * (shift - m).exp() / total
            if alpha.rest is not None:
                scale = scale - alpha.rest[rows] * (shift - high).exp() / inner
            scale = (weight * scale)[:, None]
            if alpha.classes is None:
                p.mul_(scale).sub_(weight[:, None] * alpha.weight[rows, part])
                scale = torch.ones_like(scale)
            if starts:
                p = p.clone()
                self._begin_table(part)
            if self.of_z is not None:
                self.of_z[rows].addcmul_(p @ y, scale)
            if self.of_table is not None:
                self.of_table[part].addmm_(p.t(), z * scale)
            if self.of_bias is not None:
                self.of_bias[part] += (scale.t() @ p)[0]

    def _add_pairs(self, rows: slice, weight: Tensor, pairs: tuple[Tensor, Tensor], m: Tensor, total: Tensor) -> None:
        alpha, (y, s) = self.alpha, pairs
        assert alpha.classes is not None
        classes, share = alpha.classes[rows], -alpha.weight[rows]
        if alpha.rest is not None:
            p = (s - m[:, None]).exp() / total[:, None]
            share = share + alpha.total[rows, None] * p * alpha.first()[rows]
        share = weight[:, None] * share
        if self.of_z is not None:
            self.of_z[rows] += torch.einsum("ns,nsd->nd", share, y)
        if self.of_table is not None:
            each = share[:, :, None] * self.z[rows, None, :]
            self.of_table.index_add_(0, classes.flatten(), each.flatten(0, 1))
        if self.of_bias is not None:
            self.of_bias.index_add_(0, classes.flatten(), share.flatten())

    @torch.no_grad()
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients of z, table and bias, in their dtypes."""
        of_table = self.of_table
        if of_table is not None and self.cosine:
            for part in self.blocks:
                g, y = of_table[part], self.table[part].to(self.z.dtype)
                length = y.norm(dim=1, keepdim=True)
                y = F.normalize(y, dim=1, eps=TINY)
                along = torch.where(length > TINY, (g * y).sum(1, keepdim=True), 0)
                g.sub_(along * y).div_(length.clamp(min=TINY))
        return self.of_z, None if of_table is None else of_table.to(self.table.dtype), self.of_bias

    # ------------------------------------------------------------------------------------------------ blocks

    def _row_blocks(self, keeps: bool, start: int = 0) -> list[slice]:
        """Blocks of rows from ``start`` on: as many as fit the exponentials that are kept, or one block of classes."""
        kept = max(1, int(KEPT * self.table.shape[1]), FEWEST // len(self.table))
        step, rows = kept if keeps else SCORES // self._width, len(self.z)
        step = step if self.chunk_size is None else self.chunk_size
        return [slice(i, min(i + step, rows)) for i in range(start, rows, step)]

    def _view(self, buffer: Tensor, n: int, part: slice, keeps: bool) -> Tensor:
        """(n, classes of the block) of the buffer: its own place for every block if they are kept."""
        width, start = part.stop - part.start, n * part.start if keeps else 0
        return buffer[start : start + n * width].view(n, width)
