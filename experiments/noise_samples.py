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
from dataclasses import dataclass, replace
from typing import Any

from experiments import training
from experiments.data.features import NAMES, Source
from experiments.features import CE, EXPECTED, OURS, TOP1, Compared, spread
from experiments.harness import LOOKS, SERIES, Experiment, Figure, Row, Table, curve, label, later, level, option
from experiments.harness.claims import ON_PAR, Finding, decided, verdict
from experiments.harness.search import Setting, chosen, trials, tuned
from experiments.harness.statistics import Estimate, alike, largest
from experiments.losses import Loss
from experiments.training import MIXED, Probe

METHODS = {
    CE: ("soft target cross-entropy", Loss(CE)),
    "batch": ("the batch", Loss(OURS)),
    "sampled": ("sampled", Loss(OURS, candidates="sampled")),
    "queue": ("batch and remembered", Loss(OURS, candidates="queue")),
    "batch+classes": ("batch and vertices", Loss(OURS, candidates="batch+classes")),
    "expected": ("expected InfoNCE", Loss(EXPECTED)),
    "expected-0": ("expected InfoNCE, m = 0", Loss(EXPECTED, noise_count=0)),
    "sharper": ("sampled, nearer to the classes", Loss(OURS, candidates="sampled")),
}
NUMBER = 4096
"""M, the number of sampled or remembered candidates, unless another is named."""
TESTED = 8
"""The batch size of the tests."""
EXPECTED_AT = {TESTED: ["expected"], 256: ["expected", "expected-0"]}
"""Expected InfoNCE is trained at these batch sizes only."""
FURTHER = 1000
"""The first seed that had no part in a decision."""
SEARCHED = 3
"""Seeds whose mean chooses a rate, as far as they were trained at every rate."""
LONGER_RATES = (1e-3, 3e-3, 1e-2, 3e-2)


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds at every batch size", least=1)
    tested_seeds: int = option(20, f"number of seeds of what is tested at batch {TESTED}", least=1)
    further_seeds: int = option(20, "further seeds, on which the tests are made again", least=0)
    data: Source = option("cifar100", "data set")
    batches: tuple[int, ...] = option((4, TESTED, 32, 256, 1024), "batch sizes", least=2, fewest=1)
    numbers: tuple[int, ...] = option((32, 512, 16384), f"other M tried at batch {TESTED}", least=1)
    longer_epochs: int = option(6, "passes of longer trainings at the largest batch size; 0 omits them", least=0)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "rates tried; from batch 256 on also 1e-2", above=0, fewest=1)


@dataclass(frozen=True)
class Run(Probe):
    """One training of the head."""

    candidate_mixup: float | None = later(None, "MixUp of sampled candidates, where it differs from the targets'")


def setting(options: Options, method: str, batch: int, number: int = NUMBER, epochs: int = 1) -> Run:
    loss, mixup = replace(METHODS[method][1], num_candidates=number), 0.2 if method == "sharper" else None
    return Run(options.data, loss, MIXED, batch=batch, epochs=epochs, candidate_mixup=mixup)


def settings(options: Options) -> list[Run]:
    """Every method at every batch size, small ones first, which take longest; then what is tried at one of them."""
    methods = [CE, "batch", "sampled", "queue", "batch+classes"]
    return [
        *(setting(options, m, size) for size in sorted(options.batches) for m in methods + EXPECTED_AT.get(size, [])),
        *(setting(options, "sampled", TESTED, number) for number in options.numbers),
        setting(options, "sharper", TESTED),
    ]


def longer(options: Options) -> list[Run]:
    """More epochs at the largest batch size, where one has few steps."""
    epochs = options.longer_epochs
    return [setting(options, method, max(options.batches), epochs=epochs) for method in (CE, "batch") if epochs]


def rates(options: Options, batch: int) -> tuple[float, ...]:
    return (*options.rates, 1e-2) if batch >= 256 else options.rates


