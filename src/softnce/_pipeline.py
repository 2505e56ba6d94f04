"""The one way from scores and targets to a loss: rows → draw → candidates → contrast → reduce.

Functions and Modules, logits and tables all come through :func:`compute`. It keeps no state: what a queue or a running
noise should take in is returned.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from softnce import _ranks
from softnce._checks import check_flag, check_generator
from softnce._rows import (
    OthersForm,
    Place,
    Reduction,
    as_positions,
    check_chunk_size,
    check_class_weight,
    check_group,
    check_hard,
    check_label_smoothing,
    check_others,
    check_own,
    check_reduction,
    check_temperature,
    divide,
    row_weight,
    times,
    total_weight,
)
from softnce._scores.kernel import Reduced
from softnce._scores.logits import Logits
from softnce._scores.others import drawn, in_the_mean
from softnce._scores.table import Table
from softnce.candidates import Candidates, ClassCandidates
from softnce.draws import Draw
from softnce.targets.soft_targets import LABELS, SoftTargets

Contrast = Literal["geometric", "arithmetic", "classes"]
"""How a target is contrasted: with other targets by their scores, a geometric mean over classes (soft target InfoNCE);
in expectation over the labels it and they could draw (expected InfoNCE); with the classes (cross-entropy)."""


def compute(
    source: Logits | Table,
    targets: Tensor | SoftTargets,
    *,
    contrast: Contrast,
    hard_labels_of: str | None = None,
    log_noise: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    candidates: Candidates | SoftTargets | None = None,
    draw: Draw | None = None,
    others: OthersForm | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
    generator: torch.Generator | None = None,
    exchange: _ranks.Exchange | None = None,
    gather: bool = False,
) -> tuple[Tensor, SoftTargets]:
    """The loss, and the targets of the whole batch as they were contrasted: smoothed and drawn.

    Args:
        hard_labels_of: name of a loss that takes hard labels only; None: soft targets are welcome.
        exchange: the ranks that exchange targets, where candidates need them, and means; None: nothing is exchanged.
        gather: return the targets of all ranks in any case; only with ``exchange``.

    The other arguments are those of :mod:`softnce.functional`.
    """
    check_reduction(reduction)
    check_others(others)
    check_flag(remove_accidental_hits, "remove_accidental_hits")
    check_generator(generator)
    if draw is not None and not isinstance(draw, Draw):
        raise TypeError(f"draw must be one of softnce.draws or None, got {type(draw).__name__}")
    label_smoothing = check_label_smoothing(label_smoothing)
    if hard_labels_of is not None:
        check_hard(targets, hard_labels_of)
    check_class_weight(class_weight, source.num_classes)
    check_chunk_size(chunk_size)
    temperature = check_temperature(temperature)
    if log_noise is not None and len(log_noise) != source.num_classes:
        raise ValueError(f"noise_probs has {len(log_noise)} entries, but there are {source.num_classes} classes")
    if exchange is not None and isinstance(temperature, Tensor) and temperature.requires_grad:
        temperature = _ranks.share_gradient(temperature, exchange)

    # Rows.
    alpha = source.accept(targets, label_smoothing, ignore_index)
    if contrast != "classes":
        alpha = alpha.detach()  # a target carries no gradient
    whole = alpha
    if batch is not None:
        check_group(batch, source.num_classes, alpha.device, "batch")
        if own is None:
            raise ValueError("batch needs own, the positions of the rows in it")
        whole = batch.smooth(label_smoothing).detach()
        check_own(whole, own, alpha, "batch")
    elif own is not None and not isinstance(candidates, SoftTargets):
        raise ValueError("own gives positions in batch or in candidates, but neither is given as SoftTargets")

    # Draw.
    score_temperature, score_noise, drawn_noise = temperature, log_noise, None
    if draw is not None:
        if batch is not None and generator is None:
            raise ValueError("draw with batch needs a generator, in the same state for every micro-batch of the batch")
        whole = draw.alpha(whole, generator)
        alpha = whole if batch is None or own is None else whole[own]
        if candidates is None:
            drawn_noise = draw.noise(len(whole), log_noise, source.num_classes, alpha.device, generator)
        score_temperature = temperature / draw.scale
        score_noise = None if log_noise is None else log_noise * draw.scale
    weight, total = _weights(
        source, alpha, whole, None if batch is None else own, sample_weight, class_weight, contrast
    )

    # Candidates.
    place: Place | None = None
    if contrast != "classes" and not isinstance(candidates, SoftTargets):
        place = range(len(alpha)) if batch is None else own
    uses_batch = candidates is None and drawn_noise is None
    if isinstance(candidates, Candidates):
        uses_batch = candidates.uses_batch
    form = others or ("mean" if isinstance(source, Logits) else "drawn")
    everyone: Tensor | None = None
    if exchange is not None and _counts_suffice(contrast, source, candidates, form) and not gather:
        everyone = exchange.class_counts(whole)
    elif exchange is not None and contrast != "classes" and (uses_batch or gather):
        whole, start = exchange.gather(whole)
        if place is not None:
            place = range(start, start + len(place)) if isinstance(place, range) else place + start

    # Contrast.
    if contrast == "classes":
        losses = source.cross_entropy(score_temperature, None, alpha, class_weight)
    elif contrast == "geometric" and isinstance(candidates, ClassCandidates) and candidates.are_plain_vertices:
        losses = source.cross_entropy(score_temperature, score_noise, alpha)
    else:
        # A plain mean is taken where the losses are made, which saves operations and a pass over the gradient.
        is_plain = weight is None and total is None and exchange is None
        inner: Reduced = "mean" if reduction == "mean" and is_plain else "none"
        groups, place = _groups(candidates, drawn_noise, whole, place, alpha, own, label_smoothing, batch, generator)
        count = candidates.noise_count if isinstance(candidates, Candidates) else 0.0
        if contrast == "arithmetic":
            if candidates is None and form == "mean":
                count = float(source.num_classes)
            eta = _smoothed_noise(score_noise, label_smoothing)
            rest = in_the_mean(groups, place, alpha, count, eta)
            if everyone is not None:
                rest = replace(rest, groups=[], noise_mass=everyone + rest.noise_mass)
            if form == "drawn":
                if batch is not None and generator is None and not all(group.is_hard for group in groups):
                    raise ValueError(
                        "others='drawn' with batch needs a generator, in the same state for every micro-batch"
                    )
                rest = drawn(groups, place, alpha, count, eta, generator)
            losses = source.expected(score_temperature, eta, alpha, rest, chunk_size, inner)
        elif count:
            raise ValueError(
                "NoiseCandidates are candidates in expectation, which only ExpectedInfoNCE can count; for this loss "
                f"draw them: SampledCandidates({count:g}, noise_probs)"
            )
        else:
            losses = source.geometric(
                score_temperature, score_noise, alpha, groups, place, remove_accidental_hits, chunk_size, inner
            )
        if inner == "mean":
            return losses, whole

    # Reduce.
    if exchange is not None and reduction != "none":
        return _reduce_over_ranks(losses, weight, total, reduction, source, temperature, exchange), whole
    return _reduce(losses, weight, total, reduction, source.shape), whole


def _counts_suffice(
    contrast: Contrast, source: Logits | Table, candidates: Candidates | SoftTargets | None, form: OthersForm
) -> bool:
    """Whether of the other ranks' targets only the class counts matter: in the expected contrast with their mean."""
    return contrast == "arithmetic" and isinstance(source, Logits) and candidates is None and form == "mean"


