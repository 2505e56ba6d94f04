"""A cell of the CellTypeGraph benchmark: five folds, one run each, and the benchmark's numbers over all of them.

OUT/fold-0 … OUT/fold-4    the folders of the runs
OUT/recipe.yaml            every value of all of them
OUT/folds.json             accuracies per fold, their mean, pooled over specimens; every specimen's confusion matrix
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from softnce.lab import recipes
from softnce.lab.atomic import write_text
from softnce.lab.data.folds import FOLDS
from softnce.lab.data.graph_metrics import Score, score
from softnce.lab.data.graph_module import open_task
from softnce.lab.recipes.recipe import GraphRecipe
from softnce.lab.train.evaluate import evaluate
from softnce.lab.train.machine import Machine
from softnce.lab.train.run import train

METRICS = "top1", "class_average", "class_average_published"


@dataclass(frozen=True)
class Folds:
    """The accuracies of each fold, and pooled over the specimens of all folds, as the leaderboard counts."""

    each: list[Score]
    pooled: Score

    def mean(self, metric: str) -> float:
        """Mean over folds, of which some have more specimens than others."""
        return fmean(getattr(fold, metric) for fold in self.each)


def train_folds(recipe: GraphRecipe, out: Path, *, resume: bool = False) -> Folds:
    """Train and score fold after fold; ``resume`` continues where it stopped, finished folds are not trained again.

    Every fold is scored on its test specimens with the weights of its best epoch, which ``data.protocol`` chooses.
    """
    if Machine.of(recipe.compute).world > 1:
        raise ValueError(
            "data.fold -1 trains fold after fold on one device: set compute.devices to 1, or a single fold"
        )
    if not (out / "recipe.yaml").is_file():  # what `softnce train --resume OUT` reads
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "recipe.yaml", recipes.to_yaml(recipe))
    confusions: list[Tensor] = []
    specimens: list[dict[str, Any]] = []
    left_out: tuple[int, ...] = ()
    for fold in range(FOLDS):
        one = replace(recipe, data=replace(recipe.data, fold=fold))
        task, folder = open_task(one.data), out / f"fold-{fold}"
        train(one, folder, resume=resume)
        found = evaluate(folder, progress=recipe.compute.progress).confusions
        assert found is not None
        left_out = task.left_out
        confusions.append(found)
        specimens += [
            {"fold": fold, "stage": graph.stage, "specimen": graph.specimen, "confusion": confusion}
            for graph, confusion in zip(task.test.graphs, found.tolist(), strict=True)
        ]
    folds = Folds([score(found, left_out) for found in confusions], score(torch.cat(confusions), left_out))
    kept = {
        "folds": [asdict(fold) for fold in folds.each],
        "mean": {metric: folds.mean(metric) for metric in METRICS},
        "pooled": asdict(folds.pooled),
        "specimens": specimens,
    }
    write_text(out / "folds.json", json.dumps(kept))
    return folds
