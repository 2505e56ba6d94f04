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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from experiments.classes.training import METHODS, Method, Run, perform
from experiments.harness import LOOKS, SERIES, Experiment, Figure, Row, Table, curve, label, level, option
from experiments.harness.claims import Claim, Finding, verdict
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
    dim: int = option(64, "features of their label embeddings", least=1)
    hidden: int = option(256, "width of their network", least=1)
    lr: float = option(0.3, "rate of their table", above=0)
    searched: tuple[int, ...] = option((10_000, 100_000), "K at which optimiser and rate of the table are searched")
    enlarged: tuple[int, ...] = option((1_000_000,), "K trained with what was found at the largest of those")
    skewed: tuple[int, ...] = option((10_000,), "K with frequencies 1/rank trained with what was found there")
    searched_seeds: int = option(3, "seeds there, besides that of the search", least=1)
    searched_steps: int = option(400, "steps there, at least", least=1)
    searched_views: int = option(10, "times every class is seen there, at least", least=1)
    searched_batch: int = option(256, "rows of a batch there, and as many drawn beside it", least=1)
    softmax_classes: int = option(10_000, "K up to which the full softmax is trained there")
    softmax_steps: tuple[int, ...] = option((400, 150), "its steps; 150 take the time of the others' 400 at K = 10⁴")
    adam_rates: tuple[float, ...] = option((0.1, 0.3, 1.0, 3.0, 10.0), "rates of SparseAdam tried", above=0, fewest=1)
    adagrad_rates: tuple[float, ...] = option((1.0, 3.0, 10.0, 30.0), "of row-wise Adagrad", above=0, fewest=1)
    tests: int = option(1000, "samples that accuracy is measured on", least=1)

    def __post_init__(self) -> None:
        if min((*self.classes, *self.searched), default=self.batch) < self.searched_batch:
            raise ValueError(f"searched: got {self.searched}, need at least the {self.searched_batch} rows of a batch")


PRESETS = {
    "quick": Options(
        classes=(2_000,), seeds=1, steps=150, views=6, batch=256, dim=48, searched=(2_000,), enlarged=(), skewed=(),
        searched_seeds=2, searched_steps=100, searched_views=5, adam_rates=(0.3,), adagrad_rates=(3.0,),
        softmax_steps=(100, 40), tests=500,
    ),
    "paper": Options(),
}  # fmt: skip


def runs(options: Options) -> list[Run]:
    long = [
        Run(
            method, classes, options.lr, seed,
            steps=max(options.steps, math.ceil(options.views * classes / options.batch)), seconds=None,
            batch=options.batch, others=DRAWN[method] * options.batch,
            dim=options.dim, hidden=options.hidden, tests=options.tests, **PROBLEM,
        )
        for classes in options.classes
        for seed in range(options.seeds)
        for method in options.methods
    ]  # fmt: skip
    return [*long, *(trial for classes in options.searched for group in trials(options, classes) for trial in group)]


DRAWN: dict[Method, int] = {
    "info-nce": 0, "info-nce-more": 1, "expected-info-nce": 2, "sampled-softmax": 2, "softmax": 0
}  # fmt: skip
"""Candidates drawn beside the batch in the long trainings, in batches."""
PROBLEM: dict[str, Any] = {"network_lr": 3e-3, "mix_alpha": 0.2, "noise": 0.5, "latent": 32}


def trials(options: Options, classes: int) -> list[list[Run]]:
    """By method (and number of steps), every optimiser and rate of the table, seed 0."""
    usual = max(options.searched_steps, math.ceil(options.searched_views * classes / options.searched_batch))
    adam: list[tuple[Any, float]] = [("sparse-adam", lr) for lr in options.adam_rates]
    sizes: list[tuple[Method, int]] = [(method, usual) for method in METHODS if method != "softmax"]
    if classes <= options.softmax_classes:
        sizes += [("softmax", steps) for steps in options.softmax_steps]
    return [
        [
            Run(
                method, classes, lr, 0, steps, None, options.searched_batch,
                others=0 if method in ("info-nce", "softmax") else options.searched_batch,
                dim=32, hidden=128, tests=options.tests, part="searched", table_optimiser=optimiser, **PROBLEM,
            )
            for optimiser, lr in (
                adam if method == "softmax" else [*adam, *(("row-adagrad", lr) for lr in options.adagrad_rates)]
            )
        ]
        for method, steps in sizes
    ]  # fmt: skip


