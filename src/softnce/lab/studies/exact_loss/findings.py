"""Errors of trained models with and without draws, what a draw says, and what it costs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.comparison import mean
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate
from softnce.lab.experiment.text import counted
from softnce.lab.studies.exact_loss.distribution import SMOOTHING
from softnce.lab.studies.exact_loss.training import CLASSES, Kind, Method, Problem

FEWEST_SEEDS = 3  # for a verdict
Shapes = dict[int, dict[str, Any]]
"""What :func:`~softnce.lab.studies.exact_loss.distribution.shape` measured, by the number of classes."""
TARGETS: dict[Problem, str] = {"labels": "smoothed labels", "conditional": "the true conditional as target"}


@dataclass(frozen=True)
class Trainings:
    """The trainings by problem and method, those of the most epochs where there are several."""

    rows: dict[Problem, dict[Method, list[Row]]]

    @property
    def seeds(self) -> int:
        return len({row.config["seed"] for found in self.rows.values() for rows in found.values() for row in rows})

    def score(self, problem: Problem, method: Method, value: str) -> Estimate:
        """Mean over seeds of what was measured under that name."""
        return mean(self.rows[problem][method], lambda row: row.result[value])

    def error(self, problem: Problem, method: Method) -> Estimate:
        """KL(p‖q), for digits the negative log-likelihood, at the best temperature."""
        return self.score(problem, method, "divergence_at_temperature")

    def once(self, problem: Problem, method: Method, value: str) -> float | None:
        """What was measured for one seed only."""
        found = [row.result[value] for row in self.rows[problem][method] if row.result.get(value) is not None]
        return found[0] if found else None

    def course(self, problem: Problem, method: Method) -> list[float]:
        """Test accuracy after each epoch, mean over seeds."""
        courses = [row.result["course"] for row in self.rows[problem][method]]
        return [sum(values) / len(values) for values in zip(*courses, strict=True)]

    def of_kind(self, problem: Problem, kind: str) -> list[Method]:
        return [method for method in self.rows.get(problem, {}) if method.kind == kind]

    def best(self, problem: Problem, kind: str) -> Method | None:
        """The strength of the least error."""
        return min(self.of_kind(problem, kind), key=lambda method: self.error(problem, method).mean, default=None)


@dataclass(frozen=True)
class Cost:
    """At one number of classes: milliseconds per step by method, and the time of draws beside Dirichlet's."""

    rows: int
    milliseconds: dict[Method, float]
    times_dirichlet: float


def trainings(rows: Sequence[Row]) -> Trainings:
    epochs: dict[str, int] = defaultdict(int)
    for row in of_part(rows, "training"):
        epochs[row.config["problem"]] = max(epochs[row.config["problem"]], row.config["epochs"])
    found: dict[Problem, dict[Method, list[Row]]] = {
        problem: defaultdict(list) for problem in get_args(Problem) if problem in epochs
    }
    for row in of_part(rows, "training"):
        if row.config["epochs"] == epochs[row.config["problem"]]:
            found[row.config["problem"]][Method(**row.config["method"])].append(row)
    kinds = get_args(Kind)
    return Trainings(
        {
            problem: dict(sorted(of_method.items(), key=lambda item: (kinds.index(item[0].kind), item[0].strength)))
            for problem, of_method in found.items()
        }
    )


def shapes(rows: Sequence[Row]) -> Shapes:
    found = {row.config["classes"]: row.result for row in of_part(rows, "shape")}
    return {classes: found[classes] for classes in sorted(found)}


def costs(rows: Sequence[Row]) -> dict[int, Cost]:
    """By the number of classes."""
    found = {}
    for row in sorted(of_part(rows, "cost"), key=lambda row: row.config["classes"]):
        methods = [Method(**method) for method in row.config["methods"]]
        drawing = row.result["draw_seconds"]
        found[row.config["classes"]] = Cost(
            row.config["rows"],
            dict(zip(methods, row.result["milliseconds"], strict=True)),
            drawing["continuous"] / drawing["dirichlet"],
        )
    return found


def of_part(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row.config["part"] == part]


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    of_classes, trained = shapes(rows), trainings(rows)
    found = {}
    if 1000 in of_classes:
        found["exact-sampling"] = _sampling(of_classes)
    for key, kind in (("exact-substitute", "soft-target-info-nce"), ("exact-alternative", "averaged")):
        finding = _beside_exact_draws(trained, kind)
        if finding:
            found[key] = finding
    return found


def _sampling(of_classes: Shapes) -> Finding:
    many, most = of_classes[1000], max(shape["proposals"] for shape in of_classes.values())
    text = f"""{many["proposals"]:.2f} proposals per draw at K = 1000 (at most {most:.2f} up to K = {max(of_classes)});
        the method known before takes 10^{many["log10_original_proposals"]:.0f}. But such a draw says only
        {many["strength"]["1"]["nats"]:.1g} nats about its target"""
    return Finding(
        text, f"labels smoothed by {SMOOTHING:g}, known in closed form", "beyond" if most < 10 else "reproduced"
    )


def _beside_exact_draws(trained: Trainings, kind: str) -> Finding | None:
    """Errors of a kind of loss beside those of exact draws, each at its best strength."""
    words, is_ahead, seeds = [], [], []
    for problem, target in TARGETS.items():
        other, drawn = trained.best(problem, kind), trained.best(problem, "continuous")
        if other is None or drawn is None:
            return None
        ours, exact = trained.error(problem, other), trained.error(problem, drawn)
        strength = f" (n = {other.strength:g})" if kind == "averaged" else ""
        words.append(f"{ours.spread(3)}{strength} against {exact.spread(3)} with {target}")
        is_ahead.append(ours.mean < 1.1 * exact.mean)
        seeds += [ours.count, exact.count]
    verdict: Verdict = "undecided"
    if min(seeds) >= FEWEST_SEEDS:
        verdict = "reproduced" if all(is_ahead) else "explained" if any(is_ahead) else "not reproduced"
        verdict = "beyond" if kind == "averaged" else verdict
    on = f"K = {CLASSES}, known conditional, {counted(trained.seeds, 'seed')}"
    return Finding(f"KL {', '.join(words)}, at the best temperature", on, verdict)
