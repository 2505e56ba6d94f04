"""Five losses on images: accuracy and calibration, beside the paper's table.

Two models, both far smaller than the paper's fine-tuned ViT-B/16. A head (three layers) on features of a frozen
EfficientNet-Lite0, which was trained on ImageNet; and a small residual network trained end to end from nothing. NLL and
InfoNCE see labels, the three soft losses the same smoothed and mixed ones. The learning rate of each loss is searched
for in the paper's interval on a tenth of the training set, which also chooses the epoch; the test set is only reported.

The paper preset needs CIFAR-100 in the folder that the environment variable SOFTNCE_DATA names (train.npz and test.npz,
or the published files, in its folder cifar100). The quick one uses scikit-learn's digits and the head only.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import NAMES, Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import Value, difference, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.probe import Probe, targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.recipes import LOSSES
from softnce.lab.recipes.recipe import Head, Loss, Recipe, Targets

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import Section

ORDER = 30
VERSION = 1
IMAGE_TARGETS = Targets(smoothing=0.1, mixup=0.8, cutmix=1.0)


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes initial weights, batches and mixing")
    data: Source = option("cifar100", "data set for the head on frozen features")
    epochs: int = option(3, "passes over the training set, for the head")
    batch: int = option(256, "rows in a batch, for both models")
    hidden: int = option(512, "width of the head's hidden layers")
    rates: tuple[float, ...] = option(search.LEARNING_RATES, "learning rates tried for the head")
    image_epochs: int = option(4, "passes over the training set, end to end; 0 leaves this part out")
    image_rates: tuple[float, ...] = option((1e-3, 3e-3), "learning rates tried end to end")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("epochs", 1), ("batch", 2), ("hidden", 1), ("image_epochs", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, need at least {least}")
        search.check_rates(self.rates)
        search.check_rates(self.image_rates, "image_rates")


PRESETS = {
    "quick": Config(seeds=2, data="digits", epochs=3, batch=64, hidden=64, rates=(1e-3, 3e-3), image_epochs=0),
    "paper": Config(),
}


@dataclass(frozen=True)
class EndToEnd:
    """One training of a small network on images, by what `softnce train` does."""

    loss: Loss
    targets: Targets
    batch: int
    epochs: int
    lr: float = 1e-3
    seed: int = 0
    recipe: str = "laptop/cifar100"
    held_out: float = data.HELD_OUT


Run = Probe | EndToEnd


def heads(config: Config) -> list[Probe]:
    head = Head(hidden=config.hidden)
    return [
        Probe(config.data, Loss(name), targets_for(name), head, config.batch, epochs=config.epochs) for name in LOSSES
    ]


def networks(config: Config) -> list[EndToEnd]:
    if config.image_epochs == 0:
        return []
    return [
        EndToEnd(Loss(name), targets_for(name, IMAGE_TARGETS), config.batch, config.image_epochs) for name in LOSSES
    ]


def runs(config: Config) -> list[Run]:
    return [*search.trials(heads(config), config.rates), *search.trials(networks(config), config.image_rates)]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    return [
        *search.tuned(heads(config), rows, config.rates, config.seeds),
        *search.tuned(networks(config), rows, config.image_rates, config.seeds),
    ]


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    data.prepare(run.data for run in todo if isinstance(run, Probe))
    if any(isinstance(run, EndToEnd) for run in todo):
        data.folder("cifar100")
    yield from one_per_core(perform, sorted(todo, key=lambda run: isinstance(run, Probe)))  # the longest first


def perform(run: Run) -> Outcome:
    started = time.perf_counter()
    result = training.train(run) if isinstance(run, Probe) else train_network(run)
    return Outcome(run, result, time.perf_counter() - started)


def train_network(run: EndToEnd) -> dict[str, Any]:
    """Held-out and test scores of the epoch that is best on the held-out part."""
    from softnce.lab import recipes
    from softnce.lab.train.run import train

    recipe = recipes.load(run.recipe)
    assert isinstance(recipe, Recipe)
    recipe = replace(
        recipe,
        seed=run.seed,
        data=replace(recipe.data, dir=data.folder(recipe.data.kind), holdout=run.held_out, workers=0),
        loss=run.loss,
        targets=run.targets,
        optimiser=replace(recipe.optimiser, batch=run.batch, base_lr=run.lr * 256 / run.batch),
        schedule=replace(recipe.schedule, epochs=run.epochs),
        compute=replace(recipe.compute, accelerator="cpu", progress=False),
    )
    with tempfile.TemporaryDirectory() as folder:
        results = train(recipe, Path(folder) / "run")
    return {"epoch": 1 + int(results["best"]["epoch"]), "held_out": results["best"], "test": results["test"]}


PAPER = {  # top-1 and top-5 of ViT-B/16 (tab:soft_target_results, tab:top_5): ImageNet, Tiny ImageNet, CIFAR-100
    "nll": (("82.35", "82.63", "90.84"), ("94.95", "93.84", "98.37")),
    "soft-ce": (("83.85", "83.67", "90.74"), ("96.46", "94.91", "98.40")),
    "info-nce": (("82.52", "82.72", "90.75"), ("95.43", "93.67", "98.40")),
    "soft-dist-info-nce": (("82.96", "82.77", "89.82"), ("96.40", "95.06", "98.78")),
    "soft-target-info-nce": (("83.54", "83.86", "90.80"), ("96.43", "94.91", "98.51")),
}
OURS = "soft-target-info-nce"
TOP1, ECE = percent("top1"), percent("ece")


@dataclass(frozen=True)
class Part:
    """The trainings of one model: by loss those at its chosen rate, and all that were tried."""

    title: str
    on: str
    chosen: dict[str, list[Row]]
    tried: dict[str, dict[float, float]]  # held-out top-1 in per cent, by loss and learning rate

    @property
    def is_complete(self) -> bool:
        """Whether every loss has seeds enough to be compared."""
        return not set(LOSSES) - set(self.chosen) and min(map(len, self.chosen.values())) > 1

    @property
    def is_of_digits(self) -> bool:
        return any(row.config.get("data") == "digits" for rows in self.chosen.values() for row in rows)

    def difference(self, other: str, value: Value = TOP1) -> Estimate:
        """Soft target InfoNCE minus another loss, in points."""
        return difference(self.chosen[OURS], self.chosen[other], value)


def parts(rows: Sequence[Row]) -> list[Part]:
    """Of each model the settings of the most trainings."""
    from softnce.lab.report.page import counted

    found = []
    for is_network in (False, True):
        groups: dict[Any, list[Row]] = defaultdict(list)
        for row in rows:
            if ("recipe" in row.config) == is_network:
                same = {name: value for name, value in row.config.items() if name not in ("loss", "targets")}
                groups[search.setting_key(same)].append(row)
        if not groups:
            continue
        group = max(groups.values(), key=len)
        rates = search.tried_rates(group)
        by_setting = search.at_best_rate(group, rates)
        chosen: dict[str, list[Row]] = {
            name: found for name in LOSSES for found in by_setting.values() if _loss(found[0]) == name
        }
        tried: dict[str, dict[float, float]] = defaultdict(dict)
        for row in group:
            if row.config["seed"] == 0:
                tried[_loss(row)][row.config["lr"]] = 100 * row.result["held_out"]["top1"]
        config = group[0].config
        seeds = counted(max(map(len, chosen.values()), default=0), "seed")
        if is_network:
            title, on = "a small residual network, end to end", f"CIFAR-100, {config['epochs']} epochs from nothing"
        else:
            title, on = f"a head on features, {NAMES[config['data']]}", f"{NAMES[config['data']]} features"
        found.append(Part(title, f"{on}, {seeds}", chosen, dict(tried)))
    return found


def _loss(row: Row) -> str:
    return str(row.config["loss"]["name"])


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Figure, Line, Panel, Points
    from softnce.lab.report.page import Section, Table, prose
    from softnce.lab.report.style import LOSSES as LOOKS

    blocks: list[Any] = []
    ours = parts(rows)
    for number, part in enumerate(ours):
        blocks.append(
            Table(
                ["loss", "top-1 (%)", "top-5 (%)", "ECE (%)", "NLL (nats)", "learning rate", "paper, CIFAR-100 top-1"],
                [
                    [
                        LOOKS[name].name,
                        mean(found, TOP1).spread(2),
                        mean(found, percent("top5")).spread(2),
                        mean(found, ECE).spread(2),
                        mean(found, lambda row: row.result["test"]["nll"]).spread(3),
                        f"{found[0].config['lr']:g}",
                        PAPER[name][0][2],
                    ]
                    for name, found in part.chosen.items()
                ],
                prose(f"""Test scores, {part.title} ({part.on}); mean ± half of the 95 % interval. The paper's column is
                    ViT-B/16, MAE pre-trained, fine-tuned 100 epochs: another model, to compare the order of the losses,
                    not the level."""),
            )
        )
        blocks.append(prose(_reading(part)))
        blocks.append(
            Figure(
                f"rates-{number}" if number else "rates",
                prose(f"""Left: test accuracy of {part.title}, mean and 95 % interval. Right: the search for the
                    learning rate, held-out accuracy of seed 0."""),
                [
                    Panel(
                        "test",
                        "",
                        "top-1 (%)",
                        [
                            Points.of_loss(name, [place], [e.mean], [e.low], [e.high], size=7.5)
                            for place, (name, found) in enumerate(part.chosen.items())
                            for e in [mean(found, TOP1)]
                        ],
                        hide_x=True,
                        x_range=(-0.6, len(part.chosen) - 0.4),
                    ),
                    Panel(
                        "search",
                        "learning rate",
                        "held-out top-1 (%)",
                        [
                            Line.of_loss(name, sorted(by_rate), [by_rate[lr] for lr in sorted(by_rate)])
                            for name, by_rate in part.tried.items()
                        ],
                        log_x=True,
                    ),
                ],
            )
        )
    blocks.append(
        Table(
            [
                "the paper's figures",
                "ImageNet top-1",
                "top-5",
                "Tiny ImageNet top-1",
                "top-5",
                "CIFAR-100 top-1",
                "top-5",
            ],
            [
                [LOOKS[name].name, *(value for pair in zip(*PAPER[name], strict=True) for value in pair)]
                for name in PAPER
            ],
            "ViT-B/16, as printed (tab:soft_target_results, tab:top_5). Each cell is a recipe: softnce recipes.",
        )
    )
    return Section(
        "Five losses on images",
        prose(" ".join(_summary(part) for part in ours)),
        blocks,
        [
            prose("""NLL and InfoNCE are trained on labels. The soft losses are trained on labels smoothed by 0.1 and
                mixed: MixUp (0.8) of features for the head; MixUp or CutMix of images in four batches of five end to
                end. AdamW, weight decay 0.05, a cosine down to 0. A tenth of the training set, the same for every run,
                is held out; it chooses the learning rate (seed 0) and the epoch."""),
        ],
    )


def _summary(part: Part) -> str:
    if set(LOSSES) - set(part.chosen):
        return ""
    return f"""On {part.title}, soft target InfoNCE is {signed(part.difference("soft-ce"))} points from soft target
        cross-entropy and {signed(part.difference("nll"))} from NLL in top-1."""


def _reading(part: Part) -> str:
    if set(LOSSES) - set(part.chosen):
        return "The search for the learning rates is not finished."
    names = {"soft-ce": "soft target cross-entropy", "nll": "NLL", "info-nce": "InfoNCE",
             "soft-dist-info-nce": "soft distribution InfoNCE"}  # fmt: skip
    found = [f"{names[other]} {signed(part.difference(other))}" for other in names]
    errors = [f"{names[other]} {signed(part.difference(other, ECE))}" for other in names]
    return f"""Soft target InfoNCE minus the others, paired by seed, in points of top-1 with 95 % intervals:
        {"; ".join(found)}. In expected calibration error: {"; ".join(errors)}."""


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    """What both models say; a verdict only where they agree."""
    from softnce.lab.experiment.claims import Finding, Verdict

    answers = [_part_claims(part) for part in parts(rows) if part.is_complete and not part.is_of_digits]
    found: dict[str, Finding] = {}
    for key in answers[0] if answers else ():
        of_key = [answer[key] for answer in answers]
        agree = len({finding.verdict for finding in of_key}) == 1
        verdict: Verdict = of_key[0].verdict if agree else "undecided"
        found[key] = Finding("; ".join(f.ours for f in of_key), "; ".join(f.on for f in of_key), verdict)
    return found


def _part_claims(part: Part) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding, ahead, on_par
    from softnce.lab.report.style import LOSSES as LOOKS

    def beats(other: str) -> Finding:
        gain = part.difference(other)
        return Finding(f"{signed(gain)} points", part.on, ahead(gain))

    par = part.difference("soft-ce")
    means = {name: mean(rows, TOP1).mean for name, rows in part.chosen.items()}
    drawn = means.pop("soft-dist-info-nce")
    lowest = min(means.values())
    fives = {name: mean(rows, percent("top5")).mean for name, rows in part.chosen.items()}
    first = max(fives, key=fives.__getitem__)
    rates = {name: part.chosen[name][0].config["lr"] for name in ("soft-ce", OURS)}
    tried = sorted(set.union(*map(set, part.tried.values())))
    is_inside = all(tried[0] < rate < tried[-1] for rate in rates.values())
    same_rate = len(set(rates.values())) == 1
    return {
        "accuracy-soft-ce": Finding(f"{signed(par)} points", part.on, on_par(par)),
        "accuracy-nll": beats("nll"),
        "accuracy-info-nce": beats("info-nce"),
        "accuracy-soft-distribution": beats("soft-dist-info-nce"),
        "accuracy-worst": Finding(
            f"{drawn:.2f}, the next {lowest:.2f}", part.on, "reproduced" if drawn < lowest else "not reproduced"
        ),
        "accuracy-top-5": Finding(
            f"{fives['soft-dist-info-nce']:.2f}, first is {LOOKS[first].name} with {fives[first]:.2f}",
            part.on,
            "reproduced" if first == "soft-dist-info-nce" else "not reproduced",
        ),
        "accuracy-rates": Finding(
            f"{rates['soft-ce']:g} and {rates[OURS]:g}, of {tried[0]:g} to {tried[-1]:g}",
            part.on,
            "not reproduced" if not same_rate else "reproduced" if is_inside else "undecided",
        ),
    }
