"""Trainings with and without draws, the distribution of the draws itself, and the cost of a step."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from softnce.lab.configuration import later, option
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.studies.exact_loss import distribution, training
from softnce.lab.studies.exact_loss.training import Method, Problem

VERSION = 1


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes data, initial weights, batches and draws", least=1)
    close_seeds: int = option(
        5, "number of seeds of the losses compared closely, on the known conditional and in gradient noise", least=1
    )
    concentrations: tuple[float, ...] = option(
        (1.0, 3.0, 10.0, 30.0, 100.0), "κ of continuous categorical draws", above=0, below=math.inf
    )
    labels: tuple[int, ...] = option((1, 2, 4, 16), "n of averaged draws", least=1)
    epochs: int = option(40, "passes over the known conditional's training set, 4096 in batches of 256", least=1)
    digits_epochs: int = option(100, "passes over the training set of digits, 400 in batches of 100", least=1)
    gradients: int = option(200, "batches over which the gradient's noise is measured, for seed 0", least=2)
    classes: tuple[int, ...] = option(
        (2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 1000, 3000, 10_000),
        "numbers of classes for the distribution itself",
        least=2,
    )
    cost_classes: tuple[int, ...] = option((10, 100, 1000), "numbers of classes for the cost of a step", least=2)


PRESETS = {
    "quick": Config(
        seeds=1, close_seeds=1, concentrations=(1.0, 10.0), labels=(1, 4), epochs=4, digits_epochs=20, gradients=20,
        classes=(2, 3, 5, 10, 20, 30, 100, 1000), cost_classes=(10, 100),
    ),
    "paper": Config(),
}  # fmt: skip


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


@dataclass(frozen=True)
class Noise:
    """The noise of the gradient of one loss for one seed.

    ``eta`` is the noise η of expected InfoNCE: the marginal of the targets, or of the labels before smoothing.
    """

    problem: Problem
    method: Method
    seed: int
    batches: int
    eta: Literal["targets", "labels"] = later("targets", "marginal of the targets, or of the labels")
    part: str = "noise"


Run = Training | Shape | Cost | Noise
PLAIN = (Method("soft-ce"), Method("soft-target-info-nce"), Method("soft-dist-info-nce"))
EXPECTED = (Method("expected-info-nce"), Method("expected-info-nce", noise_count=0.0))
CLOSE = (Method("soft-ce"), Method("soft-dist-info-nce"), *EXPECTED)
"""Compared closely: soft target cross-entropy, one drawn label, and its expectation with the default m and m = 0."""


def runs(config: Config) -> list[Run]:
    methods = [
        *PLAIN,
        *(Method("averaged", n) for n in config.labels),
        *(Method("continuous", concentration) for concentration in config.concentrations),
    ]
    wanted: list[Run] = [Shape(classes) for classes in config.classes]
    for problem in get_args(Problem):
        epochs = config.digits_epochs if problem == "digits" else config.epochs
        for seed in range(config.seeds):
            gradients = config.gradients if seed == 0 else 0
            wanted += [Training(problem, method, seed, epochs, gradients) for method in (*methods, *EXPECTED)]
    for seed in range(config.close_seeds):
        if seed >= config.seeds:
            wanted += [Training("conditional", method, seed, config.epochs, 0) for method in CLOSE]
        wanted += [Noise(problem, method, seed, config.gradients) for problem in get_args(Problem) for method in CLOSE]
        more = Method("expected-info-nce", noise_count=10.0 * training.CLASSES)
        wanted.append(Noise("labels", more, seed, config.gradients))
        wanted += [Noise("labels", method, seed, config.gradients, "labels") for method in EXPECTED]
    wanted += [Cost(classes, tuple(methods)) for classes in config.cost_classes]
    # the longest first, so that no core is left with it at the end
    return sorted(wanted, key=lambda run: isinstance(run, Training) and run.method.kind == "continuous", reverse=True)


def alone(run: Run) -> bool:
    """Whether the run is a timing, which others would disturb."""
    return isinstance(run, Cost)


def perform(run: Run) -> dict[str, Any]:
    match run:
        case Shape(classes):
            return distribution.shape(classes)
        case Cost(classes, methods, rows):
            return training.cost(classes, methods, rows)
        case Noise(problem, method, seed, batches, eta):
            return {"gradient_noise": training.gradient_noise(problem, method, seed, batches, eta)}
        case Training(problem, method, seed, epochs, gradients):
            result = training.train(problem, method, seed, epochs)
            if gradients:
                result["gradient_noise"] = training.gradient_noise(problem, method, seed, gradients)
                result["nats"] = training.nats(problem, method, seed)
            return result
