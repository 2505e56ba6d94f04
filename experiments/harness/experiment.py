"""The one type that every experiment is: `EXPERIMENT = Experiment(…)` at the end of its file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.harness.claims import Claim, Finding, all_claims
from experiments.harness.figures import Figure
from experiments.harness.rows import Results, Row
from experiments.harness.tables import Table

FOLDER = Path(__file__).parents[1]
Run = Any
Result = Mapping[str, Any]


def nothing(rows: Sequence[Row]) -> Any:
    return {}


@dataclass(frozen=True)
class Experiment:
    """An experiment from question to figure."""

    name: str  # as in results/ and on the command line, with hyphens
    question: str  # one sentence
    minutes: float  # of the paper preset on two cores
    presets: Mapping[str, Any]  # options by preset, "quick" first; frozen dataclasses of `option` fields
    # in order of their start; frozen dataclasses whose fields determine the result
    runs: Callable[[Any], Sequence[Run]]
    # one run to its measurements; a function of a module, called in a process of its own
    perform: Callable[[Any], Result] | None = None
    # runs to lists of runs that are computed together, the longest first
    groups: Callable[[Sequence[Any]], Iterable[Sequence[Run]]] = lambda todo: ([run] for run in todo)
    # with `groups`, in the place of `perform`: such a list to its measurements, in order
    perform_group: Callable[[Sequence[Any]], Sequence[Result]] | None = None
    version: int = 1  # raised when a run's meaning changes; older rows then no longer count
    # by claim key. Rows of any preset may be there; leave out what they cannot answer
    findings: Callable[[Sequence[Row]], Mapping[str, Finding]] = nothing
    tables: Callable[[Sequence[Row]], Sequence[Table]] = nothing  # their names begin with the experiment's
    figures: Callable[[Sequence[Row]], Sequence[Figure]] = nothing  # so do theirs
    # further runs that depend on rows, such as all seeds at the best rate; asked until all are finished
    follow_up: Callable[[Any, Sequence[Row]], Sequence[Run]] | None = None
    prepare: Callable[[Sequence[Any]], None] = nothing  # called once before the first run, such as to read shared data
    # true for runs that are timed: one after another, before the others, with all cores
    alone: Callable[[Any], bool] = lambda run: False

    @property
    def claims(self) -> Sequence[Claim]:
        """Those of this experiment in ``experiments/claims.yaml``."""
        return all_claims().get(self.name, ())

    def results(self, directory: str | Path) -> Results:
        """The rows of this experiment in a folder of results."""
        return Results(directory, self.name, self.version)


def names() -> list[str]:
    """Names of all experiments: every file or folder of experiments/ that defines EXPERIMENT."""
    paths = [*FOLDER.glob("*.py"), *FOLDER.glob("*/__init__.py")]
    found = [path for path in paths if "\nEXPERIMENT = Experiment(" in path.read_text(encoding="utf-8")]
    return sorted((path.parent if path.stem == "__init__" else path).stem.replace("_", "-") for path in found)


def load(name: str) -> Experiment:
    """The experiment of that name."""
    experiment = import_module(f"experiments.{name.replace('-', '_')}").EXPERIMENT
    assert isinstance(experiment, Experiment)
    return experiment
