"""Accuracy against time and memory of training, by the number of classes."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Figure, Level, Line, Panel
from softnce.lab.report.page import Headline, Section, Table
from softnce.lab.report.style import LOSSES, SERIES, SHADES
from softnce.lab.studies.classes.findings import (
    EXPECTED,
    Beside,
    Found,
    Searched,
    Trained,
    beside,
    even,
    find,
    means,
    searched,
    skewed,
)
from softnce.lab.studies.classes.training import METHODS, Method

ORDER = 60
NAMES: dict[Method, str] = {
    "info-nce": "soft target InfoNCE, the batch as candidates",
    "info-nce-more": "soft target InfoNCE, more candidates",
    "expected-info-nce": "expected InfoNCE, others drawn",
    "sampled-softmax": "sampled softmax with log Q",
    "softmax": "full softmax cross-entropy",
}
OPTIMISERS = {"sparse-adam": "SparseAdam", "row-adagrad": "row-wise Adagrad"}
LOOKS: dict[Method, dict[str, Any]] = {
    "info-nce": {"colour": LOSSES["soft-target-info-nce"].colour, "marker": "^", "loss": "soft-target-info-nce"},
    "info-nce-more": {"colour": SHADES[2], "marker": "D", "dash": "dash", "loss": "soft-target-info-nce"},
    "expected-info-nce": {"colour": LOSSES[EXPECTED].colour, "marker": "P", "loss": EXPECTED},
    "sampled-softmax": {"colour": SERIES[1], "marker": "v"},
    "softmax": {"colour": LOSSES["soft-ce"].colour, "marker": "s", "loss": "soft-ce"},
}


def section(rows: Sequence[Row]) -> Section:
    found = find(even(rows))
    largest = max(classes for classes, _ in found)
    last = {method: trained for (classes, method), trained in found.items() if classes == largest}
    parts = "; ".join(
        f"{NAMES[method]} {trained.accuracy:.1f} % at {trained.milliseconds:.0f} ms per step"
        for method, trained in last.items()
    )
    summary = f"With {largest:,} classes, where {_best_possible(last):.1f} % is the best possible: {parts}."
    method = """The network is trained by Adam, the table by SparseAdam on the rows touched (by Adam under the full
        softmax), both with a cosine schedule. Seconds count drawing the batch, forward, backward and the optimiser, not
        evaluation. Peak memory is parameters, optimiser state and the most that a step allocates beside them, traced at
        torch's allocator."""
    return Section(
        "Ten thousand to a million classes",
        summary,
        [
            _time_figure(found),
            _processor_figure(beside(rows), found),
            _memory_figure(found),
            _table(found),
            _beside(beside(rows)),
            _skewed(skewed(rows)),
            *_searched(searched(rows)),
        ],
        [method],
        _headline(beside(rows)),
    )


def _headline(sizes: Sequence[Beside]) -> Headline | None:
    """At the most classes where processor times compare."""
    if not sizes:
        return None
    most = sizes[-1]
    sampled = most.rivals["sampled-softmax"]
    text = f"""With {most.classes:,} classes, where a step cannot afford all logits, expected InfoNCE reaches
        {most.best.accuracy:.1f} % in {most.best.processor:.0f} s of processor time and sampled softmax
        {sampled.accuracy:.1f} % in {sampled.processor:.0f} s."""
    return Headline(10, text, "processor")


def _best_possible(of_size: dict[Method, Trained]) -> float:
    return fmean(100 * row.result["best_possible"] for trained in of_size.values() for row in trained.rows)


def _time_figure(found: Found) -> Figure:
    panels = []
    for size in sorted({classes for classes, _ in found}):
        of_size = {method: trained for (classes, method), trained in found.items() if classes == size}
        marks = [Line(NAMES[method], *trained.course, **LOOKS[method]) for method, trained in of_size.items()]
        level = Level("best possible", _best_possible(of_size))
        axes = "seconds of training", "accuracy (%)"
        panels.append(Panel(f"K = {size:,}", *axes, [*marks, level], log_x=True, y_range=(0, 102)))
    caption = """Accuracy on clean test samples against time of training, each loss with its best learning rate. A step
        of the full softmax grows with the number of classes; the others' does not."""
    return Figure("time", caption, panels)


def _processor_figure(sizes: Sequence[Beside], found: Found) -> Figure | None:
    """What each loss learns in the same processor time: the runs of the table of processor times, and full softmax."""
    panels = []
    for one in sizes:
        trained = {**one.rivals, EXPECTED: one.best}
        if full := found.get((one.classes, "softmax")):
            trained["softmax"] = full
        marks = [
            Line(NAMES[method], course["cpu_seconds"], [100 * value for value in course["accuracy"]], **LOOKS[method])
            for method, of in trained.items()
            for course in [of.rows[-1].result["course"]]
        ]
        best = Level("best possible", 100 * one.best.rows[0].result["best_possible"])
        axes = "seconds of processor time", "accuracy (%)"
        panels.append(Panel(f"K = {one.classes:,}", *axes, [*marks, best], log_x=True, y_range=(0, 102)))
    caption = """Accuracy on clean test samples against processor time, one run of each loss on one thread; full softmax
        cross-entropy, on two threads, was stopped before it had finished."""
    return Figure("processor", caption, panels, panel_size=(8.4, 3.4)) if panels else None


