"""Very many classes on real catalogues: places that a user visits, and the next item that a user buys.

(a) Gowalla: 29,858 users with 27 places each of 40,981, a table of users times a table of places. (b) Amazon's Beauty
and Sports: a small transformer over a user's purchases, 12,101 and 18,357 items. Losses that see a part of the
catalogue per step against exact cross-entropy: quality against processor time. Everything is chosen on held-out answers
by the same number of trials per loss.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.harness import SERIES, Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.claims import Finding, Gap, decided
from experiments.harness.search import climb
from experiments.harness.statistics import Estimate, difference, estimate, mean
from experiments.recommendation import catalogue, sequences

SEARCH_SEED = 8
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of Adagrad, for the tables
TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.4)
EPOCHS = {"soft-ce": 46, "expected-info-nce": 60, "expected-own-out": 60, "soft-target-info-nce": 8, "info-nce": 18,
          "sampled-softmax": 9, "corrected-log-q": 9, "bpr": 100}  # fmt: skip
"""Of final runs on Gowalla: about 170 processor seconds each, twice that for exact cross-entropy."""
ONCE = ("soft-target-info-nce", "corrected-log-q", "bpr")
"""On the catalogue no claim compares them: their final run is that of seed 0 alone."""
STEPS = (0.0003, 0.001, 0.003, 0.01)  # rates of Adam, for the transformer
DROPOUTS = (0.2, 0.5)
NAMES = {
    "soft-ce": "exact soft target cross-entropy", "expected-info-nce": "expected InfoNCE",
    "expected-own-out": "expected InfoNCE, own answers out", "soft-target-info-nce": "soft target InfoNCE",
    "info-nce": "InfoNCE, one answer", "sampled-softmax": "sampled softmax, log Q",
    "corrected-log-q": "sampled softmax, corrected log Q", "bpr": "BPR", "softmax": "full cross-entropy",
    "softmax-several": "full cross-entropy, next three", "info-nce-user-out": "InfoNCE, user's items out",
    "expected-several": "expected InfoNCE, next three", "gbce": "gBCE", "bce": "BCE",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    catalogue: str = option("gowalla", "gowalla or places, which are generated", of=("gowalla", "places"))
    baskets: tuple[str, ...] = option((), "beauty, sports or generated walks", of=("beauty", "sports", "walks"))
    seeds: int = option(3, "seeds of every loss at its chosen setting", least=1)
    rates: tuple[float, ...] = option((0.1, 0.3, 1.0), "first rates tried on the catalogue", fewest=1, of=RATES)
    temperatures: tuple[float, ...] = option((0.05, 0.1, 0.2), "at the best rate", fewest=1, of=TEMPERATURES)
    epochs: int = option(0, "of final runs on the catalogue; 0: about 170 processor seconds per loss", least=0)
    steps: tuple[float, ...] = option((0.0003, 0.001, 0.003), "first rates tried on baskets", fewest=1, of=STEPS)
    dropouts: tuple[float, ...] = option(DROPOUTS, "tried at the best rate", fewest=1, of=DROPOUTS)
    basket_losses: tuple[str, ...] = option(sequences.LOSSES, "losses on baskets", of=sequences.LOSSES)
    basket_epochs: int = option(36, "of final runs on baskets", least=1)


def key(row: Row) -> tuple[str, str, bool]:
    return row.config["data"], row.config["loss"], row.config["final"]


def catalogue_run(o: Options, loss: str, lr: float, temperature: float, seed: int, final: bool) -> catalogue.Run:
    small = o.catalogue == "places"
    batch = (64 if small else 512) if loss in catalogue.SETS else (256 if small else 2_048)
    epochs, negatives = o.epochs or EPOCHS[loss], 100 if small else 2_048
    if not final:
        epochs = math.ceil(epochs / 3)  # a search needs the order of the settings, not their last digit
    return catalogue.Run(o.catalogue, loss, lr, temperature, epochs, batch, negatives, seed, final)


def basket_run(o: Options, data: str, loss: str, lr: float, dropout: float, seed: int, final: bool) -> sequences.Run:
    batch, negatives = (64, 100) if data == "walks" else (256, 1_024)
    epochs = o.basket_epochs if final else math.ceil(o.basket_epochs / 3)
    return sequences.Run(data, loss, lr, dropout, epochs, batch, negatives, seed, final)


Searched = tuple[str, Sequence[float], Sequence[float]]
"""A field of the runs, the values with which its search begins, and all values it may reach."""


def two_searches(make: Any, trials: Sequence[Row], first: Searched, second: Searched) -> tuple[Any, list[Any]]:
    """``first`` at the middle of ``second``, then ``second`` at the best of ``first``: the choice, and runs to do."""

    def climbed(of: Searched, other: str, value: float) -> tuple[float | None, list[float]]:
        name, begin, ladder = of
        rows = [row for row in trials if row.config[other] == value]
        return climb({row.config[name]: row.result["held_out"]["ndcg"] for row in rows}, begin, ladder)

    middle = second[1][len(second[1]) // 2]
    rate, todo = climbed(first, second[0], middle)
    if rate is None:
        return None, [make(value, middle) for value in todo]
    best, todo = climbed(second, first[0], rate)
    return None if best is None else (rate, best), [make(rate, value) for value in todo]


def wanted(options: Options, rows: Sequence[Row] = ()) -> list[Any]:
    """For every data set: the searches of all losses, then all losses at seed 0 and most at further seeds."""
    o, runs = options, []
    tables = ("lr", o.rates, RATES), ("temperature", o.temperatures, TEMPERATURES)
    network = ("lr", o.steps, STEPS), ("dropout", o.dropouts, DROPOUTS)
    parts = [(o.catalogue, catalogue.LOSSES, partial(catalogue_run, o), tables),
             *((data, o.basket_losses, partial(basket_run, o, data), network) for data in o.baskets)]  # fmt: skip
    for data, losses, make, searches in parts:
        found = {}
        for loss in losses:
            trial, tried = partial(make, loss, seed=SEARCH_SEED, final=False), (data, loss, False)
            found[loss], todo = two_searches(trial, [row for row in rows if key(row) == tried], *searches)
            runs += todo
        for seed in range(o.seeds):
            runs += [
                make(loss, *at, seed, True)
                for loss, at in found.items()
                if at and (seed == 0 or data != o.catalogue or loss not in ONCE)
            ]
    return runs


def perform(run: catalogue.Run | sequences.Run) -> Mapping[str, Any]:
    return catalogue.train(run) if isinstance(run, catalogue.Run) else sequences.train(run)


# --------------------------------------------------------------------------------------------------------- numbers

PUBLISHED = {
    "gowalla": "LightGCN 0.1830 / 0.1554, UltraGCN 0.1862 / 0.1580",
    "beauty": "SASRec with full cross-entropy in RecBole 0.083 / 0.0416",
    "sports": "SASRec with full cross-entropy in RecBole 0.048 / 0.0227",
}


def score(name: str) -> Any:
    """A score of the test items, in thousandths."""
    return lambda row: 1000 * row.result["test"][name]


def finals(rows: Sequence[Row], data: str) -> dict[str, list[Row]]:
    """The final runs of each loss."""
    return {loss: of for loss in NAMES if (of := [row for row in rows if key(row) == (data, loss, True)])}


def exact(data: str) -> str:
    """The loss that scores all items."""
    return "soft-ce" if data in ("gowalla", "places") else "softmax"


def reached(of: Sequence[Row], target: float) -> float | None:
    """Mean processor seconds until the nDCG in the course of training is ``target``; None if a seed misses it."""
    seconds = []
    for row in of:
        before = {"cpu_seconds": 0.0, "ndcg": 0.0}
        for point in row.result["course"]:
            if point["ndcg"] >= target:
                share = (target - before["ndcg"]) / (point["ndcg"] - before["ndcg"])
                seconds.append(before["cpu_seconds"] + share * (point["cpu_seconds"] - before["cpu_seconds"]))
                break
            before = point
    return sum(seconds) / len(seconds) if len(seconds) == len(of) else None


def tables(rows: Sequence[Row]) -> list[Table]:
    built = []
    for data in dict.fromkeys(row.config["data"] for row in rows if row.config["final"]):
        first, k = ("recall", 20) if data in ("gowalla", "places") else ("hits", 10)
        header = ["loss", f"{first}@{k} (‰)", f"nDCG@{k} (‰)", "CPU s", f"CPU s to {NEAR:.0%}", "seeds"]
        found, body = finals(rows, data), []
        best = max((point["ndcg"] for row in found.get(exact(data), []) for point in row.result["course"]), default=0.0)
        for loss, of in found.items():
            seconds = mean(of, lambda row: row.result["cpu_seconds"]).mean
            until = reached(of, NEAR * best) if best else None
            shown = [mean(of, score(name)).spread(1) for name in (first, "ndcg")]
            body.append([NAMES[loss], *shown, f"{seconds:.0f}", "–" if until is None else f"{until:.0f}", str(len(of))])
        built.append(Table(f"recommendation-{data}", header, body, title=f"{data}; {PUBLISHED.get(data, '')}"))
        built.append(searched(rows, data))
    return built


def searched(rows: Sequence[Row], data: str) -> Table:
    """The setting that held-out answers chose for each loss."""
    other = "temperature" if data in ("gowalla", "places") else "dropout"
    body = []
    for loss, of in finals(rows, data).items():
        mine = [row for row in rows if key(row) == (data, loss, False)]
        best = max((1000 * row.result["held_out"]["ndcg"] for row in mine), default=math.nan)
        c = of[0].config
        body.append([NAMES[loss], f"{c['lr']:g}", f"{c[other]:g}", str(c["epochs"]), str(len(mine)), f"{best:.1f}"])
    header = ["loss", "rate", other, "epochs", "trials", "held-out nDCG (‰)"]
    return Table(f"recommendation-{data}-search", header, body, title=f"{data}: the setting of each loss")


NEAR = 0.97
"""Share of exact cross-entropy's best nDCG whose processor time is compared."""
LEVEL = 2.0  # thousandths of nDCG@20
COMPARED = {
    "recommendation-sets": Gap("expected-own-out", "info-nce", {"above": 0.0}),
    "recommendation-own": Gap("expected-own-out", "expected-info-nce", {"above": 0.0}),
    "recommendation-sampled": Gap("expected-own-out", "sampled-softmax", {"above": 0.0}),
}
"""By claim: a difference in nDCG on Gowalla."""
PARTIAL = ("expected-own-out", "expected-info-nce", "info-nce", "sampled-softmax")
"""Losses that score a part of the catalogue per step, with several seeds."""


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    of, found = finals(rows, "gowalla"), {}
    compared = dict(COMPARED)
    if best := best_partial(rows, "gowalla"):
        compared["recommendation-exact"] = Gap(best, "soft-ce", {"above": -LEVEL})
    for claim, q in compared.items():
        if {q.ours, q.theirs} <= of.keys():
            gap = difference(of[q.ours], of[q.theirs], score("ndcg"))
            on, unit = f"Gowalla, {NAMES[q.ours]}, {gap.count} seeds", " thousandths of nDCG@20"
            found[claim] = decided(gap, on=on, unit=unit, digits=1, new=True, **q.bounds)
    of = finals(rows, "beauty")
    best = best_partial(rows, "beauty")
    if best and {best, "softmax"} <= of.keys():
        whole = mean(of["softmax"], score("ndcg")).mean
        gap = difference(of[best], of["softmax"], lambda row: 100 * score("ndcg")(row) / whole)
        on, unit = f"Beauty, {NAMES[best]}, {gap.count} seeds", " % of nDCG@10"
        found["recommendation-baskets"] = decided(gap, on=on, unit=unit, digits=1, new=True, above=100 * (NEAR - 1))
    return found


