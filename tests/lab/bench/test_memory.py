"""The trace counts what lives at the peak, no more and no less."""

import subprocess
import sys

import pytest
import torch

from softnce.lab.bench.cases import CASES, Inputs, Size
from softnce.lab.bench.memory import OwnProcess, peak_of

MB = 1_000_000


def test_counts_what_lives_together() -> None:
    def step() -> None:
        a = torch.empty(MB, dtype=torch.uint8)
        b = torch.empty(2 * MB, dtype=torch.uint8)
        del b
        c = torch.empty(MB, dtype=torch.uint8)
        del a, c

    assert peak_of(step) == 3 * MB


def test_counts_gradients_but_not_inputs() -> None:
    x = torch.randn(MB // 4, requires_grad=True)

    def step() -> None:
        x.exp().sum().backward()
        x.grad = None

    assert 2 * MB <= peak_of(step) < 2 * MB + 1000  # what exp keeps and the gradient


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
from softnce.lab.bench.memory import peak_of
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
    with OwnProcess(threads=1) as process:
        assert process.peak(name, size) == peak_of(CASES[name].step(Inputs(size)))
