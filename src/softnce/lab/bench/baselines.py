"""What the losses are compared with, written as their authors write it. Imports torch only.

The tests compare the library with :func:`published_soft_target_info_nce`; the benchmark times it. One definition, so
the two cannot diverge.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def published_soft_target_info_nce(
    logits: Tensor, targets: Tensor, noise_probs: Tensor, temperature: float = 1.0, candidates: Tensor | None = None
) -> Tensor:
    """Soft target InfoNCE as published: builds the N×M×K product of scores (N, K) and candidates (M, K).

    The candidates are the batch's ``targets`` (N, K) unless given; given ones begin with the batch's targets.
    """
    scores = logits / temperature - noise_probs.log()
    candidates = targets if candidates is None else candidates
    matrix = (scores[:, None, :] * candidates[None, :, :]).sum(-1)
    return F.cross_entropy(matrix, torch.arange(len(logits), device=logits.device))


def unchecked_info_nce(logits: Tensor, labels: Tensor, noise_probs: Tensor) -> Tensor:
    """InfoNCE of a batch's labels in as few operations as torch has for it, and no check. O(N²)."""
    scores = (logits - noise_probs.log()).index_select(1, labels)
    return F.cross_entropy(scores, torch.arange(len(labels), device=labels.device))


def nt_xent(queries: Tensor, keys: Tensor, temperature: float = 1.0) -> Tensor:
    """InfoNCE of paired rows, each (N, K), by cosine similarity, as contrastive libraries compute it.

    Row i of ``keys`` belongs to row i of ``queries``; the other rows are its negatives.
    """
    similarity = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).t()
    return F.cross_entropy(similarity / temperature, torch.arange(len(queries), device=queries.device))
