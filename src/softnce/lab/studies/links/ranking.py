"""Filtered ranks of the right answers among all entities."""

import torch
from torch import Tensor

from softnce.lab.data.links import LinkGraph
from softnce.lab.models.links import Links


def summary(ranks: Tensor) -> dict[str, float]:
    """Mean reciprocal rank and the shares of ranks up to 1, 3 and 10."""
    hits = {f"hits{k}": (ranks <= k).double().mean().item() for k in (1, 3, 10)}
    return {"mrr": ranks.reciprocal().mean().item(), **hits}


@torch.no_grad()
def ranks(model: Links, graph: LinkGraph, asked: Tensor, block: int = 512) -> Tensor:
    """The filtered rank of each right answer, (n,), double; ``asked`` (n, 3) is entity, relation and right answer.

    Other right answers of the question, of any split, are left out. An answer that ties with c others has the mean of
    the places they share, 1 + higher + c/2: a model that says the same of all entities gains nothing. NaN is the
    lowest score. O(n·K·d).
    """
    keys = graph.key(torch.stack([graph.known.entity, graph.known.relation], 1))
    found = []
    for part in asked.split(block):
        scores = model(part[:, 0], part[:, 1]).nan_to_num(nan=-torch.inf)
        right = scores.gather(1, part[:, 2:])
        row, answer = graph.known.answers_of(torch.searchsorted(keys, graph.key(part)))
        higher, level = scores > right, scores == right
        higher[row, answer] = level[row, answer] = False
        found.append(1 + higher.sum(1) + level.sum(1) / 2)
    return torch.cat(found).double()