def _memory_figure(found: Found) -> Figure:
    def lines(x: Callable[[Trained], float], y: Callable[[Trained], float]) -> list[Line]:
        by_method = {method: [found[key] for key in found if key[1] == method] for method in METHODS}
        return [
            Line(NAMES[method], list(map(x, sizes)), list(map(y, sizes)), **LOOKS[method])
            for method, sizes in by_method.items()
            if sizes
        ]

    def classes(trained: Trained) -> float:
        return float(trained.key[0])

    accuracy = lines(lambda trained: trained.peak, lambda trained: trained.accuracy)
    steps = lines(classes, lambda trained: trained.milliseconds)
    spare = lines(classes, lambda trained: trained.spare)
    panels = [
        Panel("accuracy for memory", "peak memory (GB)", "accuracy (%)", accuracy, log_x=True, y_range=(0, 102)),
        Panel("time of a step", "classes K", "milliseconds", steps, log_x=True, log_y=True),
        Panel("memory of a step", "classes K", "GB beside table and optimiser", spare, log_x=True, log_y=True),
    ]
    caption = """Left: final accuracy against peak memory of training, table and optimiser included; along a line
        classes grow. Middle and right: time of one step, and what it allocates beside the table and its optimiser."""
    return Figure("memory", caption, panels)


def _beside(sizes: Sequence[Beside]) -> Table | None:
    """Expected InfoNCE beside the other shortcuts by processor time."""
    body = []
    for one in sizes:
        for trained in [*one.rivals.values(), *one.ours.values()]:
            method = trained.key[1]
            gap = f"{one.gap(method):+.1f}" if method in one.rivals else ""
            cells = [f"{trained.config['others']}", f"{trained.processor:,.0f}", f"{trained.accuracy:.1f}", gap]
            body.append([f"{NAMES[method]}, K = {one.classes:,}", *cells])
    header = ["loss", "drawn beside the batch", "processor seconds", "accuracy (%)", "expected minus this, equal time"]
    caption = """One seed, the last that all have. The last column: accuracy of expected InfoNCE minus that of the loss,
        in points, both after the processor time of the shorter of the two runs; of expected InfoNCE the run that costs
        most nearly the same."""
    return Table(header, body, caption) if body else None


def _skewed(found: Found) -> Table | None:
    if not found:
        return None
    zipf = max(trained.config["zipf"] for trained in found.values())
    body = [
        [f"{NAMES[method]}, K = {classes:,}", f"{trained.processor:,.0f}", f"{trained.accuracy:.1f}",
         f"{trained.best_possible:.1f}"]
        for (classes, method), trained in found.items()
    ]  # fmt: skip
    caption = (
        f"""Classes with frequencies 1/rank^{zipf:g}, which η and the negatives follow; test samples too. One seed."""
    )
    return Table(["loss", "processor seconds", "accuracy (%)", "best possible (%)"], body, caption)


def _searched(sizes: Sequence[Searched]) -> list[Table]:
    """What each method reaches with the optimiser and rate of its table searched, and the search itself."""
    if not sizes:
        return []
    body = []
    for one in sizes:
        for method, rows in one.rows.items():
            trained, lead = means(rows), one.lead(method) if method != EXPECTED else None
            config = trained.config
            optimiser = OPTIMISERS[config.get("table_optimiser", "sparse-adam")]
            cells = [f"{optimiser}, {config['lr']:g}", f"{trained.processor:,.0f}", f"{trained.accuracy:.1f}"]
            body.append([f"{NAMES[method]}, {one.title}", *cells, signed(lead, 1) if lead else "–", str(len(rows))])
    header = ["loss", "table's optimiser and rate", "processor seconds", "accuracy (%)",
              "expected minus this, equal time (points)", "seeds"]  # fmt: skip
    config = means(next(iter(sizes[0].rows.values()))).config
    caption = f"""Smaller size: batches of {config["batch"]} and as many drawn beside them, {config["dim"]} dimensions.
        Optimiser and rate were chosen for each loss by seed 0, which is not reported; where no search was made, those
        found at the largest K with one. Last but one column: both after the processor time of the shorter run, by
        seed, with 95 % intervals."""
    tried = [one for one in sizes if one.trials]
    rates = sorted({(optimiser, lr) for one in tried for _, optimiser, lr in one.trials}, reverse=True)
    search = [
        [f"{NAMES[method]}, {one.title}", *(f"{one.trials[method, *rate]:.1f}" if (method, *rate) in one.trials else "–"
                                             for rate in rates)]
        for one in tried
        for method in one.rows
    ]  # fmt: skip
    words = "The search: accuracy of seed 0 in per cent, by the table's optimiser and learning rate."
    names = [f"{OPTIMISERS[optimiser]}, {lr:g}" for optimiser, lr in rates]
    return [Table(header, body, caption), *([Table(["loss", *names], search, words)] if search else [])]


def _table(found: Found) -> Table:
    body = [
        [
            f"{NAMES[method]}, K = {classes:,}",
            f"{trained.config['lr']:g}",
            f"{trained.steps:,.0f}{'' if trained.steps == trained.config['steps'] else ' (time was up)'}",
            f"{trained.seconds:,.0f}",
            f"{trained.milliseconds:.1f}",
            f"{trained.peak:.2f}",
            f"{trained.accuracy:.1f}",
            f"{trained.best_possible:.1f}",
        ]
        for (classes, method), trained in found.items()
    ]
    header = ["loss", "table's lr", "steps", "seconds", "ms per step", "peak GB", "accuracy (%)", "best possible (%)"]
    count = max(len(trained.rows) for trained in found.values())
    return Table(header, body, f"Means over {counted(count, 'seed')}.")
