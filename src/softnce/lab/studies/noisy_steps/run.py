"""Linear models trained by SGD at several constant learning rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from softnce.lab.configuration import option
from softnce.lab.data import features
from softnce.lab.data.features import Source
from softnce.lab.experiment import probe
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.losses import Loss, LossName, build_loss
from softnce.lab.targets import Targets

VERSION = 1
CE, EXPECTED = "nll", "expected-info-nce"
LOSSES: tuple[LossName, ...] = (CE, "info-nce", EXPECTED)


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(10, "number of seeds; a seed fixes the order of samples", least=1)
    data: Source = option("tiny-imagenet", "data set")
    batch: int = option(256, "rows per batch, which are also the candidates", least=2)
    epochs: int = option(5, "passes over the training part", least=1)
    rates: tuple[float, ...] = option(
        (100.0, 300.0, 1000.0), "learning rates, for features whose squared length is 1 on average", above=0, fewest=2
    )


PRESETS = {
    "quick": Config(seeds=3, data="digits", batch=64, epochs=4, rates=(3.0, 10.0, 30.0)),
    "paper": Config(),
}


@dataclass(frozen=True)
class Run:
    """One training."""

    data: Source
    loss: LossName
    batch: int
    epochs: int
    lr: float
    seed: int


def runs(config: Config) -> list[Run]:
    return [
        Run(config.data, loss, config.batch, config.epochs, lr, seed)
        for seed in range(config.seeds)
        for lr in config.rates
        for loss in LOSSES
    ]


def prepare(todo: Sequence[Run]) -> None:
    features.prepare(run.data for run in todo)


def perform(run: Run) -> dict[str, Any]:
    """Scores of the last weights on the held-out and the test part."""
    data = features.load(run.data, standardised=False)
    scale = data.train.x.square().sum(1).mean().rsqrt()
    x, y = scale * data.train.x, data.train.y
    weight = torch.zeros(data.num_classes, data.dim, requires_grad=True)
    loss = build_loss(Loss(run.loss), Targets(), y, data.num_classes)
    optimiser = torch.optim.SGD([weight], lr=run.lr)
    generator = torch.Generator().manual_seed(run.seed)
    for _ in range(run.epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in order[: len(x) // run.batch * run.batch].view(-1, run.batch):
            optimiser.zero_grad()
            loss(x[rows] @ weight.t(), y[rows]).backward()
            optimiser.step()
    with torch.no_grad():
        parts = {"held_out": data.held_out, "test": data.test}
        return {name: probe.scores(scale * part.x @ weight.t(), part.y) for name, part in parts.items()}
