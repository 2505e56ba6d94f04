"""Training stays alive, and the machine it runs on does not change what it learns."""

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ranks import environment, free_port

from experiments.cells import checkpoints, recipes, train
from experiments.cells.checkpoints import Checkpoints, Interrupted
from experiments.cells.classifier import Classifier
from experiments.cells.evaluate import evaluate, load_trained
from experiments.cells.recipes import Compute, ImageData, ImageModel, ImageRecipe, Optimiser, Schedule
from experiments.data.stored import Unreadable
from experiments.data.targets import Targets
from experiments.harness import Diverged
from experiments.losses import Loss
from experiments.models.heads import Head
from experiments.models.images import build_backbone

ROOT = Path(train.__file__).parents[2]
SOFT = Targets(smoothing=0.1, mixup=0.8, cutmix=1.0)
# The command `train` in a group of its own, which gets a signal in a training step: (signal, number of the step).
COMMAND = """
import os, subprocess, sys
from itertools import count
from experiments.cells.classifier import Classifier
from experiments.cells.commands import train
os.setsid()
sent, call, calls, step = int(sys.argv[1]), int(sys.argv[2]), count(1), Classifier.training_step
def sabotaged(self, batch, index):
    if next(calls) == call:
        subprocess.run(["kill", f"-{sent}", "0"])  # to the group, from a process that is not theirs
    return step(self, batch, index)
Classifier.training_step = sabotaged
sys.exit(train(sys.argv[3:]))
"""


