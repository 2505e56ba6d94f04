"""Trainings of four heads with every loss of the paper, and of two with expected InfoNCE."""

from collections.abc import Sequence
from dataclasses import dataclass

from softnce.lab.configuration import option
from softnce.lab.data.features import Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.probe import Probe, targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head
from softnce.lab.losses import LOSSES, Loss

VERSION = 1
prepare, perform = training.prepare, training.train
CE, OURS, EXPECTED = "soft-ce", "soft-target-info-nce", "expected-info-nce"
LINEAR, LAYERS, AUTHORS = ("linear", False), ("mlp", False), ("mlp", True)
HEADS = {
    LINEAR: "linear",
    ("linear", True): "linear, scores normalised",
    LAYERS: "three layers",
    AUTHORS: "three layers, scores normalised",
}
"""Kind of head, and whether a BatchNorm without parameters follows the scores."""


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes initial weights, batches, mixing and draws", least=1)
    compared_seeds: int = option(
        6, "seeds of the two soft losses the paper compares, with heads as it describes them", least=1
    )
    linear_seeds: int = option(40, "seeds of these two losses with a linear head", least=1)
    data: tuple[Source, ...] = option(("cifar100", "tiny-imagenet"), "data sets", fewest=1)
    epochs: tuple[int, ...] = option((3, 5), "passes over the training part of each data set, in their order", least=1)
    batch: int = option(256, "rows per batch", least=2)
    hidden: int = option(256, "width of the hidden layers", least=1)
    rates: tuple[float, ...] = option(
        (1e-3, 3e-3, 1e-2), "learning rates tried for each loss and head", above=0, fewest=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.data) != len(self.epochs):
            raise ValueError(f"epochs: got {list(self.epochs)}, need one number for each of {list(self.data)}")


PRESETS = {
    "quick": Config(
        seeds=2,
        compared_seeds=2,
        linear_seeds=2,
        data=("digits",),
        epochs=(3,),
        batch=64,
        hidden=64,
        rates=(1e-3, 1e-2),
    ),
    "paper": Config(),
}


def settings(config: Config) -> list[Probe]:
    return [
        Probe(source, Loss(name), targets_for(name), Head(kind, config.hidden, norm), config.batch, epochs=epochs)
        for source, epochs in zip(config.data, config.epochs, strict=True)
        for kind, norm in sorted(HEADS, reverse=True)  # the longest first
        for name in LOSSES
        if LOSSES[name].in_paper or not norm
    ]


def runs(config: Config) -> list[Probe]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Probe]:
    wanted = settings(config)
    compared = [run for run in wanted if run.loss.name in (CE, OURS) and not run.head.output_norm]
    linear = [run for run in compared if run.head.kind == "linear"]
    return [
        *search.tuned(wanted, rows, config.rates, config.seeds),
        *search.tuned(compared, rows, config.rates, config.compared_seeds),
        *search.tuned(linear, rows, config.rates, config.linear_seeds),
    ]
