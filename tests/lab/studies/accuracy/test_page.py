"""The page has what the rows have."""

from softnce.lab.experiment.results import Row
from softnce.lab.losses import LOSSES, LossKind
from softnce.lab.report import style
from softnce.lab.studies.accuracy import findings, page
from softnce.losses import NLL


def test_another_loss_is_shown_without_a_change_of_the_page(monkeypatch):
    monkeypatch.setitem(LOSSES, "new", LossKind("a new loss", NLL))
    monkeypatch.setitem(style.LOSSES, "new", style.Look("a new loss", "#000000"))

    def row(loss, seed):
        config = {"data": "cifar100", "head": {}, "batch": 8, "epochs": 1, "loss": {"name": loss}}
        scores = {"top1": 0.5, "top5": 0.9, "ece": 0.1, "nll": 1.0}
        return Row("", {**config, "lr": 1e-3, "seed": seed}, {"held_out": scores, "test": scores}, 1.0, "", {})

    rows = [row(loss, seed) for loss in LOSSES for seed in range(2)]
    section = page.section(rows)
    table, leads, figure, _ = section.blocks
    assert [cells[0] for cells in table.rows] == [kind.title for kind in LOSSES.values()]
    assert leads.rows[-1] == ["a new loss", *3 * ["+0.00 [+0.00, +0.00]"]]
    assert [len(panel.marks) for panel in figure.panels] == [7, 7]
    assert findings.claims(rows)["accuracy-worst"].ours == "50.00, the next lowest 50.00"
