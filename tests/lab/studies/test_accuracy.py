"""The losses on images: both models train, and their findings are joined honestly."""

import json
from base64 import b64encode

import numpy as np
import pytest

from softnce.lab.commands import study as study_command
from softnce.lab.experiment import search
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import Setting
from softnce.lab.losses import LOSSES, PAPER, LossKind
from softnce.lab.report import style
from softnce.lab.studies.accuracy import findings, page
from softnce.lab.studies.accuracy.findings import CE, OURS
from softnce.lab.studies.accuracy.run import Config, networks, perform
from softnce.losses import NLL


@pytest.mark.slow
def test_from_command_to_page(made):
    rows = made("accuracy", "--epochs", "1", "--rates", "[0.003]", "--seeds", "2")
    (part,) = findings.parts(rows)
    assert tuple(part.losses) == tuple(LOSSES)
    assert findings.claims(rows) == {}  # digits decide nothing


@pytest.mark.slow
def test_the_small_network_is_trained_on_images(tmp_path, monkeypatch):
    """Twenty images per class in the form of CIFAR-100, told apart by their colour."""
    random = np.random.default_rng(0)
    (tmp_path / "cifar100").mkdir()
    y = np.arange(200) % 10
    for split in ("train", "test"):
        x = np.clip(25 * y[:, None, None, None] + random.integers(0, 20, (200, 32, 32, 3)), 0, 255).astype(np.uint8)
        np.savez(tmp_path / "cifar100" / f"{split}.npz", x=x, y=y)
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    (run, *_) = search.trials(networks(Config(batch=20, image_epochs=1)), [1e-3])
    result = perform(run)
    assert 0 <= result["test"]["top1"] <= 1
    assert set(result["held_out"]) >= {"top1", "top5", "ece"}
    assert json.loads(json.dumps(result)) == result


def part(title, gains, names=PAPER):
    """Three seeds of every loss, top-1 of 50 % and what ``gains`` adds."""

    def row(loss, seed):
        result = {"test": {"top1": 0.5 + gains.get(loss, 0.0), "top5": 0.9}}
        return Row("", {"seed": seed, "lr": 1e-3, "loss": {"name": loss}}, result, 1.0, "", {})

    losses = {loss: Setting([row(loss, seed) for seed in range(3)]) for loss in names}
    return findings.Part(title, title, losses, {loss: {3e-4: 1.0, 1e-3: 2.0, 3e-3: 1.0} for loss in names}, True)


def test_models_that_disagree_decide_nothing(monkeypatch):
    ahead, behind = {"soft-target-info-nce": 0.02, "nll": 0.01}, {"soft-target-info-nce": -0.02}
    monkeypatch.setattr(findings, "parts", lambda rows: [part("a", ahead), part("b", behind)])
    found = findings.claims([])
    assert found["accuracy-nll"].verdict == "undecided"
    assert found["accuracy-nll"].on == "a; b"
    assert found["accuracy-soft-ce"].verdict == "not reproduced"  # both far from it, in either direction
    assert found["accuracy-rates"].verdict == "reproduced"


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


def test_other_images_widen_the_interval():
    def row(loss, seed, right):
        bits = b64encode(np.packbits(np.array(right, dtype=np.uint8))).decode()
        return Row("", {"loss": {"name": loss}, "seed": seed}, {"right": bits}, 1.0, "", {})

    same, better = [1, 0] * 32, [1, 1, 1, 0] * 16
    losses = {CE: [row(CE, s, same) for s in range(3)], OURS: [row(OURS, s, better) for s in range(1, 4)]}
    whole = findings.Part("", "", {name: Setting(rows) for name, rows in losses.items()}, {}, True)
    gap = whole.for_other_images(OURS, CE)
    assert gap.count == 2  # of the seeds that both have
    assert gap.mean == pytest.approx(25.0)
    assert gap.low < 25 < gap.high  # no seed differs, but the images do
    assert whole.for_other_images(OURS, CE) == gap
    losses[CE] = losses[CE][:1]
    assert (
        findings.Part("", "", {n: Setting(r) for n, r in losses.items()}, {}, True).for_other_images(OURS, CE) is None
    )


def test_expected_info_nce_is_compared_where_it_was_trained(monkeypatch):
    both, paper = part("a", {"expected-info-nce": 0.02}, LOSSES), part("b", {})
    monkeypatch.setattr(findings, "parts", lambda rows: [both, paper])
    found = findings.claims([])["accuracy-expected"]
    assert found.on == "a"
    assert found.verdict == "beyond"
    assert found.ours.startswith("+2.00 [+2.00, +2.00] points against soft target cross-entropy")
    monkeypatch.setattr(findings, "parts", lambda rows: [paper])
    assert "accuracy-expected" not in findings.claims([])


@pytest.mark.parametrize(("options", "message"), [({"rates": ()}, "rates: got"), ({"batch": 1}, "batch: got 1")])
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_an_unknown_data_set_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        study_command.main(["accuracy", "--out", str(tmp_path), "--data", "mnist"])
    assert "data: got 'mnist', need one of digits" in capsys.readouterr().err
