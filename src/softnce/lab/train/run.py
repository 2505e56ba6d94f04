"""Train a classifier, and stay alive: atomic checkpoints, exact resumption, a clean end on SIGTERM or divergence.

``fit`` drives any :class:`~softnce.lab.train.classifier.Classifier`; ``train`` builds one from a recipe first, of
images or of graphs. A run is a folder:

    recipe.yaml      every value of the run
    last.ckpt        the latest state; `softnce train --resume FOLDER` goes on from it
    best.ckpt        the epoch with the best top-1 on the validation data
    results.json     metrics of the best and of the last epoch, written at the end
    csv/, tensorboard/   logs; a resumed run adds to them
"""

import json
import logging
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table
from torch import nn

from softnce.lab import recipes
from softnce.lab.configuration import from_args, option, to_mapping
from softnce.lab.data.batches import CorruptImage, TrainingBatches
from softnce.lab.losses import build_loss
from softnce.lab.recipes.recipe import Compute, GraphRecipe, Recipe
from softnce.lab.train.classifier import Batch, Classifier, Diverged
from softnce.lab.train.scores import Scores

import lightning as L  # isort: skip
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO  # isort: skip
from lightning.pytorch.callbacks import Callback, Checkpoint, EMAWeightAveraging, RichProgressBar  # isort: skip
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger  # isort: skip
from lightning.pytorch.plugins.environments import SLURMEnvironment  # isort: skip

PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
HELP = """usage: softnce train RECIPE [--out DIR] [--resume] [--any.field value ...]
       softnce train --resume DIR

Train a classifier from a recipe: a name that `softnce recipes` lists, or a YAML file. Any value of the recipe can be
set on the command line. `softnce train RECIPE --help` explains all fields and shows the recipe's values.

  softnce train laptop/digits                                        half a minute, nothing to download
  softnce train cifar100/soft-target-info-nce --data.dir ~/cifar     the paper's cell
  softnce train laptop/tissue                                        nodes of graphs; grown, not downloaded
  torchrun --nproc-per-node 8 -m softnce train imagenet/nll --data.dir /imagenet --compute.micro_batch 64
  softnce train --resume runs/imagenet-nll                           go on exactly where it stopped

--resume beside a RECIPE goes on if DIR holds a run already and starts it otherwise (for jobs that are queued again).
"""


class NotSaved(RuntimeError):
    """A checkpoint could not be written."""


class Unreadable(RuntimeError):
    """A checkpoint that is there but damaged."""


class Occupied(RuntimeError):
    """Another process trains in the folder."""


class Interrupted(Exception):
    """The run was asked to stop and has saved its state."""


@dataclass(frozen=True)
class Run(Recipe):
    """A recipe and where its run is kept."""

    out: Path = field(default_factory=lambda: Path("runs"), metadata={"help": "folder of the run"})
    resume: bool = option(False, "go on with the run in that folder, if there is one")


@dataclass(frozen=True)
class GraphRun(GraphRecipe):
    """A recipe of graphs and where its run is kept."""

    out: Path = field(default_factory=lambda: Path("runs"), metadata={"help": "folder of the run"})
    resume: bool = option(False, "go on with the run in that folder, if there is one")


# -------------------------------------------------------------------------------------------------- the machine


