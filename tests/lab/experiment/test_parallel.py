"""Runs side by side: every one done, each on one thread, errors told, none left behind by a killed parent."""

import os
import subprocess
import sys
import time

import pytest
import torch

from softnce.lab.cores import cores
from softnce.lab.experiment.parallel import Killed, gpu_names, one_per_core


def threads_and_square(number: int) -> tuple[int, int]:
    if number < 0:
        raise ValueError(f"number: got {number}")
    return torch.get_num_threads(), number**2


@pytest.mark.slow
def test_every_run_is_done_on_one_thread():
    assert sorted(one_per_core(threads_and_square, range(5))) == [(1, n**2) for n in range(5)]
    assert list(one_per_core(threads_and_square, [])) == []


@pytest.mark.slow
def test_an_error_reaches_the_caller():
    with pytest.raises(ValueError, match="number: got -1"):
        list(one_per_core(threads_and_square, [-1, 2]))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_killed_parent_leaves_no_workers(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\n"
        "from softnce.lab.experiment.parallel import one_per_core\n"
        "def wait(path):\n"
        "    with open(f'{path}/{os.getpid()}', 'w'):\n"
        "        time.sleep(100)\n"
        "if __name__ == '__main__':\n"
        f"    list(one_per_core(wait, [{str(tmp_path)!r}] * 2))\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    try:
        workers = _until(lambda: [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()], 60)
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: not any(map(_runs, workers)), 20)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:  # a zombie has ended
        return file.read().rpartition(")")[2].split()[0] != "Z"


def _until(found, seconds):
    for _ in range(int(seconds * 10)):
        if value := found():
            return value
        time.sleep(0.1)
    pytest.fail(f"not within {seconds} s")


def survives_one_kill(place: str) -> str:
    if not os.path.exists(place):
        with open(place, "w"):
            os.kill(os.getpid(), 9)
    return place


def is_killed(number: int) -> None:
    os.kill(os.getpid(), 9)


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_done_again(tmp_path):
    places = [str(tmp_path / name) for name in "abc"]
    assert sorted(one_per_core(survives_one_kill, places)) == places


def starts_are_counted(place: str) -> str:
    with open(place, "a") as file:
        file.write("started\n")
    if place.endswith("killed") and os.path.getsize(place) < 20:
        os.kill(os.getpid(), 9)
    time.sleep(3)
    return place


@pytest.mark.slow
def test_a_killed_process_takes_no_other_run_with_it(tmp_path):
    places = [str(tmp_path / name) for name in ("killed", "steady")]
    assert sorted(one_per_core(starts_are_counted, places)) == places
    assert (tmp_path / "steady").read_text().count("started") == 1
    assert (tmp_path / "killed").read_text().count("started") == 3


@pytest.mark.slow
def test_a_run_that_is_killed_each_time_is_named():
    with pytest.raises(Killed, match=r"killed 3 times.*: 7$"):
        list(one_per_core(is_killed, [7]))


def surroundings(number: int) -> tuple[str, int]:
    time.sleep(0.2)  # so that the other process gets a run, too
    return os.environ["CUDA_VISIBLE_DEVICES"], cores()


@pytest.mark.slow
def test_each_process_has_its_own_gpu_and_share_of_the_cores():
    each = max(1, cores() // 2)
    assert set(one_per_core(surroundings, range(8), gpus=["0", "3"])) == {("0", each), ("3", each)}


def test_gpus_are_those_that_are_visible(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_names() == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,GPU-7")
    assert gpu_names() == ["4", "6", "GPU-7"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu_names() == []


@pytest.mark.slow
def test_runs_are_taken_when_a_process_is_free():
    asked = []

    def runs():
        for number in range(100):
            asked.append(number)
            yield number

    results = one_per_core(threads_and_square, runs())
    next(results)
    assert len(asked) <= cores()
    results.close()
