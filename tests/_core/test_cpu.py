"""The compiled rows against the plain path: same values, same gradients, errors of the same size."""

import os
import pathlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from core_cases import SUMS, Rows, case, reference, run, simple_call, upstream_of, value_and_gradient

from softnce._core import autograd, cpu

pytestmark = pytest.mark.skipif(cpu.library is None, reason="cpu.c was not compiled")
CASES = int(os.environ.get("SOFTNCE_CASES", "400"))
"""Cases for each floating point type; the whole fuzz is SOFTNCE_CASES=20000."""


def compiled_path(_, *arguments):
    return value_and_gradient(run, *arguments)


def plain(monkeypatch, *arguments):
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "can_run", lambda *_: False)
        return value_and_gradient(run, *arguments)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_both_paths_agree(monkeypatch, dtype: torch.dtype, tolerance: float) -> None:
    for seed in range(CASES):
        name, call, logits = case(seed, 70, dtype)
        given = monkeypatch, name, call, logits, upstream_of(call, logits)
        torch.testing.assert_close(
            compiled_path(*given), plain(*given), rtol=tolerance, atol=tolerance, msg=f"case {seed}"
        )


@pytest.mark.parametrize("name", SUMS)
def test_error_is_at_most_twice_that_of_plain_torch(monkeypatch, name: str) -> None:
    errors = torch.zeros(2, 2)
    for seed in range(300):
        kind, call, logits = case(seed, 40)
        if kind != name or not logits.isfinite().all():
            continue
        upstream = upstream_of(call, logits)
        exact = value_and_gradient(reference, name, call, logits.double(), upstream.double())
        for total, path in zip(errors, (compiled_path, plain), strict=True):
            found = path(monkeypatch, name, call, logits, upstream)
            total += torch.tensor(
                [(a - b).abs().mean() / (1 + b.abs().mean()) for a, b in zip(found, exact, strict=True)]
            )
    assert (errors[0] <= 2 * errors[1]).all(), errors


def test_threads_change_nothing() -> None:
    before = torch.get_num_threads()
    x = torch.randn(600, 500)
    rows = Rows(torch.randint(500, (600, 2)), torch.rand(600, 2))
    for name in SUMS:
        found = []
        for threads in (1, 4):
            torch.set_num_threads(threads)
            found.append(value_and_gradient(run, name, simple_call(name, rows, 500) | {"reduced": True}, x))
        torch.set_num_threads(before)
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process")  # Python warns of forks beside threads; this test is about them
def test_a_forked_process_has_no_threads_to_wait_for() -> None:
    script = """
import os, torch
from softnce._core import autograd
class Rows:
    index, weight, smoothing, smoothing_dist, mask = torch.zeros(600, 1).long(), None, 0.1, None, None
torch.set_num_threads(3)
x = torch.randn(600, 1000)
before = autograd.counted(x, Rows)
if os.fork() == 0:
    os._exit(0 if torch.equal(autograd.counted(x, Rows), before) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60).returncode == 0


def test_many_threads_of_a_program_may_call_at_once() -> None:
    x, rows = torch.randn(500, 800), Rows(torch.zeros(500, 1, dtype=torch.long), None, 0.1)
    wanted = autograd.counted(x, rows)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, wanted) for found in pool.map(lambda _: autograd.counted(x, rows), range(40)))


@pytest.mark.parametrize("name", ["own", "exclude", "candidates", "place"])
def test_errors_name_the_argument_and_the_row(name: str) -> None:
    good, bad = Rows(torch.tensor([[0], [1]]), None), Rows(torch.tensor([[0], [9]]), None)
    more = {
        "own": {"counts": torch.ones(4).double(), "own": bad},
        "exclude": {"counts": torch.ones(4).double(), "exclude": torch.tensor([[0], [4]])},
        "candidates": {"candidates": bad},
        "place": {"candidates": good, "own": torch.tensor([0, 2])},
    }[name]
    with pytest.raises(ValueError, match=r"(own|exclude|candidates) must be .* row 1"):
        run("expected" if "counts" in more else "soft_target", {"targets": good} | more, torch.randn(2, 4))


@pytest.mark.parametrize("seed", range(20))
def test_recognised_rows_are_the_same_rows(seed: int) -> None:
    torch.manual_seed(seed)
    n, classes = 40, int(torch.randint(5, 60, ()))
    mass = [0.0, 0.1][seed % 2]
    a, b = (torch.eye(classes)[torch.randint(classes, (n,))] for _ in range(2))
    share = torch.rand(n, 1) if seed % 4 < 2 else torch.ones(n, 1)
    dense = (share * a + (1 - share) * b) * (1 - mass) + mass / classes
    index, weight, smoothing = cpu.recognise(dense, 2)
    assert (weight is None) == (seed % 4 >= 2)
    torch.testing.assert_close(Rows(index, weight, smoothing).dense(classes), dense.double(), rtol=0, atol=1e-6)


def test_a_teachers_rows_are_not_recognised() -> None:
    assert cpu.recognise(torch.randn(30, 40).softmax(1), 2) is None
    rows = torch.eye(5)[[0, 1, 2]]
    for wrong in (-0.1, torch.nan):
        rows[2, 1] = wrong
        assert cpu.recognise(rows, 2) is None


@pytest.mark.slow
def test_address_sanitizer_finds_nothing(tmp_path: pathlib.Path) -> None:
    driver = pathlib.Path(__file__).with_name("sanitizer_driver.c")
    command = ["cc", "-g", "-O1", "-std=gnu99", "-fopenmp", "-fsanitize=address,undefined", str(driver)]
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    built = subprocess.run([*command, "-o", str(tmp_path / "driver"), "-lm", "-ldl"], capture_output=True)
    if built.returncode:
        pytest.skip("no AddressSanitizer")
    done = subprocess.run([str(tmp_path / "driver")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "runtime error" not in done.stderr
