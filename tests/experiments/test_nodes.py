"""Graphs: one tiny real training, and verdicts from intervals over folds."""

from pathlib import Path

import pytest
import torch

from experiments import nodes
from experiments.data.targets import Targets
from experiments.harness import Row
from experiments.harness.options import check
from experiments.losses import STUDIED, Loss, build_loss
from experiments.nodes import CORRECTED, DRAWN, TOP1, Options, Run, by_fold, findings, runs, tissue
from softnce import SoftTargets


def rows(loss: str, top1: float, spread: float = 0.001, seeds: int = 1, folds: int = 5) -> list[Row]:
    found = []
    for seed in range(seeds):
        for fold in range(folds):
            score = {"top1": top1 + spread * fold, "class_average": 0.7}
            result = {"honest": score, "published": score, "last": score, "test_top1": [0.1, top1], "loss": [2.0, 1.0]}
            config = {"loss": loss, "fold": fold, "seed": seed, "specimens": 30, "part": "tissue"}
            found.append(Row(f"{loss}{seed}{fold}", config, result))
    return found


def test_a_difference_is_averaged_over_seeds_and_paired_by_fold() -> None:
    found = tissue(rows(CORRECTED, 0.88, seeds=3) + rows(DRAWN, 0.87, seeds=2))
    e = by_fold(found[CORRECTED], TOP1, minus=found[DRAWN])
    assert e.count == 5
    assert (e.mean, e.low) == (pytest.approx(1.0), pytest.approx(1.0))  # the folds move both alike


def test_verdicts_follow_from_intervals_over_folds() -> None:
    scores = dict.fromkeys(STUDIED, 0.87) | {"soft-target-info-nce": 0.88, DRAWN: 0.86}
    found = [row for loss, top1 in scores.items() for row in rows(loss, top1)]
    verdicts = {key: finding.verdict for key, finding in findings(found).items()}
    assert verdicts == {
        "nodes-soft-ce": "not reproduced",
        "nodes-hard": "not reproduced",
        "nodes-soft-distribution": "reproduced",
        "nodes-expected": "beyond",
    }
    noisy = [row for row in found if row.config["loss"] != "soft-ce"] + rows("soft-ce", 0.85, spread=0.02)
    assert findings(noisy)["nodes-soft-ce"].verdict == "undecided"
    assert findings(found + rows(CORRECTED, 0.88))["nodes-noise"].verdict == "beyond"


def test_with_balanced_classes_the_corrected_noise_changes_nothing() -> None:
    labels, logits = torch.arange(40) % 4, torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    targets = SoftTargets.from_labels(labels, 4, 0.1)

    def value(name: str, labels: torch.Tensor) -> float:
        loss = build_loss(Loss(name), Targets(smoothing=0.1), labels, 4)
        return loss(logits, targets, generator=torch.Generator().manual_seed(1)).item()

    assert value(DRAWN, labels) == pytest.approx(value(CORRECTED, labels), abs=1e-6)
    unbalanced = labels.where(torch.arange(40) < 8, 0)
    assert abs(value(DRAWN, unbalanced) - value(CORRECTED, unbalanced)) > 1e-3


def test_a_missing_graph_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="planetoid is not in SOFTNCE_DATA"):
        nodes.prepare(runs(Options(graphs=("cora",))))
    (tmp_path / "planetoid").mkdir()
    with pytest.raises(ValueError, match=r"Cora.*missing ind\.cora"):
        nodes.prepare(runs(Options(graphs=("cora",))))
    with pytest.raises(ValueError, match="graphs: got 'pubmed'"):
        check(Options(graphs=("pubmed",)))


@pytest.mark.slow
def test_a_training_on_cora_has_its_known_accuracy(real_data: Path) -> None:
    result = nodes.perform(Run("cora", "gcn", "nll", 0, 0.0))
    assert 0.79 < result["honest"]["top1"] < 0.85
    assert len(result["test_top1"]) == 200
