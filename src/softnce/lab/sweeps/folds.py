"""The folds of a node classification together: the mean over folds, and over the specimens of all folds."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import torch

from softnce.lab.data.graph_metrics import Score, score
from softnce.lab.data.layout import EMBRYO_SAC, FOLDS
from softnce.lab.experiment.table import Table
from softnce.lab.sweeps.table import FinishedRun

METRICS = "top1", "class_average", "class_average_published"


def over_specimens(folder: Path, runs: Sequence[FinishedRun]) -> Table | None:
    """Of every setting and seed whose five folds are finished: mean over folds (mean ± deviation over all specimens).

    As the CellTypeGraph benchmark reports them (:mod:`softnce.lab.data.graph_metrics`); None where there are none.

    Args:
        folder: the one that was searched for the runs.
        runs: its finished runs; each keeps the confusion matrices of its test specimens.
    """
    groups: dict[str, dict[int, FinishedRun]] = defaultdict(dict)
    for run in runs:
        if (folder / run.folder / "confusions.json").is_file():
            rest = {name: value for name, value in run.setting.items() if name != "data.fold"}
            groups[json.dumps(rest, sort_keys=True, default=str)].setdefault(run.settings["data.fold"], run)
    whole = [members for members in groups.values() if len(members) == FOLDS]
    if not whole:
        return None
    rows = []
    for members in whole:
        found = [_confusions(folder, members[fold]) for fold in sorted(members)]
        each, pooled = [asdict(score(part, (EMBRYO_SAC,))) for part in found], score(torch.cat(found), (EMBRYO_SAC,))
        cells = [f"{fmean(fold[metric] for fold in each):.4f} ({_pooled(pooled, metric)})" for metric in METRICS]
        first = members[0].settings
        rows.append([str(first["loss.name"]), str(first["seed"]), str(pooled.specimens), *cells])
    title = f"{FOLDS} folds: mean over folds (mean ± standard deviation over specimens)"
    return Table(title, ["loss", "seed", "specimens", *METRICS], rows)


def _confusions(folder: Path, run: FinishedRun) -> torch.Tensor:
    return torch.tensor(json.loads((folder / run.folder / "confusions.json").read_text(encoding="utf-8")))


def _pooled(pooled: Score, metric: str) -> str:
    return f"{getattr(pooled, metric):.4f} ± {getattr(pooled, f'{metric}_deviation'):.4f}"
