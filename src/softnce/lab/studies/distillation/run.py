"""Teacher and student: which losses learn from a teacher's outputs, and how many classes of them are needed?

The paper leaves distillation to future work. The teacher is an ensemble of three-layer heads on all features of the
whole training part; its outputs are written to a file (softnce.lab.teacher). The student is a linear head on a part of
the features and a tenth of the samples, so there is room to help. It learns from labels, or from the teacher's k
likeliest classes (1, 2, 5, all), where the mass of the others is given to the k (renormalise) or spread over all
classes, at teacher temperatures 1 and 2; with the five losses, and with means of n labels drawn from the teacher.
Hard losses take the teacher's first class. Look for what each loss gains over itself on labels, and at temperature 2.

The paper preset needs CIFAR-100 in the folder that SOFTNCE_DATA names; the quick one uses digits.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import Source
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import Value, difference, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.studies.distillation import training as distillation
from softnce.lab.studies.distillation.training import HARD, Method, Student, Teacher

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding, Verdict
    from softnce.lab.experiment.statistics import Estimate
    from softnce.lab.report.charts import Mark
    from softnce.lab.report.page import Section, Table

ORDER = 70
VERSION = 1
SOFT: tuple[Method, ...] = ("soft-ce", "soft-dist-info-nce", "soft-target-info-nce", "averaged")
SMOOTHING = 0.1
CE: Method = "soft-ce"
OURS: Method = "soft-target-info-nce"


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds of the student: initial weights, batches and draws; the teacher is one")
    data: Source = option("cifar100", "data set")
    teacher_hidden: int = option(512, "width of the teacher's hidden layers")
    teacher_epochs: int = option(3, "passes of the teacher over the training part")
    teacher_batch: int = option(256, "rows in a batch of the teacher")
    members: int = option(3, "heads in the teacher's ensemble")
    features: int = option(320, "features the student sees")
    share: float = option(0.1, "share of the training part the student is trained on")
    batch: int = option(128, "rows in a batch of the student, which are also the candidates")
    epochs: int = option(15, "passes of the student over its samples")
    k: tuple[int, ...] = option((1, 2, 5, 0), "likeliest classes of the teacher that the student sees; 0 for all")
    temperatures: tuple[float, ...] = option((1.0, 2.0), "of the teacher; both remainders are tried for the first")
    draws: int = option(2, "n of averaged draws")
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "learning rates tried for each setting")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("teacher_hidden", "teacher_epochs", "teacher_batch", "members", "features", "batch", "epochs", "draws")
        for name in whole:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, need at least 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share: got {self.share:g}, need more than 0 and at most 1")
        if not self.k or min(self.k) < 0:
            raise ValueError(f"k: got {list(self.k)}, need numbers of at least 0, which stands for all")
        for name in ("temperatures", "rates"):
            values = getattr(self, name)
            if not values or min(values) <= 0:
                raise ValueError(f"{name}: got {list(values)}, need one or more positive numbers")


PRESETS = {
    "quick": Config(
        data="digits", teacher_hidden=64, teacher_epochs=8, teacher_batch=64, members=2, features=24, share=0.1,
        batch=32, epochs=15, k=(1, 2, 0), temperatures=(1.0,), rates=(3e-2,),
    ),
    "paper": Config(),
}  # fmt: skip
Run = Teacher | Student


def teacher(config: Config) -> Teacher:
    return Teacher(config.data, config.members, config.teacher_hidden, config.teacher_batch, config.teacher_epochs)


def settings(config: Config) -> list[Student]:
    plain = Student(
        teacher(config), "nll", None,
        features=config.features, share=config.share, batch=config.batch, epochs=config.epochs,
    )  # fmt: skip
    found = [replace(plain, method=method) for method in HARD]
    found += [replace(plain, method=method, smoothing=SMOOTHING, n=_n(config, method)) for method in SOFT]
    found += [replace(plain, method=method, k=1) for method in HARD]
    spreading: tuple[Literal["spread"], Literal["renormalise"]] = ("spread", "renormalise")
    for method in SOFT:
        for temperature in config.temperatures:
            for remainder in spreading[: 2 if temperature == config.temperatures[0] else 1]:
                for k in config.k:
                    if k or remainder == "spread":  # of all classes nothing remains
                        soft = replace(plain, method=method, k=k, remainder=remainder, temperature=temperature)
                        found.append(replace(soft, n=_n(config, method)))
    for temperature in config.temperatures[1:]:  # a control: as soft as the first class spread, but all rows alike
        soft = replace(plain, k=1, remainder="shared", temperature=temperature)
        found += [replace(soft, method=CE), replace(soft, method=OURS)]
    return found


def _n(config: Config, method: Method) -> int:
    return config.draws if method == "averaged" else 0


def runs(config: Config) -> list[Run]:
    return [teacher(config), *search.trials(settings(config), config.rates)]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Student]:
    return search.tuned(settings(config), students(rows), config.rates, config.seeds)


def students(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "method" in row.config]


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    """The teacher first, here; then its students, one a core. A resumed study trains the same teacher again."""
    pupils = [run for run in todo if isinstance(run, Student)]
    wanted = dict.fromkeys([*(run for run in todo if isinstance(run, Teacher)), *(run.teacher for run in pupils)])
    data.prepare(run.data for run in wanted)
    logits = {}
    for run in wanted:
        started = time.perf_counter()
        result, logits[run] = distillation.teach(run)
        if run in todo:
            yield Outcome(run, result, time.perf_counter() - started)
    with distillation.taught(pupils, logits) as files:
        yield from one_per_core(
            perform, [(run, files.get((run.teacher, run.temperature)) if run.k is not None else None) for run in pupils]
        )


def perform(run: tuple[Student, Path | None]) -> Outcome:
    started = time.perf_counter()
    return Outcome(run[0], distillation.learn(*run), time.perf_counter() - started)


# ------------------------------------------------------------------------------------------------------------- page

DRAWN, PLAIN = "soft-dist-info-nce", "nll"
AVERAGED = "#56B4E9"
Lesson = tuple[int | None, str, float]  # k (None: labels, 0: all), remainder, temperature
LABELS: Lesson = (None, "renormalise", 1.0)


@dataclass(frozen=True)
class Lessons:
    """The students at their chosen learning rates, by method and by what they learned from; and their teacher."""

    teacher: Row | None
    rates: list[float]
    chosen: dict[tuple[str, Lesson], list[Row]]

    @property
    def config(self) -> dict[str, Any]:
        return next(iter(self.chosen.values()))[0].config

    @property
    def seeds(self) -> int:
        return min(map(len, self.chosen.values()))

    def has(self, *methods: str, lesson: Lesson) -> bool:
        return all((method, lesson) in self.chosen for method in methods)

    def lessons(self, method: str) -> list[Lesson]:
        """All but the labels."""
        return [lesson for other, lesson in self.chosen if other == method and lesson != LABELS]

    def best(self, method: str) -> Lesson:
        """The lesson that does best on the held-out part."""
        return max(self.lessons(method), key=lambda lesson: mean(self.chosen[method, lesson], HELD_OUT).mean)

    def gain(self, method: str, lesson: Lesson, over: str | None = None) -> "Estimate":
        """Top-1 minus that of the method (or ``over``) on labels."""
        return difference(self.chosen[method, lesson], self.chosen[over or method, LABELS], TOP1)


TOP1, HELD_OUT = percent("top1"), percent("top1", "held_out")
ALL: Lesson = (0, "spread", 1.0)


def lessons(rows: Sequence[Row]) -> Lessons | None:
    """The largest group of students with one teacher; images before digits."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in students(rows):
        same = ("teacher", "features", "share", "batch", "epochs")
        groups[search.setting_key({name: row.config[name] for name in same})].append(row)
    if not groups:
        return None
    group = max(groups.values(), key=lambda group: (group[0].config["teacher"]["data"] != "digits", len(group)))
    rates = search.tried_rates(group)
    chosen = {}
    for found in search.at_best_rate(group, rates).values():
        config = found[0].config
        chosen[config["method"], (config["k"], config["remainder"], config["temperature"])] = found
    masters = [row for row in rows if row.config == group[0].config["teacher"]]
    return Lessons(masters[0] if masters else None, rates, chosen) if chosen else None


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Figure, Panel
    from softnce.lab.report.page import Section, counted, prose

    title = "Learning from a teacher"
    found = lessons(rows)
    if found is None:
        return Section(title, "The runs of this study are not finished yet.", [])
    temperatures = sorted({lesson[2] for _, lesson in found.chosen})
    kinds = [("spread", temperatures[0]), ("renormalise", temperatures[0]), *(("spread", t) for t in temperatures[1:])]
    panels = []
    for remainder, temperature in kinds:
        words = {"spread": "rest spread over all", "renormalise": "rest given to the k"}[remainder]
        name = f"{words}, temperature {temperature:g}"
        marks = _marks(found, remainder, temperature)
        axes = "classes of the teacher that are kept (k)", "student's top-1 (%)"
        panels.append(Panel(name, *axes, marks, log_x=True, y_range=_range(found)))
    figure = Figure(
        "topk",
        prose(f"""The student's test accuracy against how much of the teacher it sees; mean and 95 % interval over
            {counted(found.seeds, "seed")}. The dashed line is the student that NLL trains on labels."""),
        panels,
        panel_size=(4.3, 3.4),
    )
    text = [prose(paragraph) for paragraph in _reading(found)]
    return Section(title, prose(_summary(found)), [figure, *text, _table(found)], [prose(_method(found))])


