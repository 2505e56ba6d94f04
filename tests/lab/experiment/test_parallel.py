"""Runs side by side: every one done, each on one thread, errors told, none left behind by a killed parent."""

import os
import subprocess
import sys
import time

import pytest
import torch

from softnce.lab.experiment.parallel import one_per_core


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
