"""Sampled softmax with log Q correction, for soft targets of S pairs: the usual shortcut where classes are many."""

import torch
from torch import Tensor
from torch.nn import functional as F


def sampled_softmax(
    features: Tensor, table: Tensor, index: Tensor, weight: Tensor, negatives: Tensor, probs: Tensor | None = None, *,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    r"""Returns the losses (N,), :math:`-\sum_k \alpha_k \log(e^{s_k}/Z)`. O(N·(n + S)·d), whatever K.

    The n ``negatives`` are drawn from Q and shared by the rows. The row's own classes T enter the normaliser as they
    are, the others by importance, which estimates Z without bias:

    .. math:: Z \approx \sum_{k \in T} e^{s_k} + \sum_{j \notin T} e^{s_j - \log(n Q_j)}.

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
    expected = features.new_tensor(len(negatives) / len(table)) if probs is None else len(negatives) * probs[negatives]
    scores = features @ others.t() - expected.log()
    hit = (negatives[None, :, None] == index[:, None, :]).any(2)
    again = (index[:, :, None] == index[:, None, :]).tril(-1).any(2)  # a class named twice is counted once in Z
    in_z = torch.cat([own_scores.masked_fill(again, -torch.inf), scores.masked_fill(hit, -torch.inf)], 1)
    return (weight * (in_z.logsumexp(1, keepdim=True) - own_scores)).sum(1)
