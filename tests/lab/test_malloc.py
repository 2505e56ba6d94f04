"""What a step frees is there for the next, without new pages from the system."""

import ctypes
import subprocess
import sys

import pytest

has_glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")
STEPS = """
import resource, sys
from softnce.lab.malloc import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def step():
    return len(b"x" * 2**26)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(how: str) -> int:
    """That ten steps ask the system for."""
    return int(subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, check=True).stdout)


@pytest.mark.skipif(not has_glibc, reason="for glibc's malloc")
def test_a_step_asks_for_no_pages_again():
    assert pages("kept") < pages("returned") / 100
