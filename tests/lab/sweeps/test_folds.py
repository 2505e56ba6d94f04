"""Specimens of all folds are pooled as the benchmark does."""

import json

import pytest
import torch

from softnce.lab.commands import train
from softnce.lab.data.graph_metrics import score
from softnce.lab.data.layout import EMBRYO_SAC
from softnce.lab.sweeps.folds import over_specimens
from softnce.lab.sweeps.table import FinishedRun


def finished(folder, fold, confusions, loss="nll"):
    name = f"{loss}-{fold}"
    (folder / name).mkdir()
    (folder / name / "confusions.json").write_text(json.dumps(confusions.tolist()))
    return FinishedRun(name, {"seed": 0, "loss.name": loss, "data.fold": fold}, {"best": {"top1": 0.0}}, {})


def test_folds_are_averaged_and_specimens_pooled(tmp_path):
    """Folds of 1 to 5 specimens, so that both means differ."""
    random = torch.Generator().manual_seed(0)
    found = [torch.randint(9, (fold + 1, 9, 9), generator=random) for fold in range(5)]
    runs = [finished(tmp_path, fold, part) for fold, part in enumerate(found)]
    runs.append(finished(tmp_path, 0, found[0], "soft-ce"))  # one fold of another loss is not shown
    table = over_specimens(tmp_path, runs)
    (row,) = table.rows
    pooled = score(torch.cat(found), (EMBRYO_SAC,))
    mean = sum(score(part, (EMBRYO_SAC,)).top1 for part in found) / 5
    assert row[:3] == ["nll", "0", "15"]
    assert row[3] == f"{mean:.4f} ({pooled.top1:.4f} ± {pooled.top1_deviation:.4f})"
    assert over_specimens(tmp_path, runs[:4]) is None


@pytest.mark.slow
def test_one_command_trains_all_folds(tissue, tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    options = ["--model.layers", "1", "--model.hidden", "8", "--schedule.epochs", "1", "--compute.accelerator", "cpu"]
    train.main(["laptop/tissue", "--data.dir", str(tissue), "--folds", "all", "--out", str(tmp_path), *options])
    assert "5 folds: mean over folds" in " ".join(capsys.readouterr().out.split())
    kept = [json.loads(path.read_text()) for path in tmp_path.rglob("confusions.json")]
    assert sorted(map(len, kept)) == [2] * 5  # ten specimens, each tested once
