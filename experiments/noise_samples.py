"""Small batches: soft target InfoNCE against cross-entropy, with candidates from the batch and from elsewhere.

Soft target InfoNCE contrasts a target with those of its batch, so a small batch leaves it few candidates, and the paper
reports a drop. A head is trained at batch sizes 4 to 1,024 with soft target cross-entropy and with soft target InfoNCE
against (1) the batch, (2) M sampled soft targets, mixed and smoothed like the training targets, (3) the batch and M
remembered targets, (4) the batch and the K plain labels. Expected InfoNCE is trained beside it, with its default of
m = K further candidates from η, in expectation, and with none.

Seeds from 1,000 on had no part in any decision: how strongly sampled candidates are mixed, and that the rates of
expected InfoNCE and cross-entropy at batch 8 are searched with three seeds, were decided on the seeds before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from experiments import training
from experiments.data.features import NAMES, Source
from experiments.features import CE, EXPECTED, OURS, TOP1, conditions, spread
from experiments.harness import LOOKS, SERIES, Experiment, Figure, Row, Table, curve, label, level, option
from experiments.harness.claims import MARGIN, Finding, decided, verdict
from experiments.harness.search import Setting, chosen, trials, tuned
from experiments.harness.statistics import Estimate, alike, largest
from experiments.losses import Loss
from experiments.models.heads import Head
from experiments.training import MIXED, Probe

METHODS = {
    CE: "soft target cross-entropy", "batch": "the batch", "sampled": "sampled", "queue": "batch and remembered",
    "batch+classes": "batch and vertices", "expected": "expected InfoNCE", "expected-0": "expected InfoNCE, m = 0",
    "sharper": "sampled, nearer to the classes",
}  # fmt: skip
COUNTED = ("sampled", "queue", "sharper")
"""Methods with a number M of candidates."""
FURTHER = 1000
"""The first seed that had no part in a decision."""
SEARCHED = 3
"""Seeds whose mean chooses a rate, as far as they were trained at every rate."""
LARGE = 256
"""Batch size from which an epoch has so few steps that 1e-2 is tried too."""


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds at every batch size", least=1)
    tested_seeds: int = option(20, "number of seeds of what is tested", least=1)
    further_seeds: int = option(20, "further seeds, on which the tests are made again", least=0)
    data: Source = option("cifar100", "data set")
    batches: tuple[int, ...] = option((4, 8, 32, 256, 1024), "batch sizes", least=2, fewest=1)
    num_candidates: int = option(4096, "M, sampled or remembered candidates", least=1)
    tested_batch: int = option(8, "batch size of the tests; also among the batch sizes")
    expected_batches: tuple[int, ...] = option((8, 256), "those of expected InfoNCE", least=2)
    numbers: tuple[int, ...] = option((32, 512, 16384), "other M tried there", least=1)
    sharper: float = option(0.2, "MixUp parameter of sampled candidates nearer to the classes", above=0)
    longer_epochs: int = option(6, "passes of longer trainings at the largest batch size; 0 omits them", least=0)
    hidden: int = option(256, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "rates tried", above=0, fewest=1)
    longer_rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2, 3e-2), "those of the longer trainings", above=0)

    def __post_init__(self) -> None:
        if self.tested_batch not in self.batches:
            raise ValueError(f"tested_batch: got {self.tested_batch}, need one of the batches {list(self.batches)}")


SMALL = {"longer_epochs": 0, "hidden": 64, "rates": (1e-3, 3e-3)}
PRESETS = {
    "quick": Options(2, 3, 0, "digits", (8, 64), 128, expected_batches=(8, 64), numbers=(32,), **SMALL),
    "paper": Options(),
}


@dataclass(frozen=True)
class Sharper(Probe):
    """A training against sampled candidates whose mixing differs from that of the targets."""

    candidate_mixup: float = 0.2


def setting(options: Options, method: str, batch: int, number: int | None = None, epochs: int = 1) -> Probe:
    number = number or options.num_candidates
    losses = {CE: Loss(CE), "expected": Loss(EXPECTED), "expected-0": Loss(EXPECTED, noise_count=0)}
    kept = {"num_candidates": number} if method in COUNTED else {}
    loss = losses.get(method) or Loss(OURS, candidates="sampled" if method == "sharper" else method, **kept)
    probe = Probe(options.data, loss, MIXED, Head(hidden=options.hidden), batch, epochs=epochs)
    if method != "sharper":
        return probe
    return Sharper(**{f.name: getattr(probe, f.name) for f in fields(probe)}, candidate_mixup=options.sharper)


def expected_at(options: Options, batch: int) -> list[str]:
    """The settings of expected InfoNCE at a batch size; m = 0 at large batches only."""
    return ["expected", "expected-0"][: 1 + (batch >= LARGE)] if batch in options.expected_batches else []


def settings(options: Options) -> list[Probe]:
    """Every method at every batch size, small ones first, which take longest; then what is tried at one of them."""
    tested, methods = options.tested_batch, [CE, "batch", "sampled", "queue", "batch+classes"]
    return [
        *(setting(options, m, size) for size in sorted(options.batches) for m in methods + expected_at(options, size)),
        *(setting(options, "sampled", tested, number) for number in options.numbers),
        setting(options, "sharper", tested),
    ]


def longer(options: Options) -> list[Probe]:
    """More epochs at the largest batch size, where one has few steps."""
    epochs = options.longer_epochs
    return [setting(options, method, max(options.batches), epochs=epochs) for method in (CE, "batch") if epochs]


def rates(options: Options, batch: int) -> tuple[float, ...]:
    return (*options.rates, 1e-2) if batch >= LARGE else options.rates


def runs(options: Options) -> list[Probe]:
    batch, seeds = options.tested_batch, min(SEARCHED, options.seeds)
    tested = [setting(options, m, batch) for m in expected_at(options, batch) and (CE, "expected")]
    first = [run for probe in settings(options) for run in trials([probe], rates(options, probe.batch))]
    return [*first, *trials(tested, rates(options, batch), seeds), *trials(longer(options), options.longer_rates)]


def follow_up(options: Options, rows: Sequence[Row]) -> list[Probe]:
    batch = options.tested_batch
    tested = [setting(options, method, batch) for method in (CE, "batch", "sampled", "sharper")]
    expected = [(size, m) for size in options.expected_batches for m in (CE, *expected_at(options, size))]
    further = [*tested[:1], *tested[2:], *(setting(options, method, size) for size, method in expected)]

    def at_best(probes: Sequence[Probe], seeds: int) -> list[Probe]:
        return [r for p in probes for r in tuned([p], rows, rates(options, p.batch), seeds, searched=SEARCHED)]

    return [
        *at_best(settings(options), options.seeds),
        *at_best(tested, options.tested_seeds),
        *tuned(longer(options), rows, options.longer_rates, options.tested_seeds),
        *(replace(run, seed=FURTHER + run.seed) for run in at_best(further, options.further_seeds)),
    ]


def perform(run: Probe) -> dict[str, Any]:
    return training.train(run, replace(run.targets, mixup=run.candidate_mixup) if isinstance(run, Sharper) else None)


@dataclass(frozen=True)
class Found:
    """Settings by method, batch size and M (0 where there is none)."""

    rows: Sequence[Row]
    settings: dict[tuple[str, int, int], Setting]

    def of(self, method: str, batch: int, number: int = 4096, further: bool = False) -> Setting | None:
        """The trainings on the first seeds, or on the further ones."""
        setting = self.settings.get((method, batch, number if method in COUNTED else 0))
        kept = setting and setting.of_seeds(lambda seed: (seed >= FURTHER) == further)
        return kept or None

    def gap(self, method: str, batch: int, number: int = 4096, further: bool = False) -> Estimate | None:
        """Points of top-1 minus soft target cross-entropy's."""
        ours, theirs = self.of(method, batch, number, further), self.of(CE, batch, further=further)
        return ours.minus(theirs, TOP1) if ours and theirs and method != CE else None

    @property
    def batches(self) -> list[int]:
        return sorted({batch for _, batch, _ in self.settings})

    @property
    def numbers(self) -> list[int]:
        """M of sampled candidates at the tested batch size, which has the most of them."""
        return sorted(n for method, batch, n in self.settings if method == "sampled" and batch == self.tested)

    @property
    def tested(self) -> int:
        return max(self.settings, key=lambda key: (len(self.settings[key]), -key[1]))[1]


