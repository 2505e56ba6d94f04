"""A training run in its folder: claimed by one recipe and one process, resumed exactly.

recipe.yaml      every value of the run
last.ckpt        the latest state; ``train --resume FOLDER`` continues from it
best.ckpt        the epoch with the best top-1 on the validation data
results.json     metrics of the best and of the last epoch, written at the end, and what the last start took
confusions.json  of graphs: the confusion matrix of each test graph at the best epoch
csv/, tensorboard/   logs; a resumed run adds to them
"""

import ctypes
import json
import logging
import os
import platform
import sys
import tempfile
import time
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import nn

from experiments.cells import recipes
from experiments.cells.checkpoints import AtomicCheckpointIO, Checkpoints, reason
from experiments.cells.classifier import Classifier
from experiments.cells.loading import TrainingData, missing, open_data
from experiments.cells.recipes import Compute, GraphRecipe, Recipe, TextRecipe
from experiments.harness.options import dotted, to_mapping
from experiments.harness.runs import Diverged
from experiments.losses import build_loss
from experiments.models import torchvision_operators  # noqa: F401  (before Lightning)

import lightning as L  # isort: skip
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, RichProgressBar  # isort: skip
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger  # isort: skip
from lightning.pytorch.plugins.environments import SLURMEnvironment  # isort: skip

PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


class Occupied(RuntimeError):
    """Another process trains in the folder."""


def build_network(recipe: Recipe, num_classes: int, features: tuple[int, ...] = ()) -> nn.Module:
    """The network of a recipe; ``features`` are of graphs, the numbers of node and of edge features."""
    model: Any = recipe.model
    try:
        if isinstance(recipe, GraphRecipe):
            from experiments.models import graphs

            return graphs.build_network(model, recipe.head, *features, num_classes)  # type: ignore[arg-type]
        if isinstance(recipe, TextRecipe):
            from experiments.models import text

            return text.build_network(model, recipe.head, num_classes)
        from experiments.models import images
    except ModuleNotFoundError as error:
        raise missing(recipe, error) from None
    network = images.build_network(model, recipe.head, num_classes, recipe.data.image_size)
    if recipe.compute.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def build(recipe: Recipe, world: int = 1) -> tuple[Classifier, TrainingData, int]:
    """The classifier of a recipe, its data on ``world`` devices, and how many micro-batches make a batch."""
    if recipe.compute.threads:
        torch.set_num_threads(recipe.compute.threads)
    data = open_data(recipe, world)
    num_classes, batches = len(data.classes), data.batches(rank=0)
    if recipe.loss.kind.labels_only and data.targets.dim() == 2:
        raise ValueError(f"loss.name {recipe.loss.name} takes hard labels, but the data are votes: use soft-ce")
    L.seed_everything(recipe.seed, verbose=False)  # the network's initial weights
    network = build_network(recipe, num_classes, data.features)
    data.network = network
    classifier = Classifier(
        network,
        build_loss(recipe.loss, recipe.targets, data.targets, num_classes),
        num_classes,
        targets=recipe.targets,
        optimiser=recipe.optimiser,
        schedule=recipe.schedule,
        steps_per_epoch=batches.steps,
        scores=data.scores(),
        seed=recipe.seed,
        about={"recipe": to_mapping(recipe), "classes": list(data.classes), "features": list(data.features)},
    )
    return classifier, data, batches.accumulate


# --------------------------------------------------------------------------------------------------------- machine


