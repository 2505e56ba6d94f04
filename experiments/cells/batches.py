"""Batches whose order, content and augmentation are functions of (seed, epoch, step), on any number of devices.

A training batch is a part of the epoch's permutation, divided into shares: one share per device and accumulated
micro-batch. Since labels are known without reading inputs, every share comes with the labels of the whole batch, so
each device contrasts its rows with all of them and nothing has to be gathered.

MixUp and CutMix pair position i with position N − 1 − i. Both rows of a pair are in the same share, so that mixing
within a share is mixing of the whole batch, and one process or many train on the same inputs.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.data.seeds import derived_seed


class Batch(NamedTuple):
    """The input of a training or evaluation step.

    ``whole``, ``own`` and ``step`` are for training on a share of a larger batch, on several devices or by
    accumulation: ``whole`` are the labels of that batch and ``own`` the positions of this share's rows in it. Without
    them the batch is whole, and under several devices the loss gathers what it needs.
    """

    inputs: Any  # what the model takes
    labels: Tensor  # (n,) of the rows that the model scores, IGNORED for rows that do not count; or votes (n, K)
    whole: Tensor | None = None  # (N,) or (N, K)
    own: Tensor | None = None  # (n,)
    step: int | None = None  # which update of the run this is; None: counted here


GRACE = 30
"""Seconds that a loader's worker process lives on after SIGTERM."""


@dataclass(frozen=True)
class Share:
    """The samples a device loads next."""

    rows: list[int]  # samples of this share
    epoch: int
    step: int = 0  # update of the run they belong to
    batch: Tensor | None = None  # samples of the whole batch, in order
    own: Tensor | None = None  # where in it the rows are; fewer than rows if some only fill up


def deal(size: int, shares: int, in_pairs: bool, group: int = 0) -> list[Tensor]:
    """Positions 0 … size − 1 in ``shares`` parts, as even as possible.

    In pairs, part by part (j, size − 1 − j), each part in ascending order, so that reversing a part is reversing the
    whole; a middle position is its own partner. If ``group`` is not 0, the same within each group of so many positions.
    """
    if not in_pairs:
        return list(torch.arange(size).tensor_split(shares))
    halves, mirrored = [], []
    for start in range(0, size, group or size):
        stop = min(start + (group or size), size)
        halves.append(torch.arange(start, start + (stop - start + 1) // 2))
        mirrored.append(start + stop - 1 - halves[-1])
    pairs = torch.stack([torch.cat(halves), torch.cat(mirrored)])
    return [part.unique() for part in pairs.tensor_split(shares, dim=1)]


class TrainingBatches:
    """The shares of one device, epoch by epoch. Iterates over the epoch last set, from share ``start`` on.

    Args:
        size: number of training samples.
        batch: rows per update.
        micro_batch: rows per device at a time; ``batch`` must be a multiple of ``micro_batch·world``.
        rank, world: this device and how many there are.
        in_pairs: keep positions and their mixing partners together.
        mix_group: the partners are mirror images within groups of so many positions; 0: within the batch.
        drop_last: leave out the rows after the last whole batch.
    """

    def __init__(
        self,
        size: int,
        batch: int,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        in_pairs: bool = False,
        mix_group: int = 0,
        drop_last: bool = True,
    ) -> None:
        if batch % (micro_batch * world):
            raise ValueError(
                f"optimiser.batch {batch} must be a multiple of compute.micro_batch × devices = {micro_batch} × {world}"
            )
        if drop_last and size < batch:
            raise ValueError(f"optimiser.batch {batch} exceeds the {size} training samples")
        self.size, self.batch, self.micro_batch = size, batch, micro_batch
        self.rank, self.world, self.seed = rank, world, seed
        self.in_pairs, self.mix_group = in_pairs, mix_group
        self.rest = 0 if drop_last else size % batch
        self.epoch = self.start = 0

    @property
    def sampler(self) -> "TrainingBatches":
        """Where Lightning looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    @property
    def accumulate(self) -> int:
        """Shares per device and update."""
        return self.batch // (self.micro_batch * self.world)

    @property
    def steps(self) -> int:
        """Updates per epoch."""
        return self.size // self.batch + (self.rest > 0)

    def __len__(self) -> int:
        """Shares of an epoch."""
        return self.size // self.batch * self.accumulate + -(-self.rest // (self.micro_batch * self.world))

    def __iter__(self) -> Iterator[Share]:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, self.epoch, bits=32))
        order = torch.randperm(self.size, generator=generator)
        order = order[: self.size // self.batch * self.batch + self.rest]
        position = 0
        for step, batch in enumerate(order.split(self.batch)):
            count = -(-len(batch) // (self.micro_batch * self.world))
            shares = deal(len(batch), count * self.world, self.in_pairs, self.mix_group)
            for own in shares[self.rank :: self.world]:
                position += 1
                if position > self.start:
                    # A device without rows of its own loads one that counts for nothing, to take part in the update.
                    rows = batch[own] if len(own) else batch[:1]
                    yield Share(rows.tolist(), self.epoch, self.epoch * self.steps + step, batch, own)


class EvaluationBatches:
    """Every sample once, every ``world``-th on this device, in order."""

    def __init__(self, size: int, batch: int, rank: int = 0, world: int = 1) -> None:
        self.rows = range(rank, size, world)
        self.batch = batch

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch)

    def __iter__(self) -> Iterator[Share]:
        for start in range(0, len(self.rows), self.batch):
            yield Share(list(self.rows[start : start + self.batch]), 0)


class Loader(DataLoader):
    """A DataLoader that can be saved between updates in the middle of an epoch and continues with the next share.

    ``rows`` turns a share into a :class:`Batch` by its ``__getitems__``.
    """

    def __init__(self, rows: Dataset, batches: TrainingBatches | EvaluationBatches, workers: int = 0) -> None:
        super().__init__(
            rows,
            batch_sampler=batches,  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=_as_it_is,  # type: ignore[arg-type]
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_start_worker if workers else None,
            persistent_workers=workers > 0,
        )
        self.batches = batches
        self.taken = 0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self.taken = getattr(self.batches, "start", 0)
        for batch in super().__iter__():
            self.taken += 1
            yield batch
        if isinstance(self.batches, TrainingBatches):
            self.batches.start = 0

    def state_dict(self) -> dict[str, int]:
        """In updates, which every number of devices and micro-batches agrees on."""
        if not isinstance(self.batches, TrainingBatches):
            return {}
        return {"epoch": self.batches.epoch, "updates": -(-self.taken // self.batches.accumulate)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if isinstance(self.batches, TrainingBatches):
            finished = state["updates"] >= self.batches.steps
            self.batches.epoch = state["epoch"] + finished
            self.batches.start = 0 if finished else state["updates"] * self.batches.accumulate


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _start_worker(_: int) -> None:
    """Workers outlive a SIGTERM to the process group: the parent still needs batches to finish its update."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))
