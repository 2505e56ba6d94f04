"""Ten thousand to a million classes: what does a loss cost, and what does it learn, as classes grow?

A generated problem whose best possible accuracy is known: a class is a point in space, a sample its point with Gaussian
noise, seen through a fixed invertible network. Every model is a small network and a table of label embeddings, trained
on MixUp batches, that is on soft targets of two pairs:

  soft target InfoNCE from the table, against the batch's targets, or against more targets drawn at random
  expected InfoNCE, its negatives drawn; sampled softmax with log Q correction, the usual shortcut
  soft target cross-entropy over all classes, where its schedule can be finished

Two parts: long trainings at one rate, and shorter ones whose table's optimiser and rate are searched with seed 0, which
is not reported. Compared are accuracies after equal processor time. Runs are made one after another.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from experiments.classes.training import METHODS, Method, Run, perform
from experiments.harness import LOOKS, SERIES, Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.claims import Finding, decided, verdict
from experiments.harness.statistics import Estimate, alike, estimate, mean

# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True)
class Options:
    classes: tuple[int, ...] = option((100_000,), "K of the long trainings", least=1)
    methods: tuple[Method, ...] = option(METHODS[:4], "losses of the long trainings")
    seeds: int = option(2, "their seeds; a seed fixes the problem, the batches and the first weights", least=1)
    steps: int = option(2000, "their steps, at least", least=1)
    views: int = option(20, "times every class is seen in them, at least", least=1)
    batch: int = option(1024, "their rows of a batch; twice as many are drawn beside it", least=1)
    searched: tuple[int, ...] = option((10_000, 100_000), "K at which optimiser and rate of the table are searched")
    enlarged: tuple[int, ...] = option((1_000_000,), "K trained with what was found at the largest of those")
    skewed: tuple[int, ...] = option((10_000,), "K with frequencies 1/rank trained with what was found there")
    searched_seeds: int = option(3, "seeds there, besides that of the search", least=1)
    searched_steps: int = option(400, "steps there, at least", least=1)
    searched_views: int = option(10, "times every class is seen there, at least", least=1)
    searched_batch: int = option(256, "rows of a batch there, and as many drawn beside it", least=1)
    softmax_steps: tuple[int, ...] = option((400, 150), "its steps; 150 take the time of the others' 400 at K = 10⁴")
    adam_rates: tuple[float, ...] = option((0.1, 0.3, 1.0, 3.0, 10.0), "rates of SparseAdam tried", above=0, fewest=1)
    adagrad_rates: tuple[float, ...] = option((1.0, 3.0, 10.0, 30.0), "of row-wise Adagrad", above=0, fewest=1)

    def __post_init__(self) -> None:
        if min((*self.classes, *self.searched), default=self.batch) < self.searched_batch:
            raise ValueError(f"searched: got {self.searched}, need at least the {self.searched_batch} rows of a batch")


PRESETS = {
    "quick": Options(
        classes=(2_000,), seeds=1, steps=150, views=6, batch=256, searched=(2_000,), enlarged=(), skewed=(),
        searched_seeds=2, searched_steps=100, searched_views=5, adam_rates=(0.3,), adagrad_rates=(3.0,),
        softmax_steps=(100, 40),
    ),
    "paper": Options(),
}  # fmt: skip
OPTIMISERS = {"sparse-adam": "SparseAdam", "row-adagrad": "row-wise Adagrad"}
DRAWN = {"info-nce": 0, "info-nce-more": 1, "expected-info-nce": 2, "sampled-softmax": 2, "softmax": 0}
"""Candidates drawn beside the batch in the long trainings, in batches."""
PROBLEM: dict[str, Any] = {"network_lr": 3e-3, "mix_alpha": 0.2, "noise": 0.5, "latent": 32, "tests": 1000}
SOFTMAX_CLASSES = 10_000
"""Up to which the full softmax has a part in the search."""


def wanted(options: Options, rows: Sequence[Row] = ()) -> list[Run]:
    """Long trainings, the search, then further seeds of each method at its best; the largest K come last."""
    o, accuracy = options, {Run(**row.config): row.result["accuracy"] for row in rows}
    runs, best = [], {}
    for classes, seed, method in product(o.classes, range(o.seeds), o.methods):
        steps = max(o.steps, math.ceil(o.views * classes / o.batch))
        sizes = {"batch": o.batch, "others": DRAWN[method] * o.batch, "dim": 64, "hidden": 256}
        runs.append(Run(method, classes, 0.3, seed, steps, None, **sizes, **PROBLEM))
    for classes in sorted(o.searched):
        tried = trials(o, classes)
        runs += [trial for group in tried for trial in group]
        best[classes] = [max(group, key=accuracy.__getitem__) for group in tried if accuracy.keys() >= set(group)]

    def sized(found: Sequence[Run], classes: int, zipf: float = 0.0) -> list[Run]:
        steps = searched_steps(o, classes)
        return [replace(r, classes=classes, steps=steps, zipf=zipf) for r in found if r.method != "softmax"]

    first = [run for found in best.values() for run in found]
    first += [run for classes in o.skewed for run in sized(best.get(classes, []), classes, 1.0)]
    last = [run for classes in o.enlarged for run in sized(best.get(max(best, default=0), []), classes)]
    seeds = range(1, 1 + o.searched_seeds)
    return runs + [replace(run, seed=seed) for part in (first, last) for seed in seeds for run in part]


def searched_steps(options: Options, classes: int) -> int:
    return max(options.searched_steps, math.ceil(options.searched_views * classes / options.searched_batch))


def trials(options: Options, classes: int) -> list[list[Run]]:
    """By method (and number of steps), every optimiser and rate of the table, seed 0."""
    o, groups = options, []
    adam = [("sparse-adam", lr) for lr in o.adam_rates]
    adagrad = [("row-adagrad", lr) for lr in o.adagrad_rates]
    for method, steps, ways in (
        *((method, searched_steps(o, classes), adam + adagrad) for method in METHODS if method != "softmax"),
        *(("softmax", steps, adam) for steps in o.softmax_steps if classes <= SOFTMAX_CLASSES),
    ):
        others = 0 if method in ("info-nce", "softmax") else o.searched_batch
        run = Run(method, classes, 0.0, 0, steps, None, o.searched_batch, others, dim=32, hidden=128, part="searched",
                  **PROBLEM)  # fmt: skip
        groups.append([replace(run, lr=lr, table_optimiser=optimiser) for optimiser, lr in ways])
    return groups


# --------------------------------------------------------------------------------------------------------- the numbers

EXPECTED: Method = "expected-info-nce"
NAMES: dict[str, str] = {
    "info-nce": "soft target InfoNCE",
    "info-nce-more": "soft target InfoNCE, more candidates",
    "expected-info-nce": "expected InfoNCE",
    "sampled-softmax": "sampled softmax",
    "softmax": "full softmax",
}


def processor(row: Row) -> float:
    """Seconds of the processor."""
    return float(row.result["course"]["cpu_seconds"][-1])


def accuracy(row: Row) -> float:
    """At the end, in per cent."""
    return 100 * float(row.result["accuracy"])


def accuracy_at(row: Row, seconds: float) -> float:
    """Accuracy after that processor time in per cent, between two measurements by interpolation."""
    course = row.result["course"]
    return 100 * float(np.interp(seconds, course["cpu_seconds"], course["accuracy"]))


def lead(ours: Sequence[Row], theirs: Sequence[Row]) -> Estimate | None:
    """Points of ours over theirs after the processor time of the shorter run, seed by seed."""
    pairs = [(a, b) for a in ours for b in theirs if a.config["seed"] == b.config["seed"]]
    timed = [(a, b, min(processor(a), processor(b))) for a, b in pairs]
    return estimate([accuracy_at(a, end) - accuracy_at(b, end) for a, b, end in timed]) if pairs else None


Problem = tuple[float, int]
"""Exponent of the frequencies, and classes."""
Way = tuple[str, int]
"""Method and steps."""


def searched(rows: Sequence[Row]) -> dict[Problem, dict[Way, list[Row]]]:
    """The seeds that had no part in the search, by problem and way."""
    found: dict[Problem, dict[Way, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: (METHODS.index(row.config["method"]), -row.config["steps"])):
        c = row.config
        if c.get("part") == "searched" and c["seed"] > 0:
            found[c.get("zipf", 0.0), c["classes"]][c["method"], c["steps"]].append(row)
    return dict(sorted(found.items()))


def leads(of: Mapping[Way, list[Row]]) -> dict[Way, Estimate]:
    """Points of expected InfoNCE over each method on a problem; none over a schedule too long for the time."""
    ours = next((group for (method, _), group in of.items() if method == EXPECTED), [])
    shortest = dict(sorted(of, reverse=True))  # the last of several steps
    others = {way: group for way, group in of.items() if way[0] != EXPECTED and shortest[way[0]] == way[1]}
    return {way: gap for way, group in others.items() if (gap := lead(ours, group))}


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    answers = {}
    even = {k: leads(of) for (zipf, k), of in searched(rows).items() if not zipf}
    full = {k: gap for k, of in even.items() for (method, _), gap in of.items() if method == "softmax" and k >= 10_000}
    if full:
        k, gap = max(full.items())
        answers["many-classes"] = decided(gap, on=f"K = {k:,}, {gap.count} seeds", digits=1, above=0, new=True)
    large = {(k, method): gap for k, of in even.items() for (method, _), gap in of.items() if k >= 100_000}
    if large:
        text = "; ".join(f"{NAMES[method]} {gap.signed(1)}" for (_, method), gap in large.items())
        sizes = " and ".join(f"{k:,}" for k in dict.fromkeys(k for k, _ in large))
        on = f"K = {sizes}, {min(gap.count for gap in large.values())} seeds"
        answers["expected-classes"] = Finding(f"points over {text}", on, verdict(*large.values(), above=0, new=True))
    return answers


def title(problem: Problem) -> str:
    zipf, classes = problem
    return f"{classes:,}" + (", Zipf" if zipf else "")


def table_way(row: Row) -> tuple[str, float]:
    """Optimiser of the table and its rate."""
    return row.config.get("table_optimiser", "sparse-adam"), row.config["lr"]


def tables(rows: Sequence[Row]) -> list[Table]:
    body = []
    for problem, of in searched(rows).items():
        ahead = leads(of)
        for (method, steps), group in of.items():
            optimiser, rate = table_way(group[0])
            body.append([
                NAMES[method], title(problem), f"{steps:,}", "Adam" if method == "softmax" else OPTIMISERS[optimiser],
                f"{rate:g}", f"{mean(group, processor).mean:,.1f}", mean(group, accuracy).spread(1),
                ahead[method, steps].signed(1) if (method, steps) in ahead else "",
            ])  # fmt: skip
    header = ("loss", "classes", "steps", "table's optimiser", "rate", "CPU s", "accuracy (%)",
              "expected InfoNCE's lead")  # fmt: skip
    return [Table("classes-searched", header, body), search_table(rows), fixed_table(rows)]


def search_table(rows: Sequence[Row]) -> Table:
    """Accuracy of seed 0 with every optimiser and rate of the table."""
    tried = [row for row in rows if row.config.get("part") == "searched" and row.config["seed"] == 0]
    columns, body = sorted(set(map(table_way, tried)), reverse=True), []
    for group in alike(tried, "classes", "method", "steps"):
        c, found = group[0].config, {table_way(row): f"{accuracy(row):.1f}" for row in group}
        name = f"{NAMES[c['method']]}, {c['classes']:,}, {c['steps']:,} steps"
        body.append([name, *(found.get(column, "") for column in columns)])
    titles = [f"{'Adam' if optimiser == 'sparse-adam' else 'Adagrad'} {lr:g}" for optimiser, lr in columns]
    return Table("classes-search", ("loss, classes", *titles), body)


def fixed_table(rows: Sequence[Row]) -> Table:
    """The long trainings at one rate."""
    fixed = [row for row in rows if "part" not in row.config]
    body = []
    for group in sorted(alike(fixed, "classes", "method", "others"), key=lambda g: g[0].config["classes"]):
        row = max(group, key=lambda row: row.config["seed"])
        c, r = row.config, row.result
        body.append([
            NAMES[c["method"]], f"{c['classes']:,}", f"{c['others']:,}", f"{r['steps']:,} of {c['steps']:,}",
            f"{processor(row):,.0f}", f"{r['peak_bytes'] / 1e9:.2f}", f"{mean(group, accuracy).mean:.1f}",
            f"{100 * r['best_possible']:.1f}",
        ])  # fmt: skip
    header = ("loss", "classes", "drawn", "steps", "CPU s", "peak GB", "accuracy (%)", "best possible (%)")
    return Table("classes-fixed", header, body)


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = searched(rows)
    ours, expected = (LOOKS[loss].colour for loss in ("soft-target-info-nce", EXPECTED))
    looks = {"info-nce": (ours, "-"), "info-nce-more": (ours, "--"), EXPECTED: (expected, "-"),
             "sampled-softmax": (SERIES[1], "-"), "softmax": (LOOKS["soft-ce"].colour, "-")}  # fmt: skip

    def draw(axes: Sequence[Any]) -> None:
        for ax, (problem, of) in zip(axes, found.items(), strict=True):
            methods = [method for method, _ in of]
            for (method, steps), group in of.items():
                courses = [row.result["course"] for row in group]
                times = [fmean(seconds) for seconds in zip(*(c["cpu_seconds"] for c in courses), strict=False)]
                heights = [100 * fmean(of) for of in zip(*(c["accuracy"] for c in courses), strict=False)]
                colour, dash = looks[method]
                name = NAMES[method] + f", {steps} steps" * (methods.count(method) > 1)
                curve(ax, dict(zip(times, heights, strict=True)), name=name, colour=colour, dash=dash)
            best = mean(group, lambda row: 100 * row.result["best_possible"]).mean
            named = f"K = {title(problem)}; best possible {best:.1f} %"
            label(ax, "CPU seconds", "accuracy (%)", title=named, log="x")

    return [Figure("classes-accuracy", draw, panels=len(found), columns=2, size=(5.2, 3.2))] if found else []


EXPERIMENT = Experiment(
    name="classes", question="What does a loss cost, and what does it learn, with ten thousand to a million classes?",
    minutes=60, presets=PRESETS, runs=wanted, follow_up=wanted, alone=lambda run: True, perform=perform,
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
