from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import NAMES, Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import Value, difference, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.probe import HARD, MIXED, SMOOTH, Probe
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.study import Outcome, StudyConfig, timed
from softnce.lab.recipes.recipe import HARD_LOSSES, Head, Loss, LossName, Targets

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import Section

ORDER = 70
VERSION = 1
OURS, CE = "soft-target-info-nce", "soft-ce"
AUGMENTATIONS: dict[str, Targets] = {"smoothing": SMOOTH, "smoothing and MixUp": MIXED}
PAPER = {  # ECE of soft target InfoNCE and soft target cross-entropy, ViT-B/16, and the claim's name
    ("tiny-imagenet", "smoothing"): (3.9, 7.0, "calibration-smoothing"),
    ("cifar100", "smoothing and MixUp"): (2.9, 15.8, "calibration-mixing"),
    ("tiny-imagenet", "smoothing and MixUp"): (7.7, 6.3, "calibration-reversed"),
}
ECE, TOP1 = percent("ece"), percent("top1")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(6, "number of seeds; a seed fixes initial weights, batches and mixing")
    data: tuple[Source, ...] = option(("cifar100", "tiny-imagenet"), "data sets")
    epochs: tuple[int, ...] = option((3, 15), "passes over the training part of each data set, in their order")
    batch: int = option(256, "rows in a batch")
    hidden: int = option(256, "width of the head's hidden layers")
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "learning rates tried for each loss and case")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data or len(self.data) != len(self.epochs):
            raise ValueError(f"epochs: got {list(self.epochs)}, need one number for each of {list(self.data)}")
        if min(self.epochs) < 1 or self.batch < 2 or self.hidden < 1:
            raise ValueError(
                f"epochs, batch and hidden: got {list(self.epochs)}, {self.batch} and {self.hidden}, "
                "need at least 1, 2 and 1"
            )
        search.check_rates(self.rates)


PRESETS = {
    "quick": Config(seeds=2, data=("digits",), epochs=(3,), batch=64, hidden=64, rates=(1e-3, 3e-3)),
    "paper": Config(),
}


def settings(config: Config) -> list[Probe]:
    found = []
    for source, epochs in zip(config.data, config.epochs, strict=True):
        for targets in AUGMENTATIONS.values():
            for name in get_args(LossName):
                chosen = HARD if name in HARD_LOSSES else targets
                found.append(Probe(source, Loss(name), chosen, Head(hidden=config.hidden), config.batch, epochs=epochs))
    return list(dict.fromkeys(found))  # hard losses are the same in both cases


def runs(config: Config) -> list[Probe]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Probe]:
    return search.tuned(settings(config), rows, config.rates, config.seeds)


def execute(todo: Sequence[Probe], progress: "Progress") -> Iterator[Outcome]:
    data.prepare(run.data for run in todo)
    yield from one_per_core(partial(timed, training.train), todo)


# ------------------------------------------------------------------------------------------------------------- page

Case = tuple[str, str]
"""Data set and augmentation."""


def cases(rows: Sequence[Row]) -> dict[Case, dict[str, list[Row]]]:
    """Trainings at their chosen rates, by case and loss; of each data set those with the most epochs."""
    most: dict[str, int] = {}
    for row in rows:
        most[row.config["data"]] = max(most.get(row.config["data"], 0), row.config["epochs"])
    kept = [row for row in rows if row.config["epochs"] == most[row.config["data"]]]
    found: dict[Case, dict[str, list[Row]]] = {}
    for source in NAMES:
        of_source = [row for row in kept if row.config["data"] == source]
        rates = search.tried_rates(of_source)
        settings = list(search.at_best_rate(of_source, rates).values())
        for augmentation, targets in AUGMENTATIONS.items():
            for name in get_args(LossName):
                mixup = 0.0 if name in HARD_LOSSES else targets.mixup
                for setting in settings:
                    config = setting[0].config
                    if config["loss"]["name"] == name and config["targets"]["mixup"] == mixup:
                        found.setdefault((source, augmentation), {})[name] = setting
    return found


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Diagonal, Figure, Line, Panel
    from softnce.lab.report.page import Section, Table, prose
    from softnce.lab.report.style import LOSSES

    found = cases(rows)
    columns: list[tuple[str, Value]] = [
        ("top-1 (%)", TOP1),
        ("ECE (%)", ECE),
        ("ECE, equal mass (%)", percent("ece_mass")),
        ("by class (%)", percent("classwise_ece")),
        ("NLL (nats)", lambda row: row.result["test"]["nll"]),
        ("Brier", lambda row: row.result["test"]["brier"]),
        ("temperature", lambda row: row.result["temperature"]),
        ("ECE, scaled (%)", percent("ece", "scaled")),
        ("NLL, scaled (nats)", lambda row: row.result["scaled"]["nll"]),
    ]
    blocks: list[Any] = []
    for number, ((source, augmentation), by_loss) in enumerate(found.items()):
        before = [Line.of_loss(name, *_diagram(of[0])) for name, of in by_loss.items()]
        title = f"{NAMES[source]}, {augmentation}"
        blocks += [
            Table(
                ["loss", *(label for label, _ in columns)],
                [
                    [LOSSES[name].name, *(mean(of, value).spread(3 if "nats" in label or label == "Brier" else 2)
                                          for label, value in columns)]
                    for name, of in by_loss.items()
                ],
                prose(f"""{title}: test scores, mean ± half of the 95 % interval over seeds; 15 bins. "Scaled" after the
                    temperature fitted on the held-out part."""),
            ),
            prose(_reading(source, augmentation, by_loss)),
            Figure(
                f"reliability-{number}",
                prose(f"""{title}: accuracy against confidence of the predicted class in 15 bins of equal width, seed
                    0. Above the line a model is too cautious, below it too sure."""),
                [Panel(title, "confidence", "accuracy", [Diagonal("calibrated", 0.0, 1.0), *before],
                       x_range=(0.0, 1.0), y_range=(0.0, 1.0))],
                panel_size=(4.8, 3.9),
            ),
        ]  # fmt: skip
    return Section(
        "Calibration",
        prose(_summary(found)),
        blocks,
        [
            prose("""Probabilities are the softmax of the scores. A confidence of exactly 1 falls in the last bin. The
                expected calibration error is biased upwards, the more the fewer samples a bin holds: more on the 2,000
                test images of Tiny ImageNet here than on the 10,000 of CIFAR-100. Equal mass bins and the classwise
                error are there so that no conclusion hangs on one choice of bins. The tests hold these figures to a
                brute-force implementation.""")
        ],
    )