def _groups(
    candidates: Candidates | SoftTargets | None,
    drawn_noise: SoftTargets | None,
    whole: SoftTargets,
    place: Place | None,
    alpha: SoftTargets,
    own: Tensor | None,
    label_smoothing: float,
    batch: SoftTargets | None,
    generator: torch.Generator | None,
) -> tuple[list[SoftTargets], Place | None]:
    """What the rows are contrasted with, and where their own targets are among it, if they are."""
    if drawn_noise is not None:
        return [drawn_noise], None
    if candidates is None:
        return [whole], place
    if isinstance(candidates, Candidates):
        assert place is not None
        groups, held = candidates(whole, as_positions(place, alpha.device), generator)
        return groups, held
    check_group(candidates, alpha.num_classes, alpha.device, "candidates")
    if own is None or batch is not None:
        return [candidates], None
    held = candidates.smooth(label_smoothing).detach()  # they hold the rows' targets, so they are smoothed alike
    check_own(held, own, alpha, "candidates")
    return [held], own


def _smoothed_noise(log_noise: Tensor | None, label_smoothing: float) -> Tensor | None:
    """log η of targets that are smoothed towards uniform."""
    if log_noise is None or label_smoothing == 0:
        return log_noise
    return ((1 - label_smoothing) * log_noise.exp() + label_smoothing / len(log_noise)).log()


