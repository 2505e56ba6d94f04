"""Independent runs side by side on this machine: one process per core, or per GPU."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_all_start_methods, get_context, parent_process
from typing import TypeVar

from softnce.lab.cores import SHARE, cores

Run = TypeVar("Run")
Result = TypeVar("Result")

ATTEMPTS = 3
"""How often a run is started whose process is killed."""

PRELOADED = ["torch", "sklearn.datasets"]
"""What most runs import: one process does, once, and all processes of runs are its forks."""


class Killed(RuntimeError):
    """The process of a run was killed each time."""

    def __init__(self, run: object) -> None:
        super().__init__(f"its process was killed {ATTEMPTS} times, possibly out of memory: {run}")


def one_per_core(
    perform: Callable[[Run], Result], runs: Iterable[Run], *, gpus: list[str] | None = None
) -> Iterator[Result]:
    """``perform(run)`` for each of ``runs``, as many at a time as there are cores; yields results as they arrive.

    ``perform`` must be a function of a module: new processes import it. Runs start in the order given, so the longest
    come first; each is taken from ``runs`` when a process is free. A run whose process is killed is started again.
    Stopping the iteration, an interrupt or an error stops all runs.

    Args:
        perform: what is done.
        runs: its arguments.
        gpus: instead of one process per core, one for each of these values of CUDA_VISIBLE_DEVICES.
    """
    waiting = iter(runs)
    # A process of its own for every slot: one that is killed takes no other run with it.
    slots: list[str | None] = [*gpus] if gpus else [None] * cores()
    each = max(1, cores() // len(slots))
    pools = {_pool(gpu, each): gpu for gpu in slots}
    idle = list(pools)
    pending: dict[Future[Result], tuple[ProcessPoolExecutor, Run, int]] = {}
    again: list[tuple[Run, int]] = []
    try:
        while True:
            while idle:
                if again:
                    run, attempt = again.pop()
                else:
                    try:
                        run, attempt = next(waiting), 1
                    except StopIteration:
                        break
                pool = idle.pop()
                pending[pool.submit(perform, run)] = pool, run, attempt
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                pool, run, attempt = pending.pop(future)
                if not isinstance(future.exception(), BrokenProcessPool):
                    idle.append(pool)
                    yield future.result()
                elif attempt == ATTEMPTS:
                    raise Killed(run)
                else:
                    again.append((run, attempt + 1))
                    gpu = pools.pop(pool)
                    pool.shutdown()
                    idle.append(fresh := _pool(gpu, each))
                    pools[fresh] = gpu
    finally:
        busy = {pool for pool, _, _ in pending.values()}
        for pool in pools:
            if pool in busy:
                _stop(pool)
            else:
                pool.shutdown()


def gpu_names() -> list[str]:
    """This machine's visible GPUs as CUDA_VISIBLE_DEVICES names them; [] without GPUs. An Apple GPU has no name."""
    import torch

    if torch.backends.mps.is_available():
        return [""]
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (given.split(",") if given else [str(number) for number in range(count)])[:count]


def _pool(gpu: str | None, own_cores: int) -> ProcessPoolExecutor:
    """One process, which starts with its first run; its loaders have ``own_cores``."""
    forks = "forkserver" in get_all_start_methods()  # not on Windows
    context = get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(PRELOADED)
    environment = dict(os.environ) | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment[SHARE] = str(own_cores)
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    return ProcessPoolExecutor(1, context, _start_worker, (environment,))


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the pool's process now: a training saves its state on SIGTERM, anything else has nothing to keep."""
    processes = list(pool._processes.values()) if pool._processes else []
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def _start_worker(environment: dict[str, str]) -> None:
    import torch

    os.environ.clear()  # it is that of the first pool
    os.environ.update(environment)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
