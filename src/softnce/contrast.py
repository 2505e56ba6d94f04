r"""The one question behind every loss: which of these candidate targets belongs to this sample?

With class scores :math:`s_{ik} = \text{logit}_{ik}/\tau - \log \eta_k` and the score
:math:`\sigma_i(c) = \sum_k c_k s_{ik}` of a target c, the loss of row i with its own target :math:`\alpha_i` is

.. math:: \ell_i = \log\Big(1 + \sum_{c \in C,\; c \neq \text{own}} e^{\sigma_i(c) - \sigma_i(\alpha_i)}\Big).

The row's own target is the 1: it counts exactly once, whether or not the candidates hold it. Only differences of scores
enter, so whatever adds the same number to every candidate, such as a shared label smoothing, is never computed.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from softnce.kernel import Direction, Problem, logsumexp
from softnce.targets import SoftTargets, is_zero, same_background, same_dist

SMALL = 1 << 16
"""Logits up to which torch's cross-entropy is quicker than the kernel: there launching operations takes the time."""


def class_scores(logits: Tensor, temperature: float | Tensor = 1.0, log_noise: Tensor | None = None) -> Tensor:
    """s = logits/τ − log η, (N, K), in float32 or better whatever autocast says.

    Without ``log_noise`` η is uniform; −log η is then one constant, which no loss here can see, and is left out.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if isinstance(temperature, Tensor) or temperature != 1.0:
        scores = scores / temperature
    return scores if log_noise is None else scores - log_noise.to(scores.dtype)


def contrast(
    logits: Tensor,
    temperature: float | Tensor,
    log_noise: Tensor | None,
    targets: SoftTargets,
    candidates: Sequence[SoftTargets],
    own: Tensor | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """ℓ of every row, (N,), against all the ``candidates``, given in groups.

    ``own`` (N,) is the position of each row's own target among all candidates, counted through the groups; None when
    none of them is. Accidental hits are other candidates equal to the row's own target. ``chunk_size`` rows are worked
    on at a time, by default as many as the cache holds.

    Time for N rows and a group of M candidates: O(N·K) when rows and group are equally smoothed labels and K ≤ 2·M;
    O(N·M·S) for S pairs; one (N, K) × (K, M) product when dense. Memory beyond the gradient: a chunk of rows × M, and
    N × M where K > 2·M·S. A background that is not the same for the rows and a group costs O(N·K) once.
    """
    with full_precision(logits.device):
        groups = [group for group in candidates if len(group)]
        if not groups or len(logits) == 0:
            return class_scores(logits, temperature)[:, :0].sum(1)  # 0, yet of everything that will be trained
        if isinstance(temperature, Tensor):  # it may be learned
            logits, temperature = class_scores(logits, temperature), 1.0
        if len(groups) == 1 and own is not None and not remove_accidental_hits and _are_counted(targets, groups[0]):
            return _label_losses(logits, temperature, log_noise, targets, groups[0], chunk_size)
        numbers = identities(targets, groups) if remove_accidental_hits else None
        parts, start = [], 0
        for group in groups:
            problem = _problem(logits, temperature, log_noise, targets, group)
            problem.position = None if own is None else own - start
            if numbers is not None:
                problem.hits = numbers[0][:, None] == numbers[1][start : start + len(group)]
            problem.block = chunk_size
            parts.append(logsumexp(logits, problem))
            start += len(group)
        rest = parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)
        return torch.logaddexp(rest, rest.new_zeros(()))


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """No autocast: scores are sums of products, which half precision would ruin."""
    is_on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if is_on else nullcontext()


def cross_entropy(scores: Tensor, targets: SoftTargets, class_weight: Tensor | None = None) -> Tensor:
    """−Σ_k α_k·log softmax(s)_k of every row, (N,); with ``class_weight`` w, −Σ_k w_k·α_k·log softmax(s)_k. O(N·K)."""
    log_probs = scores.log_softmax(1)
    if class_weight is not None:
        log_probs = log_probs * class_weight.to(log_probs.dtype)
    return -targets.expectation(log_probs)


def _are_counted(targets: SoftTargets, group: SoftTargets) -> bool:
    """Whether class counts are all that matters of the candidates, and the quicker way."""
    labels = all(t.index is not None and t.weight is None for t in (targets, group))
    return labels and same_background(targets, group) and group.num_classes <= 2 * len(group)


def _label_losses(
    logits: Tensor,
    temperature: float,
    log_noise: Tensor | None,
    targets: SoftTargets,
    group: SoftTargets,
    chunk_size: int | None,
) -> Tensor:
    """ℓ of labels y against labels that hold them, from the group's class counts n.

    ℓ = −s_y + log Σ_k n_k exp s_k: the candidates are the K classes, each as often as it occurs. O(N·K).
    """
    assert targets.index is not None
    assert group.index is not None
    assert isinstance(targets.smoothing, float)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    sharpness = 1 - targets.smoothing
    label, labels = targets.index[:, 0], group.index[:, 0]
    ones = torch.ones_like(labels, dtype=dtype) if group.mask is None else group.mask.to(dtype)
    counts = torch.zeros(group.num_classes, dtype=dtype, device=logits.device).index_add_(0, labels, ones)
    # The lowest number instead of −∞ for n = 0, so that gradients stay finite when all classes are empty.
    log_counts = counts.log_().clamp_(min=torch.finfo(dtype).min)
    shift = None if log_noise is None else sharpness * log_noise.to(dtype)
    offset = log_counts if shift is None else log_counts - shift
    if logits.numel() <= SMALL and group.mask is None and chunk_size is None:
        scores = torch.add(offset, logits.to(dtype), alpha=sharpness / temperature)
        return F.cross_entropy(scores, label, reduction="none") + log_counts[label]
    problem = Problem(
        scale=sharpness / temperature, index=None, weight=None, own_index=targets.index, own_weight=None,
        offset=offset, own_offset=None if shift is None else -shift[label], directions=[], mask=None, block=chunk_size,
    )  # fmt: skip
    return logsumexp(logits, problem)


def _problem(
    logits: Tensor, temperature: float, log_noise: Tensor | None, targets: SoftTargets, group: SoftTargets
) -> Problem:
    """What the kernel needs to score a group for these rows."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    shared = same_background(targets, group)
    offset = own_offset = None
    if log_noise is not None:
        offset, own_offset = (-t.expectation(log_noise.to(dtype), background=not shared) for t in (group, targets))
    if shared and group.weight is None and targets.weight is None and isinstance(group.smoothing, float):
        # Labels: one weight for all, hence no weights.
        scale, weight, own_weight, directions = (1 - group.smoothing) / temperature, None, None, []
    else:
        scale = 1 / temperature
        weight, flat = _above_lowest(group, dtype)
        own_weight, own_flat = _above_lowest(targets, dtype)
        directions = _directions(targets, group, shared, flat, own_flat, dtype)
    return Problem(scale, group.index, weight, targets.index, own_weight, offset, own_offset, directions, group.mask)


