"""How near the losses come to people's votes, by the number of votes in training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.experiment import search
from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.comparison import Value, difference, largest, mean, nats
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.studies.human_labels.run import held_out

Way = tuple[str, int]
"""The method, and n of averaged draws."""
CE, OURS, DRAWN, HARD = ("soft-ce", 0), ("soft-target-info-nce", 0), ("soft-dist-info-nce", 0), ("nll", 0)
KL = nats("kl")


@dataclass(frozen=True)
class Votes:
    """The runs at their chosen learning rates, by method and number of votes (0: all)."""

    config: dict[str, Any]
    rates: list[float]
    chosen: dict[tuple[Way, int], list[Row]]

    @property
    def ways(self) -> list[Way]:
        order = [HARD, CE, DRAWN, OURS]
        found = dict.fromkeys(way for way, _ in self.chosen)
        return [way for way in order if way in found] + sorted(way for way in found if way not in order)

    @property
    def numbers(self) -> list[int]:
        """Votes per image, ascending, all of them last."""
        return sorted({number for _, number in self.chosen}, key=lambda number: number or float("inf"))

    @property
    def most(self) -> int:
        """The largest number of votes."""
        return self.numbers[-1]

    @property
    def seeds(self) -> int:
        return min(map(len, self.chosen.values()))

    @property
    def complete(self) -> bool:
        """Whether the largest number of votes has all that is compared."""
        return all((way, self.most) in self.chosen for way in (HARD, CE, OURS, DRAWN))

    @property
    def data(self) -> str:
        return "CIFAR-10H" if self.config["data"] == "cifar10h" else "digits with simulated votes (nobody was asked)"

    def minus(self, way: Way, other: Way, number: int, value: Value = KL) -> Estimate:
        """``value`` of a method minus that of another, paired by seed."""
        return difference(self.chosen[way, number], self.chosen[other, number], value)

    def temperature(self, way: Way, number: int) -> float:
        """The temperature that fits the held-out votes best; predictions are overconfident above 1."""
        return mean(self.chosen[way, number], lambda row: row.result["temperature"]).mean

    @property
    def nearer(self) -> list[int]:
        """Numbers of votes at which soft target cross-entropy is nearer to people than NLL on the majority's label."""
        both = [number for number in self.numbers if {(HARD, number), (CE, number)} <= self.chosen.keys()]
        return [number for number in both if self.minus(CE, HARD, number).high < 0]


def name(way: Way) -> str:
    return f"mean of {way[1]} draws" if way[0] == "averaged" else TITLES[way[0]]


def find(rows: Sequence[Row]) -> Votes | None:
    """The largest group of runs; people's votes before simulated ones."""
    people = [row for row in rows if row.config["data"] == "cifar10h"]
    group = largest(people or rows, "data", "hidden", "batch", "epochs")
    rates = search.tried_rates(group)
    chosen = {}
    for runs in search.at_best_rate(group, rates, held_out).values():
        config = runs[0].config
        chosen[(config["method"], config["n"]), config["votes"]] = runs
    return Votes(group[0].config, rates, chosen) if chosen else None


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
    return {"human-labels": Finding(f"KL to people's votes minus NLL's, in nats: {text}", on, verdict)}