def _diagram(row: Row) -> tuple[list[float], list[float]]:
    bins = row.result["reliability"]
    filled = [
        (confidence, accuracy)
        for count, confidence, accuracy in zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True)
        if count
    ]
    return [confidence for confidence, _ in filled], [accuracy for _, accuracy in filled]


def _reading(source: str, augmentation: str, by_loss: dict[str, list[Row]]) -> str:
    if OURS not in by_loss or CE not in by_loss:
        return "The search for the learning rates is not finished."
    ours, theirs = by_loss[OURS], by_loss[CE]
    gap, scaled = difference(ours, theirs, ECE), difference(ours, theirs, percent("ece", "scaled"))
    text = f"""Soft target InfoNCE minus soft target cross-entropy, in points of ECE: {signed(gap)}; after temperature
        scaling {signed(scaled)}. The fitted temperatures are {mean(ours, _temperature).mean:.2f} and
        {mean(theirs, _temperature).mean:.2f}: {_direction(ours)} against {_direction(theirs)}."""
    if (source, augmentation) in PAPER:
        paper_ours, paper_ce, _ = PAPER[source, augmentation]
        text += f" The paper (ViT-B/16, one run each): {paper_ours:g} % against {paper_ce:g} %."
    return text


def _temperature(row: Row) -> float:
    return float(row.result["temperature"])


def _direction(rows: Sequence[Row]) -> str:
    temperature = mean(rows, _temperature).mean
    return "too sure" if temperature > 1 else "too cautious"


def _summary(found: dict[Case, dict[str, list[Row]]]) -> str:
    said = []
    for (source, augmentation), by_loss in found.items():
        if OURS in by_loss and CE in by_loss:
            ours, theirs = mean(by_loss[OURS], ECE), mean(by_loss[CE], ECE)
            said.append(f"{NAMES[source]}, {augmentation}: {ours.mean:.1f} % against {theirs.mean:.1f} %")
    return "ECE of soft target InfoNCE against soft target cross-entropy: " + "; ".join(said) + "."


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding, Verdict
    from softnce.lab.report.page import counted

    answers = {}
    for case, by_loss in cases(rows).items():
        if case not in PAPER or OURS not in by_loss or CE not in by_loss:
            continue
        paper_ours, paper_ce, key = PAPER[case]
        gap = difference(by_loss[OURS], by_loss[CE], ECE)
        sign = 1 if paper_ours > paper_ce else -1
        verdict: Verdict = (
            "undecided" if gap.count == 1
            else "reproduced" if sign * gap.mean > 0 and gap.low * gap.high > 0
            else "not reproduced" if gap.low * gap.high > 0
            else "undecided"
        )  # fmt: skip
        answers[key] = Finding(
            f"ECE {mean(by_loss[OURS], ECE).mean:.1f} % against {mean(by_loss[CE], ECE).mean:.1f} %, "
            f"difference {signed(gap, 1)}",
            f"{NAMES[case[0]]} features, {case[1]}, {counted(len(by_loss[OURS]), 'seed')}",
            verdict,
        )
    return answers
