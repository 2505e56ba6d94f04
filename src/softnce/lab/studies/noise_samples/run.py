from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import NAMES, Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.claims import MARGIN
from softnce.lab.experiment.comparison import difference, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.probe import MIXED, Probe
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.study import Outcome, StudyConfig, timed
from softnce.lab.recipes.recipe import Head, Loss

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.experiment.statistics import Estimate
    from softnce.lab.report.page import Section

ORDER = 50
VERSION = 1
Method = Literal["soft-ce", "batch", "sampled", "queue", "batch+classes"]
METHODS: dict[Method, str] = {
    "soft-ce": "soft target cross-entropy",
    "batch": "batch",
    "sampled": "sampled",
    "queue": "batch and remembered",
    "batch+classes": "batch and vertices",
}
SHARPER = "sharper"
COUNTED = ("sampled", "queue", SHARPER)
"""What has a number M of candidates; the others have as many as there are."""
LOOKS = {
    "soft-ce": ("#E69F00", "s"),
    "batch": ("#009E73", "^"),
    "sampled": ("#0072B2", "D"),
    "queue": ("#56B4E9", "o"),
    "batch+classes": ("#CC79A7", "v"),
}
CONFIRMED: tuple[Method, ...] = ("soft-ce", "sampled")
"""What is trained with further seeds, besides the sharper candidates."""
FURTHER = 1000
"""Where further seeds begin: those below had a part in deciding what to train."""
TOP1 = percent("top1")


LARGE = 256
"""Batch size from which an epoch has so few steps that higher learning rates are worth a try."""


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds at every batch size")
    data: Source = option("cifar100", "data set")
    batches: tuple[int, ...] = option((4, 8, 32, 256, 1024), "batch sizes")
    num_candidates: int = option(4096, "M, sampled or remembered candidates")
    tested_batch: int = option(8, "batch size of the test of equivalence; also among the batch sizes")
    tested_seeds: int = option(20, "number of seeds there")
    tested: tuple[Method, ...] = option(("soft-ce", "batch", "sampled"), "what gets so many seeds")
    confirming_seeds: int = option(20, "further seeds there, on which the test is made again")
    numbers: tuple[int, ...] = option((32, 512, 16384), "other M tried there, sampled")
    sharper: float = option(0.2, "MixUp parameter of M sampled candidates nearer to the classes, tried there too")
    epochs: int = option(1, "passes over the training set")
    hidden: int = option(256, "width of the head's hidden layers")
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "learning rates tried")
    large_rates: tuple[float, ...] = option((1e-2,), f"learning rates tried besides from batch size {LARGE} on")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.batches or min(self.batches) < 2:
            raise ValueError(f"batches: got {list(self.batches)}, need numbers of at least 2")
        if self.tested_batch not in self.batches:
            raise ValueError(f"tested_batch: got {self.tested_batch}, need one of the batches {list(self.batches)}")
        search.check_rates(self.rates)
        if self.large_rates:
            search.check_rates(self.large_rates, "large_rates")
        if not self.sharper > 0:
            raise ValueError(f"sharper: got {self.sharper:g}, need a positive number")
        if self.confirming_seeds < 0:
            raise ValueError(f"confirming_seeds: got {self.confirming_seeds}, need 0 or more")
        for name, number in (("num_candidates", self.num_candidates), ("epochs", self.epochs), ("hidden", self.hidden),
                             ("tested_seeds", self.tested_seeds), *(("numbers", n) for n in self.numbers)):  # fmt: skip
            if number < 1:
                raise ValueError(f"{name}: got {number}, need at least 1")


