r"""The expected contrast: the own label summed over its soft target, the other candidates counted by class.

With class scores s and the other candidates' class counts w (what each class has of them, drawn or in the mean),

.. math:: R_i = \sum_j w_{ij} e^{s_{ij}}, \qquad
          \ell_i = \sum_k \alpha_{ik} \log\big(1 + R_i / e^{s_{ik}}\big), \qquad
          \frac{\partial \ell_i}{\partial s_{ij}} = q_{ij} \sum_k \alpha_{ik} \pi_{ik} - \alpha_{ij} \pi_{ij},

where :math:`\pi_{ik} = R_i/(R_i + e^{s_{ik}})` and :math:`q_{ij} = w_{ij} e^{s_{ij}}/R_i`. The counts are the same for
all rows but for what a row itself put in, which is taken out of them. So nothing is N × M: every path is O(N·K), and
value and gradient of a block of rows are finished while it is in the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._checks import values_are_readable
from softnce._precision import at_least_float32, full_precision
from softnce._scores.classes import class_scores
from softnce._scores.kernel import Kernel, Reduced, blank, blocks, evaluate, finite, joined, lowest_logit, reduced
from softnce.targets._background import is_zero
from softnce.targets.soft_targets import DENSE, SoftTargets


def expected(
    logits: Tensor,
    temperature: float | Tensor,
    log_noise: Tensor | None,
    targets: SoftTargets,
    counts: Tensor,
    held: SoftTargets | None,
    chunk_size: int | None = None,
    reduction: Reduced = "none",
) -> Tensor:
    """ℓ of every row, (N,), or their mean.

    Args:
        logits: (N, K).
        targets: α, N rows.
        counts: (K,) float64, the class counts of all candidates.
        held: what each row has in ``counts``, N rows; None: nothing.
        chunk_size: rows worked on at a time, by default as many as the cache holds.

    Time O(N·K), also for dense targets; memory besides the gradient: one block of rows.
    """
    with full_precision(logits.device):
        if len(logits) == 0:
            zeros = class_scores(logits, temperature)[:, :0].sum(1)  # connected to the graph of autograd all the same
            return reduced(zeros, reduction)
        if isinstance(temperature, Tensor):  # it may be learned
            logits, temperature = class_scores(finite(blank(logits, targets.mask)), temperature), 1.0
        kernel = _kernel(at_least_float32(logits.dtype), 1 / temperature, log_noise, targets, counts, held)
        kernel.chunk_size = chunk_size
        return evaluate(logits, kernel, targets.mask, reduction)


@dataclass
class Expected(Kernel):
    """Everything but the logits. Tensors have the dtype the sums are taken in.

    Own targets are pairs, with a background ``mass``·``spread`` that all rows share, or dense rows.
    """

    scale: float  # 1/τ
    shift: Tensor | None  # (K,) −log η
    log_counts: Tensor  # (K,) log of the counts that all rows share, far below all others where 0
    own_index: Tensor | None  # (N, S), None: dense
    own_weight: Tensor  # (N, S) or (N, K)
    held_index: Tensor | None  # (N, S') where a row's counts differ from the shared ones …
    held_log: Tensor | None  # (N, S') … and by how much, in logarithms
    counts: Tensor | None = None  # (K,) for dense rows, whose counts are counts − held
    held: Tensor | None = None  # (N, K)
    mass: float = 0.0  # ε of the background
    spread: Tensor | None = None  # (K,) ξ, None: uniform
    inverse: Tensor | None = None  # (K,) 1/counts, where it is seen that none is 0
    chunk_size: int | None = None  # rows at a time

    def parts(self) -> tuple[list[Tensor | None], list[float]]:
        tensors = [self.shift, self.log_counts, self.own_index, self.own_weight, self.held_index, self.held_log]
        return [*tensors, self.counts, self.held, self.spread], [self.scale, self.mass, self.chunk_size or 0]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None], numbers: Sequence[float]) -> Self:
        *fields, spread = tensors
        scale, mass, chunk_size = numbers
        return cls(scale, *fields, mass, spread, None, int(chunk_size) or None)  # type: ignore[arg-type,call-arg]

    def run(self, logits: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        dtype = at_least_float32(logits.dtype)
        kept = torch.empty_like(logits, dtype=dtype) if with_gradient else None
        width = logits.shape[1] * (1 if logits.device.type == "cpu" else 2)  # elsewhere fewer buffers are reused
        parts = blocks(len(logits), width, logits.device, self.chunk_size)
        work = _dense_rows if self.own_index is None else _shares if self.mass == 0 else _pair_rows
        if self.mass > 0 and logits.device.type == "cpu" and values_are_readable(self.log_counts):
            all_counted = bool((self.log_counts > torch.finfo(dtype).min / 4).all())
            self.inverse = self.log_counts.neg().exp() if all_counted else None
        # Buffers for all blocks: fresh memory for every temporary would cost more than what is computed in it.
        scratch = logits.new_empty(4 if kept is None else 3, parts[0].stop, logits.shape[1], dtype=dtype)
        values = []
        for rows in parts:
            x = logits[rows].to(dtype)
            out = scratch[-1, : len(x)] if kept is None else kept[rows]
            values.append(work(x, self, rows, out, scratch[:, : len(x)]))
        if work is _shares:
            return _pair_losses(logits, self, joined(values), kept), kept
        return joined(values), kept

    def plain(self, logits: Tensor) -> Tensor:
        return _plain(logits, self)


def _kernel(
    dtype: torch.dtype,
    scale: float,
    log_noise: Tensor | None,
    targets: SoftTargets,
    counts: Tensor,
    held: SoftTargets | None,
) -> Expected:
    shift = None if log_noise is None else -log_noise.to(dtype)
    if not _fits_pairs(targets, held):
        own = targets.unmasked_dense(dtype)
        mine = own if held is targets else None if held is None else held.unmasked_dense(dtype)
        return Expected(scale, shift, log_counts(counts, dtype), None, own, None, None, counts.to(dtype), mine)
    mass = targets.smoothing if isinstance(targets.smoothing, float) else 0.0
    spread = targets.smoothing_dist if mass > 0 else None
    if held is not None and mass > 0 and not is_zero(held.smoothing):
        # Every row put the same background in: it is taken out once.
        counts = counts - mass * (1 / len(counts) if spread is None else spread.double())
    logs = log_counts(counts, dtype)
    held_index = held_log = None
    if held is not None:
        held_index, weight = held.classes, held.pair_weight(torch.float64)
        if weight.shape[1] > 1:  # a class named twice has both weights
            same = held_index[:, :, None] == held_index[:, None, :]
            weight = (same * weight[:, None, :]).sum(2)
        held_log = log_counts(counts[held_index] - weight, dtype) - logs[held_index]
        if weight.shape[1] > 1:  # … and is changed once in all
            held_log = held_log / same.sum(2)
    return Expected(
        scale, shift, logs, targets.classes, targets.pair_weight(dtype), held_index, held_log,
        mass=mass, spread=None if spread is None else spread.to(dtype),
    )  # fmt: skip


def _fits_pairs(targets: SoftTargets, held: SoftTargets | None) -> bool:
    """Whether rows differ in a few pairs only: no dense rows, and a background that is the same for all or none."""
    if targets.form == DENSE or not isinstance(targets.smoothing, float):
        return False
    return held is None or (held.form != DENSE and (is_zero(held.smoothing) or held.shares_background(targets)))


def log_counts(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """log of counts; half the lowest number for 0, so that scores can be added without becoming −∞."""
    lowest = torch.finfo(dtype).min / 2
    return counts.log().nan_to_num(nan=lowest, neginf=lowest).to(dtype)  # rounding may leave a count below 0


def _scores(x: Tensor, kernel: Expected, out: Tensor | None = None) -> Tensor:
    """s of a block of rows, (n, K); ``x`` itself where it is the same."""
    if kernel.shift is not None:
        return torch.add(kernel.shift, x, alpha=kernel.scale, out=out)
    return x if kernel.scale == 1 else torch.mul(x, kernel.scale, out=out)


def _scores_at(x: Tensor, index: Tensor, kernel: Expected) -> Tensor:
    """s at the classes ``index`` (n, S) of each row."""
    picked = x.gather(1, index).to(kernel.log_counts.dtype)
    picked = picked if kernel.scale == 1 else picked * kernel.scale
    return picked if kernel.shift is None else picked + kernel.shift[index]


def _counted_scores(x: Tensor, kernel: Expected, rows: slice, out: Tensor | None = None) -> Tensor:
    """s + log w of a block of rows, (n, K)."""
    offset = kernel.log_counts if kernel.shift is None else kernel.log_counts + kernel.shift
    exponents = torch.add(offset, x, alpha=kernel.scale, out=out)
    if kernel.held_index is not None and kernel.held_log is not None:
        # Counts are constants, so that nothing needs to be kept for a gradient.
        exponents.scatter_add_(1, kernel.held_index[rows], kernel.held_log[rows])
    return exponents


def _shares(x: Tensor, kernel: Expected, rows: slice, out: Tensor, scratch: Tensor) -> Tensor:
    """log R of a block of rows, (n,); the shares q are written to ``out``."""
    exponents = _counted_scores(x, kernel, rows, scratch[0])
    highest = exponents.amax(1)
    # max softmax = exp(highest − log R): one fused kernel gives both the shares and R.
    return highest - torch.softmax(exponents, 1, out=out).amax(1).log()


def _pair_losses(logits: Tensor, kernel: Expected, log_rest: Tensor, shares: Tensor | None) -> Tensor:
    """ℓ of all rows, (N,), whose targets are pairs without a background; ``shares`` become the gradient."""
    assert kernel.own_index is not None
    gap = log_rest[:, None] - _scores_at(logits, kernel.own_index, kernel)
    if shares is not None:
        pull = kernel.own_weight * gap.sigmoid()
        factor = kernel.scale * kernel.share
        pull = pull if factor == 1 else pull * factor
        shares.mul_(pull.sum(1, keepdim=True)).scatter_add_(1, kernel.own_index, -pull)
    return _own_losses(kernel.own_weight, gap)


def _own_losses(weight: Tensor, gap: Tensor) -> Tensor:
    """Σ_k α_k log(1 + e^gap) of every row, (n,), over its pairs."""
    if weight.shape[1] > 1:  # a pair of weight 0 may be of a masked class, whose gap is ∞
        gap = gap.clamp(max=-lowest_logit(gap.dtype))
    return (weight * F.softplus(gap, threshold=50)).sum(1)


def _pair_rows(x: Tensor, kernel: Expected, rows: slice, out: Tensor, scratch: Tensor) -> Tensor:
    """ℓ of a block of rows whose targets are pairs on a background; its gradient is written to ``out``."""
    assert kernel.own_index is not None
    index, weight = kernel.own_index[rows], kernel.own_weight[rows]
    x = x if kernel.spread is None else finite(x)  # ξ may be 0 at masked classes
    log_rest = _shares(x, kernel, rows, out, scratch)
    gap = log_rest[:, None] - _scores_at(x, index, kernel)
    pull = weight * gap.sigmoid()
    more, push = _background(x, out, log_rest, kernel, rows, scratch)
    value = torch.add(_own_losses(weight, gap), more, alpha=kernel.mass)
    total = torch.add(pull.sum(1), _spread_mean(push, kernel), alpha=kernel.mass)
    push = push if kernel.spread is None else push.mul_(kernel.spread)
    factor = kernel.scale * kernel.share
    push_factor = factor * kernel.mass / (x.shape[1] if kernel.spread is None else 1)
    torch.addcmul(push.mul_(-push_factor), out, total[:, None], value=factor, out=out)
    out.scatter_add_(1, index, -factor * pull)
    return value


def _background(
    x: Tensor, share: Tensor, log_rest: Tensor, kernel: Expected, rows: slice, scratch: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ_k ξ_k log(1 + R/e^{s_k}) of a block of rows, (n,), and π of all classes, (n, K)."""
    at_held = None
    if kernel.held_index is not None and kernel.inverse is not None:  # there the counts are the row's own
        index = kernel.held_index[rows]
        at_held = _scores_at(x, index, kernel) - log_rest[:, None]
    # Some class may have no count, or a row so little beside what it held that e^{s}/R is infinite.
    if kernel.inverse is None or not (at_held is None or bool((at_held < 60).all())):
        gap = log_rest[:, None] - _scores(x, kernel)
        return _spread_mean(F.softplus(gap, threshold=50), kernel), gap.sigmoid_()
    odds = torch.mul(share, kernel.inverse, out=scratch[0])  # the share of a class is its count times e^{s}/R
    if at_held is not None:
        odds.scatter_(1, index, at_held.exp())
    mean_score = kernel.scale * _spread_mean(x, kernel)
    if kernel.shift is not None:
        mean_score = mean_score + _spread_mean(kernel.shift[None], kernel)
    # log1p takes three times as long; what is lost below 1 is below the rounding of log R.
    above = _spread_mean(torch.log(odds.add_(1), out=scratch[1]), kernel)
    return log_rest - mean_score + above, odds.reciprocal_()


