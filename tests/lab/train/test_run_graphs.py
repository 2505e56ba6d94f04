"""`softnce train` and `softnce evaluate` on graphs: the recipes, the classifier and the loop that images use."""

import json
import signal
from dataclasses import replace

import pytest
from lab.training import same, small_graphs, softnce_train, weights

from softnce.lab import recipes
from softnce.lab.commands.evaluate import main as evaluate_command
from softnce.lab.commands.predict import main as predict_command
from softnce.lab.losses import PAPER
from softnce.lab.recipes.recipe import (
    GraphData,
    GraphModel,
    GraphOptimiser,
    Loss,
    Schedule,
    Targets,
)
from softnce.lab.train import run as train
from softnce.lab.train.checkpoints import Checkpoints, Interrupted
from softnce.lab.train.evaluate import evaluate


@pytest.fixture(scope="module")
def uninterrupted(tissue, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    return small_graphs(tissue), out, train.train(small_graphs(tissue), out)


def test_unknown_parts_and_folds_are_named(tissue, tmp_path):
    with pytest.raises(ValueError, match=r"optimiser\.decayed: got 'frist', but the network has node_encoder, "):
        train.prepare(small_graphs(tissue, optimiser=GraphOptimiser(decayed="frist")), tmp_path / "a")
    with pytest.raises(ValueError, match="fold: got 7, need 0 to 4"):
        train.prepare(small_graphs(tissue, data=GraphData("tissue", tissue, fold=7)), tmp_path / "b")
    assert not list(tmp_path.iterdir()), "nothing is claimed for a run that cannot start"


def test_results_of_a_run(uninterrupted):
    recipe, out, results = uninterrupted
    assert json.loads((out / "results.json").read_text()) == results
    assert recipes.load(str(out / "recipe.yaml")) == recipe
    assert results["best"]["top1"] >= results["last"]["top1"]
    assert results["test"].keys() >= {"top1", "class_average", "class_average_published", "ece", "best_temperature"}


def test_evaluate_scores_a_checkpoint(uninterrupted, tmp_path, capsys):
    _, out, results = uninterrupted
    found = evaluate(out, split="validation", progress=False).results
    for name in ("top1", "class_average", "nll", "ece"):
        assert found[name] == pytest.approx(results["best"][name], abs=1e-6), name
    evaluate_command([str(out), "--out", str(tmp_path), "--progress", "false"])
    assert json.loads((tmp_path / "evaluation.json").read_text())["top1"] == results["test"]["top1"]
    assert {path.name for path in tmp_path.iterdir()} == {"evaluation.json", "reliability.png", "confusion.png"}
    assert "class_average" in capsys.readouterr().out


def test_predict_says_that_it_takes_images(uninterrupted):
    with pytest.raises(SystemExit, match="classifies the nodes of graphs, not images"):
        predict_command([str(uninterrupted[1]), "a.png"])


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4])
def test_every_checkpoint_resumes_exactly(uninterrupted, tmp_path, step, monkeypatch):
    """In the middle of an epoch, at its end, at the start of the next: stop there, resume, compare bit by bit."""
    recipe, whole, results = uninterrupted
    asked = Checkpoints._asked
    monkeypatch.setattr(Checkpoints, "_asked", lambda self, trainer: (trainer.global_step == step, False))
    with pytest.raises(Interrupted):
        train.train(recipe, tmp_path / "run")
    monkeypatch.setattr(Checkpoints, "_asked", asked)
    assert train.train(recipe, tmp_path / "run", resume=True) == results
    same(weights(whole), weights(tmp_path / "run"))


@pytest.mark.slow
def test_a_killed_run_goes_on(uninterrupted, tmp_path):
    recipe, whole, results = uninterrupted
    file, out = tmp_path / "r.yaml", tmp_path / "run"
    file.write_text(recipes.to_yaml(recipe))
    ((code, said),) = softnce_train(str(file), "--out", str(out), sabotage=(signal.SIGKILL, 5))
    assert code == -signal.SIGKILL, said
    assert train.train(recipe, out, resume=True) == results
    same(weights(whole), weights(out))


@pytest.mark.parametrize("loss", PAPER)
def test_accumulation_learns_what_one_pass_does(tissue, tmp_path, loss):
    """Graphs of other sizes in each micro-batch, some nodes unlabelled: the mean is over the whole batch's nodes."""
    hard = loss in ("nll", "info-nce")
    recipe = small_graphs(
        tissue,
        data=GraphData("tissue", tissue, votes=not hard),
        model=GraphModel(layers=2, hidden=8, dropout=0.0),
        loss=Loss(loss),
        targets=Targets(smoothing=0.0 if hard else 0.1),
        optimiser=GraphOptimiser(batch=4, lr=1e-3, name="sgd"),
        schedule=Schedule(epochs=1, warmup_epochs=0.0, min_lr=1e-3),
    )
    train.train(recipe, tmp_path / "one")
    train.train(replace(recipe, compute=replace(recipe.compute, micro_batch=2)), tmp_path / "two")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert max((one[k] - two[k]).abs().max().item() for k in one) <= 1e-6
