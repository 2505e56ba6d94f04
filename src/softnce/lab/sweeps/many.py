"""Many trainings, side by side on this machine or on a Ray cluster; finished ones are not repeated."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from softnce.lab import recipes
from softnce.lab.atomic import write_text
from softnce.lab.diverged import Diverged
from softnce.lab.experiment.cluster import on_cluster
from softnce.lab.experiment.parallel import gpu_names, one_per_core
from softnce.lab.experiment.reservations import shared
from softnce.lab.recipes.recipe import AnyRecipe
from softnce.lab.recipes.resuming import changes
from softnce.lab.sweeps.grid import Training

Engine = Callable[[Iterable[Training]], Iterator["Trained"]]


@dataclass(frozen=True)
class Trained:
    """What became of a training: metrics of its best and last epoch, or why there are none.

    ``refused`` says that the error is about the recipe or its data, so that other trainings would fail in the same way.
    """

    run: Training
    results: dict[str, Any]
    error: str = ""
    refused: bool = False


def perform(run: Training) -> Trained:
    """Train in the folder of the run, from where an earlier process stopped."""
    from softnce.lab.data.batches import CorruptImage
    from softnce.lab.train.checkpoints import NotSaved
    from softnce.lab.train.run import Occupied, train

    recipe = replace(run.recipe, compute=replace(run.recipe.compute, progress=False))
    try:
        return Trained(run, train(recipe, run.out, resume=(run.out / "recipe.yaml").is_file()))
    except (ValueError, Occupied) as error:
        return Trained(run, {}, str(error), refused=True)
    except CorruptImage as error:
        return Trained(run, {}, error.words, refused=True)
    except (Diverged, NotSaved) as error:
        write_text(_failure(run), f"{error}\n")
        return Trained(run, {}, str(error))


def engine(name: Literal["processes", "ray"], address: str, runs: list[Training]) -> Engine:
    """How the trainings are done: one per GPU where there are any, else one per core."""
    compute = runs[0].recipe.compute
    if any(run.recipe.compute.devices > 1 or run.recipe.compute.nodes > 1 for run in runs):
        raise ValueError("compute.devices and compute.nodes: each of several trainings uses one device, set them to 1")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("several trainings are started by one process: omit torchrun")
    gpu = compute.accelerator != "cpu"
    if name == "ray":
        return partial(on_cluster, perform, address=address, gpu=gpu)
    return partial(one_per_core, perform, gpus=gpu_names() if gpu else [])


def train_all(runs: list[Training], out: Path, execute: Engine) -> Iterator[Trained]:
    """Do the trainings that have no results yet, and yield what became of each as it ends.

    Several processes can do this with one ``out``: they share the trainings. Raises ValueError where a recipe or its
    data are refused, where ``out`` is the folder of a run, or where a folder in it holds a run of another recipe.
    """
    if (out / "recipe.yaml").is_file():
        raise ValueError(f"{out} holds a run, so it cannot hold several: choose another --out")
    for run in runs:
        if (kept := _kept(run)) and (changed := changes(kept, run.recipe)):
            raise ValueError(f"{run.out} holds a run of another recipe: {'; '.join(changed)}; choose another --out")
        if _failure(run).is_file():
            _failure(run).unlink(missing_ok=True)  # another process may have been faster
    return _train_all(runs, out, execute)


def _train_all(runs: list[Training], out: Path, execute: Engine) -> Iterator[Trained]:
    """What :func:`train_all` yields."""
    for trained in shared(runs, execute, folder=out / ".running", name=lambda run: run.out.name, finished=_ended):
        if trained.refused:
            raise ValueError(f"{trained.run.out.name}: {trained.error}")
        yield trained


def is_finished(run: Training) -> bool:
    """Whether the training has results, and was not asked to be shorter than now."""
    kept = _kept(run) if (run.out / "results.json").is_file() else None
    return kept is not None and kept.schedule == run.recipe.schedule


def _ended(run: Training) -> bool:
    return is_finished(run) or _failure(run).is_file()


def _kept(run: Training) -> AnyRecipe | None:
    path = run.out / "recipe.yaml"
    return recipes.load(str(path)) if path.is_file() else None


def _failure(run: Training) -> Path:
    return run.out / "failure.txt"
