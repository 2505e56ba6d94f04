"""The table of claims as text, and what verdicts ask for."""

import re

import pytest

from softnce.lab import studies
from softnce.lab.experiment import claims
from softnce.lab.experiment.statistics import estimate


def test_the_table_as_text():
    known = studies.load("information").claims
    text = claims.as_markdown(known, {"bound": claims.Finding("1.0 | 2", "a table", "reproduced")})
    assert text.count("\n") == 3
    assert "1.0 \\| 2" in text
    assert "**reproduced**" in text


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([-0.1, 0.1, 0.0, 0.05], "reproduced"),
        ([-0.8, -0.9, -0.7, -0.8], "not reproduced"),
        ([-0.8, -1.1, -0.4, -0.8], "undecided"),  # real, but maybe small
        ([-0.2, -0.21, -0.2, -0.19], "reproduced"),  # real, but small
        ([-0.8, 0.9, -0.7, 0.8], "undecided"),
        ([-3.0], "undecided"),
    ],
)
def test_on_par_is_within_half_a_point(gaps, verdict):
    assert claims.on_par(estimate(gaps)) == verdict


def test_an_undecided_gap_says_what_would_take_how_many():
    behind = estimate([-0.9, -0.6, -0.8, -0.5])  # clearly below 0, perhaps within half a point
    assert claims.ahead_would_take(behind) == ""
    assert re.fullmatch(
        r" \(about \d+ seeds would decide whether it is within half a point\)", claims.on_par_would_take(behind)
    )
    assert re.fullmatch(r" \(about \d+ folds would decide\)", claims.ahead_would_take(estimate([-0.2, 0.9]), "folds"))
    assert claims.on_par_would_take(estimate([0.4])) == "", "one value says nothing of the deviation"


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [([0.1, 0.2], "undecided"), ([0.1, 0.11], "reproduced"), ([-0.1, -0.11], "not reproduced"), ([3.0], "undecided")],
)
def test_a_lead_needs_an_interval(gaps, verdict):
    assert claims.ahead(estimate(gaps)) == verdict
    opposite = {"reproduced": "not reproduced", "not reproduced": "reproduced"}
    assert claims.ahead(-estimate(gaps)) == opposite.get(verdict, verdict)


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "not reproduced"], "not reproduced"),
        (["undecided", "not reproduced"], "not reproduced"),
        (["reproduced", "undecided"], "undecided"),
        (["beyond", "beyond"], "beyond"),
    ],
)
def test_several_data_sets_say_one_thing(verdicts, verdict):
    found = claims.together([claims.Finding(f"+{i}", f"set {i}", each) for i, each in enumerate(verdicts)])
    assert (found.ours, found.on, found.verdict) == ("+0; +1", "set 0; set 1", verdict)


def test_claims_are_distinct_and_belong_to_studies():
    every = [claim for name in studies.names() for claim in studies.load(name).claims]
    assert len({claim.key for claim in every}) == len(every)
    for claim in every:
        assert claim.command == f"softnce study {claim.study} --preset paper"
        assert claim.text.endswith(".")
        assert not re.search(r"\b(eq|fig|tab|sec|supp):", claim.where), "a place in words, not a label of the source"


def test_findings_are_checked():
    finding, known = claims.Finding("1", "data", "reproduced"), studies.load("density").claims
    assert claims.checked("density", known, {"density-gap": finding}) == {"density-gap": finding}
    with pytest.raises(ValueError, match="'density-gab' is not a claim of density; did you mean 'density-gap'"):
        claims.checked("density", known, {"density-gab": finding})
    with pytest.raises(ValueError, match="verdict: got 'proved', need one of reproduced"):
        claims.Finding("1", "data", "proved")
