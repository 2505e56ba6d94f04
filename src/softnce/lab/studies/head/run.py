"""A linear head or three layers, scores normalised or not: what does each loss gain?

The paper reports that a three-layer head gains soft target InfoNCE more than soft target cross-entropy, and that with
a linear head it falls slightly behind. In the authors' code, not in the paper, a BatchNorm without parameters follows
the scores. Here each of the five losses trains all four heads on fixed features, at its own learning rate, chosen on a
held-out part; gains are paired by seed. Look at the difference of the gains, and at what normalised scores cost.

The paper preset needs CIFAR-100 and Tiny ImageNet in the folder that SOFTNCE_DATA names; the quick one uses digits.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import NAMES, Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import difference, difference_of_differences, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.probe import Probe, targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.study import Outcome, StudyConfig, timed
from softnce.lab.recipes import LOSSES
from softnce.lab.recipes.recipe import Head, Loss

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding, Verdict
    from softnce.lab.experiment.statistics import Estimate
    from softnce.lab.report.page import Section

ORDER = 40
VERSION = 1
CE, OURS = "soft-ce", "soft-target-info-nce"
HEADS = {
    ("linear", False): "linear",
    ("linear", True): "linear, scores normalised",
    ("mlp", False): "three layers",
    ("mlp", True): "three layers, scores normalised",
}
PAPER = {"cifar100": {"soft-ce": 0.36, "soft-target-info-nce": 0.70},
         "tiny-imagenet": {"soft-ce": 0.60, "soft-target-info-nce": 1.72}}  # fmt: skip
"""The paper's gains of three layers over a linear head, in points of top-1."""
PAPER_LINEAR = {"cifar100": 90.80 - 0.70 - (90.74 - 0.36), "tiny-imagenet": 83.86 - 1.72 - (83.67 - 0.60)}
"""Soft target InfoNCE minus soft target cross-entropy with a linear head: the paper's table less its gains."""


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes initial weights, batches, mixing and draws")
    compared_seeds: int = option(6, "seeds of the two soft losses the paper compares, with heads as it describes them")
    data: tuple[Source, ...] = option(("cifar100", "tiny-imagenet"), "data sets")
    epochs: tuple[int, ...] = option((3, 5), "passes over the training part of each data set, in their order")
    batch: int = option(256, "rows in a batch")
    hidden: int = option(256, "width of the hidden layers")
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "learning rates tried for each loss and head")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data or len(self.data) != len(self.epochs):
            raise ValueError(f"epochs: got {list(self.epochs)}, need one number for each of {list(self.data)}")
        if self.compared_seeds < 1:
            raise ValueError(f"compared_seeds: got {self.compared_seeds}, need at least 1")
        if min(self.epochs) < 1 or self.batch < 2 or self.hidden < 1:
            raise ValueError(
                f"epochs, batch and hidden: got {list(self.epochs)}, {self.batch} and {self.hidden}, "
                "need at least 1, 2 and 1"
            )
        if not self.rates or min(self.rates) <= 0:
            raise ValueError(f"rates: got {list(self.rates)}, need one or more positive numbers")


PRESETS = {
    "quick": Config(seeds=2, compared_seeds=2, data=("digits",), epochs=(3,), batch=64, hidden=64, rates=(1e-3, 1e-2)),
    "paper": Config(),
}


def settings(config: Config) -> list[Probe]:
    return [
        Probe(
            source,
            Loss(name),
            targets_for(name),
            Head(kind, config.hidden, normalised),
            config.batch,
            epochs=epochs,
        )
        for source, epochs in zip(config.data, config.epochs, strict=True)
        for kind, normalised in sorted(HEADS, reverse=True)  # the longest first
        for name in LOSSES
    ]


def runs(config: Config) -> list[Probe]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Probe]:
    wanted = settings(config)
    compared = [run for run in wanted if run.loss.name in (CE, OURS) and not run.head.output_norm]
    return [
        *search.tuned(wanted, rows, config.rates, config.seeds),
        *search.tuned(compared, rows, config.rates, config.compared_seeds),
    ]


def execute(todo: Sequence[Probe], progress: "Progress") -> Iterator[Outcome]:
    data.prepare(run.data for run in todo)
    yield from one_per_core(partial(timed, training.train), todo)


# ------------------------------------------------------------------------------------------------------------- page

LINEAR, LAYERS, AUTHORS = ("linear", False), ("mlp", False), ("mlp", True)


