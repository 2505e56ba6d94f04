"""Each loss of the study against its definition; batches; a training learns."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from softnce.lab.data.links import LinkGraph, generated, named
from softnce.lab.experiment.memory import peak_of
from softnce.lab.models.links import Links
from softnce.lab.studies.links import training
from softnce.lab.studies.links.training import ALL_TAILS, FULL, LOSSES, Batches, Run, Trainer, loss_of, train

GRAPH = generated(entities=40, relations=2, dim=3, answers=5)
RUN = Run(
    graph="generated", model="complex", loss="info-nce", rank=4, lr=0.1, n3=0.0, batch=16, most=2, negatives=0,
    epochs=2, checks=50, is_final=True, seed=0,
)  # fmt: skip


def setting(loss: str, n3: float = 0.0) -> tuple[Run, Links, Batches]:
    run = replace(RUN, loss=loss, n3=n3, negatives=10 if loss == "sampled-softmax" else 0)
    torch.manual_seed(0)
    model = Links(run.model, GRAPH.entities, GRAPH.relations, run.rank, sparse=False)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return run, model.double(), Batches(run, GRAPH)


@pytest.mark.parametrize("loss", LOSSES)
def test_an_epoch_holds_every_training_triple_in_both_directions_once(loss: str) -> None:
    _, _, batches = setting(loss)
    found = []
    for rows in batches:
        dense = rows.targets.dense()
        classes = torch.arange(GRAPH.entities) if rows.classes is None else rows.classes
        for i, row in enumerate(dense):
            answers = classes[row.nonzero()[:, 0]].tolist()
            found += [(rows.entity[i].item(), rows.relation[i].item(), answer) for answer in answers]
            if rows.weight is not None:  # a question weighs as its triples do together
                assert rows.weight[i].item() == pytest.approx(len(answers) * len(batches) / len(batches.asked))
    assert sorted(found) == sorted(map(tuple, GRAPH.both_ways(GRAPH.train).tolist()))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "sampled-softmax"])
def test_the_loss_is_its_definition_over_all_entities(loss: str) -> None:
    run, model, batches = setting(loss)
    rows = next(iter(batches))
    logits = model(rows.entity, rows.relation)
    alpha = torch.zeros_like(logits)
    alpha[:, slice(None) if rows.classes is None else rows.classes] = rows.targets.dense().double()
    s = logits - batches.marginal.double().log()
    count = len(alpha)
    if loss in FULL:
        expected = -(alpha * logits.log_softmax(1)).sum(1)
    elif loss == "grouped-info-nce":  # InfoNCE of the triples one by one, without a constant of the candidates' counts
        counts = (alpha > 0).sum(0)
        total = (counts * s.exp()).sum(1).log()
        per_triple = [
            [total[i] - s[i, k] - counts[k].log() for k in row.nonzero()[:, 0]] for i, row in enumerate(alpha)
        ]
        expected = torch.stack([torch.stack(row).mean() for row in per_triple])
    elif loss == "expected-info-nce":
        rest = torch.stack([(alpha[torch.arange(count) != i] @ s[i].exp()).sum() for i in range(count)])
        expected = (alpha * torch.log1p(rest[:, None] / s.exp())).sum(1)
    else:
        sigma = s @ alpha.t()
        expected = sigma.logsumexp(1) - sigma.diag()
    if rows.weight is not None:
        expected = expected * rows.weight
    torch.testing.assert_close(loss_of(run, model, batches.marginal, rows), expected.mean(), rtol=1e-6, atol=1e-6)


def test_sampled_softmax_is_its_definition() -> None:
    run, model, batches = setting("sampled-softmax")
    rows = next(iter(batches))
    logits = model(rows.entity, rows.relation).exp()
    label = rows.classes[rows.targets.labels]
    assert rows.draws.sum() == run.negatives
    total = torch.zeros(len(label), dtype=torch.float64)
    for i, y in enumerate(label):
        others = sum(
            n * logits[i, k] / (run.negatives * batches.marginal[k])
            for k, n in zip(rows.classes, rows.draws, strict=True)
            if k != y
        )
        total[i] = -(logits[i, y] / (logits[i, y] + others)).log()
    torch.testing.assert_close(loss_of(run, model, batches.marginal, rows), total.mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_n3_counts_the_embeddings_of_every_triple(loss: str) -> None:
    (run, model, batches), (plain, *_) = setting(loss, n3=0.5), setting(loss)
    rows = next(iter(batches))
    dense, classes = rows.targets.dense().double(), rows.classes
    table = model.table if classes is None else model.table[classes]
    each = model.n3(model.entities(rows.entity)) + model.n3(model.relations(rows.relation)) + dense @ model.n3(table)
    if rows.weight is not None:
        each = each * rows.weight
    found = loss_of(run, model, batches.marginal, rows) - loss_of(plain, model, batches.marginal, rows)
    torch.testing.assert_close(found, 0.5 * each.mean(), rtol=1e-5, atol=1e-5)


def test_the_marginal_is_that_of_the_rows_targets() -> None:
    for loss in ("info-nce", *ALL_TAILS):
        _, _, batches = setting(loss)
        total = torch.zeros(GRAPH.entities)
        for rows in batches:
            mass = rows.mass() if loss == "grouped-info-nce" else rows.targets.class_mass()
            total[slice(None) if rows.classes is None else rows.classes] += mass
        found = batches.marginal[total > 0]
        torch.testing.assert_close(found / found.sum(), (total / total.sum())[total > 0], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["info-nce", "expected-info-nce", "softmax"])
def test_a_training_learns_and_says_what_it_cost(loss: str) -> None:
    graph = named("generated")
    result = train(replace(RUN, loss=loss, rank=16, batch=128, epochs=4))
    course = result["course"]
    assert course["epoch"] == [1, 2, 3, 4]
    assert course["mrr"][-1] > 0.1  # equal scores for all entities have 0.005
    assert result["test"]["mrr"] > 0.1
    assert result["unseen"] == int(graph.unseen(graph.test).sum())
    assert result["step_bytes"] > 0
    assert result["held_bytes"] == 2 * 4 * result["parameters"] + 2 * 4  # Adagrad's sums, and its two counts of steps


def test_a_step_from_the_table_needs_memory_that_does_not_depend_on_the_entities() -> None:
    def peak(loss: str, entities: int) -> int:
        trainer = Trainer(replace(RUN, loss=loss, rank=16), replace(GRAPH, entities=entities))
        torch.manual_seed(1)  # the same batch
        return peak_of(partial(trainer.step, next(iter(trainer.batches))))

    assert peak("info-nce", 40) == peak("info-nce", 4000)
    assert peak("softmax", 40) < peak("softmax", 4000)


@pytest.mark.slow
def test_the_epoch_that_is_best_on_the_validation_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([0.2, 0.5, 0.3])
    kept = []

    def scored(model: Links, graph: LinkGraph, asked: torch.Tensor) -> torch.Tensor:
        kept.append(model.table.detach().clone())
        return torch.tensor([1 / next(looks, 1.0)])

    monkeypatch.setattr(training, "ranks", scored)
    result = train(replace(RUN, epochs=3, is_final=False))
    assert result["course"]["mrr"] == pytest.approx([0.2, 0.5, 0.3])
    assert "test" not in result
    first, second, third, last = kept
    assert last.equal(second)
    assert not last.equal(first)
    assert not last.equal(third)
