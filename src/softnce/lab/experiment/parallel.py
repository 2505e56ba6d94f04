"""Independent runs side by side on this machine: one process per core, or per share of its GPUs."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from softnce.lab.cores import cores

Run = TypeVar("Run")
Result = TypeVar("Result")

ATTEMPTS = 3
"""How often a run is started whose process is killed."""


class Killed(RuntimeError):
    """The process of a run was killed each time."""

    def __init__(self, run: object) -> None:
        super().__init__(f"its process was killed {ATTEMPTS} times, perhaps for want of memory: {run}")


def one_per_core(
    perform: Callable[[Run], Result], runs: Iterable[Run], *, shares: list[str] | None = None
) -> Iterator[Result]:
    """``perform(run)`` for each of ``runs``, as many at a time as there are cores; yields results as they arrive.

    ``perform`` must be a function of a module: new processes import it. Runs start in the order given, so the longest
    come first; each is taken from ``runs`` when a process is free. A run whose process is killed is started again.
    Stopping the iteration, an interrupt or an error stops all runs.

    Args:
        perform: what is done.
        runs: its arguments.
        shares: instead of one process per core, one for each of these values of CUDA_VISIBLE_DEVICES.
    """
    waiting, slots = iter(runs), len(shares) if shares else cores()
    pool: ProcessPoolExecutor | None = None
    pending: dict[Future[Result], tuple[Run, int]] = {}
    again: list[tuple[Run, int]] = []
    try:
        while True:
            while len(pending) < slots:
                if again:
                    run, attempt = again.pop()
                else:
                    try:
                        run, attempt = next(waiting), 1
                    except StopIteration:
                        break
                pool = pool or _pool(slots, shares)
                pending[pool.submit(perform, run)] = run, attempt
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                assert pool is not None
                pool.shutdown()
                pool = None
                done = set(pending)  # the pool ends with one of its processes
            for future in done:
                run, attempt = pending.pop(future)
                if not isinstance(future.exception(), BrokenProcessPool):
                    yield future.result()
                elif attempt == ATTEMPTS:
                    raise Killed(run)
                else:
                    again.append((run, attempt + 1))
    finally:
        if pool is not None and pending:
            _stop(pool)
        elif pool is not None:
            pool.shutdown()


def gpu_shares(gpus: int) -> list[str]:
    """This machine's visible GPUs in shares of ``gpus``, as CUDA_VISIBLE_DEVICES names them; [] without GPUs."""
    import torch

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(number) for number in range(count)]
    return [",".join(names[start : start + gpus]) for start in range(0, count - gpus + 1, gpus)]


def _pool(slots: int, shares: list[str] | None) -> ProcessPoolExecutor:
    context = get_context("spawn")
    free: Any = context.SimpleQueue() if shares else None
    for share in shares or ():
        free.put(share)
    return ProcessPoolExecutor(slots, context, _start_worker, (os.getpid(), free))


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the pool's processes now: a training saves its state on SIGTERM, anything else has nothing to keep."""
    processes = list(pool._processes.values()) if pool._processes else []
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def _start_worker(parent: int, free: Any) -> None:
    if free is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = free.get()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if "torch" in sys.modules:  # imported already, by the main module
        sys.modules["torch"].set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the work
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A killed parent cannot stop its workers, so a worker ends when its parent changes."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
