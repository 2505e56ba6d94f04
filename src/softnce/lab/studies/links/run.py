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
    ("FB15k-237", "sampled-softmax"): USUAL["FB15k-237"]._replace(epochs=8),
    ("FB15k-237", "soft-target-info-nce"): USUAL["FB15k-237"],
    ("FB15k-237", "softmax"): USUAL["FB15k-237"]._replace(lr=0.4, epochs=3),
    ("WN18RR", "grouped-info-nce"): USUAL["WN18RR"],
    ("WN18RR", "info-nce"): USUAL["WN18RR"],
    ("WN18RR", "expected-info-nce"): USUAL["WN18RR"],
}
"""The final trainings that were made; others have the graph's usual setting."""
Key = tuple[str, Loss, Score]
"""Graph, loss and model."""
SEEDS: dict[Key, int] = {
    ("FB15k-237", "grouped-info-nce", "complex"): 3,
    ("FB15k-237", "soft-softmax", "complex"): 3,
    ("FB15k-237", "sampled-softmax", "complex"): 1,
    ("FB15k-237", "soft-target-info-nce", "complex"): 1,
    ("FB15k-237", "softmax", "complex"): 1,
    ("FB15k-237", "info-nce", "distmult"): 1,
    ("WN18RR", "grouped-info-nce", "complex"): 3,
    ("WN18RR", "info-nce", "complex"): 1,
    ("WN18RR", "expected-info-nce", "complex"): 1,
}
"""The most seeds that such a training was made with, where it was not made with all; named losses have all."""


class Search(NamedTuple):
    """Learning rates and weights of N3 that are tried together, and for how many epochs."""

    lrs: tuple[float, ...]
    n3s: tuple[float, ...]
    epochs: int


USUAL_SEARCH = Search((0.1, 0.2, 0.4), (0.05, 0.1), 2)
SEARCHED: dict[tuple[str, Loss], Search | None] = {
    ("FB15k-237", "soft-softmax"): USUAL_SEARCH._replace(n3s=(0.05,)),
    ("FB15k-237", "info-nce"): None,
    ("FB15k-237", "expected-info-nce"): None,
    ("FB15k-237", "sampled-softmax"): USUAL_SEARCH._replace(n3s=(0.05,)),
    ("FB15k-237", "soft-target-info-nce"): USUAL_SEARCH._replace(n3s=(0.05,)),
    ("FB15k-237", "softmax"): None,
    ("WN18RR", "info-nce"): None,
    ("WN18RR", "expected-info-nce"): None,
    ("WN18RR", "grouped-info-nce"): Search((0.2, 0.5, 1.0), (0.1,), 6),
}
"""Searches that differ from the usual one. None: nothing is tried, the setting is that of grouped InfoNCE or, for the
full softmax with one label per triple, of the one with all right answers."""
RIVALS: dict[tuple[str, Loss], tuple[Setting, ...]] = {
    ("FB15k-237", "grouped-info-nce"): (USUAL["FB15k-237"]._replace(lr=0.4),),
}
"""Settings that were level with the final one in the search and were trained to the end as well, with seed 0."""


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
    search: bool = option(False, "first try learning rates and weights of N3 on the validation split")
    most: int = option(32, "right answers in one row; a question with more has several rows", least=1)
    negatives: int = option(1024, "entities drawn for sampled softmax", least=1)
    epochs: int | None = option(None, "epochs of a final training; null: as the study sets them", least=1)
    checks: int = option(1000, "validation triples ranked after each epoch", least=1)


PRESETS = {
    "quick": Config(graphs=("generated",), negatives=256, checks=300),
    "paper": Config(seeds=5, search=True),
}


def runs(config: Config) -> list[Run]:
    def run(graph: str, loss: Loss, model: Score, seed: int, setting: Setting) -> Run:
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

    compared: list[Key] = [
        (graph, loss, model)
        for graph, model in product(config.graphs, config.models)
        for loss in config.losses or [loss for of, loss in FINAL if of == graph] or LOSSES
    ]
    most = {} if config.losses else {key: seeds for key, seeds in SEEDS.items() if key[0] in config.graphs}
    compared += [key for key in most if key not in compared]
    final = {key: FINAL.get(key[:2], USUAL.get(key[0], USUAL["FB15k-237"])) for key in compared}
    finals = [
        run(*key, seed, final[key])
        for seed in range(config.seeds)
        for key in compared
        if seed < most.get(key, config.seeds)
    ]
    if not config.search:
        return finals
    trials = [
        replace(run(*key, 0, final[key]), lr=lr, n3=n3, epochs=search.epochs, is_final=False)
        for key in compared
        if (search := SEARCHED.get(key[:2], USUAL_SEARCH))
        for lr, n3 in product(search.lrs, search.n3s)
    ]
    rivals = [run(*key, 0, rival) for key in compared for rival in RIVALS.get(key[:2], ())]
    return trials + rivals + finals


def prepare(todo: Sequence[Run]) -> None:
    """A missing file is told before any work."""
    for graph in dict.fromkeys(run.graph for run in todo):
        named(graph)


def perform(run: Run) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        return train(run)
