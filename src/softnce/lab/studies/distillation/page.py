"""The student's accuracy against how much of the teacher it sees."""

from collections.abc import Sequence

from softnce.lab.experiment.comparison import mean, nats, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.report.charts import Figure, Level, Line, Mark, Panel, band
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import AVERAGED
from softnce.lab.studies.distillation.findings import (
    ALL,
    DRAWN,
    LABELS,
    PLAIN,
    TOP1,
    Lesson,
    Lessons,
    find,
    lesson_name,
)
from softnce.lab.studies.distillation.run import CE, OURS

ORDER = 70
TITLE = "Learning from a teacher"
SOFT = (CE, DRAWN, "averaged", OURS)
CLASSES = {"digits": 10, "cifar100": 100, "tiny-imagenet": 200}


def section(rows: Sequence[Row]) -> Section:
    found = find(rows)
    if found is None:
        return Section(TITLE, "The runs of this study are not finished yet.", [])
    summary = "The runs of this study are not finished yet."
    text: list[str] = []
    if found.complete:
        gains = _listed(found, {method: signed(found.gain(method, ALL, PLAIN)) for method in _there(found, ALL)})
        summary = f"""A student that NLL trains on labels has {found.top1(PLAIN, LABELS).mean:.1f} % top-1. From the
            teacher's whole output at temperature 1, each loss gains this many points over it: {gains}."""
        text = _reading(found)
    return Section(TITLE, summary, [_figure(found), *text, _table(found)], [_method(found)])


def _name(found: Lessons, method: str) -> str:
    return f"mean of {found.draws} draws" if method == "averaged" else TITLES[method]


def _there(found: Lessons, lesson: Lesson) -> list[str]:
    return [method for method in SOFT if found.has(method, lesson=lesson)]


def _listed(found: Lessons, of_method: dict[str, str]) -> str:
    return "; ".join(f"{_name(found, method)} {text}" for method, text in of_method.items())


def _figure(found: Lessons) -> Figure:
    first, *others = sorted({lesson[2] for _, lesson in found.chosen})
    kinds = [("spread", first), ("renormalise", first), *(("spread", temperature) for temperature in others)]
    words = {"spread": "rest spread over all", "renormalise": "rest given to the k"}
    ends = [end for runs in found.chosen.values() for e in [mean(runs, TOP1)] for end in (e.low, e.high)]
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
    caption = f"""The student's test accuracy against how much of the teacher it sees; mean and 95 % interval over
        {counted(found.seeds, "seed")}. The dashed line is the student that NLL trains on labels."""
    return Figure("topk", caption, panels, panel_size=(4.3, 3.4))


def _marks(found: Lessons, remainder: str, temperature: float) -> list[Mark]:
    num_classes = CLASSES[found.config["teacher"]["data"]]
    marks: list[Mark] = []
    for method in SOFT:
        kept = [k for k, r, t in found.lessons(method) if t == temperature and (r == remainder or k == 0)]
        by_size = {k or num_classes: (k, remainder if k else "spread", temperature) for k in kept}
        x = sorted(by_size)
        bands = band([found.top1(method, by_size[size]) for size in x])
        if method == "averaged":
            marks.append(Line(_name(found, method), x, *bands, colour=AVERAGED[0], marker="x"))
        else:
            marks.append(Line.of_loss(method, x, *bands))
    if found.has(PLAIN, lesson=LABELS):
        marks.append(Level("labels, NLL", found.top1(PLAIN, LABELS).mean))
    return marks


def _reading(found: Lessons) -> list[str]:
    text = []
    if found.teacher is not None:
        scores = found.teacher.result
        text.append(f"""The teacher has {100 * scores["test"]["top1"]:.1f} % top-1 on the test part and
            {100 * scores["train"]["top1"]:.1f} % on the training part, where the probability of its first class is
            {100 * scores["confidence"]:.0f} % on average.""")
    warm: Lesson = (0, "spread", found.hottest)
    if found.hottest > 1:
        changes = {method: signed(found.change(method, warm, ALL)) for method in _there(found, warm)}
        text.append(f"""At temperature {found.hottest:g} instead of 1, whole outputs: {_listed(found, changes)}
            points.""")
    if found.shared is not None:
        text.append(f"""At k = 1 and temperature {found.hottest:g}, soft target InfoNCE gains {signed(found.shared)}
            points when all rows share the mean mass of the rest instead of having each its own; their classes are the
            same.""")
    if found.kept:
        kept = ", ".join(f"k = {k} keeps {share:.0f} %" for k, share in found.kept.items())
        text.append(f"""Of what soft target cross-entropy gains over (smoothed) labels from the whole output, {kept},
            with the rest spread over all classes.""")
    return text


def _table(found: Lessons) -> Table:
    order = [PLAIN, "info-nce", *SOFT]
    cells = sorted(
        found.chosen,
        key=lambda cell: (order.index(cell[0]), cell[1] != LABELS, cell[1][2], cell[1][1], cell[1][0] or 999),
    )
    body = [
        [
            _name(found, method),
            lesson_name(method, lesson),
            mean(runs, TOP1).spread(2),
            signed(found.gain(method, lesson)) if lesson != LABELS and found.has(method, lesson=LABELS) else "",
            mean(runs, percent("ece")).spread(1),
            mean(runs, nats("nll")).spread(3),
            f"{runs[0].config['lr']:g}",
        ]
        for method, lesson in cells
        for runs in [found.chosen[method, lesson]]
    ]
    caption = f"""The student's test scores, mean ± half of the 95 % interval over {counted(found.seeds, "seed")}. Gain:
        over the same loss on labels, paired by seed, in points."""
    header = ["loss", "learns from", "top-1 (%)", "gain over labels", "ECE (%)", "NLL (nats)", "learning rate"]
    return Table(header, body, caption)


def _method(found: Lessons) -> str:
    config, teacher = found.config, found.config["teacher"]
    return f"""Teacher: {teacher["members"]} heads of three layers, {teacher["hidden"]} wide, trained by NLL for
        {teacher["epochs"]} epochs; their probabilities are averaged. Student: {config["features"]} features drawn at
        random once, {100 * config["share"]:g} % of the training part, {config["epochs"]} epochs of batches of
        {config["batch"]}; learning rate ({", ".join(f"{lr:g}" for lr in found.rates)}) and epoch chosen on the held-out
        part for each setting; nothing is mixed."""