def _spread_mean(values: Tensor, kernel: Expected) -> Tensor:
    """Σ_k ξ_k·v_k of every row."""
    return values.mean(1) if kernel.spread is None else values @ kernel.spread


def _dense_rows(x: Tensor, kernel: Expected, rows: slice, out: Tensor, scratch: Tensor) -> Tensor:
    """ℓ of a block of dense rows; its gradient is written to ``out``."""
    assert kernel.counts is not None
    own, (a, b, c, *_) = kernel.own_weight[rows], scratch
    scores = _scores(x, kernel, a)
    highest = scores.amax(1, keepdim=True)
    below = torch.sub(scores, highest, out=a).clamp_(min=lowest_logit(x.dtype))
    odds = torch.exp(below, out=out)
    counts = kernel.counts if kernel.held is None else torch.sub(kernel.counts, kernel.held[rows], out=b)
    counted = torch.mul(odds, counts, out=c)
    rest = counted.sum(1, keepdim=True)
    if x.device.type != "cpu" or not bool((rest > 1e-30).all()):  # an accelerator would have to wait for the answer
        return _far_rows(below, counts, kernel, rows, out)
    more = torch.add(odds.div_(rest), 1, out=b)  # 1 + e^{s}/R
    # log(1 + R/e^s) = log(1 + e^s/R) + (log R − s)
    # (log1p takes three times as long; what is lost below 1 is below the rounding of log R.)
    logs = torch.log(more, out=odds)
    value = rest[:, 0].log() * own.sum(1) + logs.sub_(below).mul_(own).sum(1)
    pull = torch.div(own, more, out=b)
    factor = kernel.scale * kernel.share
    torch.mul(counted, pull.sum(1, keepdim=True) * (factor / rest), out=out).sub_(pull, alpha=factor)
    return value


