"""Which loss is the most accurate on images? Six losses on two small models, beside the paper's table.

A head of three layers is trained on features of a frozen EfficientNet-Lite0; a small residual network is trained from
scratch. NLL and InfoNCE see labels; the soft losses see labels smoothed by 0.1 and mixed: MixUp of features for the
head, MixUp or CutMix of images for the network. A held-out tenth of the training set chooses rate and epoch.
"""

from base64 import b64encode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from experiments import training
from experiments.data import features
from experiments.data.targets import Targets
from experiments.features import CE, DRAWN, ECE, EXPECTED, NLL, OURS, TOP1, TOP5, Compared, scores_table, spread
from experiments.harness import Experiment, Figure, Row, Table, curve, dots, label, option
from experiments.harness.claims import ON_PAR, Finding, together, verdict
from experiments.harness.search import LEARNING_RATES, Setting, chosen, setting_key, trials, tuned
from experiments.harness.statistics import Value, alike, difference, for_other_samples, largest, over, percent
from experiments.losses import PAPER, STUDIED, TITLES, Loss, targets_for
from experiments.models.heads import Head
from experiments.training import BATCH, MIXED, Probe

IMAGE_TARGETS = Targets(smoothing=0.1, mixup=0.8, cutmix=1.0)
PAPERS = {"nll": "90.84", CE: "90.74", "info-nce": "90.75", DRAWN: "89.82", OURS: "90.80"}
"""The paper's top-1 of ViT-B/16 on CIFAR-100."""
IMAGE_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
HELD_OUT_TOP1 = percent("top1", "held_out")


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds of every loss", least=1)
    compared_seeds: int = option(36, "seeds of the head with the two soft target losses", least=1)
    rate_seeds: int = option(6, "seeds of these two at the rates beside the best", least=1)
    data: features.Source = option("cifar100", "data set of the head")
    rates: tuple[float, ...] = option((*LEARNING_RATES, 1e-2), "rates tried for the head", above=0, fewest=1)
    image_epochs: int = option(4, "passes over the training set, network; 0 omits it", least=0)


@dataclass(frozen=True)
class EndToEnd:
    """One training of the small network on images."""

    loss: Loss
    targets: Targets
    batch: int
    epochs: int
    lr: float = 1e-3
    seed: int = 0
    recipe: str = "laptop/cifar100"
    held_out: float = features.HELD_OUT


def heads(options: Options, losses: Sequence[str] = STUDIED) -> list[Probe]:
    data, head = options.data, Head(hidden=512)
    return [Probe(data, Loss(name), targets_for(name, MIXED), head, BATCH[data]) for name in losses]


def networks(options: Options) -> list[EndToEnd]:
    losses, epochs = PAPER if options.image_epochs else (), options.image_epochs
    return [EndToEnd(Loss(name), targets_for(name, IMAGE_TARGETS), 256, epochs) for name in losses]


def runs(options: Options) -> list[Probe | EndToEnd]:
    return [*trials(networks(options), IMAGE_RATES), *trials(heads(options), options.rates)]


def follow_up(options: Options, rows: Sequence[Row]) -> list[Probe | EndToEnd]:
    compared = heads(options, (CE, OURS))
    best = tuned(compared, rows, options.rates, options.compared_seeds)
    beside = {lr for run in best for lr in neighbours(options.rates, run.lr)}
    return [
        *tuned(networks(options), rows, IMAGE_RATES, options.seeds),
        *tuned(heads(options), rows, options.rates, options.seeds),
        *best,
        *trials(compared, sorted(beside), options.rate_seeds),
    ]


def neighbours(rates: Sequence[float], lr: float) -> list[float]:
    """The next lower and the next higher rate, as far as there are any."""
    return [a if b == lr else b for a, b in pairwise(sorted(rates)) if lr in (a, b)]


def prepare(todo: Sequence[Probe | EndToEnd]) -> None:
    training.prepare(run for run in todo if isinstance(run, Probe))
    if any(isinstance(run, EndToEnd) for run in todo):
        features.folder("cifar100")


def perform(run: Probe | EndToEnd) -> dict[str, Any]:
    """Scores of the epoch that is best on the held-out part; of a head also ``right``, a bit per test sample."""
    if isinstance(run, Probe):
        data = features.load(run.data)
        watch = training.trained(run, data)
        result = watch.measurements(data)
        right = watch.logits(data.test.x).argmax(1) == data.test.y
        return result | {"right": b64encode(np.packbits(right.numpy()).tobytes()).decode("ascii")}
    from experiments.cells import recipes
    from experiments.cells.train import scored

    recipe = recipes.load(run.recipe)
    data = replace(recipe.data, dir=features.folder(recipe.data.kind), holdout=run.held_out, workers=0)
    optimiser = replace(recipe.optimiser, batch=run.batch, base_lr=run.lr * 256 / run.batch)
    compute = replace(recipe.compute, accelerator="cpu", progress=False)
    schedule = replace(recipe.schedule, epochs=run.epochs)
    return scored(replace(recipe, seed=run.seed, data=data, loss=run.loss, targets=run.targets, optimiser=optimiser,
                          schedule=schedule, compute=compute))  # fmt: skip


