"""Trainings of every method at every number of classes, one after another: their time is measured."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from softnce.lab.configuration import option
from softnce.lab.experiment.study import Outcome, StudyConfig, timed
from softnce.lab.studies.classes.training import METHODS, Method, Run, train

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
    return [*wanted, *again, *(replace(one, zipf=config.zipf, steps=config.skewed_steps) for one in even)]


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    for run in todo:
        title = f"{run.method}, K={run.classes:,}{f', zipf {run.zipf:g}' if run.zipf else ''}, lr {run.lr:g}"
        task = progress.add_task(title, total=run.steps)
        with torch.random.fork_rng(devices=[]):
            outcome = timed(partial(train, on_step=partial(progress.advance, task)), run)
        progress.remove_task(task)
        yield outcome
