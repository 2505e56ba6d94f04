"""Knowledge graphs: what does each loss learn about missing links, in what time, when entities are the classes?

(head, relation, ?) is a classification over 14,541 entities (FB15k-237) or 40,943 (WN18RR). The scores of ComplEx and
DistMult are features times a label table, and a question with several right answers is a soft target. The losses:

  info-nce, sampled-softmax, softmax        one label per triple; softmax scores all entities ("1vsAll")
  grouped-info-nce                          InfoNCE of the same triples, grouped: a question's answers share one row
  expected-info-nce, soft-target-info-nce   all right answers of a question as one soft target, from the table
  soft-softmax                              the same, all entities scored ("KvsAll")

Measured: filtered mean reciprocal rank and hits@10, both directions, ties by their mean rank, and processor time. The
validation split chooses the epoch and, with --search true, learning rate and weight of N3; the test split is ranked
once. The paper preset needs links/FB15k-237 and links/WN18RR (train.txt, valid.txt, test.txt) in $SOFTNCE_DATA.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from experiments.data.links import named
from experiments.harness import LOOKS, OTHER, SERIES, Experiment, Figure, Row, Table, curve, label, level, option
from experiments.harness.claims import Finding, verdict
from experiments.harness.statistics import alike, by_seed, difference, estimate, mean, nats
from experiments.links.training import FULL, LOSSES, Loss, Run, perform
from experiments.models.links import Score

# ------------------------------------------------------------------------------------------------------------ the runs


class Setting(NamedTuple):
    """Learning rate at the start, weight of N3, epochs, rows of a batch, and complex dimensions of an embedding."""

    lr: float
    n3: float
    epochs: int
    batch: int = 1024
    rank: int = 256


USUAL = {"WN18RR": Setting(0.5, 0.1, 16), "generated": Setting(0.3, 0.01, 10, 256, 16)}
OTHER_GRAPHS = Setting(0.2, 0.05, 12)
SEARCHED: dict[tuple[str, Loss], Setting] = {
    ("FB15k-237", "info-nce"): Setting(0.2, 0.05, 8),
    ("FB15k-237", "sampled-softmax"): Setting(0.2, 0.05, 8),
    ("FB15k-237", "softmax"): Setting(0.4, 0.05, 3),
    ("FB15k-237", "soft-softmax"): Setting(0.4, 0.05, 6),
}
"""Settings that differ from their graph's: of the searches of docs/results/links.md, and fewer epochs."""
AFFORDED: dict[str, tuple[Loss, ...]] = {"WN18RR": ("info-nce", "grouped-info-nce", "expected-info-nce")}
"""The losses of the paper preset on a graph, if not all."""


@dataclass(frozen=True)
class Options:
    seeds: int = option(1, "number of seeds of the final trainings: 0, 1, …", least=1)
    graphs: tuple[str, ...] = option(
        ("FB15k-237", "WN18RR"), "folders of SOFTNCE_DATA/links, or generated for a small graph", fewest=1
    )
    losses: tuple[Loss, ...] | None = option(None, "losses; null: all, on WN18RR three")
    models: tuple[Score, ...] = option(("complex",), "complex or distmult", fewest=1)
    search: bool = option(False, "choose learning rate and weight of N3 on the validation split first")
    rates: tuple[float, ...] = option((0.1, 0.2, 0.4), "learning rates of the search", above=0, fewest=1)
    weights: tuple[float, ...] = option((0.05, 0.1), "weights of N3 of the search", least=0, fewest=1)
    drop_own: bool = option(False, "leave a question's other right answers out of the negatives (expected-info-nce)")
    epochs: int | None = option(None, "epochs of a final training; null: the graph's", least=1)


PRESETS = {"quick": Options(graphs=("generated",)), "paper": Options()}
MOST, NEGATIVES, CHECKS, SEARCH_EPOCHS = 32, 1024, 1000, 2
"""Right answers in a row, entities drawn for sampled softmax, triples ranked after an epoch, epochs of a trial."""


