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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments import training
from experiments.data import features
from experiments.data.samples import thinned, thirds
from experiments.features import ALONE, CE, CORRECTED, DRAWN, ECE, EXPECTED, NAMES, OURS, TOP1, Compared, scores_table
from experiments.harness import LOOKS, Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.claims import Finding, verdict
from experiments.harness.search import Setting, at_best_rate, trials, tuned
from experiments.harness.statistics import Estimate, Value, alike, by_seed, estimate, largest, percent
from experiments.losses import LOSSES, STUDIED, Loss, targets_for
from experiments.training import BATCH, MIXED, Probe
from softnce import noise

CONTRASTIVE = tuple(name for name in STUDIED if LOSSES[name].contrastive)
GROUPS = ("many", "some", "few")
SWITCHED = percent("top1", "switched")


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds", least=1)
    data: features.Source = option("cifar100", "data set to make long-tailed")
    imbalance: tuple[float, ...] = option((10.0, 100.0), "commonest class over the rarest", least=1, fewest=1)
    epochs: int = option(6, "passes over the training part", least=1)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "rates tried for each setting", above=0, fewest=1)


@dataclass(frozen=True)
class Run(Probe):
    """A training on a long-tailed part of the data."""

    imbalance: float = 1.0


def settings(options: Options) -> list[Run]:
    """Every loss at every imbalance; expected InfoNCE at the largest only."""
    losses = [*map(Loss, (*STUDIED, CORRECTED)), *(Loss(name, noise="uniform") for name in CONTRASTIVE)]
    losses += [replace(loss, noise_count=0) for loss in losses if loss.name == EXPECTED]
    run = Run(options.data, batch=BATCH[options.data], epochs=options.epochs)
    return [
        replace(run, loss=loss, targets=targets_for(loss.name, MIXED), imbalance=imbalance)
        for imbalance in options.imbalance
        for loss in losses
        if loss.name != EXPECTED or imbalance == max(options.imbalance)
    ]


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


def variant(config: dict[str, Any]) -> tuple[str, bool]:
    """The loss, and whether log η is subtracted in training."""
    loss = config["loss"]
    is_corrected = loss["name"] in (*CONTRASTIVE, CORRECTED) and loss["noise"] == "labels"
    return ALONE if loss.get("noise_count") == 0 else loss["name"], is_corrected


def tails(rows: Sequence[Row]) -> list[Compared]:
    """By :func:`variant`, the largest group of trainings on one data set; the largest imbalance last."""
    group = largest(rows, "data", "epochs", "batch")
    order, found = [*STUDIED[:4], CORRECTED, *STUDIED[4:], ALONE], []
    for tail in alike(sorted(group, key=lambda row: row.config["imbalance"]), "imbalance"):
        settings = {variant(setting.config): setting for setting in at_best_rate(tail).values()}
        keys = sorted(settings, key=lambda key: (order.index(key[0]), not key[1]))
        config = tail[0].config
        data = f"{features.NAMES[config['data']]} features, imbalance {config['imbalance']:g}"
        found.append(Compared(f"long-tail-{config['imbalance']:g}", data, tail, {key: settings[key] for key in keys}))
    return found


def effect(tail: Compared, loss: str, value: Value = TOP1) -> Estimate | None:
    """The gain of leaving the correction out; None for a loss that was not trained both ways."""
    return tail.gap((loss, False), (loss, True), value)


def switched(tail: Compared, loss: str) -> Estimate:
    """Points of top-1 added by subtracting log p(y) after training with the correction."""
    return tail.settings[loss, True].mean(lambda row: SWITCHED(row) - TOP1(row))


def slope(tail: Compared, loss: str) -> float:
    """Shift of the classes' mean scores by leaving the correction out, against −log p(y): theory says 1.

    Seed 0, mean over the rates.
    """
    first = [row for row in tail.rows if row.config["seed"] == 0]
    scores = {(*variant(row.config), row.config["lr"]): np.array(row.result["class_score"]) for row in first}
    counts = tail.rows[0].result["class_counts"]
    surprise = [math.log(sum(counts) / count) for count in counts]
    rates = [lr for name, is_corrected, lr in scores if name == loss and is_corrected]
    shifts = [scores[loss, False, lr] - scores[loss, True, lr] for lr in rates if (loss, False, lr) in scores]
    return float(np.mean([np.polyfit(surprise, shift, 1)[0] for shift in shifts]))


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    tail, answers = tails(rows)[-1], {}
    if tail.is_quick:
        return {}
    if gain := effect(tail, OURS):
        after = switched(tail, OURS)
        ours = f"{gain.signed(1)} points without it; {after.signed(1)} by log p(y) afterwards"
        on = tail.on((OURS, False), (OURS, True))
        answers["noise-correction"] = Finding(ours, on, verdict(gain, after, above=0, new=True))
    if effect(tail, ALONE):
        answers["long-tail-expected"] = tail.decided((ALONE, False), (ALONE, True), digits=1, above=0, new=True)
    if tail.gap((CORRECTED, True), (DRAWN, True)):
        answers["long-tail-smoothed-noise"] = tail.decided((CORRECTED, True), (DRAWN, True), above=0, new=True)
    return answers


