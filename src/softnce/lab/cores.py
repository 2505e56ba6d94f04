"""How many processor cores there are for the work at hand."""

import os

SHARE = "SOFTNCE_CORES"
"""The environment variable with the cores of one of several trainings that run side by side."""


def cores() -> int:
    """Cores this process may use."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, int(os.environ.get(SHARE, there)))


def cores_per_device(devices: int) -> int:
    """Cores for each of the ``devices`` of this machine, at least 1.

    SLURM may start one task per device and then says how many cores a task has; otherwise devices share them.
    """
    one_each = int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "TORCHELASTIC_RUN_ID" not in os.environ
    own = os.environ.get("SLURM_CPUS_PER_TASK") if one_each else None
    return max(1, min(cores(), int(own)) if own else cores() // max(1, devices))
