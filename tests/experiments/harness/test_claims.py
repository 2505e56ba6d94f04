"""Verdicts follow from intervals; a single seed decides nothing; numbers of seeds that would decide."""

import random

import pytest

from experiments.harness.claims import MARGIN, Claim, Finding, checked, needed, seeds_needed, together, verdict
from experiments.harness.statistics import Estimate, estimate, exactly


def e(low, high, count=5):
    return Estimate((low + high) / 2, low, high, count)


@pytest.mark.parametrize(
    ("found", "bounds", "decided"),
    [
        ([e(0.1, 0.4)], {"above": 0}, "reproduced"),
        ([e(-0.1, 0.4)], {"above": 0}, "undecided"),
        ([e(-0.4, -0.1)], {"above": 0}, "not reproduced"),
        ([e(0.1, 0.4, count=1)], {"above": 0}, "undecided"),
        ([e(0.1, 0.4)], {"above": 0, "new": True}, "beyond"),
        ([e(0.1, 0.4), e(0.2, 0.3)], {"above": 0}, "reproduced"),
        ([e(0.1, 0.4), e(-0.2, 0.3)], {"above": 0}, "undecided"),
        ([e(0.1, 0.4), e(-0.2, -0.1)], {"above": 0}, "not reproduced"),
        ([e(-0.4, 0.4)], {"above": -MARGIN, "below": MARGIN}, "reproduced"),
        ([e(-0.6, 0.4)], {"above": -MARGIN, "below": MARGIN}, "undecided"),
        ([e(0.6, 0.9)], {"above": -MARGIN, "below": MARGIN}, "not reproduced"),
        ([e(-0.4, -0.1)], {"above": 0, "cause": [e(0.1, 0.4)]}, "explained"),
        ([e(-0.4, 0.1)], {"above": 0, "cause": [e(0.1, 0.4)]}, "undecided"),
        ([e(-0.4, -0.1)], {"above": 0, "cause": [e(-0.1, 0.4)]}, "not reproduced"),
        ([exactly(1e-15)], {"below": 1e-12, "new": True}, "beyond"),
        ([], {"above": 0}, "undecided"),
        ([e(float("nan"), float("nan"))], {"above": 0}, "undecided"),
    ],
)
def test_verdicts(found, bounds, decided):
    assert verdict(*found, **bounds) == decided


def test_seeds_needed_have_the_power_that_is_asked_for():
    # Known: a t test at 5 % (two-sided) of a mean of half a standard deviation needs 34 values for a power of 80 %.
    gap = estimate([0.5 + x for x in (-1.0, 1.0, -1.0, 1.0, 0.0)])  # mean 0.5, standard deviation 1
    assert seeds_needed(gap, 0.5) == 34
    assert seeds_needed(gap, 0.0) is None
    assert seeds_needed(estimate([0.5, 0.5]), 0.5) == 2
    assert needed(gap, above=0) == " (about 34 seeds would decide)"
    assert needed(gap - 0.45, above=0, unit="folds") == " (more than 200 folds would decide)"
    assert needed(gap - (-5.0), above=0) == ""
    assert needed(estimate([0.5]), above=0) == ""


def test_equivalence_takes_more_seeds_than_either_of_its_sides():
    gap = estimate([-1.0, 1.0, -1.0, 1.0, 0.0])  # mean 0, standard deviation 1
    count = seeds_needed(gap, 0.5, 0.5)
    assert count > seeds_needed(gap, 0.5) == 34
    # Simulated: so often both ends are within ±0.5; of 4000 repetitions the share has a deviation of 0.006.
    numbers = random.Random(0)
    tests = [estimate([numbers.gauss(0, 1) for _ in range(count)]) for _ in range(4000)]
    share = sum(one.low > -0.5 and one.high < 0.5 for one in tests) / 4000
    assert 0.78 < share < 0.84


def test_several_data_sets():
    holds, fails, open_ = (Finding("1", "a", v) for v in ("reproduced", "not reproduced", "undecided"))
    assert together([holds, holds]) == Finding("1; 1", "a; a", "reproduced")
    assert together([holds, fails]).verdict == "not reproduced"
    assert together([holds, open_]).verdict == "undecided"


def test_findings_of_no_claim_are_refused():
    claims = [Claim("gap", "text", "Figure 1", "3")]
    with pytest.raises(ValueError, match="gpa is no claim of density"):
        checked("density", claims, {"gpa": Finding("1", "a", "beyond")})
