"""Every node classification problem in one form: graphs for training, for choosing the epoch, and for testing.

    task = celltypegraph_task(root, fold=0, protocol="honest", transform=augment.paper_augmentations())
    task = planetoid_task(root, "Cora")
    task = node_task(WikiCS(root), split=3)               # any PyG node dataset with masks
    loader = torch_geometric.loader.DataLoader(task.train, batch_size=8, shuffle=True)

The three sets may be different graphs or different nodes of one graph: a node that does not belong to a set has label
−100 there, the ``ignore_index`` of the losses, so that it is neither learnt from nor counted.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import Dataset
from torch_geometric.data import Data

from softnce.lab.data import layout
from softnce.lab.data.celltypegraph import find_specimens, load_specimen
from softnce.lab.data.folds import honest_folds, published_folds
from softnce.lab.data.planetoid import read_graph

Transform = Callable[[Data], Data]


class Graphs(Dataset[Data]):
    """Graphs in memory, each transformed anew whenever it is taken."""

    def __init__(self, graphs: Sequence[Data], transform: Transform | None = None) -> None:
        self.graphs = graphs
        self.transform = transform

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        graph = self.graphs[index]
        return graph if self.transform is None else self.transform(graph)


@dataclass(frozen=True)
class NodeTask:
    """A node classification problem.

    ``selection`` chooses the epoch, ``test`` is reported; under CellTypeGraph's published protocol they are the same
    graphs. ``left_out`` are classes that do not enter the class average.
    """

    name: str
    train: Graphs
    selection: Graphs
    test: Graphs
    class_names: tuple[str, ...]
    left_out: tuple[int, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_node_features(self) -> int:
        return self.train.graphs[0].num_node_features

    @property
    def num_edge_features(self) -> int:
        return self.train.graphs[0].num_edge_features

    def class_counts(self) -> torch.Tensor:
        """(K,) labelled training nodes of each class: the noise distribution's counts."""
        label = torch.cat([graph.y for graph in self.train.graphs])
        return torch.bincount(label[label != layout.UNLABELLED], minlength=self.num_classes)


def celltypegraph_task(
    root: str | Path,
    fold: int,
    protocol: Literal["published", "honest"] = "published",
    transform: Transform | None = None,
    cache: Path | None = None,
) -> NodeTask:
    """A fold of the CellTypeGraph benchmark, or of files in its layout (:mod:`softnce.lab.data.tissue`).

    Args:
        root: holds ``ovules-celltype-dataset/raw/label_grs_surface/<stage>/<stack>.h5``.
        fold: 0 to 4.
        protocol: ``published`` chooses the epoch on the test specimens, as the benchmark does; ``honest`` on a
            specimen of each stage taken from the training set.
        transform: applied to training graphs only.
        cache: see :func:`~softnce.lab.data.celltypegraph.load_specimen`.
    """
    protocols = {"published": published_folds, "honest": honest_folds}
    if protocol not in protocols:
        raise ValueError(f"protocol: got {protocol!r}, need one of {', '.join(protocols)}")
    folds = protocols[protocol](find_specimens(root))
    if not 0 <= fold < len(folds):
        raise ValueError(f"fold: got {fold}, need 0 to {len(folds) - 1}")
    sets = folds[fold]
    graphs = {s: load_specimen(s, cache) for s in {*sets.train, *sets.selection, *sets.test}}
    return NodeTask(
        name=f"celltypegraph-{protocol}-fold{fold}",
        train=Graphs([graphs[s] for s in sets.train], transform),
        selection=Graphs([graphs[s] for s in sets.selection]),
        test=Graphs([graphs[s] for s in sets.test]),
        class_names=layout.CLASS_NAMES,
        left_out=(layout.EMBRYO_SAC,),
    )


def planetoid_task(
    root: str | Path, name: Literal["Cora", "CiteSeer", "PubMed"], transform: Transform | None = None
) -> NodeTask:
    """A citation graph on its public split, features scaled to sum 1 per node. Nothing is downloaded.

    Features are a sparse matrix: bags of words of which a node has one in a hundred. Linear layers take it as it is,
    and dropout need not draw for the zeros, which would be most of the cost of training a GCN.

    Args:
        root: holds the raw files ``<name>/raw/ind.<name>.*`` as PyG's ``Planetoid`` keeps them; not unpickled.
        name: ``Cora``, ``CiteSeer`` or ``PubMed``.
        transform: applied to the training graph only.
    """
    from torch_geometric.transforms import NormalizeFeatures

    if name not in ("Cora", "CiteSeer", "PubMed"):
        raise ValueError(f"name: got {name!r}, need Cora, CiteSeer or PubMed")
    graph = NormalizeFeatures()(read_graph(Path(root) / name / "raw", name))
    if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        torch.sparse.check_sparse_tensor_invariants.disable()  # as it is; said aloud, torch does not warn when batching
    graph.x = graph.x.to_sparse().coalesce()
    return node_task([graph], name=name, transform=transform)


def node_task(
    dataset: Iterable[Data],
    *,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    split: int = 0,
    transform: Transform | None = None,
) -> NodeTask:
    """Any PyG node dataset whose graphs carry ``train_mask``, ``val_mask`` and ``test_mask``.

    Args:
        dataset: one graph or several.
        name: the dataset's class name where None.
        class_names: ``"0"``, ``"1"``, … where None.
        split: column of the masks, for datasets that hold several splits.
        transform: applied to training graphs only.
    """
    graphs = list(dataset)
    if not graphs:
        raise ValueError("dataset has no graphs")
    sets: dict[str, list[Data]] = {"train": [], "val": [], "test": []}
    for graph in graphs:
        label = _labels(graph)
        for part, kept in sets.items():
            mask = graph.get(f"{part}_mask")
            if mask is None:
                raise ValueError(f"a graph of the dataset has no {part}_mask: {graph}")
            if mask.dim() == 2:
                if not 0 <= split < mask.shape[1]:
                    raise ValueError(f"split: got {split}, but the dataset has {mask.shape[1]} splits")
                mask = mask[:, split]
            seen = copy.copy(graph)
            seen.y = label.masked_fill(~mask, layout.UNLABELLED)
            for other in sets:
                seen[f"{other}_mask"] = None
            kept.append(seen)
    num_classes = int(max(_labels(graph).max() for graph in graphs)) + 1
    names = tuple(class_names) if class_names is not None else tuple(map(str, range(num_classes)))
    if len(names) < num_classes:
        raise ValueError(f"class_names: got {len(names)}, but the labels go up to {num_classes - 1}")
    return NodeTask(
        name=name or type(dataset).__name__,
        train=Graphs(sets["train"], transform),
        selection=Graphs(sets["val"]),
        test=Graphs(sets["test"]),
        class_names=names,
    )


def _labels(graph: Any) -> torch.Tensor:
    label = graph.y
    if label is not None and label.dim() == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label is None or label.is_floating_point() or label.shape != (graph.num_nodes,):
        got = None if graph.y is None else (graph.y.dtype, tuple(graph.y.shape))
        raise ValueError(f"need one integer label per node in y, got {got} for {graph.num_nodes} nodes")
    return label
