"""Accuracy and calibration against the length of training, for every loss of the paper.

The paper trains for 100 epochs with smoothing, MixUp and CutMix. Short trainings cannot show what soft targets are
for: no network overfits in them. This experiment trains a small residual network from scratch on 5,000 images of
CIFAR-100, 50 per class, for 8 to 120 epochs, with the paper's recipe scaled down. Every seed has its own training
images; the 5,000 held-out images choose rate and epoch, the 10,000 test images are looked at once per run.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import stdev
from typing import Any

from experiments.features import CE, DRAWN, ECE, EXPECTED, OURS, TOP1
from experiments.harness import LOOKS, Experiment, Figure, Row, Table, curve, label, option, percent
from experiments.harness.claims import ON_PAR, Finding, decided, needed, verdict
from experiments.harness.search import climb
from experiments.harness.statistics import (
    Value,
    by_seed,
    difference,
    difference_of_differences,
    estimate,
    for_other_samples,
    mean,
    nats,
)
from experiments.losses import LOSSES as KINDS
from experiments.regime.training import Run, perform

LOSSES = ("nll", CE, OURS, EXPECTED, "info-nce", DRAWN)
SETTINGS = {
    "scratch": "a small residual network on 5,000 images of CIFAR-100, 32 px",
    "fine-tuned": "EfficientNet-Lite0 with its ImageNet weights on 3,000 images of CIFAR-100, 64 px",
    "generated": "the small network on 500 easy images of 10 classes",
}
SOFT = (CE, OURS, EXPECTED)
LADDER = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
SEARCH_SEED, SEARCH_EPOCHS = 8, 30

# ------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Options:
    setting: str = option("scratch", f"one of {', '.join(SETTINGS)}", of=SETTINGS)
    head: str = option("linear", "linear or, fine-tuned, mlp: three layers of 512", of=("linear", "mlp"))
    losses: tuple[str, ...] = option(LOSSES, f"some of {', '.join(LOSSES)}", of=LOSSES)
    epochs: int = option(60, "length of the main comparison", least=1)
    seeds: int = option(5, "seeds of the main comparison", least=1)
    other_epochs: tuple[int, ...] = option((30, 8, 120), "other lengths")
    other_seeds: int = option(3, "seeds of the other lengths", least=0)
    smoothings: tuple[float, ...] = option((), "other ε of the two soft target losses, at the main length")
    batches: tuple[int, ...] = option((), "other batches of the three soft target losses, for 30 epochs")
    rates: tuple[float, ...] = option(
        (0.003, 0.01, 0.03), "base rates every search begins with; one: no search", fewest=1, of=LADDER
    )

    def __post_init__(self) -> None:
        if self.head == "mlp" and self.setting != "fine-tuned":
            raise ValueError("head: got 'mlp', need linear, or the setting fine-tuned")


def run_of(options: Options, loss: str, epochs: int, lr: float, seed: int) -> Run:
    """A run of the sizes of its setting; losses of labels get neither smoothing nor mixing."""
    run = Run(loss, epochs, lr, seed, setting=options.setting, head=options.head)
    if options.setting == "fine-tuned":
        run = replace(run, images=3_000)
    if options.setting == "generated":
        run = replace(run, images=500, batch=50, warmup_epochs=1)
    return replace(run, smoothing=0.0, mixup=0.0, cutmix=0.0) if KINDS[loss].labels_only else run


def searched(rows: Sequence[Row]) -> list[Row]:
    """The runs of the search of the rates."""
    return [row for row in rows if (row.config["seed"], row.config["epochs"]) == (SEARCH_SEED, SEARCH_EPOCHS)]


def wanted(options: Options, rows: Sequence[Row] = ()) -> list[Run]:
    """Search, then the main length with all losses seed by seed, then the other lengths, ε and batches."""
    o, found, runs = options, {}, []
    here = [row for row in searched(rows) if setting_of(row) == (o.setting, o.head)]
    for loss in o.losses:
        tried = {row.config["lr"]: held_out(row) for row in here if row.config["loss"] == loss}
        found[loss], todo = climb(tried, o.rates, LADDER)
        runs += [run_of(o, loss, SEARCH_EPOCHS, lr, SEARCH_SEED) for lr in todo]

    def at_found(epochs: int, seed: int, losses: Sequence[str] = o.losses) -> list[Run]:
        rates = {loss: rate for loss in losses if (rate := found.get(loss)) is not None}
        return [run_of(o, loss, epochs, rate, seed) for loss, rate in rates.items()]

    for epochs, seeds in ((o.epochs, o.seeds), *((n, o.other_seeds) for n in o.other_epochs)):
        runs += [run for seed in range(seeds) for run in at_found(epochs, seed)]
    for seed in range(o.other_seeds):
        runs += [replace(run, smoothing=ε) for run in at_found(o.epochs, seed, (CE, OURS)) for ε in o.smoothings]
        runs += [replace(run, batch=batch) for run in at_found(SEARCH_EPOCHS, seed, SOFT) for batch in o.batches]
    return runs


# --------------------------------------------------------------------------------------------------------- numbers

DIFFERENCES = ((OURS, CE), (OURS, "nll"), (OURS, "info-nce"), (OURS, DRAWN), (CE, "nll"), (EXPECTED, CE),
               (EXPECTED, OURS))  # fmt: skip
SCALED_ECE = percent("ece_scaled")


def held_out(row: Row) -> float:
    """Top-1 in per cent on held-out images, at the epoch chosen there."""
    return 100 * max(point["top1"] for point in row.result["course"])


def setting_of(row: Row) -> tuple[str, str]:
    return row.config["setting"], row.config.get("head", "linear")


def shared(*groups: Sequence[Row]) -> set[int]:
    """The seeds that all groups of rows have."""
    return set.intersection(*({row.config["seed"] for row in rows} for rows in groups)) if groups else set()


@dataclass(frozen=True)
class Trainings:
    """The rows of one setting; ``name`` begins the names of its tables and figures."""

    name: str
    rows: Sequence[Row]

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({row.config["epochs"] for row in self.rows if row.config["seed"] != SEARCH_SEED})

    @cached_property
    def rates(self) -> dict[str, float]:
        """The searched rate of each loss; without a search that of most runs."""
        found = {}
        for loss in LOSSES:
            mine = [row for row in self.rows if row.config["loss"] == loss]
            if tried := searched(mine):
                found[loss] = max(tried, key=held_out).config["lr"]
            elif mine:
                found[loss] = Counter(row.config["lr"] for row in mine).most_common(1)[0][0]
        return found

    def usual(self, loss: str) -> Run:
        return run_of(Options(*setting_of(self.rows[0])), loss, 0, self.rates.get(loss, 0.0), 0)

    def at(self, loss: str, epochs: int, **changed: float) -> list[Row]:
        """The rows of one loss and length, without the search; ``changed`` replaces the usual smoothing or batch."""
        usual = self.usual(loss)
        wanted = {name: getattr(usual, name) for name in ("loss", "lr", "smoothing", "batch")}
        wanted |= {"epochs": epochs} | changed
        return [row for row in self.rows if wanted.items() <= row.config.items() and row.config["seed"] != SEARCH_SEED]

    def varied(self, name: str) -> tuple[int, dict[str, dict[float, list[Row]]]]:
        """The runs for another ``smoothing`` or ``batch``: their length, and rows by loss and value at common seeds."""
        usual = getattr(self.usual(OURS), name)
        others = [row for row in self.rows if row.config["loss"] in SOFT and row.config[name] != usual]
        epochs = max((row.config["epochs"] for row in others), default=0)
        values = sorted({row.config[name] for row in others} | {usual})
        found = {loss: {v: of for v in values if (of := self.at(loss, epochs, **{name: v}))} for loss in SOFT}
        found = {loss: by_value for loss, by_value in found.items() if len(by_value) > 1}
        seeds = shared(*(of for by_value in found.values() for of in by_value.values()))
        for by_value in found.values():
            by_value |= {value: [row for row in of if row.config["seed"] in seeds] for value, of in by_value.items()}
        return epochs, found if seeds else {}


def by_setting(rows: Sequence[Row]) -> list[Trainings]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        setting, head = setting_of(row)
        found.setdefault(f"regime-fine-tuned-{head}" if setting == "fine-tuned" else "regime", []).append(row)
    return [Trainings(name, of) for name, of in found.items()]


# ---------------------------------------------------------------------------------------------------------- tables

Column = tuple[Callable[[str], Sequence[Row]], Value, int]
"""Rows of a loss, a score of theirs, and its digits."""
SYMBOLS = {"smoothing": "ε", "batch": "batch"}


def cell(rows: Sequence[Row], value: Value, digits: int = 1) -> str:
    return mean(rows, value).spread(digits) if rows else "–"


def gap(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """A difference of top-1, paired by seed."""
    return difference(ours, theirs, TOP1).signed() if shared(ours, theirs) else "–"


def by_loss(name: str, title: str, columns: Mapping[str, Column]) -> Table:
    """A row per loss that has any of the columns."""
    cells = {loss: [cell(rows(loss), *how) for rows, *how in columns.values()] for loss in LOSSES}
    body = [[LOOKS[loss].name, *of] for loss, of in cells.items() if any(one != "–" for one in of)]
    return Table(name, ["loss", *columns], body, title=title)


def tables(rows: Sequence[Row]) -> list[Table]:
    return [table for found in by_setting(rows) for table in tables_of(found)]


def tables_of(found: Trainings) -> list[Table]:
    name, header = found.name, [f"{n} epochs" for n in found.lengths]
    lengths = {f"{n} epochs": (partial(found.at, epochs=n), TOP1, 2) for n in found.lengths}
    top1 = by_loss(f"{name}-top1", "Test top-1 (%) by length of training", lengths)
    counts = [str(max(len(found.at(loss, n)) for loss in LOSSES)) for n in found.lengths]
    gaps = [
        [f"{LOOKS[a].name} − {LOOKS[b].name}", *(gap(found.at(a, n), found.at(b, n)) for n in found.lengths)]
        for a, b in DIFFERENCES
    ]
    gaps = [row for row in gaps if any(one != "–" for one in row[1:])]
    made = [
        replace(top1, rows=[*top1.rows, ["seeds", *counts]]),
        Table(f"{name}-differences", ["difference", *header], gaps, title="Differences of top-1 (points), paired"),
    ]
    scores: dict[str, tuple[Value, int]] = {
        "top-1 (%)": (TOP1, 2),
        "last epoch": (percent("top1", "last"), 2),
        "top-5 (%)": (percent("top5"), 1),
        "ECE (%)": (ECE, 1),
        "ECE, scaled": (SCALED_ECE, 1),
        "NLL, scaled": (nats("nll_scaled"), 3),
        "training top-1": (percent("top1", "train"), 1),
    }
    for n in found.lengths:
        rows = partial(found.at, epochs=n)
        made.append(by_loss(f"{name}-{n}", f"{n} epochs", {title: (rows, *how) for title, how in scores.items()}))
    made += [effect(found, option, symbol) for option, symbol in SYMBOLS.items() if found.varied(option)[1]]
    if tried := searched(found.rows):
        title = "The search: held-out top-1 (%) by base rate, one seed"

        def of_loss(loss: str, rate: float) -> list[Row]:
            return [row for row in tried if (row.config["loss"], row.config["lr"]) == (loss, rate)]

        rates = sorted({row.config["lr"] for row in tried})
        columns = {f"{rate:g}": (partial(of_loss, rate=rate), held_out, 1) for rate in rates}
        made.append(by_loss(f"{name}-rates", title, columns))
    return made


def effect(found: Trainings, name: str, symbol: str) -> Table:
    """Accuracy and calibration by ε or batch, at the seeds that all values have."""
    epochs, varied = found.varied(name)
    usual = getattr(found.usual(OURS), name)
    body = []
    for loss, by_value in varied.items():
        for value, of in by_value.items():
            change = gap(of, by_value.get(usual, [])) if value != usual else ""
            lead = gap(of, varied.get(CE, {}).get(value, [])) if loss != CE else ""
            scores = cell(of, ECE), cell(of, SCALED_ECE), str(len(of))
            body.append([LOOKS[loss].name, f"{value:g}", cell(of, TOP1, 2), change, lead, *scores])
    header = ["loss", symbol, "top-1 (%)", f"minus {symbol} {usual:g}", "minus soft target cross-entropy", "ECE (%)"]
    title = f"{symbol.capitalize()} in trainings of {epochs} epochs"
    return Table(f"{found.name}-{name}", [*header, "ECE, scaled", "seeds"], body, title=title)


# -------------------------------------------------------------------------------------------------------- findings

AHEAD, BEHIND, NEW = {"above": 0}, {"below": 0}, {"new": True}
COMPARED: dict[str, tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = {
    "regime-soft-ce": (OURS, CE, ON_PAR, {}),
    "regime-nll": (OURS, "nll", AHEAD, {}),
    "regime-soft-distribution": (OURS, DRAWN, AHEAD, {}),
    "regime-calibration": (OURS, CE, BEHIND, {"value": ECE}),
    "regime-expected": (EXPECTED, OURS, AHEAD | NEW, {}),
    "regime-short-nll": (OURS, "nll", BEHIND | NEW, {"epochs": 8}),
    "regime-longest-soft-ce": (OURS, CE, ON_PAR, {"epochs": 120}),
    "regime-longest-nll": (OURS, "nll", AHEAD, {"epochs": 120}),
    "regime-small-batch": (OURS, CE, BEHIND, {"epochs": 30, "batch": 8}),
    "regime-small-batch-expected": (EXPECTED, CE, ON_PAR | NEW, {"epochs": 30, "batch": 8}),
}
"""By claim: which loss is ahead of which, by how much, and in what: arguments of :func:`compared`."""


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    """Of the network from scratch; a claim without its rows has none."""
    rows = [row for row in rows if row.config["setting"] == "scratch"]
    if not rows:
        return {}
    (found,) = by_setting(rows)
    answers = {key: compared(found, *how, **where) for key, (*how, where) in COMPARED.items()}
    answers |= {"regime-overfits": overfits(found), "regime-length": lengthened(found),
                "regime-smoothing": steadied(found)}  # fmt: skip
    return {key: answer for key, answer in answers.items() if answer}


def conditions(found: Trainings, epochs: Any, count: int, batch: float = 256) -> str:
    tried = sorted({row.config["lr"] for row in searched(found.rows)})
    rates = f"rates {tried[0]:g} to {tried[-1]:g}, " if tried else ""
    return f"CIFAR-100, 5,000 images, {epochs} epochs, batch {batch:g}, {rates}{count} seed{'s' * (count > 1)}"


def compared(
    found: Trainings, a: str, b: str, bounds: Mapping[str, Any], *,
    epochs: int = 60, value: Value = TOP1, **changed: float,
) -> Finding | None:  # fmt: skip
    """Loss a minus loss b; ``changed`` replaces the usual smoothing or batch."""
    ours, theirs = (found.at(loss, epochs, **changed) for loss in (a, b))
    if not shared(ours, theirs):
        return None
    gap = difference(ours, theirs, value)
    text = f"{'ECE ' if value is ECE else ''}{gap.signed()} points"
    other = for_other_samples(ours, theirs) if value is TOP1 and gap.count > 1 else None
    if other is not None:
        text += f", for other test images too [{other.low:+.2f}, {other.high:+.2f}]".replace("-", "−")
    text += needed(gap, **{name: bound for name, bound in bounds.items() if name != "new"})
    return Finding(text, conditions(found, epochs, gap.count, **changed), verdict(gap, **bounds))


def overfits(found: Trainings) -> Finding | None:
    """The rise of the held-out NLL after its minimum, in the longest training on labels."""
    of = found.at("nll", max(found.lengths, default=0))
    if not of:
        return None
    rise = estimate([row.result["course"][-1]["nll"] - min(p["nll"] for p in row.result["course"]) for row in of])
    fitted = mean(of, percent("top1", "train"))
    text = f"{rise.signed()} nats above its minimum, {fitted.spread(1)} % of the training images right"
    return Finding(text, conditions(found, of[0].config["epochs"], len(of)), verdict(rise, above=0.02, new=True))


def lengthened(found: Trainings) -> Finding | None:
    """The lead over NLL in the longest training minus that after 8 epochs."""
    last = max(found.lengths, default=0)
    groups = [found.at(loss, epochs) for epochs in (last, 8) for loss in (OURS, "nll")]
    if last == 8 or not shared(*groups):
        return None
    gain = difference_of_differences(*groups, TOP1)
    return decided(gain, on=conditions(found, f"8 and {last}", gain.count), above=0, new=True)


def steadied(found: Trainings) -> Finding | None:
    """Standard deviation over ε of soft target cross-entropy's top-1 minus that of soft target InfoNCE's."""
    epochs, varied = found.varied("smoothing")
    if epochs != 60 or not {CE, OURS} <= varied.keys() or varied[CE].keys() != varied[OURS].keys():
        return None
    theirs, ours = ([by_seed(rows, TOP1) for rows in varied[loss].values()] for loss in (CE, OURS))
    steadier = estimate([stdev(of[seed] for of in theirs) - stdev(of[seed] for of in ours) for seed in theirs[0]])
    text = f"standard deviation over ε larger by {steadier.signed()} points{needed(steadier, above=0)}"
    on = f"{conditions(found, epochs, steadier.count)}, ε {', '.join(f'{value:g}' for value in varied[CE])}"
    return Finding(text, on, verdict(steadier, above=0))


# --------------------------------------------------------------------------------------------------------- figures

PANELS = {"test top-1 (%)": TOP1, "ECE (%)": ECE, "ECE at the fitted temperature (%)": SCALED_ECE}


def figures(rows: Sequence[Row]) -> list[Figure]:
    built = []
    for found in by_setting(rows):
        if found.lengths:
            course = partial(draw_course, found)
            built.append(Figure(f"{found.name}-course", course, panels=2, columns=1, size=(6, 2.6)))
        if len(found.lengths) > 1:
            lengths = partial(draw_lengths, found)
            built.append(Figure(f"{found.name}-lengths", lengths, panels=3, columns=1, size=(6, 2.6)))
    return built


def draw_lengths(found: Trainings, axes: Any) -> None:
    """Scores of finished trainings by their length."""
    for ax, (name, value) in zip(axes, PANELS.items(), strict=True):
        for loss in LOSSES:
            if of := {n: mean(rows, value) for n in found.lengths if (rows := found.at(loss, n))}:
                curve(ax, of, loss=loss)
        label(ax, "epochs", name, log="x")
        ax.set_xticks(found.lengths, [str(n) for n in found.lengths])
        ax.minorticks_off()


def draw_course(found: Trainings, axes: Any) -> None:
    """Held-out scores in the course of the longest trainings."""
    for ax, (name, score, scale) in zip(axes, (("top-1 (%)", "top1", 100), ("NLL (nats)", "nll", 1)), strict=True):
        for loss in LOSSES:
            if of := found.at(loss, found.lengths[-1]):
                points = zip(*(row.result["course"] for row in of), strict=True)
                curve(ax, {p[0]["epoch"]: estimate([scale * one[score] for one in p]) for p in points}, loss=loss)
        label(ax, "epoch", f"held-out {name}")


EXPERIMENT = Experiment(
    name="regime", question="After how many epochs do soft targets pay, and which loss uses them best?", minutes=240,
    presets={
        "quick": Options("generated", epochs=4, seeds=2, other_epochs=(2,), other_seeds=2, rates=(0.01,)),
        "paper": Options(),
    },
    runs=wanted, follow_up=wanted, perform=perform, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
