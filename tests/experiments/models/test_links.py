"""ComplEx and DistMult: features times a table give the published scores."""

import pytest
import torch

from experiments.models.links import Links


def model(score, sparse=False):
    torch.manual_seed(0)
    links = Links(score, entities=5, relations=2, rank=3, sparse=sparse).double()
    for weight in links.parameters():
        torch.nn.init.normal_(weight)
    return links


ENTITY, RELATION = torch.tensor([0, 3, 3]), torch.tensor([1, 0, 3])


@pytest.mark.parametrize("score", ["complex", "distmult"])
def test_scores_are_the_real_part_of_the_triple_product(score):
    links = model(score)
    e, r = links.entities.weight, links.relations.weight
    if score == "complex":
        e, r = (torch.complex(*weight.chunk(2, 1)) for weight in (e, r))
    expected = torch.stack([(e[h] * r[k] * e.conj()).sum(1).real for h, k in zip(ENTITY, RELATION, strict=True)])
    torch.testing.assert_close(links(ENTITY, RELATION), expected)


@pytest.mark.parametrize("score", ["complex", "distmult"])
def test_n3_is_the_sum_of_cubed_moduli(score):
    links = model(score)
    rows = links.entities.weight
    modulus = torch.complex(*rows.chunk(2, 1)).abs() if score == "complex" else rows.abs()
    torch.testing.assert_close(links.n3(rows), modulus.pow(3).sum(1), rtol=1e-6, atol=1e-9)
    links.n3(torch.zeros(2, 6, requires_grad=True)).sum().backward()  # no NaN at 0


def test_the_gradient_of_the_table_is_sparse_where_asked_for():
    links = model("complex", sparse=True)
    head = links.entities(ENTITY)
    (links.features(head, links.relations(RELATION)) * links.entities(torch.tensor([1, 2, 4]))).sum().backward()
    assert links.table.grad is not None
    assert links.table.grad.is_sparse