def _weights(
    source: Logits | Table,
    alpha: SoftTargets,
    whole: SoftTargets,
    own: Tensor | None,
    sample_weight: Tensor | None,
    class_weight: Tensor | None,
    contrast: Contrast,
) -> tuple[Tensor | None, Tensor | None]:
    """The weight of each row's loss, (N,) or None for 1, and what the mean divides by, None for the number of rows."""
    if own is None:
        weight = _batch_weight(alpha, source.shape, sample_weight, class_weight, contrast)
        divisor = _mean_weight(alpha, weight, class_weight, contrast)
        return weight, None if divisor is None else total_weight(len(alpha), divisor, source.rows)
    weight = _batch_weight(whole, torch.Size([len(whole)]), sample_weight, class_weight, contrast)
    divisor = _mean_weight(whole, weight, class_weight, contrast)
    return None if weight is None else weight[own], total_weight(len(whole), divisor, source.rows)


def _batch_weight(
    targets: SoftTargets,
    shape: torch.Size,
    sample_weight: Tensor | None,
    class_weight: Tensor | None,
    contrast: Contrast,
) -> Tensor | None:
    weight = row_weight(targets, shape, sample_weight)
    if class_weight is None or contrast == "classes":  # cross-entropy weighs the classes itself
        return weight
    return times(weight, targets.expectation(class_weight))


def _mean_weight(
    targets: SoftTargets, weight: Tensor | None, class_weight: Tensor | None, contrast: Contrast
) -> Tensor | None:
    """What the mean sums in its denominator: in a cross-entropy of labels the weights of their classes too."""
    if contrast == "classes" and class_weight is not None and targets.form == LABELS:
        return times(weight, class_weight[targets.labels])
    return weight


def _reduce(
    losses: Tensor, weight: Tensor | None, total: Tensor | None, reduction: Reduction, shape: torch.Size
) -> Tensor:
    """Losses (N,) to what ``reduction`` asks for. If every sample is ignored, the mean is 0, not NaN."""
    weighted = losses if weight is None else losses * weight.to(losses.dtype)
    if reduction == "none":
        return weighted.reshape(shape)
    if reduction == "sum":
        return weighted.sum()
    return weighted.mean() if total is None else divide(weighted.sum(), total)


def _reduce_over_ranks(
    losses: Tensor,
    weight: Tensor | None,
    total: Tensor | None,
    reduction: Reduction,
    source: Logits | Table,
    temperature: float | Tensor,
    exchange: _ranks.Exchange,
) -> Tensor:
    """The reduction over the rows of all ranks; its gradient is right once those of the ranks are averaged or added up.

    The value shown is that of all ranks; where gradients are added up, values are too, and this rank's share is shown.
    """
    total = total_weight(len(losses), weight, source.rows) if total is None else total
    # The empty sum connects a rank without rows to its model, whose gradients DDP waits for; 0·τ likewise.
    mine = _reduce(losses, weight, None, "sum", source.shape) + source.rows[:0].sum() + 0.0 * temperature
    everyone = exchange.all_sum(torch.stack([mine.detach(), total.to(mine.dtype)]))
    if reduction == "mean":
        mine, shown = divide(mine, everyone[1]), divide(everyone[0], everyone[1])
    else:
        shown = everyone[0]
    if exchange.scaling == "sum":
        return mine
    mine = exchange.world * mine
    return mine + (shown - mine).detach()
