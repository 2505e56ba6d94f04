"""``python -m experiments train`` and ``evaluate``."""

import json
import signal
import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import recipes
from experiments.cells.recipes import GraphRecipe
from experiments.harness.options import parser_of
from experiments.harness.tables import Table

TRAIN = """usage: python -m experiments train RECIPE [--out DIR] [--resume] [--seeds N] [--folds all] [--FIELD VALUE]
       python -m experiments train --resume DIR

Trains a classifier from a recipe: a name below, or a YAML file. Any value of the recipe can be set on the command
line; `train RECIPE --help` explains all fields, `train RECIPE --show` prints their values. With several seeds or folds
the runs share a folder, and their mean is shown. More: docs/experiments.md

recipes: """
EVALUATE = "Top-1, top-5, class average, negative log-likelihood, Brier score and calibration errors of a checkpoint."


def train(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(TRAIN + "\n         ".join(recipes.names()))
        return 0
    name, rest = ("", argv) if argv[0].startswith("-") else (argv[0], argv[1:])
    parser = ArgumentParser(usage=TRAIN.partition("\n\n")[0][7:], add_help=False, allow_abbrev=False)
    parser.add_argument("--resume", nargs="?", const="", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--folds", choices=["all"])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    given, fields = parser.parse_known_args(rest)
    if not name:  # train --resume DIR
        if given.resume is None or not (given.resume / "recipe.yaml").is_file():
            raise ValueError(f"train --resume: {given.resume or 'no folder'} holds no run (no recipe.yaml)")
        name, given.out = str(given.resume / "recipe.yaml"), given.resume
    if given.help:
        parser_of(f"python -m experiments train {name}", fields=recipes.load(name)).print_help()
        return 0
    recipe = recipes.load(name, fields)
    if given.show:
        print(recipes.to_yaml(recipe), end="")
        return 0
    out = given.out or Path("runs") / name.replace("/", "-").removesuffix(".yaml").removesuffix(".yml")
    runs = _several(recipe, out, given.seeds, given.folds == "all")
    codes = [_train(one, folder, given.resume is not None or len(runs) > 1) for one, folder in runs]
    if len(runs) > 1:
        _summary([folder for _, folder in runs])
    return max(codes)


def _several(recipe: Any, out: Path, seeds: int, all_folds: bool) -> list[tuple[Any, Path]]:
    """The runs of all seeds and folds that are asked for."""
    if all_folds and (not isinstance(recipe, GraphRecipe) or recipe.data.kind in recipes.CITATION):
        raise ValueError("--folds: got all, need a recipe of specimens")
    data = [replace(recipe.data, fold=fold) for fold in range(5)] if all_folds else [recipe.data]
    numbers = range(seeds) if seeds > 0 else [recipe.seed]
    several = [replace(recipe, seed=seed, data=part) for seed in numbers for part in data]
    if len(several) == 1:
        return [(several[0], out)]
    return [(r, out / (f"seed{r.seed}" + (f"-fold{r.data.fold}" if all_folds else ""))) for r in several]


def _train(recipe: Any, out: Path, resume: bool) -> int:
    # only now, so that a typo is answered at once
    from experiments.cells.checkpoints import Interrupted
    from experiments.cells.loading import CorruptImage
    from experiments.cells.train import is_first_process, train
    from experiments.harness.runs import Diverged

    try:
        results = train(recipe, out, resume=resume and (out / "recipe.yaml").is_file())
    except (CorruptImage, Diverged) as error:
        print(f"experiments train: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return 1
    except Interrupted:
        if is_first_process():
            print(f"stopped; to continue: python -m experiments train --resume {out}", file=sys.stderr)
        return 128 + signal.SIGTERM
    if is_first_process():
        if results["best"]:
            _show(str(out), results)
        else:
            print(f"no epoch was completed; to measure: python -m experiments evaluate {out / 'last.ckpt'}")
    return 0


def _show(title: str, columns: dict[str, dict[str, float]]) -> None:
    rows = []
    for metric in next(iter(columns.values())):
        form = "g" if metric in ("epoch", "step") else ".4f"
        rows.append([metric, *(f"{of[metric]:{form}}" if metric in of else "" for of in columns.values())])
    Table(title, ["", *columns], rows).show()


def _summary(folders: list[Path]) -> None:
    """Mean and deviation over runs; of graphs also the accuracies pooled over the specimens of all folds."""
    found, confusions = (
        [json.loads((folder / name).read_text()) for folder in folders if (folder / name).is_file()]
        for name in ("results.json", "confusions.json")
    )
    if measured := [run.get("test", run["best"]) for run in found if run["best"]]:
        values = {name: np.array([run[name] for run in measured]) for name in measured[0]}
        means = {name: value.mean() for name, value in values.items()}
        deviations = {name: value.std(ddof=1) for name, value in values.items()}
        _show(str(folders[0].parent), {f"mean of {len(measured)}": means, "deviation": deviations})
    if confusions:
        import torch

        from experiments.data.celltypegraph import EMBRYO_SAC
        from experiments.data.graph_metrics import pooled

        _show("over specimens", {"pooled": pooled(torch.cat([torch.tensor(one) for one in confusions]), (EMBRYO_SAC,))})


def evaluate(argv: list[str]) -> int:
    parser = ArgumentParser("python -m experiments evaluate", description=EVALUATE, allow_abbrev=False)
    parser.add_argument("checkpoint", type=Path, help="a file, or the folder of a run for its best.ckpt")
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="what to measure on")
    parser.add_argument("--data.dir", dest="data_dir", default="", help="of the data, if they have moved")
    parser.add_argument("--out", type=Path, help="folder of evaluation.json; default: the checkpoint's")
    given = parser.parse_args(argv)
    from experiments.cells import evaluate as evaluation

    found = evaluation.evaluate(given.checkpoint, split=given.split, data_dir=given.data_dir)
    out = given.out or (given.checkpoint if given.checkpoint.is_dir() else given.checkpoint.parent)
    out.mkdir(parents=True, exist_ok=True)
    _show(f"{given.checkpoint}, {given.split}", {"value": found.results})
    described = {"checkpoint": str(given.checkpoint), "split": given.split, **found.results}
    (out / "evaluation.json").write_text(json.dumps(described, indent=2))
    return 0