@dataclass(frozen=True)
class Part:
    """The runs on one data set at their chosen learning rates, by loss and head."""

    data: str
    config: dict[str, Any]
    rates: list[float]
    chosen: dict[tuple[str, tuple[str, bool]], list[Row]]

    @property
    def seeds(self) -> int:
        return min(map(len, self.chosen.values()), default=0)

    def has(self, *wanted: tuple[str, tuple[str, bool]]) -> bool:
        return all(key in self.chosen for key in wanted)

    def gain(self, loss: str, head: tuple[str, bool] = LAYERS, score: str = "top1") -> "Estimate":
        """What ``head`` adds to the plain linear one."""
        return difference(self.chosen[loss, head], self.chosen[loss, LINEAR], percent(score))

    def extra(self, head: tuple[str, bool] = LAYERS) -> "Estimate":
        """Soft target InfoNCE's gain minus soft target cross-entropy's."""
        a, b, c, d = (self.chosen[key] for key in ((OURS, head), (OURS, LINEAR), (CE, head), (CE, LINEAR)))
        return difference_of_differences(a, b, c, d, percent("top1"))

    def lead(self, head: tuple[str, bool]) -> "Estimate":
        """Soft target InfoNCE's top-1 minus soft target cross-entropy's."""
        return difference(self.chosen[OURS, head], self.chosen[CE, head], percent("top1"))


def parts(rows: Sequence[Row]) -> list[Part]:
    """Of each data set the setting with the most runs; digits only where there is nothing else."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        config = row.config
        groups[config["data"], config["epochs"], config["batch"], config["head"]["hidden"]].append(row)
    largest: dict[str, list[Row]] = {}
    for (source, *_), group in groups.items():
        largest[source] = max(largest.get(source, []), group, key=len)
    found: list[Part] = []
    for source in NAMES:
        if source not in largest or (source == "digits" and found):
            continue
        group = largest[source]
        rates = search.tried_rates(group)
        chosen = {_key(runs[0]): runs for runs in search.at_best_rate(group, rates).values()}
        if chosen:
            found.append(Part(source, group[0].config, rates, chosen))
    return found


def _key(row: Row) -> tuple[str, tuple[str, bool]]:
    head = row.config["head"]
    return row.config["loss"]["name"], (head["kind"], head["output_norm"])


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Figure, Panel, Points
    from softnce.lab.report.page import Section, Table, counted, prose
    from softnce.lab.report.style import LOSSES as LOOKS

    found = parts(rows)
    blocks: list[Any] = []
    panels = []
    for part in found:
        for head, title in (LAYERS, "three layers"), (AUTHORS, "and BatchNorm"):
            marks = []
            for place, loss in enumerate(LOSSES):
                if part.has((loss, head), (loss, LINEAR)):
                    gain = part.gain(loss, head)
                    marks.append(Points.of_loss(loss, [place], [gain.mean], [gain.low], [gain.high], size=7.5))
                    paper = PAPER.get(part.data, {}).get(loss)
                    if paper is not None:
                        marks.append(Points("the paper's gain", [place + 0.3], [paper], marker="x", size=6))
            panels.append(
                Panel(
                    f"{NAMES[part.data]}: {title}",
                    "",
                    "gain over a linear head (points)",
                    marks,
                    hide_x=True,
                    x_range=(-0.6, len(LOSSES) - 0.2),
                )
            )
    seeds = counted(max((part.seeds for part in found), default=0), "seed")
    blocks.append(
        Figure(
            "gain",
            prose(f"""Top-1 gained over a plain linear head by three layers, without and with BatchNorm on the scores;
                paired by seed, mean and 95 % interval over {seeds} or
                more. Crosses: the paper's gains, of a fine-tuned ViT-B/16."""),
            panels,
            columns=2,
        )
    )
    for part in found:
        blocks.append(prose(_reading(part)))
        cells = {key: part.chosen[key] for key in part.chosen}
        blocks.append(
            Table(
                ["loss", "head", "top-1 (%)", "ECE (%)", "ECE after temperature scaling (%)", "learning rate"],
                [
                    [
                        LOOKS[loss].name,
                        name,
                        mean(cells[loss, head], percent("top1")).spread(2),
                        mean(cells[loss, head], percent("ece")).spread(2),
                        mean(cells[loss, head], percent("ece", "scaled")).spread(2),
                        f"{cells[loss, head][0].config['lr']:g}",
                    ]
                    for loss in LOSSES
                    for head, name in HEADS.items()
                    if (loss, head) in cells
                ],
                f"{NAMES[part.data]}, test part; mean ± half of the 95 % interval over seeds ({part.seeds} or more).",
            )
        )
    return Section("Linear head or three layers", prose(_summary(found)), blocks, [prose(_method(found))])


def _summary(found: Sequence[Part]) -> str:
    complete = [part for part in found if part.has((OURS, LAYERS), (OURS, LINEAR), (CE, LAYERS), (CE, LINEAR))]
    text = [
        f"""On {NAMES[part.data]} three layers gain soft target InfoNCE {part.gain(OURS).mean:+.2f} points and soft
        target cross-entropy {part.gain(CE).mean:+.2f}; the difference is {signed(part.extra())}."""
        for part in complete
    ]
    return " ".join(text) or "The runs of this study are not finished yet."


