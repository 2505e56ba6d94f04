"""Rare classes: what does the correction −log η do when classes are not balanced?

The paper subtracts log η from the scores in training, leaves it out afterwards, and notes that this "might introduce
additional bias"; its images are balanced, where the correction cancels. Here the training part is long-tailed and the
test part is not. Theory: candidates from the batch turn up as often as their class, so a contrastive loss fits
exp(s) ∝ p(y|x)/p(y). With the correction the model's scores are then log p(y|x), as NLL's are; without it they are
log p(x|y), which is what a balanced test asks for (logit adjustment). Each contrastive loss is trained both ways,
beside NLL and soft target cross-entropy, and every model is also tested with its prior switched afterwards.

The paper preset needs CIFAR-100 in the folder that SOFTNCE_DATA names; the quick one uses digits.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softnce import noise
from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import Source
from softnce.lab.data.imbalance import thinned, thirds
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import Value, difference, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.probe import Probe, targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.recipes import LOSSES
from softnce.lab.recipes.recipe import Head, Loss

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.experiment.statistics import Estimate
    from softnce.lab.report.page import Section, Table

ORDER = 50
VERSION = 1
CONTRASTIVE = ("info-nce", "soft-dist-info-nce", "soft-target-info-nce")
GROUPS = ("many", "some", "few")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes initial weights, batches, mixing and draws")
    data: Source = option("cifar100", "data set to make long-tailed")
    imbalance: tuple[float, ...] = option((10.0, 100.0), "samples of the commonest class for one of the rarest")
    epochs: int = option(6, "passes over the training part")
    batch: int = option(256, "rows in a batch, which are also the candidates")
    hidden: int = option(256, "width of the head's hidden layers")
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "learning rates tried for each setting")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("epochs", 1), ("batch", 2), ("hidden", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, need at least {least}")
        if not self.imbalance or min(self.imbalance) < 1:
            raise ValueError(f"imbalance: got {list(self.imbalance)}, need numbers of at least 1")
        search.check_rates(self.rates)


PRESETS = {
    "quick": Config(data="digits", imbalance=(10.0,), epochs=8, batch=64, hidden=64, rates=(3e-3, 1e-2)),
    "paper": Config(),
}


@dataclass(frozen=True)
class Run(Probe):
    """A training on a long-tailed part of the data."""

    imbalance: float = 1.0


def settings(config: Config) -> list[Run]:
    variants = [Loss(name) for name in LOSSES] + [Loss(name, noise="uniform") for name in CONTRASTIVE]
    return [
        Run(
            config.data,
            loss,
            targets_for(loss.name),
            Head(hidden=config.hidden),
            config.batch,
            epochs=config.epochs,
            imbalance=imbalance,
        )
        for imbalance in config.imbalance
        for loss in variants
    ]


def runs(config: Config) -> list[Run]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    return search.tuned(settings(config), rows, config.rates, config.seeds)


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    data.prepare(run.data for run in todo)
    yield from one_per_core(perform, todo)


def perform(run: Run) -> Outcome:
    started = time.perf_counter()
    return Outcome(run, train(run), time.perf_counter() - started)


def train(run: Run) -> dict[str, Any]:
    """Measurements of one training, and by class: samples to train on, test accuracy, mean test score.

    ``switched`` are the test scores with the other prior: log p(y) subtracted from the scores of a model of p(y|x), or
    added to those of a model of p(x|y).
    """
    whole = data.load(run.data)
    part = replace(whole, train=whole.train[thinned(whole.train.y, run.imbalance, whole.num_classes)])
    watch = training.trained(run, part)
    found = watch.measurements(part)
    logits, labels = watch.logits(part.test.x), part.test.y
    counts = torch.bincount(part.train.y, minlength=part.num_classes)
    prior = noise.from_counts(counts).log()
    of_conditional = run.loss.noise == "labels" or run.loss.name not in CONTRASTIVE
    switched = logits - prior if of_conditional else logits + prior
    by_class = class_accuracy(logits, labels, part.num_classes)
    return found | {
        "switched": training.scores(switched, labels),
        "groups": {name: by_class[group].mean().item() for name, group in zip(GROUPS, thirds(counts), strict=True)},
        "class_counts": counts.tolist(),
        "class_accuracy": [round(value, 4) for value in by_class.tolist()],
        "class_score": [round(value, 4) for value in (logits - logits.mean(1, keepdim=True)).mean(0).tolist()],
    }


def class_accuracy(logits: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Share of each class's samples that are ranked first, (K,)."""
    right = (logits.argmax(1) == labels).double()
    totals = torch.zeros(2, num_classes, dtype=torch.double)
    totals.index_add_(1, labels, torch.stack([right, torch.ones_like(right)]))
    return totals[0] / totals[1]


