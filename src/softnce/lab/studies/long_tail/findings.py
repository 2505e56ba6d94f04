"""What leaving −log η out does, by imbalance, and whether that is the prior."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softnce.lab.data.features import NAMES
from softnce.lab.experiment import search
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Finding
from softnce.lab.experiment.comparison import Value, by_seed, largest, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, Setting, by
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import LOSSES, PAPER, TITLES
from softnce.lab.studies.long_tail.run import CONTRASTIVE

Variant = tuple[str, bool]
"""Name of the loss, with m where it is not the default, and whether log η is subtracted in training."""
NLL: Variant = ("nll", False)
EXPECTED, BATCH_ALONE = "expected-info-nce", "expected-info-nce, m = 0"
NAMED = TITLES | {BATCH_ALONE: f"{TITLES[EXPECTED]}, m = 0"}
SWITCHED = percent("top1", "switched")


@dataclass(frozen=True)
class Tail:
    """The trainings at one imbalance, and the trials of seed 0 at all learning rates."""

    imbalance: float
    chosen: dict[Variant, Setting]
    trials: dict[tuple[Variant, float], Row]

    @property
    def first(self) -> Row:
        return next(iter(self.chosen.values())).rows[0]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return NAMES[self.first.config["data"]]

    @property
    def seeds(self) -> int:
        return max(map(len, self.chosen.values()))

    @property
    def counts(self) -> list[int]:
        """Training samples of each class."""
        return list(self.first.result["class_counts"])

    @property
    def surprise(self) -> list[float]:
        """−log p(y) of each class."""
        return [math.log(sum(self.counts) / count) for count in self.counts]

    @property
    def complete(self) -> bool:
        wanted = [name for name in PAPER if LOSSES[name].contrastive]
        return NLL in self.chosen and set(wanted) <= set(self.both_ways)

    @property
    def both_ways(self) -> list[str]:
        """The contrastive losses that were trained with and without the correction, in the registry's order."""
        return [name for name in NAMED if all((name, c) in self.chosen for c in (False, True))]

    def effect(self, loss: str, value: Value = TOP1) -> Estimate:
        """What leaving the correction out adds."""
        return self.chosen[loss, False].minus(self.chosen[loss, True], value)

    def switched(self, loss: str) -> Estimate:
        """Points of top-1 that subtracting log p(y) after training with the correction adds."""
        return self.chosen[loss, True].mean(lambda row: SWITCHED(row) - TOP1(row))

    @property
    def behind_nll(self) -> Estimate:
        """InfoNCE with the correction, minus NLL."""
        return self.chosen["info-nce", True].minus(self.chosen[NLL], TOP1)

    @property
    def behind_adjusted(self) -> Estimate:
        """InfoNCE without the correction, minus NLL with log p(y) subtracted afterwards."""
        bare, adjusted = by_seed(self.chosen["info-nce", False].rows, TOP1), by_seed(self.chosen[NLL].rows, SWITCHED)
        return estimate([bare[seed] - adjusted[seed] for seed in sorted(bare.keys() & adjusted.keys())])

    @property
    def is_the_prior(self) -> bool:
        """Whether leaving the correction out helps, and most of that can be had by switching the prior afterwards."""
        return all(
            self.effect(loss).low > 0 and self.switched(loss).mean > self.effect(loss).mean / 2
            for loss in ("info-nce", "soft-target-info-nce")
        )

    def shifts(self, loss: str) -> dict[float, list[float]]:
        """By learning rate: the classes' mean scores without minus with the correction, where nothing else differs."""
        found = {}
        for lr in sorted({lr for _, lr in self.trials}):
            bare, corrected = (self.trials.get(((loss, is_corrected), lr)) for is_corrected in (False, True))
            if bare and corrected:
                scores = zip(bare.result["class_score"], corrected.result["class_score"], strict=True)
                found[lr] = [a - b for a, b in scores]
        return found

    def shared_rate(self, loss: str) -> float:
        """The learning rate at which both ways together do best on the held-out part."""
        return max(
            self.shifts(loss), key=lambda lr: sum(search.top1(self.trials[(loss, c), lr]) for c in (False, True))
        )

    def slopes(self, loss: str) -> dict[float, float]:
        """Of the shifts against −log p(y); theory says 1."""
        return {lr: float(np.polyfit(self.surprise, shift, 1)[0]) for lr, shift in self.shifts(loss).items()}

    def bins(self, groups: int = 10) -> list[list[int]]:
        """The classes in groups of (nearly) equal size, rarest first."""
        order = sorted(range(len(self.counts)), key=self.counts.__getitem__)
        size = max(1, -(-len(order) // groups))
        return [order[start : start + size] for start in range(0, len(order), size)]


def tails(rows: Sequence[Row]) -> list[Tail]:
    """Of the largest group of runs on one data set, by imbalance."""
    group = largest(rows, "data", "epochs", "batch")
    chosen = by(lambda config: (config["imbalance"], _variant(config)), group)
    trials = {
        (row.config["imbalance"], (_variant(row.config), row.config["lr"])): row
        for row in group
        if row.config["seed"] == 0
    }
    return [
        Tail(
            imbalance,
            {variant: setting for (other, variant), setting in chosen.items() if other == imbalance},
            {trial: row for (other, trial), row in trials.items() if other == imbalance},
        )
        for imbalance in sorted({imbalance for imbalance, _ in chosen})
    ]


def _variant(config: dict[str, Any]) -> Variant:
    loss = config["loss"]
    name = BATCH_ALONE if loss.get("noise_count") == 0 else loss["name"]
    return name, loss["name"] in CONTRASTIVE and loss["noise"] == "labels"


def in_group(name: str) -> Value:
    """Accuracy of the classes with many, some or few samples, in per cent."""
    return lambda row: 100 * row.result["groups"][name]


def of_classes(classes: Sequence[int]) -> Value:
    """Mean accuracy of these classes, in per cent."""
    return lambda row: 100 * sum(row.result["class_accuracy"][k] for k in classes) / len(classes)


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = tails(rows)
    if not found or not found[-1].complete:
        return {}
    tail, ours = found[-1], "soft-target-info-nce"
    seeds = len(tail.chosen[NLL])
    text = f"""without it {signed(tail.effect(ours), 1)} points on a balanced test; it stands for the prior: log p(y)
        subtracted after training gives {signed(tail.switched(ours), 1)}"""
    on = f"{tail.data} features, imbalance {tail.imbalance:g}, {counted(seeds, 'seed')}"
    is_explained = seeds >= 3 and tail.first.config["data"] != "digits" and tail.is_the_prior
    answers = {"noise-correction": Finding(text, on, "explained" if is_explained else "undecided")}
    if {EXPECTED, BATCH_ALONE} <= set(tail.both_ways):
        answers["long-tail-expected"] = _expected(tail, on)
    return answers


def _expected(tail: Tail, on: str) -> Finding:
    """Uniform η as logit adjustment: what it adds to expected InfoNCE, and where that stands beside the others."""
    adjusted = tail.chosen[BATCH_ALONE, False]
    text = f"""{signed(tail.effect(BATCH_ALONE), 1)} points on a balanced test, without further candidates from η; it is
        then {signed(adjusted.minus(tail.chosen["soft-ce", False], TOP1), 1)} from soft target cross-entropy"""
    is_enough = len(adjusted) >= 3 and tail.first.config["data"] != "digits"
    return Finding(text, on, "beyond" if is_enough else "undecided")


def choices(rows: Sequence[Row]) -> list[Choice]:
    found = tails(rows)
    if not found or BATCH_ALONE not in found[-1].both_ways or found[-1].first.config["data"] == "digits":
        return []
    tail = found[-1]
    gap = tail.chosen[BATCH_ALONE, False].minus(tail.chosen["soft-ce", False], TOP1)
    text = f"""{tail.data} features, imbalance {tail.imbalance:g}: {signed(gap, 1)} points against soft target
        cross-entropy; on labels `InfoNCE(None)` minus `InfoNCE(η)` {signed(tail.effect("info-nce"), 1)}"""
    use = "`ExpectedInfoNCE(None, candidates=BatchCandidates())`, on labels `InfoNCE(None)`"
    return [Choice("any", "unbalanced classes that count equally in the test", use, text)]
