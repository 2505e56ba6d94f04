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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softnce import noise
from softnce.lab.configuration import option
from softnce.lab.imbalance import thinned, thirds
from softnce.lab.parallel import one_per_core
from softnce.lab.probe import data, search, training
from softnce.lab.probe.compare import Value, difference, mean, percent, signed, spread
from softnce.lab.probe.data import Source
from softnce.lab.probe.training import Probe, targets_for
from softnce.lab.recipes import LOSSES
from softnce.lab.recipes.recipe import Head, Loss
from softnce.lab.results import Row
from softnce.lab.studies import Outcome, StudyConfig

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.report.claims import Finding
    from softnce.lab.report.page import Section
    from softnce.lab.report.statistics import Estimate

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
    variants = [Loss(name) for name in LOSSES] + [Loss(name, noise="uniform") for name in CONTRASTIVE]  # type: ignore[arg-type]
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
WITH, WITHOUT = ", with −log η", ", without"


@dataclass(frozen=True)
class Tail:
    """The runs at one imbalance at their chosen learning rates."""

    imbalance: float
    chosen: dict[Variant, list[Row]]

    @property
    def counts(self) -> list[int]:
        return list(next(iter(self.chosen.values()))[0].result["class_counts"])

    @property
    def complete(self) -> bool:
        return ("nll", False) in self.chosen and all((name, c) in self.chosen for name in CONTRASTIVE for c in (0, 1))

    def effect(self, loss: str, value: Value) -> "Estimate":
        """What leaving the correction out adds."""
        return difference(self.chosen[loss, False], self.chosen[loss, True], value)

    def slope(self, loss: str) -> "Estimate":
        """Of the classes' mean scores without minus with the correction, against −log p(y); theory says 1."""
        import numpy as np

        from softnce.lab.report.statistics import estimate

        slopes = []
        for bare, corrected in self.pairs(loss):
            slopes.append(float(np.polyfit(self.surprise, _shift(bare, corrected), 1)[0]))
        return estimate(slopes)

    def pairs(self, loss: str) -> list[tuple[Row, Row]]:
        """Runs without and with the correction that share a seed."""
        others = {row.config["seed"]: row for row in self.chosen[loss, True]}
        bare = self.chosen[loss, False]
        return [(row, others[row.config["seed"]]) for row in bare if row.config["seed"] in others]

    @property
    def surprise(self) -> list[float]:
        """−log p(y) of each class."""
        total = sum(self.counts)
        return [math.log(total / count) for count in self.counts]


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
    rates = sorted({row.config["lr"] for row in group if row.config["seed"] == 0})
    found: dict[float, dict[Variant, list[Row]]] = defaultdict(dict)
    for chosen in search.at_best_rate(group, rates).values():
        config = chosen[0].config
        name = config["loss"]["name"]
        corrected = name in CONTRASTIVE and config["loss"]["noise"] == "labels"
        found[config["imbalance"]][name, corrected] = chosen
    return [Tail(imbalance, found[imbalance]) for imbalance in sorted(found)]