def compared(options: Options) -> list[Run]:
    """The final training of each graph, model and loss at its fixed setting, seed 0."""
    o, found = options, []
    for graph, model in product(o.graphs, o.models):
        for loss in o.losses or AFFORDED.get(graph, LOSSES):
            setting = SEARCHED.get((graph, loss), USUAL.get(graph, OTHER_GRAPHS))
            rank = setting.rank * (1 if model == "complex" else 2)
            drawn = NEGATIVES if loss == "sampled-softmax" else 0
            found.append(Run(graph, model, loss, rank, setting.lr, setting.n3, setting.batch, MOST, drawn,
                             o.epochs or setting.epochs, CHECKS, is_final=True, seed=0,
                             drop_own=o.drop_own and loss == "expected-info-nce"))  # fmt: skip
    return found


def wanted(options: Options, rows: Sequence[Row] = ()) -> list[Run]:
    """The final trainings of every seed; after a search those at the setting of the best trial."""
    o, runs, finals = options, [], compared(options)
    if o.search:
        score = {Run(**row.config): row.result["valid"]["mrr"] for row in rows}
        found, finals = finals, []
        for final in found:
            trial, grid = replace(final, epochs=SEARCH_EPOCHS, is_final=False), product(o.rates, o.weights)
            tried = [replace(trial, lr=lr, n3=n3) for lr, n3 in grid]
            runs += tried
            if score.keys() >= set(tried):
                best = max(tried, key=score.__getitem__)
                finals.append(replace(final, lr=best.lr, n3=best.n3))
    return runs + [replace(final, seed=seed) for seed in range(o.seeds) for final in finals]


# --------------------------------------------------------------------------------------------------------- the numbers

BARS = {"FB15k-237": {"mrr": 0.345, "hits10": 0.525}, "WN18RR": {"mrr": 0.465}}
PUBLISHED = {
    "FB15k-237": {"Ruffinelli et al. 2020, tuned": (0.348, 0.536), "Dettmers et al. 2018": (0.325, 0.501)},
    "WN18RR": {"Ruffinelli et al. 2020, tuned": (0.475, 0.547), "Dettmers et al. 2018": (0.43, 0.52)},
}
"""MRR and hits@10 of ComplEx."""
TARGET = 0.33
"""Validation MRR on FB15k-237 whose processor time is compared."""
NAMES: dict[str, str] = {
    "info-nce": "InfoNCE, one label per triple",
    "grouped-info-nce": "InfoNCE, grouped by question",
    "expected-info-nce": "expected InfoNCE, all right answers",
    "soft-target-info-nce": "soft target InfoNCE, all right answers",
    "sampled-softmax": "sampled softmax, one label per triple",
    "softmax": "full softmax, one label per triple",
    "soft-softmax": "full softmax, all right answers",
}
Key = tuple[str, str, str, bool]
"""Graph, model, loss, and whether own answers are left out."""


def valid(rows: Sequence[Row]) -> float:
    """MRR on the whole validation split."""
    return mean(rows, nats("mrr", "valid")).mean


def finals(rows: Sequence[Row]) -> dict[Key, list[Row]]:
    """The final training of each graph, model and loss: of several settings the one best on the validation split."""
    best: dict[Key, list[Row]] = {}
    names = [field.name for field in fields(Run) if field.name != "seed"]
    for group in alike([row for row in rows if row.config["is_final"]], *names):
        c = group[0].config
        key = (c["graph"], c["model"], c["loss"], c.get("drop_own", False))
        best[key] = max(best.get(key, group), group, key=valid)
    return {key: best[key] for key in sorted(best, key=lambda key: (*key[:2], LOSSES.index(key[2]), key[3]))}


def processor(row: Row) -> float:
    """Seconds of the processor, of all epochs."""
    return float(row.result["course"]["cpu_seconds"][-1])


def time_to(row: Row, mrr: float = TARGET) -> float:
    """Seconds of the processor until the validation sample has that MRR, between two measurements by interpolation."""
    seconds, scores = (np.array(row.result["course"][name]) for name in ("cpu_seconds", "mrr"))
    after = int((scores >= mrr).argmax())
    if scores[after] < mrr:
        return math.inf
    start = max(0, after - 1)  # of the first measurement itself nothing is known before
    return float(np.interp(mrr, scores[start : after + 1], seconds[start : after + 1]))