def _far_rows(scores: Tensor, counts: Tensor, kernel: Expected, rows: slice, out: Tensor) -> Tensor:
    """The same where the others' scores may be so far below the highest that R is lost beside it: in logarithms."""
    own = kernel.own_weight[rows]
    exponents = scores + log_counts(counts, scores.dtype)
    highest = exponents.amax(1)
    share = torch.softmax(exponents, 1, out=out)
    gap = (highest - share.amax(1).log())[:, None] - scores
    pull = own * gap.sigmoid()
    factor = kernel.scale * kernel.share
    share.mul_(factor * pull.sum(1, keepdim=True)).sub_(pull, alpha=factor)
    return (own * F.softplus(gap, threshold=50)).sum(1)


def _plain(logits: Tensor, kernel: Expected) -> Tensor:
    """ℓ by operations that autograd knows, on the whole (N, K) matrix."""
    x, rows = logits.to(at_least_float32(logits.dtype)), slice(None)
    if kernel.own_index is None:
        assert kernel.counts is not None
        scores, own = _scores(finite(x), kernel), kernel.own_weight[rows]
        counts = kernel.counts if kernel.held is None else kernel.counts - kernel.held[rows]
        log_rest = (scores + log_counts(counts, x.dtype)).logsumexp(1)
        return (own * F.softplus(log_rest[:, None] - scores, threshold=50)).sum(1)
    x = x if kernel.spread is None else finite(x)
    log_rest = _counted_scores(x, kernel, rows).logsumexp(1)
    value = _own_losses(kernel.own_weight, log_rest[:, None] - _scores_at(x, kernel.own_index, kernel))
    if kernel.mass > 0:
        every = F.softplus(log_rest[:, None] - _scores(x, kernel), threshold=50)
        value = value + kernel.mass * _spread_mean(every, kernel)
    return value
