r"""The one question behind every loss: which of these candidate targets belongs to this sample?

With class scores :math:`s_{ik} = \text{logit}_{ik}/\tau - \log \eta_k` and the score
:math:`\sigma_i(c) = \sum_k c_k s_{ik}` of a target c, the loss of row i with its own target :math:`\alpha_i` is

.. math:: \ell_i = \log\Big(1 + \sum_{c \in C,\; c \neq \text{own}} e^{\sigma_i(c) - \sigma_i(\alpha_i)}\Big).

The row's own target is the 1: it counts exactly once, whether or not the candidates hold it. Only differences of scores
enter, so whatever adds the same number to every candidate, such as a shared label smoothing, is never computed.
"""

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from softnce._precision import at_least_float32, full_precision
from softnce._rows import Place, as_positions
from softnce._scores.blocks import Direction, LogSumExp, excluded
from softnce._scores.classes import class_scores
from softnce._scores.kernel import Reduced, blank, evaluate, finite, reduced
from softnce._scores.product import Product
from softnce.targets._background import is_zero
from softnce.targets._equality import Distinct, distinct, numbered
from softnce.targets.soft_targets import DENSE, LABELS, SoftTargets

SMALL = 1 << 16
"""Logits up to which torch's cross-entropy is quicker than the kernel: there launching operations takes the time."""
SMALL_PRODUCT = 1 << 23
"""Rows × candidates × classes up to which, on a CPU, it is quicker for other candidates too, scored by one product."""
PAIR = 16
"""Classes that a product with dense rows works through in the time of one pair."""
MANY = {"cpu": 1 << 26}
"""Scores of candidates in a step from which a warning says what costs less, by device …"""
MANY_ELSEWHERE = 1 << 30
"""… and on accelerators."""


def contrast(
    logits: Tensor,
    temperature: float | Tensor,
    log_noise: Tensor | None,
    targets: SoftTargets,
    candidates: Sequence[SoftTargets],
    own: Place | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
    reduction: Reduced = "none",
) -> Tensor:
    """ℓ of every row, (N,), or their mean, against all the ``candidates``, given in groups.

    ``own`` (N,) is the position of each row's own target among all candidates, counted through the groups; None when
    none of them is. Accidental hits are other candidates equal to the row's own target. ``chunk_size`` rows are worked
    on at a time, by default as many as the cache holds.

    Time for N rows and a group of M candidates: O(N·K) when rows and group are equally smoothed labels and K ≤ 2·M;
    O(N·M·S) for S pairs; one (N, K) × (K, M) product when dense, or when classes are fewer than 16·S. On a CPU equal
    candidates are counted, so M is the number of distinct ones: at most K² after MixUp with one λ. Memory beyond the
    gradient: a chunk of rows × M, and N × M where K > 2·M·S. A background that is not the same for the rows and a group
    costs O(N·K) once.
    """
    with full_precision(logits.device):
        groups = [group for group in candidates if len(group)]
        if not groups or len(logits) == 0:
            zeros = class_scores(logits, temperature)[:, :0].sum(1)  # connected to the graph of autograd all the same
            return reduced(zeros, reduction)
        if isinstance(temperature, Tensor):  # it may be learned
            logits, temperature = class_scores(finite(blank(logits, targets.mask)), temperature), 1.0
        if len(groups) == 1 and own is not None and not remove_accidental_hits:
            (group,) = groups
            if _are_counted(targets, group):
                return _label_losses(logits, temperature, log_noise, targets, group, chunk_size, reduction)
            if chunk_size is None and _is_small(logits, targets, group):
                return _product_losses(logits, temperature, log_noise, group, own, reduction)
        dtype = at_least_float32(logits.dtype)
        own = None if own is None else as_positions(own, logits.device)
        numbers = numbered(targets, groups) if remove_accidental_hits else None
        kernels, start = [], 0
        for group in groups:
            once = None
            if numbers is None and len(logits) * len(group) > SMALL:
                once = distinct(group)
            if once is None:
                kernel = _kernel(logits, temperature, log_noise, targets, group)
                kernel.mask = group.mask
            else:
                kernel = _kernel(logits, temperature, log_noise, targets, once.targets)
                log_counts = once.counts.log().clamp(min=excluded(dtype)).to(dtype)
                kernel.offset = log_counts if kernel.offset is None else kernel.offset + log_counts
            if own is not None:
                place = own if len(groups) == 1 else own - start
                kernel.position, kernel.discount = _own_place(place, len(group), once, logits, len(groups) == 1)
            if numbers is not None:
                kernel.hits = numbers[0][:, None] == numbers[1][start : start + len(group)]
            kernel.chunk_size = chunk_size
            kernels.append(kernel)
            start += len(group)
        _warn_of_many(len(logits) * sum(kernel.candidates() for kernel in kernels), logits.device)
        parts = [evaluate(logits, kernel, targets.mask) for kernel in kernels]
        rest = parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)
        losses = F.softplus(rest, threshold=50)  # log(1 + e^rest)
        return reduced(losses, reduction)


