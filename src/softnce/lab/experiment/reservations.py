"""Who does which run: processes that work in one folder divide its runs among them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from filelock import FileLock, Timeout

from softnce.lab.atomic import why

Run = TypeVar("Run")


class Done(Protocol):
    """An outcome that says of which run it is."""

    @property
    def run(self) -> Any: ...


Outcome = TypeVar("Outcome", bound=Done)


class Reservations:
    """Runs that this process has taken, each a lock in ``folder``.

    A lock ends with its process, so the runs of a killed one are free again. Save a run's result before
    :meth:`release`, and look for a result after :meth:`take`: then no run is done twice.

    Args:
        folder: shared by the processes, in the folder of the results; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, FileLock] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"out: cannot write in {folder.parent}: {why(error)}") from None

    def __enter__(self) -> "Reservations":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.held:
            self.release(name)

    @property
    def held(self) -> list[str]:
        return list(self._held)

    def take(self, name: str) -> bool:
        """Whether the run is ours now; False while a process, this one included, works on it."""
        lock = FileLock(self.folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        self._held[name] = lock
        return True

    def release(self, name: str) -> None:
        lock = self._held.pop(name)
        Path(lock.lock_file).unlink(missing_ok=True)  # while we hold it: who opened it meanwhile finds the result
        lock.release()


def shared(
    runs: list[Run],
    execute: Callable[[Iterator[Run]], Iterator[Outcome]],
    *,
    folder: Path,
    name: Callable[[Run], str],
    finished: Callable[[Run], bool],
) -> Iterator[Outcome]:
    """Do the runs that are not finished, each once among all processes that call this with the same folder.

    Ends when all runs are finished. A run that another process did not finish before it ended is done here.

    Args:
        runs: what is to be done.
        execute: does runs, each taken from its iterator when there is room for it, and yields their outcomes.
        folder: of the reservations.
        name: of a run, the same in all processes.
        finished: whether a run's result is saved. Save that of an outcome before asking for the next.
    """
    with Reservations(folder) as reservations:

        def taken(todo: list[Run]) -> Iterator[Run]:
            for run in todo:
                if reservations.take(name(run)):
                    if finished(run):
                        reservations.release(name(run))
                    else:
                        yield run

        while todo := [run for run in runs if not finished(run)]:
            for outcome in execute(taken(todo)):
                yield outcome
                reservations.release(name(outcome.run))
            if reservations.held:
                raise RuntimeError(f"{len(reservations.held)} runs have no outcome")
            if not all(map(finished, todo)):
                time.sleep(1)  # another process does them
