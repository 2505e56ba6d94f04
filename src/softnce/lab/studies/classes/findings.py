"""What each method costs and learns, by the number of classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.comparison import alike
from softnce.lab.experiment.results import Row
from softnce.lab.studies.classes.training import METHODS, Method

VARIED = ("method", "classes", "lr", "seed", "steps", "seconds", "others")
"""What differs between the runs of one protocol."""


@dataclass(frozen=True)
class Trained:
    """The seeds of one training, at least one, and means over them.

    Attributes:
        accuracy, best_possible: at the end, and of the best guess; in per cent.
        steps, seconds, milliseconds: made, of all of them, and of one.
        peak, spare: gigabytes of memory, and the part that is neither parameters nor state of the optimiser.
        course: seconds, and the accuracy after them in per cent, at the steps that all seeds reached.
    """

    rows: Sequence[Row]
    accuracy: float
    best_possible: float
    steps: float
    seconds: float
    milliseconds: float
    peak: float
    spare: float
    course: tuple[list[float], list[float]]

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the first seed."""
        return self.rows[0].config

    @property
    def key(self) -> tuple[int, Method]:
        """Number of classes and method."""
        return self.config["classes"], self.config["method"]

    def accuracy_by(self, seconds: float) -> float:
        """The best accuracy that was measured within that time, in per cent; 0 if there was none."""
        courses = [row.result["course"] for row in self.rows]
        within = [[a for a, s in zip(c["accuracy"], c["seconds"], strict=True) if s <= seconds] for c in courses]
        return 100 * fmean(max(found, default=0.0) for found in within)


def means(rows: Sequence[Row]) -> Trained:
    """The means over the seeds of one training."""

    def of(value: Callable[[dict[str, Any]], float]) -> float:
        return fmean(value(row.result) for row in rows)

    courses = [row.result["course"] for row in rows]
    reached = range(min(len(course["step"]) for course in courses))
    return Trained(
        rows,
        accuracy=of(lambda r: 100 * r["accuracy"]),
        best_possible=of(lambda r: 100 * r["best_possible"]),
        steps=of(lambda r: r["steps"]),
        seconds=of(lambda r: r["course"]["seconds"][-1]),
        milliseconds=of(lambda r: 1e3 * r["course"]["seconds"][-1] / r["steps"]),
        peak=of(lambda r: r["peak_bytes"] / 1e9),
        spare=of(lambda r: (r["peak_bytes"] - r["held_bytes"]) / 1e9),
        course=(
            [fmean(course["seconds"][i] for course in courses) for i in reached],
            [100 * fmean(course["accuracy"][i] for course in courses) for i in reached],
        ),
    )


Found = dict[tuple[int, Method], Trained]


def find(rows: Sequence[Row]) -> Found:
    """By classes and method, the longest runs of the commonest protocol at the learning rate that ended best."""
    protocols = alike(rows, *(name for name in rows[0].config if name not in VARIED))
    chosen = max(protocols, key=lambda group: (len(group), max(row.config["classes"] for row in group)))
    found: Found = {}
    for trained in map(means, alike(chosen, "classes", "method", "lr", "steps", "seconds")):
        rival = found.get(trained.key, trained)
        found[trained.key] = max(rival, trained, key=lambda one: (one.config["steps"], one.accuracy))
    return {key: found[key] for key in sorted(found, key=lambda key: (key[0], METHODS.index(key[1])))}


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    complete = [classes for classes, _ in found if {(classes, method) for method in METHODS} <= found.keys()]
    if not complete:
        return {}
    largest = max(complete)
    ours, sampled = found[largest, "info-nce-more"], found[largest, "sampled-softmax"]
    full = found[largest, "softmax"].accuracy_by(ours.seconds)
    text = f"""{ours.accuracy:.1f} % at the end of training, after {ours.seconds:.0f} s; by then full softmax
        cross-entropy, on its way, has {full:.1f} %, sampled softmax {sampled.accuracy_by(ours.seconds):.1f} %
        ({sampled.accuracy:.1f} % at its end after {sampled.seconds:.0f} s)"""
    verdict: Verdict = "undecided" if largest < 100_000 else "beyond" if ours.accuracy > full else "not reproduced"
    return {"many-classes": Finding(text, f"generated problem, {largest:,} classes", verdict)}
