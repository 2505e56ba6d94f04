"""Heads: the grid, and gains and verdicts computed from rows."""

import random

import pytest

from softnce.lab import studies
from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.losses import LOSSES
from softnce.lab.report import charts, drawing
from softnce.lab.studies.head import findings, page
from softnce.lab.studies.head import run as head
from softnce.lab.studies.head.run import CE, OURS


def rows_with(gains, lead=0.0, noise=0.0, config=None):
    """Rows of three seeds whose gains of three layers, and lead of ours with a linear head, are given in points."""
    config = config or head.Config(seeds=3, data=("cifar100",), epochs=(3,), rates=(1e-3, 3e-3))
    draw = random.Random(0)
    found = []
    for run in head.runs(config) + [p for s in head.settings(config) for p in _seeds(s)]:
        top1 = 60 + 0.1 * run.seed + (gains[run.loss.name] if run.head.kind == "mlp" else 0)
        top1 += lead if run.loss.name == OURS else 0
        top1 += draw.uniform(-noise, noise)
        scores = {"top1": top1 / 100, "ece": 0.1, "nll": 1.0}
        better = 0.7 if run.lr == 3e-3 else 0.6
        result = {"held_out": {"top1": better}, "test": scores, "scaled": scores}
        found.append(Row(str(len(found)), to_mapping(run), result, 1.0, "", {}))
    return found


def _seeds(setting):
    from dataclasses import replace

    return [replace(setting, lr=3e-3, seed=seed) for seed in (1, 2)]


GAINS = dict.fromkeys(LOSSES, 0.5) | {CE: 0.4, OURS: 0.9}


def test_every_loss_meets_every_head():
    config = head.PRESETS["paper"]
    every = {(source, loss, *kind) for source in config.data for loss in LOSSES for kind in head.HEADS}
    wanted = {one for one in every if one[1] != head.EXPECTED or not one[-1]}
    found = [(run.data, run.loss.name, run.head.kind, run.head.output_norm) for run in head.settings(config)]
    assert len(found) == len(wanted)
    assert set(found) == wanted
    assert len(head.runs(config)) == len(wanted) * len(config.rates)


def test_the_papers_linear_heads_are_behind_by_what_its_figures_say():
    assert findings.PAPER_LINEAR["cifar100"] == pytest.approx(-0.28)
    assert findings.PAPER_LINEAR["tiny-imagenet"] == pytest.approx(-0.93)


def test_gains_are_paired_and_at_the_chosen_rate():
    rows = rows_with(GAINS, lead=-0.3)
    (part,) = findings.parts(rows)
    assert part.seeds == 3
    assert {setting.lr for setting in part.settings.values()} == {3e-3}
    for loss, gain in GAINS.items():
        found = part.gains()[loss]
        assert (found.mean, found.low, found.high) == pytest.approx((gain,) * 3)  # the seeds' own level cancels
    assert part.extra().mean == pytest.approx(0.5)
    assert part.lead(head.LINEAR).mean == pytest.approx(-0.3)


@pytest.mark.parametrize(
    ("gains", "lead", "noise", "gain_verdict", "linear_verdict"),
    [
        (GAINS, -0.3, 0.01, "reproduced", "reproduced"),
        (GAINS | {OURS: 0.1}, 0.3, 0.01, "not reproduced", "not reproduced"),
        (GAINS | {OURS: 0.4}, 0.0, 0.05, "not reproduced", "not reproduced"),  # too small for the paper's
        (GAINS, -0.3, 2.0, "undecided", "undecided"),
    ],
)
def test_verdicts(gains, lead, noise, gain_verdict, linear_verdict):
    found = studies.load("head").judge(rows_with(gains, lead, noise))
    assert found["head-gain"].verdict == gain_verdict
    assert found["head-gain"].on == "CIFAR-100 features, 3 seeds"
    assert found["head-linear"].verdict == linear_verdict


def test_expected_info_nce_is_compared_with_both_heads():
    found = studies.load("head").judge(rows_with(GAINS, -0.3))["head-expected"]
    assert found.verdict == "beyond"
    assert found.ours == (
        "CIFAR-100: +0.00 [+0.00, +0.00] points against soft target cross-entropy with a linear head, "
        "+0.10 [+0.10, +0.10] with three layers; three layers instead of a linear head: +0.50 [+0.50, +0.50]"
    )


def test_digits_decide_nothing():
    quick = head.Config(seeds=3, data=("digits",), epochs=(1,), rates=(1e-3, 3e-3))
    found = studies.load("head").judge(rows_with(GAINS, -0.3, config=quick))
    assert {finding.verdict for finding in found.values()} == {"undecided"}


def test_the_page_says_the_numbers_of_the_rows():
    section = page.section(rows_with(GAINS, lead=-0.3))
    text = section.summary + " ".join(block for block in section.blocks if isinstance(block, str))
    for number in ("+0.90", "+0.40", "+0.50 [+0.50, +0.50]", "−0.30 [−0.30, −0.30]"):
        assert number in text
    assert page.section(rows_with(GAINS)[:1]).title
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)


def test_bad_settings_are_named():
    for options, word in (({"epochs": (3,)}, "epochs"), ({"rates": ()}, "rates"), ({"batch": 1}, "batch")):
        with pytest.raises(ValueError, match=word):
            head.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(made):
    rows = made("head", "--epochs", "[1]", "--rates", "[0.01]", "--seeds", "2", "--compared_seeds", "3")
    assert (
        len(rows) == (5 * 4 + 2) * 2 + 2 * 2
    )  # a third seed for the two losses that are compared, with both plain heads
