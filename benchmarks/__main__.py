"""``python -m benchmarks``: time of a step of each loss as a multiple of ``F.cross_entropy`` on the same targets.

Both are run in turns in one process; the table has the median of the ratios of all rounds. ``--clock cpu`` counts
processor time instead, of all threads, for a machine that has other work.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.losses import LOSSES, SHAPES, Batch, compiled_steps, steps
from benchmarks.training import from_a_table, training_steps
from softnce._core import cpu


def seconds(run: Callable[[], None], clock: Callable[[], float], times: int) -> float:
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


def measure(
    ours: Callable[[], None], theirs: Callable[[], None], clock: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """The median ratio, and the median seconds of both."""
    once = min(max(seconds(theirs, clock, 3), 1e-6) for _ in range(2))
    seconds(ours, clock, 2)
    times = max(1, min(200, int(0.01 / once)))
    pairs = [(seconds(ours, clock, times), seconds(theirs, clock, times)) for _ in range(rounds)]
    ratio = statistics.median(a / b for a, b in pairs)
    mine, baseline = (statistics.median(column) for column in zip(*pairs, strict=True))
    return ratio, mine, baseline


def table(threads: int, clock: Callable[[], float], rounds: int, wanted: list[tuple[int, int]]) -> None:
    torch.set_num_threads(threads)
    print(f"\n{threads} thread{'s' if threads > 1 else ''}: × F.cross_entropy (ms of ours / of cross-entropy)\n")
    cells: dict[str, list[str]] = {name: [] for name in LOSSES}
    for n, classes in wanted:
        for name, (ours, theirs) in steps(Batch.random(n, classes)).items():
            ratio, mine, baseline = measure(ours, theirs, clock, rounds)
            cells[name].append(f"{ratio:.2f} ({mine * 1e3:.3g}/{baseline * 1e3:.3g})")
    print("| | " + " | ".join(f"({n}, {classes})" for n, classes in wanted) + " |\n|" + "---|" * (len(wanted) + 1))
    for name, row in cells.items():
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


def surroundings(clock: Callable[[], float], rounds: int) -> None:
    """The step from a table, compiled losses, and whole training steps."""
    ways = from_a_table()
    theirs = ways["by hand"]
    print("\nFrom a table, N = 720, K = 54,542, d = 64, 1,024 drawn negatives: ms, and × the same loss by hand\n")
    for name, way in ways.items():
        ratio, mine, _ = measure(way, theirs, clock, rounds)
        print(f"| {name} | {mine * 1e3:.3g} | {ratio:.2f} |", flush=True)
    print("\nUnder torch.compile at (1024, 1000): × the eager loss\n")
    for name, (ours, theirs) in compiled_steps(Batch.random(1024, 1000)).items():
        print(f"| {name} | {measure(ours, theirs, clock, rounds)[0]:.2f} |", flush=True)
    print("\nA training step of 256 rows: ms with expected InfoNCE, × with cross-entropy, share of the loss\n")
    for name, (ours, baseline, alone) in training_steps().items():
        ratio, mine, _ = measure(ours, baseline, clock, rounds)
        share, _, _ = measure(alone, ours, clock, rounds)
        print(f"| {name} | {mine * 1e3:.3g} | {ratio:.2f} | {share:.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", type=int, nargs=2, action="append", metavar=("N", "K"))
    options = parser.parse_args()
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    level = None if cpu.library is None else ["baseline", "AVX2", "AVX-512"][cpu.library.softnce_level()]
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, compiled rows: {level}, {options.clock} clock"
    )
    shapes = [tuple(shape) for shape in options.shape] if options.shape else SHAPES
    for threads in options.threads:
        table(threads, clock, options.rounds, shapes)
        surroundings(clock, options.rounds)


if __name__ == "__main__":
    main()
