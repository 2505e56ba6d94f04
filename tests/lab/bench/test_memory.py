"""Memory of the benchmark's cases, by the trace and by the process."""

import subprocess
import sys

import pytest

from softnce.lab.bench.cases import CASES, Inputs, Size
from softnce.lab.bench.memory import own_process
from softnce.lab.experiment.memory import peak_of


def test_ours_never_holds_rows_by_candidates_by_classes() -> None:
    size = Size(64, 100)
    published, ours = (
        peak_of(CASES[name].step(Inputs(size))) for name in ("published N×M×K formulation", "softnce, MixUp pairs")
    )
    assert published >= 4 * 64 * 64 * 100
    assert ours < 4 * (64 * 100 + 6 * 64 * 64)


@pytest.mark.slow
def test_agrees_with_resident_memory() -> None:
    """On a step so large that the process's own fluctuations do not matter."""
    program = """
from softnce.lab.bench.cases import CASES, Inputs, Size
from softnce.lab.experiment.memory import peak_of
case = CASES["published N×M×K formulation"]
case.step(Inputs(Size(8, 8)))()
inputs = Inputs(Size(256, 600))
step = case.step(inputs)
inputs.logits, inputs.probabilities
def highest():
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
before = highest()
step()
print(highest() - before, peak_of(step))
"""
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    resident, traced = map(int, run.stdout.split())
    assert traced == pytest.approx(resident, rel=0.05)


@pytest.mark.slow
def test_own_process_gives_the_same_figure() -> None:
    name, size = "softnce, MixUp pairs", Size(32, 50)
    with own_process(threads=1) as peak:
        assert peak(name, size) == peak_of(CASES[name].step(Inputs(size)))