def _own_place(
    place: Tensor, size: int, once: Distinct | None, logits: Tensor, all_inside: bool
) -> tuple[Tensor, Tensor]:
    """Where each row's own target is among the ``size`` candidates of a group, and log (n − 1)/n where it is counted n
    times. Where ``place`` is not among them the own target is in another group, and the second is 0."""
    dtype = at_least_float32(logits.dtype)
    inside: Tensor | bool = True
    if not all_inside:
        inside = (place >= 0) & (place < size)
        place = place.clamp(0, size - 1)
    if once is None:
        lost = torch.full_like(place, excluded(dtype), dtype=dtype)
    else:
        place = once.place[place]
        lost = (1 - 1 / once.counts[place].clamp(min=1)).log().clamp(min=excluded(dtype)).to(dtype)
    return place, lost if all_inside else inside * lost


def _are_counted(targets: SoftTargets, group: SoftTargets) -> bool:
    """Whether class counts are all that matters of the candidates, and the quicker way."""
    are_labels = targets.form == LABELS == group.form
    return are_labels and targets.shares_background(group) and group.num_classes <= 2 * len(group)


def _label_losses(
    logits: Tensor,
    temperature: float,
    log_noise: Tensor | None,
    targets: SoftTargets,
    group: SoftTargets,
    chunk_size: int | None,
    reduction: Reduced,
) -> Tensor:
    """ℓ of labels y against labels that hold them, from the group's class counts n.

    ℓ = −s_y + log Σ_k n_k exp s_k: the candidates are the K classes, each as often as it occurs. O(N·K).
    """
    assert isinstance(targets.smoothing, float)
    dtype = at_least_float32(logits.dtype)
    sharpness = 1 - targets.smoothing
    label = targets.labels
    labels = label if group is targets else group.labels
    counted = labels.new_ones(labels.shape, dtype=dtype) if group.mask is None else group.mask.to(dtype)
    counts = torch.zeros(group.num_classes, dtype=dtype, device=logits.device).index_add_(0, labels, counted)
    # The lowest number instead of −∞ for n = 0, so that gradients stay finite when all classes are empty.
    log_counts = counts.log_().clamp_(min=torch.finfo(dtype).min)
    shift = None
    if log_noise is not None:
        shift = log_noise.to(dtype) if sharpness == 1 else sharpness * log_noise.to(dtype)
    offset = log_counts if shift is None else log_counts - shift
    if logits.numel() <= SMALL and targets.mask is None is group.mask and chunk_size is None:
        scores = torch.add(offset, logits.to(dtype), alpha=sharpness / temperature)
        own_logs = log_counts[label]
        losses = F.cross_entropy(scores, label, reduction=reduction)
        return losses + reduced(own_logs, reduction)
    own_offset = None if shift is None else -shift[label]
    kernel = LogSumExp(sharpness / temperature, None, None, targets.classes, None, offset, own_offset)
    kernel.chunk_size = chunk_size
    return evaluate(logits, kernel, targets.mask, reduction)


def _is_small(logits: Tensor, targets: SoftTargets, group: SoftTargets) -> bool:
    """Whether the candidates are few enough for one product, and differ in what :meth:`SoftTargets.foreground` has."""
    if logits.numel() * len(group) > SMALL_PRODUCT or logits.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if torch.get_float32_matmul_precision() != "highest":  # a product would round the scores, picked columns are exact
        return False
    return targets.mask is None is group.mask and targets.shares_background(group)