def best_partial(rows: Sequence[Row], data: str) -> str | None:
    """The loss of :data:`PARTIAL` or of baskets that is best on held-out answers."""
    losses = PARTIAL if data in ("gowalla", "places") else ("info-nce", "info-nce-user-out", "sampled-softmax")
    tried = [row for row in rows if key(row) in {(data, loss, False) for loss in losses}]
    return max(tried, key=lambda row: row.result["held_out"]["ndcg"]).config["loss"] if tried else None


def course_of(of: Sequence[Row]) -> dict[float, Estimate]:
    """Mean nDCG of the seeds after each epoch, by processor seconds."""
    courses = [row.result["course"] for row in of]
    return {
        estimate([point["cpu_seconds"] for point in points]).mean: estimate([1000 * point["ndcg"] for point in points])
        for points in zip(*courses, strict=True)
    }


def figures(rows: Sequence[Row]) -> list[Figure]:
    shown = [data for data in ("gowalla", "beauty", "sports") if finals(rows, data)]

    def draw(axes: Any) -> None:
        for ax, data in zip(axes, shown, strict=True):
            for place, (loss, of) in enumerate(finals(rows, data).items()):
                dash = "-" if place < len(SERIES) else "--"
                curve(ax, course_of(of), name=NAMES[loss], colour=SERIES[place % len(SERIES)], dash=dash)
            of_what = "1,000 users" if data == "gowalla" else "validation"
            label(ax, "processor seconds", f"nDCG, {of_what} (‰)", title=data, log="x")

    return [Figure("recommendation-course", draw, panels=len(shown), columns=1, size=(6.4, 3.2))] if shown else []


EXPERIMENT = Experiment(
    name="recommendation", question="Which loss learns a catalogue of many items in the least processor time?",
    minutes=480,
    presets={
        "quick": Options("places", ("walks",), 1, (1.0,), (0.1,), 4, (0.003,), (0.2,), basket_epochs=4),
        "paper": Options(),
    },
    runs=wanted, follow_up=wanted, perform=perform, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
