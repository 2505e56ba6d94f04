"""The losses as slowly and obviously as they can be written, to hold every fast path to."""

import torch
from torch import Tensor
from torch.nn import functional as F


def published_loss(scores_of: Tensor, targets: Tensor, noise_probs: Tensor, temperature: float = 1.0) -> Tensor:
    """Soft target InfoNCE as published: builds the N×M×K product of scores (N, K) and the batch's targets (M, K)."""
    scores = scores_of / temperature - noise_probs.log()
    matrix = (scores[:, None, :] * targets[None, :, :]).sum(-1)
    return F.cross_entropy(matrix, torch.arange(len(scores)))


def contrast(
    scores: Tensor,
    alpha: Tensor,
    candidates: Tensor,
    own: Tensor | None,
    mask: Tensor | None = None,
    remove_hits: bool = False,
) -> Tensor:
    """−σ(α) + log Σ_c exp σ(c), row by row: scores (N, K), alpha (N, K), candidates (M, K)."""
    losses = []
    for i in range(len(scores)):
        row_score = (alpha[i] * scores[i]).sum()
        exponents = [row_score]
        for c in range(len(candidates)):
            if own is not None and own[i] == c:
                continue
            if mask is not None and not mask[c]:
                continue
            if remove_hits and torch.allclose(candidates[c], alpha[i], rtol=0, atol=1e-6):
                continue
            exponents.append((candidates[c] * scores[i]).sum())
        losses.append(torch.stack(exponents).logsumexp(0) - row_score)
    return torch.stack(losses)


def expected(
    scores: Tensor,
    alpha: Tensor,
    candidates: Tensor,
    own: Tensor | None,
    mask: Tensor | None = None,
    noise_mass: Tensor | None = None,
) -> Tensor:
    """Σ_k α_k log(1 + R/e^{s_k}), R = Σ_{c ≠ own} Σ_j c_j e^{s_j}, row by row, in logarithms."""
    losses = []
    for i in range(len(scores)):
        exponents = []
        for c in range(len(candidates)):
            if (own is not None and own[i] == c) or (mask is not None and not mask[c]):
                continue
            exponents += [scores[i, j] + candidates[c, j].log() for j in range(scores.shape[1]) if candidates[c, j] > 0]
        if noise_mass is not None:
            exponents += [scores[i, j] + noise_mass[j].log() for j in range(scores.shape[1])]
        if not exponents:
            losses.append(0 * scores[i].sum())
            continue
        log_rest = torch.stack(exponents).logsumexp(0)
        losses.append(sum(
            alpha[i, k] * torch.logaddexp(torch.zeros(()).double(), log_rest - scores[i, k])
            for k in range(scores.shape[1])
        ))  # fmt: skip
    return torch.stack(losses)
