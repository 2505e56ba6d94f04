"""Trainings of a head on features and of a small network, with every loss."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softnce.lab import recipes
from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.probe import Probe, targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head
from softnce.lab.losses import LOSSES, PAPER, Loss
from softnce.lab.recipes.recipe import Recipe
from softnce.lab.targets import Targets

VERSION = 1
IMAGE_TARGETS = Targets(smoothing=0.1, mixup=0.8, cutmix=1.0)


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes initial weights, batches and mixing", least=1)
    compared_seeds: int = option(
        36, "seeds of the head with the two soft target losses that the paper compares", least=1
    )
    data: Source = option("cifar100", "data set for the head on frozen features")
    epochs: int = option(3, "passes over the training set, for the head", least=1)
    batch: int = option(256, "rows per batch, for both models", least=2)
    hidden: int = option(512, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option(
        (*search.LEARNING_RATES, 1e-2),
        "learning rates tried for the head: the paper's interval, and beyond it",
        above=0,
        fewest=1,
    )
    image_epochs: int = option(4, "passes over the training set, end to end; 0 omits this part", least=0)
    image_rates: tuple[float, ...] = option(
        (1e-3, 3e-3, 1e-2, 3e-2), "learning rates tried end to end", above=0, fewest=1
    )


PRESETS = {
    "quick": Config(
        seeds=2, compared_seeds=2, data="digits", epochs=3, batch=64, hidden=64, rates=(1e-3, 3e-3), image_epochs=0
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class EndToEnd:
    """One training of a small network on images, as ``softnce train`` does it."""

    loss: Loss
    targets: Targets
    batch: int
    epochs: int
    lr: float = 1e-3
    seed: int = 0
    recipe: str = "laptop/cifar100"
    held_out: float = data.HELD_OUT


Run = Probe | EndToEnd


def heads(config: Config) -> list[Probe]:
    head = Head(hidden=config.hidden)
    return [
        Probe(config.data, Loss(name), targets_for(name), head, config.batch, epochs=config.epochs) for name in LOSSES
    ]


def networks(config: Config) -> list[EndToEnd]:
    if config.image_epochs == 0:
        return []
    return [EndToEnd(Loss(name), targets_for(name, IMAGE_TARGETS), config.batch, config.image_epochs) for name in PAPER]


def runs(config: Config) -> list[Run]:
    # the longest first
    return [*search.trials(networks(config), config.image_rates), *search.trials(heads(config), config.rates)]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    compared = [probe for probe in heads(config) if probe.loss.name in ("soft-ce", "soft-target-info-nce")]
    return [
        *search.tuned(networks(config), rows, config.image_rates, config.seeds),
        *search.tuned(heads(config), rows, config.rates, config.seeds),
        *search.tuned(compared, rows, config.rates, config.compared_seeds),
    ]


def prepare(todo: Sequence[Run]) -> None:
    training.prepare(run for run in todo if isinstance(run, Probe))
    if any(isinstance(run, EndToEnd) for run in todo):
        data.folder("cifar100")


def perform(run: Run) -> dict[str, Any]:
    return train_head(run) if isinstance(run, Probe) else train_network(run)


def train_head(run: Probe) -> dict[str, Any]:
    """What is measured of a head, and ``right``: which test samples it has right, a bit each, in base64."""
    features = data.load(run.data)
    watch = training.trained(run, features)
    result = watch.measurements(features)
    right = watch.logits(features.test.x).argmax(1) == features.test.y
    return result | {"right": b64encode(np.packbits(right.numpy()).tobytes()).decode("ascii")}


def train_network(run: EndToEnd) -> dict[str, Any]:
    """Held-out and test scores of the epoch that is best on the held-out part."""
    from softnce.lab.train.run import scored

    recipe = recipes.load(run.recipe)
    assert isinstance(recipe, Recipe)
    recipe = replace(
        recipe,
        seed=run.seed,
        data=replace(recipe.data, dir=data.folder(recipe.data.kind), holdout=run.held_out, workers=0),
        loss=run.loss,
        targets=run.targets,
        optimiser=replace(recipe.optimiser, batch=run.batch, base_lr=run.lr * 256 / run.batch),
        schedule=replace(recipe.schedule, epochs=run.epochs),
        compute=replace(recipe.compute, accelerator="cpu", progress=False),
    )
    return scored(recipe)
