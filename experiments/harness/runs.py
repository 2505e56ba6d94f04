"""The missing runs of an experiment: one process per core or Ray, each row written as its run ends.

A run that diverges, raises or is killed does not stop the others; it is named at the end. Several commands can work in
one folder: a lock per list of runs divides them.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_all_start_methods, get_context, parent_process
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from filelock import FileLock, Timeout

from experiments.harness.experiment import Experiment, Result, Run
from experiments.harness.options import Where, to_mapping
from experiments.harness.rows import Results

ATTEMPTS = 3
"""Starts of a list of runs whose process is killed."""
Job = tuple[Run, ...]
Engine = Callable[[Iterable[Job]], Iterator["Outcome"]]


class Diverged(RuntimeError):
    """The loss or the class scores of a training are NaN or infinite."""


@dataclass(frozen=True)
class Outcome:
    """Runs computed together: measurements in order and wall time, or the error that ended them in words."""

    job: Job
    results: Sequence[Result] = ()
    seconds: float = 0.0
    error: str = ""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make(experiment: Experiment, options: Any, where: Where) -> list[str]:
    """Does the runs that have no row yet; returns a line for each kind of failure.

    An interrupt ends the command with exit code 130; finished rows stay.
    """
    results = experiment.results(where.out)
    failed: dict[Run, str] = {}
    wanted = list(experiment.runs(options))
    while True:
        todo = missing(results, wanted)
        print(f"{experiment.name}: {len(todo)} runs to do, {len(set(wanted)) - len(todo)} already in {results.path}")
        if todo := [run for run in todo if run not in failed]:
            _do(experiment, todo, results, where, failed)
        if experiment.follow_up is None:
            break
        wanted = list(experiment.follow_up(options, results.rows()))
        if all(run in failed for run in missing(results, wanted)):
            break
    lines = []
    for error in dict.fromkeys(failed.values()):
        first, *others = (run for run, its in failed.items() if its == error)
        lines.append(f"{error}: {first}" + (f" and {len(others)} more" if others else ""))
    return lines


def missing(results: Results, runs: Iterable[Run]) -> list[Run]:
    """The runs without a row, each once."""
    finished = results.ids()
    return [run for run in dict.fromkeys(runs) if results.id_of(to_mapping(run)) not in finished]


def _do(experiment: Experiment, todo: list[Run], results: Results, where: Where, failed: dict[Run, str]) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    experiment.prepare(todo)
    perform = partial(_perform, experiment.perform, experiment.perform_group)
    timed: list[Job] = [(run,) for run in todo if experiment.alone(run)]
    jobs = [tuple(group) for group in experiment.groups([run for run in todo if not experiment.alone(run)])]
    engine = partial(_on_ray, where.address) if where.engine == "ray" else one_per_core
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    done = 0
    with Progress(*columns) as progress:
        bar = progress.add_task("runs finished", total=len(todo))
        try:
            for part, way in ((timed, partial(one_per_core, slots=1)), (jobs, engine)):
                for outcome in _divided(part, partial(way, perform), results, failed):
                    for run, result in zip(outcome.job, outcome.results, strict=not outcome.error):
                        results.append(to_mapping(run), result, outcome.seconds / len(outcome.job))
                        done += 1
                    failed |= dict.fromkeys(outcome.job, outcome.error) if outcome.error else {}
                    progress.advance(bar, len(outcome.job))
        except KeyboardInterrupt:
            progress.stop()
            print(f"interrupted; {done} runs were finished and saved, the same command continues", file=sys.stderr)
            raise SystemExit(130) from None


def _divided(jobs: list[Job], engine: Engine, results: Results, failed: dict[Run, str]) -> Iterator[Outcome]:
    """Does the jobs, each once among all processes that work in the folder of the results.

    A lock ends with its process, so the jobs of a killed command are free again. Ends when every run is finished or
    failed here.
    """
    folder = results.path.with_name(f".{results.experiment}.running")
    held: dict[Job, FileLock] = {}

    def taken(todo: list[Job]) -> Iterator[Job]:
        for job in todo:
            lock = FileLock(folder / f"{results.id_of(to_mapping(job[0]))}.lock")
            with suppress(Timeout):
                lock.acquire(timeout=0)
                if missing(results, job):
                    held[job] = lock
                    yield job
                else:
                    lock.release()

    def release(job: Job) -> None:
        lock = held.pop(job)
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: who opened it meanwhile finds the rows
        lock.release()

    folder.mkdir(parents=True, exist_ok=True)
    try:
        while todo := [job for job in jobs if job[0] not in failed and missing(results, job)]:
            for outcome in engine(taken(todo)):
                yield outcome
                release(outcome.job)
            if any(job[0] not in failed and missing(results, job) for job in todo):
                time.sleep(1)  # another process does them
    finally:
        for job in list(held):
            release(job)
        with suppress(OSError):  # another process works there
            folder.rmdir()


def _perform(perform: Any, perform_group: Any, job: Job) -> Outcome:
    """In the process of the runs: measurements, or the error in words, which every process can read."""
    started = time.perf_counter()
    try:
        results = list(perform_group(job)) if perform_group else [perform(run) for run in job]
    except Exception as error:
        kind = "" if isinstance(error, Diverged) else f"{type(error).__name__}: "
        return Outcome(job, error=f"{kind}{error}".replace("\n", " ") or "an error without words")
    return Outcome(job, results, time.perf_counter() - started)


def one_per_core(perform: Callable[[Job], Outcome], jobs: Iterable[Job], slots: int = 0) -> Iterator[Outcome]:
    """``perform(job)`` in processes of one thread, as many as cores; yields outcomes as they arrive.

    Args:
        perform: a function of a module: new processes import it.
        jobs: each is taken when a process is free.
        slots: number of processes instead of one per core, each with all cores.
    """
    threads, places = cores() if slots else 1, slots or cores()
    idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    used: set[ProcessPoolExecutor] = set()
    for _ in range(places):  # a pool for each process: a killed one takes no other job with it
        idle.put(_pool(threads))

    def start(job: Job) -> Future[Outcome]:
        pool = idle.get()
        used.add(pool)
        future = pool.submit(perform, job)
        future.add_done_callback(lambda done: idle.put(_pool(threads) if done.exception() else pool))
        return future

    try:
        yield from _outcomes(jobs, start, lambda: places)
    finally:
        for pool in used:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False)
            for process in processes:
                process.terminate()


def _outcomes(
    jobs: Iterable[Job], start: Callable[[Job], Future[Outcome]], places: Callable[[], int]
) -> Iterator[Outcome]:
    """Jobs in the order given, as many at a time as there are places; a killed one starts :data:`ATTEMPTS` times."""
    waiting = ((job, 1) for job in jobs)
    again: list[tuple[Job, int]] = []
    pending: dict[Future[Outcome], tuple[Job, int]] = {}
    while True:
        while len(pending) < places() and (found := again.pop() if again else next(waiting, None)):
            pending[start(found[0])] = found
        if not pending:
            return
        for future in wait(pending, timeout=5, return_when=FIRST_COMPLETED).done:  # then look at the places again
            job, attempt = pending.pop(future)
            if future.exception() is None:
                yield future.result()
            elif attempt < ATTEMPTS:
                again.append((job, attempt + 1))
            else:
                yield Outcome(job, error=f"its process was killed {ATTEMPTS} times, possibly out of memory")


def _pool(threads: int) -> ProcessPoolExecutor:
    """One process, started by its first job."""
    forks = "forkserver" in get_all_start_methods()  # not on Windows
    context = get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(["torch", "sklearn.datasets"])  # imported once; all processes are forks
    environment = dict(os.environ) | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return ProcessPoolExecutor(1, context, _start, (environment, threads))


def _start(environment: dict[str, str], threads: int) -> None:
    import torch

    os.environ.clear()  # it is that of the first pool
    os.environ.update(environment)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _on_ray(address: str, perform: Callable[[Job], Outcome], jobs: Iterable[Job]) -> Iterator[Outcome]:
    """``perform(job)`` on the nodes of a Ray cluster, one core each; a lost one is started again elsewhere.

    Every node needs this repository, and the data and the results under the same paths.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("engine: ray is not installed; the extra `cluster` of pyproject.toml has it") from None
    try:
        ray.init(address or None, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError):
        raise ValueError(f"address: no Ray cluster at {address!r}; `ray start --head` starts one") from None
    remote: Any = ray.remote(num_cpus=1, max_retries=0)(lambda job: perform(job))  # Ray sets OMP_NUM_THREADS to 1

    def places() -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    try:
        yield from _outcomes(jobs, lambda job: remote.remote(job).future(), places)
    finally:
        ray.shutdown()  # ends what is under way
