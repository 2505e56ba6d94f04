"""Fine-tuned networks: the paper's Tables 1 and 2 in miniature, then the details of each data set."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from softnce.lab.experiment.comparison import Value, nats
from softnce.lab.experiment.paper import DATA, TABLES
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, TOP1, TOP5
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.report.charts import Figure, Level, Panel, Points, band
from softnce.lab.report.losses import INTERVAL, Columns, cells, listed, points_panel, search_panel
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.fine_tuning.findings import CE, OURS, Part, layers, parts
from softnce.lab.studies.fine_tuning.run import IMAGES

ORDER = -10
COLUMNS: Columns = {
    "top-1 (%)": (TOP1, 2), "top-5 (%)": (TOP5, 2), "ECE (%)": (ECE, 2), "NLL (nats)": (nats("nll"), 3)
}  # fmt: skip
ROWS_OF_PICTURE = 2


def section(rows: Sequence[Row]) -> Section:
    found = [part for part in parts(rows) if part.losses]
    details = [block for part in found for block in (_table(part), _remarks(part), _figure(part))]
    return Section(
        "Pre-trained networks, fine-tuned",
        " ".join(map(_summary, found)),
        [*miniature(rows), *_heads(found), *details],
        [_protocol(any(part.recipe == IMAGES for part in found))],
    )


def _protocol(has_images: bool) -> str:
    images = """ Images: EfficientNet-Lite0 at 64 px on 15,300 of CIFAR-100's training images, batches of 128, random
        crops of at least half the area, RandAugment, random erasing, MixUp (0.8) or CutMix (1.0), layer-wise decay
        0.85."""
    return f"""Text: MiniLM (six layers, 384 wide), batches of 64, mixed precision (bf16), MixUp (0.8) of sentence
        embeddings, layer-wise decay 0.65.{images if has_images else ""} AdamW, warm-up, cosine schedule; four of five
        batches are mixed, labels smoothed by 0.1. NLL and InfoNCE are trained on labels. Held-out data, the same for
        every run, select the learning rate (seed 0) and the epoch; the test split is only reported."""


def miniature(rows: Sequence[Row]) -> list[Figure | Table]:
    """The paper's Tables 1 and 2 beside ours: data sets by losses, and in one picture which differences are real."""
    found = [part for part in parts(rows) if part.losses]
    if not found:
        return []
    return [_picture(found), _both("Table 1: top-1", found, TOP1, 0), _both("Table 2: top-5", found, TOP5, 1)]


def _both(name: str, found: Sequence[Part], value: Value, place: int) -> Table:
    """Data sets by losses, ours first; ▲ and ▼ mark differences to soft target cross-entropy beyond noise."""

    def ours(part: Part, loss: str) -> str:
        if loss not in part.losses:
            return "–"
        return part.losses[loss].mean(value).spread(2) + _mark(part.from_cross_entropy(value).get(loss))

    def papers(number: int, loss: str) -> str:
        return TABLES[loss][place][number] if loss in TABLES else "–"

    return Table(
        [name, *(look.name for look in LOSSES.values())],
        [
            *([part.on, *(ours(part, loss) for loss in LOSSES)] for part in found),
            *([f"the paper, {data}", *(papers(number, loss) for loss in LOSSES)] for number, data in enumerate(DATA)),
        ],
        f"""{name} in per cent, {INTERVAL}; ▲ ▼: above or below soft target cross-entropy, the 95 % interval of the
        difference, paired by seed, does not contain 0. The paper's rows: ViT-B/16, 100 epochs.""",
    )


def _heads(found: Sequence[Part]) -> list[Table | str]:
    """What three layers add to a linear head, by data set and loss; nothing where only one head was trained."""
    both = layers(found)
    if not both:
        return []
    gains = {of.data: of.gains() for of in both}
    extra = [f"{of.data} {signed(gap)}" for of in both if (gap := of.extra)]
    text = "Gain of soft target InfoNCE minus that of soft target cross-entropy, in points of top-1"
    return [
        Table(
            ["data", *(look.name for look in LOSSES.values())],
            [
                [data, *(signed(of_loss[loss]) if loss in of_loss else "–" for loss in LOSSES)]
                for data, of_loss in gains.items()
            ],
            """Top-1 with three layers (384 → 512 → 512 → K, BatchNorm and ReLU after the first two) minus top-1 with a
            linear head, in points, paired by seed, with 95 % intervals where there are several seeds.""",
        ),
        *([f"{text}: {'; '.join(extra)}."] if extra else []),
    ]


def _mark(gap: Estimate | None) -> str:
    if gap is None or gap.count < 2:
        return ""
    return " ▲" if gap.low > 0 else " ▼" if gap.high < 0 else ""


