"""Time and peak memory of a DeeperGCN training step at the benchmark's graph sizes, with and without checkpointing.

    python -m softnce.lab.bench.graph_cost

Graphs are grown by :mod:`softnce.lab.data.tissue`. *Processor* time leaves out waiting for other processes.
*Allocated* is the most that tensors of one forward and backward pass hold at once, weights and input not counted.
*Resident* is by how much the process grew over all passes, which on a CPU includes what its allocator keeps; since a
process cannot reset its peak, each line is measured in a new one.
"""

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Batch, Data

from softnce.lab.configuration import from_args, option
from softnce.lab.data import layout
from softnce.lab.data.celltypegraph import read_specimen
from softnce.lab.data.tissue import grow, write_specimen
from softnce.lab.models.graphs import DeeperGCN


@dataclass(frozen=True)
class CostConfig:
    """What to measure."""

    cells: int = option(1200, "cells a graph; ovules grow to about 1900")
    graphs: tuple[int, ...] = option((1, 8), "graphs a batch; one pair of lines for each")
    layers: int = option(32, "depth")
    hidden: int = option(128, "width")
    edge_features: bool = option(True, "use the edge features")
    repeats: int = option(5, "timed passes, after one that is not; the median is shown")
    threads: int = option(1, "threads")
    device: str = option("cpu", "cpu or cuda")


@dataclass(frozen=True)
class Cost:
    nodes: int
    edges: int
    seconds: float
    processor_seconds: float
    allocated_mb: float
    resident_mb: float


def measure(config: CostConfig, graphs: int, checkpointing: bool) -> Cost:
    """Forward and backward passes of one batch, in a process of their own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(_measure, config, graphs, checkpointing).result()


def _measure(config: CostConfig, graphs: int, checkpointing: bool) -> Cost:
    torch.set_num_threads(config.threads)
    torch.manual_seed(0)
    batch = Batch.from_data_list([_graph(config.cells, seed) for seed in range(graphs)]).to(config.device)
    model = DeeperGCN(
        layout.NUM_NODE_FEATURES,
        layout.NUM_CLASSES,
        edge_features=layout.NUM_EDGE_FEATURES if config.edge_features else 0,
        hidden=config.hidden,
        layers=config.layers,
        checkpointing=checkpointing,
    ).to(config.device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(batch), batch.y).backward()
        if config.device != "cpu":
            torch.cuda.synchronize()

    before = _resident_mb()
    times, processor_times = [], []
    for _ in range(config.repeats + 1):
        start, processor_start = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - start)
        processor_times.append(time.process_time() - processor_start)
    resident = _resident_mb() - before
    allocated = _allocated_mb(step, config.device)
    seconds, processor_seconds = statistics.median(times[1:]), statistics.median(processor_times[1:])
    return Cost(batch.num_nodes, batch.num_edges, seconds, processor_seconds, allocated, resident)


def _graph(cells: int, seed: int) -> Data:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stage" / "specimen.h5"
        write_specimen(path, grow(cells, 1.0, np.random.default_rng(seed)))
        return read_specimen(path)


def _resident_mb() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where getrusage carries over the peak of the parent process
        peak_kb = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak_kb) / 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def _allocated_mb(step: Callable[[], None], device: str) -> float:
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    assert profile.profiler is not None
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return float(np.cumsum([event.nbytes() for event in changes]).max()) / 1e6


def main(argv: list[str]) -> None:
    description = "Time and peak memory of a DeeperGCN training step, with and without gradient checkpointing."
    config = from_args(CostConfig, argv, prog="python -m softnce.lab.bench.graph_cost", description=description)
    os.environ |= {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # the profilers of the new processes talk
    print(f"DeeperGCN, {config.layers} layers, hidden {config.hidden}, torch {torch.__version__}, ", end="")
    print(f"{config.device}, threads {config.threads}; median of {config.repeats} forward + backward passes")
    print("graphs   nodes   edges  checkpointing     time  processor  allocated  resident")
    for graphs in config.graphs:
        for checkpointing in (False, True):
            c = measure(config, graphs, checkpointing)
            print(f"{graphs:6d} {c.nodes:7,d} {c.edges:7,d}  {'yes' if checkpointing else 'no':>13s}", end="")
            print(
                f" {c.seconds:6.2f} s   {c.processor_seconds:6.2f} s {c.allocated_mb:7,.0f} MB {c.resident_mb:6,.0f} MB"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
