"""Calibration: scores before and after temperature scaling, for each case, and reliability diagrams."""

from collections.abc import Sequence

from softnce.lab.experiment.comparison import nats, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, SCALED_ECE, TOP1, temperature
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Diagonal, Figure, Line, Mark, Panel
from softnce.lab.report.losses import INTERVAL, Columns, cells
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.calibration.findings import EXPECTED, Case, cases

ORDER = 70
COLUMNS: Columns = {
    "top-1 (%)": (TOP1, 2),
    "ECE (%)": (ECE, 2),
    "ECE, equal mass (%)": (percent("ece_mass"), 2),
    "by class (%)": (percent("classwise_ece"), 2),
    "NLL (nats)": (nats("nll"), 3),
    "Brier": (lambda row: float(row.result["test"]["brier"]), 3),
    "temperature": (temperature, 2),
    "ECE, scaled (%)": (SCALED_ECE, 2),
    "NLL, scaled (nats)": (nats("nll", "scaled"), 3),
}


def section(rows: Sequence[Row]) -> Section:
    found = cases(rows)
    complete = [case for case in found if case.is_complete]
    better = [case for case in complete if case.gap().mean < 0]
    return Section(
        "Calibration",
        f"Soft target InfoNCE has the lower ECE in {len(better)} of {counted(len(complete), 'case')}, against soft "
        "target cross-entropy.",
        [*(block for case in found for block in (_table(case), _gap(case))), _diagrams(found)],
        [
            """Probabilities are the softmax of the scores. A confidence of exactly 1 falls in the last bin. The
            expected calibration error is biased upwards, the more the fewer samples a bin holds: more on the 2,000 test
            images of Tiny ImageNet here than on the 10,000 of CIFAR-100. Bins of equal mass and the classwise error
            show whether a conclusion depends on the choice of bins."""
        ],
    )


def _gap(case: Case) -> str:
    if not case.is_complete:
        return "The search for the learning rates is not finished."
    paper = "; the paper (ViT-B/16, one run each): {:g} % against {:g} %".format(*case.paper) if case.paper else ""
    expected = ""
    if EXPECTED in case.losses:
        expected = f""" Expected InfoNCE minus soft target cross-entropy: {signed(case.gap(loss=EXPECTED))}; after
            temperature scaling {signed(case.gap(SCALED_ECE, EXPECTED))}."""
    return f"""Soft target InfoNCE minus soft target cross-entropy, in points of ECE: {signed(case.gap())}; after
        temperature scaling {signed(case.gap(SCALED_ECE))}{paper}.{expected}"""


def _table(case: Case) -> Table:
    return Table(
        ["loss", *COLUMNS],
        [[LOSSES[name].name, *cells(setting, COLUMNS)] for name, setting in case.losses.items()],
        f"""{case.title}: test scores, {INTERVAL}; 15 bins. "Scaled": after one temperature is
        fitted on the held-out part, above 1 where scores are overconfident, below 1 where underconfident.""",
    )


def _diagrams(found: Sequence[Case]) -> Figure:
    return Figure(
        "reliability",
        """Accuracy against confidence of the predicted class in 15 bins of equal width, seed 0. Above the line a model
        is underconfident, below it overconfident.""",
        [_diagram(case) for case in found],
        columns=min(2, len(found)),
    )


def _diagram(case: Case) -> Panel:
    marks: list[Mark] = [Diagonal("calibrated", 0.0, 1.0)]
    for name, setting in case.losses.items():
        bins = setting.rows[0].result["reliability"]
        filled = [i for i, count in enumerate(bins["count"]) if count]
        x, y = ([bins[axis][i] for i in filled] for axis in ("confidence", "accuracy"))
        marks.append(Line.of_loss(name, x, y))
    return Panel(case.title, "confidence", "accuracy", marks, x_range=(0.0, 1.0), y_range=(0.0, 1.0))
