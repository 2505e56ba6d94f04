"""Responses and penalties of the gradient analysis, in closed form."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softnce import dynamics
from softnce.lab.configuration import option
from softnce.lab.experiment.study import StudyConfig

VERSION = 1


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(1, "1: nothing here is random")
    classes: int = option(10, "K", least=3)
    smoothing: tuple[float, ...] = option(
        (0.0, 0.1, 0.3), "ε of the targets and candidates", least=0, below=1, fewest=1
    )
    temperature: float = option(0.2, "τ that divides the cosines; the supplement has 1", above=0)


PRESETS = {"quick": Config(), "paper": Config()}


@dataclass(frozen=True)
class Run:
    """Curves of one ε."""

    smoothing: float
    classes: int
    temperature: float


def runs(config: Config) -> list[Run]:
    return [Run(epsilon, config.classes, config.temperature) for epsilon in config.smoothing]


def perform(run: Run) -> dict[str, Any]:
    """Responses of the true class 0 and the wrong class 1, all other classes at cosine 0."""
    cosines = torch.linspace(-1, 1, 81, dtype=torch.float64)
    labels = smoothed_labels(run.classes, run.smoothing)  # one candidate per class

    def response(true: Tensor, wrong: Tensor, candidates: Tensor, label: int) -> list[float]:
        rows = torch.zeros(len(true), run.classes, dtype=torch.float64)
        rows[:, 0], rows[:, 1] = true, wrong
        own = torch.zeros(len(true), dtype=torch.long)
        return dynamics.cosine_response(rows, candidates, own, run.temperature)[:, label].tolist()

    zero = torch.zeros_like(cosines)
    numbers = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    hard_positive, hard_negative = [], []
    for number in numbers:
        # the target, and negatives that all hold the wrong class
        candidates = torch.cat([labels[:1], labels[1:2].expand(number, -1)])
        hard_positive += response(zero[:1], zero[:1], candidates, 0)
        hard_negative += response(zero[:1] + 0.5, zero[:1], candidates, 1)
    target = labels[0]
    return {
        "cosine": cosines.tolist(),
        "true": response(cosines, zero, labels, 0),
        "wrong": response(torch.full_like(cosines, 0.5), cosines, labels, 1),
        "negatives": numbers,
        "hard_positive": hard_positive,
        "hard_negative": hard_negative,
        "penalty_true": (target[0] * (1 - target[0])).item(),
        "penalty_other": (target[1] * (1 - target[1])).item(),
        "cases": cases(labels),
    }


def smoothed_labels(classes: int, epsilon: float) -> Tensor:
    """All K labels smoothed by ε, (K, K)."""
    return (1 - epsilon) * torch.eye(classes, dtype=torch.float64) + epsilon / classes


def cases(labels: Tensor) -> dict[str, list[float]]:
    """The supplement's four cases: what multiplies the scores of i₀, of i and of the candidate's own label i_l.

    The sample's label i₀ is 0. Case by case: class i of the attraction term and label i_l of the candidate.
    """
    c = dynamics.exponent_coefficients(labels[0], labels)  # [i, l, j]
    return {
        "i = i₀, i_l ≠ i₀": [c[0, 1, 0].item(), c[0, 1, 0].item(), c[0, 1, 1].item()],
        "i = i₀, i_l = i₀": [c[0, 0, 0].item(), c[0, 0, 0].item(), c[0, 0, 0].item()],
        "i ≠ i₀, i_l = i": [c[1, 1, 0].item(), c[1, 1, 1].item(), c[1, 1, 1].item()],
        "i ≠ i₀, i_l ≠ i, i₀": [c[1, 2, 0].item(), c[1, 2, 1].item(), c[1, 2, 2].item()],
        "i ≠ i₀, i_l = i₀": [c[1, 0, 0].item(), c[1, 0, 1].item(), c[1, 0, 0].item()],
    }
