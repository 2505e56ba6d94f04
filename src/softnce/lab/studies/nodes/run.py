"""Trainings on grown tissue, fold by fold, and on citation graphs."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softnce.lab import recipes
from softnce.lab.configuration import option
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.losses import LOSSES, LossName
from softnce.lab.recipes.recipe import GraphRecipe
from softnce.lab.targets import Targets

VERSION = 1
FOLDS = 5
CITATION = {"cora": "Cora", "citeseer": "CiteSeer"}


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(
        10, "seeds of the GCN on citation graphs; a seed fixes initial weights, dropout and draws", least=1
    )
    deeper_seeds: int = option(5, "seeds of the DeeperGCN on citation graphs; 0 for none", least=0)
    tissue_seeds: int = option(1, "seeds of the five folds of tissue; 0 for none", least=0)
    specimens: int = option(30, "specimens of tissue")
    stages: int = option(6, "their developmental stages; five specimens per stage, or ten, … fill five folds", least=1)
    cells: tuple[int, int] = option((300, 800), "cells per specimen, about: in the first and in the last stage")
    layers: int = option(8, "depth of the DeeperGCN on tissue", least=1)
    hidden: int = option(64, "its width", least=1)
    epochs: int = option(30, "passes over the training specimens, for every loss", least=1)
    smoothing: float = option(0.1, "ε of the soft losses' targets", least=0, below=1)
    citation: tuple[str, ...] = option(tuple(CITATION), "citation graphs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.specimens < FOLDS * self.stages:
            raise ValueError(f"specimens: got {self.specimens}, need at least {FOLDS} for each of {self.stages} stages")
        for name in self.citation:
            if name not in CITATION:
                raise ValueError(f"citation: got {name!r}, need {' or '.join(CITATION)}")


PRESETS = {
    "quick": Config(
        seeds=1, deeper_seeds=0, specimens=10, stages=2, cells=(100, 160), layers=3, hidden=32, epochs=20,
        citation=("cora",),
    ),
    "paper": Config(),
}  # fmt: skip


@dataclass(frozen=True)
class Tissue:
    """One fold of tissue with one loss."""

    loss: LossName
    fold: int
    seed: int
    specimens: int
    stages: int
    cells: tuple[int, int]
    layers: int
    hidden: int
    epochs: int
    smoothing: float
    part: str = "tissue"


@dataclass(frozen=True)
class Citation:
    """One training on a citation graph; ``model`` is gcn or deeper-gcn."""

    data: str
    model: str
    loss: LossName
    seed: int
    smoothing: float
    part: str = "citation"


Run = Tissue | Citation


def runs(config: Config) -> list[Run]:
    """The longest come first: tissue, then DeeperGCN, then GCN."""

    def smoothing(loss: LossName) -> float:
        return 0.0 if LOSSES[loss].labels_only else config.smoothing

    c = config
    wanted: list[Run] = [
        Tissue(loss, fold, seed, c.specimens, c.stages, c.cells, c.layers, c.hidden, c.epochs, smoothing(loss))
        for seed in range(c.tissue_seeds)
        for fold in range(FOLDS)
        for loss in LOSSES
    ]
    missing = missing_citation_graphs(c.citation)
    if missing:
        print(f"nodes: citation graphs are left out: {missing}", file=sys.stderr)
        return wanted
    for model, seeds in (("deeper-gcn", c.deeper_seeds), ("gcn", c.seeds)):
        wanted += [
            Citation(data, model, loss, seed, smoothing(loss))
            for seed in range(seeds)
            for data in c.citation
            for loss in LOSSES
        ]
    return wanted


def missing_citation_graphs(names: Sequence[str]) -> str:
    """Why the citation graphs cannot be read; empty if they can."""
    folder = os.environ.get("SOFTNCE_DATA")
    if names and not folder:
        return "SOFTNCE_DATA, the folder above planetoid/Cora/raw and planetoid/CiteSeer/raw, is not set"
    raw = [Path(folder or "") / "planetoid" / CITATION[name] / "raw" for name in names]
    lacking = [str(path) for path in raw if not path.is_dir()]
    return f"no {' and no '.join(lacking)}" if lacking else ""


def provide(todo: Sequence[Run], folder: Path) -> Path:
    """Grow the tissue of the runs in ``folder``, which all read."""
    from softnce.lab.data.tissue import TissueConfig, write_tissue

    settings = dict.fromkeys((run.specimens, run.stages, run.cells) for run in todo if isinstance(run, Tissue))
    for specimens, stages, cells in settings:
        out = tissue_folder(folder, specimens, stages, cells)
        write_tissue(TissueConfig(out, specimens=specimens, stages=stages, cells=cells))
    return folder


def tissue_folder(folder: Path, specimens: int, stages: int, cells: tuple[int, int]) -> Path:
    return folder / f"{specimens}-{stages}-{cells[0]}-{cells[1]}"


def perform(run: Run, provided: Path) -> dict[str, Any]:
    """The course of a training on the ``provided`` tissue."""
    from softnce.lab.train.graph_course import follow

    return follow(recipe_of(run, provided))[1].summary()


def recipe_of(run: Run, folder: Path) -> GraphRecipe:
    """What ``softnce train`` would be given for the run."""
    match run:
        case Tissue():
            recipe = _load("laptop/tissue")
            data = replace(recipe.data, dir=tissue_folder(folder, run.specimens, run.stages, run.cells), fold=run.fold)
            model = replace(recipe.model, layers=run.layers, hidden=run.hidden)
            schedule = replace(recipe.schedule, epochs=run.epochs)
            recipe = replace(recipe, data=data, model=model, schedule=schedule)
        case Citation():
            recipe = _load(f"laptop/{run.data}" + ("-deeper-gcn" if run.model == "deeper-gcn" else ""))
            recipe = replace(recipe, data=replace(recipe.data, dir=Path(os.environ["SOFTNCE_DATA"]) / "planetoid"))
    return replace(
        recipe, seed=run.seed, loss=replace(recipe.loss, name=run.loss), targets=Targets(smoothing=run.smoothing)
    )


def _load(name: str) -> GraphRecipe:
    recipe = recipes.load(name)
    assert isinstance(recipe, GraphRecipe)
    return recipe
