"""Peak memory of the benchmark's cases, each traced in a process of its own."""

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

import torch

from softnce.lab.bench.cases import CASES, Inputs, Size
from softnce.lab.experiment.memory import peak_of


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