def at_most(row: Row) -> float:
    """The same; of a training that never had it the whole time, which is less than it would take."""
    return min(time_to(row), processor(row))


def free(found: Mapping[Key, list[Row]], graph: str) -> dict[str, list[Row]]:
    """ComplEx by the losses that do not score all entities and have several seeds; own answers are negatives."""
    wanted = (graph, "complex", False)
    of_graph = {loss: group for (*of, loss, drop_own), group in found.items() if (*of, drop_own) == wanted}
    return {loss: group for loss, group in of_graph.items() if loss not in FULL and len(group) > 1}


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, answers = finals(rows), {}
    groups = {graph: free(found, graph) for graph in BARS}
    best = {graph: max(of, key=lambda loss: valid(of[loss])) for graph, of in groups.items() if of}
    scores = {graph: {score: mean(groups[graph][best[graph]], nats(score)) for score in BARS[graph]} for graph in best}
    if scores:
        above = [scores[graph][score] - bar for graph in scores for score, bar in BARS[graph].items()]
        ours = "; ".join(", ".join(e.spread(3) for e in of.values()) for of in scores.values())
        on = "; ".join(f"{graph}, {NAMES[loss]}, {len(groups[graph][loss])} seeds" for graph, loss in best.items())
        decided = verdict(*above, above=0, new=True) if len(scores) == len(BARS) else "undecided"
        answers["links-quality"] = Finding(ours, on, decided)
    full = found.get(("FB15k-237", "complex", "soft-softmax", False), [])
    reached = {loss: of for loss, of in groups["FB15k-237"].items() if all(map(math.isfinite, map(time_to, of)))}
    if full and reached:
        loss, fastest = min(reached.items(), key=lambda item: mean(item[1], time_to).mean)
        theirs, seconds = (by_seed(group, at_most) for group in (full, fastest))
        saved = estimate([theirs[seed] - 3 * seconds[seed] for seed in sorted(theirs.keys() & seconds.keys())])
        text = f"{mean(fastest, at_most).spread(0)} s, full softmax {mean(full, at_most).spread(0)} s"
        on = f"FB15k-237, {NAMES[loss]}, {saved.count} seeds"
        answers["links-time"] = Finding(text, on, verdict(saved, above=0, new=True))
    one_label = ("info-nce", False)
    compared = {"links-soft-targets": (("expected-info-nce", False), one_label),
                "links-own-answers": (("expected-info-nce", True), ("expected-info-nce", False)),
                "links-own-answers-label": (("expected-info-nce", True), one_label)}  # fmt: skip
    for claim, both in compared.items():
        ours, theirs = (found.get(("FB15k-237", "complex", *which)) for which in both)
        if ours and theirs:
            gap = difference(ours, theirs, nats("mrr"))
            on = f"FB15k-237, ComplEx, {gap.count} seeds"
            answers[claim] = Finding(f"MRR {gap.signed(4)}", on, verdict(gap, above=0, new=True))
    return answers


def name_of(key: Key) -> str:
    _, model, loss, drop_own = key
    return NAMES[loss] + (", own answers out" if drop_own else "") + (", DistMult" if model == "distmult" else "")


def tables(rows: Sequence[Row]) -> list[Table]:
    found, made = finals(rows), []
    header = ("loss", "seeds", "epochs", "CPU s", f"CPU s to {TARGET}", "step MB", "MRR", "hits@1", "hits@10")
    for graph in dict.fromkeys(key[0] for key in found):
        body = [
            [
                name_of(key), f"{len(group)}", f"{group[0].config['epochs']}", f"{mean(group, processor).mean:,.0f}",
                f"{mean(group, time_to).mean:,.0f}".replace("inf", "never") if graph == "FB15k-237" else "",
                f"{mean(group, lambda row: row.result['step_bytes'] / 1e6).mean:,.0f}",
                *(mean(group, nats(score)).spread(3) for score in ("mrr", "hits1", "hits10")),
            ]
            for key, group in found.items()
            if key[0] == graph
        ]  # fmt: skip
        for source, (mrr, hits) in PUBLISHED.get(graph, {}).items():
            body.append([source, *[""] * 5, f"{mrr:.3f}", "", f"{hits:.3f}"])
        made.append(Table(f"links-{graph.lower()}", header, body))
    chosen = {row.id for group in found.values() for row in group}
    body = []
    for row in sorted(rows, key=lambda row: [row.config[name] for name in ("graph", "loss", "lr", "n3")]):
        if row.id not in chosen:
            c, mrr = row.config, row.result["valid"]["mrr"]
            setting = [f"{c['graph']}, {NAMES[c['loss']]}", f"{c['lr']:g}", f"{c['n3']:g}", f"{c['epochs']}"]
            body.append([*setting, f"{processor(row):,.0f}", f"{mrr:.4f}"])
    return [*made, Table("links-search", ("graph, loss", "rate", "N3", "epochs", "CPU s", "validation MRR"), body)]


