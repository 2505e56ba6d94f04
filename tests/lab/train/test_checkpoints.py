import resource
import signal
from pathlib import Path

import pytest
import torch

from softnce.lab.atomic import why
from softnce.lab.train.checkpoints import AtomicCheckpointIO


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