def _picture(found: Sequence[Part]) -> Figure:
    """Ours and the paper's data sets, a panel each, on one scale but for our images; every loss has its place."""
    top1 = {loss: [float(figure) for figure in figures] for loss, (figures, _) in TABLES.items()}
    papers = {
        f"the paper, {data}": {
            loss: estimate([of[number] - top1[CE][number]]) for loss, of in top1.items() if loss != CE
        }
        for number, data in enumerate(DATA)
    }
    images, texts = (
        {
            part.title: gaps
            for part in found
            if (part.recipe == IMAGES) == is_image and (gaps := part.from_cross_entropy())
        }
        for is_image in (True, False)
    )
    scales = dict.fromkeys(texts | papers, _scale([*texts.values(), *papers.values()]))
    scales |= {title: _scale([gaps]) for title, gaps in images.items()}
    shown = texts | images | papers
    columns = -(-len(shown) // ROWS_OF_PICTURE)
    return Figure(
        "miniature",
        f"""Table 1 in one picture: top-1 of each loss minus that of soft target cross-entropy, in points. Ours: paired
        by seed, with 95 % intervals where there are several seeds{"; images have their own scale" if images else ""}.
        The paper gives no intervals.""",
        [
            _gaps_panel(title, gaps, scales[title], is_first=number % columns == 0)
            for number, (title, gaps) in enumerate(shown.items())
        ],
        columns=columns,
    )


def _scale(shown: Sequence[Mapping[str, Estimate]]) -> tuple[float, float]:
    """A range of y that holds all intervals, and 0."""
    ends = [0.0, *(end for gaps in shown for gap in gaps.values() for end in (gap.low, gap.high))]
    margin = 0.05 * (max(ends) - min(ends))
    return min(ends) - margin, max(ends) + margin


def _gaps_panel(title: str, gaps: Mapping[str, Estimate], scale: tuple[float, float], is_first: bool) -> Panel:
    places = [loss for loss in LOSSES if loss != CE]
    return Panel(
        title,
        "",
        "top-1 minus soft CE (points)" if is_first else "",
        [
            *(Points.of_loss(loss, [places.index(loss)], *band([gap]), size=7.5) for loss, gap in gaps.items()),
            Level("soft target cross-entropy", 0.0),
        ],
        x_range=(-0.5, len(places) - 0.5),
        y_range=scale,
        hide_x=True,
    )


def _summary(part: Part) -> str:
    (losses, mean), gap = part.best, part.minus(OURS, CE)
    *others, last = (LOSSES[loss].name for loss in losses)
    best = f"the best losses are {', '.join(others)} and {last}" if others else f"the best loss is {last}"
    level = "" if part.published is None else f" (published for fine-tuned BERT: {part.published:.1f} %)"
    compared = f"; soft target InfoNCE minus soft target cross-entropy: {signed(gap)} points" if gap else ""
    return f"{part.title}: {best} with {mean:.1f} %{level}{compared}."


def _remarks(part: Part) -> str:
    text = ""
    if gaps := part.from_cross_entropy():
        text = f"""Minus soft target cross-entropy, paired by seed, with 95 % intervals where there are several seeds,
            in points of top-1: {listed(gaps)}; of ECE: {listed(part.from_cross_entropy(ECE))}."""
    if gaps := part.for_other_samples():
        seen = [f"{LOSSES[loss].name} {gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]" for loss, gap in gaps.items()]
        text += f" With an interval for other test samples as well as other seeds, top-1: {'; '.join(seen)}."
    if part.frozen is not None:
        text += f""" The head alone, trained with NLL on frozen features of the same images, reaches
            {part.frozen.mean(TOP1).mean:.1f} %."""
    return text


def _table(part: Part) -> Table:
    return Table(
        ["loss", *COLUMNS, "learning rate", "seeds"],
        [[LOSSES[name].name, *cells(of, COLUMNS), f"{of.lr:g}", str(len(of))] for name, of in part.losses.items()],
        f"Test scores on {part.on}; {INTERVAL}.",
    )


def _figure(part: Part) -> Figure:
    means = {name: of.mean(TOP1) for name, of in part.losses.items()}
    test = points_panel("test", "top-1 (%)", means)
    levels = []
    if part.published is not None:
        levels.append(Level("BERT, published", part.published))
    if part.frozen is not None:
        levels.append(Level("head on frozen features", part.frozen.mean(TOP1).mean))
    test = replace(test, marks=[*test.marks, *levels])
    return Figure(
        f"{part.recipe}-{part.head}",
        f"""{part.title}. Left: test accuracy, mean and 95 % interval. Right: the search for the learning rate, held-out
        accuracy of seed 0.""",
        [test, search_panel(part.tried)],
    )
