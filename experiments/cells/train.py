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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from filelock import FileLock, Timeout
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, RichProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import nn

from experiments.cells import recipes
from experiments.cells.checkpoints import AtomicCheckpointIO, Checkpoints
from experiments.cells.classifier import Classifier
from experiments.cells.loading import TrainingData, open_data
from experiments.cells.recipes import Compute, GraphRecipe, Recipe, TextRecipe
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


class Occupied(ValueError):
    """Another process trains in the folder."""


def build_network(recipe: Recipe, num_classes: int, features: tuple[int, ...] = ()) -> nn.Module:
    """The network of a recipe; ``features`` are of graphs, the numbers of node and of edge features."""
    if isinstance(recipe, GraphRecipe):
        from experiments.models import graphs

        return graphs.build_network(recipe.model, recipe.head, *features, num_classes)
    if isinstance(recipe, TextRecipe):
        from experiments.models import text

        return text.build_network(recipe.model, recipe.head, num_classes)
    from experiments.models import images

    network = images.build_network(recipe.model, recipe.head, num_classes, recipe.data.image_size)
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
    data.network = build_network(recipe, num_classes, data.features)
    loss = build_loss(recipe.loss, recipe.targets, data.targets, num_classes)
    about = {"recipe": to_mapping(recipe), "classes": list(data.classes), "features": list(data.features)}
    classifier = Classifier(
        data.network, loss, num_classes, recipe, steps_per_epoch=batches.steps, scores=data.scores(), about=about
    )
    return classifier, data, batches.accumulate


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
        """Devices and nodes: those of torchrun or SLURM, else the recipe's, else all available."""
        there = {"gpu": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
        is_auto, environment = compute.accelerator == "auto", os.environ
        accelerator = next(name for name in there if there[name]) if is_auto else compute.accelerator
        if not there[accelerator] or (accelerator != "cpu" and compute.devices > there[accelerator]):
            wanted = f"compute.accelerator {accelerator}, compute.devices {compute.devices}"
            raise ValueError(f"{wanted}: torch finds {there[accelerator]} on this machine")
        if compute.precision == "fp16" and accelerator == "cpu":
            raise ValueError("compute.precision fp16 needs a GPU; on the CPU use bf16 or 32")
        if "TORCHELASTIC_RUN_ID" in environment:
            devices = int(environment["LOCAL_WORLD_SIZE"])
            return Machine(accelerator, devices, int(environment["WORLD_SIZE"]) // devices)
        if SLURMEnvironment.detect() and int(environment.get("SLURM_NTASKS", "1")) > 1:
            nodes = int(environment.get("SLURM_NNODES", "1"))
            return Machine(accelerator, int(environment["SLURM_NTASKS"]) // nodes, nodes)
        absent = {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} - environment.keys()
        if compute.nodes > 1 and absent:
            raise ValueError(f"compute.nodes {compute.nodes} needs {', '.join(sorted(absent))} set, or torchrun")
        return Machine(accelerator, compute.devices or there[accelerator], compute.nodes)


def is_first_process() -> bool:
    """True for rank 0, as far as the launcher has said."""
    return all(int(os.environ.get(name, "0")) == 0 for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def keep_freed_memory() -> None:
    """Keeps glibc from returning large blocks, which the system clears again: a fifth of a CNN's time on a CPU."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, -1)  # M_TRIM_THRESHOLD


class Run:
    """A run that is ready to start; its folder is locked until ``claim`` is closed."""

    def __init__(self, recipe: Recipe, out: Path, *, resume: bool = False) -> None:
        self.recipe, self.out, self.resume, self.machine = recipe, out, resume, Machine.of(recipe.compute)
        with ExitStack() as claim:
            claim.enter_context(claimed(out, recipe, resume))
            self.classifier, self.data, self.accumulate = build(recipe, self.machine.world)
            if recipe.compute.compile:
                self.classifier.model.compile()
            if is_first_process():
                partial = out / "recipe.yaml.partial"
                partial.write_text(recipes.to_yaml(recipe), encoding="utf-8")
                partial.replace(out / "recipe.yaml")
            self.claim = claim.pop_all()

    def train(self) -> dict[str, Any]:
        """Trains. If the best epoch was not chosen on the test split, that split is measured once, with its weights."""
        from experiments.cells.evaluate import evaluate

        recipe, out, started = self.recipe, self.out, time.monotonic()
        with self.claim:
            results = self.fit()
            if not is_first_process():
                return results
            apart = recipe.keeps_test_apart
            if (out / "best.ckpt").is_file() and (apart or isinstance(recipe, GraphRecipe)):
                test = evaluate(out, progress=recipe.compute.progress)
                if apart:
                    results["test"] = test.results
                if test.confusions is not None:  # per test graph, from which every accuracy can be formed
                    (out / "confusions.json").write_text(json.dumps(test.confusions.tolist()))
            used = {name: sys.modules[name].__version__ for name in ("lightning", "timm") if name in sys.modules}
            seconds, threads = round(time.monotonic() - started, 1), torch.get_num_threads()
            taken = {"seconds": seconds, "threads": threads, **vars(self.machine), **versions(), **used}
            (out / "results.json").write_text(json.dumps({**results, "taken": taken}, indent=2))
            return results

    def fit(self) -> dict[str, dict[str, float]]:
        """Metrics of the best and of the last epoch. Raises Interrupted or Diverged after the state is saved."""
        recipe, out, machine = self.recipe, self.out, self.machine
        compute, optimiser, last = recipe.compute, recipe.optimiser, out / "last.ckpt"
        if machine.accelerator == "cpu":
            keep_freed_memory()
        checkpoints = Checkpoints(out, compute.checkpoint_minutes, compute.checkpoint_steps)
        callbacks: list[Callback] = [EMAWeightAveraging(decay=optimiser.ema)] if optimiser.ema else []
        callbacks += [checkpoints, *([RichProgressBar()] if compute.progress else ())]
        plugins: list[Any] = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
        plugins.append(AtomicCheckpointIO())
        board = TensorBoardLogger(out, name="tensorboard", version="")
        board.log_hyperparams(dotted(recipe))  # the run's settings beside its curves
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", INTENDED)
            trainer = L.Trainer(
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
                logger=[CSVLogger(out, name="csv"), board],  # a new csv/version_n each start: nothing is written over
                plugins=plugins,
                log_every_n_steps=min(50, self.classifier.steps_per_epoch),
                use_distributed_sampler=False,
                deterministic=compute.deterministic,
                sync_batchnorm=compute.sync_batchnorm and machine.accelerator == "gpu" and machine.world > 1,
                default_root_dir=out,
                enable_progress_bar=compute.progress,
                enable_model_summary=False,
                num_sanity_val_steps=0,
            )
            start = str(last) if self.resume and last.is_file() else None
            try:
                trainer.fit(self.classifier, datamodule=self.data, ckpt_path=start, weights_only=True)
            except Diverged as error:
                good = f"{last} of step {checkpoints.saved_step}" if checkpoints.saved_step >= 0 else "none yet"
                raise Diverged(f"{error}; last good checkpoint: {good}") from None
        return {"best": checkpoints.best, "last": checkpoints.last}


def train(recipe: Recipe, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Trains the classifier a recipe describes, in the folder ``out``; metrics of the best and last epoch."""
    return Run(recipe, out, resume=resume).train()


def scored(recipe: Recipe) -> dict[str, Any]:
    """Trains in a folder that is removed again; for a recipe that keeps the test split apart.

    Returns the best epoch, its scores on the held-out and on the test split, and ``right``: which test samples it has
    right, one bit each, in base64.
    """
    from experiments.cells.evaluate import evaluate

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = Run(recipe, out)
        with run.claim:
            try:
                best = run.fit()["best"]
            except Diverged as error:  # without the checkpoint, which is removed
                raise Diverged(str(error).partition(";")[0]) from None
            test = evaluate(out, progress=False)
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
        lock.acquire(timeout=0)
    except Timeout:
        raise Occupied(f"another process is training in {out}") from None
    except OSError as error:
        raise ValueError(f"out: cannot write in {out}: {error.strerror}") from None
    with ExitStack() as held:
        held.callback(lock.release)
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
