"""Divergence from people's votes against how many were trained on."""

from collections.abc import Sequence

from softnce.lab.experiment.comparison import Value, nats
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, TOP1, temperature
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Figure, Line, Panel, curve
from softnce.lab.report.losses import INTERVAL, Columns, cells
from softnce.lab.report.page import UNFINISHED, Section, Table
from softnce.lab.report.style import AVERAGED
from softnce.lab.studies.human_labels.findings import (
    BATCH_ALONE,
    CE,
    DRAWN,
    EXPECTED,
    HARD,
    KL,
    OURS,
    Votes,
    find,
    name,
)

ORDER = 60
TITLE = "People's votes as soft targets"
VOTERS = 51  # votes per image, on average, where all are used
SCALED, DISPUTED = nats("kl", "scaled"), nats("kl_disputed")
COLUMNS: Columns = {
    "top-1 (%)": (TOP1, 2),
    "cross-entropy (nats)": (nats("cross_entropy"), 4),
    "KL (nats)": (KL, 4),
    "KL, scaled": (SCALED, 4),
    "KL, most disputed tenth": (DISPUTED, 3),
    "ECE by votes (%)": (ECE, 2),
}


def section(rows: Sequence[Row]) -> Section:
    found = find(rows)
    if found is None:
        return Section(TITLE, UNFINISHED, [])
    summary, reading = _sentences(found) if found.complete else (UNFINISHED, None)
    config = found.config
    method = f"""Three layers of {config["hidden"]}, {config["epochs"]} epochs of batches of {config["batch"]}; learning
        rates are selected by the likelihood of held-out votes, as many per image as in training; the last epoch counts.
        The test votes are a sample too, so even the true distribution would not reach KL 0."""
    return Section(
        TITLE, summary, [_figure(found), reading, _gaps(found), _accuracy_gaps(found), _table(found)], [method]
    )


def _sentences(found: Votes) -> tuple[str, str]:
    most, hard = found.most, found.over(HARD)
    nearest = min((way for way in found.ways if (way, most) in hard), key=lambda way: hard[way, most].mean)
    nearer = ", ".join(_votes(number) for number in found.numbers if (CE, number) in hard and hard[CE, number].high < 0)
    summary = f"""On {found.data}, with {_votes(most)} per image, KL from people's votes to the prediction on new images
        is {found.chosen[HARD, most].mean(KL).mean:.3f} nats for NLL on the majority label. The nearest to the votes is
        {name(nearest)}: {signed(hard[nearest, most], 4)} nats from NLL."""
    reading = f"""Soft target cross-entropy is closer to people's votes than NLL on the majority label with
        {nearer or "no votes"} per image (the interval of the paired difference excludes 0), on the most disputed tenth
        of the images by {signed(found.minus(CE, HARD, most, DISPUTED), 3)} nats with {_votes(most)}. Soft target
        InfoNCE minus soft target cross-entropy is {signed(found.minus(OURS, CE, most), 4)} nats there, and
        {signed(found.minus(OURS, CE, most, SCALED), 4)} after temperature scaling."""
    return summary, reading


def _votes(number: int) -> str:
    return {0: "all votes", 1: "1 vote"}.get(number, f"{number} votes")


def _figure(found: Votes) -> Figure:
    label = "KL to the votes (nats)"
    shown: list[tuple[str, str, Value]] = [
        ("divergence", label, KL),
        ("after temperature scaling", label, SCALED),
        ("the most disputed tenth of images", label, DISPUTED),
        ("accuracy", "top-1 (%)", TOP1),
    ]
    panels = [
        Panel(title, "votes per image in training", label, _lines(found, value), log_x=True, x_range=(0.8, 70))
        for title, label, value in shown
    ]
    caption = f"""Test images, {found.data}: KL from all votes to the prediction, before and after temperature scaling,
        and accuracy with respect to the data set's label, against the votes per image in training (all: at {VOTERS}).
        Mean and 95 % interval over {counted(found.seeds, "seed")}."""
    return Figure("votes", caption, panels, columns=2, panel_size=(4.6, 3.2))


def _lines(found: Votes, value: Value) -> list[Line]:
    lines = []
    colours = iter(AVERAGED * len(found.ways))
    for way in found.ways:
        settings = {number or VOTERS: found.chosen.get((way, number)) for number in found.numbers}
        means = curve({number: setting.mean(value) for number, setting in settings.items() if setting})
        if way == BATCH_ALONE:  # hardly told from the default
            continue
        if way[0] == "averaged":
            lines.append(Line(name(way), *means, colour=next(colours), marker="x"))
        else:
            lines.append(Line.of_loss(way[0], *means, dash="dot" if way == DRAWN else "solid"))
    return lines


def _gaps(found: Votes) -> Table:
    """KL of every loss minus that of soft target cross-entropy, paired by seed."""
    gaps = found.over(CE)
    body = [
        [name(way), *(signed(gaps[way, number], 4) if (way, number) in gaps else "" for number in found.numbers)]
        for way in found.ways
        if way != CE
    ]
    caption = "Paired by seed, with 95 % intervals. Below 0: closer to people's votes than soft target cross-entropy."
    return Table(["KL minus that of soft target cross-entropy (nats)", *map(_votes, found.numbers)], body, caption)


def _accuracy_gaps(found: Votes) -> Table | None:
    """Top-1 of expected InfoNCE minus that of soft target cross-entropy, paired by seed."""
    body = []
    for way in (EXPECTED, BATCH_ALONE):
        cells = [
            signed(found.minus(way, CE, number, TOP1)) if {(way, number), (CE, number)} <= found.chosen.keys() else ""
            for number in found.numbers
        ]
        if any(cells):
            body.append([name(way), *cells])
    caption = "Paired by seed, with 95 % intervals. m: number of further candidates from η, K unless given."
    header = ["top-1 minus that of soft target cross-entropy (points)", *map(_votes, found.numbers)]
    return Table(header, body, caption) if body else None


def _table(found: Votes) -> Table:
    body = [
        [name(way), str(number or "all"), *cells(setting, COLUMNS), f"{setting.mean(temperature).mean:.2f}",
         f"{setting.lr:g}"]
        for number in found.numbers
        for way in found.ways
        if (setting := found.chosen.get((way, number)))
    ]  # fmt: skip
    header = ["loss", "votes", *COLUMNS, "best temperature", "learning rate"]
    return Table(header, body, f"Test images, {found.data}; {INTERVAL}.")
