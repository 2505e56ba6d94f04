import os

import pytest

from softnce.lab import cores as machine
from softnce.lab.cores import SHARE, cores, cores_per_device


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_cores_are_those_the_process_may_use():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_side_by_side_each_has_its_share(monkeypatch):
    monkeypatch.setenv(SHARE, "1")
    assert cores() == 1
    monkeypatch.setenv(SHARE, "100000")
    assert cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("environment", "devices", "expected"),
    [
        ({}, 8, 8),
        ({}, 100, 1),
        ({"SLURM_NTASKS": "16", "SLURM_CPUS_PER_TASK": "12"}, 8, 12),  # a task per device, bound to cores of its own
        ({"SLURM_NTASKS": "16", "SLURM_CPUS_PER_TASK": "80"}, 8, 64),
        ({"SLURM_NTASKS": "16"}, 8, 8),
        ({"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "64", "TORCHELASTIC_RUN_ID": "x"}, 8, 8),  # a task per machine
    ],
)
def test_cores_of_a_device(environment, devices, expected, monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "cores", lambda: 64)
    assert cores_per_device(devices) == expected
