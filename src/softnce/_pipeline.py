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
from softnce._scores.kernel import Reduced, reduced
from softnce._scores.logits import Logits
from softnce._scores.others import Others, drawn, in_the_mean
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
    noise_is_running: bool = False,
) -> tuple[Tensor, SoftTargets]:
    """The loss, and the targets of the whole batch as they were contrasted: smoothed and drawn.

    Args:
        hard_labels_of: name of a loss that takes hard labels only; None: soft targets are welcome.
        exchange: the ranks that exchange targets, where candidates need them, and means; None: nothing is exchanged.
        noise_is_running: η is estimated from the targets returned. So they are those of all ranks, given an
            ``exchange``, and η is not smoothed: it is that of smoothed targets already.

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
    if contrast == "geometric" and isinstance(candidates, Candidates) and candidates.noise_count:
        raise ValueError(
            "NoiseCandidates are candidates in expectation, which only ExpectedInfoNCE can count; for this loss draw "
            f"them: SampledCandidates({candidates.noise_count:g}, noise_probs)"
        )
    if batch is None and own is not None and not isinstance(candidates, SoftTargets):
        raise ValueError("own gives positions in batch or in candidates, but neither is given as SoftTargets")
    if draw is not None and batch is not None and generator is None:
        raise ValueError("draw with batch needs a generator, in the same state for every micro-batch of the batch")
    check_class_weight(class_weight, source.num_classes)
    check_chunk_size(chunk_size)
    temperature = check_temperature(temperature)
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(())  # (1,) is allowed
    if log_noise is not None and len(log_noise) != source.num_classes:
        raise ValueError(f"noise_probs has {len(log_noise)} entries, but there are {source.num_classes} classes")
    if exchange is not None and isinstance(temperature, Tensor) and temperature.requires_grad:
        temperature = _ranks.share_gradient(temperature, exchange)

    # Rows: the targets α of this call, and those of the whole batch.
    alpha = source.accept(targets, label_smoothing, ignore_index)
    if contrast != "classes":
        alpha = alpha.detach()  # a target carries no gradient
    whole = alpha if batch is None else _whole_batch(batch, own, alpha, label_smoothing)
    own_in_batch, own_in_candidates = (None, own) if batch is None else (own, None)
    are_labels = hard_labels_of is not None or (isinstance(targets, Tensor) and not targets.is_floating_point())

    # Draw.
    drawn_noise = None
    if draw is not None:
        whole = draw.alpha(whole, generator)
        alpha = whole if own_in_batch is None else whole[own_in_batch]
        if candidates is None:
            drawn_noise = draw.noise(len(whole), log_noise, source.num_classes, alpha.device, generator)
    weight, total = _weights(source, whole, own_in_batch, sample_weight, class_weight, contrast, are_labels)

    # Candidates.
    uses_batch = candidates is None and drawn_noise is None
    if isinstance(candidates, Candidates):
        uses_batch = candidates.uses_batch
    form = others or ("mean" if isinstance(source, Logits) else "drawn")
    place: Place = range(len(alpha)) if own_in_batch is None else own_in_batch
    counts: Tensor | None = None
    if exchange is not None and contrast != "classes" and (uses_batch or noise_is_running):
        counts_suffice = contrast == "arithmetic" and form == "mean" and isinstance(source, Logits)
        if counts_suffice and candidates is None and not noise_is_running:
            counts = exchange.class_counts(whole)
        else:
            whole, place = _gathered(whole, place, exchange)
    if not noise_is_running and (contrast == "arithmetic" or (draw is not None and uses_batch)):
        log_noise = _smoothed_noise(log_noise, label_smoothing)  # the candidates are labels of smoothed targets

    # Contrast.
    score_temperature, score_noise = temperature, log_noise
    if draw is not None:
        score_temperature = temperature / draw.scale
        score_noise = None if log_noise is None else log_noise * draw.scale
    # A plain mean is taken where the losses are made, which saves operations and a pass over the gradient.
    is_plain = weight is None and total is None and exchange is None
    inner: Reduced = "mean" if reduction == "mean" and is_plain else "none"
    if contrast == "classes":
        losses = reduced(source.cross_entropy(score_temperature, None, alpha, class_weight), inner)
    elif contrast == "geometric" and isinstance(candidates, ClassCandidates) and candidates.are_plain_vertices:
        losses = reduced(source.cross_entropy(score_temperature, score_noise, alpha), inner)
    else:
        groups, held = _groups(
            candidates, drawn_noise, whole, place, alpha, own_in_candidates, label_smoothing, generator
        )
        if contrast == "geometric":
            losses = source.geometric(
                score_temperature, score_noise, alpha, groups, held, remove_accidental_hits, chunk_size, inner
            )
        else:
            if form == "drawn" and batch is not None and generator is None and not all(g.is_hard for g in groups):
                raise ValueError("others='drawn' with batch needs a generator, in the same state for every micro-batch")
            rest = _others(form, candidates, groups, held, counts, alpha, score_noise, generator)
            losses = source.expected(score_temperature, score_noise, alpha, rest, chunk_size, inner)
    if inner == "mean":
        return losses, whole

    # Reduce.
    if exchange is not None and reduction != "none":
        return _reduce_over_ranks(losses, weight, total, reduction, source, temperature, exchange), whole
    return _reduce(losses, weight, total, reduction, source.shape), whole


def _whole_batch(batch: SoftTargets, own: Tensor | None, alpha: SoftTargets, label_smoothing: float) -> SoftTargets:
    """The batch that ``alpha`` is the part ``own`` of, smoothed alike."""
    check_group(batch, alpha.num_classes, alpha.device, "batch")
    if own is None:
        raise ValueError("batch needs own, the positions of the rows in it")
    whole = batch.smooth(label_smoothing).detach()
    check_own(whole, own, alpha, "batch")
    return whole


def _weights(
    source: Logits | Table,
    whole: SoftTargets,
    own: Tensor | None,
    sample_weight: Tensor | None,
    class_weight: Tensor | None,
    contrast: Contrast,
    are_labels: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The weight of each row's loss, (N,) or None for 1, and what the mean divides by, None for the number of rows.

    The rows are those at ``own`` in the whole batch; None: all.
    """
    shape = source.shape if own is None else torch.Size([len(whole)])
    weight = divisor = row_weight(whole, shape, sample_weight)
    if class_weight is not None and contrast != "classes":
        weight = divisor = times(weight, whole.expectation(class_weight))
    elif class_weight is not None and are_labels and whole.form == LABELS:
        divisor = times(weight, class_weight[whole.labels])  # cross-entropy weighs the losses themselves
    if own is None:
        return weight, None if divisor is None else total_weight(len(whole), divisor, source.rows)
    return None if weight is None else weight[own], total_weight(len(whole), divisor, source.rows)


