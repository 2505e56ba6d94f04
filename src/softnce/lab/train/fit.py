"""Lightning's loop around any :class:`~softnce.lab.train.classifier.Classifier`."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softnce.lab.configuration import dotted
from softnce.lab.diverged import Diverged
from softnce.lab.recipes.recipe import Compute
from softnce.lab.train.checkpoints import AtomicCheckpointIO, Checkpoints
from softnce.lab.train.classifier import Classifier
from softnce.lab.train.facts import Facts
from softnce.lab.train.machine import Machine, is_first_process

import lightning as L  # isort: skip
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, RichProgressBar  # isort: skip
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger  # isort: skip
from lightning.pytorch.plugins.environments import SLURMEnvironment  # isort: skip

PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


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
    :class:`~softnce.lab.diverged.Diverged` when the loss is not finite; both after the state is saved.
    """
    machine = machine or Machine.of(compute)
    optimiser, schedule = classifier.optimiser, classifier.schedule
    checkpoints = Checkpoints(out, compute.checkpoint_minutes, compute.checkpoint_steps)
    facts = Facts(out, machine, optimiser.batch)
    callbacks: list[Callback] = [checkpoints, facts]
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
            sync_batchnorm=compute.sync_batchnorm and machine.accelerator == "gpu" and machine.world > 1,
            default_root_dir=out,
            enable_progress_bar=compute.progress,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        start = str(out / "last.ckpt") if resume and (out / "last.ckpt").is_file() else None
        if resume and start is None and is_first_process():
            print(f"no last.ckpt in {out}: the run starts from the beginning", file=sys.stderr)
        for logger in trainer.loggers[1:]:  # TensorBoard and W&B: the run's settings beside its curves
            logger.log_hyperparams(dotted(classifier.about.get("recipe", {})))
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
    """Hide Lightning's warnings about what is intended here."""
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
