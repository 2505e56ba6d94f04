"""Two processes on one folder share a study's runs; a run that was lost is done again."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from softnce.lab import studies

RUN = """
import os, time
from dataclasses import dataclass
from pathlib import Path

from softnce.lab.experiment.study import StudyConfig

VERSION = 1
Config = StudyConfig
PRESETS = {"quick": Config(seeds=16)}


@dataclass(frozen=True)
class Run:
    seed: int


def runs(config):
    return [Run(seed) for seed in range(config.seeds)]


def perform(run):
    with Path(os.environ["STARTED"]).open("a") as file:
        file.write(f"{run.seed} {os.getpid()}\\n")
    time.sleep(float(os.environ["SECONDS"]))
    return {"square": run.seed**2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of studies with one in it."""
    (tmp_path / "studies" / "shared").mkdir(parents=True)
    (tmp_path / "studies" / "shared" / "__init__.py").write_text('"""Squares."""')
    (tmp_path / "studies" / "shared" / "run.py").write_text(RUN)
    # new processes import the package softnce, where they look for the study
    (tmp_path / "sitecustomize.py").write_text(
        f"from softnce.lab import studies\nstudies.__path__.append({str(tmp_path / 'studies')!r})\n"
    )
    return tmp_path


def surroundings(folder: Path, seconds: float) -> dict[str, str]:
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": paths, "STARTED": str(folder / "started"), "SECONDS": str(seconds)}


def start(folder: Path, seconds: float) -> subprocess.Popen:
    command = [sys.executable, "-m", "softnce", "study", "shared", "--out", str(folder / "out")]
    return subprocess.Popen(
        command, env=surroundings(folder, seconds), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def squares(folder: Path) -> list[tuple[int, int]]:
    lines = map(json.loads, (folder / "out" / "shared.jsonl").read_text().splitlines())
    return sorted((line["config"]["seed"], line["result"]["square"]) for line in lines)


def started(folder: Path) -> list[str]:
    return (folder / "started").read_text().splitlines() if (folder / "started").is_file() else []


def until(condition, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.mark.slow
def test_runs_that_need_files_or_quiet(folder):
    """Those that must be alone come first, in the process itself; the others find what was written for them."""
    with (folder / "studies" / "shared" / "run.py").open("a") as file:
        file.write(PROVIDING)
    process = start(folder, 0)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    lines = list(map(json.loads, (folder / "out" / "shared.jsonl").read_text().splitlines()))
    assert [line["config"]["seed"] for line in lines[:2]] == [4, 9]
    assert {line["result"]["process"] == process.pid for line in lines[:2]} == {True}
    assert {line["result"]["process"] == process.pid for line in lines[2:]} == {False}
    assert [line["result"]["square"] for line in lines[2:]] == [line["config"]["seed"] ** 2 for line in lines[2:]]
    left = sorted(path.name for path in (folder / "out").iterdir())
    assert left == [".shared.running", "shared.jsonl", "shared.jsonl.lock"]


PROVIDING = """
def alone(run):
    return run.seed in (4, 9)


def provide(todo, folder):
    for run in todo:
        (folder / str(run.seed)).write_text(str(run.seed**2))
    return folder


def perform(run, provided=None):
    found = {} if provided is None else {"square": int((provided / str(run.seed)).read_text())}
    return {"process": os.getpid()} | found
"""


@pytest.mark.parametrize("name", studies.names())
def test_ray_does_every_study_but_those_that_compute_runs_together(name, tmp_path):
    study = studies.load(name)
    assert hasattr(study.run, "execute") == (name == "density")
    if hasattr(study.run, "execute"):
        with pytest.raises(ValueError, match=f"engine: {name} computes its runs together on one machine"):
            study.make(replace(study.run.PRESETS["quick"], engine="ray", out=str(tmp_path)))


WANTED = [(seed, seed**2) for seed in range(16)]


@pytest.mark.slow
def test_two_processes_share_the_runs(folder):
    both = [start(folder, 0.3), start(folder, 0.3)]
    for process in both:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    assert squares(folder) == WANTED
    assert set(Counter(line.split()[0] for line in started(folder)).values()) == {1}  # none was done twice
    assert list((folder / "out" / ".shared.running").iterdir()) == []


@pytest.mark.slow
def test_runs_of_a_killed_process_are_done_by_the_other(folder):
    first = start(folder, 100)
    until(lambda: len(started(folder)) > 0)
    first.kill()
    first.communicate()
    taken = len(started(folder))
    second = start(folder, 0)
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    assert squares(folder) == WANTED
    assert len(started(folder)) == 16 + taken


ON_A_CLUSTER = """
import os, signal, sys, threading, time
from ray.cluster_utils import Cluster
from softnce.cli import main

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
second = cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()


def started(number):
    while not os.path.exists(os.environ["STARTED"]) or len(lines := open(os.environ["STARTED"]).readlines()) < number:
        time.sleep(0.05)
    return lines


def sabotage():
    os.kill(int(started(5)[-1].split()[1]), signal.SIGKILL)
    started(9)
    cluster.remove_node(second)


saboteur = threading.Thread(target=sabotage)
saboteur.start()
main(["study", "shared", "--engine", "ray", "--address", cluster.address, "--out", sys.argv[1]])
saboteur.join()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_cluster_loses_and_repeats_nothing(folder):
    """16 runs on two nodes of Ray; one worker is killed and one node removed. The results are those of processes."""
    pytest.importorskip("ray", reason="needs softnce[cluster]")
    ended = subprocess.run(
        [sys.executable, "-c", ON_A_CLUSTER, str(folder / "out")],
        env=surroundings(folder, 1) | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    by_ray = squares(folder)
    assert len(by_ray) == 16
    assert len(started(folder)) > 16, "no run was interrupted"
    (folder / "out" / "shared.jsonl").unlink()
    processes = start(folder, 0)
    output, _ = processes.communicate(timeout=300)
    assert processes.returncode == 0, output
    assert by_ray == squares(folder) == WANTED
