"""One training of a bilinear model on a graph by one loss: its batches, its loss, and filtered ranks."""

import copy
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from experiments.data.links import LinkGraph, named
from experiments.data.seeds import derived_seed
from experiments.harness import later
from experiments.harness.memory import peak_of
from experiments.models.links import Links, Score
from experiments.sampled_softmax import sampled_softmax
from softnce import BatchCandidates, SoftTargets, functional, noise

Loss = Literal["info-nce", "grouped-info-nce", "expected-info-nce", "soft-target-info-nce", "sampled-softmax",
               "softmax", "soft-softmax"]  # fmt: skip
LOSSES: tuple[Loss, ...] = get_args(Loss)
ALL_TAILS: tuple[Loss, ...] = ("grouped-info-nce", "expected-info-nce", "soft-target-info-nce", "soft-softmax")
"""Losses of a question with all its right answers; the rows of the others are triples."""
FULL: tuple[Loss, ...] = ("softmax", "soft-softmax")
"""Losses whose steps score all entities."""


@dataclass(frozen=True)
class Run:
    """One training."""

    graph: str
    model: Score
    loss: Loss
    rank: int
    lr: float  # at the start; it falls linearly to 0 at the last of the epochs
    n3: float
    batch: int  # rows: triples in one direction, or questions
    most: int  # right answers in one row; a question with more has several rows
    negatives: int  # entities drawn from the frequencies of answers, for sampled softmax
    epochs: int  # an epoch is every training triple in both directions; the best one is kept
    checks: int  # validation triples ranked after each epoch
    is_final: bool  # the test split is ranked once, at the end, with the best epoch's weights
    seed: int
    drop_own: bool = later(False, "leave a question's other right answers out of the negatives")


@dataclass(frozen=True)
class Batch:
    """Rows of a batch.

    Attributes:
        entity, relation: the questions, (N,).
        classes: the entities that occur as answers, (U,), or None for all.
        targets: right answers, over ``classes``.
        weight: of each row, (N,), 1 on average over an epoch, or None for 1.
    """

    entity: Tensor
    relation: Tensor
    classes: Tensor | None
    targets: SoftTargets
    weight: Tensor | None = None

    def mass(self) -> Tensor:
        """How many of the batch's triples each class answers, (U,), by weight."""
        return self.targets.class_mass() if self.weight is None else self.weight @ self.targets.dense()


class Batches:
    """The training triples in both directions, in random order: one label per row, or all answers of a question."""

    def __init__(self, run: Run, graph: LinkGraph) -> None:
        self.run, self.graph = run, graph
        self.by_question = run.loss in ALL_TAILS
        self.asked = graph.both_ways(graph.train)
        # In parts, since one row with thousands of answers would weigh more than all others of its batch.
        self.questions = graph.questions(run.most)
        # How often an entity occurs among the candidates of an epoch: in its rows' targets, or its triples.
        answers, share = self.asked[:, 2], torch.ones(len(self.asked), dtype=torch.float64)
        if self.by_question and run.loss != "grouped-info-nce":
            answers, counts = self.questions.answers, self.questions.counts
            share = counts.double().reciprocal().repeat_interleave(counts)
        mass = torch.zeros(graph.entities, dtype=torch.float64).index_add(0, answers, share)
        # Entities that answer no training question never occur; their share only has to be positive.
        self.marginal = noise.from_counts(mass, floor=1e-3).float()

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.questions) if self.by_question else len(self.asked)

    def __iter__(self) -> Iterator[Batch]:
        for part in torch.randperm(len(self)).split(self.run.batch):
            yield self._questions(part) if self.by_question else self._triples(part)

    def _triples(self, part: Tensor) -> Batch:
        entity, relation, answer = self.asked[part].t()
        targets = SoftTargets.from_labels(answer, self.graph.entities)
        if self.run.loss in FULL:
            return Batch(entity, relation, None, targets)
        return Batch(entity, relation, *targets.compact())

    def _questions(self, part: Tensor) -> Batch:
        """A question weighs as many triples as it has answers: the sum over an epoch is that over its triples."""
        questions, classes, width = self.questions, None, self.graph.entities
        counts = questions.counts[part]
        row, answer = questions.answers_of(part)
        if self.run.loss not in FULL:
            classes, answer = answer.unique(return_inverse=True)
            width = len(classes)
        # Most questions have few answers, some many: dense rows over those that occur are smaller than padded pairs.
        share = torch.zeros(len(part), width).index_put_((row, answer), counts.float().reciprocal()[row])
        weight = counts * (len(questions) / len(self.asked))
        return Batch(questions.entity[part], questions.relation[part], classes, SoftTargets.from_dense(share), weight)


def loss_of(run: Run, model: Links, marginal: Tensor, rows: Batch) -> Tensor:
    """The mean loss of a batch with its N3 penalty."""
    head, relation = model.entities(rows.entity), model.relations(rows.relation)
    features = model.features(head, relation)
    tails = model.table if rows.classes is None else model.entities(rows.classes)
    if run.loss == "sampled-softmax" and rows.classes is not None:
        negatives = torch.multinomial(marginal, run.negatives, replacement=True)
        answer = rows.classes[rows.targets.labels][:, None]
        sparse = model.entities.sparse
        losses = sampled_softmax(features, model.table, answer, torch.ones(1), negatives, marginal, sparse=sparse)
    else:
        losses = _losses(run, features @ tails.t(), rows, marginal)
    penalty = model.n3(head) + model.n3(relation)
    if rows.weight is not None:
        losses, penalty = losses * rows.weight, penalty * rows.weight
    penalties = penalty.sum() + rows.mass().to(tails.dtype) @ model.n3(tails)
    return (losses.sum() + run.n3 * penalties) / len(losses)


