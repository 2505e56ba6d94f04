"""Rows: one JSON line per finished run in ``DIR/<experiment>.jsonl``, appended and never rewritten.

The id of a run hashes experiment, version and configuration, so a repeated command does the missing runs only.
A line that cannot be used is reported with file and line, skipped and kept.
"""

import datetime
import hashlib
import json
import math
import os
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

FIELDS: dict[str, Any] = {
    "id": str, "study": str, "version": int, "config": dict, "result": dict, "seconds": (int, float), "time": str,
    "versions": dict,
}  # fmt: skip
FEW, ODD = 10, 0.03
"""A value that differs in kind from the others' is a mistake: among at least so many rows, in at most this share."""


@dataclass(frozen=True)
class Row:
    """One finished run.

    Attributes:
        id: hash of experiment, version and configuration.
        config: everything that determines the result, with the seed.
        result: the measurements; a number that is not finite is None.
        seconds: wall time; for runs computed together, each one's share.
        time: end of the run, UTC, ISO 8601.
        versions: of Python, torch and softnce.
        line: place in its file, from 1.
    """

    id: str
    config: dict[str, Any]
    result: dict[str, Any]
    seconds: float = 0.0
    time: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    line: int = field(default=0, compare=False)


def run_id(experiment: str, version: int, config: Mapping[str, Any]) -> str:
    """Name of a run: 16 hexadecimal digits of its experiment, version and configuration."""
    text = json.dumps([experiment, version, _plain(config, _canonical)], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """The runs of one experiment in ``directory/<experiment>.jsonl``.

    Args:
        directory: of the results; created by the first `append`.
        experiment: its name.
        version: rows of other versions stay in the file, unread.

    Attributes:
        problems: one line for each row that cannot be used, with file and line.
    """

    def __init__(self, directory: str | os.PathLike[str], experiment: str, version: int = 1) -> None:
        self.experiment, self.version = experiment, version
        self.path = Path(directory) / f"{experiment}.jsonl"
        self.problems: list[str] = []
        self._rows: dict[str, Row] = {}
        self._offset = self._lines = 0

    def rows(self) -> list[Row]:
        """The usable rows in the order of the file; the first of two rows of one run counts."""
        self.update()
        odd = {row.line: problem for row, problem in _odd(list(self._rows.values()))}
        for line, problem in odd.items():
            self._problem(line, problem)
        return [row for row in self._rows.values() if row.line not in odd]

    def ids(self) -> set[str]:
        """The ids of the finished runs."""
        self.update()
        return set(self._rows)

    def id_of(self, config: Mapping[str, Any]) -> str:
        return run_id(self.experiment, self.version, config)

    def update(self) -> None:
        """Reads the complete lines that were added since the last call, by any process."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):  # being written, or torn by a kill
                    break
                self._offset += len(raw)
                self._lines += 1
                if raw.strip():
                    self._take(raw)

    def append(self, config: Mapping[str, Any], result: Mapping[str, Any], seconds: float) -> None:
        """Writes a finished run and forces it to disk; a run that another process finished first is kept."""
        line = {
            "id": self.id_of(config), "study": self.experiment, "version": self.version, "config": config,
            "result": _plain(result, _finite), "seconds": round(seconds, 4),
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "versions": versions(),
        }  # fmt: skip
        text = json.dumps(line, allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            self.update()
            if line["id"] not in self._rows:
                with self.path.open("ab") as file:
                    torn = self.path.stat().st_size > self._offset
                    file.write((b"\n" if torn else b"") + text)  # a torn line keeps a line of its own
                    file.flush()
                    os.fsync(file.fileno())
                self.update()

    def _take(self, raw: bytes) -> None:
        try:
            row = self._row(json.loads(raw, parse_constant=_refuse))
        except (ValueError, RecursionError) as error:
            self._problem(self._lines, "nested too deeply" if isinstance(error, RecursionError) else str(error))
        else:
            if row is not None:
                self._rows.setdefault(row.id, row)

    def _row(self, line: Any) -> Row | None:
        if not isinstance(line, dict):
            raise ValueError("not a mapping of fields")
        for name, kind in FIELDS.items():
            if not isinstance(line.get(name), kind) or isinstance(line[name], bool):
                raise ValueError(f"{name} is {_shown(line[name]) if name in line else 'missing'}")
        if (line["study"], line["version"]) != (self.experiment, self.version):
            return None
        if self.id_of(line["config"]) != line["id"]:
            raise ValueError(f"id {line['id'][:20]} is not that of its configuration")
        kept = {name: line[name] for name in FIELDS if name not in ("study", "version")}
        return Row(**kept, line=self._lines)

    def _problem(self, line: int, reason: str) -> None:
        problem = f"{self.path}:{line}: skipped, {reason}"
        if problem not in self.problems:
            self.problems.append(problem)


def _odd(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Rows with a value of another kind than nearly all other rows have at its place."""
    found: dict[str, list[tuple[str, Row, Any]]] = defaultdict(list)
    for row in rows:
        for place, kind, value in _leaves(row.result, "result"):
            found[place].append((kind, row, value))
    for place, values in found.items():
        usual, often = Counter(kind for kind, _, _ in values).most_common(1)[0]
        if len(values) >= FEW and 0 < len(values) - often <= max(1, ODD * len(values)):
            for kind, row, value in values:
                if kind != usual:
                    yield row, f"{place} is {_shown(value)}; other rows have a {usual}"


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str, Any]]:
    """Dotted place, kind and value of every value that is no mapping, and of every mapping."""
    if isinstance(value, dict):
        yield place, "mapping", value
        for name, item in value.items():
            yield from _leaves(item, f"{place}.{name}")
    elif isinstance(value, list):
        yield place, "list", value
        for kind in {_kind(item) for item in value}:
            yield f"{place}[]", kind, next(item for item in value if _kind(item) == kind)
    else:
        yield place, _kind(value), value


def _kind(value: Any) -> str:
    names = {bool: "truth value", str: "text", list: "list", dict: "mapping"}
    return names.get(type(value), "number")  # None is a number that was not finite


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@cache
def versions() -> dict[str, str]:
    """Versions that the numbers were computed with."""
    import torch

    from softnce import __version__

    return {"softnce": __version__, "torch": torch.__version__, "python": platform.python_version(),
            "platform": f"{sys.platform} {platform.machine()}"}  # fmt: skip


def _plain(value: Any, number: Callable[[float], Any]) -> Any:
    """Mappings and lists of JSON, each float replaced."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, number) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, number) for item in value]
    return number(value) if isinstance(value, float) else value


def _canonical(number: float) -> float:
    return int(number) if number.is_integer() else number  # 1 and 1.0 are one setting


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no NaN
