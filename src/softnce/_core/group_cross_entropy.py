"""Cross-entropy of targets known by their top k: the other classes are one group (DESIGN, identity 19)."""

import torch
from torch import Tensor

from softnce._checks import values_are_checked
from softnce.targets import SoftTargets


def group_cross_entropy(scores: Tensor, targets: SoftTargets) -> Tensor:
    """−Σ_top α_k log p_k − r·log Σ_rest p_k of every row, (N,), with p the softmax of ``scores`` (N, K).

    Exact for all that such a target says; the gradient is p_j − α_j in the top k and p_j − r·p_j/P_rest in the rest.
    Ignored rows have loss 0.
    """
    index, weight, rest = targets.classes, targets.pair_weight(scores.dtype), targets.rest
    if rest is None:
        raise ValueError("targets must hold the classes beyond the top k as one group (rest), these hold none")
    rest, total = rest.to(scores.dtype), scores.logsumexp(1)
    is_named = torch.zeros_like(scores, dtype=torch.bool).scatter(1, index, True)
    if values_are_checked(scores, rest):
        is_empty = (scores.masked_fill(is_named, -torch.inf) == -torch.inf).all(1) & (rest > 0)
        is_empty = is_empty if targets.mask is None else is_empty & targets.mask
        if bool(is_empty.any()):
            row = int(is_empty.nonzero()[0])
            raise ValueError(f"targets leave {float(rest[row]):.4g} to a group without classes in row {row}")
    # A class of weight 0 may have a score of −∞, and a group of weight 0 may be empty: neither has a share in the loss.
    named = torch.where(weight > 0, scores.gather(1, index) - total[:, None], 0)
    others = scores.masked_fill(is_named & (rest > 0)[:, None], -torch.inf).logsumexp(1) - total
    loss = -(weight * named).sum(1) - rest * others
    return loss if targets.mask is None else torch.where(targets.mask, loss, 0)
