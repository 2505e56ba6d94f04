"""The usual shortcut to a softmax over many classes, for soft targets."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def sampled_softmax(
    features: Tensor,
    table: Tensor,
    index: Tensor,
    weight: Tensor,
    negatives: Tensor,
    probs: Tensor | None = None,
    *,
    sparse: bool = False,
) -> Tensor:
    r"""Sampled softmax with log Q correction, for soft targets of S pairs.

    The n ``negatives`` are drawn from Q, by default uniform over the K classes, and shared by the rows. The softmax's
    normaliser is estimated without bias by the row's own classes T as they are and the others by importance,

    .. math:: Z \approx \sum_{k \in T} e^{s_k} + \sum_{j \notin T} e^{s_j - \log(n Q_j)},

    and the loss is :math:`-\sum_k \alpha_k \log(e^{s_k}/Z)`. O(N·(n + S)·d), whatever K.

    Args:
        features: (N, d).
        table: label embeddings (K, d).
        index, weight: classes and weights of each row's target, (N, S).
        negatives: sampled classes, (n,).
        probs: Q, (K,); None for uniform.
        sparse: make the gradient of ``table`` a sparse tensor of the rows touched.
    """
    rows = F.embedding(torch.cat([index.flatten(), negatives]), table, sparse=sparse)
    own, others = rows[: index.numel()].view(*index.shape, -1), rows[index.numel() :]
    own_scores = torch.einsum("nd,nsd->ns", features, own)
    scores = features @ others.t()
    if probs is None:
        scores = scores - math.log(len(negatives) / len(table))
    else:
        scores = scores - (len(negatives) * probs[negatives]).log()
    hit = (negatives[None, :, None] == index[:, None, :]).any(2)
    # A class named twice is counted once in Z.
    again = (index[:, :, None] == index[:, None, :]).tril(-1).any(2)
    normaliser = torch.cat([
        own_scores.masked_fill(again, float("-inf")),
        scores.masked_fill(hit, float("-inf")),
    ], 1).logsumexp(1, keepdim=True)  # fmt: skip
    return (weight * (normaliser - own_scores)).sum(1).mean()
