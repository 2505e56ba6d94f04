"""Rare classes: what does the correction −log η do when classes are not balanced?

The paper subtracts log η in training and notes that this "might introduce additional bias"; its images are balanced,
where it cancels. Here class k of K keeps imbalance^(−k/(K−1)) of its training samples, and the test is balanced. With
the correction the logits learn log p(y|x), prior included; without it log p(x|y), which is logit adjustment. Every
contrastive loss is trained both ways, and every model is also tested with its prior switched afterwards.

The authors' code passes soft distribution InfoNCE the labels' frequencies as η, although it draws labels from smoothed
targets. The corrected variant, "η smoothed", passes the frequencies of the smoothed targets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments import training
from experiments.data import features
from experiments.data.features import NAMES, Source
from experiments.data.samples import thinned, thirds
from experiments.features import ALONE, CE, CORRECTED, DRAWN, ECE, EXPECTED, OURS, TOP1, Compared, scores_table
from experiments.features import NAMES as LOSS_NAMES
from experiments.harness import LOOKS, Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.claims import Finding, verdict
from experiments.harness.search import Setting, at_best_rate, trials, tuned
from experiments.harness.statistics import Estimate, Value, by_seed, estimate, largest, percent
from experiments.losses import LOSSES, STUDIED, Loss, targets_for
from experiments.models.heads import Head
from experiments.training import MIXED, Probe
from softnce import noise

CONTRASTIVE = tuple(name for name in STUDIED if LOSSES[name].contrastive)
GROUPS = ("many", "some", "few")
SWITCHED = percent("top1", "switched")


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds", least=1)
    data: Source = option("cifar100", "data set to make long-tailed")
    imbalance: tuple[float, ...] = option((10.0, 100.0), "commonest class over the rarest", least=1, fewest=1)
    expected_imbalance: tuple[float, ...] = option((100.0,), "those of expected InfoNCE; also among the imbalances")
    epochs: int = option(6, "passes over the training part", least=1)
    batch: int = option(256, "rows in a batch, which are also the candidates", least=2)
    hidden: int = option(256, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "rates tried for each setting", above=0, fewest=1)


PRESETS = {
    "quick": Options(3, "digits", (10.0,), (10.0,), epochs=8, batch=64, hidden=64, rates=(3e-3, 1e-2)),
    "paper": Options(),
}


@dataclass(frozen=True)
class Run(Probe):
    """A training on a long-tailed part of the data."""

    imbalance: float = 1.0


def settings(options: Options) -> list[Run]:
    losses = [*map(Loss, (*STUDIED, CORRECTED)), *(Loss(name, noise="uniform") for name in CONTRASTIVE)]
    losses += [replace(loss, noise_count=0) for loss in losses if loss.name == EXPECTED]
    head, batch, epochs = Head(hidden=options.hidden), options.batch, options.epochs
    return [
        Run(options.data, loss, targets_for(loss.name, MIXED), head, batch, epochs=epochs, imbalance=imbalance)
        for imbalance in options.imbalance
        for loss in losses
        if loss.name != EXPECTED or imbalance in options.expected_imbalance
    ]


def runs(options: Options) -> list[Run]:
    return trials(settings(options), options.rates)


def follow_up(options: Options, rows: Sequence[Row]) -> list[Run]:
    return tuned(settings(options), rows, options.rates, options.seeds)


def perform(run: Run) -> dict[str, Any]:
    """Measurements, and by class: training samples, test accuracy, mean test score.

    ``switched`` are the test scores with log p(y) subtracted from a model of p(y|x), or added to one of p(x|y).
    """
    whole = features.load(run.data)
    part = replace(whole, train=whole.train[thinned(whole.train.y, run.imbalance, whole.num_classes)])
    watch = training.trained(run, part)
    found = watch.measurements(part)
    logits, labels = watch.logits(part.test.x), part.test.y
    counts = torch.bincount(part.train.y, minlength=part.num_classes)
    prior = noise.from_counts(counts).log()
    is_conditional = run.loss.noise == "labels" or run.loss.name not in CONTRASTIVE
    by_class = class_accuracy(logits, labels, part.num_classes)
    return found | {
        "switched": training.scores(logits - prior if is_conditional else logits + prior, labels),
        "groups": {name: by_class[group].mean().item() for name, group in zip(GROUPS, thirds(counts), strict=True)},
        "class_counts": counts.tolist(),
        "class_accuracy": [round(value, 4) for value in by_class.tolist()],
        "class_score": [round(value, 4) for value in (logits - logits.mean(1, keepdim=True)).mean(0).tolist()],
    }


def class_accuracy(logits: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Share of each class's samples that are ranked first, (K,)."""
    right = torch.bincount(labels, (logits.argmax(1) == labels).double(), minlength=num_classes)
    return right / torch.bincount(labels, minlength=num_classes)