@dataclass(frozen=True)
class Machine:
    """Accelerator, devices per node and nodes of a run, in Lightning's terms."""

    accelerator: str
    devices: int
    nodes: int

    @property
    def world(self) -> int:
        return self.devices * self.nodes

    @staticmethod
    def of(compute: Compute) -> "Machine":
        """Devices and nodes: those of torchrun or SLURM, else the recipe's, else all available.

        Raises ValueError if there is no such device, or if several machines cannot know of each other.
        """
        accelerator, environment = compute.accelerator, os.environ
        there = {"gpu": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not there.get(accelerator, True):
            raise ValueError(f"compute.accelerator {accelerator}: torch finds none on this machine; use cpu or auto")
        if accelerator == "auto":
            accelerator = "gpu" if there["gpu"] else "mps" if there["mps"] else "cpu"  # type: ignore[assignment]
        if compute.precision == "fp16" and accelerator == "cpu":
            raise ValueError("compute.precision fp16 needs a GPU; on the CPU use bf16 or 32")
        if "TORCHELASTIC_RUN_ID" in environment:
            devices = int(environment["LOCAL_WORLD_SIZE"])
            return Machine(accelerator, devices, int(environment["WORLD_SIZE"]) // devices)
        if SLURMEnvironment.detect() and int(environment.get("SLURM_NTASKS", "1")) > 1:
            nodes = int(environment.get("SLURM_NNODES", "1"))
            return Machine(accelerator, int(environment["SLURM_NTASKS"]) // nodes, nodes)
        available = torch.cuda.device_count() if accelerator == "gpu" else 1
        if accelerator != "cpu" and compute.devices > available:
            raise ValueError(f"compute.devices: got {compute.devices}, but this machine has {available}")
        absent = [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if name not in environment]
        if compute.nodes > 1 and absent:
            raise ValueError(f"compute.nodes {compute.nodes} needs {', '.join(absent)} in the environment, or torchrun")
        return Machine(accelerator, compute.devices or available, compute.nodes)


def is_first_process() -> bool:
    """True for rank 0, as far as the launcher has said."""
    return all(int(os.environ.get(name, "0")) == 0 for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def keep_freed_memory() -> None:
    """Tells glibc's malloc to return nothing to the system while this process lives.

    By default large blocks go back when they are freed, and the system clears them again, page by page, at the next
    step: a fifth of the time of a convolutional network on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, -1)  # M_TRIM_THRESHOLD


# ------------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    recipe: Recipe
    out: Path
    resume: bool
    machine: Machine
    classifier: Classifier
    data: TrainingData
    accumulate: int
    claim: ExitStack  # the folder is locked until it is closed

    def run(self) -> dict[str, Any]:
        """Trains. If the best epoch was not chosen on the test split, that split is measured once, with its weights."""
        from experiments.cells.evaluate import evaluate

        recipe, out = self.recipe, self.out
        with self.claim:
            started = time.monotonic()
            results = self.fit()
            if is_first_process():
                best = out / "best.ckpt"
                if best.is_file() and (recipe.data.keeps_test_apart or isinstance(recipe, GraphRecipe)):
                    test = evaluate(best, progress=recipe.compute.progress)
                    if recipe.data.keeps_test_apart:
                        results["test"] = test.results
                    if test.confusions is not None:  # per test graph, from which every accuracy can be formed
                        (out / "confusions.json").write_text(json.dumps(test.confusions.tolist()))
                seconds = round(time.monotonic() - started, 1)
                taken = {"seconds": seconds, "threads": torch.get_num_threads(), **vars(self.machine), **versions()}
                (out / "results.json").write_text(json.dumps({**results, "taken": taken}, indent=2))
            return results

    def fit(self) -> dict[str, dict[str, float]]:
        """Trains; metrics of the best and of the last epoch.

        Raises Interrupted when a signal stopped the run, and Diverged when the loss is not finite; both after the
        state is saved.
        """
        if self.machine.accelerator == "cpu":
            keep_freed_memory()
        compute, out = self.recipe.compute, self.out
        checkpoints = Checkpoints(out, compute.checkpoint_minutes, compute.checkpoint_steps)
        with quiet_lightning():
            trainer = self._trainer(checkpoints)
            for logger in trainer.loggers[1:]:  # TensorBoard: the run's settings beside its curves
                logger.log_hyperparams(dotted(self.recipe))
            start = str(out / "last.ckpt") if self.resume and (out / "last.ckpt").is_file() else None
            if self.resume and start is None and is_first_process():
                print(f"no last.ckpt in {out}: the run starts from the beginning", file=sys.stderr)
            try:
                trainer.fit(self.classifier, datamodule=self.data, ckpt_path=start, weights_only=True)
            except Diverged as error:
                step = checkpoints.saved_step
                good = f"{out / 'last.ckpt'} of step {step}" if step >= 0 else "none yet"
                raise Diverged(f"{error}; last good checkpoint: {good}") from None
        return {"best": checkpoints.best, "last": checkpoints.last}

    def _trainer(self, checkpoints: Checkpoints) -> L.Trainer:
        recipe, machine, out = self.recipe, self.machine, self.out
        compute, optimiser = recipe.compute, recipe.optimiser
        callbacks: list[Callback] = [checkpoints]
        if optimiser.ema:
            callbacks.insert(0, EMAWeightAveraging(decay=optimiser.ema))
        if compute.progress:
            callbacks.append(RichProgressBar())
        # a new csv/version_n each start: an old log is never written over
        loggers: list[Logger] = [CSVLogger(out, name="csv"), TensorBoardLogger(out, name="tensorboard", version="")]
        slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
        return L.Trainer(
            accelerator=machine.accelerator,
            devices=machine.devices,
            num_nodes=machine.nodes,
            strategy="ddp" if machine.world > 1 else "auto",
            precision=PRECISION[compute.precision],  # type: ignore[arg-type]
            max_epochs=recipe.schedule.epochs,
            max_steps=recipe.schedule.max_steps,
            accumulate_grad_batches=self.accumulate,
            gradient_clip_val=optimiser.clip or None,
            callbacks=callbacks,
            logger=loggers,
            plugins=[AtomicCheckpointIO(), *slurm],
            log_every_n_steps=min(50, self.classifier.steps_per_epoch),
            use_distributed_sampler=False,
            deterministic=compute.deterministic,
            sync_batchnorm=compute.sync_batchnorm and machine.accelerator == "gpu" and machine.world > 1,
            default_root_dir=out,
            enable_progress_bar=compute.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )


def prepare(recipe: Recipe, out: Path, *, resume: bool = False) -> Prepared:
    """Builds everything a recipe describes and claims ``out`` for it; a ValueError says what is wrong with either."""
    machine = Machine.of(recipe.compute)
    _check_folder(out, recipe, resume)
    classifier, data, accumulate = build(recipe, machine.world)
    if recipe.compute.compile:
        classifier.model.compile()
    return Prepared(recipe, out, resume, machine, classifier, data, accumulate, _claim(out, recipe, resume))


def train(recipe: Recipe, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Trains the classifier a recipe describes, in the folder ``out``; metrics of the best and last epoch."""
    return prepare(recipe, out, resume=resume).run()


def scored(recipe: Recipe) -> dict[str, Any]:
    """Trains in a folder that is removed again; for a recipe that keeps the test split apart.

    Returns the best epoch, its scores on the held-out and on the test split, and ``right``: which test samples it has
    right, one bit each, in base64.
    """
    from experiments.cells.evaluate import evaluate

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


def versions() -> dict[str, str]:
    """Versions of installed packages."""
    found = {"python": platform.python_version()}
    for name in ("torch", "lightning", "timm", "torch-geometric", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _claim(out: Path, recipe: Recipe, resume: bool) -> ExitStack:
    """Locks ``out``, so that no second run overwrites newer states, and makes it the folder of this run."""
    with ExitStack() as claim:
        if not is_first_process():
            return claim.pop_all()
        lock, kept = FileLock(out / ".lock"), out / "recipe.yaml"
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
            claim.callback(lock.release)
            _check_folder(out, recipe, resume)  # again: another process may have been faster
            if kept.is_file() and recipes.load(str(kept)).schedule != recipe.schedule:
                (out / "results.json").unlink(missing_ok=True)  # of the shorter run
            partial = out / "recipe.yaml.partial"
            partial.write_text(recipes.to_yaml(recipe), encoding="utf-8")
            partial.replace(kept)
        except Timeout:
            raise Occupied(f"another process is training in {out}") from None
        except OSError as error:
            raise ValueError(f"out: cannot write in {out}: {reason(error)}") from None
        return claim.pop_all()


def _check_folder(out: Path, recipe: Recipe, resume: bool) -> None:
    """Raises ValueError if ``out`` holds a run that this recipe does not continue, or the folders of several."""
    kept = out / "recipe.yaml"
    if not is_first_process():
        return
    if not kept.is_file():
        if inner := next(out.glob("*/recipe.yaml"), None):
            raise ValueError(f"{out} holds several runs, such as {inner.parent}: choose another --out")
        return
    if not resume:
        raise ValueError(f"{out} already holds a run: continue it with train --resume {out}, or choose another --out")
    if changed := recipes.changes(recipes.load(str(kept)), recipe):
        raise ValueError(f"{out} holds a run of another recipe, so it cannot be resumed: {'; '.join(changed)}")


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hides Lightning's warnings about what is intended here."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            warnings.filterwarnings("ignore", ".*in eval mode at the start of training.*")  # a frozen backbone
            warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")  # Lightning's own, with new torch
            yield
    finally:
        log.setLevel(level)
