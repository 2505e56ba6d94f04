"""What tests of training share: a recipe of graphs, checkpoints compared, processes that are stopped."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from softnce.lab.recipes.recipe import (
    Compute,
    GraphData,
    GraphModel,
    GraphOptimiser,
    GraphRecipe,
    Loss,
    Schedule,
    Targets,
)


def small_graphs(tissue: Path, **changes) -> GraphRecipe:
    """Three updates an epoch on six specimens; everything random is on."""
    recipe = GraphRecipe(
        seed=3,
        data=GraphData("tissue", tissue, fold=1, protocol="honest", augment="paper"),
        model=GraphModel(layers=2, hidden=12, dropout=0.2),
        loss=Loss(candidates="queue", num_candidates=40),
        targets=Targets(smoothing=0.1),
        optimiser=GraphOptimiser(batch=2, lr=5e-3, weight_decay=1e-3, clip=1.0),
        schedule=Schedule(epochs=3, warmup_epochs=1.0),
        compute=Compute(accelerator="cpu", checkpoint_steps=1, progress=False, eval_batch=3),
    )
    return replace(recipe, **changes)


def weights(out: Path) -> dict:
    return torch.load(out / "last.ckpt", weights_only=True)["state_dict"]


def same(a, b, place=""):
    """Every number of two checkpoints, bit by bit."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), place
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a:
            same(a[key], b[key], f"{place}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), place
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{place}/{i}")
    else:
        assert a == b, place


SABOTAGE = """
import subprocess, sys
from softnce.lab.commands.train import main
from softnce.lab.train.classifier import Classifier
step, calls = Classifier.training_step, 0
def sabotaged(self, batch, index):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        subprocess.run(["kill", "-" + sys.argv[1], "0"])  # to the group, from a process that is not theirs
    return step(self, batch, index)
Classifier.training_step = sabotaged
main(sys.argv[3:])
"""


def run_until(sent, call, *argv):
    """A process group of its own that gets a signal, loaders too, in its ``call``-th training step."""
    command = [sys.executable, "-c", SABOTAGE, str(int(sent)), str(call), *argv]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums round by their order
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, start_new_session=True)
