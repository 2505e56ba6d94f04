from dataclasses import replace
from pathlib import Path

import pytest

from softnce.lab import recipes
from softnce.lab.recipes.resuming import changes

RECIPE = recipes.load("laptop/digits")


@pytest.mark.parametrize(
    ("group", "values", "why"),
    [
        ("compute", {"devices": 4, "micro_batch": 2}, []),
        ("data", {"dir": Path("moved"), "workers": 0, "corrupt": "skip"}, []),
        ("schedule", {"epochs": RECIPE.schedule.epochs + 1}, []),
        ("schedule", {"max_steps": 7}, ["schedule.max_steps was -1, is 7"]),
        ("schedule", {"epochs": 1}, [f"schedule.epochs was {RECIPE.schedule.epochs}, is 1"]),
        ("loss", {"name": "nll"}, [f"loss.name was {RECIPE.loss.name}, is nll"]),
        ("data", {"holdout": 0.25}, [f"data.holdout was {RECIPE.data.holdout}, is 0.25"]),
    ],
)
def test_what_may_change(group, values, why):
    targets = replace(RECIPE.targets, smoothing=0.0, mixup=0.0, cutmix=0.0)  # so that any loss takes them
    before = replace(RECIPE, targets=targets)
    assert changes(before, replace(before, **{group: replace(getattr(before, group), **values)})) == why


@pytest.mark.parametrize(("steps", "why"), [(9, []), (-1, []), (7, ["schedule.max_steps was 8, is 7"])])
def test_more_steps_extend_a_run(steps, why):
    """No limit, −1, is the most."""
    before, now = (replace(RECIPE, schedule=replace(RECIPE.schedule, max_steps=n)) for n in (8, steps))
    assert changes(before, now) == why


def test_the_seed_may_not():
    assert changes(RECIPE, replace(RECIPE, seed=7)) == ["seed was 0, is 7"]
