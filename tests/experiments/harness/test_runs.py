"""Runs: each once, written as it ends; failures named; interrupts, kills and two commands in one folder."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
SQUARES = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from experiments.harness import Diverged, Experiment, option

@dataclass(frozen=True)
class Options:
    seeds: int = option(8, "number of seeds")

@dataclass(frozen=True)
class Run:
    seed: int
    final: bool = False

def runs(options):
    return [Run(seed) for seed in range(options.seeds)]

def follow_up(options, rows):
    return [Run(max(row.config["seed"] for row in rows), True)] if rows else []

def perform(run):
    with Path(os.environ["STARTED"]).open("a") as file:
        file.write(f"{run.seed}\\n")
    time.sleep(float(os.environ["SECONDS"]))
    match os.environ.get("TROUBLE"), run.seed:
        case "yes", 1:
            raise Diverged("the loss is NaN")
        case "yes", 2 | 3:
            raise KeyError("column")
        case "yes", 4:
            os.kill(os.getpid(), 9)
    return {"square": run.seed**2}

EXPERIMENT = Experiment(name="squares", question="?", minutes=0, presets={"quick": Options()}, runs=runs,
                        perform=perform, follow_up=follow_up)
"""
MAIN = """
import sys
from experiments.harness.options import Where
from experiments.harness.runs import make
from squares import EXPERIMENT, Options
if __name__ == "__main__":
    failed = make(EXPERIMENT, Options(), Where(out=sys.argv[1]))
    print("\\n".join(failed), file=sys.stderr)
    sys.exit(1 if failed else 0)
"""


@pytest.fixture
def start(tmp_path):
    """Starts the command; its rows are in tmp_path/out."""
    (tmp_path / "squares.py").write_text(SQUARES)
    (tmp_path / "main.py").write_text(MAIN)
    paths = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])

    def run(seconds=0.0, **more):
        environment = os.environ | {"PYTHONPATH": paths, "STARTED": str(tmp_path / "started"), "SECONDS": str(seconds)}
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "out")],
            env=environment | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip

    return run


def rows(folder: Path) -> list[dict]:
    path = folder / "out" / "squares.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_failures_are_named_and_stop_nothing(start, tmp_path):
    command = start(TROUBLE="yes")
    out, error = command.communicate()
    assert command.returncode == 1
    assert sorted(row["config"]["seed"] for row in rows(tmp_path)) == [0, 5, 6, 7, 7]
    lines = sorted(line.replace("seed=3", "seed=2") for line in error.splitlines() if "Run(" in line)  # either is first
    assert lines == [
        "KeyError: 'column': Run(seed=2, final=False) and 1 more",
        "its process was killed 3 times, possibly out of memory: Run(seed=4, final=False)",
        "the loss is NaN: Run(seed=1, final=False)",
    ]
    assert "8 runs to do" in out
    again = start()
    out, _ = again.communicate()
    assert again.returncode == 0
    assert "4 runs to do, 4 already" in out
    assert len(rows(tmp_path)) == 9


def test_an_interrupt_keeps_finished_rows(start, tmp_path):
    command = start(seconds=1)
    until(lambda: len(rows(tmp_path)) >= 1)
    command.send_signal(signal.SIGINT)
    _, error = command.communicate()
    assert command.returncode == 130
    assert "interrupted" in error
    assert 1 <= len(rows(tmp_path)) < 9


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_time_loses_no_row_and_repeats_none(start, tmp_path, seed):
    command = start(seconds=0.2)
    until((tmp_path / "started").exists)
    time.sleep(random.Random(seed).uniform(0, 1.5))
    command.kill()
    command.communicate()
    before = rows(tmp_path)
    again = start()
    again.communicate()
    assert again.returncode == 0
    after = rows(tmp_path)
    assert after[: len(before)] == before
    assert Counter(row["id"] for row in after).most_common(1)[0][1] == 1
    assert len(after) == 9


def test_two_commands_share_the_runs(start, tmp_path):
    commands = [start(seconds=0.5), start(seconds=0.5)]
    for command in commands:
        command.communicate()
        assert command.returncode == 0
    started = Counter((tmp_path / "started").read_text().split())
    assert started == Counter(map(str, range(8))) + Counter(["7"])
    assert len(rows(tmp_path)) == 9
    assert not (tmp_path / "out" / ".squares.running").exists()
