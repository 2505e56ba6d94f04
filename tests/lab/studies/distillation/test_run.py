"""The grid of lessons, and the study from the command line."""

import pytest

from softnce.lab.studies.distillation import run as study


def test_the_grid_has_every_lesson_once():
    config = study.PRESETS["paper"]
    settings = study.settings(config)
    assert len(set(settings)) == len(settings)
    for method in study.SOFT:
        found = {(s.k, s.remainder, s.temperature) for s in settings if s.method == method}
        control = method in (study.CE, study.OURS)
        assert len(found) == 1 + 4 + 3 + 4 + control  # labels; spread; renormalised; temperature 2; one shared
        assert {k for k, _, _ in found} == {None, 0, 1, 2, 5}
    for method in study.HARD:
        assert sorted(s.k or 0 for s in settings if s.method == method) == [0, 1]


def test_bad_settings_are_named():
    for options, word in (({"share": 0.0}, "share"), ({"k": (-1,)}, "k"), ({"temperatures": ()}, "temperatures")):
        with pytest.raises(ValueError, match=word):
            study.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(made):
    rows = made("distillation", "--epochs", "1", "--teacher_epochs", "1", "--seeds", "2", "--compared_seeds", "2")
    assert len(rows) == 1 + 2 * len(study.settings(study.PRESETS["quick"]))
