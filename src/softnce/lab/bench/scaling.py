"""How time and memory of a step grow with N, M and K: sweeps of one of them, and exponents fitted to them."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from softnce.lab.bench.cases import CASES, Case, Size
from softnce.lab.bench.measurement import Measurement, Plan
from softnce.lab.configuration import option

Axis = Literal["N", "M", "K"]
AXES: dict[Axis, str] = {"N": "rows N", "M": "candidates M", "K": "classes K"}
LOGITS = (
    "F.cross_entropy, probabilities",
    "published N×M×K formulation",
    "softnce, probabilities",
    "softnce, MixUp pairs",
)
TABLE = ("softnce.linear, pairs",)


@dataclass(frozen=True)
class Sweeps:
    """One of N, M and K grows, the others are fixed. An empty list skips a sweep."""

    rows: tuple[int, ...] = option((128, 256, 512, 1024, 2048), "N, with as many candidates as the largest")
    candidates: tuple[int, ...] = option((128, 256, 512, 1024, 2048, 4096), "M, with as many rows as the smallest")
    classes: tuple[int, ...] = option((1_000, 3_000, 10_000, 30_000, 100_000), "K, from logits")
    table_classes: tuple[int, ...] = option((10_000, 30_000, 100_000, 300_000, 1_000_000), "K, from a table of labels")
    batch: int = option(512, "N and M while K grows")
    fixed_classes: int = option(1_000, "K while N or M grows")

    def plans(self) -> dict[Axis, Plan]:
        """What to measure for each axis."""
        k = self.fixed_classes
        plans: dict[Axis, list[tuple[Case, Size]]] = {"N": [], "M": [], "K": []}
        for name in (*LOGITS, *TABLE):
            case = CASES[name]
            is_contrast = name != LOGITS[0]
            for n in self.rows:
                plans["N"].append((case, Size(n, k, candidates=max(self.rows))))
            for m in self.candidates if is_contrast else ():
                plans["M"].append((case, Size(min(self.candidates), k, candidates=m)))
            for classes in self.table_classes if name in TABLE else self.classes:
                plans["K"].append((case, Size(self.batch, classes)))
        return {axis: plan for axis, plan in plans.items() if plan}


@dataclass(frozen=True)
class Exponent:
    """y ∝ x^value, with the standard error of the fit."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.rounded} ± {self.error:.2f}"

    @property
    def rounded(self) -> str:
        return f"{round(self.value, 2) + 0:.2f}"  # + 0: no minus before zero


def position(axis: Axis, size: Size) -> int:
    return {"N": size.rows, "M": size.m, "K": size.classes}[axis]


def exponent(x: Sequence[float], y: Sequence[float]) -> Exponent:
    """Slope of log y against log x by least squares. Needs two points; its error is 0 for exactly two."""
    if len(x) < 2:
        raise ValueError(f"an exponent needs two points, got {len(x)}")
    u, v = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_u, mean_v = math.fsum(u) / len(u), math.fsum(v) / len(v)
    spread = math.fsum((a - mean_u) ** 2 for a in u)
    slope = math.fsum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / spread
    rest = math.fsum((b - mean_v - slope * (a - mean_u)) ** 2 for a, b in zip(u, v, strict=True))
    error = math.sqrt(rest / (len(u) - 2) / spread) if len(u) > 2 else 0.0
    return Exponent(slope, error)


def exponents(axis: Axis, measurements: Sequence[Measurement]) -> dict[str, dict[str, Exponent]]:
    """By case, the exponents of "time" and "memory"."""
    by_case: dict[str, list[Measurement]] = defaultdict(list)
    for m in measurements:
        if m.times:
            by_case[m.case.name].append(m)
    found = {}
    for name, points in by_case.items():
        if len(points) < 2:
            continue
        x = [position(axis, m.size) for m in points]
        found[name] = {
            "time": exponent(x, [m.seconds.median for m in points]),
            "memory": exponent(x, [m.bytes for m in points]),
        }
    return found
