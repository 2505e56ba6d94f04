"""Node classification problems in one form: graphs for training, for choosing the epoch, and for testing.

The three sets may be different graphs or different nodes of one graph: a node that does not belong to a set has label
−100 there, so that it is neither learnt from nor counted.
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from torch_geometric.data import Data

from experiments.data import celltypegraph as cells
from experiments.data.planetoid import read_graph

CITATION = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


@dataclass(frozen=True)
class NodeTask:
    """A node classification problem."""

    train: list[Data]
    selection: list[Data]  # chooses the epoch; under CellTypeGraph's published protocol the test graphs
    test: list[Data]
    classes: list[str]
    left_out: tuple[int, ...] = ()  # do not enter the class average


def open_task(kind: str, folder: Path, fold: int = 0, honest: bool = False) -> NodeTask:
    """CellTypeGraph, random specimens in its layout (written to ``folder``), or a citation graph on its public split.

    Below ``folder`` is ``ovules-celltype-dataset``, or ``Cora/raw`` and so on. ``fold`` 0 to 4 is of specimens; with
    ``honest`` the epoch is chosen on specimens of the training set, not on the test specimens.
    """
    folder = folder.expanduser()
    try:
        if kind in CITATION:
            return citation_task(folder, CITATION[kind])
        if kind == "generated" and not (folder / cells.FOLDER).is_dir():
            write_random_specimens(folder)
        parts = cells.folds(cells.find_specimens(folder), honest)[fold]
    except FileNotFoundError as error:
        raise ValueError(f"data.dir {folder}: {error} (see docs/experiments.md)") from None
    graphs = {path: cells.read_specimen(path) for part in parts for path in part}
    return NodeTask(*([graphs[path] for path in part] for part in parts), list(cells.CLASS_NAMES), (cells.EMBRYO_SAC,))


def citation_task(folder: Path, name: str) -> NodeTask:
    """A citation graph on its public split, features scaled to sum 1 per node. Nothing is downloaded.

    Features are a sparse matrix, so that dropout need not draw for the zeros: most of the cost of training a GCN.
    """
    graph = read_graph(folder / name / "raw", name)
    graph.x = graph.x / graph.x.sum(1, keepdim=True).clamp(min=1)
    if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch.sparse.check_sparse_tensor_invariants.disable()  # as it is; said aloud, torch does not warn when batching
    graph.x = graph.x.to_sparse().coalesce()
    parts = []
    for part in ("train", "val", "test"):
        seen = copy.copy(graph)
        seen.y = graph.y.masked_fill(~graph[f"{part}_mask"], cells.UNLABELLED)
        seen.train_mask = seen.val_mask = seen.test_mask = None
        parts.append([seen])
    return NodeTask(*parts, [str(k) for k in range(int(graph.y.max()) + 1)])


def write_random_specimens(root: Path, specimens: int = 10, stages: int = 2, nodes: int = 120, seed: int = 0) -> Path:
    """Writes random graphs in CellTypeGraph's layout: features depend on the class, neighbours often share it.

    A second expert disagrees about a tenth of the cells. For tests and demonstrations; they resemble no tissue.
    """
    random = np.random.default_rng(seed)
    raw_labels = [raw for raw, label in cells.CLASS_OF_RAW_LABEL.items() if label >= 0 and raw != 14]
    centres = {f.name: random.normal(size=(9, f.width)) for f in (*cells.NODE_FEATURES, *cells.EDGE_FEATURES)}
    for number in range(specimens):
        path = root / cells.FOLDER / f"stage-{number % stages}" / f"{number:03d}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        label = random.integers(9, size=nodes)
        pairs = random.integers(nodes, size=(40 * nodes, 2))
        same = label[pairs[:, 0]] == label[pairs[:, 1]]
        pairs = pairs[(pairs[:, 0] < pairs[:, 1]) & (same | (random.random(len(pairs)) < 0.1))][: 4 * nodes]
        background = np.stack([np.full(nodes // 4, -1), np.arange(nodes // 4)], 1)  # −1 + 1 is the background's id
        pairs = np.concatenate([np.unique(pairs, axis=0), background])
        second = np.where(random.random(nodes) < 0.1, random.integers(9, size=nodes), label)
        with h5py.File(path, "w") as file:
            file["cell_ids"], file["edges_ids"] = np.arange(1, nodes + 1), pairs + 1
            file["cell_labels"], file["cell_labels_set2"] = np.take(raw_labels, label), np.take(raw_labels, second)
            for group, features, of in (
                ("cell_features", cells.NODE_FEATURES, label),
                ("edges_features", cells.EDGE_FEATURES, label[pairs[:, 1]]),
            ):
                for f in features:
                    values = centres[f.name][of] + 2.0 * random.normal(size=(len(of), f.width))
                    if f.transform is cells.unit_sum:  # v vᵀ of a direction, by xx, yy, zz, xy, yz, zx
                        v = values[:, :3] / np.linalg.norm(values[:, :3], axis=1, keepdims=True)
                        values = np.concatenate([v * v, v * np.roll(v, -1, axis=1)], axis=1)
                    if f.transform is cells.one_hot_hops:
                        values = np.abs(values).round()
                    file[f"{group}/{f.name}"] = values.astype(np.float32)
    return root
