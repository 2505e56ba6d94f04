r"""The one question behind every loss: which of these candidate targets belongs to this sample?

With class scores :math:`s_{ik}` (:func:`class_scores`) and the score :math:`\sigma_i(c) = \sum_k c_k s_{ik}` of a
target c, the loss of row i with its own target :math:`\alpha_i` is

.. math:: \ell_i = \log\Big(1 + \sum_{c \in C,\; c \neq \text{own}} e^{\sigma_i(c) - \sigma_i(\alpha_i)}\Big).

The row's own target is the 1: it counts exactly once, whether or not the candidates hold it. Only differences of
scores enter, so whatever adds the same number to every candidate, such as a shared label smoothing, is never computed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from softnce.targets import SoftTargets, is_zero, same_background


def class_scores(logits: Tensor, temperature: float | Tensor = 1.0, log_noise: Tensor | None = None) -> Tensor:
    """s = logits/τ − log η, (N, K), in float32 or better whatever autocast says.

    Without ``log_noise`` η is uniform; −log η is then one constant, which no loss here can see, and is left out.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if isinstance(temperature, Tensor) or temperature != 1.0:
        scores = scores / temperature
    return scores if log_noise is None else scores - log_noise.to(scores.dtype)


def contrast(
    scores: Tensor,
    targets: SoftTargets,
    candidates: Sequence[SoftTargets],
    own: Tensor | None = None,
    remove_accidental_hits: bool = False,
) -> Tensor:
    """ℓ of every row, (N,), against all the ``candidates``, given in groups.

    ``own`` (N,) is the position of each row's own target among all candidates, counted through the groups; None when
    none of them is. Accidental hits are other candidates equal to the row's own target.

    Time and memory for N rows and a group of M candidates: O(N·K + M) when rows and group are equally smoothed labels;
    O(N·M·S) time and O(N·M) memory for S pairs; one (N, K) × (K, M) product when dense. A background that is not the
    same for the rows and a group costs O(N·K) once.
    """
    groups = [group for group in candidates if len(group)]
    identity = _identities(targets, groups) if remove_accidental_hits else None
    parts, start = [], 0
    for group in groups:
        stop = start + len(group)
        if _are_labels(targets, group):
            mine = None if own is None else (own >= start) & (own < stop)
            parts.append(_label_logsumexp(scores, targets, group, mine, remove_accidental_hits))
        else:
            hits = None
            if identity is not None:
                hits = identity[0][:, None] == identity[1][None, start:stop]
            position = None if own is None else own - start
            parts.append(_logsumexp(scores, targets, group, position, hits))
        start = stop
    if not parts:
        return scores.sum(1) * 0.0
    rest = parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)
    return torch.logaddexp(rest, rest.new_zeros(()))


def cross_entropy(scores: Tensor, targets: SoftTargets, class_weight: Tensor | None = None) -> Tensor:
    """−Σ_k α_k·log softmax(s)_k of every row, (N,); with ``class_weight`` w, −Σ_k w_k·α_k·log softmax(s)_k. O(N·K)."""
    log_probs = scores.log_softmax(1)
    if class_weight is not None:
        log_probs = log_probs * class_weight.to(log_probs.dtype)
    return -targets.expectation(log_probs)


def _are_labels(targets: SoftTargets, group: SoftTargets) -> bool:
    """Whether both are labels under one smoothing, so that only the group's class counts matter."""
    labels = all(t.index is not None and t.weight is None for t in (targets, group))
    return labels and same_background(targets, group)


def _label_logsumexp(
    scores: Tensor, targets: SoftTargets, group: SoftTargets, mine: Tensor | None, remove_hits: bool
) -> Tensor:
    """log Σ_c exp(σ(c) − σ(own)) over the group without the own target, from the group's class counts n:
    log Σ_k n_k exp((1 − ε)(s_k − s_y))."""
    assert targets.index is not None
    assert group.index is not None
    assert isinstance(targets.smoothing, float)
    ones = torch.ones_like(group.index[:, 0], dtype=scores.dtype) if group.mask is None else group.mask.to(scores.dtype)
    counts = scores.new_zeros(group.num_classes).index_add(0, group.index[:, 0], ones)
    if remove_hits:
        others = torch.zeros_like(targets.index, dtype=scores.dtype)
    else:
        others = counts[targets.index]
        if mine is not None:
            others = (others - mine[:, None].to(others.dtype)).clamp(min=0)
    difference = (1 - targets.smoothing) * (scores - scores.gather(1, targets.index))
    exponents = (difference + _log(counts)).scatter(1, targets.index, _log(others))
    return exponents.logsumexp(1)


