"""How soft targets change attraction and repulsion: the gradient analysis of the supplement, in curves.

One sample, cosine scores, and candidates that are smoothed labels. Shown are how strongly the true label and a wrong
one move the embedding, against their cosine: weak targets (true at 1, wrong at −1) are silent, strong ones (at 0) are
not; how a hard positive and a hard negative respond to the number of negatives; and the penalty that the split of the
loss puts on each class, against ε. Everything is softnce.dynamics in closed form; nothing is trained.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softnce import dynamics
from softnce.lab.configuration import option
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import Outcome, StudyConfig

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.report.page import Section

ORDER = 25
VERSION = 1
COLOURS = ("#009E73", "#0072B2", "#D55E00", "#CC79A7", "#56B4E9")
MARKERS = ("^", "D", "o", "v", "s")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(1, "1: nothing here is random")
    classes: int = option(10, "K")
    smoothing: tuple[float, ...] = option((0.0, 0.1, 0.3), "ε of the targets and candidates")
    temperature: float = option(0.2, "τ that divides the cosines; the supplement has 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes < 3:
            raise ValueError(f"classes: got {self.classes}, need at least 3")
        if not self.smoothing or min(self.smoothing) < 0 or max(self.smoothing) >= 1:
            raise ValueError(f"smoothing: got {list(self.smoothing)}, need values in [0, 1)")
        if not self.temperature > 0:
            raise ValueError(f"temperature: got {self.temperature:g}, need a positive number")


PRESETS = {"quick": Config(), "paper": Config()}


@dataclass(frozen=True)
class Run:
    """Curves of one ε."""

    smoothing: float
    classes: int
    temperature: float


def runs(config: Config) -> list[Run]:
    return [Run(epsilon, config.classes, config.temperature) for epsilon in config.smoothing]


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    for run in todo:
        started = time.perf_counter()
        yield Outcome(run, curves(run), time.perf_counter() - started)


def curves(run: Run) -> dict[str, Any]:
    """Responses of the true class 0 and the wrong class 1, all other classes at cosine 0."""
    cosines = torch.linspace(-1, 1, 81, dtype=torch.float64)
    labels = smoothed_labels(run.classes, run.smoothing)  # one candidate a class

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


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Figure, Line, Panel, Points
    from softnce.lab.report.page import Section, Table, prose

    first = rows[-1].config
    kept = [row for row in rows if (row.config["classes"], row.config["temperature"])
            == (first["classes"], first["temperature"])]  # fmt: skip
    kept.sort(key=lambda row: row.config["smoothing"])
    looks = [(row, f"ε = {row.config['smoothing']:g}", COLOURS[k % 5], MARKERS[k % 5]) for k, row in enumerate(kept)]

    def lines(x: str, y: str, marked: bool = False) -> list[Line]:
        return [
            Line(name, row.result[x], row.result[y], colour=colour, marker=marker if marked else "")
            for row, name, colour, marker in looks
        ]

    responses = Figure(
        "responses",
        prose(f"""How strongly a label moves a unit embedding, |∂ℓ/∂s| √(1 − cos²)/τ, with K = {first["classes"]}
            classes as candidates and τ = {first["temperature"]:g}. Left: the true label, against its cosine. Right: a
            wrong one, the true one at cosine 0.5. Both are silent where the target is weak, and a true label is silent
            at −1 too, where it would be needed most."""),
        [
            Panel("the true label", "cosine of sample and label", "response", lines("cosine", "true")),
            Panel("a wrong label", "cosine of sample and label", "response", lines("cosine", "wrong")),
        ],
    )
    numbers = Figure(
        "negatives",
        prose("""Response of a hard positive (true and wrong label at cosine 0) and of a hard negative (wrong label at
            0, true one at 0.5) against the number of negatives that hold that wrong label. Both grow and then
            saturate, at the target's own strength."""),
        [
            Panel("hard positive", "negatives", "response", lines("negatives", "hard_positive", True), log_x=True),
            Panel("hard negative", "negatives", "response", lines("negatives", "hard_negative", True), log_x=True),
        ],
    )
    epsilons = [row.config["smoothing"] for row in kept]
    penalty = Figure(
        "penalty",
        prose(f"""Weight α(1 − α) of a class's score in the penalty term, K = {first["classes"]}. The supplement says
            the true class is penalised less for ε < 1/2; by its corrected formula it is penalised more."""),
        [
            Panel(
                "",
                "smoothing ε",
                "α(1 − α)",
                [
                    Points("true class", epsilons, [row.result["penalty_true"] for row in kept], colour=COLOURS[0],
                           marker="^", size=8.0),
                    Points("any other", epsilons, [row.result["penalty_other"] for row in kept], colour=COLOURS[2],
                           size=8.0),
                ],
            )
        ],
        panel_size=(4.8, 3.0),
    )  # fmt: skip
    middle = next((row for row in kept if row.config["smoothing"] > 0), kept[0])
    table = Table(
        ["case", "score of i₀", "score of i", "score of i_l"],
        [[name, *(f"{value:+.3f}" for value in values)] for name, values in middle.result["cases"].items()],
        prose(f"""What multiplies each score in the exponent of candidate l, in the attraction term of class i, at
            ε = {middle.config["smoothing"]:g}: positive repels, negative attracts. The supplement's four cases of label
            smoothing; the third has two parts."""),
    )
    return Section(
        "Attraction and repulsion",
        prose("""Soft targets scale what each class does to a sample: the gradient with respect to a score is what the
            candidates hold of the class, less what the target holds of it."""),
        [responses, numbers, table, penalty],
        [
            prose("""softnce.dynamics has these gradients in closed form for dot and cosine scores; the tests hold
                them to automatic differentiation, to 1e-12.""")
        ],
    )
