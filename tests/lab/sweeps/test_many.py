"""Several trainings: done once, continued, failures told apart."""

from dataclasses import replace

import pytest

from softnce.lab import recipes
from softnce.lab.recipes.recipe import Compute
from softnce.lab.sweeps import many
from softnce.lab.sweeps.grid import Training


def here(runs):
    """An engine without processes."""
    return map(many.perform, runs)


def nothing(runs):
    assert list(runs) == []
    return iter(())


@pytest.fixture
def trainings(run, tmp_path):
    root, _ = run
    recipe = recipes.load(str(root / "out" / "recipe.yaml"))
    recipe = replace(recipe, schedule=replace(recipe.schedule, epochs=1))
    return [Training(replace(recipe, seed=seed), tmp_path / f"seed={seed}") for seed in range(2)]


@pytest.mark.slow
def test_trainings_are_done_once(trainings, tmp_path):
    assert len(list(many.train_all(trainings[:1], tmp_path, here))) == 1
    assert [many.is_finished(run) for run in trainings] == [True, False]
    (second,) = many.train_all(trainings, tmp_path, here)
    assert second.run == trainings[1]
    assert list(many.train_all(trainings, tmp_path, nothing)) == []


def made_up(run):
    """A finished training, without training."""
    run.out.mkdir(exist_ok=True)
    (run.out / "recipe.yaml").write_text(recipes.to_yaml(run.recipe))
    (run.out / "results.json").write_text("{}")
    return many.Trained(run, {})


def test_results_of_another_recipe_are_not_taken_for_these(trainings, tmp_path):
    assert len(list(many.train_all(trainings, tmp_path, lambda runs: map(made_up, runs)))) == 2
    loss = replace(trainings[0].recipe.loss, name="soft-ce")
    others = [replace(run, recipe=replace(run.recipe, loss=loss)) for run in trainings]
    with pytest.raises(
        ValueError, match=r"seed=0 holds a run of another recipe: loss.name was nll, is soft-ce; choose"
    ):
        list(many.train_all(others, tmp_path, nothing))
    faster = [replace(run, recipe=replace(run.recipe, compute=Compute(eval_batch=7))) for run in trainings]
    assert list(many.train_all(faster, tmp_path, nothing)) == []


def test_the_folder_of_a_run_does_not_take_several(trainings, tmp_path):
    (tmp_path / "recipe.yaml").write_text(recipes.to_yaml(trainings[0].recipe))
    with pytest.raises(ValueError, match=r"holds a run, so it cannot hold several: choose another --out$"):
        list(many.train_all(trainings, tmp_path, nothing))


def test_more_epochs_extend_finished_trainings(trainings, tmp_path):
    assert len(list(many.train_all(trainings, tmp_path, lambda runs: map(made_up, runs)))) == 2
    schedule = replace(trainings[0].recipe.schedule, epochs=2)
    longer = [replace(run, recipe=replace(run.recipe, schedule=schedule)) for run in trainings]
    assert not any(map(many.is_finished, longer))
    assert [done.run for done in many.train_all(longer, tmp_path, lambda runs: map(made_up, runs))] == longer
    assert all(map(many.is_finished, longer))


@pytest.mark.slow
def test_a_training_that_diverges_does_not_stop_the_others(trainings, tmp_path):
    optimiser = replace(trainings[0].recipe.optimiser, base_lr=1e30)
    trainings[0] = replace(trainings[0], recipe=replace(trainings[0].recipe, optimiser=optimiser))
    failed, trained = many.train_all(trainings, tmp_path, here)
    assert "the class scores are NaN after step 2 (epoch 0); last good checkpoint: none yet" in failed.error
    assert not failed.refused
    assert trained.results["last"]["epoch"] == 0
    assert (tmp_path / "seed=0" / "failure.txt").read_text().startswith("the class scores are NaN")


def test_a_training_that_cannot_start_says_why(trainings, tmp_path):
    data = replace(trainings[0].recipe.data, dir=tmp_path / "nowhere")
    runs = [replace(trainings[0], recipe=replace(trainings[0].recipe, data=data))]
    with pytest.raises(ValueError, match=r"seed=0: .*nowhere"):
        list(many.train_all(runs, tmp_path, here))


@pytest.mark.parametrize(
    ("change", "environment", "message"),
    [({"devices": 2}, "1", "compute.devices"), ({"nodes": 2}, "1", "compute.nodes"), ({}, "2", "omit torchrun")],
)
def test_each_training_uses_one_device(change, environment, message, trainings, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", environment)
    recipe = trainings[0].recipe
    changed = replace(trainings[0], recipe=replace(recipe, compute=replace(recipe.compute, **change)))
    with pytest.raises(ValueError, match=message):
        many.engine("processes", "", [changed])
