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
from experiments.harness.statistics import Estimate, Value, alike, by_seed, estimate, largest, percent
from experiments.losses import LOSSES, STUDIED, Loss, targets_for
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
    epochs: int = option(6, "passes over the training part", least=1)
    batch: int = option(256, "rows in a batch, which are also the candidates", least=2)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "rates tried for each setting", above=0, fewest=1)


@dataclass(frozen=True)
class Run(Probe):
    """A training on a long-tailed part of the data."""

    imbalance: float = 1.0


def settings(options: Options) -> list[Run]:
    """Every loss at every imbalance; expected InfoNCE at the largest only."""
    losses = [*map(Loss, (*STUDIED, CORRECTED)), *(Loss(name, noise="uniform") for name in CONTRASTIVE)]
    losses += [replace(loss, noise_count=0) for loss in losses if loss.name == EXPECTED]
    return [
        Run(options.data, loss, targets_for(loss.name, MIXED), batch=options.batch, epochs=options.epochs,
            imbalance=imbalance)
        for imbalance in options.imbalance
        for loss in losses
        if loss.name != EXPECTED or imbalance == max(options.imbalance)
    ]  # fmt: skip


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
        """The gain of leaving the correction out."""
        return self.settings[loss, False].minus(self.settings[loss, True], value)

    def switched(self, loss: str) -> Estimate:
        """Points of top-1 added by subtracting log p(y) after training with the correction."""
        return self.settings[loss, True].mean(lambda row: SWITCHED(row) - TOP1(row))

    def slope(self, loss: str) -> float:
        """Shift of the classes' mean scores by leaving the correction out, against −log p(y): theory says 1.

        Seed 0, mean over the rates.
        """
        first = [row for row in self.rows if row.config["seed"] == 0]
        scores = {(*variant(row.config), row.config["lr"]): np.array(row.result["class_score"]) for row in first}
        counts = self.rows[0].result["class_counts"]
        surprise = [math.log(sum(counts) / count) for count in counts]
        rates = [lr for name, is_corrected, lr in scores if name == loss and is_corrected]
        shifts = [scores[loss, False, lr] - scores[loss, True, lr] for lr in rates if (loss, False, lr) in scores]
        return float(np.mean([np.polyfit(surprise, shift, 1)[0] for shift in shifts]))

    def by_frequency(self, setting: Setting) -> dict[float, Estimate]:
        """Accuracy of ten equally large groups of classes by their mean number of training samples."""
        counts, found = np.array(self.rows[0].result["class_counts"]), {}
        for classes in np.array_split(np.argsort(counts, kind="stable"), 10):
            accuracy = setting.mean(lambda row, of=classes: 100 * np.array(row.result["class_accuracy"])[of].mean())
            found[float(counts[classes].mean())] = accuracy
        return found


def variant(config: dict[str, Any]) -> tuple[str, bool]:
    loss = config["loss"]
    is_corrected = loss["name"] in (*CONTRASTIVE, CORRECTED) and loss["noise"] == "labels"
    return ALONE if loss.get("noise_count") == 0 else loss["name"], is_corrected


def tails(rows: Sequence[Row]) -> list[Tail]:
    """The largest group of trainings on one data set, the largest imbalance last."""
    group = largest(rows, "data", "epochs", "batch")
    order, found = [*STUDIED[:4], CORRECTED, *STUDIED[4:], ALONE], []
    for of_tail in alike(sorted(group, key=lambda row: row.config["imbalance"]), "imbalance"):
        settings = {variant(setting.config): setting for setting in at_best_rate(of_tail).values()}
        keys = sorted(settings, key=lambda key: (order.index(key[0]), not key[1]))
        config, ordered = of_tail[0].config, {key: settings[key] for key in keys}
        data = f"{NAMES[config['data']]} features, imbalance {config['imbalance']:g}"
        found.append(Tail(f"long-tail-{config['imbalance']:g}", data, of_tail, ordered))
    return [tail for tail in found if tail.settings]


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, answers = tails(rows), {}
    if not found or rows[0].config["data"] == "digits":
        return {}
    tail = found[-1]
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
    """Of the largest imbalance."""
    columns: dict[str, tuple[Value, int]] = {"top-1 (%)": (TOP1, 2)}
    for group in GROUPS:
        columns[f"classes with {group} (%)"] = (lambda row, of=group: 100 * row.result["groups"][of], 1)
    columns |= {"ECE (%)": (ECE, 1), "prior switched, top-1 (%)": (SWITCHED, 2)}
    found = []
    for tail in tails(rows)[-1:]:
        settings = {(title(*key),): setting for key, setting in tail.settings.items()}
        found.append(scores_table(tail.name, ["loss"], settings, columns))
        by_group = [columns[f"classes with {group} (%)"][0] for group in GROUPS]
        body = [
            [LOSS_NAMES[loss], tail.effect(loss).spread(1), tail.switched(loss).spread(1), f"{tail.slope(loss):.2f}",
             *(tail.effect(loss, value).spread(1) for value in by_group)]
            for loss in tail.both_ways
        ]  # fmt: skip
        header = ("without minus with −log η (points)", "top-1", "predicted: prior switched", "slope of scores",
                  *(f"classes with {group}" for group in GROUPS))  # fmt: skip
        found.append(Table(f"{tail.name}-effect", header, body))
        if ("nll", False) in tail.settings and "info-nce" in tail.both_ways:
            found.append(theory(tail))
    return found


def theory(tail: Tail) -> Table:
    """InfoNCE with −log η should equal NLL, and without it NLL with its prior taken out."""
    nll, top1 = tail.settings["nll", False], by_seed(tail.settings["info-nce", False].rows, TOP1)
    with_eta = tail.settings["info-nce", True].minus(nll, TOP1)
    without = estimate([top1[seed] - switched for seed, switched in by_seed(nll.rows, SWITCHED).items()])
    body = [["InfoNCE with −log η, minus NLL", "0", with_eta.spread(2)],
            ["InfoNCE without, minus NLL with log p(y) subtracted", "0", without.spread(2)]]  # fmt: skip
    return Table(f"{tail.name}-theory", ("points of top-1", "theory", "measured"), body)


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = tails(rows)

    def draw(axes) -> None:
        for ax, tail in zip(axes, found, strict=True):
            for (loss, is_corrected), setting in tail.settings.items():
                if loss in LOOKS:
                    look = {"dash": "--", "name": ""} if loss in CONTRASTIVE and not is_corrected else {}
                    curve(ax, tail.by_frequency(setting), loss=loss, band=False, **look)
            title = tail.data.partition(", ")[2]
            label(ax, "training samples of the class", "accuracy (%)", title=title, log="x")

    return [Figure("long-tail", draw, panels=len(found), size=(5.6, 3.6))] if found else []


EXPERIMENT = Experiment(
    name="long-tail", question="What does −log η do when classes are not balanced?", minutes=20,
    presets={"quick": Options(3, "digits", (10.0,), epochs=8, batch=64, rates=(3e-3, 1e-2)), "paper": Options()},
    runs=lambda options: trials(settings(options), options.rates),
    follow_up=lambda options, rows: tuned(settings(options), rows, options.rates, options.seeds),
    prepare=training.prepare, perform=perform, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
