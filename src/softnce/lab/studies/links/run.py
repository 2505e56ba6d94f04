"""Trainings of every loss on every graph: a search on the validation split, then final ones with the test split."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import torch

from softnce.lab.configuration import option
from softnce.lab.data.links import named
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.models.links import Score
from softnce.lab.studies.links.training import LOSSES, Loss, Run, train

VERSION = 1


class Setting(NamedTuple):
    """How a loss is trained on a graph: learning rate at the start, weight of N3, rows of a batch, epochs and rank."""

    lr: float
    n3: float
    batch: int
    epochs: int
    rank: int


USUAL = {
    "FB15k-237": Setting(0.2, 0.05, 1024, 12, 256),
    "WN18RR": Setting(0.5, 0.1, 1024, 16, 256),
    "generated": Setting(0.3, 0.01, 256, 10, 16),
}
FINAL: dict[tuple[str, Loss], Setting] = {
    ("FB15k-237", "grouped-info-nce"): USUAL["FB15k-237"],
    ("FB15k-237", "soft-softmax"): USUAL["FB15k-237"]._replace(lr=0.4, epochs=6),
    ("FB15k-237", "info-nce"): USUAL["FB15k-237"]._replace(epochs=8),
    ("FB15k-237", "expected-info-nce"): USUAL["FB15k-237"],
    ("WN18RR", "grouped-info-nce"): USUAL["WN18RR"],
}
"""The final trainings that were made, with learning rate and N3 as the search found them; others have the graph's usual
setting."""


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(1, "number of seeds of the final trainings: 0, 1, …", least=1)
    graphs: tuple[str, ...] = option(
        ("FB15k-237", "WN18RR"), "folders of SOFTNCE_DATA/links, or generated for a small graph", fewest=1
    )
    losses: tuple[Loss, ...] | None = option(None, "losses; null: on each graph those that results/paper holds, or all")
    models: tuple[Score, ...] = option(("complex",), "complex or distmult", fewest=1)
    rank: int | None = option(
        None, "dimensions of an embedding, complex ones or as many real ones twice; null: as the study sets it", least=1
    )
    search: bool = option(False, "search lr and N3 on the validation split in place of the final trainings")
    lrs: tuple[float, ...] = option((0.1, 0.2, 0.4), "learning rates of the search", above=0, fewest=1)
    n3s: tuple[float, ...] = option((0.05, 0.1), "weights of N3 of the search", least=0, fewest=1)
    search_epochs: int = option(2, "epochs of a search's training", least=1)
    most: int = option(32, "right answers in one row; a question with more has several rows", least=1)
    negatives: int = option(1024, "entities drawn for sampled softmax", least=1)
    epochs: int | None = option(None, "epochs of a final training; null: as the study sets them", least=1)
    checks: int = option(1000, "validation triples ranked after each epoch", least=1)


PRESETS = {
    "quick": Config(graphs=("generated",), negatives=256, checks=300),
    "paper": Config(),
}


def runs(config: Config) -> list[Run]:
    def run(graph: str, loss: Loss, model: Score, seed: int) -> Run:
        setting = FINAL.get((graph, loss), USUAL.get(graph, USUAL["FB15k-237"]))
        rank = setting.rank if config.rank is None else config.rank
        return Run(
            graph=graph,
            model=model,
            loss=loss,
            rank=rank if model == "complex" else 2 * rank,
            lr=setting.lr,
            n3=setting.n3,
            batch=setting.batch,
            most=config.most,
            negatives=config.negatives if loss == "sampled-softmax" else 0,
            epochs=setting.epochs if config.epochs is None else config.epochs,
            checks=config.checks,
            is_final=True,
            seed=seed,
        )

    final = [
        run(graph, loss, model, seed)
        for seed, graph, model in product(range(config.seeds), config.graphs, config.models)
        for loss in config.losses or [loss for of, loss in FINAL if of == graph] or LOSSES
    ]
    if not config.search:
        return final
    return [
        replace(one, lr=lr, n3=n3, epochs=config.search_epochs, is_final=False)
        for one in final
        if one.seed == 0
        for lr, n3 in product(config.lrs, config.n3s)
    ]


def prepare(todo: Sequence[Run]) -> None:
    """A missing file is told before any work."""
    for graph in dict.fromkeys(run.graph for run in todo):
        named(graph)


def perform(run: Run) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        return train(run)
