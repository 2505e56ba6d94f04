"""Peak memory of one step, in a process of its own, from a trace of torch's allocator.

What is counted is the largest sum of live allocations during forward, backward and optimiser step beyond what lived
before: inputs, parameters and optimiser state are not counted, gradients are. The trace knows every tensor to the byte,
so the figure is the same on every run, unlike the process's resident memory; what a matrix library allocates for itself
is not in it.
"""

import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile

from softnce.lab.bench.cases import CASES, Inputs, Size, Step


def peak_of(step: Step) -> int:
    """Bytes; the step is run twice, traced the second time, when everything lazy has been done."""
    step()
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    assert trace.profiler is not None
    events = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


class OwnProcess:
    """A second process that does nothing but trace."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __enter__(self) -> "OwnProcess":
        context = multiprocessing.get_context("spawn")  # a forked one would inherit torch's threads half alive
        self._pool = ProcessPoolExecutor(1, context, torch.set_num_threads, (self._threads,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def peak(self, case: str, size: Size) -> int:
        """Bytes at the peak of one step of the case."""
        return self._pool.submit(_peak, case, size).result()


def _peak(case: str, size: Size) -> int:
    gc.collect()
    return peak_of(CASES[case].step(Inputs(size)))


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's C++ announces itself, and every block freed that it did not see allocated, on standard error."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
