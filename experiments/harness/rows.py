"""Rows: one JSON line per finished run in ``DIR/<experiment>.jsonl``, appended and never rewritten.

The id of a run hashes experiment, version and configuration, so a repeated command does the missing runs only.
A line that cannot be used is reported with file and line, skipped and kept.
"""

import datetime
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

FIELDS: dict[str, Any] = {"id": str, "study": str, "version": int, "config": dict, "result": dict}


@dataclass(frozen=True)
class Row:
    """One finished run."""

    id: str  # hash of experiment, version and configuration
    config: dict[str, Any]  # everything that determines the result, with the seed
    result: dict[str, Any]  # the measurements; a number that is not finite is None


def run_id(experiment: str, version: int, config: Mapping[str, Any]) -> str:
    """Name of a run: 16 hexadecimal digits of its experiment, version and configuration."""
    canonical = json.loads(json.dumps(config, allow_nan=False), parse_float=_canonical)
    text = json.dumps([experiment, version, canonical], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """The runs of one experiment in ``directory/<experiment>.jsonl``; rows of other versions stay there, unread.

    ``problems`` has one line for each row that cannot be used, with file and line.
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
        return list(self._rows.values())

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
                try:
                    if raw.strip() and (row := self._row(json.loads(raw, parse_constant=_refuse))):
                        self._rows.setdefault(row.id, row)
                except (ValueError, RecursionError) as error:
                    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                    self.problems.append(f"{self.path}:{self._lines}: skipped, {reason}")

    def append(self, config: Mapping[str, Any], result: Mapping[str, Any], seconds: float) -> None:
        """Writes a finished run and forces it to disk; a run that another process finished first is kept."""
        line = {
            "id": self.id_of(config), "study": self.experiment, "version": self.version, "config": config,
            "result": json.loads(json.dumps(result), parse_constant=lambda _: None),  # JSON has no NaN
            "seconds": round(seconds, 4),
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

    def _row(self, line: Any) -> Row | None:
        if not isinstance(line, dict):
            raise ValueError("not a mapping of fields")
        for name, kind in FIELDS.items():
            if not isinstance(line.get(name), kind) or isinstance(line[name], bool):
                raise ValueError(f"{name} is {repr(line[name])[:40] if name in line else 'missing'}")
        if (line["study"], line["version"]) != (self.experiment, self.version):
            return None
        if self.id_of(line["config"]) != line["id"]:
            raise ValueError(f"id {line['id'][:20]} is not that of its configuration")
        return Row(line["id"], line["config"], line["result"])


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@cache
def versions() -> dict[str, str]:
    """Versions that the numbers were computed with."""
    import torch

    from softnce import __version__

    return {"softnce": __version__, "torch": torch.__version__, "python": platform.python_version(),
            "platform": f"{sys.platform} {platform.machine()}"}  # fmt: skip


def _canonical(digits: str) -> float:
    number = float(digits)
    return int(number) if number.is_integer() else number  # 1 and 1.0 are one setting
