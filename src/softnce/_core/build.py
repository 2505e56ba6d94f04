"""Compiles ``cpu.c``. The installation does it through ``hatch_build.py``; ``python -m softnce._core.build`` in place.

Needs no torch, because the environment that builds a wheel has none.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from zlib import crc32

HERE = Path(__file__).parent
SOURCES = (HERE / "cpu.c", HERE / "cpu_rows.h")
SUFFIX = ".dll" if sys.platform == "win32" else ".lib"  # no .so: Python would take it for a module


def _name() -> str:
    """The library of these sources, so that one compiled from others is never loaded; a wheel has no sources."""
    if not all(path.exists() for path in SOURCES):
        return next((path.name for path in HERE.glob(f"_cpu-*{SUFFIX}")), "")
    digest = crc32(b"".join(path.read_bytes() for path in SOURCES))
    return f"_cpu-{sysconfig.get_platform()}-{digest:08x}{SUFFIX}"


NAME = _name()
FLAGS = ["-O3", "-std=gnu99", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]


def build(quiet: bool = False) -> Path | None:
    """Compiles ``cpu.c`` beside itself with ``$CC`` or cc; None if that fails."""
    compiler = (os.environ.get("CC") or "cc").split()
    target = HERE / NAME
    fresh = HERE / f"{NAME}.{os.getpid()}"  # another process may have the old one loaded
    try:
        command = [*compiler, *FLAGS, "-shared", "-fPIC", str(HERE / "cpu.c"), "-o", str(fresh), "-lm", "-ldl"]
        subprocess.run(command, check=True, capture_output=quiet)
        fresh.replace(target)
    except (OSError, subprocess.CalledProcessError):
        fresh.unlink(missing_ok=True)
        return None
    return target


if __name__ == "__main__":
    sys.exit(None if build() else "cpu.c was not compiled; the plain path is used")
