"""A training run in its folder: claimed by one recipe and one process, resumed exactly.

recipe.yaml      every value of the run
last.ckpt        the latest state, from which ``train --resume FOLDER`` continues
best.ckpt        the epoch with the best top-1 on the validation data
results.json     metrics of the best and of the last epoch, and what the last start took
confusions.json  of graphs: the confusion matrix of each test graph at the best epoch
csv/, tensorboard/   logs; a resumed run adds to them
"""

import ctypes
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from filelock import FileLock, Timeout
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from experiments.cells import recipes
from experiments.cells.checkpoints import Checkpoints
from experiments.cells.classifier import Classifier
from experiments.cells.evaluate import build_network, evaluate
from experiments.cells.loading import TrainingData, open_data
from experiments.cells.recipes import Compute, GraphRecipe, Recipe
from experiments.data import stored
from experiments.harness.options import dotted, to_mapping
from experiments.harness.rows import versions
from experiments.harness.runs import Diverged
from experiments.losses import build_loss

PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
INTENDED = (
    ".*does not have many workers.*"
    "|.*in eval mode at the start of training.*"  # a frozen backbone
    "|.*isinstance.treespec, LeafSpec.*"  # Lightning's own, with new torch
)


def build(recipe: Recipe, world: int = 1) -> tuple[Classifier, TrainingData, int]:
    """The classifier of a recipe, its data on ``world`` devices, and how many micro-batches make a batch."""
    if recipe.compute.threads:
        torch.set_num_threads(recipe.compute.threads)
    data = open_data(recipe, world)
    num_classes, batches = len(data.classes), data.batches(rank=0)
    if recipe.loss.kind.labels_only and data.targets.dim() == 2:
        raise ValueError(f"loss.name {recipe.loss.name} takes hard labels, but the data are votes: use soft-ce")
    L.seed_everything(recipe.seed, verbose=False)  # the network's initial weights
    data.network = build_network(recipe, num_classes, data.features)
    loss = build_loss(recipe.loss, recipe.targets, data.targets, num_classes)
    about = {"recipe": to_mapping(recipe), "classes": list(data.classes), "features": list(data.features)}
    classifier = Classifier(
        data.network, loss, num_classes, recipe, steps_per_epoch=batches.steps, scores=data.scores(), about=about
    )
    return classifier, data, batches.accumulate


