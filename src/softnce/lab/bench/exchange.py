"""Bytes that a rank sends in one step of the loss, counted at the collectives of two real processes."""

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from softnce import ExpectedInfoNCE, SoftTargetInfoNCE, SoftTargets
from softnce.lab.bench.cases import Inputs, Size

WORLD = 2


def bytes_sent(rows: int, classes: int) -> dict[str, int]:
    """What each rank sends in a step of ``rows`` rows, by kind of target; in soft target InfoNCE unless said."""
    with tempfile.TemporaryDirectory() as directory:
        meeting = Path(directory, "ranks").as_uri()
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(WORLD, context) as pool:
            ranks = [pool.submit(_rank, rank, meeting, Size(rows, classes)) for rank in range(WORLD)]
            counts = [rank.result() for rank in ranks]
    assert all(count == counts[0] for count in counts), f"ranks of one size sent different amounts: {counts}"
    return counts[0]


def _rank(rank: int, meeting: str, size: Size) -> dict[str, int]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD)
    try:
        inputs, loss, expected = Inputs(size, seed=rank), SoftTargetInfoNCE(), ExpectedInfoNCE()
        kinds: dict[str, tuple[torch.nn.Module, torch.Tensor | SoftTargets]] = {
            "labels": (loss, inputs.labels),
            "pairs": (loss, inputs.targets),
            "dense": (loss, inputs.teacher),
            "dense, expected InfoNCE": (expected, inputs.teacher),
        }
        sent = {}
        for kind, (criterion, targets) in kinds.items():
            with _Sent() as collectives:
                criterion(inputs.logits, targets).backward()
            sent[kind] = collectives.bytes
        return sent
    finally:
        dist.destroy_process_group()


class _Sent(TorchDispatchMode):
    """Adds up what this rank puts into collectives."""

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            match function._opname:
                case "_allgather_base_":
                    self.bytes += args[1].nbytes
                case "allreduce_":
                    self.bytes += sum(tensor.nbytes for tensor in args[0])
                case other:
                    raise NotImplementedError(f"count what c10d.{other} sends")
        return function(*args, **(kwargs or {}))
