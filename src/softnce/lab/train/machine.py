"""The devices of a run, and which of its processes this one is."""

import os
from dataclasses import dataclass

import torch

from softnce.lab.models import torchvision_operators  # noqa: F401  (before Lightning)
from softnce.lab.recipes.recipe import Compute

from lightning.pytorch.plugins.environments import SLURMEnvironment  # isort: skip


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
