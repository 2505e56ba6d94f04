"""A training run in its folder: claimed by one recipe and one process, resumed exactly.

recipe.yaml      every value of the run
last.ckpt        the latest state; `softnce train --resume FOLDER` continues from it
best.ckpt        the epoch with the best top-1 on the validation data
results.json     metrics of the best and of the last epoch, written at the end
confusions.json  of graphs: the confusion matrix of each test graph at the best epoch
csv/, tensorboard/   logs; a resumed run adds to them
"""

import json
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from softnce.lab import recipes
from softnce.lab.atomic import why, write_text
from softnce.lab.data.module import TrainingData
from softnce.lab.diverged import Diverged
from softnce.lab.malloc import keep_freed_memory
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe
from softnce.lab.recipes.resuming import changes
from softnce.lab.train.build import build
from softnce.lab.train.classifier import Classifier
from softnce.lab.train.evaluate import evaluate
from softnce.lab.train.fit import fit
from softnce.lab.train.machine import Machine, is_first_process


class Occupied(RuntimeError):
    """Another process trains in the folder."""


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    recipe: AnyRecipe
    out: Path
    resume: bool
    machine: Machine
    classifier: Classifier
    data: TrainingData
    accumulate: int
    claim: ExitStack  # the folder is locked until it is closed

    def run(self) -> dict[str, Any]:
        """Train. If the best epoch was not chosen on the test split, then measure that split once, with its weights."""
        recipe, out = self.recipe, self.out
        with self.claim:
            results = self.fit()
            if is_first_process():
                best = out / "best.ckpt"
                if best.is_file() and (recipe.data.keeps_test_apart or isinstance(recipe, GraphRecipe)):
                    test = evaluate(best, split="test", progress=recipe.compute.progress)
                    if recipe.data.keeps_test_apart:
                        results["test"] = test.results
                    if test.confusions is not None:  # per test graph, from which every accuracy can be formed
                        write_text(out / "confusions.json", json.dumps(test.confusions.tolist()))
                write_text(out / "results.json", json.dumps(results, indent=2))
            return results

    def fit(self) -> dict[str, Any]:
        """Train; metrics of the best and of the last epoch."""
        if self.machine.accelerator == "cpu":
            keep_freed_memory()
        return fit(
            self.classifier,
            self.data,
            self.recipe.compute,
            self.out,
            machine=self.machine,
            accumulate=self.accumulate,
            resume=self.resume,
        )


def prepare(recipe: AnyRecipe, out: Path, *, resume: bool = False) -> Prepared:
    """Build everything a recipe describes and claim ``out`` for it; a ValueError says what is wrong with either."""
    machine = Machine.of(recipe.compute)
    if recipe.compute.precision == "fp16" and machine.accelerator == "cpu":
        raise ValueError("compute.precision fp16 needs a GPU; on the CPU use bf16 or 32")
    if recipe.compute.wandb and not _is_installed("wandb"):
        raise ValueError("compute.wandb needs wandb: pip install 'softnce[wandb]'")
    _check_folder(out, recipe, resume)
    classifier, data, accumulate = build(recipe, machine.world)
    if recipe.compute.compile:
        classifier.model.compile()
    return Prepared(recipe, out, resume, machine, classifier, data, accumulate, _claim(out, recipe, resume))


def train(recipe: AnyRecipe, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Train the classifier a recipe describes, in the folder ``out``; metrics of the best and last epoch."""
    return prepare(recipe, out, resume=resume).run()


def scored(recipe: AnyRecipe) -> dict[str, Any]:
    """Train in a folder that is removed again; for a recipe that keeps the test split apart.

    Returns the best epoch, its scores where it was chosen and on the test split, and ``right``: which test samples it
    has right, one bit each, in base64.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        prepared = prepare(recipe, out)
        with prepared.claim:
            try:
                best = prepared.fit()["best"]
            except Diverged as error:  # without the checkpoint, which is removed
                raise Diverged(str(error).partition(";")[0]) from None
            test = evaluate(out, progress=False)
    right = b64encode(np.packbits(test.right.numpy()).tobytes()).decode("ascii")
    return {"epoch": 1 + int(best["epoch"]), "held_out": best, "test": test.results, "right": right}


def _is_installed(name: str) -> bool:
    try:
        version(name)  # a folder of that name, which wandb leaves in the current one, can be imported too
    except PackageNotFoundError:
        return False
    return True


def _claim(out: Path, recipe: AnyRecipe, resume: bool) -> ExitStack:
    """Lock ``out`` and make it the folder of this run."""
    with ExitStack() as claim:
        if is_first_process():
            claim.enter_context(_alone_in(out))
            _check_folder(out, recipe, resume)  # again: another process may have been faster
            kept = out / "recipe.yaml"
            try:
                if kept.is_file() and recipes.load(str(kept)).schedule != recipe.schedule:
                    (out / "results.json").unlink(missing_ok=True)  # of the shorter run
                write_text(kept, recipes.to_yaml(recipe))
            except OSError as error:
                raise ValueError(f"out: cannot write in {out}: {why(error)}") from None
        return claim.pop_all()


def _check_folder(out: Path, recipe: AnyRecipe, resume: bool) -> None:
    """Raise ValueError if ``out`` holds a run that this recipe does not continue, or the folders of several."""
    kept = out / "recipe.yaml"
    if not is_first_process():
        return
    if not kept.is_file():
        if inner := next(out.glob("*/recipe.yaml"), None):
            raise ValueError(f"{out} holds several runs, such as {inner.parent}: choose another --out")
        return
    if not resume:
        raise ValueError(
            f"{out} already holds a run: continue it with `softnce train --resume {out}`, or choose another --out"
        )
    if changed := changes(recipes.load(str(kept)), recipe):
        raise ValueError(f"{out} holds a run of another recipe, so it cannot be resumed: {'; '.join(changed)}")


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Lock the folder until the block ends: a second run would overwrite newer states with older ones."""
    lock = FileLock(out / ".lock")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise Occupied(f"another process is training in {out}") from None
    except OSError as error:
        raise ValueError(f"out: cannot write in {out}: {why(error)}") from None
    try:
        yield
    finally:
        lock.release()
