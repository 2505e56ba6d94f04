"""What does the exact loss buy? Soft target InfoNCE beside continuous categorical and averaged draws.

Soft target InfoNCE is derived from draws of the continuous categorical distribution and then uses the soft targets
themselves, because the draws were thought too costly. Here the exact loss is trained, at concentrations κ from 1 (the
derivation's) up, and beside it means of n labels, which have an exact ratio too. Parts:

  training on digits (labels smoothed), and on a problem of 100 classes whose conditional p(y|x) is known, with that
  conditional as the soft target (what the derivation assumes) or with smoothed labels (what one has);
  the noise of the gradient, and what a step costs;
  how much a draw says about its target, in nats, as the number of classes grows;
  the normaliser's error and the sampler's proposals beside those of the distribution's original authors.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch

from softnce.lab.configuration import option
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.studies.exact_loss import distribution, training
from softnce.lab.studies.exact_loss.training import Method, Problem

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import Section

ORDER = 80
VERSION = 1


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes data, initial weights, batches and draws")
    concentrations: tuple[float, ...] = option((1.0, 3.0, 10.0, 30.0, 100.0), "κ of continuous categorical draws")
    labels: tuple[int, ...] = option((1, 2, 4, 16), "n of averaged draws")
    epochs: int = option(40, "passes over the training set of the known conditional, 4096 samples in batches of 256")
    digits_epochs: int = option(100, "passes over the training set of digits, 400 in batches of 100")
    gradients: int = option(200, "batches over which the gradient's noise is measured, for seed 0")
    classes: tuple[int, ...] = option(
        (2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 1000, 3000, 10_000), "numbers of classes for the distribution itself"
    )
    cost_classes: tuple[int, ...] = option((10, 100, 1000), "numbers of classes for the cost of a step")

    def __post_init__(self) -> None:
        super().__post_init__()
        least: dict[str, tuple[Sequence[int], int]] = {
            "epochs": ((self.epochs,), 1),
            "digits_epochs": ((self.digits_epochs,), 1),
            "gradients": ((self.gradients,), 2),
            "labels": (self.labels, 1),
            "classes": (self.classes, 2),
            "cost_classes": (self.cost_classes, 2),
        }
        for name, (numbers, low) in least.items():
            for number in numbers:
                if number < low:
                    raise ValueError(f"{name}: got {number}, need at least {low}")
        for concentration in self.concentrations:
            if not 0 < concentration < math.inf:
                raise ValueError(f"concentrations: got {concentration:g}, need positive numbers")


PRESETS = {
    "quick": Config(
        seeds=1,
        concentrations=(1.0, 10.0),
        labels=(1, 4),
        epochs=4,
        digits_epochs=20,
        gradients=20,
        classes=(2, 3, 5, 10, 20, 30, 100, 1000),
        cost_classes=(10, 100),
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Training:
    """One training, and where ``gradients`` is not 0 the noise of its gradient and the strength of its draws."""

    problem: Problem
    method: Method
    seed: int
    epochs: int
    gradients: int
    part: str = "training"


@dataclass(frozen=True)
class Shape:
    """The distribution itself at K classes."""

    classes: int
    part: str = "shape"


@dataclass(frozen=True)
class Cost:
    """Time of a step at K classes, for each method."""

    classes: int
    methods: tuple[Method, ...]
    rows: int = 256
    part: str = "cost"


Run = Training | Shape | Cost


def runs(config: Config) -> list[Run]:
    methods = [
        Method("soft-ce"),
        Method("soft-target-info-nce"),
        Method("soft-dist-info-nce"),
        *(Method("averaged", n) for n in config.labels),
        *(Method("continuous", concentration) for concentration in config.concentrations),
    ]
    wanted: list[Run] = [Shape(classes) for classes in config.classes]
    for problem in get_args(Problem):
        epochs = config.digits_epochs if problem == "digits" else config.epochs
        for seed in range(config.seeds):
            gradients = config.gradients if seed == 0 else 0
            wanted += [Training(problem, method, seed, epochs, gradients) for method in methods]
    wanted += [Cost(classes, tuple(methods)) for classes in config.cost_classes]
    return wanted


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    """One run a core, as many at a time as there are cores; then the timings, alone."""
    together = [run for run in todo if not isinstance(run, Cost)]
    # The longest first, so that no core is left with it at the end.
    together.sort(key=lambda run: isinstance(run, Training) and run.method.kind == "continuous", reverse=True)
    yield from one_per_core(perform, together)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in todo:
            if isinstance(run, Cost):
                yield perform(run)
    finally:
        torch.set_num_threads(threads)


def perform(run: Run) -> Outcome:
    started = time.perf_counter()
    match run:
        case Training(problem, method, seed, epochs, gradients):
            result: dict[str, Any] = training.train(problem, method, seed, epochs)
            if gradients:
                result["gradient_noise"] = training.gradient_noise(problem, method, seed, gradients)
                result["nats"] = training.nats(problem, method, seed)
        case Shape(classes):
            result = distribution.shape(classes)
        case Cost(classes, methods, rows):
            result = training.cost(classes, methods, rows)
    return Outcome(run, result, time.perf_counter() - started)


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.studies.exact_loss.page import exact_loss_section

    return exact_loss_section(rows)


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.studies.exact_loss.page import exact_loss_claims

    return exact_loss_claims(rows)
