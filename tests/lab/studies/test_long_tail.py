"""Rare classes: what the correction does, in a problem whose optimum is known, and what the page makes of rows."""

import math
from dataclasses import replace

import pytest
import torch

from softnce import InfoNCE, SoftTargets
from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.configuration import to_mapping
from softnce.lab.data import features
from softnce.lab.data.imbalance import thirds
from softnce.lab.experiment import study as experiment
from softnce.lab.experiment.probe import fit
from softnce.lab.experiment.results import Row
from softnce.lab.recipes.recipe import Loss
from softnce.lab.report import charts, drawing
from softnce.lab.report.page import Table
from softnce.lab.studies.long_tail import findings, page
from softnce.lab.studies.long_tail import run as long_tail
from softnce.losses import NLL

PRIOR = torch.tensor([0.6, 0.25, 0.1, 0.05])


def scores_of(loss):
    """Class scores fitted to labels that no feature says anything about: p(y|x) = p(y)."""
    labels = torch.repeat_interleave(torch.arange(4), (PRIOR * 4000).long())
    head = torch.nn.Linear(1, 4, bias=False)
    torch.nn.init.zeros_(head.weight)
    targets = SoftTargets.from_labels(labels, 4)
    fit(head, loss, torch.ones(4000, 1), targets, batch=100, lr=0.05, epochs=8, seed=0)
    return head.weight.detach()[:, 0]


def test_the_correction_is_the_prior_and_without_it_the_prior_is_gone():
    """p(y|x)/p(y) is 1 for every class here. Scores are learned to about 0.1 in 320 steps at these batches."""
    expected = PRIOR.log() - PRIOR.log().mean()
    for loss, wanted in ((NLL(), expected), (InfoNCE(PRIOR), expected), (InfoNCE(None), 0 * expected)):
        found = scores_of(loss)
        assert found - found.mean() == pytest.approx(wanted, abs=0.15)


@pytest.fixture(scope="module")
def trained():
    run = long_tail.Run("digits", Loss("nll"), long_tail.targets_for("nll"), batch=32, epochs=2, imbalance=10.0)
    run = replace(run, head=replace(run.head, hidden=32))
    return run, long_tail.perform(run)


def test_the_tail_is_trained_on_less_and_measured_by_class(trained):
    _, result = trained
    counts, accuracy = result["class_counts"], result["class_accuracy"]
    assert counts[0] / counts[-1] == pytest.approx(10, rel=0.05)
    test = features.load("digits").test.y
    weights = torch.bincount(test).double() / len(test)
    assert (weights * torch.tensor(accuracy)).sum().item() == pytest.approx(result["test"]["top1"], abs=1e-3)
    many, _, few = thirds(torch.tensor(counts))
    assert result["groups"]["many"] == pytest.approx(torch.tensor(accuracy)[many].mean().item(), abs=1e-3)
    assert result["groups"]["few"] == pytest.approx(torch.tensor(accuracy)[few].mean().item(), abs=1e-3)
    assert result["switched"]["top1"] != result["test"]["top1"]
    assert sum(result["class_score"]) == pytest.approx(0, abs=1e-2)


def test_a_run_says_how_long_its_tail_is(trained):
    run, _ = trained
    assert to_mapping(run)["imbalance"] == 10.0


def rows_with(shift=1.0, effect=3.0, after=2.0, data="cifar100"):
    """Rows of three seeds: leaving the correction out moves scores by −shift·log p(y) and accuracy by ``effect``.

    Switching the prior afterwards adds ``after`` points.
    """
    config = long_tail.Config(data=data, imbalance=(100.0,), rates=(1e-3,))
    counts = [round(500 * 100 ** (-k / 9)) for k in range(10)]
    surprise = [math.log(sum(counts) / count) for count in counts]
    found = []
    for setting in long_tail.settings(config):
        bare = setting.loss.noise == "uniform"
        for seed in range(3):
            top1 = (50 + 0.3 * seed + (effect if bare else 0)) / 100
            scores = {"top1": top1, "ece": 0.1, "nll": 1.0}
            result = {
                "held_out": {"top1": top1},
                "test": scores,
                "switched": scores | {"top1": top1 + after / 100},
                "groups": {"many": top1, "some": top1, "few": top1},
                "class_counts": counts,
                "class_accuracy": [top1] * 10,
                "class_score": [shift * s if bare else 0.0 for s in surprise],
            }
            run = replace(setting, lr=1e-3, seed=seed)
            found.append(Row(str(len(found)), to_mapping(run), result, 1.0, "", {}))
    return found


