"""What pages about losses share."""

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, Setting
from softnce.lab.experiment.statistics import Estimate
from softnce.lab.report.losses import cells, listed, points_panel, search_panel
from softnce.lab.report.style import LOSSES

ESTIMATES = {"nll": Estimate(1.0, 0.5, 1.5, 3), "info-nce": Estimate(-2.0, -2.5, -1.5, 3)}


def test_points_stand_side_by_side_in_their_looks():
    panel = points_panel("test", "top-1 (%)", ESTIMATES)
    assert [(mark.x, mark.y, mark.low, mark.high) for mark in panel.marks] == [
        ([0], [1.0], [0.5], [1.5]),
        ([1], [-2.0], [-2.5], [-1.5]),
    ]
    assert [mark.colour for mark in panel.marks] == [LOSSES[loss].colour for loss in ESTIMATES]


def test_a_search_is_a_line_per_loss():
    (line,) = search_panel({"nll": {1e-3: 50.0, 3e-3: 60.0}}).marks
    assert (line.x, line.y, line.loss) == ([1e-3, 3e-3], [50.0, 60.0], "nll")


def test_cells_and_sentences_have_the_digits_asked_for():
    setting = Setting([Row("", {"seed": seed}, {"test": {"top1": 0.5}}, 0.0, "", {}) for seed in range(2)])
    assert cells(setting, {"top-1 (%)": (TOP1, 2), "short": (TOP1, 0)}) == ["50.00 ± 0.00", "50 ± 0"]
    assert listed(ESTIMATES) == "NLL +1.00 [+0.50, +1.50]; InfoNCE −2.00 [−2.50, −1.50]"
