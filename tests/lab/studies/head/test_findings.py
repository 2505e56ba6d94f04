"""Gains and verdicts computed from rows."""

import pytest
from lab.studies.head.rows import GAINS, rows_with

from softnce.lab import studies
from softnce.lab.studies.head import findings
from softnce.lab.studies.head import run as head
from softnce.lab.studies.head.run import OURS


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
        "points of top-1 minus soft target cross-entropy's: CIFAR-100 +0.00 [+0.00, +0.00] with a linear head, "
        "+0.10 [+0.10, +0.10] with three layers"
    )


def test_digits_decide_nothing():
    quick = head.Config(seeds=3, data=("digits",), epochs=(1,), rates=(1e-3, 3e-3))
    found = studies.load("head").judge(rows_with(GAINS, -0.3, config=quick))
    assert {finding.verdict for finding in found.values()} == {"undecided"}