def _above_lowest(targets: SoftTargets, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The weights of dense rows above each row's lowest, and that lowest; pairs as they are.

    When most classes are at the lowest, as after label smoothing, a sum over what lies above it rounds far less, and
    what all classes have in common cancels between rows that were smoothed alike.
    """
    weight = targets.pair_weight(dtype)
    if targets.index is not None:
        return weight, None
    lowest = weight.amin(1)
    return weight - lowest[:, None], lowest


def _directions(
    targets: SoftTargets,
    group: SoftTargets,
    shared: bool,
    flat: Tensor | None,
    own_flat: Tensor | None,
    dtype: torch.dtype,
) -> list[Direction]:
    """What rows and candidates have along common vectors: of all classes alike, and of the backgrounds."""
    directions = [] if flat is None and own_flat is None else [Direction(None, flat, own_flat)]
    if shared:
        return directions
    mass, own_mass = (_mass_along(t, dtype) for t in (group, targets))
    if mass is not None and own_mass is not None and same_dist(group, targets):
        return [*directions, Direction(_vector(group, dtype), mass, own_mass)]
    if mass is not None:
        directions.append(Direction(_vector(group, dtype), mass, None))
    if own_mass is not None:
        directions.append(Direction(_vector(targets, dtype), None, own_mass))
    return directions


def _vector(targets: SoftTargets, dtype: torch.dtype) -> Tensor | None:
    """ξ, or None for the vector of ones along which a uniform background lies."""
    return None if targets.smoothing_dist is None else targets.smoothing_dist.to(dtype)


def _mass_along(targets: SoftTargets, dtype: torch.dtype) -> Tensor | None:
    """How far each row goes along :func:`_vector`, None where there is no background."""
    if is_zero(targets.smoothing):
        return None
    mass = targets.background_mass(dtype)
    return mass / targets.num_classes if targets.smoothing_dist is None else mass


def identities(targets: SoftTargets, groups: Sequence[SoftTargets]) -> tuple[Tensor, Tensor]:
    """A number for each row and each candidate, equal where the targets are, to within 1e-5 of a weight.

    Mixing a target with itself leaves a rounding error, which must not make it another target. O((N + M)·S²), or
    O((N + M)·K) where some are dense.
    """
    members = [targets, *groups]
    if any(member.index is None for member in members) or not all(same_dist(targets, group) for group in groups):
        rows = _rounded(torch.cat([member.dense(torch.float64) for member in members]))
    else:
        everything = SoftTargets.cat(members)
        assert everything.index is not None
        weight = everything.pair_weight(torch.float64)
        # One form for one target: a class named twice is merged, an empty pair forgotten, the rest sorted by class.
        same = everything.index[:, :, None] == everything.index[:, None, :]
        merged = _rounded((same * weight[:, None, :]).sum(2))
        first = same.int().argmax(2) == torch.arange(weight.shape[1], device=weight.device)
        kept = first & (merged > 0)
        classes, order = torch.where(kept, everything.index, everything.num_classes).sort(1)
        mass = _rounded(everything.background_mass(torch.float64)[:, None])
        rows = torch.cat([classes.double(), torch.where(kept, merged, 0).gather(1, order), mass], 1)
    numbers = torch.unique(rows, dim=0, return_inverse=True)[1]
    return numbers[: len(targets)], numbers[len(targets) :]


def _rounded(weights: Tensor) -> Tensor:
    return (weights * 1e5).round()