@dataclass(frozen=True)
class Tail(Compared):
    """The trainings at one imbalance, by loss and whether log η is subtracted in training."""

    @property
    def both_ways(self) -> list[str]:
        """Contrastive losses trained with and without the correction."""
        return [name for name in (*CONTRASTIVE, ALONE) if {(name, True), (name, False)} <= self.settings.keys()]

    def effect(self, loss: str, value: Value = TOP1) -> Estimate:
        """What leaving the correction out adds."""
        return self.settings[loss, False].minus(self.settings[loss, True], value)

    def switched(self, loss: str) -> Estimate:
        """Points of top-1 added by subtracting log p(y) after training with the correction."""
        return self.settings[loss, True].mean(lambda row: SWITCHED(row) - TOP1(row))

    def slope(self, loss: str) -> float:
        """Shift of the classes' mean scores by leaving the correction out, against −log p(y): theory says 1.

        Seed 0, mean over the rates.
        """
        scores: dict[tuple[float, bool], Any] = {}
        for row in self.rows:
            if row.config["seed"] == 0 and variant(row.config)[0] == loss:
                scores[row.config["lr"], variant(row.config)[1]] = np.array(row.result["class_score"])
        counts = self.rows[0].result["class_counts"]
        surprise = [math.log(sum(counts) / count) for count in counts]
        rates = [lr for lr, corrected in scores if corrected and (lr, False) in scores]
        return float(np.mean([np.polyfit(surprise, scores[lr, False] - scores[lr, True], 1)[0] for lr in rates]))

    def by_frequency(self, setting: Setting, groups: int = 10) -> dict[float, Estimate]:
        """Accuracy of equally large groups of classes by their mean number of training samples."""
        counts = self.rows[0].result["class_counts"]
        found = {}
        for classes in np.array_split(np.argsort(counts, kind="stable"), min(groups, len(counts))):
            accuracy = setting.mean(lambda row, of=classes: float(np.mean(np.array(row.result["class_accuracy"])[of])))
            found[float(np.mean([counts[k] for k in classes]))] = accuracy * 100
        return found


def variant(config: dict[str, Any]) -> tuple[str, bool]:
    loss = config["loss"]
    is_corrected = loss["name"] in (*CONTRASTIVE, CORRECTED) and loss["noise"] == "labels"
    return ALONE if loss.get("noise_count") == 0 else loss["name"], is_corrected


