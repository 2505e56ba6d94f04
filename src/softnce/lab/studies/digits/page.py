"""The section of the digits study."""

from collections.abc import Sequence

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Figure
from softnce.lab.report.losses import INTERVAL, points_panel
from softnce.lab.report.page import Headline, Section, Table
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.digits.findings import read
from softnce.lab.studies.digits.run import IMAGES

ORDER = 20
COLUMNS = {
    "accuracy": ("accuracy (%)", 2),
    "nll": ("negative log-likelihood (nats)", 3),
    "ece": ("expected calibration error (%)", 2),
    "nll_at_best_temperature": ("likelihood, best temperature", 3),
    "best_temperature": ("best temperature", 2),
}


def section(rows: Sequence[Row]) -> Section:
    found = read(rows)
    c = found.config
    panels = [
        points_panel(title, COLUMNS[score][0], found.of(score))
        for score, title in (("accuracy", "accuracy"), ("nll", "likelihood"), ("ece", "calibration"))
    ]
    caption = f"""Test scores of one network trained with each loss on {c["train_size"]} digits; mean and 95 %
        confidence interval over {counted(found.seeds, "seed")}."""
    cells = [
        [LOSSES[loss].name, *(scores[score].spread(digits) for score, (_, digits) in COLUMNS.items())]
        for loss, scores in found.scores.items()
    ]
    best = max(found.scores, key=lambda loss: found.scores[loss]["accuracy"].mean)
    summary = f"""One small network, six losses, the same data, weights and batches. The loss
        with the highest mean accuracy is {LOSSES[best].name}; the intervals show which differences are significant."""
    method = f"""{c["train_size"]} training digits, {IMAGES - c["train_size"]} test digits; two hidden layers of
        {c["hidden"]}, Adam at {c["lr"]:g}, {c["epochs"]} epochs of batches of {c["batch_size"]}. The best temperature
        is fitted on the test set itself: it shows how much of the likelihood depends on the scale of the scores."""
    table = Table(["loss", *(label for label, _ in COLUMNS.values())], cells, f"Test scores: {INTERVAL}.")
    figure = Figure("losses", caption, panels, panel_size=(3.2, 2.9))
    return Section("Six losses on digits", summary, [figure, table], [method], Headline(40, summary, "losses"))
