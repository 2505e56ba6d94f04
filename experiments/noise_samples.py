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
from experiments.harness.search import chosen, trials, tuned
from experiments.harness.statistics import Estimate, alike, largest
from experiments.losses import Loss
from experiments.training import MIXED, Probe

METHODS = {  # name, loss, colour and dash of its curve
    CE: ("soft target cross-entropy", Loss(CE), LOOKS[CE].colour, "-"),
    "batch": ("the batch", Loss(OURS), LOOKS[OURS].colour, "-"),
    "sampled": ("sampled", Loss(OURS, candidates="sampled"), SERIES[4], "--"),
    "queue": ("batch and remembered", Loss(OURS, candidates="queue"), SERIES[0], ":"),
    "batch+classes": ("batch and vertices", Loss(OURS, candidates="batch+classes"), SERIES[3], "-"),
    "expected": ("expected InfoNCE", Loss(EXPECTED), LOOKS[EXPECTED].colour, "-"),
    "expected-0": ("expected InfoNCE, m = 0", Loss(EXPECTED, noise_count=0), LOOKS[EXPECTED].colour, "--"),
    "sharper": ("sampled, nearer to the classes", Loss(OURS, candidates="sampled"), "", ""),  # no curve
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


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds at every batch size", least=1)
    tested_seeds: int = option(20, f"number of seeds of what is tested at batch {TESTED}", least=1)
    further_seeds: int = option(20, "further seeds, on which the tests are made again", least=0)
    data: Source = option("cifar100", "data set")
    batches: tuple[int, ...] = option((4, TESTED, 32, 256, 1024), "batch sizes", least=2, fewest=1)
    numbers: tuple[int, ...] = option((32, 512, 16384), f"other M tried at batch {TESTED}", least=1)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "rates tried; from batch 256 on also 1e-2", above=0, fewest=1)


@dataclass(frozen=True)
class Run(Probe):
    """One training of the head."""

    candidate_mixup: float | None = later(None, "MixUp of sampled candidates, where it differs from the targets'")


def setting(options: Options, method: str, batch: int = TESTED, number: int = NUMBER, epochs: int = 1) -> Run:
    loss, mixup = replace(METHODS[method][1], num_candidates=number), 0.2 if method == "sharper" else None
    return Run(options.data, loss, MIXED, batch=batch, epochs=epochs, candidate_mixup=mixup)


def settings(options: Options) -> list[Run]:
    """Every method at every batch size, small ones first, which take longest; then what is tried at one of them."""
    methods = [CE, "batch", "sampled", "queue", "batch+classes"]
    return [
        *(setting(options, m, size) for size in sorted(options.batches) for m in methods + EXPECTED_AT.get(size, [])),
        *(setting(options, "sampled", number=number) for number in options.numbers),
        setting(options, "sharper"),
    ]


def longer(options: Options) -> list[Run]:
    """Six epochs at the largest batch size, where one has few steps."""
    return [setting(options, method, max(options.batches), epochs=6) for method in (CE, "batch")]


def rates(options: Options, run: Run) -> tuple[float, ...]:
    if run.epochs > 1:
        return 1e-3, 3e-3, 1e-2, 3e-2
    return (*options.rates, 1e-2) if run.batch >= 256 else options.rates


def runs(options: Options) -> list[Run]:
    compared = [setting(options, method) for method in (CE, "expected")]
    searched = ((settings(options), 1), (compared, min(SEARCHED, options.seeds)), (longer(options), 1))
    return [run for of, seeds in searched for one in of for run in trials([one], rates(options, one), seeds)]


