"""Peak memory of the benchmark's cases, each traced in a process of its own."""

import gc
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import torch

from softnce.lab.bench.cases import CASES, Inputs, Size
from softnce.lab.experiment.memory import peak_of


@contextmanager
def own_process(threads: int) -> Iterator[Callable[[str, Size], int]]:
    """A second process that only traces; returns the bytes at the peak of one step of a case."""
    context = multiprocessing.get_context("spawn")  # a forked one would inherit torch's threads half alive
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (threads,)) as pool:
        yield lambda case, size: pool.submit(_peak, case, size).result()


def _peak(case: str, size: Size) -> int:
    gc.collect()
    step = CASES[case].step(Inputs(size))
    if size.device == "cpu":
        return peak_of(step)
    step()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before
