"""How much smoothing matters: accuracy and calibration over ε, and what the identity predicts."""

from collections.abc import Sequence

from softnce.lab.experiment.comparison import Value
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, SCALED_ECE, TOP1
from softnce.lab.experiment.statistics import signed
from softnce.lab.report.charts import Figure, Line, Panel, band
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.smoothing.findings import Found, find
from softnce.lab.studies.smoothing.run import CE, OURS

ORDER = 60
PAPER = {OURS: ("0.37", "0.12"), CE: ("0.96", "0.34")}
"""Largest and standard deviation over ε of ViT-B/16 on Tiny ImageNet, in points of top-1."""


def section(rows: Sequence[Row]) -> Section:
    found = find(rows)
    figure = Figure(
        "smoothing",
        f"""A head on {found.name} features, trained with label smoothing. Mean and 95 % interval
        over seeds; dotted: soft target InfoNCE without smoothing at temperature 1/(1−ε).""",
        [
            _panel("accuracy", "top-1 (%)", TOP1, found),
            _panel("calibration", "expected calibration error (%)", ECE, found),
            _panel("calibration, temperature scaled", "expected calibration error (%)", SCALED_ECE, found),
        ],
    )
    return Section(
        "How much smoothing",
        _summary(found) if found.is_complete else "The runs are not complete.",
        [figure, *((_identity(found), _table(found)) if found.is_complete else ())],
        [
            """Labels are smoothed, not mixed. Each loss and ε has its own learning rate, chosen for seed 0 on a tenth
            of the training set; the twin takes that of the training it must equal. All probabilities are the softmax
            of the scores at temperature 1; the scaled ones at the temperature fitted on the held-out part."""
        ],
    )


def _summary(found: Found) -> str:
    return f"""Over ε, the standard deviation of mean accuracy is {found.deviation(OURS)[1]:.2f} points for soft target
        InfoNCE and {found.deviation(CE)[1]:.2f} for soft target cross-entropy; by seed the second is larger by
        {signed(found.steadiness)}. To soft target InfoNCE, ε is a temperature and nothing else."""


def _identity(found: Found) -> str:
    value, gradient = found.identity
    return f"""Smoothing by ε at temperature τ with noise η is the same loss as no smoothing at τ/(1−ε) with noise
        η^(1−ε): on the trained scores the two differ by at most {value:.1e} (value) and {gradient:.1e} (gradient), and
        heads trained either way by at most {found.twin_gap:.2f} points of accuracy."""


def _panel(title: str, label: str, value: Value, found: Found) -> Panel:
    lines = []
    for loss, by_epsilon in found.losses.items():
        means = {epsilon: setting.mean(value) for epsilon, setting in by_epsilon.items()}
        lines.append(Line.of_loss(loss, list(means), *band(means.values())))
    if found.twins:
        twins = [setting.mean(value).mean for setting in found.twins.values()]
        lines.append(Line("predicted by the identity", list(found.twins), twins, marker="x", dash="dot"))
    return Panel(title, "smoothing ε", label, lines)


def _table(found: Found) -> Table:
    smoothing = sorted(found.losses[CE])
    return Table(
        ["", "largest deviation (points)", "standard deviation", "paper, largest", "paper, standard deviation"],
        [[LOSSES[loss].name, *(f"{x:.2f}" for x in found.deviation(loss)), *PAPER[loss]] for loss in PAPER],
        f"""Mean test accuracy over ε from {smoothing[0]:g} to {smoothing[-1]:g}. The paper's figures are ViT-B/16 on
        Tiny ImageNet, one run each.""",
    )
