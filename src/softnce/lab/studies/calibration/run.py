"""Trainings with every loss on two kinds of targets."""

from collections.abc import Sequence
from dataclasses import dataclass

from softnce.lab.configuration import option
from softnce.lab.data.features import Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.probe import MIXED, SMOOTH, Probe, targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head
from softnce.lab.losses import LOSSES, Loss
from softnce.lab.targets import Targets

VERSION = 1
prepare, perform = training.prepare, training.train
AUGMENTATIONS: dict[str, Targets] = {"smoothing": SMOOTH, "smoothing and MixUp": MIXED}


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(6, "number of seeds; a seed fixes initial weights, batches and mixing", least=1)
    expected_seeds: int = option(3, "those of expected InfoNCE", least=1)
    data: tuple[Source, ...] = option(("cifar100", "tiny-imagenet"), "data sets", fewest=1)
    epochs: tuple[int, ...] = option((3, 15), "passes over the training part of each data set, in their order", least=1)
    batch: int = option(256, "rows per batch", least=2)
    hidden: int = option(256, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option(
        (3e-4, 1e-3, 3e-3), "learning rates tried for each loss and case", above=0, fewest=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.data) != len(self.epochs):
            raise ValueError(f"epochs: got {list(self.epochs)}, need one number for each of {list(self.data)}")


PRESETS = {
    "quick": Config(seeds=2, expected_seeds=2, data=("digits",), epochs=(3,), batch=64, hidden=64, rates=(1e-3, 3e-3)),
    "paper": Config(),
}


def settings(config: Config) -> list[Probe]:
    """Every loss on every data set and augmentation; losses on labels once, whatever the augmentation."""
    head = Head(hidden=config.hidden)
    found = [
        Probe(source, Loss(name), targets_for(name, targets), head, config.batch, epochs=epochs)
        for source, epochs in zip(config.data, config.epochs, strict=True)
        for targets in AUGMENTATIONS.values()
        for name in LOSSES
    ]
    return list(dict.fromkeys(found))


def runs(config: Config) -> list[Probe]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Probe]:
    wanted = settings(config)
    return [
        *search.tuned([run for run in wanted if run.loss.kind.in_paper], rows, config.rates, config.seeds),
        *search.tuned([run for run in wanted if not run.loss.kind.in_paper], rows, config.rates, config.expected_seeds),
    ]
