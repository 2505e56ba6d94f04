"""Rows of the information study to bounds over ε and M, the truths they bound, and verdicts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softnce.information import conditional_entropy, entropy, mutual_information, smoothed_joint
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Finding
from softnce.lab.experiment.comparison import over
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate
from softnce.lab.experiment.text import counted
from softnce.lab.studies.information.run import Table

DRAWN, SOFT, EXPECTED = "soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce"
UNFINISHED = "information: too few runs are finished; run softnce study information again"
ERRORS = 4  # standard errors by which a bound may exceed its truth by chance


@dataclass(frozen=True)
class Information:
    """The rows of the table, steps and batch size that most critics were trained with.

    Attributes:
        rows: trained critics and exact ones of the paper's losses.
        expected: those of expected InfoNCE, η the labels' marginal.
        outside: those of expected InfoNCE with another η, which bound nothing.
        steps, batch_size: of a training.
        most: the largest number of candidates M.
        epsilon: ε while M changes.
    """

    rows: list[Row]
    expected: list[Row]
    outside: list[Row]
    steps: int
    batch_size: int
    most: int
    epsilon: float

    @property
    def joint(self) -> Tensor:
        """The table p(z, y)."""
        return Table(**self.rows[0].config["table"]).joint()

    @property
    def seeds(self) -> str:
        return counted(len({row.config["seed"] for row in self.rows}), "seed")

    def of(self, **wanted: Any) -> list[Row]:
        """The rows whose configuration has these values."""
        return [row for row in self.rows if wanted.items() <= row.config.items()]

    def over(self, x: str, value: str = "bound", **wanted: Any) -> dict[float, Estimate]:
        """Mean of a measured value against a field of the configuration."""
        return over(self.of(**wanted), lambda row: row.config[x], lambda row: row.result[value])

    def truth(self, epsilon: float = 0.0) -> float:
        """I_ε(Z;Y)."""
        return mutual_information(smoothed_joint(self.joint, epsilon)).item()

    def smoothed_uniformly(self, epsilon: float) -> tuple[float, float]:
        """With ξ uniform instead of p(y): H(Y) − H_ε(Y|Z) as printed, and the information of the smoothed channel."""
        joint = self.joint
        channel = smoothed_joint(joint, epsilon, torch.full_like(joint[0], 1 / joint.shape[1]))
        return (entropy(joint.sum(0)) - conditional_entropy(channel)).item(), mutual_information(channel).item()


def read(rows: Sequence[Row]) -> Information:
    trained = [row.config for row in rows if row.config["critic"] != "exact"]
    if not trained:
        raise ValueError(UNFINISHED)
    settings = Counter((str(c["table"]), c["steps"], c["batch_size"]) for c in trained)
    table, steps, batch_size = max(settings, key=lambda setting: (settings[setting], setting))
    every = [row for row in rows if str(row.config["table"]) == table and row.config["steps"] in (0, steps)]
    kept = [row for row in every if row.config["loss"] != EXPECTED]
    ours = [row for row in every if row.config["loss"] == EXPECTED]
    exact = [row.config["epsilon"] for row in kept if row.config["critic"] == "exact"]
    return Information(
        kept,
        [row for row in ours if "noise" not in row.config],
        [row for row in ours if "noise" in row.config],
        steps,
        batch_size,
        most=max(row.config["candidates"] for row in kept),
        epsilon=exact[0] if exact else kept[0].config["epsilon"],
    )


def excess(row: Row, bound: str = "bound") -> float:
    """How far a bound stands above its truth, in standard errors."""
    return float((row.result[bound] - row.result["truth"]) / row.result["standard_error"])


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = read(rows)
    on = f"a known table p(z, y), {found.seeds}"
    drawn = found.of(loss=DRAWN)
    highest = max(row.result["paper_bound"] - row.result["truth"] for row in drawn)
    is_bound = max(excess(row, "paper_bound") for row in drawn) <= ERRORS
    answers = {
        "bound": Finding(
            f"the highest of {len(drawn)} bounds differs by {highest:+.4f} nats from the true value",
            on,
            "reproduced" if is_bound else "not reproduced",
        )
    }
    courses = {loss: found.over("epsilon", loss=loss, critic="free", candidates=found.most) for loss in (DRAWN, SOFT)}
    ends = min(courses[DRAWN]), max(courses[DRAWN])
    if ends[0] < ends[1]:
        (first, last), (soft_first, soft_last) = ([course[end].mean for end in ends] for course in courses.values())
        ours = f"""bound {first:.2f} → {last:.2f} nats from ε = {ends[0]:g} to {ends[1]:g} for labels drawn from soft
            targets; for soft target InfoNCE it does not change, {soft_first:.2f} → {soft_last:.2f}"""
        answers["bound-epsilon"] = Finding(ours, on, "reproduced" if last < first else "not reproduced")
    if found.expected:
        answers["expected-bound"] = _expected(found, on)
    return answers


def _expected(found: Information, on: str) -> Finding:
    highest = max(row.result["bound"] - row.result["truth"] for row in found.expected)
    text = f"the highest of {len(found.expected)} bounds differs by {highest:+.4f} nats from the true value"
    if found.outside:
        over = max(found.outside, key=lambda row: row.result["bound"] - row.result["truth"]).result
        text += f"; with uniform η (not the marginal): {over['bound']:.2f}, true value {over['truth']:.2f}"
    return Finding(text, on, "beyond" if max(map(excess, found.expected)) <= ERRORS else "not reproduced")


def choices(rows: Sequence[Row]) -> list[Choice]:
    found = read(rows)
    if not found.expected:
        return []
    counts = []
    for of_loss, bound in ((found.of(loss=DRAWN), "paper_bound"), (found.expected, "bound")):
        counts.append(f"{sum(excess(row, bound) <= ERRORS for row in of_loss)} of {len(of_loss)}")
    text = f"bounds that are not above the true value: {counts[0]} and {counts[1]}"
    use = "`SoftDistributionInfoNCE` or `ExpectedInfoNCE`, η the marginal of the targets"
    return [Choice("any", "a bound on information wanted", use, text)]