# ------------------------------------------------------------------------------------------------------------- page

Variant = tuple[str, bool]  # name of the loss, and whether log η is subtracted in training
TOP1 = percent("top1")
WITH, WITHOUT = ", with −log η", ", without"


@dataclass(frozen=True)
class Tail:
    """The runs at one imbalance: those at their chosen learning rates, and the trials of seed 0 at all of them."""

    imbalance: float
    chosen: dict[Variant, list[Row]]
    trials: dict[tuple[Variant, float], Row]

    @property
    def counts(self) -> list[int]:
        return list(next(iter(self.chosen.values()))[0].result["class_counts"])

    @property
    def surprise(self) -> list[float]:
        """−log p(y) of each class."""
        total = sum(self.counts)
        return [math.log(total / count) for count in self.counts]

    @property
    def complete(self) -> bool:
        return ("nll", False) in self.chosen and all((name, c) in self.chosen for name in CONTRASTIVE for c in (0, 1))

    def effect(self, loss: str, value: Value) -> "Estimate":
        """What leaving the correction out adds."""
        return difference(self.chosen[loss, False], self.chosen[loss, True], value)

    def switched(self, loss: str, corrected: bool) -> "Estimate":
        """Points of top-1 that switching the prior after training adds."""
        runs = self.chosen[loss, corrected]
        return mean(runs, lambda row: 100 * (row.result["switched"]["top1"] - row.result["test"]["top1"]))

    @property
    def is_the_prior(self) -> bool:
        """Whether leaving the correction out helps, and most of that can be had by switching the prior afterwards."""
        return all(
            self.effect(loss, TOP1).low > 0 and self.switched(loss, True).mean > self.effect(loss, TOP1).mean / 2
            for loss in ("info-nce", "soft-target-info-nce")
        )

    def pairs(self, loss: str) -> dict[float, tuple[Row, Row]]:
        """Trials without and with the correction, by their learning rate: nothing else differs."""
        rates = sorted({lr for _, lr in self.trials})
        found = {lr: (self.trials.get(((loss, False), lr)), self.trials.get(((loss, True), lr))) for lr in rates}
        return {lr: (bare, corrected) for lr, (bare, corrected) in found.items() if bare and corrected}

    def slopes(self, loss: str) -> dict[float, float]:
        """Of the classes' mean scores without minus with the correction, against −log p(y); theory says 1."""
        import numpy as np

        return {lr: float(np.polyfit(self.surprise, _shift(*pair), 1)[0]) for lr, pair in self.pairs(loss).items()}


def _shift(bare: Row, corrected: Row) -> list[float]:
    return [a - b for a, b in zip(bare.result["class_score"], corrected.result["class_score"], strict=True)]


