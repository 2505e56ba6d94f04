r"""The contrast from embeddings and a table of label embeddings, without logits.

When the last layer is linear, logit_k = z·y_k + b_k, the score of a target is that of its mixed label embedding,
:math:`\sigma(c) = z \cdot \big(\sum_k c_k y_k\big)/\tau + \dots`: mix S rows of the table for each of the M candidates,
then take one (N, d) × (d, M) product. No step depends on K, and the table's gradient touches M·S rows. What all targets
have in common cancels, so a shared label smoothing needs no sum over the classes either.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from softnce.contrast import class_scores, cross_entropy, full_precision, identities
from softnce.targets import SoftTargets, is_zero, same_background


def linear_contrast(
    features: Tensor,
    table: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    log_noise: Tensor | None,
    targets: SoftTargets,
    candidates: Sequence[SoftTargets],
    own: Tensor | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
    sparse: bool = False,
    cosine: bool = False,
) -> Tensor:
    """ℓ of every row, (N,), of ``features`` (N, d) and label embeddings ``table`` (K, d). See ``contrast``.

    Time O(N·M·d + M·S·d), memory O(N·M + M·S·d), whatever K; with ``chunk_size`` rows at a time, recomputed in
    backward, O(chunk_size·M). Dense targets, and backgrounds that are not shared, cost O(K·d) more.
    """
    with full_precision(features.device):
        dtype = torch.promote_types(features.dtype, torch.float32)
        z = F.normalize(features.to(dtype), dim=1) if cosine else features.to(dtype)
        groups = [group for group in candidates if len(group)]
        if not groups or len(z) == 0:  # 0, yet of everything that will be trained
            mine = _mixed_embeddings(table, [targets], dtype, sparse, cosine)
            zeros = (z / temperature * mine)[:, :0].sum(1)
            return zeros if bias is None else zeros + bias[:0].sum()
        shared = all(same_background(targets, group) for group in groups)
        if sparse and not shared:
            raise ValueError("sparse=True needs targets and candidates that share their label smoothing")
        members = groups if own is not None else [*groups, targets]
        embeddings = _mixed_embeddings(table, members, dtype, sparse, cosine)
        offsets = _offsets(bias, log_noise, temperature, members, table, dtype, shared)
        if not shared:
            embeddings = embeddings + _background_embeddings(table, members, dtype, cosine)
        count = sum(map(len, groups))
        if own is None:
            mine, my_offset = embeddings[count:], offsets[count:]
            embeddings, offsets = embeddings[:count], offsets[:count]
        else:
            mine, my_offset = embeddings[own], offsets[own]
        mask = SoftTargets.joint_mask(groups)
        numbers = identities(targets, groups) if remove_accidental_hits else (None, None)
        z = z / temperature
        own_score = (z * mine).sum(1) + my_offset

        def rest(rows: slice) -> tuple[Tensor | None, ...]:
            return (
                z[rows],
                embeddings,
                offsets,
                own_score[rows],
                mask,
                None if own is None else own[rows],
                None if numbers[0] is None else numbers[0][rows],
                numbers[1],
            )

        if chunk_size is None:
            total = _rest(*rest(slice(None)))  # type: ignore[arg-type]
        else:
            parts = [
                checkpoint(_rest, *rest(slice(start, start + chunk_size)), use_reentrant=False)
                for start in range(0, len(z), chunk_size)
            ]
            total = torch.cat(parts)
        return torch.logaddexp(total, total.new_zeros(()))


def linear_cross_entropy(
    features: Tensor,
    table: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    log_noise: Tensor | None,
    targets: SoftTargets,
    sparse: bool,
    cosine: bool,
) -> Tensor:
    """The cross-entropy of every row, (N,), through all logits. O(N·K·d)."""
    if sparse:
        raise ValueError("sparse=True cannot be with class vertices as candidates: they touch every class")
    with full_precision(features.device):
        dtype = torch.promote_types(features.dtype, torch.float32)
        z, y = (F.normalize(v.to(dtype), dim=1) if cosine else v.to(dtype) for v in (features, table))
        logits = F.linear(z, y, None if bias is None else bias.to(dtype))
        return cross_entropy(class_scores(logits, temperature, log_noise), targets)


def _rest(
    z: Tensor,
    embeddings: Tensor,
    offsets: Tensor,
    own_score: Tensor,
    mask: Tensor | None,
    position: Tensor | None,
    number: Tensor | None,
    numbers: Tensor | None,
) -> Tensor:
    """log Σ_c exp(σ(c) − σ(own)) over the candidates without the own target, (N,)."""
    exponents = torch.addmm(offsets - own_score[:, None], z, embeddings.t())
    # Half the lowest number, so that it can be added once more without becoming −∞, whose differences are no numbers.
    excluded = torch.finfo(exponents.dtype).min / 2
    if mask is not None:
        exponents = exponents.masked_fill(mask.logical_not(), excluded)
    if number is not None and numbers is not None:
        exponents = exponents.masked_fill(number[:, None].eq(numbers), excluded)
    if position is not None:
        place = position[:, None]
        exponents = exponents.scatter_add(1, place, torch.full_like(place, excluded, dtype=exponents.dtype))
    return exponents.logsumexp(1)


def _mixed_embeddings(
    table: Tensor, members: Sequence[SoftTargets], dtype: torch.dtype, sparse: bool, cosine: bool
) -> Tensor:
    """Σ_j w_cj·y_{index_cj} of every target, (M, d), by one look-up in the table."""
    if any(member.index is None for member in members):
        if sparse:
            raise ValueError("sparse=True needs targets as pairs; dense rows touch every class (see SoftTargets)")
        whole = F.normalize(table.to(dtype), dim=1) if cosine else table.to(dtype)
        return torch.cat([member.foreground(dtype) @ whole for member in members])
    indices = [member.index for member in members if member.index is not None]
    rows = F.embedding(torch.cat([index.flatten() for index in indices]), table, sparse=sparse).to(dtype)
    if cosine:
        rows = F.normalize(rows, dim=1)
    pieces = rows.split([index.numel() for index in indices])
    return torch.cat([
        torch.einsum("cs,csd->cd", member.pair_weight(dtype), piece.view(*index.shape, table.shape[1]))
        for member, index, piece in zip(members, indices, pieces, strict=True)
    ])  # fmt: skip


def _offsets(
    bias: Tensor | None,
    log_noise: Tensor | None,
    temperature: float | Tensor,
    members: Sequence[SoftTargets],
    table: Tensor,
    dtype: torch.dtype,
    shared: bool,
) -> Tensor:
    """Σ_k c_k (b_k/τ − log η_k) of every target, (M,)."""
    if bias is None and log_noise is None:
        return torch.zeros(sum(map(len, members)), dtype=dtype, device=table.device)

    def expectation(values: Tensor) -> Tensor:
        return torch.cat([member.expectation(values.to(dtype), background=not shared) for member in members])

    if bias is None:
        assert log_noise is not None
        return -expectation(log_noise)
    offset = expectation(bias) / temperature
    return offset if log_noise is None else offset - expectation(log_noise)


def _background_embeddings(table: Tensor, members: Sequence[SoftTargets], dtype: torch.dtype, cosine: bool) -> Tensor:
    """ε_c·Σ_k ξ_k y_k of every target, (M, d). O(K·d)."""
    whole = F.normalize(table.to(dtype), dim=1) if cosine else table.to(dtype)
    parts = []
    for member in members:
        if is_zero(member.smoothing):
            parts.append(whole.new_zeros(len(member), whole.shape[1]))
        else:
            parts.append(member.background_mass(dtype)[:, None] * member.background_mean(whole.t()))
    return torch.cat(parts)


def topk(
    features: Tensor,
    table: Tensor,
    k: int,
    bias: Tensor | None = None,
    cosine: bool = False,
    chunk_size: int = 65536,
) -> tuple[Tensor, Tensor]:
    """The k best classes of each row and their logits, (N, k) each, best first.

    Goes through the whole table, ``chunk_size`` classes at a time. O(N·K·d) time, O(N·chunk_size) memory.
    """
    if not 1 <= k <= len(table):
        raise ValueError(f"k must be between 1 and the {len(table)} classes, got {k}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be positive, got {chunk_size}")
    z = F.normalize(features, dim=1) if cosine else features
    best = features.new_empty(len(features), 0)
    classes = torch.empty(len(features), 0, dtype=torch.long, device=features.device)
    for start in range(0, len(table), chunk_size):
        part = table[start : start + chunk_size]
        logits = F.linear(z, F.normalize(part, dim=1) if cosine else part)
        if bias is not None:
            logits = logits + bias[start : start + chunk_size]
        values, index = logits.topk(min(k, len(part)), dim=1)
        best, order = torch.cat([best, values], 1).topk(min(k, best.shape[1] + values.shape[1]), dim=1)
        classes = torch.cat([classes, index + start], 1).gather(1, order)
    return best, classes
