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
    """A node classification problem.

    ``selection`` chooses the epoch, ``test`` is reported; under CellTypeGraph's published protocol they are the same
    graphs. ``left_out`` are classes that do not enter the class average.
    """

    train: list[Data]
    selection: list[Data]
    test: list[Data]
    classes: list[str]
    left_out: tuple[int, ...] = ()


def open_task(kind: str, folder: Path, fold: int = 0, honest: bool = False) -> NodeTask:
    """The problem of a data set.

    Args:
        kind: CellTypeGraph, random specimens in its layout, or a citation graph on its public split.
        folder: below it ``ovules-celltype-dataset``, or ``Cora/raw`` and so on; random specimens are written here.
        fold: 0 to 4, of specimens.
        honest: choose the epoch on specimens of the training set, not on the test specimens.
    """
    folder = folder.expanduser()
    try:
        if kind in CITATION:
            return citation_task(folder, CITATION[kind])
        if kind == "generated" and not (folder / cells.FOLDER).is_dir():
            write_random_specimens(folder)
        found = cells.folds(cells.find_specimens(folder), honest)
    except FileNotFoundError as error:
        raise ValueError(f"data.dir {folder}: {error} (see docs/experiments.md)") from None
    if not 0 <= fold < len(found):
        raise ValueError(f"data.fold: got {fold}, need 0 to {len(found) - 1}")
    graphs = {path: cells.read_specimen(path) for part in ("train", "selection", "test") for path in
              getattr(found[fold], part)}  # fmt: skip
    parts = [[graphs[path] for path in part] for part in (found[fold].train, found[fold].selection, found[fold].test)]
    return NodeTask(*parts, list(cells.CLASS_NAMES), (cells.EMBRYO_SAC,))


def citation_task(folder: Path, name: str) -> NodeTask:
    """A citation graph on its public split, features scaled to sum 1 per node. Nothing is downloaded.

    Features are a sparse matrix: bags of words of which a node has one in a hundred. Linear layers take it as it is,
    and dropout need not draw for the zeros, which would be most of the cost of training a GCN.
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
        for other in ("train", "val", "test"):
            seen[f"{other}_mask"] = None
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