def _marks(found: Lessons, remainder: str, temperature: float) -> "list[Mark]":
    from softnce.lab.report.charts import Level, Line

    marks: list[Mark] = []
    for method in (CE, DRAWN, "averaged", OURS):
        ks = [k for k, r, t in found.lessons(method) if t == temperature and (r == remainder or k == 0)]
        ks.sort(key=lambda k: k or _num_classes(found))
        cells = [found.chosen[method, (k, remainder if k else "spread", temperature)] for k in ks]
        estimates = [mean(runs, TOP1) for runs in cells]
        x = [k or _num_classes(found) for k in ks]
        y, low, high = ([getattr(e, name) for e in estimates] for name in ("mean", "low", "high"))
        if method == "averaged":
            marks.append(Line(_name(found, method), x, y, low, high, colour=AVERAGED, marker="x"))
        else:
            marks.append(Line.of_loss(method, x, y, low, high))
    if found.has(PLAIN, lesson=LABELS):
        marks.append(Level("labels, NLL", mean(found.chosen[PLAIN, LABELS], TOP1).mean))
    return marks


def _range(found: Lessons) -> tuple[float, float]:
    """One scale for all panels."""
    ends = [end for runs in found.chosen.values() for e in [mean(runs, TOP1)] for end in (e.low, e.high)]
    return min(ends) - 0.5, max(ends) + 0.5