def parts(rows: Sequence[Row]) -> list[Compared]:
    """Of each model the largest group of trainings."""
    heads = largest([row for row in rows if "data" in row.config], "data", "batch", "epochs")
    networks = largest([row for row in rows if "recipe" in row.config], "recipe", "batch", "epochs")
    data = f"{features.NAMES[heads[0].config['data']]} features" if heads else ""
    found = (("accuracy-features", data, heads), ("accuracy-network", "CIFAR-100 from scratch", networks))
    return [Compared(name, on, group, {s.loss: s for s in chosen(group)}) for name, on, group in found if group]


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    """Of the models whose search on images is finished for all of the paper's losses."""
    answers: dict[str, list[Finding]] = defaultdict(list)
    others = [name for name in PAPER if name != DRAWN]
    for part in parts(rows):
        if part.is_quick or not part.settings.keys() >= set(PAPER):
            continue
        answers["accuracy-soft-ce"].append(part.decided(OURS, CE, **ON_PAR))
        answers["accuracy-nll"].append(ahead(part, OURS, ["nll"]))
        answers["accuracy-info-nce"].append(ahead(part, OURS, ["info-nce"]))
        answers["accuracy-soft-distribution"].append(ahead(part, OURS, [DRAWN]))
        answers["accuracy-worst"].append(ahead(part, DRAWN, others, sign=-1.0))
        answers["accuracy-top-5"].append(ahead(part, DRAWN, others, TOP5))
        answers["accuracy-rates"].append(same_rate(part))
        if EXPECTED in part.settings:
            answers["accuracy-expected"].append(ahead(part, EXPECTED, [DRAWN]))
    return {key: together(of) for key, of in answers.items()}


def ahead(part: Compared, a: str, others: Sequence[str], value: Value = TOP1, sign: float = 1.0) -> Finding:
    """A loss is ahead of all others, or behind them (sign −1); the finding shows the nearest."""
    gaps = [part.settings[a].minus(part.settings[other], value) * sign for other in others]
    nearest = min(gaps, key=lambda gap: gap.mean) * sign
    return Finding(f"{nearest.signed()} points", part.on(a, *others), verdict(*gaps, above=0, new=a == EXPECTED))


def same_rate(part: Compared) -> Finding:
    """Held-out top-1 of both losses at soft target cross-entropy's rate, minus that at the rates beside."""
    gaps, ce, ours = [], part.settings[CE], part.settings[OURS]
    for setting in (ce, ours):
        by_rate = {of[0].config["lr"]: of for of in alike(at_all_rates(part.rows, setting), "lr")}
        beside = neighbours(list(by_rate), ce.lr)
        gaps += [difference(by_rate[ce.lr], by_rate[lr], HELD_OUT_TOP1) for lr in beside]
    text = f"{ce.lr:g} and {ours.lr:g}; held out, ahead of the rates beside by {', '.join(g.signed() for g in gaps)}"
    on = f"{part.on(CE, OURS).rpartition(',')[0]}, seeds per rate {min((gap.count for gap in gaps), default=0)}"
    return Finding(text, on, verdict(*gaps, above=0))


def at_all_rates(rows: Sequence[Row], setting: Setting) -> list[Row]:
    return [row for row in rows if setting_key(row.config) == setting_key(setting.config)]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Scores; and top-1 minus soft target cross-entropy's, for other seeds, and for other test images too."""
    found = []
    columns = {"top-1 (%)": (TOP1, 2), "top-5 (%)": (TOP5, 2), "ECE (%)": (ECE, 2), "NLL (nats)": (NLL, 3)}
    over = ("minus soft target cross-entropy (points of top-1)", "other seeds", "other seeds and images", "seeds")
    for part in parts(rows):
        scores = scores_table(part.name, ["loss"], part.settings, columns)
        papers = [[*line, PAPERS.get(name, "–")] for name, line in zip(part.settings, scores.rows, strict=True)]
        found.append(Table(part.name, (*scores.header, "paper, ViT-B/16"), papers))
        gaps = []
        for name, setting in part.settings.items():
            if name != CE and (gap := part.gap(name, CE)):
                images = for_other_samples(setting.rows, part.settings[CE].rows)
                wide = images if images and images.count > 1 else None
                gaps.append([TITLES[name], spread(gap), spread(wide), str(gap.count)])
        found.append(Table(f"{part.name}-gaps", over, gaps))
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [Figure(part.name, partial(draw, part), panels=2) for part in parts(rows)]


def draw(part: Compared, axes: Sequence[Any]) -> None:
    dots(axes[0], {name: setting.mean(TOP1) for name, setting in part.settings.items()})
    label(axes[0], "top-1 (%)", title="test")
    first = [row for row in part.rows if row.config["seed"] == 0]
    for name, setting in part.settings.items():
        by_rate = over(at_all_rates(first, setting), lambda row: row.config["lr"], HELD_OUT_TOP1)
        curve(axes[1], by_rate, loss=name, band=False)
    label(axes[1], "learning rate", "top-1 (%)", title="held out, seed 0", log="x")


EXPERIMENT = Experiment(
    name="accuracy", question="Which loss is the most accurate on images?", minutes=100,
    presets={"quick": Options(2, 2, 2, "digits", rates=(1e-3, 3e-3), image_epochs=0), "paper": Options()},
    runs=runs, follow_up=follow_up, prepare=prepare, perform=perform, findings=findings, tables=tables,
    figures=figures,
)  # fmt: skip
