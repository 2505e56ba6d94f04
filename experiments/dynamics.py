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

from experiments.harness import SERIES, Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.statistics import exactly, largest
from softnce.theory import dynamics

CASES = {  # a class i of the attraction term, and the label i_l of the candidate; the sample's label i₀ is 0
    "i = i₀, i_l ≠ i₀": (0, 1), "i = i₀, i_l = i₀": (0, 0), "i ≠ i₀, i_l = i": (1, 1), "i ≠ i₀, i_l ≠ i, i₀": (1, 2),
    "i ≠ i₀, i_l = i₀": (1, 0),
}  # fmt: skip
NEGATIVES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Options:
    classes: int = option(10, "K", least=3)
    smoothing: tuple[float, ...] = option((0.0, 0.1, 0.3), "ε of targets and candidates", least=0, below=1, fewest=1)
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
    """Responses of the true class 0 and the wrong class 1, all other classes at cosine 0.

    ``cases`` are the supplement's, by the factors of the scores of i₀, of i and of the candidate's own label i_l.
    """
    cosines, zero = torch.linspace(-1, 1, 81, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    # one candidate per class, smoothed by ε
    labels = (1 - run.smoothing) * torch.eye(run.classes, dtype=torch.float64) + run.smoothing / run.classes

    def response(true: Tensor, wrong: Tensor, candidates: Tensor, place: int) -> list[float]:
        true, wrong = torch.broadcast_tensors(true, wrong)
        rows = torch.zeros(len(true), run.classes, dtype=torch.float64)
        rows[:, 0], rows[:, 1] = true, wrong
        own = torch.zeros(len(true), dtype=torch.long)
        return dynamics.cosine_response(rows, candidates, own, run.temperature)[:, place].tolist()

    # the target, and negatives that all hold the wrong class
    hard = [torch.cat([labels[:1], labels[1:2].expand(number, -1)]) for number in NEGATIVES]
    penalty = labels[0] * (1 - labels[0])
    factors = dynamics.exponent_coefficients(labels[0], labels)  # [i, l, j]
    return {
        "cosine": cosines.tolist(),
        "true": response(cosines, zero, labels, 0),
        "wrong": response(zero + 0.5, cosines, labels, 1),
        "negatives": NEGATIVES,
        "hard_positive": [response(zero, zero, candidates, 0)[0] for candidates in hard],
        "hard_negative": [response(zero + 0.5, zero, candidates, 1)[0] for candidates in hard],
        "penalty_true": penalty[0].item(),
        "penalty_other": penalty[1].item(),
        "cases": {name: [factors[i, own, j].item() for j in (0, i, own)] for name, (i, own) in CASES.items()},
    }


def by_epsilon(rows: Sequence[Row]) -> dict[float, dict[str, Any]]:
    """Results by ε, of the commonest number of classes and temperature."""
    kept = largest(rows, "classes", "temperature")
    return {row.config["smoothing"]: row.result for row in sorted(kept, key=lambda row: float(row.config["smoothing"]))}


def tables(rows: Sequence[Row]) -> list[Table]:
    found = by_epsilon(rows)
    epsilon = next((e for e in found if e > 0), 0.0)
    factors = [
        [name, *(exactly(value).spread(3, sign=True) for value in values)]
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
