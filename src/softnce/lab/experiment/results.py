"""Results of a study: one JSON line per run, appended and never rewritten.

A run is named by a hash of its configuration, so an interrupted study finds the runs that are missing and does only
those. A complete line is written under a lock and is on disk before ``append`` returns: several processes can share a
directory, and no finished run is lost. A line that cannot be read (a full disk, a hand-edited file) is reported with
file and line number, skipped and kept.
"""

import datetime
import hashlib
import json
import math
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from filelock import FileLock

from softnce.lab.atomic import why


class DamagedLine(UserWarning):
    """A line of a results file that cannot be read."""


@dataclass(frozen=True)
class Row:
    """One finished run.

    Attributes:
        id: hash of study, version and configuration.
        config: everything that determines the result, including the seed.
        result: what was measured; a number that is not finite is None.
        seconds: wall time of the run; for runs computed together, each one's share.
        time: when it ended, UTC, ISO 8601.
        versions: of Python, torch and softnce.
    """

    id: str
    config: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    time: str
    versions: dict[str, str]


def run_id(study: str, version: int, config: Mapping[str, Any]) -> str:
    """Name of a run: 16 hexadecimal digits that change with any value of its configuration, not with key order."""
    text = json.dumps([study, version, _canonical(config)], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """The runs of one study in ``directory/<study>.jsonl``.

    Args:
        directory: shared by all studies of a page; created if missing.
        study: name of the study.
        version: raised when the meaning of a run changes; lines of other versions stay in the file, unread.

    Reading is O(lines); appending reads only what other processes added since.
    """

    def __init__(self, directory: str | os.PathLike[str], study: str, version: int = 1) -> None:
        self.study = study
        self.version = version
        self.path = Path(directory) / f"{study}.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # the file itself comes with its first run, so that a study that cannot run leaves none
            with self.path.open("ab") if self.path.exists() else TemporaryFile(dir=self.path.parent):
                pass
        except OSError as error:
            raise ValueError(f"out: cannot write {self.path}: {why(error)}") from None
        self._lock = FileLock(f"{self.path}.lock")
        self._rows: dict[str, Row] = {}
        self._offset = 0
        self._lines = 0

    def rows(self) -> list[Row]:
        """Every finished run, in the order of the file; the first of two runs with the same configuration counts."""
        with self._lock:
            self._read()
        return list(self._rows.values())

    def finished(self, config: Mapping[str, Any]) -> bool:
        """Whether the run has a result, by any process."""
        with self._lock:
            self._read()
        return run_id(self.study, self.version, config) in self._rows

    def append(self, config: Mapping[str, Any], result: Mapping[str, Any], seconds: float) -> Row:
        """Write a finished run; if another process finished the same one first, its row is kept and returned."""
        name = run_id(self.study, self.version, config)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = {
            "id": name,
            "study": self.study,
            "version": self.version,
            "config": config,
            "result": _finite(result),
            "seconds": round(seconds, 4),
            "time": now,
            "versions": versions(),
        }
        text = json.dumps(line, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._read()
            if name not in self._rows:
                try:
                    self._write(text)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(self.path)) from error
                self._read()
        return self._rows[name]

    def _write(self, text: bytes) -> None:
        with self.path.open("ab") as file:
            if self._unfinished_line():
                text = b"\n" + text  # the torn line of a killed process keeps its own line
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _unfinished_line(self) -> bool:
        return self.path.stat().st_size > self._offset

    def _read(self) -> None:
        """Read the complete lines added since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    # We hold the lock, so nobody is still writing it: a process died here.
                    self._warn(self._lines + 1)
                    break
                self._offset += len(raw)
                self._lines += 1
                if raw.strip():
                    self._take(raw)

    def _take(self, raw: bytes) -> None:
        try:
            line = json.loads(raw)
            if (line["study"], line["version"]) != (self.study, self.version):
                return
            row = Row(**{name: line[name] for name in Row.__dataclass_fields__})
        except (ValueError, KeyError, TypeError):
            self._warn(self._lines)
        else:
            self._rows.setdefault(row.id, row)

    def _warn(self, line: int) -> None:
        message = f"{self.path}:{line}: damaged line, skipped (it stays in the file)"
        warnings.warn(message, DamagedLine, stacklevel=5)


@contextmanager
def damage_on_stderr() -> Iterator[None]:
    """For commands: report each damaged line once, as one line on stderr."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("once", DamagedLine)
        warnings.showwarning = show
        yield


@cache
def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    import torch

    from softnce import __version__

    return {
        "softnce": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 are one setting
    return value


def _finite(value: Any) -> Any:
    """NaN and infinity, which JSON does not have, as None."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
