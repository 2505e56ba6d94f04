"""The curves of the gradient analysis, and the supplement's four cases in numbers."""

import pytest

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.report import charts, drawing
from softnce.lab.studies.dynamics.run import Run, perform


def test_weak_targets_are_silent_and_strong_ones_are_not():
    found = perform(Run(0.1, 10, 0.2))
    middle = len(found["cosine"]) // 2
    for response, ends in ((found["true"], (0, -1)), (found["wrong"], (0, -1))):
        assert all(response[end] == pytest.approx(0, abs=1e-7) for end in ends)
        assert response[middle] > 0.01


def test_hard_pairs_respond_to_more_negatives():
    found = perform(Run(0.1, 10, 0.2))
    for response in (found["hard_positive"], found["hard_negative"]):
        assert response == sorted(response)
        assert response[-1] > 1.5 * response[0]


def test_the_four_cases_of_the_supplement():
    epsilon, classes = 0.1, 10
    small, large = epsilon / classes, 1 - (classes - 1) * epsilon / classes
    found = perform(Run(epsilon, classes, 1.0))["cases"]
    assert found["i = i₀, i_l ≠ i₀"] == pytest.approx([small, small, 1 - epsilon])
    assert found["i = i₀, i_l = i₀"] == pytest.approx([large] * 3)
    assert found["i ≠ i₀, i_l = i"] == pytest.approx([epsilon - 1, large, large])
    assert found["i ≠ i₀, i_l ≠ i, i₀"] == pytest.approx([epsilon - 1, small, 1 - epsilon])
    assert found["i ≠ i₀, i_l = i₀"] == pytest.approx([0, small, 0])


def test_the_penalty_is_larger_on_the_true_class():
    found = perform(Run(0.1, 10, 1.0))
    assert found["penalty_true"] == pytest.approx(0.91 * 0.09)
    assert found["penalty_other"] == pytest.approx(0.01 * 0.99)


@pytest.mark.slow
def test_the_page(tmp_path):
    study_command.main(["dynamics", "--out", str(tmp_path)])
    study = studies.load("dynamics")
    section = study.page.section(study.results(tmp_path).rows())
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.save(block, tmp_path)
    with pytest.raises(SystemExit):
        study_command.main(["dynamics", "--out", str(tmp_path), "--classes", "2"])