def _product_losses(
    logits: Tensor,
    temperature: float,
    log_noise: Tensor | None,
    group: SoftTargets,
    own: Place,
    reduction: Reduced,
) -> Tensor:
    """ℓ against a group that holds the rows' own targets, all scored at once."""
    dtype, places = at_least_float32(logits.dtype), as_positions(own, logits.device)
    if group.form == LABELS:
        assert isinstance(group.smoothing, float)
        sharpness = 1 - group.smoothing
        offset = None if log_noise is None else -sharpness * log_noise.to(dtype)[group.labels]
        kernel = Product(None, group.labels, sharpness / temperature, offset, places)
    else:
        rows = group.foreground(dtype)
        offset = None if log_noise is None else -(rows @ log_noise.to(dtype))
        kernel = Product(rows if temperature == 1 else rows / temperature, None, 1.0, offset, places)
    return evaluate(logits, kernel, None, reduction)


def _warn_of_many(scores: int, device: torch.device) -> None:
    if scores >= MANY.get(device.type, MANY_ELSEWHERE) and not torch.compiler.is_compiling():
        warnings.warn(
            f"{scores:,} scores, one per row and candidate: time grows with the square of the rows. ExpectedInfoNCE is "
            "linear in them, and so is this loss with labels, with one λ for all rows (on a CPU), or with "
            "candidates=SampledCandidates(1024)",
            stacklevel=2,
        )


def _kernel(
    logits: Tensor, temperature: float, log_noise: Tensor | None, targets: SoftTargets, group: SoftTargets
) -> LogSumExp:
    """What the kernel needs to score a group for these rows."""
    dtype = at_least_float32(logits.dtype)
    shared, index = targets.shares_background(group), group.index
    offset = own_offset = None
    if log_noise is not None:
        noise = -log_noise.to(dtype)
        own_offset = targets.expectation(noise, background=not shared)
        offset = own_offset if group is targets else group.expectation(noise, background=not shared)
    if shared and group.form == LABELS == targets.form and isinstance(group.smoothing, float):
        # Labels: one weight for all, hence no weights.
        scale, weight, own_weight, directions = (1 - group.smoothing) / temperature, None, None, []
    else:
        scale = 1 / temperature
        weight, flat = _above_lowest(group, scale, dtype)
        own_weight, own_flat = (weight, flat) if group is targets else _above_lowest(targets, scale, dtype)
        directions = _directions(targets, group, scale, shared, flat, own_flat, dtype)
        if index is not None and group.num_classes < PAIR * index.shape[1]:
            index, weight = None, SoftTargets(group.num_classes, index, weight).foreground()
    return LogSumExp(scale, index, weight, targets.index, own_weight, offset, own_offset, directions=directions)


def _above_lowest(targets: SoftTargets, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The weights of dense rows above each row's lowest, and that lowest; pairs as they are; times ``scale``.

    When most classes are at the lowest, as after label smoothing, a sum over what lies above it rounds far less, and
    what all classes have in common cancels between rows that were smoothed alike.
    """
    weight = targets.pair_weight(dtype)
    weight = weight if scale == 1 else weight * scale
    if targets.form != DENSE:
        return weight, None
    lowest = weight.amin(1)
    return weight - lowest[:, None], lowest


def _directions(
    targets: SoftTargets,
    group: SoftTargets,
    scale: float,
    shared: bool,
    flat: Tensor | None,
    own_flat: Tensor | None,
    dtype: torch.dtype,
) -> list[Direction]:
    """What rows and candidates have along common vectors: of all classes alike, and of the backgrounds."""
    directions = [] if flat is None and own_flat is None else [Direction(None, flat, own_flat)]
    if shared:
        return directions
    mass, own_mass = (_mass_along(t, scale, dtype) for t in (group, targets))
    if mass is not None and own_mass is not None and group.shares_dist(targets):
        return [*directions, Direction(_vector(group, dtype), mass, own_mass)]
    if mass is not None:
        directions.append(Direction(_vector(group, dtype), mass, None))
    if own_mass is not None:
        directions.append(Direction(_vector(targets, dtype), None, own_mass))
    return directions


def _vector(targets: SoftTargets, dtype: torch.dtype) -> Tensor | None:
    """ξ, or None for the vector of ones along which a uniform background lies."""
    return None if targets.smoothing_dist is None else targets.smoothing_dist.to(dtype)


def _mass_along(targets: SoftTargets, scale: float, dtype: torch.dtype) -> Tensor | None:
    """How far each row goes along :func:`_vector`, times ``scale``; None where there is no background."""
    if is_zero(targets.smoothing):
        return None
    return targets.background_mass(dtype) * (scale / targets.num_classes if targets.smoothing_dist is None else scale)