def tails(rows: Sequence[Row]) -> dict[float, Tail]:
    """The largest group of trainings on one data set, by imbalance."""
    group = largest(rows, "data", "epochs", "batch")
    order, found = [*STUDIED[:4], CORRECTED, *STUDIED[4:], ALONE], {}
    for imbalance in sorted({row.config["imbalance"] for row in group}):
        of_tail = [row for row in group if row.config["imbalance"] == imbalance]
        settings = {variant(setting.config): setting for setting in at_best_rate(of_tail).values()}
        if settings:
            keys = sorted(settings, key=lambda key: (order.index(key[0]), not key[1]))
            data = f"{NAMES[group[0].config['data']]} features, imbalance {imbalance:g}"
            found[imbalance] = Tail(f"long-tail-{imbalance:g}", data, of_tail, {key: settings[key] for key in keys})
    return found


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = tails(rows)
    if not found or rows[0].config["data"] == "digits":
        return {}
    tail, answers = found[max(found)], {}
    if OURS in tail.both_ways:
        effect, switched = tail.effect(OURS), tail.switched(OURS)
        ours = f"{effect.signed(1)} points without it; {switched.signed(1)} by log p(y) afterwards"
        on = tail.on((OURS, False), (OURS, True))
        answers["noise-correction"] = Finding(ours, on, verdict(effect, switched, above=0, new=True))
    if ALONE in tail.both_ways:
        answers["long-tail-expected"] = tail.decided((ALONE, False), (ALONE, True), digits=1, above=0, new=True)
    if {(CORRECTED, True), (DRAWN, True)} <= tail.settings.keys():
        answers["long-tail-smoothed-noise"] = tail.decided((CORRECTED, True), (DRAWN, True), above=0, new=True)
    return answers


def title(loss: str, is_corrected: bool) -> str:
    return LOSS_NAMES[loss] + ("" if loss in ("nll", CE) else f", {'with' if is_corrected else 'without'} −log η")


def tables(rows: Sequence[Row]) -> list[Table]:
    columns: dict[str, tuple[Value, int]] = {"top-1 (%)": (TOP1, 2)}
    for group in GROUPS:
        columns[f"classes with {group} (%)"] = (lambda row, of=group: 100 * row.result["groups"][of], 1)
    columns |= {"ECE (%)": (ECE, 1), "prior switched, top-1 (%)": (SWITCHED, 2)}
    found = []
    for tail in tails(rows).values():
        settings = {(title(*key),): setting for key, setting in tail.settings.items()}
        found.append(scores_table(tail.name, ["loss"], settings, columns))
        body = [
            [LOSS_NAMES[loss], tail.effect(loss).spread(1), tail.switched(loss).spread(1), f"{tail.slope(loss):.2f}",
             *(tail.effect(loss, columns[f"classes with {group} (%)"][0]).spread(1) for group in GROUPS)]
            for loss in tail.both_ways
        ]  # fmt: skip
        header = ("without minus with −log η (points)", "top-1", "predicted: prior switched", "slope of scores",
                  *(f"classes with {group}" for group in GROUPS))  # fmt: skip
        found.append(Table(f"{tail.name}-effect", header, body))
        if ("nll", False) in tail.settings and "info-nce" in tail.both_ways:
            bare, nll = tail.settings["info-nce", False], tail.settings["nll", False]
            adjusted, seeds = by_seed(nll.rows, SWITCHED), by_seed(bare.rows, TOP1)
            gaps = [tail.settings["info-nce", True].minus(nll, TOP1),
                    estimate([seeds[seed] - adjusted[seed] for seed in sorted(seeds)])]  # fmt: skip
            names = ("InfoNCE with −log η, minus NLL", "InfoNCE without, minus NLL with log p(y) subtracted")
            body = [[name, "0", gap.spread(2)] for name, gap in zip(names, gaps, strict=True)]
            found.append(Table(f"{tail.name}-theory", ("points of top-1", "theory", "measured"), body))
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = tails(rows)

    def draw(axes) -> None:
        for ax, (imbalance, tail) in zip(axes, found.items(), strict=True):
            for (loss, is_corrected), setting in tail.settings.items():
                if loss in LOOKS:
                    dash = "--" if loss in CONTRASTIVE and not is_corrected else "-"
                    name = "" if dash == "--" else None
                    curve(ax, tail.by_frequency(setting), loss=loss, name=name, dash=dash, band=False)
            label(ax, "training samples of the class", "accuracy (%)", title=f"imbalance {imbalance:g}", log="x")

    return [Figure("long-tail", draw, panels=len(found), size=(5.6, 3.6))] if found else []


EXPERIMENT = Experiment(
    name="long-tail", question="What does −log η do when classes are not balanced?", minutes=20, presets=PRESETS,
    runs=runs, follow_up=follow_up, prepare=training.prepare, perform=perform, findings=findings,
    tables=tables, figures=figures,
)  # fmt: skip
