"""Exact cross-entropy from a table against torch's chunked ``linear_cross_entropy`` on hard labels, interleaved.

    python benchmarks/exact.py                   # 1,024 rows, 100,000 classes, 256 features; a few minutes

Time is processor time of forward and backward, as a ratio to torch in the same round; memory is what the allocator
holds at its peak beyond the table's gradient. torch runs with its default options, which take two rows at a time on
this shape, and with the number of rows that is fastest for it.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.autograd.profiler import profile
from torch.nn import functional as F

from softnce import SoftTargets
from softnce._core.exact import exact_cross_entropy


def peak(operation: Callable[[], object]) -> int:
    """The largest number of bytes that ``operation`` has allocated at once."""
    with profile(profile_memory=True) as recorded:
        operation()
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    now = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    return highest


def run(rows: int, classes: int, dim: int, rounds: int, chunk: int, with_defaults: bool) -> list[str]:
    torch.manual_seed(0)
    z, table = torch.randn(rows, dim, requires_grad=True), (torch.randn(classes, dim) / dim**0.5).requires_grad_()
    labels = torch.randint(classes, (rows,))
    hard = SoftTargets.from_labels(labels, classes)
    pairs = hard.mix(hard.flip(0), 0.7)

    def ours(targets: SoftTargets, **options: int) -> None:
        exact_cross_entropy(z, table, targets, divisor=rows, reduced=True, **options).backward()

    def torchs(**options: int) -> None:
        F.linear_cross_entropy(z, table, labels, options=nn.LinearCrossEntropyOptions(**options)).backward()

    ways: dict[str, Callable[[], None]] = {
        f"torch, {chunk} rows at a time, labels": lambda: torchs(batch_chunk_size=chunk),
        "softnce, labels": lambda: ours(hard),
        "softnce, pairs": lambda: ours(pairs),
        "softnce, smoothed pairs": lambda: ours(pairs.smooth(0.1)),
        f"softnce, pairs, {dim // 2} rows at a time": lambda: ours(pairs, chunk_size=dim // 2),
    }
    if with_defaults:
        ways["torch, default options, labels"] = lambda: torchs()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            z.grad = table.grad = None
            start = time.process_time()
            way()
            seconds[name].append(time.process_time() - start)
    first = next(iter(ways))
    lines = []
    for name, way in ways.items():
        z.grad = table.grad = None
        beyond = (peak(way) - 4 * classes * dim) / 1e6
        ratios = sorted(mine / its for mine, its in zip(seconds[name][1:], seconds[first][1:], strict=True))
        middle = statistics.median(seconds[name][1:])
        spread = f"{ratios[0]:.2f}–{ratios[-1]:.2f}"
        lines.append(f"| {name} | {middle:.2f} | {statistics.median(ratios):.2f} | {spread} | {beyond:.0f} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1024), ("classes", 100_000), ("dim", 256), ("rounds", 3), ("chunk", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--with-defaults", action="store_true", help="torch's default options too, ten times slower")
    warnings.simplefilter("ignore")
    print("| way | seconds | ratio | its range | MB beyond |\n|---|---|---|---|---|")
    print("\n".join(run(**vars(parser.parse_args()))))
