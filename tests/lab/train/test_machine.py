import pytest

from softnce.lab.recipes.recipe import Compute
from softnce.lab.train.machine import Machine


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
