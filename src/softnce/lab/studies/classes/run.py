"""Trainings of every method at every number of classes, one after another: their time is measured."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from softnce.lab.configuration import option
from softnce.lab.experiment.study import Outcome, StudyConfig, timed
from softnce.lab.studies.classes.training import METHODS, Run, train

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
    negatives: int = option(2048, "classes drawn for sampled softmax", least=1)
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
        classes=(2_000, 10_000), steps=300, views=6, batch=256, candidates=1024, negatives=256, softmax_classes=2_000,
        lrs=(0.3,), tests=500, dim=48,
    ),
    "paper": Config(),
}  # fmt: skip


def runs(config: Config) -> list[Run]:
    others = {"info-nce-more": config.candidates - config.batch, "sampled-softmax": config.negatives}
    names = ("batch", "network_lr", "mix_alpha", "noise", "latent", "dim", "hidden", "tests")
    shared: dict[str, Any] = {name: getattr(config, name) for name in names}
    return [
        Run(
            method,
            classes,
            lr,
            seed,
            steps=max(config.steps, math.ceil(config.views * classes / config.batch)),
            seconds=config.softmax_seconds if method == "softmax" else None,
            others=others.get(method, 0),
            **shared,
        )
        for seed in range(config.seeds)
        for classes in config.classes
        for method in METHODS
        for lr in config.lrs
        if method != "softmax" or classes <= config.softmax_classes
    ]


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    for run in todo:
        task = progress.add_task(f"{run.method}, K={run.classes:,}, lr {run.lr:g}", total=run.steps)
        with torch.random.fork_rng(devices=[]):
            outcome = timed(partial(train, on_step=partial(progress.advance, task)), run)
        progress.remove_task(task)
        yield outcome
