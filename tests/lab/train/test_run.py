"""Training stays alive, and the machine it runs on does not change what it learns."""

import errno
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

import numpy as np
import pytest
import torch
from lab.training import same, softnce_train
from ranks import environment, free_port

from softnce.lab import recipes
from softnce.lab.diverged import Diverged
from softnce.lab.models.images import build_backbone
from softnce.lab.recipes.recipe import Compute, Data, Head, Loss, Model, Optimiser, Recipe, Schedule, Targets
from softnce.lab.stored import Unreadable
from softnce.lab.train import fit
from softnce.lab.train import run as train
from softnce.lab.train.checkpoints import WEIGHTS, AtomicCheckpointIO, Checkpoints, Interrupted, NotSaved
from softnce.lab.train.classifier import Classifier
from softnce.lab.train.evaluate import evaluate, load_trained

HARD = Targets()
SOFT = Targets(smoothing=0.1, mixup=0.8, cutmix=1.0)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Noise with a brightness for each of 4 classes: 66 to train on, 20 to evaluate."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for name, n in (("train", 66), ("test", 20)):
        y = np.arange(n) % 4
        x = random.integers(0, 120, (n, 24, 24, 3)) + 40 * y[:, None, None, None]
        np.savez(folder / f"{name}.npz", x=x.astype(np.uint8), y=y)
    return folder


def small(images, **changes):
    """Three updates an epoch, the last of 18 rows; everything random is on."""
    recipe = Recipe(
        seed=3,
        data=Data("arrays", images, image_size=32, workers=0, drop_last=False),
        model=Model("test_vit", drop_path=0.2),
        head=Head("linear"),
        loss=Loss(candidates="queue", num_candidates=40),
        targets=SOFT,
        optimiser=Optimiser(batch=24, base_lr=1e-2, ema=0.9, clip=1.0),
        schedule=Schedule(epochs=4, warmup_epochs=1.0),
        compute=Compute(accelerator="cpu", micro_batch=8, checkpoint_steps=1, progress=False),
    )
    return replace(recipe, **changes)


def write(recipe, path):
    path.write_text(recipes.to_yaml(recipe))
    return str(path)


