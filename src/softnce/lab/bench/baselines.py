"""What the losses are measured against and held to, written as their authors write it. Imports torch only.

The tests hold the library to :func:`published_soft_target_info_nce`; the benchmark times it. One definition, so the two
cannot drift apart.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def published_soft_target_info_nce(
    logits: Tensor,
    targets: Tensor,
    noise_probs: Tensor,
    temperature: float = 1.0,
    candidates: Tensor | None = None,
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


def sampled_softmax(
    features: Tensor,
    table: Tensor,
    index: Tensor,
    weight: Tensor,
    negatives: Tensor,
    *,
    sparse: bool = False,
) -> Tensor:
    r"""Sampled softmax with log Q correction, for soft targets of S pairs.

    The n ``negatives`` are drawn uniformly from the K classes and shared by the rows. The softmax's normaliser is
    estimated without bias by the row's own classes T as they are and the others by importance,

    .. math:: Z \approx \sum_{k \in T} e^{s_k} + \sum_{j \notin T} e^{s_j - \log(n/K)},

    and the loss is :math:`-\sum_k \alpha_k \log(e^{s_k}/Z)`. O(N·(n + S)·d), whatever K.

    Args:
        features: (N, d).
        table: label embeddings (K, d).
        index, weight: classes and weights of each row's target, (N, S).
        negatives: sampled classes, (n,).
        sparse: make the gradient of ``table`` a sparse tensor of the rows touched.
    """
    rows = F.embedding(torch.cat([index.flatten(), negatives]), table, sparse=sparse)
    own, others = rows[: index.numel()].view(*index.shape, -1), rows[index.numel() :]
    own_scores = torch.einsum("nd,nsd->ns", features, own)
    scores = features @ others.t() - math.log(len(negatives) / len(table))
    hit = (negatives[None, :, None] == index[:, None, :]).any(2)
    # A class named twice is counted once in Z.
    again = (index[:, :, None] == index[:, None, :]).tril(-1).any(2)
    normaliser = torch.cat([
        own_scores.masked_fill(again, float("-inf")),
        scores.masked_fill(hit, float("-inf")),
    ], 1).logsumexp(1, keepdim=True)  # fmt: skip
    return (weight * (normaliser - own_scores)).sum(1).mean()
