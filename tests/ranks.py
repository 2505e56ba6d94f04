"""Several processes of one test, as ranks of torch.distributed."""

import os
import pickle
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp


def on_ranks(work: Callable[..., Any], world: int, *arguments: Any, seconds: float = 600) -> list[Any]:
    """What ``work(rank, *arguments)`` returns on each rank, whose environment is that of torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _one_rank, (work, world, free_port(), folder, arguments), world, join=False, start_method="forkserver"
        )
        deadline = time.monotonic() + seconds
        while not context.join(timeout=1):  # True once all have ended
            assert time.monotonic() < deadline, "the ranks hang"
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(world)]


def _one_rank(rank: int, work: Callable[..., Any], world: int, port: int, folder: str, arguments: tuple) -> None:
    torch.set_num_threads(1)
    os.environ |= environment(rank, world, port)
    Path(folder, str(rank)).write_bytes(pickle.dumps(work(rank, *arguments)))


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank, all of one machine."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
