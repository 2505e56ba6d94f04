"""The losses as slowly and obviously as they can be written, to hold every fast path to."""

import torch
from torch import Tensor
from torch.nn import functional as F


def published_loss(scores_of: Tensor, targets: Tensor, noise_probs: Tensor, temperature: float = 1.0) -> Tensor:
    """Soft target InfoNCE as published: builds the N×M×K product of scores (N, K) and the batch's targets (M, K)."""
    scores = scores_of / temperature - noise_probs.log()
    matrix = (scores[:, None, :] * targets[None, :, :]).sum(-1)
    return F.cross_entropy(matrix, torch.arange(len(scores)))


def others(row: int, candidates: Tensor, own: Tensor | None, mask: Tensor | None) -> list[int]:
    """The candidates of a row besides its own target."""
    places = range(len(candidates))
    return [c for c in places if (own is None or own[row] != c) and (mask is None or mask[c])]


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
        kept = others(i, candidates, own, mask)
        if remove_hits:
            kept = [c for c in kept if not torch.allclose(candidates[c], alpha[i], rtol=0, atol=1e-6)]
        exponents = [(point * scores[i]).sum() for point in (alpha[i], *candidates[kept])]
        losses.append(torch.stack(exponents).logsumexp(0) - exponents[0])
    return torch.stack(losses)


def expected(
    scores: Tensor,
    alpha: Tensor,
    candidates: Tensor,
    own: Tensor | None,
    mask: Tensor | None = None,
    noise_mass: Tensor | None = None,
) -> Tensor:
    """Σ_k α_k log(1 + R/e^{s_k}), R = Σ_{c ≠ own} Σ_j c_j e^{s_j}, row by row."""
    counts = [candidates[others(i, candidates, own, mask)].sum(0) for i in range(len(scores))]
    counts = [n if noise_mass is None else n + noise_mass for n in counts]
    return torch.stack([expected_of_counts(*row) for row in zip(scores, alpha, counts, strict=True)])


def expected_of_counts(scores: Tensor, alpha: Tensor, counts: Tensor) -> Tensor:
    """Σ_k α_k log(1 + R/e^{s_k}), R = Σ_k n_k e^{s_k}, of one row, in logarithms."""
    occurs = counts > 0
    if not occurs.any():
        return 0 * scores.sum()
    rest = (scores[occurs] + counts[occurs].log()).logsumexp(0)
    return (alpha * torch.logaddexp(torch.zeros_like(scores), rest - scores)).sum()
