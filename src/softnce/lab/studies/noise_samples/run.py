"""Trainings with candidates of several kinds over batch sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from softnce.lab.configuration import option
from softnce.lab.data.features import Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.probe import MIXED, Probe
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head
from softnce.lab.losses import Loss

VERSION = 1
prepare = training.prepare
Method = Literal["soft-ce", "batch", "sampled", "queue", "batch+classes", "expected", "expected-0"]
METHODS: dict[Method, str] = {
    "soft-ce": "soft target cross-entropy",
    "batch": "batch",
    "sampled": "sampled",
    "queue": "batch and remembered",
    "batch+classes": "batch and vertices",
    "expected": "expected InfoNCE",
    "expected-0": "expected InfoNCE, m = 0",
}
CONFIRMED: tuple[Method, ...] = ("soft-ce", "sampled")
"""What is trained with further seeds, besides the sharper candidates."""
EXPECTED: tuple[Method, ...] = ("soft-ce", "expected", "expected-0")
"""What is trained with further seeds to test expected InfoNCE."""
FURTHER = 1000
"""Where further seeds begin: those below had a part in deciding what to train."""
SEARCHED = 3
"""Seeds whose mean held-out accuracy decides the learning rates of expected InfoNCE and of cross-entropy at the tested
batch size. Further seeds are also trained at the rates of seed 0 alone, to show what the choice is worth."""
LARGE = 256
"""Batch size from which an epoch has so few steps that higher learning rates are worth a try."""


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds at every batch size", least=1)
    data: Source = option("cifar100", "data set")
    batches: tuple[int, ...] = option((4, 8, 32, 256, 1024), "batch sizes", least=2, fewest=1)
    num_candidates: int = option(4096, "M, sampled or remembered candidates", least=1)
    tested_batch: int = option(8, "batch size of the test of equivalence; also among the batch sizes")
    tested_seeds: int = option(20, "number of seeds there", least=1)
    tested: tuple[Method, ...] = option(("soft-ce", "batch", "sampled"), "what gets so many seeds")
    confirming_seeds: int = option(20, "further seeds there, on which the test is made again", least=0)
    expected_batches: tuple[int, ...] = option(
        (8, 256), "those at which expected InfoNCE is trained and tested", least=2
    )
    expected_seeds: tuple[int, ...] = option((20, 20), "further seeds of that test, in their order", least=0)
    alone_seeds: int = option(20, "those at the tested batch size with the rate of seed 0 alone", least=0)
    numbers: tuple[int, ...] = option((32, 512, 16384), "other M tried there, sampled", least=1)
    sharper: float = option(
        0.2, "MixUp parameter of M sampled candidates nearer to the classes, tried there too", above=0
    )
    epochs: int = option(1, "passes over the training set", least=1)
    longer_epochs: int = option(
        6, "passes of longer trainings at the largest batch size, with cross-entropy and candidates from the batch"
    )
    longer_seeds: int = option(20, "number of seeds of these; 0 omits them", least=0)
    longer_rates: tuple[float, ...] = option(
        (1e-3, 3e-3, 1e-2, 3e-2), "learning rates tried for these", above=0, fewest=1
    )
    hidden: int = option(256, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "learning rates tried", above=0, fewest=1)
    large_rates: tuple[float, ...] = option(
        (1e-2,), f"learning rates tried in addition from batch size {LARGE} on", above=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tested_batch not in self.batches:
            raise ValueError(f"tested_batch: got {self.tested_batch}, need one of the batches {list(self.batches)}")
        if self.longer_epochs <= self.epochs:
            raise ValueError(f"longer_epochs: got {self.longer_epochs}, need more than epochs, {self.epochs}")
        if len(self.expected_seeds) != len(self.expected_batches):
            got, wanted = list(self.expected_seeds), list(self.expected_batches)
            raise ValueError(f"expected_seeds: got {got}, need one number for each of the expected_batches {wanted}")


PRESETS = {
    "quick": Config(
        seeds=2,
        data="digits",
        batches=(8, 64),
        num_candidates=128,
        tested_seeds=3,
        confirming_seeds=0,
        expected_batches=(8, 64),
        expected_seeds=(0, 0),
        alone_seeds=0,
        longer_seeds=0,
        numbers=(32,),
        hidden=64,
        rates=(1e-3, 3e-3),
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Sharper(Probe):
    """A training against sampled candidates whose mixing differs from that of the targets."""

    candidate_mixup: float = 0.2


def loss(method: Method, num_candidates: int) -> Loss:
    match method:
        case "soft-ce":
            return Loss("soft-ce")
        case "expected":
            return Loss("expected-info-nce")
        case "expected-0":
            return Loss("expected-info-nce", noise_count=0)
    kept = num_candidates if method in ("sampled", "queue") else Loss().num_candidates
    return Loss("soft-target-info-nce", candidates=method, num_candidates=kept)


def setting(config: Config, method: Method, batch: int, num_candidates: int | None = None) -> Probe:
    chosen = loss(method, num_candidates or config.num_candidates)
    return Probe(config.data, chosen, MIXED, Head(hidden=config.hidden), batch, epochs=config.epochs)


def sharper(config: Config) -> Sharper:
    probe = setting(config, "sampled", config.tested_batch)
    return Sharper(**{f.name: getattr(probe, f.name) for f in fields(probe)}, candidate_mixup=config.sharper)


def tested_at(config: Config, batch: int) -> tuple[Method, ...]:
    """What is trained to test expected InfoNCE at a batch size; without further candidates at large batches only."""
    if batch not in config.expected_batches:
        return ()
    return EXPECTED if batch >= LARGE else EXPECTED[:2]


def settings(config: Config) -> list[Probe]:
    """Every method at every batch size, the smallest first, which takes longest; then what is tried at one of them."""
    crossed = [
        setting(config, method, batch)
        for batch in sorted(config.batches)
        for method in METHODS
        if method not in EXPECTED[1:] or method in tested_at(config, batch)
    ]
    numbers = [setting(config, "sampled", config.tested_batch, number) for number in config.numbers]
    return [*crossed, *numbers, sharper(config)]


def longer(config: Config) -> list[Probe]:
    """What is trained for more epochs at the largest batch size, where one has few steps."""
    if not config.longer_seeds:
        return []
    compared: tuple[Method, ...] = ("soft-ce", "batch")
    return [replace(setting(config, method, max(config.batches)), epochs=config.longer_epochs) for method in compared]


def rates(config: Config, batch: int) -> tuple[float, ...]:
    return (*config.rates, *config.large_rates) if batch >= LARGE else config.rates


def runs(config: Config) -> list[Probe]:
    tested = [setting(config, method, config.tested_batch) for method in tested_at(config, config.tested_batch)]
    searched = [(probe, 1) for probe in settings(config)] + [(probe, min(SEARCHED, config.seeds)) for probe in tested]
    first = [run for probe, seeds in searched for run in search.trials([probe], rates(config, probe.batch), seeds)]
    return [*first, *search.trials(longer(config), config.longer_rates)]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Probe]:
    batch = config.tested_batch
    tested = [*(setting(config, method, batch) for method in config.tested), sharper(config)]
    wanted = [(probe, config.seeds) for probe in settings(config)] + [(probe, config.tested_seeds) for probe in tested]
    confirmed = [*(setting(config, method, batch) for method in CONFIRMED), sharper(config)]
    expected = [
        (setting(config, method, size), seeds)
        for size, seeds in zip(config.expected_batches, config.expected_seeds, strict=True)
        for method in tested_at(config, size)
    ]

    def tuned(asked: Sequence[tuple[Probe, int]], searched: int = SEARCHED) -> list[Probe]:
        return [
            run
            for probe, seeds in asked
            for run in search.tuned([probe], rows, rates(config, probe.batch), seeds, searched=searched)
        ]

    alone = [(setting(config, method, batch), config.alone_seeds) for method in tested_at(config, batch)]
    further = tuned([*((probe, config.confirming_seeds) for probe in confirmed), *expected]) + tuned(alone, searched=1)
    return [
        *tuned(wanted),
        *search.tuned(longer(config), rows, config.longer_rates, config.longer_seeds),
        *(replace(run, seed=FURTHER + run.seed) for run in further),
    ]


def perform(run: Probe) -> dict[str, Any]:
    return training.train(run, replace(run.targets, mixup=run.candidate_mixup) if isinstance(run, Sharper) else None)
