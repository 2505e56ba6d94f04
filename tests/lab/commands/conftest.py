"""Studies for tests: folders beside the real ones, nothing registered."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from softnce.lab import studies
from softnce.lab.experiment.study import Study

RUN = """
from dataclasses import dataclass

from softnce.lab.configuration import option
from softnce.lab.experiment.study import Outcome, StudyConfig

VERSION = 1
computed = []
stop_before = None


@dataclass(frozen=True)
class Config(StudyConfig):
    power: int = option(2, "exponent, in 100 % of the cases", least=0)


PRESETS = {"quick": Config(seeds=3), "paper": Config(seeds=6)}


@dataclass(frozen=True)
class Run:
    power: int
    seed: int


def runs(config):
    return [Run(config.power, seed) for seed in range(config.seeds)]


def execute(todo, progress):
    for run in todo:
        if run.seed == stop_before:
            raise KeyboardInterrupt
        computed.append(run.seed)
        yield Outcome(run, {"value": run.seed**run.power}, 0.5)
"""
FINDINGS = """
from softnce.lab.experiment.claims import Finding

found = {}


def claims(rows):
    return found
"""
PAGE = """
from softnce.lab.report.charts import Figure, Level, Line, Panel
from softnce.lab.report.page import Section, Table

ORDER = 5


def section(rows):
    x, y = [row.config["seed"] for row in rows], [row.result["value"] for row in rows]
    marks = [Line.of_loss("nll", x, y), Level("one", 1.0)]
    figure = Figure("squares", "Squares.", [Panel("all of them", "seed", "square", marks)])
    blocks = ["A </script> paragraph.", figure, None, Table(["n"], [["1"]], "t")]
    return Section("Squares of NAME", f"They add up to {sum(y)}.", blocks, ["By hand."])
"""
CLAIMS = """
[[claim]]
key = "NAME-squares"
text = "Squares grow."
where = "Table 0"
paper = "9"
"""
FILES = {
    "__init__.py": '"""How large are squares? A study for tests.\n\nThe second paragraph explains.\n"""\n',
    "run.py": RUN,
    "findings.py": FINDINGS,
    "page.py": PAGE,
    "claims.toml": CLAIMS,
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Study]]:
    """Writes the folder of a study and returns it; keywords replace whole files by their stem."""
    package = tmp_path / "more"
    monkeypatch.setattr(studies, "__path__", [*studies.__path__, str(package)])
    names = []

    def write(name: str, **changes: str) -> Study:
        names.append(f"softnce.lab.studies.{name}")
        (package / name).mkdir(parents=True)
        for file, text in FILES.items():
            (package / name / file).write_text(changes.get(Path(file).stem, text).replace("NAME", name))
        return studies.load(name)

    yield write
    for module in [m for m in sys.modules if m.startswith(tuple(names))]:
        del sys.modules[module]