def command(*argv, environments=({},), sabotage=(0, 0)):
    """Exit codes and standard error of the command ``train``, one process for each environment."""
    arguments = [sys.executable, "-c", COMMAND, *map(str, sabotage), *argv]
    base = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": str(torch.get_num_threads())}
    started = [
        subprocess.Popen(arguments, env=base | extra, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for extra in environments
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    return [(process.returncode, words) for process, words in zip(started, said, strict=True)]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Noise with a brightness for each of 4 classes: 66 to train on, 20 to evaluate."""
    folder = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(0)
    for name, n in (("train", 66), ("test", 20)):
        y = np.arange(n) % 4
        x = numbers.integers(0, 120, (n, 24, 24, 3)) + 40 * y[:, None, None, None]
        np.savez(folder / f"{name}.npz", x=x.astype(np.uint8), y=y)
    return folder


def small(images, **changes):
    """Three updates an epoch, the last of 18 rows; everything random is on."""
    recipe = ImageRecipe(
        seed=3,
        data=ImageData("arrays", images, image_size=32, workers=0, drop_last=False),
        model=ImageModel("test_vit", drop_path=0.2),
        head=Head("linear"),
        loss=Loss(candidates="queue", num_candidates=40),
        targets=SOFT,
        optimiser=Optimiser(batch=24, base_lr=1e-2, layer_decay=0.65),
        schedule=Schedule(epochs=4, warmup_epochs=1.0),
        compute=Compute("cpu", micro_batch=8, progress=False),
    )
    return replace(recipe, **changes)


def plain(images, **changes):
    """No dropout, no BatchNorm, no queue: nothing may depend on the machine."""
    changes = {
        "model": ImageModel("test_vit", drop_path=0.0),
        "loss": Loss(),
        "optimiser": Optimiser(batch=24, base_lr=1e-2),
        "schedule": Schedule(epochs=7, warmup_epochs=1.0, max_steps=20),
        "compute": Compute("cpu", progress=False),
    } | changes
    return small(images, **changes)


def write(recipe, path):
    path.write_text(recipes.to_yaml(recipe))
    return str(path)


def load(path):
    return torch.load(path, weights_only=True)


def weights(out):
    return load(out / "last.ckpt")["state_dict"]


def difference(a, b):
    return max((a[k].double() - b[k].double()).abs().max().item() for k in a)


def same(a, b, place=""):
    """Every number of two checkpoints, bit by bit."""
    if isinstance(a, dict | list | tuple):
        assert len(a) == len(b), place
        for key in a if isinstance(a, dict) else range(len(a)):
            same(a[key], b[key], f"{place}/{key}")
    else:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, place


def two_processes(*argv):
    port = free_port()
    ranks = [environment(rank, 2, port) | {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "two"} for rank in range(2)]
    ended = command(*argv, environments=ranks)
    assert [code for code, _ in ended] == [0, 0], ended


def end_alike(one, two):
    a, b = load(one / "last.ckpt"), load(two / "last.ckpt")
    for part in ("global_step", "state_dict", "optimizer_states", "lr_schedulers"):
        same(a[part], b[part], part)


@contextmanager
def stopping_at(step):
    """As if a signal came in that update."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "_asked", lambda self, trainer: (trainer.global_step == step, False))
        yield


@pytest.fixture(scope="module")
def uninterrupted(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    recipe = small(images)
    return recipe, out, train.train(recipe, out)


@pytest.mark.slow
def test_killed_runs_end_in_the_same_bits(uninterrupted, tmp_path):
    recipe, whole, results = uninterrupted
    file, out = write(recipe, tmp_path / "r.yaml"), tmp_path / "run"
    shares, numbers = 9, random.Random(4)  # 3 + 3 + 3 micro-batches an epoch, 36 in all
    # asked to stop in the first half, killed in the rest, each anywhere in an accumulation
    first, second = numbers.randint(4, 2 * shares - 1), numbers.randint(2, shares)
    ((code, said),) = command(file, "--out", str(out), "--data.workers", "2", sabotage=(signal.SIGTERM, first))
    assert code == 128 + signal.SIGTERM, said
    assert f"train --resume {out}" in said
    ((code, said),) = command("--resume", str(out), sabotage=(signal.SIGKILL, second))
    assert code == -signal.SIGKILL, said
    assert train.train(recipe, out, resume=True) == results, (first, second)
    assert load(whole / "last.ckpt")["global_step"] == 12
    end_alike(whole, out)
    same(load(whole / "best.ckpt")["state_dict"], load(out / "best.ckpt")["state_dict"])
    assert len(list((out / "csv").iterdir())) == 3  # every start keeps its own log


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4])
def test_every_checkpoint_resumes_exactly(uninterrupted, tmp_path, step):
    """In the middle of an epoch, at its end, at the start of the next: stop there, resume, compare."""
    recipe, whole, results = uninterrupted
    with stopping_at(step), pytest.raises(Interrupted):
        train.train(recipe, tmp_path / "run")
    assert load(tmp_path / "run" / "last.ckpt")["global_step"] == step
    assert train.train(recipe, tmp_path / "run", resume=True) == results
    end_alike(whole, tmp_path / "run")


@pytest.mark.slow
def test_results_and_best_checkpoint(uninterrupted):
    recipe, out, results = uninterrupted
    kept = json.loads((out / "results.json").read_text())
    assert {name: kept[name] for name in results} == results
    assert kept["taken"]["seconds"] > 0
    assert results["best"]["top1"] >= results["last"]["top1"]
    best = load(out / "best.ckpt")
    assert best["epoch"] == results["best"]["epoch"]
    assert not {"optimizer_states", "lr_schedulers"} & best.keys()
    assert recipes.load(str(out / "recipe.yaml")) == recipe
    measured = evaluate(out, progress=False).results  # in a loader and a network of its own
    for name in ("top1", "nll", "ece", "brier"):
        assert measured[name] == pytest.approx(results["best"][name], abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soft-target-info-nce", "info-nce", "expected-info-nce"])
def test_two_processes_learn_what_one_does(images, tmp_path, name):
    """20 updates of 24 rows, every third of 18; rows are dealt 12 + 12 and 10 + 8."""
    recipe = plain(images, loss=Loss(name), targets=Targets() if name == "info-nce" else SOFT)
    train.train(recipe, tmp_path / "one")
    two_processes(write(recipe, tmp_path / "r.yaml"), "--out", str(tmp_path / "two"))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    start = train.build(recipe)[0].state_dict()
    assert difference(one, start) > 1e-3  # a hundred times the bar: they did learn
    assert difference(one, two) <= 1e-5
    measured = [json.loads((tmp_path / name / "results.json").read_text())["last"] for name in ("one", "two")]
    assert measured[0] == pytest.approx(measured[1], abs=1e-5)


@pytest.mark.slow
def test_a_run_moves_between_numbers_of_processes_and_micro_batches(images, tmp_path):
    """One process, two, one again with other micro-batches, stopped within and between epochs: always 21 updates."""
    recipe = plain(
        images,
        optimiser=Optimiser("sgd", batch=24, base_lr=1.0),
        schedule=Schedule(epochs=7, warmup_epochs=1.0),
        compute=Compute("cpu", micro_batch=4, progress=False),
    )
    train.train(recipe, tmp_path / "whole")
    out = tmp_path / "moved"
    with stopping_at(5), pytest.raises(Interrupted):
        train.train(replace(recipe, schedule=replace(recipe.schedule, max_steps=10)), out)
    two_processes("--resume", str(out))
    assert load(out / "last.ckpt")["global_step"] == 10
    with stopping_at(15), pytest.raises(Interrupted):  # the end of an epoch, whose last batch has 18 rows
        train.train(replace(recipe, compute=replace(recipe.compute, micro_batch=12)), out, resume=True)
    train.train(replace(recipe, compute=replace(recipe.compute, micro_batch=0)), out, resume=True)
    a, b = load(tmp_path / "whole" / "last.ckpt"), load(out / "last.ckpt")
    assert a["global_step"] == b["global_step"] == 21
    assert a["epoch"] == b["epoch"] == 6
    assert difference(a["state_dict"], b["state_dict"]) <= 1e-6


def spoil(monkeypatch, at):
    """The loss of step ``at`` is NaN."""
    step_loss = Classifier.step_loss

    def spoiled(self, batch, *rest):
        value, soft = step_loss(self, batch, *rest)
        return (value * float("nan") if batch.step == at else value), soft

    monkeypatch.setattr(Classifier, "step_loss", spoiled)


@pytest.mark.parametrize("diverges", [False, True])
def test_a_finished_training_leaves_nothing_behind(images, tmp_path, monkeypatch, diverges):
    """No handler of a signal, and thereby no network: studies train many in one process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    if diverges:
        spoil(monkeypatch, at=1)
    made, build = [], train.build

    def watched(*arguments):
        built = build(*arguments)
        made.append(weakref.ref(built[0]))
        return built

    monkeypatch.setattr(train, "build", watched)
    with pytest.raises(Diverged) if diverges else nullcontext():
        train.train(small(images, schedule=Schedule(epochs=1, warmup_epochs=0.5)), tmp_path / "run")
    assert {number: signal.getsignal(number) for number in before} == before
    gc.collect()
    assert [found() for found in made] == [None]


def test_divergence_names_step_rate_and_checkpoint(images, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MINUTES", 0)
    spoil(monkeypatch, at=4)
    with pytest.raises(Diverged, match=r"the loss is nan at step 4 \(epoch 1, learning rate 0\.00\d+\).*of step 4$"):
        train.train(plain(images), tmp_path / "run")
    kept = load(tmp_path / "run" / "last.ckpt")
    assert kept["global_step"] == 4
    assert all(v.isfinite().all() for v in kept["state_dict"].values())


def test_a_run_is_neither_overwritten_nor_continued_as_another(uninterrupted, tmp_path):
    recipe, out, results = uninterrupted
    with pytest.raises(ValueError, match="already holds a run: continue it by --resume"):
        train.train(recipe, out)
    other = replace(recipe, optimiser=replace(recipe.optimiser, base_lr=0.5), seed=9)
    with pytest.raises(ValueError, match=r"optimiser.base_lr was 0.01, is 0.5; seed was 3, is 9"):
        train.train(other, out, resume=True)
    assert train.train(recipe, out, resume=True) == results  # a finished run has nothing left to do
    with pytest.raises(ValueError, match=rf"{out.parent} holds several runs, such as \S+: choose another --out$"):
        train.train(recipe, out.parent)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="out: cannot write in"):
        train.train(recipe, tmp_path / "file")


def test_one_process_trains_in_a_folder(uninterrupted):
    recipe, out, _ = uninterrupted
    before = (out / "recipe.yaml").read_bytes()
    changed = replace(recipe, schedule=replace(recipe.schedule, epochs=9))
    with train.claimed(out, recipe, True), pytest.raises(ValueError, match="another process is training in"):
        train.train(changed, out, resume=True)
    assert (out / "recipe.yaml").read_bytes() == before  # the other process would be resumed with it


def test_a_write_that_fails_leaves_the_earlier_state(tmp_path):
    def save_checkpoint(path, weights_only):
        path.write_bytes(b"half")
        raise OSError("no space left")

    (tmp_path / "last.ckpt").write_bytes(b"whole")
    with pytest.raises(OSError, match="no space left"):
        Checkpoints(tmp_path)._save(SimpleNamespace(save_checkpoint=save_checkpoint))
    assert (tmp_path / "last.ckpt").read_bytes() == b"whole"


def test_a_flipped_bit_does_not_resume(uninterrupted, tmp_path):
    recipe, whole, _ = uninterrupted
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    last = out / "last.ckpt"
    content = bytearray(last.read_bytes())
    kept = load(last)["state_dict"]["model.backbone.patch_embed.proj.weight"]
    content[content.find(kept.numpy().tobytes()) + 100] ^= 4
    last.write_bytes(content)
    assert not torch.equal(load(last)["state_dict"]["model.backbone.patch_embed.proj.weight"], kept)  # torch is silent
    with pytest.raises(Unreadable, match=r"last.ckpt is damaged \(the checksum of \d+ is wrong\)"):
        train.train(recipe, out, resume=True)
    with pytest.raises(ValueError, match=r"last.ckpt is not a checkpoint .*: the checksum of \d+ is wrong"):
        load_trained(last)
    load_trained(out)  # the best epoch's weights are as they were


def frozen(images, folder, weights="none", **changes):
    """A head on cached features, the best epoch chosen on held-out rows."""
    data = ImageData("arrays", images, image_size=32, workers=0, cache=folder / "cache", holdout=0.25)
    model = ImageModel("test_vit", weights, drop_path=0.0, freeze="backbone")
    targets, head = Targets(smoothing=0.1, mixup=0.8), Head(hidden=16)
    return plain(images, data=data, model=model, targets=targets, head=head, schedule=Schedule(epochs=2, **changes))


def test_a_frozen_backbone_trains_the_head_on_kept_features(images, tmp_path):
    recipe = frozen(images, tmp_path)
    results = train.train(recipe, tmp_path / "run")
    assert {p.suffix for p in (tmp_path / "cache").iterdir() if p.name != ".lock"} == {".pt"}
    start = train.build(recipe)[0].state_dict()
    after = weights(tmp_path / "run")
    assert {k.split(".")[1] for k in start if not torch.equal(start[k], after[k])} == {"head", "scale"}
    # the best epoch was chosen on the held-out part; the test split was measured once, from images
    assert results["test"].keys() >= {"top1", "ece"}
    # the evaluation reads the images anew and finds what the features said
    measured = evaluate(tmp_path / "run", split="validation", progress=False).results
    assert measured["nll"] == pytest.approx(results["best"]["nll"], abs=1e-5)


def test_a_frozen_backbone_that_has_changed_is_not_resumed(images, tmp_path):
    file = tmp_path / "weights.pth"
    recipe = frozen(images, tmp_path, str(file), max_steps=2)
    for seed, words in enumerate([None, "another backbone than this run had"]):
        torch.manual_seed(seed)
        torch.save(build_backbone(ImageModel("test_vit"), 32).state_dict(), file)
        with pytest.raises(Unreadable, match=words) if words else nullcontext():
            train.train(recipe, tmp_path / "run", resume=seed > 0)