def _num_classes(found: Lessons) -> int:
    return {"digits": 10, "cifar100": 100, "tiny-imagenet": 200}[found.config["teacher"]["data"]]


def _table(found: Lessons) -> "Table":
    from softnce.lab.report.page import Table, counted, prose

    order = [PLAIN, "info-nce", CE, DRAWN, "averaged", OURS]
    cells = sorted(found.chosen, key=lambda cell: (order.index(cell[0]), cell[1][2], cell[1][1], cell[1][0] or 999))
    cells.sort(key=lambda cell: (order.index(cell[0]), cell[1] != LABELS))
    nll: Value = lambda row: row.result["test"]["nll"]  # noqa: E731
    return Table(
        ["loss", "learns from", "top-1 (%)", "gain over labels", "ECE (%)", "NLL (nats)", "learning rate"],
        [
            [
                _name(found, method),
                _lesson(method, lesson),
                mean(runs, TOP1).spread(2),
                signed(found.gain(method, lesson)) if lesson != LABELS and found.has(method, lesson=LABELS) else "",
                mean(runs, percent("ece")).spread(1),
                mean(runs, nll).spread(3),
                f"{runs[0].config['lr']:g}",
            ]
            for method, lesson in cells
            for runs in [found.chosen[method, lesson]]
        ],
        prose(f"""The student's test scores, mean ± half of the 95 % interval over {counted(found.seeds, "seed")}. Gain:
            over the same loss on labels, paired by seed, in points."""),
    )


