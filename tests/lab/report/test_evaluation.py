import matplotlib.pyplot as plt
import pytest
import torch

from softnce.calibration import reliability_curve
from softnce.lab.report import drawing
from softnce.lab.report.evaluation import confusion, reliability


def test_confusion_shows_shares_and_counts():
    counts = torch.tensor([[90, 10, 0], [5, 15, 0], [0, 0, 0]])
    (axes,) = drawing.draw(confusion(counts, ("a", "b", "c"), "fold 0")).axes
    assert sorted(t.get_text() for t in axes.texts if t.get_text()) == ["10", "25", "75", "90"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["c  (0)", "b  (20)", "a  (100)"]
    assert axes.get_title(loc="left") == "fold 0"
    assert plt.get_fignums() == [], "no figure is left open"
    with pytest.raises(ValueError):
        confusion(counts, ("a", "b"), "")


def test_reliability_leaves_out_empty_bins():
    curve = reliability_curve(torch.tensor([0.62, 0.64, 0.95]), torch.tensor([1.0, 0.0, 1.0]), bins=10)
    top, bottom = reliability(curve, {"ece": 0.1, "top1": 2 / 3}, "run").panels
    assert top.title == "run\nECE 10.0 %, top-1 66.7 %"
    assert list(top.marks[1].x) == pytest.approx([0.63, 0.95])
    assert list(top.marks[1].y) == pytest.approx([0.5, 1.0])
    assert list(bottom.marks[0].y) == pytest.approx([2 / 3, 1 / 3])
