"""Files that are complete or absent: written to a second file, then renamed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, shared: bool = False, durable: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to; the file written there takes the place of ``path`` when the block ends.

    After an exception ``path`` is as it was and nothing is left beside it.

    Args:
        path: the file; its folder is created if missing.
        shared: several processes may write this file at the same time.
        durable: force the content to disk first, so that it survives a crash of the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial" if shared else f"{path.name}.partial")
    try:
        yield partial
        if durable:
            _force_to_disk(partial, os.O_RDWR)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    if durable and hasattr(os, "O_DIRECTORY"):
        _force_to_disk(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def why(error: BaseException) -> str:
    """What kept a file from being written or read, in words; torch hides the system's error behind one of its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return "the disk is full"
        cause = cause.__cause__ or cause.__context__
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _force_to_disk(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
