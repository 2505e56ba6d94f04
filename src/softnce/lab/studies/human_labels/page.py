"""Divergence from people's votes against how many were trained on."""

from collections.abc import Sequence

from softnce.lab.experiment.comparison import Value, mean, nats, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Figure, Line, Panel, band
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import AVERAGED
from softnce.lab.studies.human_labels.findings import CE, DRAWN, HARD, KL, OURS, Votes, find, name

ORDER = 60
TITLE = "People's votes as soft targets"
VOTERS = 51  # votes per image, on average, where all are used
SCALED, DISPUTED, TOP1 = nats("kl", "scaled"), nats("kl_disputed"), percent("top1")


def section(rows: Sequence[Row]) -> Section:
    found = find(rows)
    if found is None:
        return Section(TITLE, "The runs of this study are not finished yet.", [])
    summary, text = "The runs of this study are not finished yet.", None
    if found.complete:
        gaps = "; ".join(
            f"{name(way)} {signed(found.minus(way, HARD, found.most), 4)}"
            for way in found.ways
            if way != HARD and (way, found.most) in found.chosen
        )
        summary = f"""On {found.data}, with {_votes(found.most)} per image, KL from people's votes to the prediction on
            new images is {mean(found.chosen[HARD, found.most], KL).mean:.3f} nats for NLL on the majority's label; the
            others minus that: {gaps}."""
        text = _reading(found)
    return Section(TITLE, summary, [_figure(found), text, _gaps(found), _table(found)], [_method(found)])


def _figure(found: Votes) -> Figure:
    shown: list[tuple[str, str, Value]] = [
        ("divergence", "KL to the votes (nats)", KL),
        ("after temperature scaling", "KL to the votes (nats)", SCALED),
        ("the most disputed tenth of images", "KL to the votes (nats)", DISPUTED),
        ("accuracy", "top-1 (%)", TOP1),
    ]
    panels = [
        Panel(title, "votes per image in training", label, _lines(found, value), log_x=True, x_range=(0.8, 70))
        for title, label, value in shown
    ]
    caption = f"""Test images, {found.data}: KL from all their votes to the prediction, as it is and after temperature
        scaling, and accuracy by the data set's label, against the votes per image in training (all: at {VOTERS}). Mean
        and 95 % interval over {counted(found.seeds, "seed")}."""
    return Figure("votes", caption, panels, columns=2, panel_size=(4.6, 3.2))


def _lines(found: Votes, value: Value) -> list[Line]:
    lines = []
    colours = iter(AVERAGED * len(found.ways))
    for way in found.ways:
        numbers = [number for number in found.numbers if (way, number) in found.chosen]
        x = [number or VOTERS for number in numbers]
        bands = band([mean(found.chosen[way, number], value) for number in numbers])
        if way[0] == "averaged":
            lines.append(Line(name(way), x, *bands, colour=next(colours), marker="x"))
        else:
            lines.append(Line.of_loss(way[0], x, *bands, dash="dot" if way == DRAWN else "solid"))
    return lines


def _votes(number: int) -> str:
    return {0: "all votes", 1: "1 vote"}.get(number, f"{number} votes")


def _reading(found: Votes) -> str:
    """What is behind the summary, at the largest number of votes."""
    where = f"with {', '.join(map(_votes, found.nearer))}" if found.nearer else "at no number of votes"
    return f"""Soft target cross-entropy is nearer to people than NLL on the majority's label {where} per image (the
        interval of the paired difference excludes 0); with {_votes(found.most)} the difference is
        {signed(found.minus(CE, HARD, found.most), 4)} nats, on the most disputed tenth of the images
        {signed(found.minus(CE, HARD, found.most, DISPUTED), 3)}. Soft target InfoNCE minus soft target cross-entropy is
        {signed(found.minus(OURS, CE, found.most), 4)} nats, after temperature scaling
        {signed(found.minus(OURS, CE, found.most, SCALED), 4)}, its best temperature
        {found.temperature(OURS, found.most):.2f}."""


def _gaps(found: Votes) -> Table:
    """KL of every loss minus that of soft target cross-entropy, paired by seed."""
    body = []
    for way in found.ways:
        if way != CE:
            both = {number: {(way, number), (CE, number)} <= found.chosen.keys() for number in found.numbers}
            cells = [signed(found.minus(way, CE, number), 4) if there else "" for number, there in both.items()]
            body.append([name(way), *cells])
    caption = "Paired by seed, with 95 % intervals. Below 0 is nearer to people than soft target cross-entropy is."
    return Table(["KL minus that of soft target cross-entropy (nats)", *map(_votes, found.numbers)], body, caption)


def _table(found: Votes) -> Table:
    columns: dict[str, tuple[Value, int]] = {
        "top-1 (%)": (TOP1, 2),
        "cross-entropy (nats)": (nats("cross_entropy"), 4),
        "KL (nats)": (KL, 4),
        "KL, scaled": (SCALED, 4),
        "KL, most disputed tenth": (DISPUTED, 3),
        "ECE by votes (%)": (percent("ece"), 2),
    }
    body = [
        [
            name(way),
            str(number or "all"),
            *(mean(runs, value).spread(digits) for value, digits in columns.values()),
            f"{found.temperature(way, number):.2f}",
            f"{runs[0].config['lr']:g}",
        ]
        for number in found.numbers
        for way in found.ways
        if (runs := found.chosen.get((way, number)))
    ]
    caption = f"Test images, {found.data}; mean ± half of the 95 % interval over {counted(found.seeds, 'seed')}."
    return Table(["loss", "votes", *columns, "best temperature", "learning rate"], body, caption)


def _method(found: Votes) -> str:
    config, rates = found.config, ", ".join(f"{lr:g}" for lr in found.rates)
    return f"""Three layers of {config["hidden"]}, {config["epochs"]} epochs of batches of {config["batch"]}; the
        learning rate of each setting ({rates}) by the likelihood of held-out votes, as many per image as in training;
        no choice of epoch. The test votes are a sample too, so even the true distribution would not reach KL 0."""