def _losses(run: Run, logits: Tensor, rows: Batch, marginal: Tensor) -> Tensor:
    """The loss of every row, (N,)."""
    targets = rows.targets
    if rows.classes is None:
        return functional.soft_target_cross_entropy(logits, targets, reduction="none")
    eta = marginal[rows.classes]
    if run.loss == "grouped-info-nce":
        # InfoNCE with the batch's labels is the cross-entropy of s + log n, n the labels' counts, up to a constant: the
        # triples of a question share one row of scores.
        adjusted = logits + (rows.mass() / eta).log()
        return functional.soft_target_cross_entropy(adjusted, targets, reduction="none")
    eta = eta / eta.sum()
    if run.loss == "expected-info-nce":
        return functional.expected_info_nce(
            logits, targets, eta, candidates=BatchCandidates(), drop_own_classes=run.drop_own, reduction="none"
        )
    contrast = functional.info_nce if run.loss == "info-nce" else functional.soft_target_info_nce
    return contrast(logits, targets, eta, reduction="none")


class Trainer:
    """A model, its optimiser with a learning rate that falls linearly to 0, and its batches."""

    def __init__(self, run: Run, graph: LinkGraph) -> None:
        torch.manual_seed(derived_seed(run.seed))
        self.run = run
        self.model = Links(run.model, graph.entities, graph.relations, run.rank, sparse=run.loss not in FULL)
        self.optimiser = torch.optim.Adagrad(self.model.parameters(), lr=run.lr)
        self.batches = Batches(run, graph)
        steps = run.epochs * math.ceil(len(self.batches) / run.batch)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimiser, 1.0, 0.0, steps)

    def step(self, rows: Batch) -> None:
        loss_of(self.run, self.model, self.batches.marginal, rows).backward()
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # else Adagrad warns that nobody decided
            self.optimiser.step()
        self.schedule.step()
        self.optimiser.zero_grad()

    def held_bytes(self) -> int:
        """Parameters and what the optimiser keeps of them."""
        kept = [value for state in self.optimiser.state.values() for value in state.values()]
        return sum(value.nbytes for value in [*self.model.parameters(), *kept] if isinstance(value, Tensor))


@torch.random.fork_rng(devices=[])
def perform(run: Run) -> dict[str, Any]:
    """Scores in the course of training and of its best epoch; time counts steps with their batches, not evaluations."""
    graph = named(run.graph)
    trainer = Trainer(run, graph)
    # The same validation triples in every run.
    chosen = torch.randperm(len(graph.valid), generator=torch.Generator().manual_seed(0))[: run.checks]
    checked = graph.both_ways(graph.valid[chosen])
    course: dict[str, list[float]] = defaultdict(list)
    wall = processor = 0.0
    best = trainer.model
    for epoch in range(1, run.epochs + 1):
        started, used = time.perf_counter(), time.process_time()
        for rows in trainer.batches:
            trainer.step(rows)
        wall += time.perf_counter() - started
        processor += time.process_time() - used
        score = summary(ranks(trainer.model, graph, checked))["mrr"]
        if score > max(course["mrr"], default=-1.0):
            best = copy.deepcopy(trainer.model)
        for name, value in (("epoch", epoch), ("seconds", wall), ("cpu_seconds", processor), ("mrr", score)):
            course[name].append(value)
    held = trainer.held_bytes()
    result = {
        "course": dict(course),
        "valid": summary(ranks(best, graph, graph.both_ways(graph.valid))),
        "parameters": sum(weight.numel() for weight in best.parameters()),
        "held_bytes": held,
        "step_bytes": peak_of(partial(trainer.step, next(iter(trainer.batches)))),
    }
    if run.is_final:
        found, unseen = ranks(best, graph, graph.both_ways(graph.test)), graph.unseen(graph.test)
        result |= {"test": summary(found), "unseen": int(unseen.sum()), "test_seen": summary(found[~unseen.repeat(2)])}
    return result


def summary(ranks: Tensor) -> dict[str, float]:
    """Mean reciprocal rank and the shares of ranks up to 1, 3 and 10."""
    hits = {f"hits{k}": (ranks <= k).double().mean().item() for k in (1, 3, 10)}
    return {"mrr": ranks.reciprocal().mean().item(), **hits}


@torch.no_grad()
def ranks(model: Links, graph: LinkGraph, asked: Tensor, block: int = 512) -> Tensor:
    """The filtered rank of each right answer, (n,), double; ``asked`` (n, 3) is entity, relation and right answer.

    Other right answers of the question, of any split, are left out. An answer that ties with c others has the mean of
    the places they share, 1 + higher + c/2: equal scores for all entities gain nothing. NaN is the lowest score.
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