def load(path):
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def uninterrupted(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    recipe = small(images)
    return recipe, out, train.train(recipe, out)


@pytest.mark.slow
def test_killed_runs_end_in_the_same_bits(uninterrupted, tmp_path):
    recipe, whole, results = uninterrupted
    file, out = write(recipe, tmp_path / "r.yaml"), tmp_path / "run"
    shares = 9  # 3 + 3 + 3 micro-batches an epoch, 36 in all
    # asked to stop in the first half, killed in the rest, each anywhere in an accumulation
    first, second = random.randint(4, 2 * shares - 1), random.randint(2, shares)
    options = file, "--out", str(out), "--data.workers", "2"
    ((code, said),) = softnce_train(*options, sabotage=(signal.SIGTERM, first))
    assert code == 128 + signal.SIGTERM, said
    assert f"softnce train --resume {out}" in said
    ((code, said),) = softnce_train("--resume", str(out), sabotage=(signal.SIGKILL, second))
    assert code == -signal.SIGKILL, said
    again = train.train(recipe, out, resume=True)
    assert again == results, (first, second)
    a, b = load(whole / "last.ckpt"), load(out / "last.ckpt")
    for part in ("state_dict", "current_model_state", "averaging_state", "optimizer_states", "lr_schedulers"):
        same(a[part], b[part], f"{part} (stopped at {first}, killed at {second})")
    assert a["global_step"] == b["global_step"] == 12
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
    a, b = load(whole / "last.ckpt"), load(tmp_path / "run" / "last.ckpt")
    same(a["current_model_state"], b["current_model_state"])
    same(a["optimizer_states"], b["optimizer_states"])


@pytest.mark.slow
def test_results_and_best_checkpoint(uninterrupted):
    recipe, out, results = uninterrupted
    assert json.loads((out / "results.json").read_text()) == results
    assert results["last"]["epoch"] == 3
    assert results["best"]["top1"] >= results["last"]["top1"]
    best = load(out / "best.ckpt")
    assert best["epoch"] == results["best"]["epoch"]
    assert best.keys() == set(WEIGHTS)  # nothing of the optimiser
    assert (out / "best.ckpt").stat().st_size < (out / "last.ckpt").stat().st_size / 3
    assert recipes.load(str(out / "recipe.yaml")) == recipe
    measured = evaluate(out, progress=False, workers=0).results  # in a process, a loader and a network of its own
    for name in ("top1", "nll", "ece", "brier"):
        assert measured[name] == pytest.approx(results["best"][name], abs=1e-6), name


def plain(images, **changes):
    """No dropout, no BatchNorm, no queue: what must not depend on the machine."""
    changes = {
        "model": Model("test_vit", drop_path=0.0),
        "loss": Loss(),
        "optimiser": Optimiser(batch=24, base_lr=1e-2),
        "schedule": Schedule(epochs=7, warmup_epochs=1.0, max_steps=20),
        "compute": Compute(accelerator="cpu", progress=False),
    } | changes
    return small(images, **changes)


def by_torchrun(*argv):
    """``softnce train`` in two processes."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "softnce", "train", *argv,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums round by their order
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def weights(out):
    return load(out / "last.ckpt")["state_dict"]


def difference(a, b):
    return max((a[k].double() - b[k].double()).abs().max().item() for k in a)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "targets"),
    [(Loss(), SOFT), (Loss("info-nce"), HARD)],
    ids=["soft-target-info-nce", "info-nce"],
)
def test_two_processes_learn_what_one_does(images, tmp_path, loss, targets):
    """20 updates of 24 rows, every third of 18; rows are dealt 12 + 12 and 10 + 8."""
    recipe = plain(images, loss=loss, targets=targets)
    train.train(recipe, tmp_path / "one")
    port = free_port()
    ranks = [environment(rank, 2, port) | {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "two"} for rank in range(2)]
    ended = softnce_train(write(recipe, tmp_path / "r.yaml"), "--out", str(tmp_path / "two"), environments=ranks)
    assert [code for code, _ in ended] == [0, 0], ended
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    start = train.prepare(recipe, tmp_path / "start").classifier.state_dict()
    assert difference(one, start) > 1e-3  # a hundred times the bar: they did learn
    assert difference(one, two) <= 1e-5
    measured = [json.loads((tmp_path / name / "results.json").read_text())["last"] for name in ("one", "two")]
    assert measured[0] == pytest.approx(measured[1], abs=1e-5)


@contextmanager
def stopping_at(step):
    """As if a signal came in that update."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "_asked", lambda self, trainer: (trainer.global_step == step, False))
        yield


def without_key_biases(weights):
    """Softmax cancels a key's bias, which is in all scores of a query alike: its gradient is 0 but for rounding.

    Adam divides that rounding by its own size: such a bias wanders, and changes nothing else.
    """
    kept = dict(weights)
    for name in [name for name in weights if name.endswith("attn.qkv.bias")]:
        query, _, value = kept.pop(name).chunk(3)
        kept |= {f"{name}, query": query, f"{name}, value": value}
    return kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimiser", [Optimiser("sgd", batch=24, base_lr=1.0), Optimiser(batch=24, base_lr=1e-2)], ids=lambda o: o.name
)
def test_a_run_moves_between_numbers_of_processes_and_micro_batches(images, tmp_path, optimiser):
    """One process, two, one again with other micro-batches, stopped within and between epochs: always 21 updates."""
    recipe = plain(
        images,
        optimiser=optimiser,
        schedule=Schedule(epochs=7, warmup_epochs=1.0),
        compute=Compute("cpu", micro_batch=4, progress=False),
    )
    train.train(recipe, tmp_path / "whole")
    out = tmp_path / "moved"
    with stopping_at(5), pytest.raises(Interrupted):
        train.train(replace(recipe, schedule=replace(recipe.schedule, max_steps=10)), out)
    done = by_torchrun("--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert load(out / "last.ckpt")["global_step"] == 10
    with stopping_at(15), pytest.raises(Interrupted):  # the end of an epoch, whose last batch has 18 rows
        train.train(replace(recipe, compute=replace(recipe.compute, micro_batch=12)), out, resume=True)
    train.train(replace(recipe, compute=replace(recipe.compute, micro_batch=0)), out, resume=True)
    a, b = load(tmp_path / "whole" / "last.ckpt"), load(out / "last.ckpt")
    assert a["global_step"] == b["global_step"] == 21
    assert a["epoch"] == b["epoch"] == 6
    a, b = a["state_dict"], b["state_dict"]
    if optimiser.name == "adamw":
        a, b = without_key_biases(a), without_key_biases(b)
    assert difference(a, b) <= 1e-6


@pytest.mark.slow
def test_with_adam_too_micro_batches_change_only_rounding(images, tmp_path, monkeypatch):
    """In 64 bits every weight agrees, key biases too: nothing is counted twice or left out."""
    monkeypatch.setitem(fit.PRECISION, "32", "64-true")
    recipe = plain(images, schedule=Schedule(epochs=3, warmup_epochs=1.0))
    train.train(recipe, tmp_path / "one")
    train.train(replace(recipe, compute=replace(recipe.compute, micro_batch=4)), tmp_path / "six")
    assert weights(tmp_path / "one")["model.head.weight"].dtype == torch.float64
    assert difference(weights(tmp_path / "one"), weights(tmp_path / "six")) <= 1e-13


@pytest.mark.slow
def test_channels_last_changes_only_rounding(images, tmp_path, monkeypatch):
    monkeypatch.setitem(fit.PRECISION, "32", "64-true")
    recipe = plain(images, model=Model("test_efficientnet"))
    train.train(recipe, tmp_path / "first")
    prepared = train.prepare(replace(recipe, compute=replace(recipe.compute, channels_last=True)), tmp_path / "last")
    kernels = [weight for weight in prepared.classifier.model.parameters() if weight.dim() == 4]
    assert kernels
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in kernels)
    prepared.run()
    assert difference(weights(tmp_path / "first"), weights(tmp_path / "last")) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Loss(), Loss("soft-ce")], ids=lambda loss: loss.name)
