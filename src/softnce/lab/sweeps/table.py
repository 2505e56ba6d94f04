"""A table over runs: what differs between them, and their results, with seeds and folds averaged."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softnce.lab import recipes
from softnce.lab.configuration import dotted, to_mapping
from softnce.lab.experiment.statistics import estimate
from softnce.lab.experiment.table import Table
from softnce.lab.experiment.text import counted
from softnce.lab.sweeps.grid import short_names, written

AVERAGED = ("seed", "data.fold")
"""Runs that differ in these only are one row."""
SPEED_ONLY = ("data.cache", "data.workers", "data.download")
"""Runs that differ in these only, or in ``compute`` but for its precision, are the same run."""
METRICS = {"top1": 4, "nll": 4, "ece": 4}
"""Columns, and their digits after the point."""


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder as it was left.

    Attributes:
        folder: relative to the one that was searched.
        settings: every value of its recipe, by dotted name.
        results: metrics by column of its results: best, last, and test where the test split was kept apart.
        facts: what :mod:`softnce.lab.train.facts` wrote; {} of older runs.
    """

    folder: str
    settings: dict[str, Any]
    results: dict[str, dict[str, float]]
    facts: dict[str, Any]

    @property
    def measured(self) -> dict[str, float]:
        """On the test split, where it did not choose the epoch; else at the best epoch."""
        return self.results.get("test") or self.results["best"]

    @property
    def setting(self) -> dict[str, Any]:
        """The values that can change the results."""

        def is_speed(name: str) -> bool:
            return name in SPEED_ONLY or (name.startswith("compute.") and name != "compute.precision")

        return {name: value for name, value in self.settings.items() if not is_speed(name)}


def read_runs(folder: Path) -> list[FinishedRun]:
    """All finished runs in ``folder``, at any depth."""
    found = []
    for path in sorted(folder.rglob("results.json")):
        kept = path.with_name("recipe.yaml")
        try:
            results = json.loads(path.read_text(encoding="utf-8"))
            if not kept.is_file() or not results["best"]:
                continue
            facts = path.with_name("facts.json")
            about = json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        settings = dotted(to_mapping(recipes.load(str(kept))))
        found.append(FinishedRun(str(path.parent.relative_to(folder)), settings, results, about))
    return found


def left_out(folder: Path, runs: Sequence[FinishedRun]) -> list[str]:
    """A line that names the runs which :func:`table` does not count, and one on runs that are not finished, if any.

    Args:
        folder: the one that was searched.
        runs: its finished runs.
    """
    repeated = [f"{folder / run.folder} (as {folder / first.folder})" for first, *more in _by(runs) for run in more]
    lines = [f"not counted, same setting, seed and fold as another run: {', '.join(repeated)}"] if repeated else []
    unfinished = sum(1 for _ in folder.rglob("recipe.yaml")) - len(runs)
    return lines + ([f"left out, not finished: {counted(unfinished, 'run')}"] if unfinished > 0 else [])


def table(runs: Sequence[FinishedRun]) -> Table:
    """One row per setting: mean ± half of the 95 % interval over seeds and folds. Each seed and fold counts once."""
    runs = [first for first, *_ in _by(runs)]
    names = list(dict.fromkeys(name for run in runs for name in run.setting if name not in AVERAGED))
    differing = [name for name in names if len(_by(runs, [name])) > 1]
    metrics = [name for name in METRICS if any(name in run.measured for run in runs)]
    rows = []
    for members in _by(runs, differing):
        setting = [written(members[0].setting.get(name)) for name in differing]
        cells = [_mean([run.measured[name] for run in members if name in run.measured], METRICS[name])
                 for name in metrics]  # fmt: skip
        seconds = [run.facts["seconds"] for run in members if "seconds" in run.facts]
        rate = [run.facts["rows_per_second"] for run in members if run.facts.get("rows_per_second")]
        rows.append([*setting, str(len(members)), *cells, _mean(seconds, 1), _mean(rate, 0)])
    rows.sort(key=lambda row: row[: len(differing)])
    split = "test split" if all("test" in run.results for run in runs) else "best epoch"
    return Table(
        f"{len(runs)} runs, {split}; mean ± half of the 95 % interval over seeds and folds",
        [*short_names(differing), "runs", *metrics, "seconds", "rows/s"],
        rows,
    )


def as_csv(runs: Sequence[FinishedRun]) -> str:
    """One line per run: folder, every setting, every metric and fact."""
    lines = [
        {"folder": run.folder, **run.settings}
        | {f"{column}.{name}": value for column, values in run.results.items() for name, value in values.items()}
        | {name: value for name, value in run.facts.items() if not isinstance(value, dict | list)}
        for run in runs
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _by(runs: Sequence[FinishedRun], names: Sequence[str] | None = None) -> list[list[FinishedRun]]:
    """The runs in groups of equal values of these names, or of everything that can change the results."""
    groups: dict[str, list[FinishedRun]] = defaultdict(list)
    for run in runs:
        values = run.setting if names is None else {name: run.setting.get(name) for name in names}
        groups[json.dumps(values, sort_keys=True, default=str)].append(run)
    return list(groups.values())


def _mean(values: Sequence[float], digits: int) -> str:
    return estimate(values).spread(digits) if values else "–"
