"""The losses on images: a table, the paired differences and the search for each model, and the paper's table."""

from collections.abc import Sequence

from softnce.lab.experiment.comparison import nats
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, TOP1, TOP5
from softnce.lab.experiment.statistics import signed
from softnce.lab.report.charts import Figure
from softnce.lab.report.losses import INTERVAL, Columns, cells, points_panel, search_panel
from softnce.lab.report.page import Headline, Section, Table
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.accuracy.findings import CE, EXPECTED, OURS, PAPER, Part, parts

ORDER = 30
COLUMNS: Columns = {
    "top-1 (%)": (TOP1, 2), "top-5 (%)": (TOP5, 2), "ECE (%)": (ECE, 2), "NLL (nats)": (nats("nll"), 3)
}  # fmt: skip


def section(rows: Sequence[Row]) -> Section:
    found = parts(rows)
    blocks = [
        block for number, part in enumerate(found) for block in (_table(part), _leads(part), _figure(part, number))
    ]
    return Section(
        "Losses on images",
        " ".join(map(_summary, found)),
        [*blocks, _papers_table()],
        [
            """NLL and InfoNCE are trained on labels. The soft losses are trained on labels smoothed by 0.1 and mixed:
            MixUp (0.8) of features for the head; MixUp or CutMix of images in four of five batches end to end. AdamW,
            weight decay 0.05, cosine schedule to 0. A tenth of the training set, the same for every run, is held out;
            it selects the learning rate (seed 0) and the epoch."""
        ],
        _headline(found),
    )


def _headline(found: Sequence[Part]) -> Headline | None:
    """What the losses do where all logits can be had."""
    complete = [part for part in found if part.decides and part.is_complete]
    if not complete:
        return None
    part = complete[0]
    top1 = {name: of.mean(TOP1) for name, of in part.losses.items()}
    best = max(top1, key=lambda name: top1[name].mean)
    text = f"""With few classes and all logits, {LOSSES[best].name} has the highest top-1 ({top1[best].spread(2)} %,
        {part.on}), soft target cross-entropy {top1[CE].spread(2)} %, soft target InfoNCE {top1[OURS].spread(2)} %."""
    return Headline(20, text, "rates")


def _summary(part: Part) -> str:
    if not part.is_complete:
        return ""
    leads = part.leads()
    return f"""With {part.title}, soft target InfoNCE minus soft target cross-entropy is {signed(leads[CE])} points of
        top-1; minus NLL it is {signed(leads["nll"])}."""


def _leads(part: Part) -> Table | str:
    if not part.is_complete:
        return "The search for the learning rates is not finished."
    ours, calibration, expected = part.leads(), part.leads(ECE), part.leads_of(EXPECTED)
    columns = {
        "soft target InfoNCE minus it, top-1": ours,
        "… ECE": calibration,
        "expected InfoNCE minus it, top-1": expected,
    }
    shown = {header: leads for header, leads in columns.items() if leads}
    return Table(
        ["loss", *shown],
        [
            [LOSSES[name].name, *(signed(leads[name]) if name in leads else "–" for leads in shown.values())]
            for name in part.losses
        ],
        "Differences in points, paired by seed, with 95 % intervals.",
    )


def _table(part: Part) -> Table:
    return Table(
        ["loss", *COLUMNS, "learning rate", "paper, CIFAR-100 top-1"],
        [
            [LOSSES[name].name, *cells(of, COLUMNS), f"{of.lr:g}", PAPER[name][0][2] if name in PAPER else "–"]
            for name, of in part.losses.items()
        ],
        f"""Test scores of {part.title} ({part.on}); {INTERVAL}. The paper's column is ViT-B/16, MAE pre-trained,
        fine-tuned for 100 epochs. Compare the order of the losses, not the level: the models differ.""",
    )


def _figure(part: Part, number: int) -> Figure:
    means = {name: of.mean(TOP1) for name, of in part.losses.items()}
    return Figure(
        f"rates-{number}" if number else "rates",
        f"""Left: test accuracy of {part.title}, mean and 95 % interval. Right: the search for the learning rate,
        held-out accuracy of seed 0.""",
        [points_panel("test", "top-1 (%)", means), search_panel(part.tried)],
    )


def _papers_table() -> Table:
    sets = ("ImageNet", "Tiny ImageNet", "CIFAR-100")
    return Table(
        ["the paper's figures", *(header for data in sets for header in (f"{data} top-1", "top-5"))],
        [[LOSSES[name].name, *(x for pair in zip(*both, strict=True) for x in pair)] for name, both in PAPER.items()],
        "ViT-B/16, as printed in the paper's Tables 1 and 2. Each cell has a recipe: softnce recipes.",
    )