def test_accumulation_learns_what_one_pass_does(images, tmp_path, loss):
    recipe = plain(images, loss=loss)
    train.train(recipe, tmp_path / "one")
    train.train(replace(recipe, compute=replace(recipe.compute, micro_batch=4)), tmp_path / "six")
    assert difference(weights(tmp_path / "one"), weights(tmp_path / "six")) <= 1e-5


def spoil(monkeypatch, at):
    """The loss of step ``at`` is NaN."""
    step_loss = Classifier.step_loss

    def spoiled(self, batch, step, *rest):
        value, soft = step_loss(self, batch, step, *rest)
        return (value * float("nan") if step == at else value), soft

    monkeypatch.setattr(Classifier, "step_loss", spoiled)


@pytest.mark.parametrize("diverges", [False, True])
def test_a_finished_training_leaves_nothing_behind(images, tmp_path, monkeypatch, diverges):
    """No handler of a signal, and thereby no network: studies train many in one process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    made = []
    built = fit.fit

    def watched(classifier, *args, **options):
        made.append(weakref.ref(classifier))
        return built(classifier, *args, **options)

    monkeypatch.setattr(train, "fit", watched)
    if diverges:
        spoil(monkeypatch, at=1)
    with pytest.raises(Diverged) if diverges else nullcontext():
        train.train(small(images, schedule=Schedule(epochs=1, warmup_epochs=0.5)), tmp_path / "run")
    assert {number: signal.getsignal(number) for number in before} == before
    gc.collect()
    assert [ref() for ref in made] == [None]


def test_divergence_names_step_rate_and_checkpoint(images, tmp_path, monkeypatch):
    recipe = plain(
        images,
        schedule=Schedule(epochs=7, warmup_epochs=0.0),
        compute=Compute("cpu", progress=False, checkpoint_steps=2),
    )
    spoil(monkeypatch, at=4)
    with pytest.raises(Diverged, match=r"the loss is nan at step 4 \(epoch 1, learning rate 0\.00\d+\).*of step 4$"):
        train.train(recipe, tmp_path / "run")
    kept = load(tmp_path / "run" / "last.ckpt")
    assert kept["global_step"] == 4
    assert all(v.isfinite().all() for v in kept["state_dict"].values())


def test_failed_write_names_the_checkpoint_that_is_left(images, tmp_path, monkeypatch):
    save = AtomicCheckpointIO.save_checkpoint

    def fill(self, checkpoint, path, storage_options=None):
        if checkpoint["global_step"] > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(self, checkpoint, path, storage_options)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", fill)
    with pytest.raises(NotSaved, match=r"last\.ckpt at step 3: the disk is full; the one of step 2 is intact"):
        train.train(small(images), tmp_path / "run")
    assert load(tmp_path / "run" / "last.ckpt")["global_step"] == 2


def test_a_run_is_not_overwritten(uninterrupted, images):
    recipe, out, results = uninterrupted
    with pytest.raises(ValueError, match="already holds a run: continue it with `softnce train --resume"):
        train.train(recipe, out)
    other = replace(recipe, optimiser=replace(recipe.optimiser, base_lr=0.5), seed=9)
    with pytest.raises(ValueError, match=r"optimiser.base_lr was 0.01, is 0.5; seed was 3, is 9"):
        train.train(other, out, resume=True)
    assert train.train(recipe, out, resume=True) == results  # a finished run has nothing left to do


def test_a_folder_of_several_runs_is_not_the_folder_of_one(uninterrupted):
    recipe, out, _ = uninterrupted
    with pytest.raises(ValueError, match=rf"{out.parent} holds several runs, such as \S+: choose another --out$"):
        train.train(recipe, out.parent)


def test_missing_test_images_are_said_before_training(images, tmp_path):
    (tmp_path / "train.npz").symlink_to(images / "train.npz")
    data = Data("arrays", tmp_path, holdout=0.25, image_size=32, workers=0)
    with pytest.raises(ValueError, match=r"has no test\.npz or val\.npz"):
        train.prepare(small(images, data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_process_trains_in_a_folder(uninterrupted):
    recipe, out, _ = uninterrupted
    before = (out / "recipe.yaml").read_bytes()
    changed = replace(recipe, schedule=replace(recipe.schedule, epochs=9))
    with train._alone_in(out), pytest.raises(train.Occupied, match="another process is training in"):
        train.train(changed, out, resume=True)
    assert (out / "recipe.yaml").read_bytes() == before  # what the other process would be resumed with


def test_what_changes_only_speed_or_extends_a_run_may_change(uninterrupted, tmp_path):
    recipe, whole, _ = uninterrupted
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    faster = replace(
        recipe,
        data=replace(recipe.data, corrupt="skip", workers=1, cache=tmp_path / "cache"),
        compute=replace(
            recipe.compute, micro_batch=12, eval_batch=7, checkpoint_steps=2, devices=1, deterministic=True
        ),
        schedule=replace(recipe.schedule, epochs=5),
    )
    results = train.train(faster, out, resume=True)
    assert (results["last"]["epoch"], results["last"]["step"]) == (4, 15)
    assert recipes.load(str(out / "recipe.yaml")) == faster
    shorter = replace(faster, schedule=replace(recipe.schedule, epochs=2))
    with pytest.raises(ValueError, match=r"schedule.epochs was 5, is 2"):
        train.train(shorter, out, resume=True)


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


def test_a_damaged_checkpoint_is_named(uninterrupted, tmp_path):
    recipe, out, _ = uninterrupted
    shutil.copytree(out, tmp_path / "run")
    last = tmp_path / "run" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:5000])
    with pytest.raises(Unreadable, match=r"last.ckpt is damaged .*delete it to start from the beginning"):
        train.train(recipe, tmp_path / "run", resume=True)
    load_trained(tmp_path / "run")  # the best epoch's weights are as they were


def test_a_file_is_no_folder_for_a_run(images, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="out: cannot write in"):
        train.train(small(images), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_frozen_backbone_trains_the_head_on_kept_features(images, tmp_path):
    recipe = plain(
        images,
        data=Data("arrays", images, image_size=32, workers=0, cache=tmp_path / "cache", holdout=0.25),
        model=Model("test_vit", drop_path=0.0, freeze="backbone"),
        targets=Targets(smoothing=0.1, mixup=0.8),
        head=Head(hidden=16),
        schedule=Schedule(epochs=2, warmup_epochs=0.0),
    )
    results = train.train(recipe, tmp_path / "run")
    assert {p.suffix for p in (tmp_path / "cache").iterdir()} == {".pt"}
    start = train.prepare(recipe, tmp_path / "start").classifier.state_dict()
    after = weights(tmp_path / "run")
    changed = {k.split(".")[1] for k in start if not torch.equal(start[k], after[k])}
    assert changed == {"head", "scale"}
    # the best epoch was chosen on the held-out part; the test split was measured once, from images
    assert results["test"].keys() >= {"top1", "ece"}
    assert results["best"].keys() >= {"epoch", "top1"}
    # the evaluation reads the images anew and finds what the features said
    measured = evaluate(tmp_path / "run", split="validation", workers=0, progress=False).results
    assert measured["nll"] == pytest.approx(results["best"]["nll"], abs=1e-5)


def test_a_frozen_backbone_that_has_changed_is_not_resumed(images, tmp_path):
    file = tmp_path / "weights.pth"
    recipe = plain(
        images,
        data=Data("arrays", images, image_size=32, workers=0, cache=tmp_path / "cache"),
        model=Model("test_vit", str(file), drop_path=0.0, freeze="backbone"),
        targets=HARD,
        schedule=Schedule(epochs=2, warmup_epochs=0.0, max_steps=2),
    )
    for seed, words in enumerate([None, "gives other weights than the backbone of this run had"]):
        torch.manual_seed(seed)
        torch.save(build_backbone(Model("test_vit"), 32).state_dict(), file)
        if words is None:
            train.train(recipe, tmp_path / "run")
        else:
            with pytest.raises(Unreadable, match=words):
                train.train(recipe, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_two_machines_join_without_a_launcher(images, tmp_path):
    """As `NODE_RANK=0` and `NODE_RANK=1 softnce train … --compute.nodes 2`, here on one machine."""
    recipe = plain(images, schedule=Schedule(epochs=2, warmup_epochs=0.0))
    train.train(recipe, tmp_path / "one")
    file, out = write(recipe, tmp_path / "r.yaml"), tmp_path / "two"
    first = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    machines = [first | {"NODE_RANK": rank} for rank in ("1", "0")]
    ended = softnce_train(file, "--out", str(out), "--compute.nodes", "2", environments=machines)
    assert [code for code, _ in ended] == [0, 0], ended
    assert difference(weights(tmp_path / "one"), weights(out)) <= 1e-5
