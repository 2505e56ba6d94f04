"""Studies: the experiments of the paper and ours beyond it, each one command.

    softnce study list
    softnce study density --preset paper --out results/mine
    softnce study all --preset quick
    softnce report results/mine

A study is a list of runs. Each run that finishes is one line of ``<out>/<study>.jsonl``, written at once; a study
that was interrupted goes on where it stopped, and runs that other presets or processes finished are not done
again. Figures and the page are made from those lines alone.

**Adding a study** means adding one module to this package; its name is the study's name, with hyphens for
underscores. It holds

    \"\"\"First line: what is asked.  The rest, shown by --help: how, and what to look for.\"\"\"

    ORDER = 30              # place on the page
    VERSION = 1             # raise it when a run's meaning changes: earlier lines then no longer count

    @dataclass(frozen=True)
    class Config(StudyConfig):          # has seeds and out; every field is an option
        lr: float = option(0.1, "learning rate")

    PRESETS = {"quick": Config(seeds=2), "paper": Config(seeds=10)}       # quick is the default

    @dataclass(frozen=True)
    class Run:                          # everything that determines one result
        lr: float
        seed: int

    def runs(config: Config) -> list[Run]:
        return [Run(config.lr, seed) for seed in range(config.seeds)]

    def execute(todo: list[Run], progress: Progress) -> Iterator[Outcome]:
        yield from one_per_core(partial(timed, train), todo)        # train(run) -> {"accuracy": 0.97}

    def section(rows: list[Row]) -> Section:        # rows of any preset may be there: select what is needed
        return Section(title, summary, ["A paragraph.", Figure(...), Table(...)])

    def claims(rows: list[Row]) -> dict[str, Finding]:      # optional: what was found about the paper's claims
        return {"small-batch-drop": Finding("−3.9 ± 0.4 points", "CIFAR-100 features, 20 seeds", "reproduced")}

The keys of ``claims``, and which study answers for which, are in ``softnce.lab.report.claims``; the page opens with
all of them. A finding is the figure that stands beside the paper's, what it was measured on, and a verdict
(reproduced, not reproduced, explained, beyond, undecided), computed from the rows as the text is: rows of a short
preset cannot decide everything, and a key may be left out.

A study may have a second stage, runs that depend on what the first ones gave, such as all seeds at the learning
rate that did best:

    def follow_up(config: Config, rows: list[Row]) -> list[Run]: ...

``execute`` may do its runs in any order, together or one by one; what it yields is saved as it comes. ``progress``
is rich's, already shown. ``softnce.lab.parallel`` does runs side by side, ``softnce.lab.report.charts`` has the
figures, ``softnce.lab.report.style`` the colours. Nothing has to be registered.
"""

import ast
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from softnce.lab.configuration import from_args, option, to_mapping
from softnce.lab.report import DEFAULT_OUT
from softnce.lab.results import Results, Row, damage_on_stderr

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.report.claims import Finding
    from softnce.lab.report.page import Section


@dataclass(frozen=True)
class StudyConfig:
    """What every study can be asked."""

    seeds: int = option(3, "number of seeds; the runs of seeds 0, 1, … are made")
    out: str = option(DEFAULT_OUT, "directory for results and figures; studies of one page share it")

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds: got {self.seeds}, need at least 1")
        if not self.out:
            raise ValueError("out: got nothing, need a directory")


@dataclass(frozen=True)
class Outcome:
    """A finished run: the dataclass that described it, what was measured, and its wall time or share of it."""

    run: Any
    result: Mapping[str, Any]
    seconds: float


def timed(perform: Callable[[Any], Mapping[str, Any]], run: Any) -> Outcome:
    """A run and what ``perform(run)`` measures, with its wall time."""
    started = time.perf_counter()
    return Outcome(run, perform(run), time.perf_counter() - started)


class StudyModule(Protocol):
    """What a module of this package has."""

    __doc__: str | None
    ORDER: int
    VERSION: int
    Config: type[StudyConfig]
    PRESETS: Mapping[str, StudyConfig]

    @staticmethod
    def runs(config: Any) -> Sequence[Any]: ...

    @staticmethod
    def execute(todo: Sequence[Any], progress: "Progress") -> Iterator[Outcome]: ...

    @staticmethod
    def section(rows: Sequence[Row]) -> "Section": ...


