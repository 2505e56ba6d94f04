import pytest
import torch

from softnce.lab.recipes.recipe import Compute
from softnce.lab.train.machine import NODE_VARIABLES, Machine, is_first_process


@pytest.mark.parametrize(
    ("environment", "devices", "nodes"),
    [
        ({}, 1, 1),
        ({"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, 4, 2),
        ({"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "x"}, 4, 2),
    ],
)
def test_machine_listens_to_the_launcher(environment, devices, nodes, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    machine = Machine.of(Compute(accelerator="cpu"))
    assert (machine.devices, machine.nodes, machine.world) == (devices, nodes, devices * nodes)


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (Compute("gpu"), "compute.accelerator gpu: torch finds none on this machine; use cpu or auto"),
        (Compute("mps"), "compute.accelerator mps: torch finds none on this machine; use cpu or auto"),
        (Compute("cpu", nodes=2), "compute.nodes 2 needs MASTER_ADDR, MASTER_PORT, NODE_RANK in the environment"),
    ],
)
def test_machines_that_are_not_there_are_refused(compute, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in NODE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=said):
        Machine.of(compute)


def test_more_gpus_than_there_are_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Machine.of(Compute("gpu")).devices == 2
    with pytest.raises(ValueError, match=r"compute\.devices: got 4, but this machine has 2"):
        Machine.of(Compute("gpu", devices=4))


def test_only_the_first_machine_has_the_first_process(monkeypatch):
    for name in NODE_VARIABLES:
        monkeypatch.setenv(name, "0")
    assert Machine.of(Compute("cpu", nodes=3)).world == 3
    assert is_first_process()
    monkeypatch.setenv("NODE_RANK", "2")
    assert not is_first_process()
