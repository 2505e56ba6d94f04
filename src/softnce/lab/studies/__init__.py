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

The keys of ``claims``, and which study answers for which, are in ``softnce.lab.experiment.claims``; the page opens with
all of them. A finding is the figure that stands beside the paper's, what it was measured on, and a verdict
(reproduced, not reproduced, explained, beyond, undecided), computed from the rows as the text is: rows of a short
preset cannot decide everything, and a key may be left out.

A study may have a second stage, runs that depend on what the first ones gave, such as all seeds at the learning
rate that did best:

    def follow_up(config: Config, rows: list[Row]) -> list[Run]: ...

``execute`` may do its runs in any order, together or one by one; what it yields is saved as it comes. ``progress``
is rich's, already shown. ``softnce.lab.experiment.parallel`` does runs side by side, ``softnce.lab.report.charts`` has
the figures, ``softnce.lab.report.style`` the colours. Nothing has to be registered.
"""

import ast
import pkgutil
from importlib.util import find_spec
from pathlib import Path

from softnce.lab.experiment.study import Study


def names() -> list[str]:
    """Names of all studies."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Study:
    """The study of that name."""
    return Study(name, _package(name))


def first_line(name: str) -> str:
    """What a study asks: the first line of its docstring."""
    # Read, not imported: the list appears at once, whatever a study needs.
    spec = find_spec(f"{_package(name)}.run")
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _package(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"
