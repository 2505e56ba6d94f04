"""All folds in one command: each is a run of its own, and specimens are pooled as the benchmark does."""

import json
from dataclasses import replace

import pytest
import torch
from training import small_graphs

from softnce.lab.commands import train as command
from softnce.lab.data.graph_metrics import score
from softnce.lab.data.layout import EMBRYO_SAC
from softnce.lab.recipes import to_yaml

pytest.importorskip("torch_geometric")

from softnce.lab.train.folds import train_folds


@pytest.fixture(scope="module")
def trained(tissue, tmp_path_factory):
    recipe = small_graphs(tissue)
    recipe = replace(recipe, data=replace(recipe.data, fold=-1), schedule=replace(recipe.schedule, epochs=1))
    out = tmp_path_factory.mktemp("folds")
    return recipe, out, train_folds(recipe, out)


@pytest.mark.slow
def test_every_specimen_is_scored_once_and_pooled(trained):
    _, out, folds = trained
    kept = json.loads((out / "folds.json").read_text())
    names = [(row["stage"], row["specimen"]) for row in kept["specimens"]]
    assert len(names) == len(set(names)) == folds.pooled.specimens == 10
    pooled = score(torch.tensor([row["confusion"] for row in kept["specimens"]]), (EMBRYO_SAC,))
    assert (pooled.top1, pooled.top1_deviation) == (kept["pooled"]["top1"], kept["pooled"]["top1_deviation"])
    assert folds.mean("top1") == pytest.approx(sum(fold["top1"] for fold in kept["folds"]) / 5)
    of_run = json.loads((out / "fold-3" / "results.json").read_text())
    measured = of_run.get("test", of_run["best"])
    assert kept["folds"][3]["top1"] == pytest.approx(measured["top1"])


@pytest.mark.slow
def test_the_command_resumes_without_training_again(trained, capsys):
    recipe, out, folds = trained
    assert (out / "recipe.yaml").read_text() == to_yaml(recipe)
    before = (out / "fold-2" / "last.ckpt").read_bytes()
    command.main(["--resume", str(out)])
    assert (out / "fold-2" / "last.ckpt").read_bytes() == before
    shown = capsys.readouterr().out
    assert "10 specimens" in shown
    assert f"{folds.pooled.top1:.4f} ± {folds.pooled.top1_deviation:.4f}" in shown


def test_what_has_no_folds_says_so(tissue):
    with pytest.raises(ValueError, match=r"data\.fold -1 needs folds, got data\.kind cora"):
        replace(small_graphs(tissue), data=replace(small_graphs(tissue).data, kind="cora", fold=-1))
