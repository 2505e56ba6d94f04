import re
from dataclasses import dataclass, field

import pytest

from experiments.__main__ import main
from experiments.harness.experiment import names
from experiments.harness.options import option, parse


@dataclass(frozen=True)
class Grid:
    lrs: tuple[float, ...] = option((0.1, 0.2), "learning rates", above=0, fewest=1)


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds", least=1)
    most: float | None = option(None, "a bound")
    grid: Grid = field(default_factory=Grid)

    def __post_init__(self):
        if self.seeds == 7:
            raise ValueError("seeds: 7 is unlucky")


PRESETS = {"quick": Options(seeds=2), "paper": Options(grid=Grid((1.0,)))}


def read(*argv):
    return parse(argv, prog="p", description="d", presets=PRESETS)


def test_presets_are_the_defaults():
    assert read()[1] == Options(seeds=2)
    where, options = read("--preset", "paper", "--seeds=5", "--out", "x")
    assert options == Options(seeds=5, grid=Grid((1.0,)))
    assert (where.preset, where.out) == ("paper", "x")
    assert read("--grid.lrs", "[3, 4]", "--most", "2")[1] == Options(2, 2.0, Grid((3.0, 4.0)))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--preset", "full"], "preset: got 'full', need one of quick, paper"),
        (["--seeds", "0"], "seeds: got 0, need at least 1"),
        (["--seeds", "x"], "seeds.*x"),
        (["--seeds", "7"], "7 is unlucky"),
        (["--grid.lrs", "[0.1, -1]"], "grid.lrs: got -1, need more than 0"),
        (["--grid.lrs", "[]"], "grid.lrs: got 0 values, need at least 1"),
        (["--sed", "1"], "--sed"),
        (["seven"], "seven"),
        (["--engine", "slurm"], "engine.*slurm"),
    ],
)
def test_errors_are_one_line(argv, words):
    with pytest.raises(ValueError, match=words) as error:
        read(*argv)
    assert "\n" not in str(error.value)


def test_help_has_no_python_types(capsys):
    with pytest.raises(SystemExit, match="0"):
        read("--help")
    shown = capsys.readouterr().out
    assert "number of seeds (default: 2)" in " ".join(shown.split())
    assert not re.search(r"type:|<class|Literal|tuple\[|float \| None", shown)


def test_commands(capsys):
    assert main(["help"]) == 0
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in names())
    assert max(map(len, listed.splitlines())) <= 100
    for argv in (
        "lits",
        "list digits",
        "run",
        "run densty",
        "run digits densty",
        "run density --seeds 0",
        "report a b",
    ):
        with pytest.raises(SystemExit) as ended:
            main(argv.split())
        assert ended.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["run", "digits", "dynamics", "--seeds", "1"]) == 2, "an option of one experiment"
    assert len(capsys.readouterr().err.splitlines()) == 2
