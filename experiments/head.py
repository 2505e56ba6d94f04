"""A linear head or three layers, scores normalised or not: which loss gains?

The paper reports that three layers gain soft target InfoNCE more than soft target cross-entropy, and that with a linear
head it falls slightly behind. The authors' code, not the paper, adds a BatchNorm without parameters after the scores.
Every loss trains all four heads on fixed features, at its own rate. Tiny ImageNet is its validation set only: 28
batches per epoch, so five epochs are 140 updates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from experiments import training
from experiments.data.features import NAMES, Source
from experiments.features import CE, ECE, EXPECTED, OURS, SCALED_ECE, TOP1, Compared, scores_table, spread
from experiments.harness import Experiment, Figure, Row, Table, dots, label, option
from experiments.harness.claims import ON_PAR, Finding, decided
from experiments.harness.search import chosen, trials, tuned
from experiments.harness.statistics import Estimate, difference_of_differences, largest
from experiments.losses import PAPER, STUDIED, TITLES, Loss, targets_for
from experiments.models.heads import Head
from experiments.training import BATCH, MIXED, Probe

LINEAR, LAYERS, AUTHORS = ("linear", False), ("mlp", False), ("mlp", True)
HEADS = {LINEAR: "linear", ("linear", True): "linear, normalised", LAYERS: "three layers",
         AUTHORS: "three layers, normalised"}  # fmt: skip
"""Kind of head, and whether a BatchNorm without parameters follows the scores."""
EPOCHS = {"digits": 3, "cifar100": 3, "tiny-imagenet": 5}


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds of every loss and head", least=1)
    compared_seeds: int = option(6, "seeds of the two soft target losses with plain heads", least=1)
    linear_seeds: int = option(40, "seeds of these two with a linear head", least=1)
    data: tuple[Source, ...] = option(("cifar100", "tiny-imagenet"), "data sets", fewest=1)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "rates tried for each loss and head", above=0, fewest=1)


def settings(options: Options) -> list[Probe]:
    each = product(options.data, sorted(HEADS, reverse=True), STUDIED)  # the longest first
    return [
        Probe(data, Loss(x), targets_for(x, MIXED), Head(kind, 256, norm), BATCH[data], epochs=EPOCHS[data])
        for data, (kind, norm), x in each
        if x in PAPER or not norm
    ]


def follow_up(options: Options, rows: Sequence[Row]) -> list[Probe]:
    wanted = settings(options)
    compared = [run for run in wanted if run.loss.name in (CE, OURS) and not run.head.output_norm]
    linear = [run for run in compared if run.head.kind == "linear"]
    seeds = (wanted, options.seeds), (compared, options.compared_seeds), (linear, options.linear_seeds)
    return [run for of, number in seeds for run in tuned(of, rows, options.rates, number)]


def parts(rows: Sequence[Row]) -> list[Compared]:
    """Of each data set the largest group of trainings, by loss and head."""
    found = []
    for data in NAMES:
        group = largest([row for row in rows if row.config["data"] == data], "epochs", "batch", "head.hidden")
        settings = {(s.loss, (s.config["head"]["kind"], s.config["head"]["output_norm"])): s for s in chosen(group)}
        if settings:
            found.append(Compared(f"head-{data}", f"{NAMES[data]} features", group, settings))
    return found


def extra(part: Compared) -> Estimate:
    """Soft target InfoNCE's gain of three layers minus soft target cross-entropy's."""
    a, b, c, d = (part.settings[loss, head].rows for loss in (OURS, CE) for head in (LAYERS, LINEAR))
    return difference_of_differences(a, b, c, d, TOP1)


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    plain = (LINEAR, LAYERS)
    needed = {(loss, head) for loss in (CE, OURS, EXPECTED) for head in plain}
    found = [part for part in parts(rows) if not part.is_quick and part.settings.keys() >= needed]
    if not found:
        return {}

    def on(losses: Sequence[str], heads: Sequence[Any]) -> str:
        texts = (part.on(*product(losses, heads)) for part in found)
        return "; ".join(text.replace("epochs 5", "epochs 5 (140 updates)") for text in texts)

    leads = (part.gap((OURS, LINEAR), (CE, LINEAR)) for part in found)
    level = (part.gap((EXPECTED, head), (CE, head)) for part in found for head in plain)
    return {
        "head-gain": decided(*map(extra, found), on=on((OURS, CE), plain), above=0),
        "head-linear": decided(*leads, on=on((OURS, CE), [LINEAR]), below=0),
        "head-expected": decided(*level, on=on([EXPECTED], plain), **ON_PAR, new=True),
    }


def tables(rows: Sequence[Row]) -> list[Table]:
    columns = {"top-1 (%)": (TOP1, 2), "ECE (%)": (ECE, 2), "ECE after temperature scaling (%)": (SCALED_ECE, 2)}
    header = ("points of top-1", "gain of three layers", "of three layers, normalised",
              "linear, minus soft target cross-entropy", "three layers, minus it")  # fmt: skip
    found = []
    for part in parts(rows):
        order = {(loss, HEADS[head]): s for loss in STUDIED for head in HEADS if (s := part.settings.get((loss, head)))}
        found.append(scores_table(part.name, ["loss", "head"], order, columns))
        body = [[TITLES[loss], *(spread(part.gap((loss, head), (loss, LINEAR))) for head in (LAYERS, AUTHORS)),
                 *(spread(part.gap((loss, head), (CE, head))) for head in (LINEAR, LAYERS))]
                for loss in STUDIED]  # fmt: skip
        found.append(Table(f"{part.name}-gains", header, body))
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = parts(rows)

    def draw(axes) -> None:
        for ax, part in zip(axes, found, strict=True):
            dots(ax, {x: gap for x in STUDIED if (gap := part.gap((x, LAYERS), (x, LINEAR)))})
            ax.axvline(0, color="gray", lw=0.8)
            label(ax, "three layers minus linear (points of top-1)", title=part.data.removesuffix(" features"))

    return [Figure("head", draw, panels=len(found))]


EXPERIMENT = Experiment(
    name="head", question="Linear head or three layers: which loss gains?", minutes=16,
    presets={"quick": Options(2, 2, 2, ("digits",), rates=(1e-3, 1e-2)), "paper": Options()},
    runs=lambda options: trials(settings(options), options.rates), follow_up=follow_up, prepare=training.prepare,
    perform=training.train, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
