"""Pre-trained networks fine-tuned end to end with every loss, on text and on images: the paper's regime in small.

Text: MiniLM, a transformer of six layers, on the intents of Banking77 and CLINC150, with a linear head and with three
layers. Images: EfficientNet-Lite0, trained on ImageNet, on CIFAR-100 at 64 px with the paper's recipe scaled down. NLL
and InfoNCE see labels; the soft losses see the same labels smoothed by 0.1 and mixed: MixUp of sentence embeddings,
MixUp or CutMix of images. The learning rate of each loss is searched on held-out data; the test set is only reported.

Runs are ordered so that an interrupted experiment says as much as it can: Banking77 before CLINC150 before the three
layers before images; in each the search, then seed after seed over all losses. Text needs intents, images need cifar100
in $SOFTNCE_DATA. The quick preset fine-tunes MiniLM on generated requests.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

from experiments.data.targets import Targets
from experiments.features import CE, CORRECTED, DRAWN, ECE, EXPECTED, OURS, TOP1, TOP5, Compared
from experiments.harness import LOOKS, Estimate, Experiment, Figure, Row, Table, dots, label, later, option, to_mapping
from experiments.harness.claims import ON_PAR, Finding, Gap, decided, together
from experiments.harness.search import Setting, at_best_rate, chosen, trials, tuned
from experiments.harness.statistics import Value, alike, difference_of_differences, for_other_samples, largest
from experiments.losses import STUDIED, TITLES, Loss, targets_for
from experiments.models.heads import Head

Text = Literal["requests", "banking77", "clinc150"]
IMAGES = "cifar100-fine-tuned"
TEXT_TARGETS = Targets(smoothing=0.1, mixup=0.8)
IMAGE_TARGETS = replace(TEXT_TARGETS, cutmix=1.0)
COMPARED = ("nll", CE, OURS, EXPECTED, DRAWN)
"""The losses of the claims: run before the others; on images, which take longest, only these have several seeds."""
ORDER = (*COMPARED, *(loss for loss in STUDIED if loss not in COMPARED))

# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True)
class Options:
    seeds: int = option(5, "seeds for text; a seed fixes first weights of the head, batches and mixing", least=1)
    texts: tuple[Text, ...] = option(("banking77", "clinc150"), "data sets of sentences, in order; [] omits text")
    epochs: int = option(2, "passes over their training parts", least=1)
    heads: tuple[Literal["linear", "mlp"], ...] = option(("linear", "mlp"), "heads for text: one layer, three layers")
    precision: Literal["32", "bf16"] = option("bf16", "of the text encoder; bf16: mixed, needs a recent processor")
    corrected: tuple[Text, ...] = option((), "those where soft distribution InfoNCE also gets the smoothed targets' η")
    batch: int = option(64, "sentences per batch", least=2)
    rates: tuple[float, ...] = option((5e-4, 1e-3), "learning rates tried for text", above=0, fewest=1)
    image_epochs: int = option(8, "passes over the training images; 0 omits this part", least=0)
    image_batch: int = option(128, "images per batch", least=2)
    image_rates: tuple[float, ...] = option((1e-3, 3e-3), "learning rates tried for images", above=0, fewest=1)
    image_seeds: int = option(3, "seeds for images", least=1)

    def __post_init__(self) -> None:
        if not (self.texts or self.image_epochs):
            raise ValueError("texts: got [], need a data set of sentences if image_epochs is 0")


PRESETS = {
    "quick": Options(seeds=1, texts=("requests",), heads=("linear",), batch=8, epochs=1, rates=(1e-3,), image_epochs=0),
    "paper": Options(),
}


@dataclass(frozen=True)
class Run:
    """One fine-tuning, as ``train`` does it."""

    recipe: str  # of the folder laptop: data, network, schedule, and the held-out part
    loss: Loss
    targets: Targets
    head: Head
    batch: int
    epochs: int
    lr: float = 1e-3
    seed: int = 0
    frozen: bool = False  # train the head alone, on features of the same images
    precision: str = later("32", "of the encoder in training")


def held_out(row: Row) -> float:
    """Score that decides the learning rate: held-out accuracy, and of equal ones the better likelihood."""
    return float(row.result["held_out"]["top1"]) - 1e-6 * float(row.result["held_out"]["nll"])


@dataclass(frozen=True)
class Stage:
    """Settings that are compared with each other, the rates tried for them, and the seeds of each loss."""

    template: Run
    rates: Sequence[float]
    seeds: dict[str, int]

    def runs(self, rows: Sequence[Row]) -> Iterator[list[Run]]:
        """The search, one learning rate after the other; then seed after seed over all losses at their best rates."""
        targets = self.template.targets
        settings = [replace(self.template, loss=Loss(x), targets=targets_for(x, targets)) for x in self.seeds]
        yield sorted(trials(settings, self.rates), key=lambda run: self.rates.index(run.lr))
        found = tuned(settings, rows, self.rates, max(self.seeds.values()), held_out)
        yield sorted((run for run in found if run.seed < self.seeds[run.loss.name]), key=lambda run: run.seed)


def planned(options: Options) -> list[Stage]:
    """In the order in which they are run."""
    o, found = options, []
    for kind, name in product(o.heads, o.texts):
        template = Run(name, Loss(), TEXT_TARGETS, Head(kind, 512), o.batch, o.epochs, precision=o.precision)
        losses = [*ORDER, *([CORRECTED] if name in o.corrected else [])]
        found.append(Stage(template, o.rates, dict.fromkeys(losses, o.seeds)))
    if o.image_epochs:
        template = Run(IMAGES, Loss(), IMAGE_TARGETS, Head("linear"), o.image_batch, o.image_epochs)
        found.append(Stage(template, o.image_rates, {x: o.image_seeds if x in COMPARED else 1 for x in ORDER}))
        found.append(Stage(replace(template, frozen=True), (1e-3, 3e-3), {"nll": 1}))
    return found


def wanted(options: Options, rows: Sequence[Row] = ()) -> list[Run]:
    """All parts up to the first that is unfinished: its search, or its seeds once the search is finished."""
    finished = [row.config for row in rows]
    runs: list[Run] = []
    for part in chain.from_iterable(stage.runs(rows) for stage in planned(options)):
        runs += part
        if any(to_mapping(run) not in finished for run in part):
            break
    return runs


# ---------------------------------------------------------------------------------------------- how one run is computed


def prepare(todo: Sequence[Run]) -> None:
    """A missing folder or package is reported before any work."""
    for name, run in {run.recipe: run for run in todo}.items():
        place = recipe_of(run).data.dir
        if name != "requests" and not Path(place).is_dir():
            raise ValueError(f"SOFTNCE_DATA: no folder {place}, which {name} needs")


def recipe_of(run: Run) -> Any:
    """The recipe of a run, complete."""
    from experiments.cells import recipes

    recipe = recipes.load(f"laptop/{run.recipe}")
    data, model = recipe.data, recipe.model
    if run.recipe != "requests":
        root = Path(os.environ.get("SOFTNCE_DATA", "."))
        data = replace(data, dir=root / ("cifar100" if run.recipe == IMAGES else "intents"))
    if run.frozen:
        data, model = replace(data, augment="none", erasing=0.0), replace(model, freeze="backbone")
    return replace(
        recipe, seed=run.seed, data=data, model=model, head=run.head, loss=run.loss, targets=run.targets,
        optimiser=replace(recipe.optimiser, batch=run.batch, base_lr=run.lr * 256 / run.batch),
        schedule=replace(recipe.schedule, epochs=run.epochs),
        compute=replace(recipe.compute, accelerator="cpu", precision=run.precision, progress=False),
    )  # fmt: skip


def perform(run: Run) -> dict[str, Any]:
    """Held-out and test scores of the epoch that is best on the held-out part."""
    from experiments.cells.train import scored

    return scored(recipe_of(run))


# --------------------------------------------------------------------------------------------------------- the numbers

DATA = {"banking77": "Banking77", "clinc150": "CLINC150", IMAGES: "CIFAR-100", "requests": "generated requests"}
HEADS = {"linear": "linear head", "mlp": "three layers"}
PAPERS: dict[str, dict[str, tuple[float, ...]]] = {
    "top-1": {"nll": (82.35, 82.63, 90.84), "info-nce": (82.52, 82.72, 90.75), CE: (83.85, 83.67, 90.74),
              DRAWN: (82.96, 82.77, 89.82), OURS: (83.54, 83.86, 90.80)},
    "top-5": {"nll": (94.95, 93.84, 98.37), "info-nce": (95.43, 93.67, 98.40), CE: (96.46, 94.91, 98.40),
              DRAWN: (96.40, 95.06, 98.78), OURS: (96.43, 94.91, 98.51)},
}  # fmt: skip
"""Tables 1 and 2 of the paper: ImageNet, Tiny ImageNet and CIFAR-100, ViT-B/16, 100 epochs."""
GAPS = {
    "fine-tuning-soft-ce": Gap(OURS, CE, ON_PAR),
    "fine-tuning-nll": Gap(OURS, "nll", {"above": 0}),
    "fine-tuning-soft-distribution": Gap(OURS, DRAWN, {"above": 0}),
    "fine-tuning-calibration": Gap(OURS, CE, {"below": 0}),
    "fine-tuning-expected": Gap(EXPECTED, DRAWN, {"above": 0, "new": True}),
    "fine-tuning-smoothed-noise": Gap(CORRECTED, DRAWN, {"above": 0, "new": True}),
}
"""By claim, on every data set: a difference in top-1, or in ECE for calibration."""


@dataclass(frozen=True)
class Part(Compared):
    """The fine-tunings on one data set with one head, by loss.

    ``frozen`` is the head alone, trained on features of the same images by NLL.
    """

    recipe: str
    head: str
    frozen: Setting | None


def parts(rows: Sequence[Row]) -> list[Part]:
    """Of each data set and head the trainings of the commonest sizes, in the order of the page."""
    found = []
    for group in alike(rows, "recipe", "head.kind"):
        rest = largest([row for row in group if not row.config["frozen"]], "batch", "epochs")
        settings = {s.loss: s for s in at_best_rate(rest, score=held_out).values()}
        if settings:
            recipe, head = rest[0].config["recipe"], rest[0].config["head"]["kind"]
            losses = {loss: settings[loss] for loss in LOOKS if loss in settings}
            still = chosen([row for row in group if row.config["frozen"]], score=held_out)
            title = f"{DATA[recipe]}, {HEADS[head]}"
            found.append(Part("fine-tuning", title, rest, losses, recipe, head, still[0] if still else None))
    return sorted(found, key=lambda part: list(DATA).index(part.recipe))


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = [part for part in parts(rows) if part.recipe != "requests"]
    answers: dict[str, list[Finding]] = defaultdict(list)
    for part in found:
        for key, q in GAPS.items():
            if gap := part.gap(q.ours, q.theirs, ECE if key == "fine-tuning-calibration" else TOP1):
                answers[key].append(decided(gap, on=f"{part.data}, {gap.count} seeds", unit="", **q.bounds))
        if gain := head_gain(part, found):
            on = f"{DATA[part.recipe]}, {gain.count} seeds"
            answers["fine-tuning-head"].append(decided(gain, on=on, unit="", above=0))
    return {key: together(of) for key, of in answers.items()}


def head_gain(deep: Part, found: Sequence[Part]) -> Estimate | None:
    """Points that three layers add to soft target InfoNCE's top-1, minus those they add to cross-entropy's."""
    for linear in found:
        both = {OURS, CE} <= deep.settings.keys() & linear.settings.keys()
        if both and (deep.head, linear.head, linear.recipe) == ("mlp", "linear", deep.recipe):
            a, b, c, d = (part.settings[loss].rows for loss in (OURS, CE) for part in (deep, linear))
            return difference_of_differences(a, b, c, d, TOP1)
    return None


def tables(rows: Sequence[Row]) -> list[Table]:
    found = parts(rows)
    compared = [loss for loss in STUDIED if loss != CE]
    header = ["minus soft target cross-entropy", *(TITLES[loss] for loss in compared)]
    made = [scores(found, name, value) for name, value in (("top-1", TOP1), ("top-5", TOP5), ("ECE", ECE))]
    for name, minus in (("seeds", Part.gap), ("samples", samples), ("ece-gaps", partial(Part.gap, value=ECE))):
        gaps = [[minus(part, loss, CE) for loss in compared] for part in found]
        body = [[part.data, *(gap.signed() if gap else "" for gap in of)] for part, of in zip(found, gaps, strict=True)]
        made.append(Table(f"fine-tuning-{name}", header, body))
    return [*made, search(found), *corrected(found)]


def scores(found: Sequence[Part], name: str, value: Value) -> Table:
    """A score of every loss: ours, with the backbone frozen, and the paper's."""
    body = [
        [part.data, *(part.settings[loss].mean(value).spread(2) if loss in part.settings else "" for loss in STUDIED)]
        for part in found
    ]
    for part in found:
        if part.frozen:
            cells = [part.frozen.mean(value).spread(2), *[""] * (len(STUDIED) - 1)]
            body.append([f"{part.data}, backbone frozen", *cells])
    if paper := PAPERS.get(name):
        for place, data in enumerate(("ImageNet", "Tiny ImageNet", "CIFAR-100")):
            cells = [f"{paper[loss][place]:.2f}" if loss in paper else "" for loss in STUDIED]
            body.append([f"the paper, {data}", *cells])
    return Table(f"fine-tuning-{name.lower()}", [f"{name} (%)", *(TITLES[loss] for loss in STUDIED)], body)