def _logsumexp(
    scores: Tensor, targets: SoftTargets, group: SoftTargets, position: Tensor | None, hits: Tensor | None
) -> Tensor:
    """log Σ_c exp(σ(c) − σ(own)) over the group without the own target, through the (N, M) matrix of scores."""
    matrix, own_score = _pair_scores(scores, group), _own_scores(scores, targets)
    if not same_background(targets, group):
        matrix = matrix + _background_scores(scores, group)
        own_score = own_score + _background_scores(scores, targets, own=True)
    exponents = matrix - own_score[:, None]
    if group.index is None or targets.index is None:
        # A dense row was scored above its lowest weight; what all its classes have in common comes in here. It
        # cancels when rows were smoothed alike, as MixUp with label smoothing does.
        exponents = exponents + (_lowest(group, scores) - _lowest(targets, scores)[:, None]) * scores.sum(
            1, keepdim=True
        )
    lowest = torch.finfo(exponents.dtype).min
    if group.mask is not None:
        exponents = exponents.masked_fill(~group.mask, lowest)
    if hits is not None:
        exponents = exponents.masked_fill(hits, lowest)
    if position is not None:
        column = torch.arange(len(group), device=scores.device)
        exponents = exponents.masked_fill(column == position[:, None], lowest)
    return exponents.logsumexp(1)


def _pair_scores(scores: Tensor, group: SoftTargets) -> Tensor:
    """Σ_j w_cj·s_{i, index_cj} for all rows i and candidates c, (N, M), without the background."""
    weight = group.pair_weight(scores.dtype)
    if group.index is None:
        with torch.autocast(scores.device.type, enabled=False):
            return scores @ (weight - _lowest(group, scores)[:, None]).t()
    columns = group.index.unbind(1)
    matrix = scores.index_select(1, columns[0]) * weight[:, 0]
    for j, column in enumerate(columns[1:], 1):
        matrix = matrix + scores.index_select(1, column) * weight[:, j]
    return matrix


def _own_scores(scores: Tensor, targets: SoftTargets) -> Tensor:
    """Σ_j w_ij·s_{i, index_ij} for every row i, (N,), without the background."""
    weight = targets.pair_weight(scores.dtype)
    if targets.index is None:
        return ((weight - _lowest(targets, scores)[:, None]) * scores).sum(1)
    return (weight * scores.gather(1, targets.index)).sum(1)


def _lowest(targets: SoftTargets, scores: Tensor) -> Tensor:
    """The lowest weight of each dense row, 0 for pairs. A sum over what lies above it rounds far less."""
    if targets.index is not None:
        return scores.new_zeros(1)
    return targets.pair_weight(scores.dtype).amin(1)


def _background_scores(scores: Tensor, targets: SoftTargets, own: bool = False) -> Tensor:
    """ε_c·Σ_k ξ_k s_ik: for every row against every candidate, (N, M), or for each row's own target, (N,)."""
    if is_zero(targets.smoothing):
        return scores.new_zeros(())
    mean, mass = targets.background_mean(scores), targets.background_mass(scores.dtype)
    return mass * mean if own else mean[:, None] * mass


def _identities(targets: SoftTargets, groups: Sequence[SoftTargets]) -> tuple[Tensor, Tensor]:
    """A number for each row and each candidate, equal where the targets are."""
    everything = SoftTargets.cat([targets, *groups])
    weight = everything.pair_weight(torch.float64)
    mass = everything.background_mass(torch.float64)[:, None]
    if everything.index is None:
        rows = torch.cat([weight, mass], 1)
    else:
        # One form for one target: a class named twice is merged, an empty pair forgotten, the rest sorted by class.
        same = everything.index[:, :, None] == everything.index[:, None, :]
        merged = (same * weight[:, None, :]).sum(2)
        first = same.int().argmax(2) == torch.arange(weight.shape[1], device=weight.device)
        kept = first & (merged > 0)
        classes, order = torch.where(kept, everything.index, everything.num_classes).sort(1)
        rows = torch.cat([classes.double(), torch.where(kept, merged, 0).gather(1, order), mass], 1)
    numbers = torch.unique(rows, dim=0, return_inverse=True)[1]
    return numbers[: len(targets)], numbers[len(targets) :]


def _log(counts: Tensor) -> Tensor:
    """log n, and the lowest number instead of −∞ for n = 0, so that gradients stay finite when all are empty."""
    return torch.where(counts > 0, counts.clamp(min=1).log(), torch.finfo(counts.dtype).min)