@dataclass(frozen=True)
class Machine:
    """Where a run runs, as Lightning wants it said."""

    accelerator: str
    devices: int
    nodes: int

    @property
    def world(self) -> int:
        return self.devices * self.nodes

    @staticmethod
    def of(compute: Compute) -> "Machine":
        """Devices and nodes: torchrun's or SLURM's word first, then the recipe's, then all there are."""
        accelerator = compute.accelerator
        if accelerator == "auto":
            accelerator = "gpu" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        environment = os.environ
        if "TORCHELASTIC_RUN_ID" in environment:
            devices = int(environment["LOCAL_WORLD_SIZE"])
            return Machine(accelerator, devices, int(environment["WORLD_SIZE"]) // devices)
        if SLURMEnvironment.detect() and int(environment.get("SLURM_NTASKS", "1")) > 1:
            nodes = int(environment.get("SLURM_NNODES", "1"))
            return Machine(accelerator, int(environment["SLURM_NTASKS"]) // nodes, nodes)
        devices = compute.devices or (torch.cuda.device_count() if accelerator == "gpu" else 1)
        return Machine(accelerator, devices, compute.nodes)


def is_first_process() -> bool:
    """Whether this process is rank 0, as far as the launcher has said."""
    return all(int(os.environ.get(name, "0")) == 0 for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


# --------------------------------------------------------------------------------------------------- checkpoints


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints that are whole or not there: written beside, forced to disk, then renamed into place."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        final = Path(path)
        partial = final.with_name(final.name + ".partial")
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        if hasattr(os, "O_DIRECTORY"):
            folder = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
            raise Unreadable(
                f"{path} is damaged ({str(error) or 'it ends too early'}): copy best.ckpt over it to go on from the "
                "best epoch, or delete it to start from the beginning"
            ) from error


class Checkpoints(Checkpoint):
    """Keeps last.ckpt and best.ckpt, and turns SIGTERM (SIGUSR1, the first Ctrl-C) into a saved state and a stop.

    States are saved between updates only, never with half a batch accumulated; and never between an epoch's last update
    and its validation, so that resuming loses no validation.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.saved_step = -1
        self._updates = -1
        self._signalled = False
        self._handlers: dict[int, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.last = state["best"], state["last"]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._updates = trainer.global_step
        if trainer.ckpt_path is not None:
            self.saved_step = trainer.global_step
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                self._handlers[name] = signal.signal(name, self._note)

    def _note(self, number: int, frame: Any) -> None:
        if self._signalled and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signalled = True

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        for name, handler in self._handlers.items():
            signal.signal(name, handler)
        self._handlers.clear()

    def _asked_to_stop(self, trainer: L.Trainer) -> bool:
        if trainer.world_size == 1:
            return self._signalled
        flag = torch.tensor(float(self._signalled), device=trainer.strategy.root_device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag > 0)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if trainer.global_step == self._updates or trainer.is_last_batch:
            return
        self._updates = trainer.global_step
        stop = self._asked_to_stop(trainer)
        is_last = trainer.global_step == trainer.max_steps
        if is_last:
            self.last = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        if stop or is_last or trainer.global_step % self.every == 0:
            self._save(trainer)
        if stop:
            raise Interrupted

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._updates = trainer.global_step
        if not trainer.is_last_batch:  # max_steps ended it; the state saved then can go on, that of now could not
            return
        measured = {
            name.removeprefix("val/"): float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith("val/")
        }
        self.last = {"epoch": trainer.current_epoch, "step": trainer.global_step, **measured}
        better = "top1" in measured and measured["top1"] > self.best.get("top1", -1.0)
        if better:
            self.best = self.last
        self._save(trainer)
        if better and trainer.is_global_zero:
            _link(self.folder / "last.ckpt", self.folder / "best.ckpt")
        if self._asked_to_stop(trainer):
            raise Interrupted

    def _save(self, trainer: L.Trainer) -> None:
        path = self.folder / "last.ckpt"
        try:
            trainer.save_checkpoint(path, weights_only=False)
        except (OSError, RuntimeError) as error:  # torch reports a failed write as either
            kept = f"the one of step {self.saved_step} is whole" if self.saved_step >= 0 else "there is none before it"
            raise NotSaved(f"cannot write {path} at step {trainer.global_step}: {error}; {kept}") from error
        self.saved_step = trainer.global_step


def _link(source: Path, target: Path) -> None:
    """``target`` becomes ``source`` in one step, without copying where the file system can."""
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        partial.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, partial)
    partial.replace(target)


# -------------------------------------------------------------------------------------------------------- fitting


def fit(
    classifier: Classifier,
    data: L.LightningDataModule,
    compute: Compute,
    out: Path,
    *,
    machine: Machine | None = None,
    accumulate: int = 1,
    resume: bool = False,
) -> dict[str, dict[str, float]]:
    """Train ``classifier`` on ``data`` and return the metrics of the best and the last epoch.

    Raises :class:`Interrupted` when a signal stopped the run, and
    :class:`~softnce.lab.train.classifier.Diverged` when the loss is no number; both after the state is safe in ``out``.
    """
    machine = machine or Machine.of(compute)
    optimiser, schedule = classifier.optimiser, classifier.schedule
    checkpoints = Checkpoints(out, compute.checkpoint_steps)
    callbacks: list[Callback] = [checkpoints]
    if optimiser.ema:
        callbacks.insert(0, EMAWeightAveraging(decay=optimiser.ema))
    if compute.progress:
        callbacks.append(RichProgressBar())
    slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    with quiet_lightning():
        trainer = L.Trainer(
            accelerator=machine.accelerator,
            devices=machine.devices,
            num_nodes=machine.nodes,
            strategy="ddp" if machine.world > 1 else "auto",
            precision=PRECISION[compute.precision],  # type: ignore[arg-type]
            max_epochs=schedule.epochs,
            max_steps=schedule.max_steps,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=optimiser.clip or None,
            callbacks=callbacks,
            logger=_loggers(out, compute),
            plugins=[AtomicCheckpointIO(), *slurm],
            log_every_n_steps=min(50, classifier.steps_per_epoch),
            use_distributed_sampler=False,
            deterministic=compute.deterministic,
            sync_batchnorm=compute.sync_batchnorm,
            default_root_dir=out,
            enable_progress_bar=compute.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        start = str(out / "last.ckpt") if resume and (out / "last.ckpt").is_file() else None
        if resume and start is None and is_first_process():
            print(f"no last.ckpt in {out}: the run starts from the beginning", file=sys.stderr)
        try:
            trainer.fit(classifier, datamodule=data, ckpt_path=start, weights_only=True)
        except Diverged as error:
            good = (
                f"{out / 'last.ckpt'} of step {checkpoints.saved_step}" if checkpoints.saved_step >= 0 else "none yet"
            )
            raise Diverged(f"{error}; last good checkpoint: {good}") from None
    return {"best": checkpoints.best, "last": checkpoints.last}


def _loggers(out: Path, compute: Compute) -> list[Logger]:
    # a new csv/version_n each start: an old log is never written over
    loggers: list[Logger] = [CSVLogger(out, name="csv"), TensorBoardLogger(out, name="tensorboard", version="")]
    if compute.wandb:
        loggers.append(WandbLogger(project=compute.wandb, save_dir=out, name=out.name, id=out.name, resume="allow"))
    return loggers


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without Lightning's advice on what is meant as it is."""
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


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    recipe: Recipe | GraphRecipe
    out: Path
    resume: bool
    machine: Machine
    classifier: Classifier
    data: L.LightningDataModule
    accumulate: int

    def run(self) -> dict[str, Any]:
        """Train; where the best epoch was not chosen on the test split, then measure that once, with its weights."""
        with _alone_in(self.out):
            return self._run()

    def _run(self) -> dict[str, Any]:
        recipe, out = self.recipe, self.out
        results: dict[str, Any] = fit(
            self.classifier,
            self.data,
            recipe.compute,
            out,
            machine=self.machine,
            accumulate=self.accumulate,
            resume=self.resume,
        )
        if is_first_process():
            if recipe.data.keeps_test_apart and (out / "best.ckpt").is_file():
                from softnce.lab.train.evaluate import evaluate

                results["test"] = evaluate(out / "best.ckpt", split="test", progress=recipe.compute.progress).results
            _write(out / "results.json", json.dumps(results, indent=2))
        return results


def prepare(recipe: Recipe | GraphRecipe, out: Path, *, resume: bool = False) -> Prepared:
    """Build all a recipe describes and claim ``out`` for it; a ValueError says what is wrong with either."""
    machine = Machine.of(recipe.compute)
    if recipe.compute.precision == "fp16" and machine.accelerator == "cpu":
        raise ValueError("compute.precision fp16 needs a GPU; on the CPU take bf16 or 32")
    classifier, data, accumulate = build(recipe, machine)
    if recipe.compute.compile:
        classifier.model.compile()
    _claim(out, recipe, resume)
    return Prepared(recipe, out, resume, machine, classifier, data, accumulate)


def build(recipe: Recipe | GraphRecipe, machine: Machine) -> tuple[Classifier, L.LightningDataModule, int]:
    """The classifier a recipe describes, its data, and how many micro-batches make a batch."""
    parts = _image_parts(recipe, machine) if isinstance(recipe, Recipe) else _graph_parts(recipe, machine)
    loss = build_loss(recipe.loss, recipe.targets, parts.labels, len(parts.classes))
    classifier = Classifier(
        parts.network,
        loss,
        len(parts.classes),
        targets=recipe.targets,
        optimiser=recipe.optimiser,
        schedule=recipe.schedule,
        steps_per_epoch=parts.batches.steps,
        parameter_groups=parts.groups,
        scores=parts.scores,
        seed=recipe.seed,
        about={"recipe": to_mapping(recipe), "classes": list(parts.classes), "features": list(parts.features)},
    )
    return classifier, parts.data, parts.batches.accumulate


@dataclass(frozen=True)
class _Parts:
    """What images and graphs each build in their own way."""

    data: L.LightningDataModule
    batches: TrainingBatches
    labels: torch.Tensor  # of all training rows
    classes: Sequence[str]
    network: nn.Module
    groups: Callable[[], list[dict[str, Any]]]
    scores: Scores | None = None
    features: tuple[int, ...] = ()  # what the network takes, where the recipe does not say it


def _image_parts(recipe: Recipe, machine: Machine) -> _Parts:
    from softnce.lab.data.image_module import ImageData
    from softnce.lab.models.images import build_network, parameter_groups

    o, data = recipe.optimiser, ImageData(recipe, machine.world)
    batches, images = data.batches(rank=0), data.train_images
    L.seed_everything(recipe.seed, verbose=False)  # the network's initial weights
    network = build_network(recipe.model, recipe.head, len(images.classes), recipe.data.image_size)
    data.network = network
    groups = partial(parameter_groups, network, o.weight_decay, o.layer_decay)
    return _Parts(data, batches, images.labels, images.classes, network, groups)


def _graph_parts(recipe: GraphRecipe, machine: Machine) -> _Parts:
    try:
        from softnce.lab.data.graph_module import NodeData
    except ModuleNotFoundError as error:
        raise ValueError(f"graphs need {error.name}: pip install 'softnce[graph]'") from None
    from softnce.lab.models.graphs import build_network, parameter_groups
    from softnce.lab.train.graph_scores import NodeScores

    data = NodeData(recipe, machine.world)
    batches, task = data.batches(rank=0), data.task
    L.seed_everything(recipe.seed, verbose=False)
    features = task.num_node_features, task.num_edge_features
    network = build_network(recipe.model, recipe.head, *features, task.num_classes)
    groups = partial(parameter_groups, network, recipe.optimiser)
    groups()  # a part that does not exist is named now, not when training starts
    scores = NodeScores(task.num_classes, task.left_out)
    return _Parts(data, batches, data.labels, task.class_names, network, groups, scores, features)


def train(recipe: Recipe | GraphRecipe, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Train the classifier a recipe describes, in the folder ``out``; metrics of the best and last epoch."""
    return prepare(recipe, out, resume=resume).run()


def _claim(out: Path, recipe: Recipe | GraphRecipe, resume: bool) -> None:
    """Make ``out`` the folder of this run, or say why it cannot be."""
    if not is_first_process():
        return
    kept = out / "recipe.yaml"
    if kept.is_file():
        if not resume:
            raise ValueError(
                f"{out} holds a run already: `softnce train --resume {out}` goes on with it, or choose another --out"
            )
        before, now = to_mapping(recipes.load(str(kept))), to_mapping(recipe)
        free = {("data", "dir"), ("data", "workers"), ("data", "cache"), ("compute", "progress"), ("compute", "wandb"),
                ("schedule", "max_steps")}  # fmt: skip
        changed = [
            f"{group}.{name} was {before[group].get(name)}, is {value}"
            for group, values in now.items()
            if isinstance(values, dict)
            for name, value in values.items()
            if before[group].get(name) != value and (group, name) not in free
        ]
        if before["seed"] != now["seed"]:
            changed.append(f"seed was {before['seed']}, is {now['seed']}")
        if changed:
            raise ValueError(f"{out} holds a run of another recipe, so it cannot be resumed: {'; '.join(changed)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        _write(kept, recipes.to_yaml(recipe))
    except OSError as error:
        raise ValueError(f"out: cannot write in {out}: {error.strerror}") from None


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """The folder is this run's: a second one would write its older state over the newer. Ends with the process."""
    if not is_first_process():
        yield
        return
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Occupied(f"another process is training in {out}") from None
    try:
        yield
    finally:
        lock.release()


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


# ------------------------------------------------------------------------------------------------- command line


def parse(argv: list[str]) -> tuple[Recipe | GraphRecipe, Path, bool]:
    """Recipe, folder, and whether to resume."""
    words = list(argv)
    if "--resume" in words:
        place = words.index("--resume")
        bare = place + 1 == len(words) or words[place + 1].startswith("--")
        named = words[0] if words and not words[0].startswith("-") else None
        if named is None and not bare:  # --resume DIR
            out = Path(words[place + 1])
            if not (out / "recipe.yaml").is_file():
                raise ValueError(f"--resume {out}: no run there (no recipe.yaml)")
            if any(word == "--out" or word.startswith("--out=") for word in words):
                raise ValueError(f"--resume {out} goes on in {out}: leave --out away")
            del words[place : place + 2]
            words = [str(out / "recipe.yaml"), *words, "--out", str(out), "--resume=true"]
        elif bare:
            words[place] = "--resume=true"
    if not words or words[0].startswith("-"):
        raise ValueError("a RECIPE is needed first: `softnce recipes` lists them")
    name, rest = words[0], words[1:]
    recipe = recipes.load(name)
    out = Path("runs") / name.replace("/", "-").removesuffix(".yaml").removesuffix(".yml")
    kind, run_type = (Recipe, Run) if isinstance(recipe, Recipe) else (GraphRecipe, GraphRun)
    values = {item.name: getattr(recipe, item.name) for item in fields(kind)}
    run: Any = from_args(
        run_type,
        rest,
        prog="softnce train",
        description=f"Train a classifier from the recipe {name}. The defaults shown are the recipe's values.",
        defaults=run_type(**values, out=out),
    )
    chosen = kind(**{item.name: getattr(run, item.name) for item in fields(kind)})
    return chosen, run.out, run.resume


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    try:
        recipe, out, resume = parse(argv)
        prepared = prepare(recipe, out, resume=resume)
    except ValueError as error:
        sys.exit(f"softnce train: {error}")
    try:
        results = prepared.run()
    except (Diverged, NotSaved, Unreadable, Occupied) as error:
        sys.exit(f"softnce train: {error}")
    except CorruptImage as error:
        sys.exit(f"softnce train: {error.words}")
    except Interrupted:
        if is_first_process():
            print(f"stopped; `softnce train --resume {out}` goes on", file=sys.stderr)
        sys.exit(128 + signal.SIGTERM)
    if not is_first_process():
        return
    if results["best"]:
        _show(results, out)
    else:
        print(f"no epoch was completed, so nothing was measured: softnce evaluate {out / 'last.ckpt'} does that")


def _show(results: dict[str, Any], out: Path) -> None:
    table = Table(str(out), *results)
    for metric in next(iter(results.values())):
        values = [columns.get(metric) for columns in results.values()]
        form = "{:g}" if metric in ("epoch", "step") else "{:.4f}"
        table.add_row(metric, *("" if value is None else form.format(value) for value in values))
    Console().print(table)
