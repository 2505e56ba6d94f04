"""Independent runs side by side: one process per core, one thread per process."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from softnce.lab.cores import cores

Run = TypeVar("Run")
Result = TypeVar("Result")


def one_per_core(perform: Callable[[Run], Result], runs: Iterable[Run]) -> Iterator[Result]:
    """``perform(run)`` for each of ``runs``, as many at a time as there are cores; yields results as they arrive.

    ``perform`` must be a function of a module: new processes import it. Runs start in the order
    given, so the longest come first. Stopping the iteration, an interrupt or an error cancels runs not yet started.
    """
    todo = list(runs)
    if not todo:
        return
    pool = ProcessPoolExecutor(min(cores(), len(todo)), get_context("spawn"), _start_worker, (os.getpid(),))
    try:
        for future in as_completed([pool.submit(perform, run) for run in todo]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(parent: int) -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the work
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A killed parent cannot stop its workers, so a worker ends when its parent changes."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
