"""The devices of a run, and which of its processes this one is."""

import os
from dataclasses import dataclass

import torch

from softnce.lab.models import torchvision_operators  # noqa: F401  (before Lightning)
from softnce.lab.recipes.recipe import Compute

from lightning.pytorch.plugins.environments import SLURMEnvironment  # isort: skip


NODE_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
"""What Lightning reads to join machines where no launcher does: where the first one listens, and which one this is."""


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
        accelerator = compute.accelerator
        there = {"gpu": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not there.get(accelerator, True):
            raise ValueError(f"compute.accelerator {accelerator}: torch finds none on this machine; use cpu or auto")
        if accelerator == "auto":
            accelerator = "gpu" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        environment = os.environ
        if "TORCHELASTIC_RUN_ID" in environment:
            devices = int(environment["LOCAL_WORLD_SIZE"])
            return Machine(accelerator, devices, int(environment["WORLD_SIZE"]) // devices)
        if SLURMEnvironment.detect() and int(environment.get("SLURM_NTASKS", "1")) > 1:
            nodes = int(environment.get("SLURM_NNODES", "1"))
            return Machine(accelerator, int(environment["SLURM_NTASKS"]) // nodes, nodes)
        available = torch.cuda.device_count() if accelerator == "gpu" else 1
        if accelerator != "cpu" and compute.devices > available:
            raise ValueError(f"compute.devices: got {compute.devices}, but this machine has {available}")
        missing = [name for name in NODE_VARIABLES if name not in environment]
        if compute.nodes > 1 and missing:
            raise ValueError(
                f"compute.nodes {compute.nodes} needs {', '.join(missing)} in the environment of the command on each "
                "machine, or torchrun or srun to start it"
            )
        return Machine(accelerator, compute.devices or available, compute.nodes)


def is_first_process() -> bool:
    """Whether this process is rank 0, as far as the launcher has said."""
    return all(int(os.environ.get(name, "0")) == 0 for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))
