import resource
import signal
from pathlib import Path

import pytest
import torch

from softnce.lab.atomic import why
from softnce.lab.train.checkpoints import WEIGHTS, AtomicCheckpointIO, Checkpoints


def test_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    writer, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    writer.save_checkpoint({"step": 1, "x": torch.zeros(10)}, path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # writing more than that fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
        with pytest.raises((OSError, RuntimeError)):
            writer.save_checkpoint({"step": 2, "x": torch.zeros(1_000_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert writer.load_checkpoint(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_called_so():
    """torch answers a failed write by an error about positions in the file."""
    with pytest.raises((OSError, RuntimeError)) as failed, open("/dev/full", "wb") as file:
        torch.save(torch.zeros(1_000_000), file)
    assert why(failed.value) == "the disk is full"


def test_the_weights_of_the_best_epoch_have_a_file_of_their_own(tmp_path):
    kept = {name: {} for name in WEIGHTS}
    AtomicCheckpointIO().save_checkpoint(
        kept | {"optimizer_states": [torch.zeros(1000)]}, tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    )
    assert torch.load(tmp_path / "best.ckpt", weights_only=True) == kept
    assert torch.load(tmp_path / "last.ckpt", weights_only=True).keys() == {*WEIGHTS, "optimizer_states"}


class Trainer:
    """As much of Lightning's as checkpoints need, in the middle of an epoch."""

    world_size, is_last_batch, max_steps, ckpt_path = 1, False, -1, None

    def __init__(self):
        self.global_step, self.saved = 0, []

    def save_checkpoint(self, path, weights_only, storage_options):
        self.saved.append(self.global_step)


@pytest.mark.parametrize(
    ("minutes", "every", "saved"), [(2.0, 0, [4, 8]), (2.0, 3, [3, 6, 9]), (60.0, 0, []), (60.0, 4, [4, 8])]
)
def test_cadence_by_time_and_by_updates(minutes, every, saved, tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("softnce.lab.train.checkpoints.time.monotonic", lambda: now)
    checkpoints, trainer = Checkpoints(tmp_path, minutes, every), Trainer()
    checkpoints.on_train_start(trainer, None)
    for _ in range(9):
        now += 30.0
        trainer.global_step += 1
        checkpoints.on_train_batch_end(trainer, None, None, None, 0)
    checkpoints.teardown(trainer, None, "fit")
    assert trainer.saved == saved
