"""``python -m experiments train`` and ``evaluate``."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.cells import recipes
from experiments.cells.recipes import GraphRecipe

TRAIN = """usage: python -m experiments train RECIPE [--out DIR] [--resume] [--seeds N] [--folds all] [--FIELD VALUE]
       python -m experiments train --resume DIR

Trains a classifier from a recipe: a name below, or a YAML file. Any value of the recipe can be set on the command
line; `train RECIPE --help` explains all fields, `train RECIPE --show` prints their values.

  train laptop/digits                                     half a minute, nothing to download
  train cifar100/soft-target-info-nce --data.dir ~/cifar  a cell of the paper
  train laptop/digits --seeds 5                           five runs in one folder, then their mean
  train celltypegraph/nll --folds all                     five folds, then accuracies over all specimens
  torchrun --nproc-per-node 8 -m experiments train imagenet/nll --data.dir /imagenet
  train --resume runs/imagenet-nll                        continue exactly after the last saved update

recipes: """
EVALUATE = """usage: python -m experiments evaluate CHECKPOINT [--split test|validation] [--data.dir DIR] [--out DIR]

Evaluates a checkpoint of `train` (a file, or the folder of a run for its best.ckpt): top-1, top-5, class average,
negative log-likelihood, Brier score and calibration errors. Writes evaluation.json to --out (default: the checkpoint's
folder)."""


def train(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(TRAIN + "\n         ".join(recipes.names()))
        return 0
    words, given = _taken(argv, values=("--out", "--seeds", "--folds"), flags=("--show",))
    resume, recipe_name = "--resume" in words, words[0]
    if resume:
        place = words.index("--resume")
        if place == 0:  # train --resume DIR
            folder = Path(words[1]) if len(words) > 1 else None
            if folder is None or not (folder / "recipe.yaml").is_file():
                raise ValueError(f"train --resume: {folder or 'no folder'} holds no run (no recipe.yaml)")
            recipe_name, given["--out"], words = str(folder / "recipe.yaml"), str(folder), ["", *words[2:]]
        else:
            del words[place]
    if {"-h", "--help"} & set(words):
        parser = recipes.parser_of(type(recipes.load(recipe_name)), f"python -m experiments train {recipe_name}")
        parser.print_help()
        return 0
    recipe = recipes.load(recipe_name, words[1:])
    if "--show" in given:
        print(recipes.to_yaml(recipe), end="")
        return 0
    out = Path(given.get("--out") or Path("runs") / _folder_name(recipe_name))
    runs = _several(recipe, out, given)
    codes = [_train(one, folder, resume or len(runs) > 1) for one, folder in runs]
    if len(runs) > 1:
        _summary([folder for _, folder in runs])
    return max(codes)


def _taken(argv: list[str], values: tuple[str, ...], flags: tuple[str, ...] = ()) -> tuple[list[str], dict[str, str]]:
    """The words that are not ours, and the values of ours."""
    words, given, rest = [], {}, iter(argv)
    for word in rest:
        name, has_value, value = word.partition("=")
        if name in values:
            given[name] = value if has_value else next(rest, "")
            if not given[name]:
                raise ValueError(f"{name}: got nothing, need a value")
        elif word in flags:
            given[word] = "true"
        else:
            words.append(word)
    return words, given


def _several(recipe: Any, out: Path, given: dict[str, str]) -> list[tuple[Any, Path]]:
    """The runs of all seeds and folds that are asked for."""
    seeds, folds = [recipe.seed], [None]
    if "--seeds" in given:
        if not given["--seeds"].isdecimal() or int(given["--seeds"]) < 1:
            raise ValueError(f"--seeds: got {given['--seeds']}, need a whole number of at least 1")
        seeds = list(range(int(given["--seeds"])))
    if "--folds" in given:
        if given["--folds"] != "all" or not isinstance(recipe, GraphRecipe) or recipe.data.kind in recipes.CITATION:
            raise ValueError(f"--folds: got {given['--folds']}, need all, of a recipe of specimens")
        folds = list(range(5))  # type: ignore[arg-type]
    if len(seeds) * len(folds) == 1:
        return [(replace(recipe, seed=seeds[0]), out)]
    return [
        (
            replace(recipe, seed=seed, data=recipe.data if fold is None else replace(recipe.data, fold=fold)),
            out / (f"seed{seed}" + ("" if fold is None else f"-fold{fold}")),
        )
        for seed in seeds
        for fold in folds
    ]


def _train(recipe: Any, out: Path, resume: bool) -> int:
    # only now, so that a typo is answered at once
    from experiments.cells.checkpoints import Interrupted, NotSaved
    from experiments.cells.loading import CorruptImage
    from experiments.cells.train import Occupied, is_first_process, prepare
    from experiments.harness.runs import Diverged

    try:
        results = prepare(recipe, out, resume=resume and (out / "recipe.yaml").is_file()).run()
    except Occupied as error:
        raise ValueError(str(error)) from None
    except (CorruptImage, Diverged, NotSaved) as error:
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
    from rich.console import Console
    from rich.table import Table

    table = Table(title, *columns)
    for metric in next(iter(columns.values())):
        values = [column.get(metric) for column in columns.values()]
        form = "{:g}" if metric in ("epoch", "step") else "{:.4f}"
        table.add_row(metric, *("" if value is None else form.format(value) for value in values))
    Console().print(table)


def _summary(folders: list[Path]) -> None:
    """Mean and deviation over runs; of graphs also the accuracies pooled over the specimens of all folds."""
    import torch

    found = [
        json.loads((folder / "results.json").read_text()) for folder in folders if (folder / "results.json").is_file()
    ]
    measured = [run.get("test", run["best"]) for run in found if run["best"]]
    if measured:
        values = {name: torch.tensor([run[name] for run in measured]).double() for name in measured[0]}
        columns = {
            f"mean of {len(measured)}": {name: value.mean().item() for name, value in values.items()},
            "deviation": {name: value.std().item() for name, value in values.items()},
        }
        _show(str(folders[0].parent), columns)
    confusions = [json.loads((f / "confusions.json").read_text()) for f in folders if (f / "confusions.json").is_file()]
    if confusions:
        from experiments.data.celltypegraph import EMBRYO_SAC
        from experiments.data.graph_metrics import pooled

        _show("over specimens", {"pooled": pooled(torch.cat([torch.tensor(one) for one in confusions]), (EMBRYO_SAC,))})


def _folder_name(name: str) -> str:
    return name.replace("/", "-").removesuffix(".yaml").removesuffix(".yml")


def evaluate(argv: list[str]) -> int:
    if not argv or {"-h", "--help", "help"} & set(argv):
        print(EVALUATE)
        return 0
    words, given = _taken(argv, values=("--split", "--data.dir", "--out"))
    if len(words) != 1 or words[0].startswith("-"):
        raise ValueError(f"evaluate: got {' '.join(words)!r}, need one checkpoint")
    checkpoint, split = Path(words[0]), given.get("--split", "test")
    if split not in ("test", "validation"):
        raise ValueError(f"--split: got {split}, need test or validation")
    from experiments.cells import evaluate as evaluation

    found = evaluation.evaluate(checkpoint, split=split, data_dir=given.get("--data.dir", ""))  # type: ignore[arg-type]
    out = Path(given.get("--out") or (checkpoint if checkpoint.is_dir() else checkpoint.parent))
    out.mkdir(parents=True, exist_ok=True)
    _show(f"{checkpoint}, {split}", {"value": found.results})
    described = {"checkpoint": str(checkpoint), "split": split, **found.results}
    (out / "evaluation.json").write_text(json.dumps(described, indent=2))
    return 0
