"""Compiles ``cpu.c``. The installation does it through ``hatch_build.py``; ``python -m softnce._core.build`` in place.

Needs no torch, because the environment that builds a wheel has none.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
NAME = f"_cpu-{sysconfig.get_platform()}" + (".dll" if sys.platform == "win32" else ".so")
FLAGS = ["-O3", "-std=gnu99", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]


def build(quiet: bool = False) -> Path | None:
    """Compiles ``cpu.c`` beside itself with ``$CC`` or cc; None if that fails."""
    compiler = (os.environ.get("CC") or "cc").split()
    target = HERE / NAME
    fresh = HERE / f"{NAME}.{os.getpid()}"  # another process may have the old one loaded
    try:
        command = [*compiler, *FLAGS, "-shared", "-fPIC", str(HERE / "cpu.c"), "-o", str(fresh), "-lm", "-lpthread"]
        subprocess.run(command, check=True, capture_output=quiet)
        fresh.replace(target)
    except (OSError, subprocess.CalledProcessError):
        fresh.unlink(missing_ok=True)
        return None
    return target


if __name__ == "__main__":
    sys.exit(None if build() else "cpu.c was not compiled; the plain path is used")
