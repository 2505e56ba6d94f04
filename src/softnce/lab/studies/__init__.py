"""Studies: the experiments of the paper and ours beyond it, each one command.

    softnce study list
    softnce study density --preset paper --out results/mine
    softnce study all --preset quick
    softnce report results/mine

A study is a list of runs. Each run that finishes is one line of ``<out>/<study>.jsonl``, written at once: an
interrupted study continues where it stopped, and runs finished by other presets or processes are not repeated.
Verdicts, figures and the page are computed from those lines alone.

**Adding a study** means adding a folder here; its name is the study's name, with underscores for hyphens. Nothing has
to be registered. The folder holds

``__init__.py``, a docstring and nothing else: its first line says what is asked; ``--help`` shows all of it.

``run.py``, what is computed; it knows nothing of figures:

    VERSION = 1             # raise it when a run's meaning changes: earlier lines then no longer count

    @dataclass(frozen=True)
    class Config(StudyConfig):          # has seeds and out; every field is an option, ranges are enforced
        lr: float = option(0.1, "learning rate", above=0)

    PRESETS = {"quick": Config(seeds=2), "paper": Config(seeds=10)}       # quick is the default

    @dataclass(frozen=True)
    class Run:                          # everything that determines one result
        lr: float
        seed: int

    def runs(config: Config) -> list[Run]:
        return [Run(config.lr, seed) for seed in range(config.seeds)]

    def perform(run: Run) -> dict[str, Any]:        # one process per core, timed; runs start in the order given
        return {"accuracy": 0.97}

Optional: ``prepare(todo)`` is called once before the first ``perform``, for example to read data that all runs share;
``follow_up(config, rows) -> list[Run]`` gives runs that depend on the first ones, such as all seeds at the learning
rate that did best; it is asked again until all runs that it gives are finished. Runs for which ``alone(run)`` is true
are done first, here, one after the other, such as timings. ``provide(todo, folder)`` writes files that the other runs
read, in a folder that is removed at the end; what it returns is their ``perform(run, provided)``'s second argument. A
study whose runs are computed together has ``execute(todo, progress) -> Iterator[Outcome]`` instead of ``perform``: in
any order, with its own times; ``progress`` is rich's, already shown.

``findings.py``, rows to frozen dataclasses of numbers (``Estimate`` and the like) and to verdicts. Rows of any preset
may be there: it selects what it needs. A claim it cannot answer is left out or "undecided":

    def claims(rows: Sequence[Row]) -> dict[str, Finding]:
        return {"small-batch-drop": Finding("−3.9 ± 0.4 points", "CIFAR-100 features, 20 seeds", "reproduced")}

``page.py``, findings to figures, tables and a few computed sentences:

    ORDER = 30              # place on the page

    def section(rows: Sequence[Row]) -> Section:
        return Section(title, summary, ["A paragraph.", Figure(...), Table(...)])

``claims.toml``, the paper's claims that it tests (omitted, like ``claims``, where there are none): ``[[claim]]`` with
``key``, ``text``, ``where`` (figure, table, equation) and ``paper`` (the paper's number).
"""

import pkgutil

from softnce.lab.experiment.study import Study


def names() -> list[str]:
    """Names of all studies."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Study:
    """The study of that name."""
    return Study(name, f"{__name__}.{name.replace('-', '_')}")


def in_order() -> list[Study]:
    """All studies in the order of the page."""
    return sorted(map(load, names()), key=lambda study: (study.order, study.name))
