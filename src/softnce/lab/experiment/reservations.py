"""Who does which run: processes that work in one folder divide its runs among them."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout


class Reservations:
    """Runs that this process has taken, each a lock in ``folder``.

    A lock ends with its process, so the runs of a killed one are free again. Save a run's result before
    :meth:`release`, and look for a result after :meth:`take`: then no run is done twice.

    Args:
        folder: shared by the processes; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, FileLock] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Reservations":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for name in list(self._held):
                stack.callback(self.release, name)

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