def _name(found: Lessons, method: str) -> str:
    from softnce.lab.report.style import LOSSES

    if method != "averaged":
        return LOSSES[method].name
    n = max(row.config["n"] for runs in found.chosen.values() for row in runs)
    return f"mean of {n} draws"


def _lesson(method: str, lesson: Lesson) -> str:
    k, remainder, temperature = lesson
    if k is None:
        return "labels" if method in HARD else f"labels, smoothed by {SMOOTHING:g}"
    kept = "all classes" if k == 0 else "the first class" if k == 1 else f"{k} classes"
    words = {"shared": "one background for all rows"}.get(remainder, remainder)
    rest = "" if k == 0 or (k == 1 and method in HARD) else f", {words}"
    return f"{kept}{rest}" + ("" if temperature == 1 else f", temperature {temperature:g}")


def _summary(found: Lessons) -> str:
    if not found.has(CE, OURS, DRAWN, lesson=ALL) or not found.has(CE, OURS, PLAIN, DRAWN, lesson=LABELS):
        return "The runs of this study are not finished yet."
    gains = "; ".join(
        f"{_name(found, method)} {signed(found.gain(method, ALL, over=PLAIN))}"
        for method in (CE, DRAWN, "averaged", OURS)
        if found.has(method, lesson=ALL)
    )
    return f"""A student that NLL trains on labels has {mean(found.chosen[PLAIN, LABELS], TOP1).mean:.1f} % top-1. From
        the teacher's whole output at temperature 1, each loss gains this many points over it: {gains}."""


def _reading(found: Lessons) -> list[str]:
    text = []
    if found.teacher is not None:
        scores = found.teacher.result
        text.append(f"""The teacher has {100 * scores["test"]["top1"]:.1f} % top-1 on the test part and
            {100 * scores["train"]["top1"]:.1f} % on the training part, where the probability of its first class is
            {100 * scores["confidence"]:.0f} % on average: it is trained on the samples it teaches, as is usual.""")
    if not found.has(CE, OURS, DRAWN, lesson=ALL) or not found.has(CE, OURS, DRAWN, PLAIN, lesson=LABELS):
        return text
    best = [
        f"{_name(found, method)} {mean(found.chosen[method, lesson], TOP1).mean:.1f} % from {_lesson(method, lesson)}"
        for method in (CE, DRAWN, "averaged", OURS)
        for lesson in [found.best(method)]
    ]
    behind = difference(found.chosen[OURS, ALL], found.chosen[CE, ALL], TOP1)
    text.append(f"""The best lesson of each loss, by the held-out part: {"; ".join(best)}. On the teacher's whole output
        soft target InfoNCE is {signed(behind)} points from soft target cross-entropy.""")
    hot = max(lesson[2] for _, lesson in found.chosen)
    warm: Lesson = (0, "spread", hot)
    if hot > 1 and found.has(CE, OURS, DRAWN, lesson=warm):
        changes = "; ".join(
            f"{_name(found, method)} {signed(difference(found.chosen[method, warm], found.chosen[method, ALL], TOP1))}"
            for method in (CE, DRAWN, "averaged", OURS)
            if found.has(method, lesson=warm)
        )
        text.append(f"""The teacher at temperature {hot:g} instead of 1, whole outputs: {changes} points.""")
    text += _why(found, hot)
    kept = [
        f"""k = {k} keeps {share:.0f} %"""
        for k in sorted(k for k, r, t in found.lessons(CE) if k and r == "spread" and t == 1)
        if (share := _share(found, CE, (k, "spread", 1.0))) is not None
    ]
    if kept:
        text.append(f"""Of what soft target cross-entropy gains over labels (smoothed) from the whole output,
            {", ".join(kept)} with the rest spread over all classes.""")
    return text


