"""What leaving −log η out does, by imbalance, and whether that is the prior."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softnce.lab.data.features import NAMES
from softnce.lab.experiment import search
from softnce.lab.experiment.claims import Finding
from softnce.lab.experiment.comparison import Value, by_seed, difference, largest, mean, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.studies.long_tail.run import CONTRASTIVE

Variant = tuple[str, bool]
"""Name of the loss, and whether log η is subtracted in training."""
TOP1, SWITCHED = percent("top1"), percent("top1", "switched")


@dataclass(frozen=True)
class Tail:
    """The runs at one imbalance: those at their chosen learning rates, and the trials of seed 0 at all of them."""

    imbalance: float
    chosen: dict[Variant, list[Row]]
    trials: dict[tuple[Variant, float], Row]

    @property
    def config(self) -> dict[str, Any]:
        return next(iter(self.chosen.values()))[0].config

    @property
    def seeds(self) -> int:
        return max(map(len, self.chosen.values()))

    @property
    def counts(self) -> list[int]:
        """Training samples of each class."""
        return list(next(iter(self.chosen.values()))[0].result["class_counts"])

    @property
    def surprise(self) -> list[float]:
        """−log p(y) of each class."""
        total = sum(self.counts)
        return [math.log(total / count) for count in self.counts]

    @property
    def complete(self) -> bool:
        return ("nll", False) in self.chosen and all((name, c) in self.chosen for name in CONTRASTIVE for c in (0, 1))

    def effect(self, loss: str, value: Value = TOP1) -> Estimate:
        """What leaving the correction out adds."""
        return difference(self.chosen[loss, False], self.chosen[loss, True], value)

    def switched(self, loss: str) -> Estimate:
        """Points of top-1 that subtracting log p(y) after training with the correction adds."""
        return mean(self.chosen[loss, True], lambda row: SWITCHED(row) - TOP1(row))

    @property
    def behind_nll(self) -> Estimate:
        """InfoNCE with the correction, minus NLL."""
        return difference(self.chosen["info-nce", True], self.chosen["nll", False], TOP1)

    @property
    def behind_adjusted(self) -> Estimate:
        """InfoNCE without the correction, minus NLL with log p(y) subtracted afterwards."""
        bare, adjusted = by_seed(self.chosen["info-nce", False], TOP1), by_seed(self.chosen["nll", False], SWITCHED)
        return estimate([bare[seed] - adjusted[seed] for seed in sorted(bare.keys() & adjusted.keys())])

    @property
    def best(self) -> Variant:
        """The variant of the highest accuracy."""
        return max(self.chosen, key=lambda variant: mean(self.chosen[variant], TOP1).mean)

    @property
    def is_the_prior(self) -> bool:
        """Whether leaving the correction out helps, and most of that can be had by switching the prior afterwards."""
        return all(
            self.effect(loss).low > 0 and self.switched(loss).mean > self.effect(loss).mean / 2
            for loss in ("info-nce", "soft-target-info-nce")
        )

    def shifts(self, loss: str) -> dict[float, list[float]]:
        """By learning rate: the classes' mean scores without minus with the correction, where nothing else differs."""
        rates = sorted({lr for _, lr in self.trials})
        pairs = {lr: [self.trials.get(((loss, c), lr)) for c in (False, True)] for lr in rates}
        return {
            lr: [a - b for a, b in zip(bare.result["class_score"], corrected.result["class_score"], strict=True)]
            for lr, (bare, corrected) in pairs.items()
            if bare and corrected
        }

    def shared_rate(self, loss: str) -> float:
        """The learning rate at which both ways together do best on the held-out part."""
        return max(
            self.shifts(loss), key=lambda lr: sum(search.top1(self.trials[(loss, c), lr]) for c in (False, True))
        )

    def slopes(self, loss: str) -> dict[float, float]:
        """Of the shifts against −log p(y); theory says 1."""
        return {lr: float(np.polyfit(self.surprise, shift, 1)[0]) for lr, shift in self.shifts(loss).items()}

    def bins(self, groups: int = 10) -> list[list[int]]:
        """The classes in groups of (nearly) equal size by their count, rarest first."""
        order = sorted(range(len(self.counts)), key=self.counts.__getitem__)
        size = max(1, -(-len(order) // groups))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def accuracy(self, variant: Variant, classes: Sequence[int]) -> Estimate:
        """Mean accuracy of these classes, in per cent."""
        return mean(
            self.chosen[variant], lambda row: 100 * sum(row.result["class_accuracy"][k] for k in classes) / len(classes)
        )


def tails(rows: Sequence[Row]) -> list[Tail]:
    """Of the largest group of runs on one data set, by imbalance."""
    group = largest(rows, "data", "epochs", "batch")
    found: dict[float, dict[Variant, list[Row]]] = {}
    for runs in search.at_best_rate(group, search.tried_rates(group)).values():
        found.setdefault(runs[0].config["imbalance"], {})[_variant(runs[0])] = runs
    trials = [row for row in group if row.config["seed"] == 0]
    return [
        Tail(
            imbalance,
            found[imbalance],
            {(_variant(row), row.config["lr"]): row for row in trials if row.config["imbalance"] == imbalance},
        )
        for imbalance in sorted(found)
    ]


def _variant(row: Row) -> Variant:
    loss = row.config["loss"]
    return loss["name"], loss["name"] in CONTRASTIVE and loss["noise"] == "labels"


def in_group(name: str) -> Value:
    """Accuracy of the classes with many, some or few samples, in per cent."""
    return lambda row: 100 * row.result["groups"][name]


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = tails(rows)
    if not found or not found[-1].complete:
        return {}
    tail = found[-1]
    seeds, data = len(tail.chosen["nll", False]), tail.config["data"]
    (ours, ours_after), (plain, plain_after) = (
        (signed(tail.effect(loss), 1), signed(tail.switched(loss), 1)) for loss in ("soft-target-info-nce", "info-nce")
    )
    is_explained = seeds >= 3 and data != "digits" and tail.is_the_prior
    return {
        "noise-correction": Finding(
            f"without it {ours} points on a balanced test (InfoNCE {plain}); it stands for the prior: log p(y) "
            f"subtracted after training gives {ours_after} ({plain_after})",
            f"{NAMES[data]} features, imbalance {tail.imbalance:g}, {counted(seeds, 'seed')}",
            "explained" if is_explained else "undecided",
        )
    }
