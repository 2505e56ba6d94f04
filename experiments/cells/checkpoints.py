"""When a run is saved, and a clean stop on SIGTERM."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Checkpoint

MINUTES = 10
"""Between states, beside the one after each epoch."""


class Interrupted(Exception):
    """The run was asked to stop and has saved its state."""


class Checkpoints(Checkpoint):
    """Keeps last.ckpt and best.ckpt, and turns SIGTERM (SIGUSR1, the first Ctrl-C) into a saved state and a stop.

    States are saved between updates only, never with half a batch accumulated; and never between an epoch's last update
    and its validation, so that resuming loses no validation. Of the best epoch the weights are kept, a third of the
    whole with AdamW.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.saved_step = -1
        self._updates = -1
        self._saved_at = time.monotonic()
        self._signalled = False

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.last = state["best"], state["last"]

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["accumulate"] = trainer.accumulate_grad_batches

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Lightning counts the shares of an epoch: count them anew if devices or micro-batches have changed."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        shares = progress["current"]["ready"]
        more = -(-shares // checkpoint["accumulate"]) * trainer.accumulate_grad_batches - shares
        for counts in (progress["total"], progress["current"]):
            for name in counts:
                counts[name] += more

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._updates, self._saved_at = trainer.global_step, time.monotonic()
        if trainer.ckpt_path is not None:
            self.saved_step = trainer.global_step
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                signal.signal(name, self._note)  # Lightning puts back what was there before it, at the end of the fit

    def _note(self, number: int, frame: Any) -> None:
        if self._signalled and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signalled = True

    def _asked(self, trainer: L.Trainer) -> tuple[bool, bool]:
        """Whether to stop, and whether a state is due: the same on every rank."""
        asked = self._signalled, time.monotonic() - self._saved_at >= 60 * MINUTES
        if trainer.world_size == 1:
            return asked
        flags = torch.tensor(asked, dtype=torch.float, device=trainer.strategy.root_device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        stop, due = flags.tolist()
        return stop > 0, due > 0

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *batch: Any) -> None:
        if trainer.global_step == self._updates or trainer.is_last_batch:
            return
        self._updates = trainer.global_step
        stop, due = self._asked(trainer)
        is_last = trainer.global_step == trainer.max_steps
        if is_last:
            self.last = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        if stop or due or is_last:
            self._save(trainer)
        if stop:
            raise Interrupted

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._updates = trainer.global_step
        if not trainer.is_last_batch:  # max_steps ended it; the state saved then can go on, that of now could not
            return
        metrics = trainer.callback_metrics
        measured = {name[4:]: float(value) for name, value in metrics.items() if name.startswith("val/")}
        self.last = {"epoch": trainer.current_epoch, "step": trainer.global_step, **measured}
        if "top1" in measured and measured["top1"] > self.best.get("top1", -1.0):
            self.best = self.last
            self._save(trainer, "best.ckpt", weights_only=True)  # first: what last.ckpt says of it is then true
        self._save(trainer)
        stop, _ = self._asked(trainer)
        if stop:
            raise Interrupted

    def _save(self, trainer: L.Trainer, name: str = "last.ckpt", weights_only: bool = False) -> None:
        """Complete or not at all: Lightning's own file may be copied from another disk, which takes a while."""
        partial = self.folder / f"{name}.partial"
        trainer.save_checkpoint(partial, weights_only=weights_only)
        if trainer.is_global_zero:
            partial.replace(self.folder / name)
        self.saved_step, self._saved_at = trainer.global_step, time.monotonic()
