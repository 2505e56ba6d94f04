"""Filtered ranks against the definition, written out."""

import pytest
import torch

from softnce.lab.data.links import LinkGraph
from softnce.lab.models.links import Links
from softnce.lab.studies.links.ranking import ranks, summary


def graph_of(seed: int) -> LinkGraph:
    generator = torch.Generator().manual_seed(seed)
    triples = torch.stack([torch.randint(n, (60,), generator=generator) for n in (9, 2, 9)], 1).unique(dim=0)
    triples = triples[torch.randperm(len(triples), generator=generator)]
    return LinkGraph(9, 2, triples[:30], triples[30:35], triples[35:])


def brute_force(scores: torch.Tensor, graph: LinkGraph, asked: torch.Tensor) -> list[float]:
    known = {tuple(row) for split in (graph.train, graph.valid, graph.test) for row in graph.both_ways(split).tolist()}
    found = []
    for row, (entity, relation, answer) in zip(scores.tolist(), asked.tolist(), strict=True):
        rivals = [row[e] for e in range(graph.entities) if e != answer and (entity, relation, e) not in known]
        higher, level = (sum(r > row[answer] for r in rivals), sum(r == row[answer] for r in rivals))
        places = range(1 + higher, 1 + higher + level + 1)
        found.append(sum(places) / len(places))
    return found


def test_ranks_leave_out_other_right_answers_and_share_ties() -> None:
    for seed in range(20):
        graph = graph_of(seed)
        torch.manual_seed(seed)
        model = Links("distmult", 9, 2, 2)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randint(-1, 2, weight.shape))  # whole numbers: many ties
        asked = graph.both_ways(graph.test)
        scores = model(asked[:, 0], asked[:, 1])
        assert ranks(model, graph, asked, block=7).tolist() == brute_force(scores, graph, asked)


def test_a_model_that_says_the_same_of_all_entities_has_the_mean_rank() -> None:
    graph = graph_of(0)
    model = Links("complex", 9, 2, 2)
    torch.nn.init.zeros_(model.entities.weight)
    asked = graph.both_ways(graph.test)
    left = torch.tensor([
        9 - len(set(graph.known.answers_of(torch.tensor([q]))[1].tolist()))
        for q in torch.searchsorted(
            graph.key(torch.stack([graph.known.entity, graph.known.relation], 1)), graph.key(asked)
        ).tolist()
    ])  # fmt: skip
    torch.testing.assert_close(ranks(model, graph, asked), 1 + left / 2, check_dtype=False)


def test_a_model_that_has_diverged_gains_nothing() -> None:
    graph = graph_of(0)
    model = Links("complex", 9, 2, 2)
    torch.nn.init.constant_(model.entities.weight, torch.nan)
    assert summary(ranks(model, graph, graph.both_ways(graph.test)))["hits1"] < 0.5


def test_the_summary_of_ranks() -> None:
    found = summary(torch.tensor([1.0, 2.0, 4.0, 10.0, 10.5]).double())
    assert found == pytest.approx(
        {"mrr": (1 + 1 / 2 + 1 / 4 + 1 / 10 + 1 / 10.5) / 5, "hits1": 0.2, "hits3": 0.4, "hits10": 0.8}
    )
