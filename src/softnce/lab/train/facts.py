"""What a run took and where it ran: facts.json in its folder."""

import datetime
import json
import os
import platform
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import softnce
from softnce.lab.atomic import write_text
from softnce.lab.models import torchvision_operators  # noqa: F401  (before Lightning)
from softnce.lab.train.machine import Machine

import lightning as L  # isort: skip
from lightning.pytorch.callbacks import Callback  # isort: skip

PACKAGES = ("torch", "lightning", "timm", "torchvision", "torch-geometric", "transformers", "numpy")


class Facts(Callback):
    """Writes versions, machine, wall time and throughput after each epoch and at the end; a resumed run adds to them.

    ``seconds`` is the wall time of all starts, ``rows_per_second`` the rows of all updates over the time of training
    without validation; a graph counts as a row.

    Args:
        folder: of the run.
        machine: its devices.
        batch: rows per update.
    """

    def __init__(self, folder: Path, machine: Machine, batch: int) -> None:
        self.path, self.machine, self.batch = folder / "facts.json", machine, batch
        self._before: list[dict[str, Any]] = []
        self._started = self._validating = 0.0
        self._validated = 0.0
        self._first_step = 0
        self._start_time = ""

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.ckpt_path is not None and self.path.is_file():
            try:
                self._before = json.loads(self.path.read_text(encoding="utf-8"))["starts"]
            except (ValueError, KeyError, TypeError):
                print(f"{self.path} is damaged: time and updates of earlier starts are not counted", file=sys.stderr)
        self._started, self._first_step = time.monotonic(), trainer.global_step
        self._start_time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._validating = time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._validated += time.monotonic() - self._validating

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._write(trainer)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._write(trainer)

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        if self._started:
            with suppress(OSError):  # what ended the run is to be reported, such as a full disk
                self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        now = {
            "time": self._start_time,
            "seconds": round(time.monotonic() - self._started, 3),
            "validation_seconds": round(self._validated, 3),
            "updates": trainer.global_step - self._first_step,
            "machine": described(self.machine),
            "versions": versions(),
        }
        starts = [*self._before, now]
        seconds, validated, updates = (
            sum(start[name] for start in starts) for name in ("seconds", "validation_seconds", "updates")
        )
        rate = round(updates * self.batch / (seconds - validated), 2) if seconds > validated else None
        facts = {"seconds": round(seconds, 3), "updates": updates, "rows_per_second": rate, "starts": starts}
        write_text(self.path, json.dumps(facts, indent=2))


def versions() -> dict[str, str]:
    """Versions of what trains, as far as it is installed."""
    found = {"softnce": softnce.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def described(machine: Machine) -> dict[str, Any]:
    """The machine in words and numbers."""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "platform": f"{sys.platform} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": machine.accelerator,
        "devices": machine.devices,
        "nodes": machine.nodes,
        "gpus": names,
    }