def of_group(group: str, row: Row) -> float:
    return float(100 * row.result["groups"][group])


def tables(rows: Sequence[Row]) -> list[Table]:
    """Of the largest imbalance: every score, the effect of −log η, and what theory says of it."""
    tail = tails(rows)[-1]
    by_group: dict[str, Value] = {f"classes with {group}": partial(of_group, group) for group in GROUPS}
    columns = {"top-1 (%)": (TOP1, 2), **{f"{name} (%)": (value, 1) for name, value in by_group.items()},
               "ECE (%)": (ECE, 1), "prior switched, top-1 (%)": (SWITCHED, 2)}  # fmt: skip
    titles = {True: ", with −log η", False: ", without −log η"}
    named = {NAMES[loss] + ("" if loss in ("nll", CE) else titles[is_corrected]): setting
             for (loss, is_corrected), setting in tail.settings.items()}  # fmt: skip
    body = []
    for loss in (*CONTRASTIVE, ALONE):
        if gain := effect(tail, loss):
            gains = (tail.gap((loss, False), (loss, True), value) for value in by_group.values())
            body.append([NAMES[loss], gain.spread(1), switched(tail, loss).spread(1), f"{slope(tail, loss):.2f}",
                         *(of.spread(1) for of in gains)])  # fmt: skip
    header = ("without minus with −log η (points)", "top-1", "predicted: prior switched", "slope of scores", *by_group)
    nll, top1 = tail.settings["nll", False], by_seed(tail.settings["info-nce", False].rows, TOP1)
    with_eta = tail.settings["info-nce", True].minus(nll, TOP1)
    without = estimate([top1[seed] - switched for seed, switched in by_seed(nll.rows, SWITCHED).items()])
    theory = [["InfoNCE with −log η, minus NLL", "0", with_eta.spread(2)],
              ["InfoNCE without, minus NLL with log p(y) subtracted", "0", without.spread(2)]]  # fmt: skip
    return [
        scores_table(tail.name, ["loss"], named, columns),
        Table(f"{tail.name}-effect", header, body),
        Table(f"{tail.name}-theory", ("points of top-1", "theory", "measured"), theory),
    ]


def by_frequency(tail: Compared, setting: Setting) -> dict[float, Estimate]:
    """Accuracy of ten equally large groups of classes by their mean number of training samples."""
    counts, found = np.array(tail.rows[0].result["class_counts"]), {}
    for classes in np.array_split(np.argsort(counts, kind="stable"), 10):
        accuracy = setting.mean(lambda row, of=classes: 100 * np.array(row.result["class_accuracy"])[of].mean())
        found[float(counts[classes].mean())] = accuracy
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = tails(rows)

    def draw(axes) -> None:
        for ax, tail in zip(axes, found, strict=True):
            for (loss, is_corrected), setting in tail.settings.items():
                if loss in ("nll", "info-nce", OURS):
                    is_uniform = loss != "nll" and not is_corrected
                    name, dash = LOOKS[loss].name + ", uniform η" * is_uniform, "--" if is_uniform else "-"
                    curve(ax, by_frequency(tail, setting), loss=loss, name=name, dash=dash, band=False)
            title = tail.data.partition(", ")[2]
            label(ax, "training samples of the class", "accuracy (%)", title=title, log="x")

    return [Figure("long-tail", draw, panels=len(found), size=(5.6, 3.6))]


EXPERIMENT = Experiment(
    name="long-tail", question="What does −log η do when classes are not balanced?", minutes=20,
    presets={"quick": Options(3, "digits", (10.0,), epochs=8, rates=(3e-3, 1e-2)), "paper": Options()},
    runs=lambda options: trials(settings(options), options.rates),
    follow_up=lambda options, rows: tuned(settings(options), rows, options.rates, options.seeds),
    prepare=training.prepare, perform=perform, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