def follow_up(options: Options, rows: Sequence[Row]) -> list[Run]:
    tested = [setting(options, method) for method in (CE, "sampled", "sharper")]
    expected = [setting(options, m, size) for size, of in EXPECTED_AT.items() for m in (CE, *of)]

    def at_best(wanted: Sequence[Run], seeds: int) -> list[Run]:
        return [r for one in wanted for r in tuned([one], rows, rates(options, one), seeds, searched=SEARCHED)]

    return [
        *at_best(settings(options), options.seeds),
        *at_best([*tested, setting(options, "batch"), *longer(options)], options.tested_seeds),
        *(replace(run, seed=FURTHER + run.seed) for run in at_best(tested + expected, options.further_seeds)),
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
        settings, config = {}, of_batch[0].config
        for setting in chosen(of_batch, searched=searched):
            for is_further in (False, True):
                if kept := setting.of_seeds(lambda seed, is_further=is_further: (seed >= FURTHER) == is_further):
                    settings[method_of(kept.config), kept.config["loss"]["num_candidates"], is_further] = kept
        found[config["batch"]] = Compared("", f"{NAMES[config['data']]} features", of_batch, settings)
    return dict(sorted(found.items()))


def gap(part: Compared, method: str, number: int = NUMBER, further: bool = False) -> Estimate | None:
    """Points of top-1 minus soft target cross-entropy's."""
    return part.gap((method, number, further), (CE, NUMBER, further)) if method != CE else None


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, answers = parts(rows), {}
    if found[TESTED].is_quick:
        return {}
    tested, (batch, ce) = found[TESTED], (("batch", NUMBER, False), (CE, NUMBER, False))
    if gap(tested, "batch"):
        answers["small-batch-drop"] = tested.decided(batch, ce, below=0)
    for more in parts(rows, are_longer=True).values():
        if gap(more, "batch"):
            answers["large-batch-par"] = more.decided(batch, ce, **ON_PAR)
    if (nearer := gap(tested, "sharper", further=True)) and nearer.count > 1:
        on = f"{tested.data}, batch {TESTED}, {nearer.count} further seeds"
        answers["small-batch-mended"] = decided(nearer, on=on, new=True, **ON_PAR)
    gaps = {
        f"at batch {size}{', m = 0' * ('0' in method)}": e
        for size, part in found.items()
        for method in EXPECTED_AT.get(size, [])
        if (e := gap(part, method, further=True)) and e.count > 1
    }
    if gaps:
        ours = "; ".join(f"{e.signed()} {where}" for where, e in gaps.items())
        on = f"{tested.data}, {min(e.count for e in gaps.values())} further seeds"
        answers["small-batch-expected"] = Finding(ours, on, verdict(*gaps.values(), new=True, **ON_PAR))
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    found, first = parts(rows), parts(rows, searched=1)
    sizes, tested, tests, order = [], [], [], list(METHODS)
    for method, (name, *_) in METHODS.items():
        if any(gaps := [gap(part, method) for part in found.values()]):
            sizes.append([name, *map(spread, gaps)])
    for method, number in sorted(
        {key[:2] for key in found[TESTED].settings}, key=lambda key: (order.index(key[0]), key)
    ):
        of, counts = found[TESTED].settings[method, number, False], method in ("sampled", "queue", "sharper")
        own, further = (spread(gap(found[TESTED], method, number, which)) for which in (False, True))
        name = METHODS[method][0] + (f", M = {number:,}" if counts else "")
        tested.append([name, of.mean(TOP1).spread(2), own, str(len(of)), further, f"{of.lr:g}"])
    for size, part in found.items():
        for method in EXPECTED_AT.get(size, []):
            now, before = (gap(of, method, further=True) for of in (part, first[size]))
            if now and before:
                old = spread(before) if before != now else "the same"
                tests.append([f"batch {size}, {METHODS[method][0]}", spread(now), str(now.count), old])
    return [
        Table("noise-samples", ("points minus soft target cross-entropy", *(f"batch {n}" for n in found)), sizes),
        Table("noise-samples-tested", ("candidates", "top-1 (%)", "minus soft target cross-entropy (points)", "seeds",
                                       "further seeds", "rate"), tested),
        Table("noise-samples-expected", ("minus soft target cross-entropy", "rate of three seeds", "seeds",
                                         "first test: rate of one seed"), tests),
    ]  # fmt: skip


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = parts(rows)

    def draw(axes) -> None:
        for method, (name, _, colour, dash) in list(METHODS.items())[:-1]:
            gaps = {size: e for size, part in found.items() if (e := gap(part, method))}
            curve(axes[0], gaps, name=name, colour=colour, dash=dash)
        unit = "points of top-1 minus\nsoft target cross-entropy"
        label(axes[0], "batch size", unit, log="x", xticks=list(found))
        tested = found[TESTED]
        numbers = sorted(n for method, n, is_further in tested.settings if method == "sampled" and not is_further)
        by_number = {n: e for n in numbers if (e := gap(tested, "sampled", n))}
        curve(axes[1], by_number, name="sampled", colour=SERIES[4])
        if of_batch := gap(tested, "batch"):
            level(axes[1], of_batch.mean, "the batch", LOOKS[OURS].colour)
        label(axes[1], "sampled candidates M", unit, title=f"batch {TESTED}", log="x", xticks=numbers)

    return [Figure("noise-samples", draw, panels=2, size=(5.4, 3.2))]


EXPERIMENT = Experiment(
    name="noise-samples", question="Why does soft target InfoNCE fall behind at small batches, and what mends it?",
    minutes=130, presets={"quick": Options(2, 3, 0, "digits", (8, 64), (32,), (1e-3, 3e-3)), "paper": Options()},
    runs=runs, follow_up=follow_up, prepare=training.prepare, perform=perform, findings=findings, tables=tables,
    figures=figures,
)  # fmt: skip