PRESETS = {
    "quick": Config(
        seeds=2,
        data="digits",
        batches=(8, 64),
        num_candidates=128,
        tested_seeds=3,
        confirming_seeds=0,
        numbers=(32,),
        hidden=64,
        rates=(1e-3, 3e-3),
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Sharper(Probe):
    """A training against sampled candidates that are mixed otherwise than the targets."""

    candidate_mixup: float = 0.2


def loss(method: Method, num_candidates: int) -> Loss:
    if method == "soft-ce":
        return Loss("soft-ce")
    kept = num_candidates if method in ("sampled", "queue") else Loss().num_candidates
    return Loss("soft-target-info-nce", candidates=method, num_candidates=kept)


def setting(config: Config, method: Method, batch: int, num_candidates: int | None = None) -> Probe:
    return Probe(
        config.data, loss(method, num_candidates or config.num_candidates), MIXED, Head(hidden=config.hidden), batch,
        epochs=config.epochs,
    )  # fmt: skip


def sharper(config: Config) -> Sharper:
    probe = setting(config, "sampled", config.tested_batch)
    return Sharper(**{f.name: getattr(probe, f.name) for f in fields(probe)}, candidate_mixup=config.sharper)


def settings(config: Config) -> list[Probe]:
    """Every method at every batch size, the smallest first, which takes longest; then what is tried at one of them."""
    crossed = [setting(config, method, batch) for batch in sorted(config.batches) for method in METHODS]
    numbers = [setting(config, "sampled", config.tested_batch, number) for number in config.numbers]
    return [*crossed, *numbers, sharper(config)]


def rates(config: Config, batch: int) -> tuple[float, ...]:
    return (*config.rates, *config.large_rates) if batch >= LARGE else config.rates


def runs(config: Config) -> list[Probe]:
    return [trial for probe in settings(config) for trial in search.trials([probe], rates(config, probe.batch))]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Probe]:
    tested = [*(setting(config, method, config.tested_batch) for method in config.tested), sharper(config)]
    wanted = [(probe, config.seeds) for probe in settings(config)] + [(probe, config.tested_seeds) for probe in tested]
    todo = [run for probe, seeds in wanted for run in search.tuned([probe], rows, rates(config, probe.batch), seeds)]
    confirmed = [*(setting(config, method, config.tested_batch) for method in CONFIRMED), sharper(config)]
    again = search.tuned(confirmed, rows, rates(config, config.tested_batch), config.confirming_seeds)
    return [*todo, *(replace(run, seed=FURTHER + run.seed) for run in again)]


def execute(todo: Sequence[Probe], progress: "Progress") -> Iterator[Outcome]:
    data.prepare(run.data for run in todo)
    yield from one_per_core(partial(timed, perform), todo)


def perform(run: Probe) -> dict[str, Any]:
    return training.train(run, replace(run.targets, mixup=run.candidate_mixup) if isinstance(run, Sharper) else None)


# ------------------------------------------------------------------------------------------------------------- page


@dataclass(frozen=True)
class Found:
    """Trainings at their chosen rates, those of the data set and head with the most of them."""

    rows: dict[tuple[str, int, int], list[Row]]  # by method, batch size, number of candidates
    further: dict[tuple[str, int, int], list[Row]]  # the same with further seeds
    data: str
    num_candidates: int  # of the comparison over batch sizes
    tested_batch: int  # with the most seeds

    def of(self, method: str, batch: int, number: int | None = None, further: bool = False) -> list[Row]:
        number = self.num_candidates if number is None else number
        rows = self.further if further else self.rows
        return rows.get((method, batch, number if method in COUNTED else 0), [])

    @property
    def batches(self) -> list[int]:
        return sorted({batch for _, batch, _ in self.rows})

    @property
    def numbers(self) -> list[int]:
        return sorted(n for method, batch, n in self.rows if method == "sampled" and batch == self.tested_batch)

    def gap(self, method: str, batch: int, number: int | None = None, further: bool = False) -> "Estimate | None":
        """Points of top-1 over soft target cross-entropy, paired by seed."""
        ours, theirs = self.of(method, batch, number, further), self.of("soft-ce", batch, further=further)
        return difference(ours, theirs, TOP1) if ours and theirs else None


def find(rows: Sequence[Row]) -> Found:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        shared = {name: row.config[name] for name in ("data", "head", "epochs", "targets")}
        groups.setdefault(search.setting_key(shared), []).append(row)
    group = max(groups.values(), key=len)
    chosen: dict[tuple[str, int, int], list[Row]] = {}
    for found in _at_best_rates(group):
        config = found[0].config
        method = "soft-ce" if config["loss"]["name"] == "soft-ce" else config["loss"]["candidates"]
        method = SHARPER if "candidate_mixup" in config else method
        number = config["loss"]["num_candidates"] if method in COUNTED else 0
        key = method, config["batch"], number
        chosen[key] = max(chosen.get(key, []), found, key=len)  # of several mixings the one most often trained
    queued: Counter[int] = Counter()
    for (method, _, number), found in chosen.items():
        if method == "queue":
            queued[number] += len(found)
    most = max(chosen, key=lambda key: (len(chosen[key]), -key[1]), default=("", 0, 0))[1]
    first, further = {}, {}
    for key, runs in chosen.items():
        first[key] = [run for run in runs if run.config["seed"] < FURTHER]
        further[key] = [run for run in runs if run.config["seed"] >= FURTHER]
    return Found(first, further, group[0].config["data"], max(queued, key=queued.__getitem__, default=0), most)


def _at_best_rates(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The runs of each setting at its rate, of those that were tried at its batch size."""
    for batch in {row.config["batch"] for row in rows}:
        of_batch = [row for row in rows if row.config["batch"] == batch]
        yield from search.at_best_rate(of_batch, search.tried_rates(of_batch)).values()


def name_of(method: str) -> str:
    return "sampled, nearer to the classes" if method == SHARPER else METHODS[method]  # type: ignore[index]


def equivalence(gap: "Estimate", margin: float = MARGIN) -> float:
    """p of two one-sided tests: how surprising the gap would be if it were ±margin or more."""
    from scipy.stats import t

    if gap.count < 2:
        return 1.0
    error = (gap.high - gap.mean) / float(t.ppf(0.975, gap.count - 1))
    if error == 0:
        return float(abs(gap.mean) >= margin)
    return float(t.sf((margin - abs(gap.mean)) / error, gap.count - 1))


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Figure, Level, Line, Panel
    from softnce.lab.report.page import Section, Table, prose

    found = find(rows)
    name = NAMES[found.data]
    over_batches, gaps = [], []
    for method, label in METHODS.items():
        colour, marker = LOOKS[method]
        sizes = [batch for batch in found.batches if found.of(method, batch)]
        means = [mean(found.of(method, batch), TOP1) for batch in sizes]
        style = {"colour": colour, "marker": marker}
        bands = [e.mean for e in means], [e.low for e in means], [e.high for e in means]
        over_batches.append(Line(label, sizes, *bands, **style))  # type: ignore[arg-type]
        if method != "soft-ce":
            differences = [(batch, gap) for batch in sizes if (gap := found.gap(method, batch)) is not None]
            x = [batch for batch, _ in differences]
            bands = [g.mean for _, g in differences], [g.low for _, g in differences], [g.high for _, g in differences]
            gaps.append(Line(label, x, *bands, **style))  # type: ignore[arg-type]
    figure = Figure(
        "batches",
        prose(f"""A head on {name} features, {found.num_candidates} sampled or remembered candidates. Left: test
            accuracy, mean and 95 % interval over seeds. Right: the gap to soft target cross-entropy, paired by
            seed. {"Only candidates from the batch alone fall behind." if _only_batch_falls(found) else ""}"""),
        [
            Panel("accuracy", "batch size", "top-1 (%)", over_batches, log_x=True),
            Panel("gap", "batch size", "points of top-1", [*gaps, Level("none", 0.0)], log_x=True),
        ],
        panel_size=(4.6, 3.4),
    )  # fmt: skip
    batch = found.tested_batch
    tested = Table(
        [
            "candidates",
            "top-1 (%)",
            "gap to cross-entropy (points)",
            f"p, gap ≥ {MARGIN:g}",
            "on further seeds",
            "learning rate",
            "seeds",
        ],
        [
            [
                name_of(method) + (f", M = {number}" if number else ""),
                mean(of, TOP1).spread(2),
                signed(gap) if (gap := found.gap(method, batch, number)) and method != "soft-ce" else "–",
                f"{equivalence(gap):.2g}" if gap and gap.count > 1 and method != "soft-ce" else "–",
                f"{signed(again)}, p {equivalence(again):.2g}"
                if (again := found.gap(method, batch, number, further=True)) and method != "soft-ce"
                else "–",
                f"{of[0].config['lr']:g}",
                str(len(of)) + (f" + {len(more)}" if (more := found.of(method, batch, number, further=True)) else ""),
            ]
            for method in [*METHODS, SHARPER]
            for number in (found.numbers if method == "sampled" else [found.num_candidates if method in COUNTED else 0])
            if (of := found.of(method, batch, number))
        ],
        prose(f"""Batch size {batch}. Gap: mean and 95 % interval, paired by seed. p: two one-sided tests; below 0.05
            the loss is equivalent to soft target cross-entropy within {MARGIN:g} points. Further seeds had no part in
            deciding what to train."""),
    )
    sampled = [(n, found.gap("sampled", batch, n)) for n in found.numbers]
    kept = [(n, gap) for n, gap in sampled if gap is not None]
    from_batch = found.gap("batch", batch)
    numbers = Figure(
        "numbers",
        prose(f"""Batch size {batch}: the gap to soft target cross-entropy against the number of sampled candidates,
            mean and 95 % interval. The line is where the batch's own targets are the candidates."""),
        [
            Panel(
                "",
                "sampled candidates M",
                "points of top-1",
                [
                    Line("sampled", [n for n, _ in kept], [g.mean for _, g in kept], [g.low for _, g in kept],
                         [g.high for _, g in kept], colour=LOOKS["sampled"][0], marker="D"),
                    *([Level("candidates from the batch", from_batch.mean)] if from_batch else []),
                ],
                log_x=True,
            )
        ],
        panel_size=(5.2, 3.2),
    )  # fmt: skip
    return Section(
        "Small batches",
        prose(_summary(found)),
        [prose(_reading(found)), figure, tested, *([numbers] if len(kept) > 1 else [])],
        [
            prose(f"""Targets are smoothed (0.1) and mixed (MixUp 0.8, one share a batch). Sampled candidates are drawn
                afresh in every batch: two labels from the training frequencies, mixed by the same Beta distribution,
                each with its own share, smoothed alike; those nearer to the classes are mixed by Beta(a, a) with a
                smaller a. Remembered ones are the soft targets of earlier batches. AdamW, weight decay 0.05, cosine;
                learning rates {_rates(found)}, chosen for seed 0 on a tenth of the training set."""),
        ],
    )


def _rates(found: Found) -> str:
    used = sorted({row.config["lr"] for rows in found.rows.values() for row in rows})
    return f"used between {used[0]:g} and {used[-1]:g}" if used else "not chosen yet"


def _only_batch_falls(found: Found) -> bool:
    batch = found.tested_batch
    gap = found.gap("batch", batch)
    others = [found.gap(method, batch) for method in ("sampled", "queue", "batch+classes")]
    return gap is not None and gap.high < -MARGIN and all(g is not None and g.low > -MARGIN for g in others)


def _summary(found: Found) -> str:
    batch = found.tested_batch
    own, sampled = found.gap("batch", batch), found.gap("sampled", batch)
    if own is None or sampled is None:
        return "The runs are not complete."
    return f"""At batch size {batch}, soft target InfoNCE with candidates from the batch is {signed(own)} points from
        soft target cross-entropy; with {found.num_candidates} sampled candidates it is {signed(sampled)}.
        {"The drop is one of candidates, not of the loss." if _only_batch_falls(found) else ""}"""


def _reading(found: Found) -> str:
    batch = found.tested_batch
    said = []
    for method in ("batch", "sampled", SHARPER, "queue", "batch+classes"):
        gap = found.gap(method, batch)
        if gap is None:
            continue
        equal = equivalence(gap) < 0.05
        verdict = f"equivalent within {MARGIN:g} points" if equal else "not shown to be equivalent"
        if gap.high < -MARGIN:
            verdict = f"behind by more than {MARGIN:g} points"
        said.append(f"{name_of(method)}: {signed(gap)} ({verdict}{_again(found.gap(method, batch, further=True))})")
    largest = max(found.batches)
    text = f"Gap to soft target cross-entropy at batch size {batch}: {'; '.join(said)}."
    gap = found.gap("batch", largest)
    if gap is not None and largest != batch:
        text += f" At {largest}, from the batch alone: {signed(gap)}."
    reached = [(n, g) for n in found.numbers if (g := found.gap("sampled", batch, n)) is not None]
    if len(reached) > 1:
        worst, best = min(reached, key=lambda pair: pair[1].mean), max(reached, key=lambda pair: pair[1].mean)
        text += f""" Of sampled ones there can be too few: with {worst[0]} the gap is {signed(worst[1])}, with
            {best[0]} it is {signed(best[1])}."""
    return text


def _again(gap: "Estimate | None") -> str:
    """The test on further seeds, where it was made."""
    return "" if gap is None else f"; on {gap.count} further seeds {signed(gap)}, p = {equivalence(gap):.2g}"


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding, ahead, on_par
    from softnce.lab.report.page import counted

    found = find(rows)
    if not found.rows or min(found.batches) == max(found.batches) or found.data == "digits":
        return {}
    answers = {}
    name = NAMES[found.data]
    batch, largest = found.tested_batch, max(found.batches)

    def on(size: int) -> str:
        return f"{name} features, batch {size}, {counted(len(found.of('batch', size)), 'seed')}"

    drop, par, mended = found.gap("batch", batch), found.gap("batch", largest), found.gap("sampled", batch)
    if drop is not None:
        answers["small-batch-drop"] = Finding(f"{signed(drop)} points", on(batch), ahead(-drop))
    if par is not None:
        answers["large-batch-par"] = Finding(f"{signed(par)} points", on(largest), on_par(par))
    if mended is not None and mended.count > 1:
        ways = {
            way: (found.gap(method, batch), found.gap(method, batch, further=True))
            for way, method in (("as targets are made", "sampled"), ("nearer to the classes", SHARPER))
        }
        said = [
            f"{signed(gap)} points with {found.num_candidates} sampled {way} "
            f"(p = {equivalence(gap):.2g}{_again(again)})"
            for way, (gap, again) in ways.items()
            if gap is not None
        ]
        answers["small-batch-mended"] = Finding(
            f"{'; '.join(said)}; p of a gap of {MARGIN:g} or more", on(batch), "beyond"
        )
    return answers
