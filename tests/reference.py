"""The losses as slowly and obviously as they can be written, to hold every fast path to."""

import torch
from torch import Tensor

from softnce.lab.bench.baselines import published_soft_target_info_nce as published_loss  # noqa: F401


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