def machine_of(compute: Compute) -> dict[str, Any]:
    """Lightning's arguments: accelerator, devices and nodes; those of torchrun, else the recipe's, else all devices."""
    there = {"gpu": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    is_auto = compute.accelerator == "auto"
    accelerator = next(name for name in there if there[name]) if is_auto else compute.accelerator
    if not there[accelerator] or (accelerator != "cpu" and compute.devices > there[accelerator]):
        wanted = f"compute.accelerator {accelerator}, compute.devices {compute.devices}"
        raise ValueError(f"{wanted}: torch finds {there[accelerator]} on this machine")
    if compute.precision == "fp16" and accelerator == "cpu":
        raise ValueError("compute.precision fp16 needs a GPU; on the CPU use bf16 or 32")
    devices, nodes = compute.devices or there[accelerator], 1
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    return {"accelerator": accelerator, "devices": devices, "num_nodes": nodes}


def is_first_process() -> bool:
    """True for rank 0, as far as the launcher has said."""
    return bool(rank_zero_only.rank == 0)


def keep_freed_memory() -> None:
    """Keeps glibc from returning large blocks, which the system clears again: a fifth of a CNN's time on a CPU."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, -1)  # M_TRIM_THRESHOLD


def train(recipe: Recipe, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Trains the classifier of a recipe in the folder ``out``; metrics of the best and of the last epoch.

    If the best epoch was not chosen on the test split, that split is measured once, with the weights of that epoch.
    Raises Interrupted or Diverged after the state is saved.
    """
    started = time.monotonic()
    with claimed(out, recipe, resume):
        results = fit(recipe, out, resume)
        if not is_first_process():
            return results
        apart = recipe.keeps_test_apart
        if (out / "best.ckpt").is_file() and (apart or isinstance(recipe, GraphRecipe)):
            test = evaluate(out, progress=recipe.compute.progress)
            if apart:
                results["test"] = test.results
            if test.confusions is not None:  # per test graph, from which every accuracy can be formed
                (out / "confusions.json").write_text(json.dumps(test.confusions.tolist()))
        taken = {"seconds": round(time.monotonic() - started, 1), "threads": torch.get_num_threads(),
                 **machine_of(recipe.compute), **versions()}  # fmt: skip
        (out / "results.json").write_text(json.dumps({**results, "taken": taken}, indent=2))
        return results


def fit(recipe: Recipe, out: Path, resume: bool = False) -> dict[str, Any]:
    """As :func:`train`, in a folder that nobody else uses, and without the test split."""
    compute, last, machine = recipe.compute, out / "last.ckpt", machine_of(recipe.compute)
    world = machine["devices"] * machine["num_nodes"]
    classifier, data, accumulate = build(recipe, world)
    if is_first_process():
        (out / "recipe.yaml").write_text(recipes.to_yaml(recipe), encoding="utf-8")
    if machine["accelerator"] == "cpu":
        keep_freed_memory()
    start = str(last) if resume and last.is_file() else None
    if start:
        try:
            stored.load(last)  # Lightning, which reads it again, compares no checksums
        except stored.Unreadable as error:
            raise stored.Unreadable(
                f"{last} is damaged ({error}): delete it to start from the beginning; best.ckpt keeps the best weights"
            ) from error
    checkpoints = Checkpoints(out)
    board = TensorBoardLogger(out, name="tensorboard", version="")
    board.log_hyperparams(dotted(recipe))  # the run's settings beside its curves
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", INTENDED)
        trainer = L.Trainer(
            **machine,
            strategy="ddp" if world > 1 else "auto",
            precision=PRECISION[compute.precision],  # type: ignore[arg-type]
            max_epochs=recipe.schedule.epochs,
            max_steps=recipe.schedule.max_steps,
            accumulate_grad_batches=accumulate,
            callbacks=[checkpoints, *([RichProgressBar()] if compute.progress else ())],
            logger=[CSVLogger(out, name="csv"), board],  # a new csv/version_n each start: nothing is written over
            log_every_n_steps=min(50, classifier.steps_per_epoch),
            use_distributed_sampler=False,
            deterministic=compute.deterministic,
            sync_batchnorm=machine["accelerator"] == "gpu" and world > 1,
            default_root_dir=out,
            enable_progress_bar=compute.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        try:
            trainer.fit(classifier, datamodule=data, ckpt_path=start, weights_only=True)
        except Diverged as error:
            good = f"{last} of step {checkpoints.saved_step}" if checkpoints.saved_step >= 0 else "none yet"
            raise Diverged(f"{error}; last good checkpoint: {good}") from None
    return {"best": checkpoints.best, "last": checkpoints.last}


def scored(recipe: Recipe) -> dict[str, Any]:
    """Trains in a folder that is removed again; for a recipe that keeps the test split apart.

    Returns the best epoch, its scores on the held-out and on the test split, and ``right``: which test samples it has
    right, one bit each, in base64.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            best = fit(recipe, Path(folder))["best"]
        except Diverged as error:  # without the checkpoint, which is removed
            raise Diverged(str(error).partition(";")[0]) from None
        test = evaluate(Path(folder), progress=False)
    right = b64encode(np.packbits(test.right.numpy()).tobytes()).decode("ascii")
    return {"epoch": 1 + int(best["epoch"]), "held_out": best, "test": test.results, "right": right}


@contextmanager
def claimed(out: Path, recipe: Recipe, resume: bool) -> Iterator[None]:
    """Locks ``out``, so that no second run overwrites newer states; refuses a folder of other runs."""
    if not is_first_process():
        yield
        return
    lock, kept = FileLock(out / ".lock"), out / "recipe.yaml"
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"another process is training in {out}") from None
    except OSError as error:
        raise ValueError(f"out: cannot write in {out}: {error.strerror}") from None
    with held:
        if kept.is_file():
            if not resume:
                raise ValueError(f"{out} already holds a run: continue it by --resume {out}, or choose another --out")
            before = recipes.load(str(kept))
            if changed := recipes.changes(before, recipe):
                raise ValueError(f"{out} holds a run of another recipe, so it cannot be resumed: {'; '.join(changed)}")
            if before.schedule != recipe.schedule:
                (out / "results.json").unlink(missing_ok=True)  # of the shorter run
        elif inner := next(out.glob("*/recipe.yaml"), None):
            raise ValueError(f"{out} holds several runs, such as {inner.parent}: choose another --out")
        yield
