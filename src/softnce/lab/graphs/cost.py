"""Time and peak memory of a DeeperGCN training step at the benchmark's graph sizes, with and without checkpointing.

    python -m softnce.lab.graphs.cost

Graphs are grown by :mod:`softnce.lab.graphs.tissue`. Each line is measured in a process of its own, because the peak of
a process's memory cannot be reset; memory is the growth of its resident peak during the steps (on a GPU, of its
allocated peak), so weights and data do not count.
"""

import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
import torch

from softnce.lab.configuration import from_args, option
from softnce.lab.graphs import layout


@dataclass(frozen=True)
class CostConfig:
    """What to measure."""

    cells: int = option(1200, "cells a graph; ovules grow to about 1900")
    graphs: tuple[int, ...] = option((1, 8), "graphs a batch; one pair of lines for each")
    layers: int = option(32, "depth")
    hidden: int = option(128, "width")
    edge_features: bool = option(True, "use the edge features")
    repeats: int = option(5, "timed steps, after one that is not; the median is shown")
    threads: int = option(1, "threads")
    device: str = option("cpu", "cpu or cuda")


@dataclass(frozen=True)
class Cost:
    nodes: int
    edges: int
    seconds: float
    peak_mb: float


def measure(config: CostConfig, graphs: int, checkpointing: bool) -> Cost:
    """Forward and backward of one batch in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(_measure, config, graphs, checkpointing).result()


def _measure(config: CostConfig, graphs: int, checkpointing: bool) -> Cost:
    from torch_geometric.data import Batch

    from softnce.lab.graphs.models import DeeperGCN

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
    before = _peak_mb(config.device)
    times = []
    for _ in range(config.repeats + 1):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        torch.nn.functional.cross_entropy(model(batch), batch.y).backward()
        if config.device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = _peak_mb(config.device) - before
    return Cost(batch.num_nodes, batch.num_edges, statistics.median(times[1:]), peak)


def _graph(cells: int, seed: int):  # type: ignore[no-untyped-def]
    import tempfile
    from pathlib import Path

    from softnce.lab.graphs.celltypegraph import read_specimen
    from softnce.lab.graphs.tissue import grow, write_specimen

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stage" / "specimen.h5"
        write_specimen(path, grow(cells, 1.0, np.random.default_rng(seed)))
        return read_specimen(path)


def _peak_mb(device: str) -> float:
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def main(argv: list[str]) -> None:
    description = "Time and peak memory of a DeeperGCN training step, with and without gradient checkpointing."
    config = from_args(CostConfig, argv, prog="python -m softnce.lab.graphs.cost", description=description)
    print(f"DeeperGCN, {config.layers} layers, hidden {config.hidden}, torch {torch.__version__}, ", end="")
    print(f"{config.device}, threads {config.threads}; median of {config.repeats} forward + backward passes")
    print("graphs   nodes   edges  checkpointing      time   peak memory")
    for graphs in config.graphs:
        for checkpointing in (False, True):
            cost = measure(config, graphs, checkpointing)
            shown = "yes" if checkpointing else "no"
            print(
                f"{graphs:6d} {cost.nodes:7,d} {cost.edges:7,d}  {shown:>13s}  {cost.seconds:6.2f} s {cost.peak_mb:10,.0f} MB"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
