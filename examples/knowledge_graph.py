"""Knowledge-graph completion: (head, relation, ?) is a classification over all entities.

DistMult's scores are features times a label table: feature = head ∘ relation, table = the entities. A query with
several right answers is a soft target. So a step needs no score of every entity; the batch's answers are candidates.
The graph is generated; `python -m experiments run links` does the same on FB15k-237 and WN18RR.
"""

import torch
from torch import Tensor, nn

from softnce import BatchCandidates, ExpectedInfoNCE, NoiseCandidates, SoftTargets
from softnce.heads import LabelEmbeddingHead

RELATIONS, DIM = 4, 32


def generate(entities: int, answers: int = 3) -> tuple[Tensor, Tensor]:
    """Queries (Q, 2), of a head and a relation, and the right tails of each (Q, 3)."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(entities, 8, generator=generator)
    signs = torch.randint(2, (RELATIONS, 8), generator=generator) * 2.0 - 1
    queries = torch.cartesian_prod(torch.arange(entities), torch.arange(RELATIONS))
    scores = (places[queries[:, 0]] * signs[queries[:, 1]]) @ places.T
    return queries, scores.topk(answers, dim=1).indices


class DistMult(nn.Module):
    def __init__(self, entities: int) -> None:
        super().__init__()
        self.relations = nn.Embedding(RELATIONS, DIM)
        self.entities = LabelEmbeddingHead(DIM, entities)  # the answers' table is the heads' table too

    def forward(self, queries: Tensor) -> Tensor:
        heads = nn.functional.embedding(queries[:, 0], self.entities.weight, sparse=True)
        return heads * self.relations(queries[:, 1])


def main(entities: int = 2000, epochs: int = 20) -> float:
    queries, tails = generate(entities)
    # All right tails of a query, each with weight 1/3.
    targets = SoftTargets.from_pairs(tails, torch.full(tails.shape, 1 / 3), entities)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(1))
    train, test = order[: -len(order) // 10], order[-len(order) // 10 :]

    torch.manual_seed(0)
    model = DistMult(entities)
    optimisers = [
        torch.optim.SparseAdam(model.entities.parameters(), lr=0.02),
        torch.optim.Adam(model.relations.parameters(), lr=0.02),
    ]
    criterion = ExpectedInfoNCE(candidates=BatchCandidates() + NoiseCandidates(256))
    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(512):
            loss = model.entities.loss(model(queries[rows]), targets[rows], criterion)
            model.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()

    # Filtered rank: other right answers of the query do not count against the one asked for.
    with torch.no_grad():
        scores = model.entities(model(queries[test]))
        right = scores.gather(1, tails[test])
        wrong = scores.scatter(1, tails[test], -torch.inf)
        ranks = 1 + (wrong[:, None, :] > right[:, :, None]).sum(2)
        mrr = (1 / ranks).mean().item()
    print(f"filtered mean reciprocal rank {mrr:.3f} over {entities:,} entities")
    return mrr


if __name__ == "__main__":
    main()
