"""Linear head or three layers: gains by loss, and all scores of the four heads."""

from collections.abc import Sequence

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, SCALED_ECE, TOP1
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Figure, Mark, Panel, Points
from softnce.lab.report.losses import INTERVAL, Columns, cells, points
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.head.findings import PAPER, Kind, Part, parts
from softnce.lab.studies.head.run import AUTHORS, CE, HEADS, LAYERS, LINEAR, OURS

ORDER = 40
COLUMNS: Columns = {
    "top-1 (%)": (TOP1, 2), "ECE (%)": (ECE, 2), "ECE after temperature scaling (%)": (SCALED_ECE, 2)
}  # fmt: skip


def section(rows: Sequence[Row]) -> Section:
    found = parts(rows)
    complete = [part for part in found if part.is_complete]
    seeds = counted(max((part.seeds for part in found), default=0), "seed")
    figure = Figure(
        "gain",
        f"""Top-1 gained over a plain linear head by three layers, without and with BatchNorm on the scores; paired by
        seed, mean and 95 % interval over {seeds} or more. Crosses: the paper's gains, of a fine-tuned ViT-B/16.""",
        [_panel(part, *shown) for part in found for shown in ((LAYERS, "three layers"), (AUTHORS, "and BatchNorm"))],
        columns=2,
    )
    return Section(
        "Linear head or three layers",
        " ".join(map(_summary, complete)) or "The runs of this study are not finished yet.",
        [figure, *(block for part in found for block in (_lead(part), _table(part)))],
        [
            f"""{"; ".join(map(_budget, found))}. The features are EfficientNet-Lite0's, frozen; the paper fine-tunes
            the whole network and its hidden layers have 4096 units, so only which loss gains more can be compared, not
            the sizes of the gains. Tiny ImageNet is its published validation set, 40 images per class to train on and
            10 to test. Learning rate (seed 0) and epoch are chosen for each loss and head on a held-out tenth of the
            training part. Hard losses see labels; soft ones labels smoothed by 0.1 and mixed (MixUp, 0.8)."""
        ],
    )


def _summary(part: Part) -> str:
    gains = part.gains()
    return f"""On {part.name} three layers gain soft target InfoNCE {gains[OURS].mean:+.2f} points and soft target
        cross-entropy {gains[CE].mean:+.2f}; the difference is {signed(part.extra())}."""


def _lead(part: Part) -> str:
    if not part.is_complete:
        return f"{part.name}: some heads or losses are not finished yet."
    return f"""{part.name}: soft target InfoNCE is {signed(part.lead(LINEAR))} points from soft target cross-entropy
        with a linear head, {signed(part.lead(LAYERS))} with three layers."""


def _budget(part: Part) -> str:
    config = part.config
    return f"""{part.name}: {config["epochs"]} epochs of batches of {config["batch"]}, hidden layers of
        {config["head"]["hidden"]}"""


def _panel(part: Part, head: Kind, title: str) -> Panel:
    gains, paper = part.gains(head), PAPER.get(part.data, {})
    marks: list[Mark] = []
    for place, (loss, mark) in enumerate(zip(gains, points(gains), strict=True)):
        marks.append(mark)
        if loss in paper:
            marks.append(Points("the paper's gain", [place + 0.3], [paper[loss]], marker="x"))
    places = (-0.6, len(gains) - 0.2)
    return Panel(f"{part.name}: {title}", "", "gain over a linear head (points)", marks, hide_x=True, x_range=places)


def _table(part: Part) -> Table:
    return Table(
        ["loss", "head", *COLUMNS, "learning rate"],
        [
            [LOSSES[loss].name, name, *cells(setting, COLUMNS), f"{setting.lr:g}"]
            for loss in dict.fromkeys(loss for loss, _ in part.settings)
            for head, name in HEADS.items()
            if (setting := part.settings.get((loss, head)))
        ],
        f"{part.name}, test part; {INTERVAL} ({part.seeds} or more).",
    )