def search(found: Sequence[Part]) -> Table:
    """Held-out top-1 of seed 0 by rate."""
    tried = {
        (part.data, row.config["loss"]["name"], row.config["lr"]): f"{100 * row.result['held_out']['top1']:.1f}"
        for part in found for row in part.rows if row.config["seed"] == 0
    }  # fmt: skip
    rates = sorted({lr for *_, lr in tried})
    body = [
        [f"{part.data}, {TITLES[loss]}", *(tried.get((part.data, loss, lr), "") for lr in rates), f"{setting.lr:g}"]
        for part in found for loss, setting in part.settings.items()
    ]  # fmt: skip
    return Table("fine-tuning-search", ("data, loss", *(f"{rate:g}" for rate in rates), "chosen"), body)


def corrected(found: Sequence[Part]) -> list[Table]:
    """Soft distribution InfoNCE with both η, if the corrected one was run."""
    body = []
    for part in found:
        if gap := part.gap(CORRECTED, DRAWN):
            top1, ece = ([part.settings[loss].mean(value) for loss in (DRAWN, CORRECTED)] for value in (TOP1, ECE))
            body.append([part.data, *(e.spread(2) for e in top1), gap.signed(), *(e.spread(1) for e in ece)])
    header = ["soft distribution InfoNCE", "top-1 (%), η of the labels", "top-1 (%), η smoothed", "difference (points)",
              "ECE (%), η of the labels", "ECE (%), η smoothed"]  # fmt: skip
    return [Table("fine-tuning-corrected", header, body)] if body else []


def samples(part: Part, loss: str, other: str) -> Estimate | None:
    """Top-1 of a loss minus that of another, with an interval for other test samples too."""
    both = {loss, other} <= part.settings.keys()
    return for_other_samples(part.settings[loss].rows, part.settings[other].rows) if both else None


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = parts(rows)

    def draw(axes: Sequence[Any]) -> None:
        for place, (ax, part) in enumerate(zip(axes, found, strict=True)):
            dots(ax, {loss: gap for loss in STUDIED if loss != CE and (gap := part.gap(loss, CE))})
            ax.axvline(0, color="#808080", ls="--", lw=1.1)
            label(ax, "top-1 minus soft target cross-entropy", title=part.data)
            if place % 3:
                ax.set_yticklabels([])

    return [Figure("fine-tuning-top-1", draw, panels=len(found), columns=3, size=(3.6, 2.4))] if found else []


EXPERIMENT = Experiment(
    name="fine-tuning", question="How do six losses compare when a pre-trained network is fine-tuned end to end?",
    minutes=300, presets=PRESETS, runs=wanted, follow_up=wanted, prepare=prepare, perform=perform,
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