LOOK_AS = {"softmax": "nll", "soft-softmax": "soft-ce"}
OTHER_COURSES = {"grouped-info-nce": (SERIES[4], "D"), "sampled-softmax": (OTHER, "v")}


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = finals(rows)
    graphs = dict.fromkeys(key[0] for key in found)
    drawn = [Figure(f"links-{g.lower()}", partial(draw_courses, found, g), size=(6.4, 4.2)) for g in graphs]
    shown = {loss: found.get(("FB15k-237", "complex", loss, False)) for loss in HERO}
    return [*drawn, Figure("hero", partial(draw_hero, shown), size=(5.6, 3.3))] if all(shown.values()) else drawn


def draw_courses(found: Mapping[Key, list[Row]], graph: str, axes: Sequence[Any]) -> None:
    """Validation MRR of ComplEx while it is trained, seed 0."""
    for key, group in found.items():
        of, model, loss, drop_own = key
        if of == graph and model == "complex":
            course = group[0].result["course"]
            points = dict(zip(course["cpu_seconds"], course["mrr"], strict=True))
            look = LOOKS.get(LOOK_AS.get(loss, loss))
            colour, marker = (look.colour, look.marker) if look else OTHER_COURSES[loss]
            name = name_of(key).replace(" per triple", "").replace(", all right answers, own", ", own")
            curve(axes[0], points, name=name, colour=colour, marker=marker, dash="--" if drop_own else "-")
    if graph == "FB15k-237":
        level(axes[0], TARGET, f"table: CPU s to {TARGET}")
    label(axes[0], "CPU seconds of training", "validation MRR", title=f"{graph}, ComplEx", log="x")


HERO = {
    "info-nce": ("InfoNCE", 4.3, 0.3715),
    "expected-info-nce": ("ExpectedInfoNCE", 1.75, 0.338),
    "soft-softmax": ("full softmax", 6.7, 0.3535),
}
"""Losses of the README's figure: name, and its place beside the curve."""


def draw_hero(shown: Mapping[str, Sequence[Row]], axes: Sequence[Any]) -> None:
    """The figure of the README: seed 0 of three losses, each named with its mean test MRR."""
    for loss, group in shown.items():
        course = group[0].result["course"]
        points = {s / 60: m for s, m in zip(course["cpu_seconds"], course["mrr"], strict=True)}
        look, (name, x, y) = LOOKS[LOOK_AS.get(loss, loss)], HERO[loss]
        curve(axes[0], points, name="", colour=look.colour, marker=look.marker)
        text = f"{name}\ntest MRR {mean(group, nats('mrr')).mean:.3f}"
        axes[0].text(x, y, text, color=look.colour, va="center", fontsize=9)
    label(axes[0], "minutes of one CPU core", "validation MRR", xlim=(0, 10), ylim=(0.28, 0.38))


def prepare(todo: Sequence[Run]) -> None:
    """A missing or malformed file is reported before any work."""
    for graph in dict.fromkeys(run.graph for run in todo):
        named(graph)


EXPERIMENT = Experiment(
    name="links", question="What does each loss learn about missing links of knowledge graphs, and in what time?",
    minutes=60, presets=PRESETS, runs=wanted, follow_up=wanted, prepare=prepare, perform=perform,
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
