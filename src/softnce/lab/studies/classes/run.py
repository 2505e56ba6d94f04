"""Trainings of every method at every number of classes, one after another: their time is measured."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from softnce.lab.configuration import option, to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import Outcome, StudyConfig, timed
from softnce.lab.studies.classes.training import METHODS, Method, Run, TableOptimiser, train

if TYPE_CHECKING:
    from rich.progress import Progress

VERSION = 1


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(1, "number of seeds; a seed fixes the problem, the batches and the first weights", least=1)
    classes: tuple[int, ...] = option((10_000, 100_000, 1_000_000), "K", fewest=1)
    steps: int = option(2000, "training steps, at least", least=1)
    views: int = option(20, "times every class is seen, at least; a million classes then need more steps", least=1)
    batch: int = option(1024, "N, rows of a batch", least=1)
    candidates: int = option(2048, "M of the run with more candidates than its batch has", least=1)
    negatives: int = option(
        2048, "classes drawn for sampled softmax, and for expected InfoNCE beside the batch", least=1
    )
    fewer: bool = option(False, "at the further seed, expected InfoNCE also with as many as soft target InfoNCE has")
    repeated: tuple[int, ...] = option((100_000,), "K of a further seed of all but the full softmax")
    expected: tuple[int, ...] = option((100_000,), "K at which expected InfoNCE is run")
    skewed: tuple[int, ...] = option((), "K of a problem with skewed frequencies, all but the full softmax")
    skewed_steps: int = option(600, "training steps of that problem", least=1)
    zipf: float = option(1.0, "exponent of those frequencies, 1/rank^zipf", above=0)
    searched: tuple[int, ...] = option(
        (10_000, 100_000), "K at which, in a smaller size, every method's optimiser and rate of the table are searched"
    )
    searched_largest: tuple[int, ...] = option((1_000_000,), "K trained with what was found at the largest of those")
    searched_skewed: tuple[int, ...] = option((10_000,), "K with skewed frequencies trained with what was found there")
    searched_seeds: int = option(3, "seeds there, besides that of the search", least=1)
    searched_steps: int = option(400, "training steps there, at least", least=1)
    searched_views: int = option(10, "times every class is seen there, at least", least=1)
    searched_batch: int = option(256, "N there, and as many drawn beside it", least=1)
    searched_dim: int = option(32, "d there", least=1)
    searched_hidden: int = option(128, "width of the network there", least=1)
    adam_lrs: tuple[float, ...] = option(
        (0.1, 0.3, 1.0, 3.0, 10.0), "rates of SparseAdam tried there", above=0, fewest=1
    )
    adagrad_lrs: tuple[float, ...] = option(
        (1.0, 3.0, 10.0, 30.0), "rates of row-wise Adagrad tried there", above=0, fewest=1
    )
    softmax_classes: int = option(100_000, "K up to which the full softmax is run")
    softmax_seconds: float = option(400.0, "time after which the full softmax stops where it is", above=0)
    lrs: tuple[float, ...] = option((0.3,), "learning rates of the table, each tried", above=0, fewest=1)
    network_lr: float = option(3e-3, "learning rate of the network", above=0)
    mix_alpha: float = option(0.2, "parameter of MixUp's Beta distribution", above=0)
    noise: float = option(0.5, "standard deviation around a class's point, of which each coordinate has 1", above=0)
    latent: int = option(32, "coordinates of a class's point, and of a sample", least=1)
    dim: int = option(64, "d, features of a label embedding", least=1)
    hidden: int = option(256, "width of the network", least=1)
    tests: int = option(1000, "samples accuracy is measured on", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates <= self.batch:
            raise ValueError(f"candidates: got {self.candidates}, need more than the {self.batch} of the batch")
        if min(self.classes) < self.batch:
            raise ValueError(f"classes: got {min(self.classes)}, need at least the {self.batch} rows of a batch")


PRESETS = {
    "quick": Config(
        classes=(2_000, 10_000), repeated=(), expected=(2_000, 10_000), skewed=(2_000,), skewed_steps=300, steps=300,
        views=6, batch=256, candidates=1024, negatives=256, softmax_classes=2_000, lrs=(0.3,), tests=500, dim=48,
        searched=(2_000,), searched_largest=(), searched_skewed=(), searched_seeds=1, searched_steps=100,
        searched_views=5, searched_batch=256, adam_lrs=(0.3,), adagrad_lrs=(3.0,),
    ),
    "paper": Config(),
}  # fmt: skip


def runs(config: Config) -> list[Run]:
    others = {
        "info-nce-more": config.candidates - config.batch,
        "expected-info-nce": config.negatives,
        "sampled-softmax": config.negatives,
    }
    names = ("batch", "network_lr", "mix_alpha", "noise", "latent", "dim", "hidden", "tests")
    shared: dict[str, Any] = {name: getattr(config, name) for name in names}

    def run(method: Method, classes: int, lr: float, seed: int) -> Run:
        return Run(
            method,
            classes,
            lr,
            seed,
            steps=max(config.steps, math.ceil(config.views * classes / config.batch)),
            seconds=config.softmax_seconds if method == "softmax" else None,
            others=others.get(method, 0),
            **shared,
        )

    wanted = [
        run(method, classes, lr, seed)
        for seed in range(config.seeds)
        for classes in config.classes
        for method in METHODS
        for lr in config.lrs
        if method != "softmax" or classes <= config.softmax_classes
        if method != "expected-info-nce" or classes in config.expected
    ]
    shortcuts = [(method, lr) for method in METHODS if method != "softmax" for lr in config.lrs]
    again = [run(method, classes, lr, config.seeds) for classes in config.repeated for method, lr in shortcuts]
    if config.fewer:
        ours = [one for one in again if one.method == "expected-info-nce"]
        again += [replace(one, others=others["info-nce-more"]) for one in ours]
    even = [run(method, classes, lr, 0) for classes in config.skewed for method, lr in shortcuts]
    skewed = [replace(one, zipf=config.zipf, steps=config.skewed_steps) for one in even]
    return [*wanted, *again, *skewed, *(run for classes in config.searched for run in trials(config, classes))]


def trials(config: Config, classes: int) -> list[Run]:
    """Every method with every optimiser and rate of the table, in the smaller size, for seed 0."""
    rates: list[tuple[TableOptimiser, float]] = [("sparse-adam", lr) for lr in config.adam_lrs]
    rates += [("row-adagrad", lr) for lr in config.adagrad_lrs]
    steps = max(config.searched_steps, math.ceil(config.searched_views * classes / config.searched_batch))
    return [
        Run(
            method, classes, lr, 0, steps, None, config.searched_batch,
            others=0 if method == "info-nce" else config.searched_batch,
            network_lr=config.network_lr, mix_alpha=config.mix_alpha, noise=config.noise, latent=config.latent,
            dim=config.searched_dim, hidden=config.searched_hidden, tests=config.tests,
            part="searched", table_optimiser=optimiser,
        )
        for method in METHODS
        if method != "softmax"
        for optimiser, lr in rates
    ]  # fmt: skip


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    """Further seeds of each method with the optimiser and the rate that were best; the largest K come last."""
    best = {classes: chosen(trials(config, classes), rows) for classes in sorted(config.searched)}
    even = [run for of_classes in best.values() for run in of_classes.values()]
    largest = best[max(best)] if best else {}
    skewed = [
        replace(_sized(config, run, classes), zipf=config.zipf)
        for classes in config.searched_skewed
        for run in best.get(classes, largest).values()
    ]
    enlarged = [_sized(config, run, classes) for classes in config.searched_largest for run in largest.values()]
    seeds = range(1, 1 + config.searched_seeds)
    return [replace(run, seed=seed) for part in ([*even, *skewed], enlarged) for seed in seeds for run in part]


def _sized(config: Config, run: Run, classes: int) -> Run:
    return replace(run, classes=classes, steps=trials(config, classes)[0].steps)


def chosen(tried: Sequence[Run], rows: Sequence[Row]) -> dict[Method, Run]:
    """By method, the run that ended with the highest accuracy; none where one of its trials is not finished."""
    accuracy = {json.dumps(row.config, sort_keys=True): float(row.result["accuracy"]) for row in rows}
    ended = {run: accuracy.get(json.dumps(to_mapping(run), sort_keys=True)) for run in tried}
    found: dict[Method, Run] = {}
    for method in METHODS:
        of_method = {run: value for run, value in ended.items() if run.method == method}
        finished = {run: value for run, value in of_method.items() if value is not None}
        if finished and len(finished) == len(of_method):
            found[method] = max(finished, key=finished.__getitem__)
    return found


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    for run in todo:
        title = f"{run.method}, K={run.classes:,}{f', zipf {run.zipf:g}' if run.zipf else ''}, lr {run.lr:g}"
        task = progress.add_task(title, total=run.steps)
        with torch.random.fork_rng(devices=[]):
            outcome = timed(partial(train, on_step=partial(progress.advance, task)), run)
        progress.remove_task(task)
        yield outcome
