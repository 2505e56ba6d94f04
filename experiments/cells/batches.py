"""Batches whose order, content and augmentation are functions of (seed, epoch, step), on any number of devices.

A training batch is a part of the epoch's permutation, divided into shares: one share per device and accumulated
micro-batch. Since labels are known without reading inputs, every share comes with the labels of the whole batch, so
each device contrasts its rows with all of them and nothing has to be gathered.

MixUp and CutMix pair position i with position N − 1 − i. Both rows of a pair are in the same share, so that mixing
within a share is mixing of the whole batch, and one process or many train on the same inputs.
"""

import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.data.seeds import derived_seed


class Batch(NamedTuple):
    """The input of an evaluation step, or of a training step on a share of a batch."""

    inputs: Any  # what the model takes
    labels: Tensor  # (n,) of the rows that the model scores, IGNORED for rows that do not count; or votes (n, K)
    whole: Any = None  # in training the labels of the whole batch, (N,) or (N, K)
    own: Any = None  # (n,) positions of the rows in it
    step: int = 0  # update of the run


GRACE = 30
"""Seconds that a loader's worker process lives on after SIGTERM."""


class Share(NamedTuple):
    """The samples a device loads next."""

    rows: list[int]  # samples of this share
    epoch: int
    step: int = 0  # update of the run they belong to
    batch: Tensor | None = None  # samples of the whole batch, in order
    own: Tensor | None = None  # where in it the rows are; fewer than rows if some only fill up


def deal(size: int, shares: int, in_pairs: bool, group: int = 0) -> list[Tensor]:
    """Positions 0 … size − 1 in ``shares`` parts, as even as possible, each ascending.

    In pairs (j, size − 1 − j), or those of each ``group`` of so many positions, reversing a part reverses the whole.
    """
    places = torch.arange(size)
    if not in_pairs:
        return list(places.tensor_split(shares))
    pairs = [torch.stack([rows, rows.flip(0)])[:, : (len(rows) + 1) // 2] for rows in places.split(group or size)]
    return [part.unique() for part in torch.cat(pairs, dim=1).tensor_split(shares, dim=1)]


@dataclass(eq=False)
class TrainingBatches:
    """The shares of device ``rank`` of ``world``, epoch by epoch, from share ``start`` of the epoch last set.

    Of ``size`` samples ``batch`` are an update and ``micro_batch`` are on a device at a time. ``in_pairs`` keeps
    positions and their mixing partners together, within groups of ``mix_group`` or, if that is 0, within the batch.
    ``drop_last`` leaves out the rows after the last whole batch.
    """

    size: int
    batch: int
    micro_batch: int
    rank: int = 0
    world: int = 1
    seed: int = 0
    in_pairs: bool = False
    mix_group: int = 0
    drop_last: bool = True

    def __post_init__(self) -> None:
        if self.batch % (self.micro_batch * self.world):
            shares = f"compute.micro_batch × devices = {self.micro_batch} × {self.world}"
            raise ValueError(f"optimiser.batch {self.batch} must be a multiple of {shares}")
        if self.drop_last and self.size < self.batch:
            raise ValueError(f"optimiser.batch {self.batch} exceeds the {self.size} training samples")
        self.rest = 0 if self.drop_last else self.size % self.batch
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
        return self._shares(self.batch)

    @property
    def steps(self) -> int:
        """Updates per epoch."""
        return self.size // self.batch + (self.rest > 0)

    def __len__(self) -> int:
        """Shares of an epoch."""
        return self.size // self.batch * self.accumulate + self._shares(self.rest)

    def _shares(self, rows: int) -> int:
        return -(-rows // (self.micro_batch * self.world))

    def __iter__(self) -> Iterator[Share]:
        generator = torch.Generator().manual_seed(derived_seed(self.seed, self.epoch, bits=32))
        order = torch.randperm(self.size, generator=generator)
        order = order[: self.size // self.batch * self.batch + self.rest]
        position = 0
        for step, batch in enumerate(order.split(self.batch)):
            shares = deal(len(batch), self._shares(len(batch)) * self.world, self.in_pairs, self.mix_group)
            for own in shares[self.rank :: self.world]:
                position += 1
                if position > self.start:
                    # A device without rows of its own loads one that counts for nothing, to take part in the update.
                    rows = batch[own] if len(own) else batch[:1]
                    yield Share(rows.tolist(), self.epoch, self.epoch * self.steps + step, batch, own)


def evaluation_shares(size: int, batch: int, rank: int = 0, world: int = 1) -> list[Share]:
    """Every sample once, every ``world``-th on this device, in order."""
    rows = range(rank, size, world)
    return [Share(list(rows[start : start + batch]), 0) for start in range(0, len(rows), batch)]


class Loader(DataLoader):
    """Batches of shares, loaded by ``workers`` processes."""

    def __init__(self, rows: Dataset, batches: Iterable[Share], workers: int = 0) -> None:
        super().__init__(
            rows, batch_sampler=batches, num_workers=workers, collate_fn=_as_it_is,
            pin_memory=torch.cuda.is_available(), worker_init_fn=_start_worker if workers else None,
            persistent_workers=workers > 0,
        )  # fmt: skip
        self.batches: Any = batches


class TrainingLoader(Loader):
    """Can be saved between updates in the middle of an epoch, and continues with the next share."""

    taken = 0

    def __iter__(self) -> Iterator[Batch]:
        self.taken = self.batches.start
        for batch in super().__iter__():
            self.taken += 1
            yield batch
        self.batches.start = 0

    def state_dict(self) -> dict[str, int]:
        """In updates, which every number of devices and micro-batches agrees on."""
        return {"epoch": self.batches.epoch, "updates": -(-self.taken // self.batches.accumulate)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        finished = state["updates"] >= self.batches.steps
        self.batches.epoch = state["epoch"] + finished
        self.batches.start = 0 if finished else state["updates"] * self.batches.accumulate


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _start_worker(_: int) -> None:
    """Workers outlive a SIGTERM to the process group: the parent still needs batches to finish its update."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))
