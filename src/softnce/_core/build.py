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
DIGEST = crc32(b"".join(path.read_bytes() for path in SOURCES))
"""In the name, so that a library compiled from other sources, as after an update of a checkout, is never loaded."""
NAME = f"_cpu-{sysconfig.get_platform()}-{DIGEST:08x}" + (
    ".dll" if sys.platform == "win32" else ".lib"
)  # no .so: Python would take it for a module
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