def runs(options: Options) -> list[Run]:
    found = [run for probe in settings(options) for run in trials([probe], rates(options, probe.batch))]
    compared = [setting(options, method, TESTED) for method in (CE, "expected")]
    found += trials(compared, options.rates, min(SEARCHED, options.seeds))
    return found + trials(longer(options), LONGER_RATES)


def follow_up(options: Options, rows: Sequence[Row]) -> list[Run]:
    tested = [setting(options, method, TESTED) for method in (CE, "sampled", "sharper", "batch")]
    expected = [setting(options, m, size) for size, of in EXPECTED_AT.items() for m in (CE, *of)]

    def at_best(probes: Sequence[Run], seeds: int) -> list[Run]:
        return [r for p in probes for r in tuned([p], rows, rates(options, p.batch), seeds, searched=SEARCHED)]

    return [
        *at_best(settings(options), options.seeds),
        *at_best(tested, options.tested_seeds),
        *tuned(longer(options), rows, LONGER_RATES, options.tested_seeds),
        *(replace(run, seed=FURTHER + run.seed) for run in at_best(tested[:3] + expected, options.further_seeds)),
    ]


def perform(run: Run) -> dict[str, Any]:
    return training.train(run, replace(run.targets, mixup=run.candidate_mixup) if run.candidate_mixup else None)


def method_of(config: dict[str, Any]) -> str:
    loss = config["loss"]
    if loss["name"] == CE:
        return CE
    if loss["name"] == EXPECTED:
        return "expected-0" if loss.get("noise_count") == 0 else "expected"
    return "sharper" if "candidate_mixup" in config else str(loss["candidates"])


def parts(rows: Sequence[Row], are_longer: bool = False, searched: int = SEARCHED) -> dict[int, Compared]:
    """By batch size, the trainings of one epoch, or the longer ones, at the rates that the first seeds choose.

    They are named by method, M, and whether they are on the further seeds.
    """
    group = largest([row for row in rows if (row.config["epochs"] > 1) == are_longer], "data", "epochs")
    found = {}
    for of_batch in alike(group, "batch"):
        settings: dict[tuple[str, int, bool], Setting] = {}
        for setting in chosen(of_batch, searched=searched):
            for is_further in (False, True):
                kept = setting.of_seeds(lambda seed, is_further=is_further: (seed >= FURTHER) == is_further)
                if kept:
                    settings[method_of(kept.config), kept.config["loss"]["num_candidates"], is_further] = kept
        config = of_batch[0].config
        found[config["batch"]] = Compared("", f"{NAMES[config['data']]} features", of_batch, settings)
    return dict(sorted(found.items()))


def gap(part: Compared, method: str, number: int = NUMBER, further: bool = False) -> Estimate | None:
    """Points of top-1 minus soft target cross-entropy's."""
    return part.gap((method, number, further), (CE, NUMBER, further)) if method != CE else None


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, answers = parts(rows), {}
    if TESTED not in found or rows[0].config["data"] == "digits":
        return {}
    tested, (batch, ce) = found[TESTED], (("batch", NUMBER, False), (CE, NUMBER, False))
    if gap(tested, "batch"):
        answers["small-batch-drop"] = tested.decided(batch, ce, below=0)
    for more in parts(rows, are_longer=True, searched=1).values():
        if gap(more, "batch"):
            answers["large-batch-par"] = more.decided(batch, ce, **ON_PAR)
    if (nearer := gap(tested, "sharper", further=True)) and nearer.count > 1:
        on = f"{tested.data}, batch {TESTED}, {nearer.count} further seeds"
        answers["small-batch-mended"] = decided(nearer, on=on, new=True, **ON_PAR)
    gaps = {}
    for size, part in found.items():
        for method in EXPECTED_AT.get(size, []):
            if (e := gap(part, method, further=True)) and e.count > 1:
                gaps[f"at batch {size}{', m = 0' * ('0' in method)}"] = e
    if gaps:
        ours = "; ".join(f"{e.signed()} {where}" for where, e in gaps.items())
        on = f"{tested.data}, {min(e.count for e in gaps.values())} further seeds"
        answers["small-batch-expected"] = Finding(ours, on, verdict(*gaps.values(), new=True, **ON_PAR))
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    found, first, order = parts(rows), parts(rows, searched=1), list(METHODS)
    sizes = [
        [METHODS[method][0], *(spread(gap(part, method)) for part in found.values())]
        for method in order
        if any(gap(part, method) for part in found.values())
    ]
    over = ("points minus soft target cross-entropy", *(f"batch {size}" for size in found))
    made = [Table("noise-samples", over, sizes), *([_tested(found[TESTED])] if TESTED in found else [])]
    tests = []
    for size, part in found.items():
        for method in EXPECTED_AT.get(size, []):
            now, before = (gap(of, method, further=True) for of in (part, first[size]))
            if now and before:
                old = spread(before) if before != now else "the same"
                tests.append([f"batch {size}, {METHODS[method][0]}", spread(now), str(now.count), old])
    searches = ("minus soft target cross-entropy", "rate of three seeds", "seeds", "first test: rate of one seed")
    return [*made, Table("noise-samples-expected", searches, tests)]


