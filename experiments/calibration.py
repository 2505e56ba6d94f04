"""Is soft target InfoNCE better calibrated? Six losses, before and after temperature scaling.

The paper has three cases: smoothing on Tiny ImageNet, all augmentations on CIFAR-100, all on Tiny ImageNet. Here each
trains a head on fixed features, where "all" means smoothing and MixUp. NLL and InfoNCE see labels. The held-out part
chooses the rate of seed 0; in the third case, where one image of 800 decided, the mean of all seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from experiments import training
from experiments.data.features import NAMES, Source
from experiments.features import CE, ECE, EXPECTED, NLL, OURS, SCALED_ECE, TOP1, Compared, scores_table, spread
from experiments.harness import Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.claims import ON_PAR, Finding, decided, needed, verdict
from experiments.harness.search import chosen, trials, tuned
from experiments.harness.statistics import largest, nats, percent
from experiments.losses import STUDIED, TITLES, Loss, targets_for
from experiments.training import BATCH, MIXED, SMOOTH, Probe

AUGMENTATIONS = {"smoothing": SMOOTH, "smoothing and MixUp": MIXED}
CASES = {  # claim, case, and where the paper has soft target InfoNCE's ECE minus soft target cross-entropy's
    "calibration-smoothing": ("tiny-imagenet", "smoothing", {"below": 0.0}),
    "calibration-mixing": ("cifar100", "smoothing and MixUp", {"below": 0.0}),
    "calibration-reversed": ("tiny-imagenet", "smoothing and MixUp", {"above": 0.0}),
}
EPOCHS = {"digits": 3, "cifar100": 3, "tiny-imagenet": 15}
SEARCHED = 6
"""Seeds whose mean chooses a rate, as far as they were trained at every rate."""


@dataclass(frozen=True)
class Options:
    seeds: int = option(6, "number of seeds", least=1)
    expected_seeds: int = option(3, "those of expected InfoNCE", least=1)
    data: tuple[Source, ...] = option(("cifar100", "tiny-imagenet"), "data sets", fewest=1)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "rates tried for each loss and case", above=0, fewest=1)


def settings(options: Options) -> list[Probe]:
    """Every loss on every data set and augmentation; losses on labels once."""
    cases = product(options.data, AUGMENTATIONS.values(), STUDIED)
    found = (Probe(data, Loss(name), targets_for(name, soft), batch=BATCH[data], epochs=EPOCHS[data])
             for data, soft, name in cases)  # fmt: skip
    return list(dict.fromkeys(found))


def runs(options: Options) -> list[Probe]:
    close = [run for run in settings(options)
             if (run.data, run.targets) == ("tiny-imagenet", MIXED) and run.loss.name in (CE, OURS)]  # fmt: skip
    return [*trials(settings(options), options.rates), *trials(close, options.rates, options.seeds)]


def follow_up(options: Options, rows: Sequence[Row]) -> list[Probe]:
    found = tuned(settings(options), rows, options.rates, options.seeds, searched=SEARCHED)
    return [run for run in found if run.loss.name != EXPECTED or run.seed < options.expected_seeds]


def cases(rows: Sequence[Row]) -> dict[tuple[str, str], Compared]:
    """Of each data set the largest group of trainings, by augmentation; losses on labels are the same in both."""
    found = {}
    for data, (augmentation, targets) in product(NAMES, AUGMENTATIONS.items()):
        group = largest([row for row in rows if row.config["data"] == data], "epochs", "batch", "head")
        losses = {s.loss: s for s in chosen(group, searched=SEARCHED)
                  if s.config["targets"]["mixup"] == targets_for(s.loss, targets).mixup}  # fmt: skip
        if losses:
            name, on = augmentation.split()[-1].lower(), f"{NAMES[data]} features, {augmentation}"
            found[data, augmentation] = Compared(f"calibration-{data}-{name}", on, group, losses)
    return found


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, answers = cases(rows), {}
    for key, (data, augmentation, bound) in CASES.items():
        if (case := found.get((data, augmentation))) and (gap := case.gap(OURS, CE, ECE)):
            ours = f"ECE {gap.signed(1)} points{needed(gap, **bound)}"
            answers[key] = Finding(ours, case.on(OURS, CE), verdict(gap, **bound))
    gaps = {case.on(EXPECTED, CE): gap for case in found.values()
            if not case.is_quick and (gap := case.gap(EXPECTED, CE, SCALED_ECE))}  # fmt: skip
    if gaps:
        answers["calibration-expected"] = decided(*gaps.values(), on="; ".join(gaps), **ON_PAR, new=True)
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    columns = {
        "top-1 (%)": (TOP1, 2), "ECE (%)": (ECE, 2), "equal mass (%)": (percent("ece_mass"), 2),
        "by class (%)": (percent("classwise_ece"), 2), "NLL (nats)": (NLL, 3),
        "temperature": (lambda row: float(row.result["temperature"]), 2), "ECE, scaled (%)": (SCALED_ECE, 2),
        "NLL, scaled (nats)": (nats("nll", "scaled"), 3),
    }  # fmt: skip
    found, body = [], []
    for (data, augmentation), case in cases(rows).items():
        found.append(scores_table(case.name, ["loss"], case.settings, columns))
        for loss in (OURS, EXPECTED):
            gaps = (case.gap(loss, CE, value) for value in (ECE, SCALED_ECE))
            body.append([TITLES[loss], NAMES[data], augmentation, *(spread(gap, 1) for gap in gaps)])
    header = ("minus soft target cross-entropy", "data", "augmentation", "ECE (points)", "after scaling")
    return [*found, Table("calibration-gaps", header, body)]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = cases(rows)

    def draw(axes) -> None:
        for ax, ((data, augmentation), case) in zip(axes, found.items(), strict=True):
            ax.plot([0, 1], [0, 1], "--", color="gray", lw=1)
            for name, setting in case.settings.items():
                bins = setting.rows[0].result["reliability"]
                filled = [place for place, count in enumerate(bins["count"]) if count]
                curve(ax, {bins["confidence"][at]: bins["accuracy"][at] for at in filled}, loss=name)
            label(ax, "confidence", "accuracy", title=f"{NAMES[data]}, {augmentation}", xlim=(0, 1), ylim=(0, 1))

    return [Figure("calibration", draw, panels=len(found), columns=min(2, len(found)))] if found else []


EXPERIMENT = Experiment(
    name="calibration", question="Is soft target InfoNCE better calibrated?", minutes=11,
    presets={"quick": Options(2, 2, ("digits",), rates=(1e-3, 3e-3)), "paper": Options()}, runs=runs,
    follow_up=follow_up, prepare=training.prepare, perform=training.train, findings=findings, tables=tables,
    figures=figures,
)  # fmt: skip