@dataclass(frozen=True)
class Study:
    """A study by name."""

    name: str
    module: StudyModule

    def results(self, directory: str | Path) -> Results:
        return Results(directory, self.name, self.module.VERSION)

    def claims(self, rows: Sequence[Row]) -> "dict[str, Finding]":
        """What the rows say about the paper's claims; nothing where the module has no ``claims``."""
        from softnce.lab.report.claims import checked

        answer = getattr(self.module, "claims", None)
        return checked(self.name, answer(rows)) if answer else {}

    def run(self, config: StudyConfig) -> None:
        """Do the runs that have no result yet; each is saved when it is finished."""
        results = self.results(config.out)
        self._run(config, list(dict.fromkeys(self.module.runs(config))), results)
        follow_up = getattr(self.module, "follow_up", None)
        if follow_up is not None:
            self._run(config, list(dict.fromkeys(follow_up(config, results.rows()))), results)

    def _run(self, config: StudyConfig, runs: list[Any], results: Results) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        todo = [run for run in runs if not results.finished(to_mapping(run))]
        print(f"{self.name}: {len(todo)} runs to do, {len(runs) - len(todo)} already in {results.path}")
        if not todo:
            return
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        finished = 0
        with Progress(*columns) as progress:
            saved = progress.add_task("runs finished", total=len(todo))
            try:
                for outcome in self.module.execute(todo, progress):
                    results.append(to_mapping(outcome.run), outcome.result, outcome.seconds)
                    finished += 1
                    progress.advance(saved)
            except KeyboardInterrupt:
                progress.stop()
                print(
                    f"softnce study {self.name}: interrupted; {finished} runs were finished and kept, the same command "
                    "goes on with the others",
                    file=sys.stderr,
                )
                raise SystemExit(130) from None


def names() -> list[str]:
    """Names of all studies."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Study:
    """The study of that name, its module imported."""
    return Study(name, cast(StudyModule, import_module(_module(name))))


def main(argv: list[str]) -> None:
    """The command ``softnce study``."""
    if not argv or argv[0] in ("list", "-h", "--help"):
        print("usage: softnce study NAME [--preset quick|paper] [--seeds N] [--out DIR] [--option value …]\n\nstudies:")
        print("\n".join(f"  {name:<14}{_first_line(name)}" for name in names()))
        print("\nsoftnce study NAME --help explains a study and its options; softnce study all does every one of them.")
        return
    name, *options = argv
    if name == "all":
        _run_all(options)
    elif name in names():
        print(f"softnce report {_run_one(load(name), options)} makes the page")
    else:
        print(f"softnce study: unknown study {name!r}; the studies are {', '.join(names())}", file=sys.stderr)
        raise SystemExit(2)


def _run_one(study: Study, options: list[str]) -> str:
    """Run a study as the command line says; returns where its results are."""
    prog, module = f"softnce study {study.name}", study.module
    config = from_args(module.Config, options, prog=prog, description=module.__doc__ or "", presets=module.PRESETS)
    try:
        with damage_on_stderr():
            study.run(config)
    except ValueError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    return config.out


def _run_all(options: list[str]) -> None:
    """Every study in the order of the page, with the options they share; one that cannot run does not stop the rest."""
    missing, out = [], DEFAULT_OUT
    for study in sorted(map(load, names()), key=lambda study: study.module.ORDER):
        config = from_args(
            StudyConfig, options, prog="softnce study all", description="All studies, one after another, to one page.",
            presets=dict.fromkeys(study.module.PRESETS, StudyConfig()),
        )  # fmt: skip
        out = config.out
        try:
            _run_one(study, options)
        except SystemExit as stop:
            if stop.code != 2:
                raise
            missing.append(study.name)
    print(f"softnce report {out} makes the page")
    if missing:
        print(f"softnce study all: could not run {', '.join(missing)}; see above", file=sys.stderr)
        raise SystemExit(2)


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


def _first_line(name: str) -> str:
    # Read, not imported: the list appears at once, whatever a study needs.
    spec = find_spec(_module(name))
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
