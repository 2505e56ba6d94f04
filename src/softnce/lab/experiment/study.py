"""What a study is: a configuration, a list of runs, and results saved as they arrive."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from softnce.lab.configuration import check_ranges, option, to_mapping
from softnce.lab.diverged import Diverged
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Claim, Finding, checked, read
from softnce.lab.experiment.cluster import on_cluster
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.reservations import shared
from softnce.lab.experiment.results import Results, Row, run_id

if TYPE_CHECKING:
    from rich.progress import Progress

DEFAULT_OUT = "results/reproduce"
Execute = Callable[[Iterator[Any]], Iterator["Outcome"]]


@dataclass(frozen=True)
class StudyConfig:
    """Options of every study. Ranges are checked as the options declare them."""

    seeds: int = option(3, "number of seeds: 0, 1, …")
    out: str = option(DEFAULT_OUT, "folder for results and figures; studies of one page share it")
    engine: Literal["processes", "ray"] = option("processes", "one run per core of this machine, or of a Ray cluster")
    address: str = option("", "of the Ray cluster; auto: the one of this machine; empty: that, or a new one")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.seeds < 1:  # also where a study declares them anew
            raise ValueError(f"seeds: got {self.seeds}, need at least 1")
        if not self.out:
            raise ValueError("out: got nothing, need a folder")


@dataclass(frozen=True)
class Outcome:
    """A finished run: the dataclass that described it, what was measured, and its wall time or share of it."""

    run: Any
    result: Mapping[str, Any]
    seconds: float


def timed(perform: Callable[[Any], Mapping[str, Any]], run: Any) -> Outcome:
    """A run and what ``perform(run)`` measures, with its wall time; an error of divergence names the run."""
    started = time.perf_counter()
    try:
        return Outcome(run, perform(run), time.perf_counter() - started)
    except Diverged as error:
        raise Diverged(f"{error}: {run}") from None


class Study:
    """A study by name: a folder of modules, each imported when it is asked for; see :mod:`softnce.lab.studies`.

    Args:
        name: as on the command line, with hyphens.
        package: dotted name of its folder.
    """

    def __init__(self, name: str, package: str) -> None:
        self.name = name
        self.package = package

    def __repr__(self) -> str:
        return f"Study({self.name!r})"

    @property
    def description(self) -> str:
        """What is asked, and how: the folder's docstring, which imports nothing."""
        return import_module(self.package).__doc__ or ""

    @property
    def run(self) -> ModuleType:
        """Configuration, presets, runs and how they are executed."""
        return import_module(f"{self.package}.run")

    @property
    def findings(self) -> ModuleType:
        """Rows to numbers and verdicts."""
        return import_module(f"{self.package}.findings")

    @property
    def page(self) -> ModuleType:
        """Findings to figures, tables and text."""
        return import_module(f"{self.package}.page")

    @property
    def order(self) -> int:
        """Its place on the page."""
        return int(self.page.ORDER)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The paper's claims that it tests."""
        return read(Path(str(import_module(self.package).__file__)).with_name("claims.toml"), self.name)

    def results(self, directory: str | Path) -> Results:
        return Results(directory, self.name, self.run.VERSION)

    def judge(self, rows: Sequence[Row]) -> dict[str, Finding]:
        """What the rows say about the claims, by their keys."""
        return checked(self.name, self.claims, self.findings.claims(rows)) if self.claims else {}

    def advise(self, rows: Sequence[Row]) -> list[Choice]:
        """Which loss to use when, as far as the rows say."""
        advice = getattr(self.findings, "choices", None)
        return advice(rows) if advice else []

    def make(self, config: StudyConfig) -> None:
        """Do the runs that have no result yet; each is saved when it is finished.

        Several processes can do this in one folder at the same time: they share the runs, and all end when all runs are
        finished.
        """
        if config.engine == "ray" and hasattr(self.run, "execute"):
            raise ValueError(f"engine: {self.name} computes its runs together on one machine: use --engine processes")
        results = self.results(config.out)
        self._run(list(dict.fromkeys(self.run.runs(config))), results, config)
        follow_up = getattr(self.run, "follow_up", None)
        if follow_up is not None:
            self._run(list(dict.fromkeys(follow_up(config, results.rows()))), results, config)
            while more := [run for run in follow_up(config, results.rows()) if not results.finished(to_mapping(run))]:
                self._run(list(dict.fromkeys(more)), results, config)

    def _run(self, runs: list[Any], results: Results, config: StudyConfig) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        todo = [run for run in runs if not self._finished(run, results)]
        print(f"{self.name}: {len(todo)} runs to do, {len(runs) - len(todo)} already in {results.path}")
        if not todo:
            return
        if hasattr(self.run, "prepare"):
            self.run.prepare(todo)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        finished = 0
        with Progress(*columns) as progress:
            saved = progress.add_task("runs finished", total=len(todo))
            try:
                for part, execute in self._ways(todo, progress, results, config):
                    outcomes: Iterator[Outcome] = shared(
                        part,
                        execute,
                        folder=results.path.with_name(f".{self.name}.running"),
                        name=lambda run: run_id(self.name, self.run.VERSION, to_mapping(run)),
                        finished=partial(self._finished, results=results),
                    )
                    for outcome in outcomes:
                        results.append(to_mapping(outcome.run), outcome.result, outcome.seconds)
                        finished += 1
                        progress.advance(saved)
            except KeyboardInterrupt:
                progress.stop()
                print(
                    f"softnce study {self.name}: interrupted; {finished} runs were finished and saved; to continue, "
                    "run the same command again",
                    file=sys.stderr,
                )
                raise SystemExit(130) from None

    def _finished(self, run: Any, results: Results) -> bool:
        return results.finished(to_mapping(run))

    def _ways(
        self, todo: list[Any], progress: "Progress", results: Results, config: StudyConfig
    ) -> Iterator[tuple[list[Any], Execute]]:
        """Runs, and how to do them: the study's own way; or those ``alone`` here, then the others side by side."""
        if hasattr(self.run, "execute"):
            yield todo, lambda taken: self.run.execute(together, progress) if (together := list(taken)) else iter(())
            return
        perform = self.run.perform
        is_alone = getattr(self.run, "alone", lambda run: False)
        if alone := [run for run in todo if is_alone(run)]:
            yield alone, partial(map, partial(timed, perform))
        if others := [run for run in todo if not is_alone(run)]:
            with ExitStack() as stack:
                if hasattr(self.run, "provide"):  # beside the results, where all nodes of a cluster find it
                    results.path.parent.mkdir(parents=True, exist_ok=True)
                    folder = TemporaryDirectory(dir=results.path.parent, prefix=f".{self.name}.")
                    perform = partial(perform, provided=self.run.provide(others, Path(stack.enter_context(folder))))
                if config.engine == "ray":
                    yield others, partial(on_cluster, partial(timed, perform), address=config.address)
                else:
                    yield others, partial(one_per_core, partial(timed, perform))
