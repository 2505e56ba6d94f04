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
from softnce.lab.sweeps.grid import short_names, written

AVERAGED = ("seed", "data.fold")
"""Runs that differ in these only are one row."""
NOT_SHOWN = ("data.dir", "data.cache", "data.workers", "data.download")
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


def table(runs: Sequence[FinishedRun]) -> Table:
    """One row per setting: mean ± half of the 95 % interval over seeds and folds."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    shown = [name for name in names if name not in (*AVERAGED, *NOT_SHOWN) and not name.startswith("compute.")]
    differing = [name for name in shown if len({written(run.settings.get(name)) for run in runs}) > 1]
    groups: dict[tuple[str, ...], list[FinishedRun]] = defaultdict(list)
    for run in runs:
        groups[tuple(written(run.settings.get(name)) for name in differing)].append(run)
    metrics = [name for name in METRICS if any(name in run.measured for run in runs)]
    rows = []
    for key, members in groups.items():
        cells = [_mean([run.measured[name] for run in members if name in run.measured], METRICS[name])
                 for name in metrics]  # fmt: skip
        seconds = [run.facts["seconds"] for run in members if "seconds" in run.facts]
        rate = [run.facts["rows_per_second"] for run in members if run.facts.get("rows_per_second")]
        rows.append([*key, str(len(members)), *cells, _mean(seconds, 1), _mean(rate, 0)])
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


def _mean(values: Sequence[float], digits: int) -> str:
    return estimate(values).spread(digits) if values else "–"