def _tested(part: Compared) -> Table:
    """Every method and M, on the first and on the further seeds."""
    body = []
    for method, number, is_further in sorted(part.settings, key=lambda key: (list(METHODS).index(key[0]), key)):
        if not is_further:
            of, counts = part.settings[method, number, False], method in ("sampled", "queue", "sharper")
            first, further = (spread(gap(part, method, number, which)) for which in (False, True))
            name = METHODS[method][0] + (f", M = {number:,}" if counts else "")
            body.append([name, of.mean(TOP1).spread(2), first, str(len(of)), further, f"{of.lr:g}"])
    header = ("candidates", "top-1 (%)", "minus soft target cross-entropy (points)", "seeds", "further seeds", "rate")
    return Table("noise-samples-tested", header, body)


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = parts(rows)
    green, violet = LOOKS[OURS].colour, LOOKS[EXPECTED].colour
    looks = {CE: (LOOKS[CE].colour, "-"), "batch": (green, "-"), "sampled": (SERIES[4], "--"),
             "queue": (SERIES[0], ":"), "batch+classes": (SERIES[3], "-"), "expected": (violet, "-"),
             "expected-0": (violet, "--")}  # fmt: skip

    def draw(axes) -> None:
        for method, (colour, dash) in looks.items():
            key = (method, NUMBER, False)
            top1 = {size: part.settings[key].mean(TOP1) for size, part in found.items() if key in part.settings}
            gaps = {size: e for size, part in found.items() if (e := gap(part, method))}
            for ax, points in zip(axes[:2], (top1, gaps), strict=True):
                curve(ax, points, name=METHODS[method][0], colour=colour, dash=dash)
        label(axes[0], "batch size", "top-1 (%)", log="x")
        label(axes[1], "batch size", "points minus soft target cross-entropy", log="x")
        tested = found[TESTED]
        numbers = sorted(n for method, n, is_further in tested.settings if method == "sampled" and not is_further)
        by_number = {n: e for n in numbers if (e := gap(tested, "sampled", n))}
        curve(axes[2], by_number, name="sampled", colour=SERIES[4])
        if of_batch := gap(tested, "batch"):
            level(axes[2], of_batch.mean, "the batch")
        label(axes[2], "sampled candidates M", "points minus cross-entropy", title=f"batch {TESTED}", log="x")

    return [Figure("noise-samples", draw, panels=3)] if TESTED in found else []


EXPERIMENT = Experiment(
    name="noise-samples", question="Why does soft target InfoNCE fall behind at small batches, and what mends it?",
    minutes=130, presets={"quick": Options(2, 3, 0, "digits", (8, 64), (32,), 0, (1e-3, 3e-3)), "paper": Options()},
    runs=runs, follow_up=follow_up, prepare=training.prepare, perform=perform, findings=findings, tables=tables,
    figures=figures,
)  # fmt: skip