def test_slope_and_effect_are_read_off_the_rows():
    (tail,) = findings.tails(rows_with(shift=0.8, effect=3.0))
    assert tail.complete
    for loss in long_tail.CONTRASTIVE:
        assert tail.slopes(loss) == {1e-3: pytest.approx(0.8)}
        assert tail.switched(loss).mean == pytest.approx(2.0)
        assert tail.effect(loss).mean == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("effect", "after", "data", "verdict"),
    [
        (3.0, 2.0, "cifar100", "explained"),
        (3.0, 1.0, "cifar100", "undecided"),  # the prior is not what it is
        (-3.0, 2.0, "cifar100", "undecided"),
        (3.0, 2.0, "digits", "undecided"),
    ],
)
def test_verdict(effect, after, data, verdict):
    found = studies.load("long-tail").judge(rows_with(effect=effect, after=after, data=data))
    assert found["noise-correction"].verdict == verdict
    assert found["long-tail-expected"].verdict == ("undecided" if data == "digits" else "beyond")
    assert f"{effect:+.1f}".replace("-", "−") in found["long-tail-expected"].ours


def test_the_page_says_the_numbers_of_the_rows():
    rows = rows_with(shift=0.8, effect=3.0)
    section = page.section(rows)
    assert "+3.00 [+3.00, +3.00]" in section.summary
    predictions = next(block for block in section.blocks if isinstance(block, Table))
    measured = [cells[-1] for cells in predictions.rows]
    assert measured[:2] == ["+0.00 [+0.00, +0.00]", "+1.00 [+1.00, +1.00]"]  # bare at +3, NLL switched at +2
    assert measured[2:5] == ["0.80", "+2.0 [+2.0, +2.0]; +3.0 [+3.0, +3.0]", "; ".join(3 * ["+3.0 [+3.0, +3.0]"])]
    reading = next(block for block in section.blocks if isinstance(block, str))
    assert "53.3\N{NO-BREAK SPACE}%, of InfoNCE, without" in reading
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)
    assert page.section(rows[:1]).title
    assert findings.claims(rows[:1]) == {}


def test_every_contrastive_loss_is_trained_both_ways():
    settings = long_tail.settings(long_tail.PRESETS["paper"])
    found = {(run.loss.name, run.loss.noise, run.imbalance, run.loss.noise_count) for run in settings}
    assert len(found) == len(settings) == 2 * 8 + 4  # expected InfoNCE at one imbalance, with its default m and with 0
    for name in long_tail.CONTRASTIVE:
        assert {(name, kind, 100.0, None) for kind in ("labels", "uniform")} <= found
    assert {("expected-info-nce", kind, 100.0, 0) for kind in ("labels", "uniform")} <= found


def test_bad_settings_are_named():
    for options, word in (
        ({"imbalance": (0.1,)}, "imbalance"),
        ({"rates": (0.0,)}, "rates"),
        ({"epochs": 0}, "epochs"),
    ):
        with pytest.raises(ValueError, match=word):
            long_tail.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "one_per_core", map)
    command = ["long-tail", "--out", str(tmp_path), "--epochs", "1", "--rates", "[0.01]", "--seeds", "2"]
    for _ in range(2):
        study_command.main(command)
    assert capsys.readouterr().out.count(": 0 runs to do") == 2
    rows = studies.load("long-tail").results(tmp_path).rows()
    assert len(rows) == (8 + 4) * 2
    assert "nan" not in page.section(rows).summary