def in_group(name: str) -> Value:
    return lambda row: 100 * row.result["groups"][name]


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Diagonal, Figure, Line, Mark, Panel, Points
    from softnce.lab.report.page import Section, Table, counted, prose
    from softnce.lab.report.statistics import estimate

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
    blocks += [prose(_reading(tail)) for tail in found if tail.complete]

    panels = []
    for tail in found:
        centre = sum(tail.surprise) / len(tail.surprise)
        ends = min(tail.surprise) - centre, max(tail.surprise) - centre
        shifted: list[Mark] = [Diagonal("theory: slope 1", *ends)]
        for loss in CONTRASTIVE:
            if tail.complete and tail.pairs(loss):
                shifts = [_shift(*pair) for pair in tail.pairs(loss)]
                mean_shift = [sum(values) / len(values) for values in zip(*shifts, strict=True)]
                x = [value - centre for value in tail.surprise]
                shifted.append(Points.of_loss(loss, x, mean_shift, size=3.5, opacity=0.75))
        title = f"imbalance {tail.imbalance:g}"
        panels.append(Panel(title, "−log p(y), centred", "score without − with correction", shifted))
    blocks.append(
        Figure(
            "shift",
            prose("""What leaving −log η out does to the scores: a point is a class, its mean score over the test part
                without the correction minus with it, against the prediction −log p(y), both centred over classes."""),
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
                    spread(mean(runs, percent("top1")), 2),
                    *(spread(mean(runs, in_group(name)), 1) for name in GROUPS),
                    spread(mean(runs, percent("ece")), 1),
                    spread(mean(runs, percent("top1", "switched")), 2),
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
    return {"cifar100": "CIFAR-100", "tiny-imagenet": "Tiny ImageNet"}.get(config["data"], config["data"])


def _summary(tail: Tail) -> str:
    if not tail.complete:
        return "The runs of this study are not finished yet."
    effects = "; ".join(f"{_loss_name(loss)} {signed(tail.effect(loss, percent('top1')))}" for loss in CONTRASTIVE)
    return f"""With −log η a contrastive loss fits p(y|x), prior and all, as NLL does; without it p(x|y), which is logit
        adjustment. At imbalance {tail.imbalance:g}, leaving the correction out changes accuracy on a balanced test by
        this many points: {effects}."""


def _reading(tail: Tail) -> str:
    like_nll = difference(tail.chosen["info-nce", True], tail.chosen["nll", False], percent("top1"))
    nll, bare = tail.chosen["nll", False], tail.chosen["info-nce", False]
    adjusted = mean(nll, percent("top1", "switched"))
    few = "; ".join(f"{_loss_name(loss)} {signed(tail.effect(loss, in_group('few')), 1)}" for loss in CONTRASTIVE)
    many = "; ".join(f"{_loss_name(loss)} {signed(tail.effect(loss, in_group('many')), 1)}" for loss in CONTRASTIVE)
    slopes = "; ".join(f"{_loss_name(loss)} {signed(tail.slope(loss)).lstrip('+')}" for loss in CONTRASTIVE)
    errors = "; ".join(
        f"""{_loss_name(loss)} {mean(tail.chosen[loss, True], percent("ece")).mean:.1f} % with and
        {mean(tail.chosen[loss, False], percent("ece")).mean:.1f} % without"""
        for loss in CONTRASTIVE
    )
    return f"""Imbalance {tail.imbalance:g} ({max(tail.counts)} samples of the commonest class, {min(tail.counts)}
        of the rarest). Predicted: InfoNCE with the correction equals NLL; measured, it is {signed(like_nll)} points
        from it. Predicted: InfoNCE without the correction equals NLL with log p(y) subtracted afterwards; measured,
        {spread(mean(bare, percent("top1")))} % against {spread(adjusted)} % (NLL as it is:
        {spread(mean(nll, percent("top1")))} %). Predicted: leaving the correction out shifts every class's score by
        −log p(y), slope 1; measured slopes: {slopes}. On the third of classes with the fewest samples this changes
        accuracy by {few} points, on the third with the most by {many}. Calibration error on the balanced test:
        {errors}."""


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
    from softnce.lab.report.claims import Finding
    from softnce.lab.report.page import counted

    found = tails(rows)
    if not found or not found[-1].complete:
        return {}
    tail = found[-1]
    config = tail.chosen["nll", False][0].config
    seeds = len(tail.chosen["nll", False])
    effects = {loss: tail.effect(loss, percent("top1")) for loss in CONTRASTIVE}
    slopes = {loss: tail.slope(loss) for loss in CONTRASTIVE}
    ours = "soft-target-info-nce"
    enough = seeds >= 3 and config["data"] != "digits"
    # the correction acts as the prior does, and that is what shows on a balanced test
    clear = all(abs(slopes[loss].mean - 1) < 0.25 and effects[loss].low > 0 for loss in ("info-nce", ours))
    text = f"""without it {signed(effects[ours], 1)} points on a balanced test
        (InfoNCE {signed(effects["info-nce"], 1)});
        it shifts scores by log p(y), slope {slopes[ours].mean:.2f} (InfoNCE {slopes["info-nce"].mean:.2f})"""
    return {
        "noise-correction": Finding(
            " ".join(text.split()),
            f"{_name(config)} features, imbalance {tail.imbalance:g}, {counted(seeds, 'seed')}",
            "explained" if enough and clear else "undecided",
        )
    }
