"""Trainings on a long-tailed part of the data, with and without −log η."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softnce import noise
from softnce.lab.configuration import option
from softnce.lab.data import features
from softnce.lab.data.features import Source
from softnce.lab.data.imbalance import thinned, thirds
from softnce.lab.experiment import probe, search
from softnce.lab.experiment.probe import Probe, targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head
from softnce.lab.losses import LOSSES, Loss

VERSION = 1
CONTRASTIVE = tuple(name for name in LOSSES if LOSSES[name].contrastive)
GROUPS = ("many", "some", "few")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes initial weights, batches, mixing and draws", least=1)
    data: Source = option("cifar100", "data set to make long-tailed")
    imbalance: tuple[float, ...] = option(
        (10.0, 100.0), "samples of the commonest class per sample of the rarest", least=1, fewest=1
    )
    expected_imbalance: tuple[float, ...] = option((100.0,), "those of expected InfoNCE; also among the imbalances")
    epochs: int = option(6, "passes over the training part", least=1)
    batch: int = option(256, "rows in a batch, which are also the candidates", least=2)
    hidden: int = option(256, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "learning rates tried for each setting", above=0, fewest=1)


PRESETS = {
    "quick": Config(
        data="digits", imbalance=(10.0,), expected_imbalance=(10.0,), epochs=8, batch=64, hidden=64, rates=(3e-3, 1e-2)
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Run(Probe):
    """A training on a long-tailed part of the data."""

    imbalance: float = 1.0


def settings(config: Config) -> list[Run]:
    variants = [*map(Loss, LOSSES), *(Loss(name, noise="uniform") for name in CONTRASTIVE)]
    variants += [replace(loss, noise_count=0) for loss in variants if loss.kind.counts_noise]
    return [
        Run(
            config.data,
            loss,
            targets_for(loss.name),
            Head(hidden=config.hidden),
            config.batch,
            epochs=config.epochs,
            imbalance=imbalance,
        )
        for imbalance in config.imbalance
        for loss in variants
        if not loss.kind.counts_noise or imbalance in config.expected_imbalance
    ]


def runs(config: Config) -> list[Run]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    return search.tuned(settings(config), rows, config.rates, config.seeds)


def prepare(todo: Sequence[Run]) -> None:
    features.prepare(run.data for run in todo)


def perform(run: Run) -> dict[str, Any]:
    """Measurements of one training, and by class: samples to train on, test accuracy, mean test score.

    ``switched`` are the test scores with the other prior: log p(y) subtracted from the scores of a model of p(y|x), or
    added to those of a model of p(x|y).
    """
    whole = features.load(run.data)
    part = replace(whole, train=whole.train[thinned(whole.train.y, run.imbalance, whole.num_classes)])
    watch = probe.trained(run, part)
    found = watch.measurements(part)
    logits, labels = watch.logits(part.test.x), part.test.y
    counts = torch.bincount(part.train.y, minlength=part.num_classes)
    prior = noise.from_counts(counts).log()
    of_conditional = run.loss.noise == "labels" or run.loss.name not in CONTRASTIVE
    switched = logits - prior if of_conditional else logits + prior
    by_class = class_accuracy(logits, labels, part.num_classes)
    return found | {
        "switched": probe.scores(switched, labels),
        "groups": {name: by_class[group].mean().item() for name, group in zip(GROUPS, thirds(counts), strict=True)},
        "class_counts": counts.tolist(),
        "class_accuracy": [round(value, 4) for value in by_class.tolist()],
        "class_score": [round(value, 4) for value in (logits - logits.mean(1, keepdim=True)).mean(0).tolist()],
    }


def class_accuracy(logits: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Share of each class's samples that are ranked first, (K,)."""
    right = (logits.argmax(1) == labels).double()
    totals = torch.zeros(2, num_classes, dtype=torch.double)
    totals.index_add_(1, labels, torch.stack([right, torch.ones_like(right)]))
    return totals[0] / totals[1]
