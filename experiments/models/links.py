"""Bilinear models of a knowledge graph whose scores are features times a label table.

A question (head, relation, ?) becomes features (N, d); the score of an entity as its answer is the product with the
entity's row of the table. So a question is a sample, an entity a class, and every loss of this library applies.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Score = Literal["complex", "distmult"]


class Links(nn.Module):
    """Embeddings of entities and of relations in both directions.

    ``complex`` (Trouillon et al., 2016) scores Re⟨h, r, t̄⟩ in ``rank`` complex dimensions; ``distmult`` (Yang et al.,
    2015) Σ h·r·t in ``rank`` real ones. The gradient of the entity table is sparse where ``sparse``.
    """

    def __init__(self, score: Score, entities: int, relations: int, rank: int, sparse: bool = True) -> None:
        super().__init__()
        self.score: Score = score
        width = 2 * rank if score == "complex" else rank
        self.entities = nn.Embedding(entities, width, sparse=sparse)
        self.relations = nn.Embedding(2 * relations, width)
        # Small, so that training starts from equal scores; Adagrad's steps do not depend on the scale.
        nn.init.normal_(self.entities.weight, std=1e-3)
        nn.init.normal_(self.relations.weight, std=1e-3)

    @property
    def table(self) -> Tensor:
        """The label table, (K, d)."""
        return self.entities.weight

    def features(self, head: Tensor, relation: Tensor) -> Tensor:
        """(N, d) of embedded heads and relations, (N, d) each."""
        if self.score == "distmult":
            return head * relation
        (a, b), (c, d) = head.chunk(2, 1), relation.chunk(2, 1)
        return torch.cat([a * c - b * d, a * d + b * c], 1)

    def forward(self, entity: Tensor, relation: Tensor) -> Tensor:
        """Scores of all entities, (N, K)."""
        return self.features(self.entities(entity), self.relations(relation)) @ self.table.t()

    def n3(self, embedded: Tensor) -> Tensor:
        """Σ |x|³ of each row, (N,): the nuclear 3-norm's part (Lacroix et al., 2018); complex ones by their modulus."""
        if self.score == "distmult":
            return embedded.abs().pow(3).sum(1)
        real, imaginary = embedded.chunk(2, 1)
        squares = real.square() + imaginary.square()
        return (squares * (squares + 1e-12).sqrt()).sum(1)
