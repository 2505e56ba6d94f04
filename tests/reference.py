"""The losses as slowly and obviously as they can be written, to hold every fast path to."""

import torch
from torch import Tensor


def published_loss(logits: Tensor, targets: Tensor, noise: Tensor, temperature: float = 1.0) -> Tensor:
    """Soft target InfoNCE as published: an N×N×K product, the batch as candidates."""
    scores = logits / temperature - noise.log()
    matrix = (scores[:, None, :] * targets[None, :, :]).sum(-1)
    return torch.nn.functional.cross_entropy(matrix, torch.arange(len(logits)))


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
            if remove_hits and torch.equal(candidates[c], alpha[i]):
                continue
            exponents.append((candidates[c] * scores[i]).sum())
        losses.append(torch.stack(exponents).logsumexp(0) - row_score)
    return torch.stack(losses)