def tails(rows: Sequence[Row]) -> list[Tail]:
    """Of the largest group of runs on one data set, by imbalance."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row.config[name] for name in ("data", "epochs", "batch"))].append(row)
    if not groups:
        return []
    group = max(groups.values(), key=len)
    rates = search.tried_rates(group)
    found: dict[float, dict[Variant, list[Row]]] = defaultdict(dict)
    trials: dict[float, dict[tuple[Variant, float], Row]] = defaultdict(dict)
    for chosen in search.at_best_rate(group, rates).values():
        found[chosen[0].config["imbalance"]][_variant(chosen[0])] = chosen
    for row in group:
        if row.config["seed"] == 0:
            trials[row.config["imbalance"]][_variant(row), row.config["lr"]] = row
    return [Tail(imbalance, found[imbalance], trials[imbalance]) for imbalance in sorted(found)]


def _variant(row: Row) -> Variant:
    loss = row.config["loss"]
    return loss["name"], loss["name"] in CONTRASTIVE and loss["noise"] == "labels"


def in_group(name: str) -> Value:
    return lambda row: 100 * row.result["groups"][name]


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.experiment.statistics import estimate
    from softnce.lab.report.charts import Diagonal, Figure, Line, Mark, Panel, Points
    from softnce.lab.report.page import Section, Table, counted, prose

    found = tails(rows)
    if not found:
        return Section("Rare classes and −log η", "The runs of this study are not finished yet.", [])
    config = next(iter(found[-1].chosen.values()))[0].config
    seeds = counted(max(len(runs) for tail in found for runs in tail.chosen.values()), "seed")
    blocks: list[Any] = []

    panels = []
    for tail in found:
        marks = []
        for (loss, corrected), runs in sorted(
            tail.chosen.items(), key=lambda item: list[str](LOSSES).index(item[0][0])
        ):
            x, bins = _bins(tail.counts)
            points = [
                estimate([100 * sum(row.result["class_accuracy"][k] for k in classes) / len(classes) for row in runs])
                for classes in bins
            ]
            y, low, high = ([getattr(e, name) for e in points] for name in ("mean", "low", "high"))
            suffix, dash = _look(loss, corrected)
            marks.append(Line.of_loss(loss, x, y, low, high, suffix=suffix, dash=dash))
        panels.append(
            Panel(f"imbalance {tail.imbalance:g}", "training samples of the class", "accuracy (%)", marks, log_x=True)
        )
    blocks.append(
        Figure(
            "tail",
            prose(f"""Test accuracy of classes, in {len(_bins(found[-1].counts)[1])} groups of as many classes each,
                against how often they are seen in training; {_name(config)}, mean and 95 % interval over {seeds}.
                Solid: losses that model p(y|x); dashed: contrastive losses without −log η."""),
            panels,
            panel_size=(5.2, 3.8),
        )
    )
    complete = [tail for tail in found if tail.complete]
    if complete:
        blocks += [_predictions(complete), prose(_reading(complete[-1]))]

    panels = []
    for tail in found:
        centre = sum(tail.surprise) / len(tail.surprise)
        ends = min(tail.surprise) - centre, max(tail.surprise) - centre
        shifted: list[Mark] = [Diagonal("theory: slope 1", *ends)]
        for loss in CONTRASTIVE:
            if tail.pairs(loss):
                # the rate at which both do best on the held-out part
                lr, pair = max(tail.pairs(loss).items(), key=lambda item: sum(map(search.top1, item[1])))
                x = [value - centre for value in tail.surprise]
                marks_of_loss = Points.of_loss(loss, x, _shift(*pair), size=3.5, opacity=0.75)
                shifted.append(replace(marks_of_loss, hover=[f"learning rate {lr:g}"] * len(x)))
        title = f"imbalance {tail.imbalance:g}"
        panels.append(Panel(title, "−log p(y), centred", "score without − with correction", shifted))
    blocks.append(
        Figure(
            "shift",
            prose("""What leaving −log η out does to the scores: a point is a class, its mean score over the test part
                without the correction minus with it, at the same learning rate and seed (0), against the prediction
                −log p(y); both centred over classes."""),
            panels,
            panel_size=(4.6, 3.6),
        )
    )
    header = ["loss", "imbalance", "top-1 (%)", *(f"classes with {name} (%)" for name in GROUPS), "ECE (%)",
              "top-1, prior switched afterwards (%)", "learning rate"]  # fmt: skip
    blocks.append(
        Table(
            header,
            [
                [
                    _loss_name(loss) + _look(loss, corrected)[0],
                    f"{tail.imbalance:g}",
                    mean(runs, percent("top1")).spread(2),
                    *(mean(runs, in_group(name)).spread(1) for name in GROUPS),
                    mean(runs, percent("ece")).spread(1),
                    mean(runs, percent("top1", "switched")).spread(2),
                    f"{runs[0].config['lr']:g}",
                ]
                for tail in found
                for (loss, corrected), runs in tail.chosen.items()
            ],
            prose(f"""Balanced test part, mean ± half of the 95 % interval over {seeds}. Prior switched afterwards: log
                p(y) subtracted from the scores of models of p(y|x), added to those of models of p(x|y)."""),
        )
    )
    return Section(
        "Rare classes and −log η", prose(_summary(found[-1])), blocks, [prose(text) for text in _method(found, config)]
    )


def _bins(counts: Sequence[int], groups: int = 10) -> tuple[list[float], list[list[int]]]:
    """Classes in groups of (nearly) equal size by their count, rarest first, and the mean count of each group."""
    order = sorted(range(len(counts)), key=counts.__getitem__)
    size = max(1, -(-len(order) // groups))
    bins = [order[start : start + size] for start in range(0, len(order), size)]
    return [sum(counts[k] for k in classes) / len(classes) for classes in bins], bins


def _look(loss: str, corrected: bool) -> tuple[str, str]:
    if loss not in CONTRASTIVE:
        return "", "solid"
    return (WITH, "solid") if corrected else (WITHOUT, "dash")


def _loss_name(loss: str) -> str:
    from softnce.lab.report.style import LOSSES as LOOKS

    return LOOKS[loss].name


def _name(config: dict[str, Any]) -> str:
    return data.NAMES[config["data"]]


def _summary(tail: Tail) -> str:
    if not tail.complete:
        return "The runs of this study are not finished yet."
    effects = "; ".join(f"{_loss_name(loss)} {signed(tail.effect(loss, percent('top1')))}" for loss in CONTRASTIVE)
    return f"""With −log η a contrastive loss aims at p(y|x), prior and all, as NLL does; without it at p(x|y), which is
        logit adjustment. How far trained heads follow that, and where not, is in the table of predictions. At
        imbalance {tail.imbalance:g}, leaving the correction out changes accuracy on a balanced test by
        this many points: {effects}."""


def _predictions(found: Sequence[Tail]) -> "Table":
    """What theory says beside what was measured, a column for each imbalance."""
    from softnce.lab.report.page import Table, prose

    def row(words: str, predicted: str, measured: Callable[[Tail], str]) -> list[str]:
        return [words, predicted, *map(measured, found)]

    def by_group(loss: str) -> Callable[[Tail], str]:
        return lambda tail: "; ".join(signed(tail.effect(loss, in_group(name)), 1) for name in reversed(GROUPS))

    rows = [
        row(
            "InfoNCE with −log η, minus NLL (points of top-1)",
            "0",
            lambda tail: signed(difference(tail.chosen["info-nce", True], tail.chosen["nll", False], percent("top1"))),
        ),
        row(
            "InfoNCE without, minus NLL with log p(y) subtracted afterwards (points)",
            "0",
            lambda tail: signed(_against_adjusted(tail)),
        ),
    ]
    for loss in CONTRASTIVE:
        name = _loss_name(loss)
        rows += [
            row(
                f"{name}: slope of the shift of scores against −log p(y)",
                "1",
                lambda tail, loss=loss: ", ".join(f"{slope:.2f}" for slope in tail.slopes(loss).values()),  # type: ignore[misc]
            ),
            row(
                f"{name}: points from log p(y) subtracted afterwards; from leaving −log η out",
                "equal",
                lambda tail, loss=loss: "; ".join(  # type: ignore[misc]
                    signed(e, 1) for e in (tail.switched(loss, True), tail.effect(loss, percent("top1")))
                ),
            ),
            row(f"{name}: points from leaving it out, classes with few samples; some; many", "+; ; −", by_group(loss)),
        ]
    rates = ", ".join(f"{lr:g}" for lr in found[-1].slopes(CONTRASTIVE[0]))
    return Table(
        ["on a balanced test", "predicted", *(f"imbalance {tail.imbalance:g}" for tail in found)],
        rows,
        prose(f"""Differences are paired by seed, with 95 % intervals. Slopes are those of seed 0 at the learning rates
            {rates}, the same with and without. Where a slope is well below 1, the few samples of rare classes are
            likely fitted so well that their loss hardly depends on the shift."""),
    )


def _against_adjusted(tail: Tail) -> "Estimate":
    from softnce.lab.experiment.statistics import estimate

    adjusted = {row.config["seed"]: row.result["switched"]["top1"] for row in tail.chosen["nll", False]}
    bare = {row.config["seed"]: row.result["test"]["top1"] for row in tail.chosen["info-nce", False]}
    return estimate([100 * (bare[seed] - adjusted[seed]) for seed in sorted(bare.keys() & adjusted.keys())])


def _reading(tail: Tail) -> str:
    errors = "; ".join(
        f"""{_loss_name(loss)} {mean(tail.chosen[loss, True], percent("ece")).mean:.1f} % with and
        {mean(tail.chosen[loss, False], percent("ece")).mean:.1f} % without"""
        for loss in CONTRASTIVE
    )
    top = {key: mean(runs, percent("top1")).mean for key, runs in tail.chosen.items()}
    best = max(top, key=top.__getitem__)
    meaning = """So the correction is no bias of its own: it decides whether the prior of the training set is part of
        the prediction. Keep it where training and test have the same classes as often; leave it out (or subtract
        log p(y) afterwards) where they do not."""
    if not tail.is_the_prior:
        meaning = "These runs do not show that the prior is all that the correction is about."
    first = _loss_name(best[0]) + _look(*best)[0]
    adjusted = mean(tail.chosen["nll", False], percent("top1", "switched")).mean
    return f"""At imbalance {tail.imbalance:g} ({max(tail.counts)} samples of the commonest class, {min(tail.counts)} of
        the rarest) the highest accuracy on a balanced test is {top[best]:.1f} %, of {first}; NLL has
        {top["nll", False]:.1f} %, and {adjusted:.1f} % with log p(y) subtracted afterwards. Calibration error on the
        balanced test: {errors}. {meaning}"""


def _method(found: Sequence[Tail], config: dict[str, Any]) -> list[str]:
    return [
        f"""The training part of {_name(config)} is thinned so that class k of K keeps imbalance^(−k/(K−1)) of its
        samples, the same ones for every run. Held-out and test part stay balanced; the held-out part chooses epoch and
        learning rate, so every loss is tuned for what is tested. {config["epochs"]} epochs of batches of
        {config["batch"]}, three layers of {config["head"]["hidden"]}. Hard losses see labels, soft ones labels
        smoothed by 0.1 and mixed (MixUp, 0.8). Confidences are softmax of the scores.""",
        """Why. A candidate from the batch is of class y with probability p(y), the row's own target with p(y|x), so the
        best critic is exp(s_y) ∝ p(y|x)/p(y) at any batch size. With s = logit − log η and η = p(y), this is
        logit = log p(y|x). Without, logit = log p(y|x) − log p(y) = log p(x|y), up to a number that all classes share.
        So the correction is a choice of the prior that predictions are made with. It is exact for InfoNCE. Soft
        distribution InfoNCE draws labels from smoothed targets, whose marginal is (1−ε)·p(y) + ε/K rather than the η of
        the labels: for rare classes −log η then takes too much back. For soft target InfoNCE smoothing is a temperature
        1/(1−ε) (shared smoothing cancels), so the log-ratio is stretched by that factor while log η is not. Whatever
        the loss, s is what it is trained on, so with and without the correction the best logits differ by log η.""",
    ]


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import counted

    found = tails(rows)
    if not found or not found[-1].complete:
        return {}
    tail = found[-1]
    config = tail.chosen["nll", False][0].config
    seeds = len(tail.chosen["nll", False])
    effects = {loss: tail.effect(loss, percent("top1")) for loss in CONTRASTIVE}
    after = {loss: tail.switched(loss, True) for loss in CONTRASTIVE}
    ours, plain = "soft-target-info-nce", "info-nce"
    enough = seeds >= 3 and config["data"] != "digits"
    text = f"""without it {signed(effects[ours], 1)} points on a balanced test (InfoNCE {signed(effects[plain], 1)}); it
        stands for the prior: log p(y) subtracted after training gives {signed(after[ours], 1)}
        ({signed(after[plain], 1)})"""
    return {
        "noise-correction": Finding(
            " ".join(text.split()),
            f"{_name(config)} features, imbalance {tail.imbalance:g}, {counted(seeds, 'seed')}",
            "explained" if enough and tail.is_the_prior else "undecided",
        )
    }