def _reading(part: Part) -> str:
    if not part.has(*((loss, head) for loss in (OURS, CE) for head in (LINEAR, LAYERS, AUTHORS))):
        return "Some heads or losses are not finished yet."
    gains = "; ".join(
        f"{_name(loss)} {signed(part.gain(loss))}" for loss in LOSSES if part.has((loss, LAYERS), (loss, LINEAR))
    )
    change = {
        loss: difference(part.chosen[loss, AUTHORS], part.chosen[loss, LAYERS], percent("top1")) for loss in (OURS, CE)
    }
    errors = {
        loss: [mean(part.chosen[loss, head], percent("ece")).mean for head in (LAYERS, AUTHORS)] for loss in (OURS, CE)
    }
    normalised = "; ".join(
        f"""{_name(loss)} {signed(change[loss])} points, its calibration error goes from {errors[loss][0]:.1f} % to
        {errors[loss][1]:.1f} %"""
        for loss in (OURS, CE)
    )
    scaled = " and ".join(
        f"{mean(part.chosen[loss, AUTHORS], percent('ece', 'scaled')).mean:.1f} % ({_name(loss)})"
        for loss in (OURS, CE)
    )
    return f"""{NAMES[part.data]}. Gain of three layers over a linear head: {gains}. Soft target InfoNCE's gain minus
        soft target cross-entropy's is {signed(part.extra())}; with the scores normalised, as the authors' code has it,
        {signed(part.extra(AUTHORS))}. With a linear head soft target InfoNCE is {signed(part.lead(LINEAR))} points from
        soft target cross-entropy, with three layers {signed(part.lead(LAYERS))}. BatchNorm on the scores of three
        layers does this: {normalised}. It fixes the scale of the scores, hence the confidence; after
        temperature scaling the errors are {scaled}."""


def _name(loss: str) -> str:
    from softnce.lab.report.style import LOSSES as LOOKS

    return LOOKS[loss].name


def _method(found: Sequence[Part]) -> str:
    budgets = "; ".join(
        f"""{NAMES[part.data]}: {part.config["epochs"]} epochs of batches of {part.config["batch"]}, hidden layers of
        {part.config["head"]["hidden"]}, learning rates {", ".join(f"{lr:g}" for lr in part.rates)}"""
        for part in found
    )
    return f"""{budgets}. Features of CIFAR-100 and Tiny ImageNet are EfficientNet-Lite0's, frozen; the paper fine-tunes
        the whole network and its hidden layers have 4096 units, so the sizes of the gains are not comparable, only
        which loss gains more. The Tiny ImageNet images are those of the published validation set, 40 a class to train
        on and 10 to test. The learning rate is chosen for each loss and head on a held-out tenth of the training part
        (seed 0), as is the epoch. The two soft losses without BatchNorm on the scores, which the paper compares, have
        {max(len(runs) for part in found for runs in part.chosen.values())} seeds. Hard losses see labels; soft ones
        labels smoothed by 0.1 and mixed (MixUp, 0.8)."""


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import counted, prose

    needed = [(loss, head) for loss in (OURS, CE) for head in (LINEAR, LAYERS)]
    found = [part for part in parts(rows) if part.has(*needed)]
    if not found:
        return {}
    extra = [part.extra() for part in found]
    on = ", ".join(NAMES[part.data] for part in found) + f" features, {counted(extra[0].count, 'seed')}"
    behind = [part.lead(LINEAR) for part in found]
    expected = [_expected(part.data) for part in found]
    more = "; ".join(
        f"{part.gain(OURS).mean:+.2f} against {part.gain(CE).mean:+.2f} {NAMES[part.data]}, difference {signed(e)}"
        for part, e in zip(found, extra, strict=True)
    )
    less = "; ".join(f"{signed(e)} {NAMES[part.data]}" for part, e in zip(found, behind, strict=True))
    return {
        "head-gain": Finding(prose(more), on, _verdict(extra, [gap for gap, _ in expected])),
        "head-linear": Finding(less, on, _verdict(behind, [gap for _, gap in expected])),
    }


def _expected(source: str) -> tuple[float, float]:
    """The paper's difference of gains, and what is between the losses with a linear head."""
    paper = PAPER.get(source)
    return (paper[OURS] - paper[CE], PAPER_LINEAR[source]) if paper else (0.0, 0.0)


def _verdict(measured: "Sequence[Estimate]", paper: Sequence[float]) -> "Verdict":
    """Reproduced where every interval lies on the paper's side of 0, not reproduced where one excludes what it says."""
    if not all(paper) or min(e.count for e in measured) < 3:
        return "undecided"
    sides = [(e.low, e.high) if gap > 0 else (-e.high, -e.low) for e, gap in zip(measured, paper, strict=True)]
    if all(low > 0 for low, _ in sides):
        return "reproduced"
    if any(high < 0 for _, high in sides) or all(high < abs(gap) for (_, high), gap in zip(sides, paper, strict=True)):
        return "not reproduced"
    return "undecided"
