"""Recipes: the paper's values, reading and writing, one line for every fault; the commands; nodes and votes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.cells import commands, recipes
from experiments.cells.evaluate import evaluate
from experiments.cells.nodes import follow
from experiments.cells.recipes import Compute, GraphData, GraphModel, GraphRecipe, Optimiser, Schedule
from experiments.cells.train import build, train
from experiments.data.graphs import write_random_specimens
from experiments.data.targets import Targets
from experiments.losses import LOSSES, Loss


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_read_and_written(name, tmp_path):
    recipe = recipes.load(name)
    (tmp_path / "r.yaml").write_text(recipes.to_yaml(recipe))
    assert recipes.load(str(tmp_path / "r.yaml")) == recipe


def test_the_twenty_cells_have_the_papers_values():
    assert len(recipes.PAPER) == 20
    for name in recipes.PAPER:
        data, loss = name.split("/")
        r = recipes.load(name)
        hard = LOSSES[loss].labels_only
        assert (r.loss.name, r.data.kind, r.loss.temperature) == (loss, data, 1.0)
        assert r.targets.smoothing == (0.0 if hard else 0.1)
        if data == "celltypegraph":
            assert (r.model.name, r.model.layers, r.optimiser.batch, r.data.augment) == ("deeper-gcn", 32, 8, "paper")
            assert r.schedule.epochs == (500 if hard else 1000)
            continue
        assert (r.targets.mixup, r.targets.cutmix) == ((0.0, 0.0) if hard else (0.8, 1.0))
        o, s = r.optimiser, r.schedule
        assert (o.name, o.batch, o.weight_decay, o.layer_decay) == ("adamw", 1024, 0.05, 0.65)
        assert o.rate == pytest.approx(o.base_lr * 4)
        assert (s.epochs, s.warmup_epochs, r.model.name, r.head.hidden) == (100, 5, "vit_base_patch16_224", 4096)
        assert r.model.weights == "mae"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--optimiser.bach", "3"], "optimiser.bach"),
        (["--optimiser.batch", "x"], "optimiser.batch"),
        (["--data.holdout", "1"], "data.holdout: got 1, need less than 1"),
        (["--loss.name", "sof-ce"], "need one of nll.*did you mean soft-ce"),
        (["--loss.name", "nll"], "loss.name nll takes hard labels"),
        (["--loss.noise_count", "3"], "loss.noise_count: got 3.0, need none for soft-ce"),
        (["--head.kind", "mpl"], "head.kind.*'mlp', 'linear', 'cosine'"),
        (["--schedule.warmup_epochs", "99"], "warmup_epochs 99 exceeds schedule.epochs 10"),
        (["--compute.micro_batch", "3"], "need even"),
        (["--data.fold", "1"], "data.fold"),
        (["--data.share", "0"], "data.share: got 0, need more than 0"),
        (["--targets.smoothing", "2"], "targets.smoothing: got 2, need at most 1"),
        ("", "must hold a mapping"),
        ("[" * 100_000, "cannot be read as YAML"),
        ("data: " + "{a: " * 50_000, "cannot be read as YAML"),
        ("data:\n  kind: digits\n  kin: 3\n", "kin"),
        ("data:\n  kind: mnist\n", "data.kind: got 'mnist', need one of imagenet"),
        ("data: 3", "data.kind: got None"),
        ("inherit: r.yaml", "inherits itself: r.yaml → r.yaml"),
        ("inherit: none.yaml", "cannot be read as YAML: .*No such file"),
        ("inherit: 3", "inherit be the path of a recipe file"),
    ],
)
def test_options_and_files_that_make_no_sense_are_one_line(given, said, tmp_path):
    if isinstance(given, str):
        (tmp_path / "r.yaml").write_text(given)
    with pytest.raises(ValueError, match=said) as error:
        recipes.load(str(tmp_path / "r.yaml")) if isinstance(given, str) else recipes.load("laptop/digits", given)
    assert "\n" not in str(error.value)


def test_a_run_is_continued_by_the_same_recipe_or_a_longer_one():
    recipe = recipes.load("laptop/digits")
    longer = replace(recipe, schedule=replace(recipe.schedule, epochs=99), compute=Compute(threads=2))
    assert recipes.changes(recipe, longer) == []
    assert recipes.changes(longer, recipe) == ["schedule.epochs was 99, is 10"]
    assert recipes.changes(recipe, replace(recipe, seed=3)) == ["seed was 0, is 3"]


# ------------------------------------------------------------------------------------------------ nodes, votes


@pytest.fixture(scope="module")
def specimens(tmp_path_factory):
    return write_random_specimens(tmp_path_factory.mktemp("specimens"), nodes=60)


def small_graphs(folder, **changes):
    """Three updates an epoch on six specimens; everything random is on."""
    recipe = GraphRecipe(
        seed=3,
        data=GraphData("generated", folder, fold=1, protocol="honest", augment="paper"),
        model=GraphModel(layers=2, hidden=12, dropout=0.2),
        loss=Loss(candidates="queue", num_candidates=40),
        targets=Targets(smoothing=0.1),
        optimiser=Optimiser("adam", batch=2, lr=5e-3, weight_decay=1e-3),
        schedule=Schedule(epochs=3, warmup_epochs=1.0),
        compute=Compute("cpu", progress=False, eval_batch=3),
    )
    return replace(recipe, **changes)


def test_a_followed_training_ends_with_the_weights_of_train(specimens, tmp_path):
    recipe = small_graphs(specimens)
    results = train(recipe, tmp_path / "run")
    classifier, summary = follow(recipe)
    kept = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["state_dict"]
    for name, value in classifier.state_dict().items():
        if name.startswith("model."):
            torch.testing.assert_close(value, kept[name], rtol=0, atol=1e-6, msg=name)
    assert summary["selection_top1"][-1] == pytest.approx(results["last"]["top1"], abs=1e-5)
    assert summary["honest"]["epoch"] == results["best"]["epoch"]
    assert summary["honest"]["confusions"] == json.loads((tmp_path / "run" / "confusions.json").read_text())
    assert summary["honest"]["top1"] == pytest.approx(results["test"]["top1"], abs=1e-6)


def test_micro_batches_of_graphs_change_only_rounding(specimens, tmp_path):
    """In evaluation mode but for the parameters: dropout would differ between shares."""
    recipe = small_graphs(specimens, model=GraphModel(layers=2, hidden=12, dropout=0.0), loss=Loss("expected-info-nce"))
    recipe = replace(recipe, data=replace(recipe.data, votes=True))
    train(recipe, tmp_path / "one")
    train(replace(recipe, compute=replace(recipe.compute, micro_batch=1)), tmp_path / "two")
    one, two = (torch.load(tmp_path / n / "last.ckpt", weights_only=True)["state_dict"] for n in ("one", "two"))
    assert max((one[k].double() - two[k].double()).abs().max().item() for k in one) <= 1e-4


def test_votes_of_images_train_and_are_judged_by_their_majority(tmp_path):
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    votes = random.multinomial(5, [0.2, 0.2, 0.6], size=60)
    votes = np.stack([np.roll(vote, label + 1) for vote, label in zip(votes, labels, strict=True)])
    for name in ("train", "test"):
        x = random.integers(0, 99, (60, 8, 8)) + 70 * labels[:, None, None]
        np.savez(tmp_path / f"{name}.npz", x=x.astype(np.uint8), y=votes)
    options = {"data.kind": "arrays", "data.dir": tmp_path, "loss.name": "soft-ce", "compute.progress": "false"}
    recipe = recipes.load("laptop/digits", [f"--{name}={value}" for name, value in options.items()])
    recipe = replace(recipe, optimiser=replace(recipe.optimiser, batch=30))
    train(recipe, tmp_path / "run")
    assert evaluate(tmp_path / "run", progress=False).labels.tolist() == votes.argmax(1).tolist()
    with pytest.raises(ValueError, match="nll takes hard labels, but the data are votes: use soft-ce"):
        build(replace(recipe, loss=Loss("nll"), targets=Targets()))


# ------------------------------------------------------------------------------------------------------ commands


def test_the_commands_train_folds_and_evaluate(specimens, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(recipes.to_yaml(small_graphs(specimens, schedule=Schedule(epochs=1))))
    argv = [str(tmp_path / "r.yaml"), "--out", str(tmp_path / "runs"), "--folds", "all"]
    assert commands.train(argv) == 0
    said = capsys.readouterr().out
    assert "over specimens" in said
    assert "mean of 5" in said
    kept = [json.loads(path.read_text())["test"]["top1"] for path in sorted(tmp_path.glob("runs/*/results.json"))]
    assert f"{np.mean(kept):.4f}" in said
    assert commands.evaluate([str(tmp_path / "runs" / "seed3-fold0"), "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["top1"] == pytest.approx(kept[0], abs=1e-6)
    assert commands.train([str(tmp_path / "r.yaml"), "--show"]) == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["laptop/dgits"], "did you mean laptop/digits"),
        (["--resume"], r"holds no run \(no recipe.yaml\)"),
        (["laptop/digits", "--folds", "all"], "need a recipe of specimens"),
    ],
)
def test_commands_that_make_no_sense_are_refused(argv, said):
    with pytest.raises(ValueError, match=said):
        commands.train(argv)
