"""The student's accuracy against how much of the teacher it sees."""

from collections.abc import Callable, Sequence

from softnce.lab.experiment.comparison import nats
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, TOP1
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.report.charts import Figure, Level, Line, Mark, Panel, curve
from softnce.lab.report.losses import INTERVAL, Columns, cells
from softnce.lab.report.page import UNFINISHED, Section, Table
from softnce.lab.report.style import AVERAGED
from softnce.lab.studies.distillation.findings import (
    ALL,
    BATCH_ALONE,
    DRAWN,
    LABELS,
    PLAIN,
    Lesson,
    Lessons,
    find,
    lesson_name,
)
from softnce.lab.studies.distillation.run import CE, EXPECTED, OURS

ORDER = 70
TITLE = "Learning from a teacher"
SOFT = (CE, DRAWN, "averaged", OURS, EXPECTED)
CLASSES = {"digits": 10, "cifar100": 100, "tiny-imagenet": 200}
COLUMNS: Columns = {"ECE (%)": (ECE, 1), "NLL (nats)": (nats("nll"), 3)}


def section(rows: Sequence[Row]) -> Section:
    found = find(rows)
    if found is None:
        return Section(TITLE, UNFINISHED, [])
    summary, *reading = _sentences(found) if found.complete else [UNFINISHED]
    config, teacher = found.config, found.config["teacher"]
    method = f"""Teacher: {teacher["members"]} heads of three layers, {teacher["hidden"]} wide, trained by NLL for
        {teacher["epochs"]} epochs; their probabilities are averaged. Student: {config["features"]} random features, the
        same for all, {100 * config["share"]:g} % of the training part, {config["epochs"]} epochs of batches of
        {config["batch"]}; learning rate and epoch are selected on the held-out part for each setting; no MixUp."""
    return Section(TITLE, summary, [_figure(found), *reading, _table(found)], [method])


def _name(found: Lessons, method: str) -> str:
    if method != "averaged":
        loss, *m = method.split(", ")
        return ", ".join([TITLES[loss], *m])
    return f"mean of {max(setting.config['n'] for setting in found.chosen.values())} draws"


def _sentences(found: Lessons) -> list[str]:
    def listed(lesson: Lesson, change: Callable[[str], Estimate]) -> str:
        there = [method for method in SOFT if found.has(method, lesson=lesson)]
        return "; ".join(f"{_name(found, method)} {signed(change(method))}" for method in there)

    gains = {method: found.gain(method, ALL, over=PLAIN) for method in SOFT if found.has(method, lesson=ALL)}
    best = max(gains, key=lambda method: gains[method].mean)
    text = [
        f"""A student trained on labels with NLL has {found.chosen[PLAIN, LABELS].mean(TOP1).mean:.1f} % top-1. From the
        teacher's whole output at temperature 1 it gains the most with {_name(found, best)}, {signed(gains[best])}
        points."""
    ]
    if found.teacher is not None:
        scores = found.teacher.result
        text.append(f"""The teacher has {100 * scores["test"]["top1"]:.1f} % top-1 on the test part and
            {100 * scores["train"]["top1"]:.1f} % on the training part, where the mean probability of its first class
            is {100 * scores["confidence"]:.0f} %.""")
    hot: Lesson = (0, "spread", found.hottest)
    if found.hottest > 1:
        changes = listed(hot, lambda method: found.change(method, hot, ALL))
        text.append(f"Change with temperature {found.hottest:g} instead of 1, whole outputs, in points: {changes}.")
    if found.shared is not None:
        text.append(f"""At k = 1 and temperature {found.hottest:g}, soft target InfoNCE gains {signed(found.shared)}
            points if all rows share the mean mass of the other classes, instead of each row its own. The classes stay
            the same.""")
    if found.kept:
        kept = ", ".join(f"k = {k} keeps {share:.0f} %" for k, share in found.kept.items())
        text.append(f"""Share of the gain of soft target cross-entropy from the whole output over smoothed labels:
            {kept} (rest spread over all classes).""")
    return text


def _figure(found: Lessons) -> Figure:
    first, *others = sorted({lesson[2] for _, lesson in found.chosen})
    kinds = [("spread", first), ("renormalise", first), *(("spread", temperature) for temperature in others)]
    words = {"spread": "rest spread over all", "renormalise": "rest given to the k"}
    ends = [end for setting in found.chosen.values() for e in [setting.mean(TOP1)] for end in (e.low, e.high)]
    panels = [
        Panel(
            f"{words[remainder]}, temperature {temperature:g}",
            "classes of the teacher that are kept (k)",
            "student's top-1 (%)",
            _marks(found, remainder, temperature),
            log_x=True,
            y_range=(min(ends) - 0.5, max(ends) + 0.5),
        )
        for remainder, temperature in kinds
    ]
    caption = f"""The student's test accuracy against how many of the teacher's classes it sees; mean and 95 % interval
        over {counted(found.seeds, "seed")}. Dashed: the student trained on labels with NLL."""
    return Figure("topk", caption, panels, panel_size=(4.3, 3.4))


def _marks(found: Lessons, remainder: str, temperature: float) -> list[Mark]:
    num_classes = CLASSES[found.config["teacher"]["data"]]
    marks: list[Mark] = []
    for method in SOFT:
        settings = {
            k or num_classes: setting
            for (other, (k, r, t)), setting in found.chosen.items()
            if other == method and k is not None and t == temperature and (r == remainder or k == 0)
        }
        means = curve({k: settings[k].mean(TOP1) for k in sorted(settings)})
        if method == "averaged":
            marks.append(Line(_name(found, method), *means, colour=AVERAGED[0], marker="x"))
        else:
            marks.append(Line.of_loss(method, *means))
    if found.has(PLAIN, lesson=LABELS):
        marks.append(Level("labels, NLL", found.chosen[PLAIN, LABELS].mean(TOP1).mean))
    return marks


def _table(found: Lessons) -> Table:
    order = [PLAIN, "info-nce", *SOFT, BATCH_ALONE]

    def place(cell: tuple[str, Lesson]) -> tuple[int | bool | float | str, ...]:
        method, (k, remainder, temperature) = cell
        return order.index(method), cell[1] != LABELS, temperature, remainder, k or 999

    body = []
    for method, lesson in sorted(found.chosen, key=place):
        setting = found.chosen[method, lesson]
        gain = signed(found.gain(method, lesson)) if lesson != LABELS and found.has(method, lesson=LABELS) else ""
        first = [_name(found, method), lesson_name(method, lesson), setting.mean(TOP1).spread(2), gain]
        body.append([*first, *cells(setting, COLUMNS), f"{setting.lr:g}"])
    caption = f"""The student's test scores, {INTERVAL}. Gain: over the same loss on labels, paired by seed, in
        points."""
    return Table(["loss", "learns from", "top-1 (%)", "gain over labels", *COLUMNS, "learning rate"], body, caption)
