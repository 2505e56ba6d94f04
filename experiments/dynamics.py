"""How do soft targets change attraction and repulsion? Curves for the gradient analysis of the supplement.

One sample, cosine scores, candidates that are smoothed labels. The curves show how strongly the true label and a wrong
one move the embedding, against their cosine and against the number of negatives; and the penalty that the split of the
loss puts on each class. Everything is in closed form; nothing is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.harness import SERIES, Experiment, Figure, Row, Table, curve, label, largest, option
from softnce.theory import dynamics


@dataclass(frozen=True)
class Options:
    classes: int = option(10, "K", least=3)
    smoothing: tuple[float, ...] = option(
        (0.0, 0.1, 0.3), "ε of the targets and candidates", least=0, below=1, fewest=1
    )
    temperature: float = option(0.2, "τ that divides the cosines; the supplement has 1", above=0)


@dataclass(frozen=True)
class Run:
    """Curves of one ε."""

    smoothing: float
    classes: int
    temperature: float


def runs(options: Options) -> list[Run]:
    return [Run(epsilon, options.classes, options.temperature) for epsilon in options.smoothing]


def perform(run: Run) -> dict[str, Any]:
    """Responses of the true class 0 and the wrong class 1, all other classes at cosine 0."""
    cosines = torch.linspace(-1, 1, 81, dtype=torch.float64)
    labels = smoothed_labels(run.classes, run.smoothing)  # one candidate per class

    def response(true: Tensor, wrong: Tensor, candidates: Tensor, place: int) -> list[float]:
        true, wrong = torch.broadcast_tensors(true, wrong)
        rows = torch.zeros(len(true), run.classes, dtype=torch.float64)
        rows[:, 0], rows[:, 1] = true, wrong
        own = torch.zeros(len(true), dtype=torch.long)
        return dynamics.cosine_response(rows, candidates, own, run.temperature)[:, place].tolist()

    zero = torch.zeros(1, dtype=torch.float64)
    numbers = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    # The target, and negatives that all hold the wrong class.
    hard = [torch.cat([labels[:1], labels[1:2].expand(number, -1)]) for number in numbers]
    target = labels[0]
    return {
        "cosine": cosines.tolist(),
        "true": response(cosines, zero, labels, 0),
        "wrong": response(zero + 0.5, cosines, labels, 1),
        "negatives": numbers,
        "hard_positive": [response(zero, zero, candidates, 0)[0] for candidates in hard],
        "hard_negative": [response(zero + 0.5, zero, candidates, 1)[0] for candidates in hard],
        "penalty_true": (target[0] * (1 - target[0])).item(),
        "penalty_other": (target[1] * (1 - target[1])).item(),
        "cases": cases(labels),
    }


def smoothed_labels(classes: int, epsilon: float) -> Tensor:
    """All K labels smoothed by ε, (K, K)."""
    return (1 - epsilon) * torch.eye(classes, dtype=torch.float64) + epsilon / classes


def cases(labels: Tensor) -> dict[str, list[float]]:
    """The supplement's four cases: factors of the scores of i₀, of i and of the candidate's own label i_l.

    The sample's label i₀ is 0. Each case has a class i of the attraction term and a label i_l of the candidate.
    """
    c = dynamics.exponent_coefficients(labels[0], labels)  # [i, l, j]
    places = {
        "i = i₀, i_l ≠ i₀": (0, 1),
        "i = i₀, i_l = i₀": (0, 0),
        "i ≠ i₀, i_l = i": (1, 1),
        "i ≠ i₀, i_l ≠ i, i₀": (1, 2),
        "i ≠ i₀, i_l = i₀": (1, 0),
    }
    return {name: [c[i, own, j].item() for j in (0, i, own)] for name, (i, own) in places.items()}


def by_epsilon(rows: Sequence[Row]) -> dict[float, dict[str, Any]]:
    """Results by ε, of the commonest number of classes and temperature."""
    kept = largest(rows, "classes", "temperature")
    return {row.config["smoothing"]: row.result for row in sorted(kept, key=lambda row: float(row.config["smoothing"]))}


def tables(rows: Sequence[Row]) -> list[Table]:
    found = by_epsilon(rows)
    epsilon = next((e for e in found if e > 0), 0.0)
    factors = [
        [name, *(f"{value:+.3f}".replace("-", "−") for value in values)]
        for name, values in found[epsilon]["cases"].items()
    ]
    penalty = [[f"ε = {e:g}", f"{r['penalty_true']:.4f}", f"{r['penalty_other']:.4f}"] for e, r in found.items()]
    title = f"Factor of each score in the exponent of candidate l, ε = {epsilon:g}"
    return [
        Table("dynamics-cases", ("case", "score of i₀", "score of i", "score of i_l"), factors, title=title),
        Table("dynamics-penalty", ("smoothing", "true class", "any other"), penalty, title="Penalty α(1 − α)"),
    ]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = by_epsilon(rows)
    panels = (("the true label", "true"), ("a wrong label", "wrong"),
              ("hard positive", "hard_positive"), ("hard negative", "hard_negative"))  # fmt: skip

    def draw(axes: Any) -> None:
        for ax, (title, key) in zip(axes, panels, strict=True):
            x = "negatives" if key.startswith("hard") else "cosine"
            for (epsilon, result), colour in zip(found.items(), SERIES, strict=False):
                curve(ax, dict(zip(result[x], result[key], strict=True)), name=f"ε = {epsilon:g}", colour=colour)
            label(ax, x, "response", title=title, log="x" if x == "negatives" else "")

    return [Figure("dynamics-responses", draw, panels=4, columns=2, size=(4.2, 2.6))]


EXPERIMENT = Experiment(
    name="dynamics", question="How do soft targets change attraction and repulsion?", minutes=0.1,
    presets={"quick": Options(), "paper": Options()}, runs=runs, perform=perform, tables=tables, figures=figures,
)  # fmt: skip
