"""Ranks that have different numbers of batches.

A rank that has run out of batches must still take part in what a loss exchanges, as a rank with an empty batch does.
DDP's ``join()`` does that for DDP's own collectives, and leaves no place between forward and backward for a loss. So a
loss does it beside DDP: in a thread, over a process group of its own, where its messages cannot meet DDP's.
"""

from __future__ import annotations

import gc
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable

from softnce._core.call import Logits
from softnce._core.ranks import Exchange, LossCall, Options, Scaling, all_gather_single
from softnce._core.table import Table
from softnce.targets import SoftTargets

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from softnce.losses import ClassifierLoss

IDLE: dict[tuple[int, ...], list[weakref.ref[ProcessGroup]]] = {}
"""Process groups that are not in use: gloo cannot make the same group twice.

Weak references, for ``destroy_process_group`` must end their threads, which can abort an interpreter that ends.
"""


class Joined:
    """The exchange of one loss while ranks run out of batches. Made by all its ranks together.

    If ``counts_all``, DDP divides gradients by the number of all ranks; else by that of the ranks that have batches.
    """

    def __init__(self, loss: ClassifierLoss, counts_all: bool) -> None:
        ranks = dist.get_process_group_ranks(loss.process_group)
        self._loss = loss
        self._idle = IDLE.setdefault(tuple(ranks), [])
        found = None
        while self._idle and found is None:  # None: torch.distributed was set up anew
            found = self._idle.pop()()
        self.group = found or dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._counts_all = counts_all
        self._rounds = 0
        self._latest = LossCall()
        self._active = 0  # ranks that still have batches
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, call: LossCall, scaling: Scaling, options: Options) -> Exchange:
        """How ranks exchange in a call of the loss; every rank that still has batches begins the same call."""
        if self._thread is None:  # else the thread has announced it
            self._announce(call)
        world = dist.get_world_size(self.group) if self._counts_all else self._active
        return Exchange(self.group, scaling, on_host=True, divisor=world, options=options)

    def leave(self) -> None:
        """This rank has run out of batches: take part in the others' calls until nobody has any, in a thread."""
        self._thread = threading.Thread(target=self._follow, args=[self._rounds], name="softnce-join", daemon=True)
        self._thread.start()

    def _follow(self, rounds: int) -> None:
        """If this fails, the other ranks get an error, and :meth:`close` raises this one's."""
        try:
            while self._announce(LossCall()):
                shadow_call(self._loss, self._latest)
            self._copy_from_last(rounds)
        except Exception as error:
            self._error = error
            # The connections close once nothing refers to the group, not even the error's frames.
            traceback.clear_frames(error.__traceback__)
            dist.destroy_process_group(self.group)
            del self.group

    def close(self) -> None:
        """Wait until all ranks have run out."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        self._idle.append(weakref.ref(self.group))

    def _gathered(self, numbers: Sequence[int]) -> Tensor:
        """The numbers of every rank, (ranks, n)."""
        mine = torch.tensor(numbers, dtype=torch.long)
        everyone = mine.new_empty(len(mine) * dist.get_world_size(self.group))
        all_gather_single(everyone, mine, group=self.group)
        return everyone.view(-1, len(mine))

    def _announce(self, call: LossCall) -> int:
        """Learn the call of the ranks that still have batches, and return how many they are."""
        calls = self._gathered(call)
        self._latest = LossCall(*calls.amax(0).tolist())
        self._active = int(calls[:, 0].sum())
        self._rounds += self._active > 0
        return self._active

    @torch.no_grad()
    def _copy_from_last(self, rounds: int) -> None:
        """The loss's parameters from a rank that had the most batches: the others made fewer steps."""
        last = dist.get_global_rank(self.group, int(self._gathered([rounds]).argmax()))
        for parameter in self._loss.parameters():
            host = parameter.cpu().clone()
            dist.broadcast(host, last, group=self.group)
            parameter.copy_(host)


@contextmanager
def joined(losses: Sequence[ClassifierLoss], others: Sequence[Any], counts_all: bool) -> Iterator[None]:
    """See :func:`softnce.join`; ``losses`` are those that exchange."""
    for other in others:
        if not isinstance(other, Joinable):
            raise TypeError(
                "joinables must be models wrapped by DistributedDataParallel, other torch Joinables or losses of "
                f"softnce, got {type(other).__name__}"
            )
    sessions = []
    for loss in losses:
        if loss._joined is not None:
            raise ValueError(f"{type(loss).__name__} is in a join context already")
        loss._joined = Joined(loss, counts_all)
        sessions.append(loss._joined)
    try:
        with Join(list(others), divide_by_initial_world_size=counts_all) if others else nullcontext():
            yield
            for session in sessions:
                session.leave()
        for session in sessions:
            session.close()
    finally:
        for loss in losses:
            loss._joined = None


def shadow_call(loss: ClassifierLoss, call: LossCall) -> None:
    """Take part in a call of other ranks without a batch of one's own."""
    device = next((x.device for x in (*loss.parameters(), *loss.buffers())), torch.device("cpu"))
    none = SoftTargets.from_labels(torch.zeros(0, dtype=torch.long, device=device), call.num_classes)
    given: dict[str, Any] = {"generator": torch.Generator(device)}
    if call.is_memory:
        loss.remember(none, **given)  # type: ignore[operator]
        return
    if call.is_part:
        given |= {"batch": none, "own": none.labels}
    features, table = (torch.zeros(rows, 1, device=device) for rows in (0, call.num_classes))
    source = Table(features, table) if call.from_table else Logits(table.T[:0])
    value = loss._loss(source, none, given)
    if isinstance(loss.temperature, Tensor) and loss.temperature.requires_grad:  # its gradient is exchanged too
        torch.autograd.grad(value.sum(), loss.temperature)


_models: weakref.WeakKeyDictionary[Joinable, object] = weakref.WeakKeyDictionary()
"""Models that a ``join()`` context could be of, and the trace of their last context that has ended."""
_to_be_sought = True


def check_no_other_join() -> None:
    """An error inside ``with model.join():``, where this loss would wait for ranks that have no batches left.

    The context leaves a trace in its model alone, so the models are sought, at the first exchange of the process and
    again once those found are gone. The trace outlives the context; whether the context itself still lives decides.
    """
    global _to_be_sought
    if not _models and _to_be_sought:
        _models.update(dict.fromkeys(_living(Joinable)))
        _to_be_sought = bool(_models)
    for model, ended in list(_models.items()):
        config = model._join_config
        if not config.enable or config is ended:
            continue
        if any(model in context._joinables for context in _living(Join)):
            raise RuntimeError(
                "inside join() of a model, ranks without batches would not take part in what the loss exchanges: "
                "write `with softnce.join(model, loss):` instead of `with model.join():`, or make the loss with "
                "distributed=False"
            )
        _models[model] = config


def _living(kind: type[Any]) -> list[Any]:
    # type(), not isinstance(): that would ask objects for their class, which proxies answer by warnings and imports.
    return [found for found in gc.get_objects() if issubclass(type(found), kind)]