def follow_up(options: Options, rows: Sequence[Row]) -> list[Run]:
    """Further seeds of each method with the optimiser and the rate that were best; the largest K come last."""
    accuracy = {Run(**row.config): row.result["accuracy"] for row in rows}
    best = {
        classes: [
            max(group, key=accuracy.__getitem__)
            for group in trials(options, classes)
            if all(trial in accuracy for trial in group)
        ]
        for classes in sorted(options.searched)
    }
    largest = [run for run in best.get(max(best, default=0), []) if run.method != "softmax"]

    def sized(run: Run, classes: int, zipf: float = 0.0) -> Run:
        return replace(run, classes=classes, steps=trials(options, classes)[0][0].steps, zipf=zipf)

    even = [run for of_classes in best.values() for run in of_classes]
    skewed = [sized(run, k, 1.0) for k in options.skewed for run in best.get(k, []) if run.method != "softmax"]
    enlarged = [sized(run, classes) for classes in options.enlarged for run in largest]
    seeds = range(1, 1 + options.searched_seeds)
    return [replace(run, seed=seed) for part in ([*even, *skewed], enlarged) for seed in seeds for run in part]


# --------------------------------------------------------------------------------------------------------- the numbers

EXPECTED: Method = "expected-info-nce"
CLAIMS = (
    Claim(
        "many-classes",
        "Negative sampling pays when label spaces are large. (Generated problem, 10,000 classes, batches of 256: "
        "expected InfoNCE that sees each class ten times is more accurate than the full softmax in the same processor "
        "time, both with searched rates and finished schedules.)",
        "Introduction",
        "cited from language models, not tested with soft targets",
    ),
    Claim(
        "expected-classes",
        "From a table, after equal processor time, expected InfoNCE is more accurate than soft target InfoNCE and "
        "sampled softmax. (Generated problem, 100,000 and 1,000,000 classes, batches of 256, each class seen ten "
        "times; optimisers and rates searched at 100,000.)",
        "Introduction",
        "not considered",
    ),
)
NAMES: dict[str, str] = {
    "info-nce": "soft target InfoNCE",
    "info-nce-more": "soft target InfoNCE, more candidates",
    "expected-info-nce": "expected InfoNCE",
    "sampled-softmax": "sampled softmax",
    "softmax": "full softmax",
}
OPTIMISERS = {"sparse-adam": "SparseAdam", "row-adagrad": "row-wise Adagrad"}


def processor(row: Row) -> float:
    """Seconds of the processor."""
    return float(row.result["course"]["cpu_seconds"][-1])


def accuracy(row: Row) -> float:
    """At the end, in per cent."""
    return 100 * float(row.result["accuracy"])


def accuracy_at(row: Row, time: float, clock: str = "cpu_seconds") -> float:
    """Accuracy after that time in per cent, on the line between two measurements; at most that of the end."""
    times, found = row.result["course"][clock], row.result["course"]["accuracy"]
    after = next((i for i, t in enumerate(times) if t >= time), len(times) - 1)
    before = max(after - 1, 0)
    width = times[after] - times[before]
    share = min((time - times[before]) / width, 1.0) if width else 1.0
    return 100 * (found[before] + share * (found[after] - found[before]))


def lead(ours: Sequence[Row], theirs: Sequence[Row]) -> Estimate | None:
    """Points of ours over theirs after the processor time of the shorter run, seed by seed."""
    others = {row.config["seed"]: row for row in theirs}
    gaps = []
    for row in ours:
        if other := others.get(row.config["seed"]):
            time = min(processor(row), processor(other))
            gaps.append(accuracy_at(row, time) - accuracy_at(other, time))
    return estimate(gaps) if gaps else None


Key = tuple[float, int, str, int]
"""Exponent of the frequencies, classes, method, steps."""


def searched(rows: Sequence[Row]) -> dict[Key, list[Row]]:
    """The seeds that had no part in the search."""
    chosen = [row for row in rows if row.config.get("part") == "searched" and row.config["seed"] > 0]
    found = {}
    for group in alike(chosen, "zipf", "classes", "method", "steps", "batch"):
        c = group[0].config
        found[c.get("zipf", 0.0), c["classes"], c["method"], c["steps"]] = group
    return {key: found[key] for key in sorted(found, key=lambda key: (*key[:2], METHODS.index(key[2]), -key[3]))}