def _gathered(whole: SoftTargets, place: Place, exchange: _ranks.Exchange) -> tuple[SoftTargets, Place]:
    """The whole batch of all ranks, and where the rows of this call are in it."""
    whole, start = exchange.gather(whole)
    return whole, range(start, start + len(place)) if isinstance(place, range) else place + start


def _smoothed_noise(log_noise: Tensor | None, label_smoothing: float) -> Tensor | None:
    """log η of targets that are smoothed towards uniform."""
    if log_noise is None or label_smoothing == 0:
        return log_noise
    return ((1 - label_smoothing) * log_noise.exp() + label_smoothing / len(log_noise)).log()


def _groups(
    candidates: Candidates | SoftTargets | None,
    drawn_noise: SoftTargets | None,
    whole: SoftTargets,
    place: Place,
    alpha: SoftTargets,
    own: Tensor | None,
    label_smoothing: float,
    generator: torch.Generator | None,
) -> tuple[list[SoftTargets], Place | None]:
    """What the rows are contrasted with, and where their own targets are among it, if they are.

    Those are at ``place`` in the whole batch and at ``own`` in ``candidates`` given as SoftTargets.
    """
    if drawn_noise is not None:
        return [drawn_noise], None
    if candidates is None:
        return [whole], place
    if isinstance(candidates, Candidates):
        groups, held = candidates(whole, as_positions(place, alpha.device), generator)
        return groups, held
    check_group(candidates, alpha.num_classes, alpha.device, "candidates")
    if own is None:
        return [candidates], None
    holder = candidates.smooth(label_smoothing).detach()  # they hold the rows' targets, so they are smoothed alike
    check_own(holder, own, alpha, "candidates")
    return [holder], own


def _others(
    form: OthersForm,
    candidates: Candidates | SoftTargets | None,
    groups: list[SoftTargets],
    held: Place | None,
    counts: Tensor | None,
    alpha: SoftTargets,
    log_noise: Tensor | None,
    generator: torch.Generator | None,
) -> Others:
    """The candidates of the expected contrast. ``counts`` (K,) are those of all ranks, in place of ``groups``."""
    noise_count = candidates.noise_count if isinstance(candidates, Candidates) else 0.0
    if form == "drawn":
        return drawn(groups, held, alpha, noise_count, log_noise, generator)
    if candidates is None:
        noise_count = float(alpha.num_classes)
    rest = in_the_mean(groups, held, alpha, noise_count, log_noise)
    return rest if counts is None else replace(rest, groups=[], noise_mass=counts + rest.noise_mass)


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