def find(rows: Sequence[Row], searched: int = SEARCHED) -> Found:
    """The largest group of trainings, at the rates that the first seeds choose."""
    return collected(largest(rows, "data", "head", "epochs", "targets"), searched)


def collected(group: Sequence[Row], searched: int) -> Found:
    found: dict[tuple[str, int, int], Setting] = {}
    for of_batch in alike(group, "batch"):  # other rates are tried at large batches
        for setting in chosen(of_batch, searched=searched):
            loss = setting.config["loss"]
            method = "sharper" if "candidate_mixup" in setting.config else loss["candidates"]
            if loss["name"] == CE:
                method = CE
            elif loss["name"] == EXPECTED:
                method = "expected-0" if loss.get("noise_count") == 0 else "expected"
            key = (method, setting.config["batch"], loss["num_candidates"] if method in COUNTED else 0)
            if key not in found or len(setting) > len(found[key]):
                found[key] = setting
    return Found(group, found)


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    if len(found.batches) < 2 or rows[0].config["data"] == "digits":
        return {}
    data, par = f"{NAMES[rows[0].config['data']]} features", {"above": -MARGIN, "below": MARGIN}
    answers = {}
    if drop := found.gap("batch", found.tested):
        of_batch = [row for row in found.rows if row.config["batch"] == found.tested]
        on = conditions(data, of_batch, found.of("batch", found.tested))
        answers["small-batch-drop"] = decided(drop, on=on, below=0)
    more = collected([row for row in rows if row.config["epochs"] > found.rows[0].config["epochs"]], 1)
    for size in more.batches:
        if gap := more.gap("batch", size):
            on = conditions(data, more.rows, more.of("batch", size))
            answers["large-batch-par"] = decided(gap, on=on, **par)
    if (nearer := found.gap("sharper", found.tested, further=True)) and nearer.count > 1:
        on = f"{data}, batch {found.tested}, {nearer.count} further seeds"
        answers["small-batch-mended"] = decided(nearer, on=on, new=True, **par)
    gaps = {}
    for batch, method in product(found.batches, ("expected", "expected-0")):
        if (gap := found.gap(method, batch, further=True)) and gap.count > 1:
            gaps[f"at batch {batch}{', m = 0' * ('0' in method)}"] = gap
    if gaps:
        ours = "; ".join(f"{gap.signed()} {where}" for where, gap in gaps.items())
        on = f"{data}, {min(gap.count for gap in gaps.values())} further seeds"
        answers["small-batch-expected"] = Finding(ours, on, verdict(*gaps.values(), new=True, **par))
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    found, first = find(rows), find(rows, searched=1)
    body = []
    for method, batch, number in sorted(found.settings, key=lambda key: (list(METHODS).index(key[0]), key)):
        if batch == found.tested and (of := found.of(method, batch, number)):
            m = f", M = {number:,}" if number else ""
            gaps = [spread(found.gap(method, batch, number, further)) for further in (False, True)]
            body.append(
                [f"{METHODS[method]}{m}", of.mean(TOP1).spread(2), gaps[0], str(len(of)), gaps[1], f"{of.lr:g}"]
            )
    header = ("candidates", "top-1 (%)", "minus soft target cross-entropy (points)", "seeds", "further seeds", "rate")
    sizes = [
        [name, *(spread(found.gap(method, batch)) for batch in found.batches)]
        for method, name in METHODS.items()
        if method != CE and any(found.gap(method, batch) for batch in found.batches)
    ]
    tests = []
    for batch in found.batches:
        for method in ("expected", "expected-0"):
            now, before = (of.gap(method, batch, further=True) for of in (found, first))
            if now and before:
                tests.append([f"batch {batch}, {METHODS[method]}", spread(now), str(now.count),
                              spread(before) if before != now else "the same"])  # fmt: skip
    over = ("points minus soft target cross-entropy", *(f"batch {batch}" for batch in found.batches))
    searches = ("minus soft target cross-entropy", "rate of three seeds", "seeds", "first test: rate of one seed")
    return [Table("noise-samples-tested", header, body), Table("noise-samples", over, sizes),
            Table("noise-samples-expected", searches, tests)]  # fmt: skip


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = find(rows)
    green, violet = LOOKS[OURS].colour, LOOKS[EXPECTED].colour
    looks = {CE: (LOOKS[CE].colour, "-"), "batch": (green, "-"), "sampled": (SERIES[4], "--"),
             "queue": (SERIES[0], ":"), "batch+classes": (SERIES[3], "-"), "expected": (violet, "-"),
             "expected-0": (violet, "--")}  # fmt: skip

    def draw(axes) -> None:
        for method, (colour, dash) in looks.items():
            top1 = {batch: of.mean(TOP1) for batch in found.batches if (of := found.of(method, batch))}
            gaps = {batch: gap for batch in found.batches if (gap := found.gap(method, batch))}
            for ax, points in zip(axes[:2], (top1, gaps), strict=True):
                curve(ax, points, name=METHODS[method], colour=colour, dash=dash)
        label(axes[0], "batch size", "top-1 (%)", log="x")
        label(axes[1], "batch size", "points minus soft target cross-entropy", log="x")
        by_number = {n: gap for n in found.numbers if (gap := found.gap("sampled", found.tested, n))}
        curve(axes[2], by_number, name="sampled", colour=SERIES[4])
        if of_batch := found.gap("batch", found.tested):
            level(axes[2], of_batch.mean, "the batch")
        label(axes[2], "sampled candidates M", "points minus cross-entropy", title=f"batch {found.tested}", log="x")

    return [Figure("noise-samples", draw, panels=3)]


EXPERIMENT = Experiment(
    name="noise-samples", question="Why does soft target InfoNCE fall behind at small batches, and what mends it?",
    minutes=130, presets=PRESETS, runs=runs, follow_up=follow_up, prepare=training.prepare, perform=perform,
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