def lead_over(found: dict[Key, list[Row]], key: Key) -> Estimate | None:
    """Points of expected InfoNCE over a method of the same problem; none over the full softmax's longer schedule."""
    ours = [of for other, of in found.items() if other[:3] == (*key[:2], EXPECTED)]
    if not ours or key[2] == EXPECTED:
        return None
    if key[2] == "softmax":  # its schedule has to be finished in the time
        fewest = min(steps for *problem, method, steps in found if (*problem, method) == key[:3])
        if key[3] > fewest:
            return None
    return lead(ours[0], found[key])


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, answers = searched(rows), {}
    leads = {key: gap for key in found if (gap := lead_over(found, key)) and not key[0]}
    full = {key: gap for key, gap in leads.items() if key[2] == "softmax" and key[1] >= 10_000}
    if full:
        key, gap = max(full.items())
        answers["many-classes"] = Finding(
            f"{gap.signed(1)} points", f"K = {key[1]:,}, {gap.count} seeds", verdict(gap, above=0, new=True)
        )
    large = {key: gap for key, gap in leads.items() if key[1] >= 100_000}
    if large:
        text = "; ".join(f"{NAMES[key[2]]} {gap.signed(1)}" for key, gap in large.items())
        sizes = " and ".join(f"{size:,}" for size in dict.fromkeys(key[1] for key in large))
        on = f"K = {sizes}, {min(gap.count for gap in large.values())} seeds"
        answers["expected-classes"] = Finding(f"points over {text}", on, verdict(*large.values(), above=0, new=True))
    return answers


def problem_of(key: Key) -> str:
    return f"{key[1]:,}" + (", Zipf" if key[0] else "")


def tables(rows: Sequence[Row]) -> list[Table]:
    found = searched(rows)
    body = []
    for key, group in found.items():
        c, gap = group[0].config, lead_over(found, key)
        optimiser = "Adam" if key[2] == "softmax" else OPTIMISERS[c.get("table_optimiser", "sparse-adam")]
        body.append([
            NAMES[key[2]], problem_of(key), f"{key[3]:,}", optimiser, f"{c['lr']:g}",
            f"{mean(group, processor).mean:,.1f}", mean(group, accuracy).spread(1), gap.signed(1) if gap else "",
        ])  # fmt: skip
    header = (
        "loss",
        "classes",
        "steps",
        "table's optimiser",
        "rate",
        "CPU s",
        "accuracy (%)",
        "expected InfoNCE's lead",
    )
    made = [Table("classes-searched", header, body)]
    tried = [row for row in rows if row.config.get("part") == "searched" and row.config["seed"] == 0]
    columns = sorted({(r.config.get("table_optimiser", "sparse-adam"), r.config["lr"]) for r in tried}, reverse=True)
    body = []
    for group in alike(tried, "classes", "method", "steps"):
        c = group[0].config
        by_rate = {(r.config.get("table_optimiser", "sparse-adam"), r.config["lr"]): r for r in group}
        cells = [f"{accuracy(by_rate[column]):.1f}" if column in by_rate else "" for column in columns]
        body.append([f"{NAMES[c['method']]}, {c['classes']:,}, {c['steps']:,} steps", *cells])
    titles = [f"{'Adam' if optimiser == 'sparse-adam' else 'Adagrad'} {lr:g}" for optimiser, lr in columns]
    made.append(Table("classes-search", ("loss, classes", *titles), body))
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
    return [*made, Table("classes-fixed", header, body)]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = searched(rows)
    problems = list(dict.fromkeys(key[:2] for key in found))
    looks = {
        "info-nce": (LOOKS["soft-target-info-nce"].colour, "-"),
        "info-nce-more": (LOOKS["soft-target-info-nce"].colour, "--"),
        "expected-info-nce": (LOOKS[EXPECTED].colour, "-"),
        "sampled-softmax": (SERIES[1], "-"),
        "softmax": (LOOKS["soft-ce"].colour, "-"),
    }

    def draw(axes: Sequence[Any]) -> None:
        for ax, problem in zip(axes, problems, strict=True):
            for key, group in found.items():
                if key[:2] != problem:
                    continue
                looks_at = range(min(len(row.result["course"]["step"]) for row in group))
                courses = [row.result["course"] for row in group]
                times = [fmean(course["cpu_seconds"][i] for course in courses) for i in looks_at]
                heights = [estimate([100 * course["accuracy"][i] for course in courses]) for i in looks_at]
                colour, dash = looks[key[2]]
                curve(
                    ax, dict(zip(times, heights, strict=True)), name=NAMES[key[2]], colour=colour, dash=dash, band=False
                )
            level(ax, mean(group, lambda r: 100 * r.result["best_possible"]).mean, "best possible")
            label(ax, "CPU seconds", "accuracy (%)", title=f"K = {problem_of((*problem, '', 0))}", log="x")

    return [Figure("classes-accuracy", draw, panels=len(problems), columns=2, size=(5.2, 3.2))] if problems else []


EXPERIMENT = Experiment(
    name="classes",
    question="What does a loss cost, and what does it learn, with ten thousand to a million classes?",
    minutes=60,
    presets=PRESETS,
    runs=runs,
    follow_up=follow_up,
    alone=lambda run: True,
    perform=perform,
    claims=CLAIMS,
    findings=findings,
    tables=tables,
    figures=figures,
)
