"""Slopes, effects and verdicts computed from rows."""

import pytest
from lab.studies.long_tail.rows import rows_with

from softnce.lab import studies
from softnce.lab.studies.long_tail import findings
from softnce.lab.studies.long_tail import run as long_tail


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
