"""Rows of the dynamics study to the curves of one K and τ, by ε."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.experiment.results import Row


@dataclass(frozen=True)
class Dynamics:
    """Number of classes, temperature, and what was computed, by ε."""

    classes: int
    temperature: float
    by_epsilon: dict[float, dict[str, Any]]


def read(rows: Sequence[Row]) -> Dynamics:
    """The curves of the last row's number of classes and temperature."""
    classes, temperature = (rows[-1].config[name] for name in ("classes", "temperature"))
    kept = [row for row in rows if (row.config["classes"], row.config["temperature"]) == (classes, temperature)]
    by_epsilon = {row.config["smoothing"]: row.result for row in kept}
    return Dynamics(classes, temperature, dict(sorted(by_epsilon.items())))
