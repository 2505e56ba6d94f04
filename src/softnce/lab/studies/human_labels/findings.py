"""How near the losses come to people's votes, by the number of votes in training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import MARGIN, Finding, Verdict
from softnce.lab.experiment.comparison import Value, largest, nats
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, Setting, by
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.studies.human_labels.run import held_out

Way = tuple[str, int]
"""The method, with m where it is not the default, and n of averaged draws."""
CE, OURS, DRAWN, HARD = ("soft-ce", 0), ("soft-target-info-nce", 0), ("soft-dist-info-nce", 0), ("nll", 0)
EXPECTED, BATCH_ALONE = ("expected-info-nce", 0), ("expected-info-nce, m = 0", 0)
KL = nats("kl")
KL_MARGIN = 0.003
"""Nats of KL to the votes within which two losses count as equivalent."""


@dataclass(frozen=True)
class Votes:
    """The trainings by method and number of votes (0: all)."""

    chosen: dict[tuple[Way, int], Setting]

    @property
    def config(self) -> dict[str, Any]:
        return next(iter(self.chosen.values())).config

    @property
    def data(self) -> str:
        return "CIFAR-10H" if self.config["data"] == "cifar10h" else "digits with simulated votes (nobody was asked)"

    @property
    def seeds(self) -> int:
        return min(map(len, self.chosen.values()))

    @property
    def ways(self) -> list[Way]:
        found = {way for way, _ in self.chosen}
        order = [HARD, CE, DRAWN, OURS, EXPECTED, BATCH_ALONE, *sorted(way for way in found if way[0] == "averaged")]
        return [way for way in order if way in found]

    @property
    def numbers(self) -> list[int]:
        """Votes per image, ascending, all of them last."""
        return sorted({number for _, number in self.chosen}, key=lambda number: number or float("inf"))

    @property
    def most(self) -> int:
        """The largest number of votes."""
        return self.numbers[-1]

    @property
    def complete(self) -> bool:
        """Whether the largest number of votes has all that is compared."""
        return all((way, self.most) in self.chosen for way in (HARD, CE, OURS, DRAWN))

    def minus(self, way: Way, other: Way, number: int, value: Value = KL) -> Estimate:
        """``value`` of a method minus that of another, paired by seed."""
        return self.chosen[way, number].minus(self.chosen[other, number], value)

    def over(self, other: Way) -> dict[tuple[Way, int], Estimate]:
        """KL of every method minus that of another, where both are."""
        return {
            (way, number): self.minus(way, other, number)
            for way, number in self.chosen
            if way != other and (other, number) in self.chosen
        }


def name(way: Way) -> str:
    if way[0] == "averaged":
        return f"mean of {way[1]} draws"
    method, *m = way[0].split(", ")
    return ", ".join([TITLES[method], *m])


def way_of(config: dict[str, Any]) -> Way:
    m = config.get("noise_count")
    return config["method"] + ("" if m is None else f", m = {m:g}"), config["n"]


def find(rows: Sequence[Row]) -> Votes | None:
    """The largest group of runs; people's votes before simulated ones."""
    people = [row for row in rows if row.config["data"] == "cifar10h"]
    group = largest(people or rows, "data", "hidden", "batch", "epochs")
    chosen = by(lambda config: (way_of(config), config["votes"]), group, held_out)
    return Votes(chosen) if chosen else None


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    if found is None or not found.complete:
        return {}
    gains = {way: found.minus(way, HARD, found.most) for way in (CE, DRAWN, OURS)}
    verdict: Verdict = "undecided"
    if found.config["data"] == "cifar10h" and found.seeds >= 3:
        verdict = "beyond" if any(gain.high < 0 for gain in gains.values()) else "not reproduced"
    text = "; ".join(f"{name(way)} {signed(gain, 3)}" for way, gain in gains.items())
    on = f"{found.data}, {found.most or 'all'} votes per image, {counted(found.seeds, 'seed')}"
    answers = {"human-labels": Finding(f"KL to people's votes minus NLL's, in nats: {text}", on, verdict)}
    gaps = [(found.minus(EXPECTED, CE, n), found.minus(EXPECTED, CE, n, TOP1)) for n in found.numbers
            if (EXPECTED, n) in found.chosen and (CE, n) in found.chosen]  # fmt: skip
    if gaps and (EXPECTED, found.most) in found.chosen:
        answers["expected-votes"] = _expected(found, gaps, on)
    return answers


def _expected(found: Votes, gaps: Sequence[tuple[Estimate, Estimate]], on: str) -> Finding:
    """Expected InfoNCE minus soft target cross-entropy, at every number of votes: within both margins, or not."""
    kl, top1 = gaps[-1]
    widest = [max(max(abs(e.low), abs(e.high)) for e in column) for column in zip(*gaps, strict=True)]
    text = f"""KL {signed(kl, 4)} nats and top-1 {signed(top1)} points from soft target cross-entropy;
        over all numbers of votes the intervals stay within {widest[0]:.4f} nats and {widest[1]:.2f} points"""
    verdict: Verdict = "undecided"
    if found.config["data"] == "cifar10h" and min(e.count for e in gaps[-1]) >= 3:
        within = [kl.low > -KL_MARGIN and kl.high < KL_MARGIN, top1.low > -MARGIN and top1.high < MARGIN]
        beyond = [kl.low > KL_MARGIN or kl.high < -KL_MARGIN, top1.low > MARGIN or top1.high < -MARGIN]
        verdict = "beyond" if all(within) else "not reproduced" if any(beyond) else "undecided"
    return Finding(text, on, verdict)


def choices(rows: Sequence[Row]) -> list[Choice]:
    found = find(rows)
    if found is None or found.config["data"] != "cifar10h" or not found.complete:
        return []
    ours = {way: found.minus(way, CE, found.most) for way in (EXPECTED, OURS) if (way, found.most) in found.chosen}
    text = "KL to the votes minus that of `SoftTargetCrossEntropy`, in nats: " + ", ".join(
        f"{name(way)} {signed(gap, 4)}" for way, gap in ours.items()
    )
    use = "`SoftTargetCrossEntropy` or `ExpectedInfoNCE`"
    return [Choice("votes of several people", "all logits fit", use, f"{found.data}: {text}")]
