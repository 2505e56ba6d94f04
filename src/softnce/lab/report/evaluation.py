"""Figures of one evaluation: reliability diagram and confusion matrix."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from softnce.calibration import ReliabilityCurve
from softnce.lab.report.charts import Diagonal, Figure, Heat, Line, Panel
from softnce.lab.report.style import OTHER


def reliability(curve: ReliabilityCurve, results: Mapping[str, float], title: str) -> Figure:
    """Accuracy against confidence, bin by bin, above the share of predictions in each bin."""
    filled = curve.count > 0
    confidence, accuracy = curve.confidence[filled].tolist(), curve.accuracy[filled].tolist()
    share = (curve.count[filled] / curve.count.sum()).tolist()
    scores = f"ECE {100 * results['ece']:.1f} %, top-1 {100 * results['top1']:.1f} %"
    bins = Line("bins", confidence, accuracy, colour=OTHER, marker="o")
    return Figure(
        "reliability",
        "Accuracy of predictions against their confidence, in bins of equal width; below, the share of predictions.",
        [
            Panel(
                f"{title}\n{scores}", "confidence", "accuracy", [Diagonal("calibrated", 0, 1), bins],
                x_range=(0, 1), y_range=(0, 1.005),
            ),
            Panel(
                "", "confidence", "share of predictions", [Line("", confidence, share, colour=OTHER, marker="o")],
                x_range=(0, 1),
            ),
        ],
        columns=1,
        panel_size=(4.8, 2.9),
    )  # fmt: skip


def confusion(counts: Tensor, class_names: Sequence[str], title: str) -> Figure:
    """Per cent of each true class (rows, with the number of its samples) by predicted class, from counts (K, K)."""
    total = counts.sum(1)
    share = (100 * counts / total.clamp(min=1)[:, None]).flip(0).tolist()  # the first class on top
    text = [[f"{value:.0f}" if value >= 0.5 else "" for value in row] for row in share]
    rows = [f"{name}  ({int(n):,})" for name, n in zip(class_names, total, strict=True)][::-1]
    size = 2.2 + 0.55 * len(class_names)
    return Figure(
        "confusion",
        "Per cent of the true class (rows). Blank: less than half a per cent.",
        [Panel(title, "predicted", "true class (samples)", [Heat(list(class_names), rows, share, text, 0.0, 100.0)])],
        panel_size=(size + 0.6, 0.9 * size),
    )
