"""What both models say is joined honestly."""

from base64 import b64encode

import numpy as np
import pytest

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import Setting
from softnce.lab.losses import LOSSES, PAPER
from softnce.lab.studies.accuracy import findings
from softnce.lab.studies.accuracy.findings import CE, OURS


def part(title, gains, names=PAPER):
    """Three seeds of every loss, top-1 of 50 % and what ``gains`` adds."""

    def row(loss, seed):
        result = {"test": {"top1": 0.5 + gains.get(loss, 0.0), "top5": 0.9}}
        return Row("", {"seed": seed, "lr": 1e-3, "loss": {"name": loss}}, result, 1.0, "", {})

    losses = {loss: Setting([row(loss, seed) for seed in range(3)]) for loss in names}
    return findings.Part(title, title, losses, {loss: {3e-4: 1.0, 1e-3: 2.0, 3e-3: 1.0} for loss in names}, True)


def test_a_claim_fails_where_it_fails_for_one_model(monkeypatch):
    ahead, behind = {"soft-target-info-nce": 0.02, "nll": 0.01}, {"soft-target-info-nce": -0.02}
    monkeypatch.setattr(findings, "parts", lambda rows: [part("a", ahead), part("b", behind)])
    found = findings.claims([])
    assert found["accuracy-nll"].verdict == "not reproduced"
    assert found["accuracy-nll"].on == "a; b"
    assert found["accuracy-soft-ce"].verdict == "not reproduced"  # both far from it, in either direction
    assert found["accuracy-rates"].verdict == "reproduced"


def test_other_images_widen_the_interval():
    def row(loss, seed, right):
        bits = b64encode(np.packbits(np.array(right, dtype=np.uint8))).decode()
        result = {"right": bits, "test": {"top1": sum(right) / len(right)}}
        return Row("", {"loss": {"name": loss}, "seed": seed}, result, 1.0, "", {})

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