def _why(found: Lessons, hot: float) -> list[str]:
    """What a mass of its own in every row does, where the classes are the same: k = 1."""
    same: list[Lesson] = [(1, "renormalise", 1.0), (1, "spread", 1.0), (1, "spread", hot), (1, "shared", hot)]
    if hot == 1 or not all(found.has(CE, OURS, lesson=lesson) for lesson in same):
        return []
    ours, ce = ([f"{mean(found.chosen[method, lesson], TOP1).mean:.1f} %" for lesson in same] for method in (OURS, CE))
    back = difference(found.chosen[OURS, same[3]], found.chosen[OURS, same[2]], TOP1)
    facts = f"""With k = 1 the class of every row is the same, whatever is done with the rest; only the mass it gets
        differs. Soft target InfoNCE has {ours[0]} when that is 1, {ours[1]} and {ours[2]} when it is the teacher's
        probability at temperature 1 and {hot:g}, and {ours[3]} when every row gets the mean of the latter:
        {signed(back)} points from sharing it alone (soft target cross-entropy: {", ".join(ce)})."""
    if back.low <= 0:
        return [facts]
    return [
        f"""Why. {facts} A background that all rows share is a temperature to this loss and cancels otherwise. Where
        each row has its own, a target is also told from others of its class by how sure the teacher was, and the less
        sure ones are picked by lower scores of that very class. So give this loss the teacher's classes renormalised,
        or one background for all rows; or draw labels; or take cross-entropy."""
    ]


def _share(found: Lessons, method: str, lesson: Lesson) -> float | None:
    whole = found.gain(method, ALL).mean
    return 100 * found.gain(method, lesson).mean / whole if whole > 0 else None


def _method(found: Lessons) -> str:
    config, master = found.config, found.config["teacher"]
    return f"""Teacher: {master["members"]} heads of three layers, {master["hidden"]} wide, trained by NLL for
        {master["epochs"]} epochs on all features of the whole training part; their probabilities are averaged. Student:
        a linear head on {config["features"]} features drawn at random once, trained on {100 * config["share"]:g} % of
        the training part for {config["epochs"]} epochs in batches of {config["batch"]}; learning rate
        ({", ".join(f"{lr:g}" for lr in found.rates)}) and epoch chosen on the held-out part for each setting. Soft
        losses on labels see them smoothed by {SMOOTHING:g}; nothing is mixed. The teacher's outputs pass through a file
        (softnce.lab.teacher), from which k classes are read."""


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import counted, prose

    found = lessons(rows)
    if found is None or not found.has(CE, OURS, lesson=ALL) or not found.has(CE, OURS, PLAIN, lesson=LABELS):
        return {}
    lesson = found.best(OURS)
    gain, ce = found.gain(OURS, lesson, over=PLAIN), found.gain(CE, found.best(CE), over=PLAIN)
    data_set = found.config["teacher"]["data"]
    verdict: Verdict = "beyond" if data_set != "digits" and found.seeds >= 3 else "undecided"
    text = f"""{signed(gain)} points over NLL on labels, from {_lesson(OURS, lesson)}; soft target cross-entropy
        {signed(found.gain(CE, lesson, over=PLAIN))}, and at best {signed(ce)}, from {_lesson(CE, found.best(CE))}"""
    on = f"{'CIFAR-100' if data_set == 'cifar100' else data_set} features, {counted(found.seeds, 'seed')}"
    return {"distillation": Finding(prose(text), on, verdict)}
