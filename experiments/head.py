"""A linear head or three layers, scores normalised or not: which loss gains?

The paper reports that three layers gain soft target InfoNCE more than soft target cross-entropy, and that with a linear
head it falls slightly behind. The authors' code, not the paper, adds a BatchNorm without parameters after the scores.
Every loss trains all four heads on fixed features, at its own rate. Tiny ImageNet is its validation set only: 28
batches per epoch, so five epochs are 140 updates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments import training
from experiments.data.features import NAMES, Source
from experiments.features import CE, ECE, EXPECTED, OURS, SCALED_ECE, TOP1, Compared, scores_table, spread
from experiments.harness import Experiment, Figure, Row, Table, dots, label, option
from experiments.harness.claims import MARGIN, Finding, decided
from experiments.harness.search import chosen, trials, tuned
from experiments.harness.statistics import Estimate, difference_of_differences, largest
from experiments.losses import PAPER, STUDIED, TITLES, Loss, targets_for
from experiments.models.heads import Head
from experiments.training import MIXED, Probe

LINEAR, LAYERS, AUTHORS = ("linear", False), ("mlp", False), ("mlp", True)
HEADS = {LINEAR: "linear", ("linear", True): "linear, normalised", LAYERS: "three layers",
         AUTHORS: "three layers, normalised"}  # fmt: skip
"""Kind of head, and whether a BatchNorm without parameters follows the scores."""
Kind = tuple[str, bool]


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds of every loss and head", least=1)
    compared_seeds: int = option(6, "seeds of the two soft target losses with plain heads", least=1)
    linear_seeds: int = option(40, "seeds of these two with a linear head", least=1)
    data: tuple[Source, ...] = option(("cifar100", "tiny-imagenet"), "data sets", fewest=1)
    epochs: tuple[int, ...] = option((3, 5), "passes over the training part of each data set", least=1)
    batch: int = option(256, "rows per batch", least=2)
    hidden: int = option(256, "width of the hidden layers", least=1)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "rates tried for each loss and head", above=0, fewest=1)

    def __post_init__(self) -> None:
        if len(self.data) != len(self.epochs):
            raise ValueError(f"epochs: got {list(self.epochs)}, need one number for each of {list(self.data)}")


PRESETS = {
    "quick": Options(2, 2, 2, ("digits",), (3,), batch=64, hidden=64, rates=(1e-3, 1e-2)),
    "paper": Options(),
}


def settings(options: Options) -> list[Probe]:
    return [
        Probe(data, Loss(x), targets_for(x, MIXED), Head(kind, options.hidden, norm), options.batch, epochs=epochs)
        for data, epochs in zip(options.data, options.epochs, strict=True)
        for kind, norm in sorted(HEADS, reverse=True)  # the longest first
        for x in (PAPER if norm else STUDIED)
    ]


def runs(options: Options) -> list[Probe]:
    return trials(settings(options), options.rates)


def follow_up(options: Options, rows: Sequence[Row]) -> list[Probe]:
    wanted = settings(options)
    compared = [run for run in wanted if run.loss.name in (CE, OURS) and not run.head.output_norm]
    linear = [run for run in compared if run.head.kind == "linear"]
    return [
        *tuned(wanted, rows, options.rates, options.seeds),
        *tuned(compared, rows, options.rates, options.compared_seeds),
        *tuned(linear, rows, options.rates, options.linear_seeds),
    ]


def parts(rows: Sequence[Row]) -> list[Compared]:
    """Of each data set the largest group of trainings, by loss and head; digits only without any other."""
    found = {}
    for data in NAMES:
        group = largest([row for row in rows if row.config["data"] == data], "epochs", "batch", "head.hidden")
        settings = {(s.loss, (s.config["head"]["kind"], s.config["head"]["output_norm"])): s for s in chosen(group)}
        if settings:
            found[data] = Compared(f"head-{data}", f"{NAMES[data]} features", group, settings)
    return [part for data, part in found.items() if data != "digits"] or list(found.values())


def extra(part: Compared) -> Estimate:
    """Soft target InfoNCE's gain of three layers minus soft target cross-entropy's."""
    a, b, c, d = (part.settings[loss, head].rows for loss in (OURS, CE) for head in (LAYERS, LINEAR))
    return difference_of_differences(a, b, c, d, TOP1)


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    plain = [(loss, head) for loss in (OURS, CE) for head in (LINEAR, LAYERS)]
    found = [part for part in parts(rows) if part.name != "head-digits" and part.settings.keys() >= set(plain)]
    if not found:
        return {}

    def on(*keys: tuple[str, Kind]) -> str:
        few = "epochs 5", "epochs 5 (140 updates)"
        texts = (part.on(*keys).replace(*few) if "tiny" in part.name else part.on(*keys) for part in found)
        return "; ".join(texts)

    leads = [part.settings[OURS, LINEAR].minus(part.settings[CE, LINEAR], TOP1) for part in found]
    answers = {
        "head-gain": decided(*map(extra, found), on=on(*plain), above=0),
        "head-linear": decided(*leads, on=on((OURS, LINEAR), (CE, LINEAR)), below=0),
    }
    both = [(EXPECTED, LINEAR), (EXPECTED, LAYERS)]
    gaps = [gap for part in found for key in both if (gap := part.gap(key, (CE, key[1])))]
    if len(gaps) == len(found) * len(both):
        answers["head-expected"] = decided(*gaps, on=on(*both), above=-MARGIN, below=MARGIN, new=True)
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    columns = {"top-1 (%)": (TOP1, 2), "ECE (%)": (ECE, 2), "ECE after temperature scaling (%)": (SCALED_ECE, 2)}
    found = []
    for part in parts(rows):
        order = {(loss, HEADS[head]): s for loss in STUDIED for head in HEADS if (s := part.settings.get((loss, head)))}
        found.append(scores_table(part.name, ["loss", "head"], order, columns))
        body = []
        for loss in STUDIED:
            gains = [part.gap((loss, head), (loss, LINEAR)) for head in (LAYERS, AUTHORS)]
            leads = [part.gap((loss, head), (CE, head)) for head in (LINEAR, LAYERS)]
            body.append([TITLES[loss], *map(spread, gains + leads)])
        header = ("points of top-1", "gain of three layers", "of three layers, normalised",
                  "linear, minus soft target cross-entropy", "three layers, minus it")  # fmt: skip
        found.append(Table(f"{part.name}-gains", header, body))
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = parts(rows)

    def draw(axes) -> None:
        for ax, part in zip(axes, found, strict=True):
            dots(ax, {x: gap for x in STUDIED if (gap := part.gap((x, LAYERS), (x, LINEAR)))})
            ax.axvline(0, color="gray", lw=0.8)
            label(ax, "three layers minus linear (points of top-1)", title=part.data.removesuffix(" features"))

    return [Figure("head", draw, panels=len(found))] if found else []


EXPERIMENT = Experiment(
    name="head", question="Linear head or three layers: which loss gains?", minutes=16, presets=PRESETS, runs=runs,
    follow_up=follow_up, prepare=training.prepare, perform=training.train, findings=findings,
    tables=tables, figures=figures,
)  # fmt: skip
