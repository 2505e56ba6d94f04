"""Specimens of the CellTypeGraph layout as PyTorch Geometric graphs, and the benchmark's folds.

One HDF5 file per specimen, ``<root>/ovules-celltype-dataset/raw/label_grs_surface/<stage>/<stack>.h5``. Every
transform works on one specimen at a time, so no statistics leak from one specimen to another. A graph holds, for n
cells and e shared surfaces:

    x           (n, 74) float   node features in the published order, transformed
    edge_index  (2, e)          each surface once, as published
    edge_attr   (e, 11) float   edge features, normalised over all surfaces, those to the background included
    y           (n,)            class 0-8 by the first expert, -100 for unlabelled cells
    votes       (n, 9)          votes by class: one or, with a second expert, up to two per cell
    node_com, edge_com (1, 4)   mean position (3) and joint deviation (1) that normalised ``com_grs``
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch_geometric.data import Data

FOLDER = Path("ovules-celltype-dataset/raw/label_grs_surface")
CLASS_NAMES = ("L1", "L2", "L3", "L4", "nu", "pc", "funiculus", "es", "ac")
EMBRYO_SAC = 7  # left out of the class average: one to a few cells per specimen
UNLABELLED = -100
CLASS_OF_RAW_LABEL = {0: UNLABELLED, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 10: 8, 14: 3}  # 14, L5, is L4
BACKGROUND = 0  # cell id of everything outside the tissue
Array = np.ndarray[Any, Any]


def z_score(values: Array) -> Array:
    """Mean 0, deviation 1 over the whole array: the coordinates of a vector share one mean and deviation."""
    return (values - values.mean()) / (values.std() + 1e-16)


def unit_sum(values: Array) -> Array:
    """Rows divided by |Σ of their entries|, not by √(Σ v²): the published results depend on it."""
    return values / (np.abs(values.sum(axis=1, keepdims=True)) + 1e-16)


def one_hot_hops(values: Array) -> Array:
    """Hops to the background, counted from the specimen's smallest, the last of five channels meaning "or more"."""
    return np.eye(5)[np.clip(values[:, 0] - values.min(), 0, 4).astype(int)]


def absolute_z_score(values: Array) -> Array:
    return z_score(np.abs(values))


class Feature(NamedTuple):
    """An array of the file: its name, its columns there and its transform."""

    name: str
    width: int
    transform: Callable[[Array], Array]


def _features(*groups: tuple[str, int, Callable[[Array], Array]]) -> dict[Feature, slice]:
    """Features by groups of names, where ``{}`` stands for each of three axes; their columns when concatenated."""
    found, stop = {}, 0
    for names, width, transform in groups:
        for name, axis in product(names.split(), (1, 2, 3)):
            feature = Feature(name.format(axis), width, transform)
            if feature not in found:  # the same for each axis without {}
                start, stop = stop, stop + (5 if transform is one_hot_hops else width)
                found[feature] = slice(start, stop)
    return found


NODE_FEATURES = _features(
    ("com_grs", 3, z_score),
    ("lrs_orientation_axis{}_grs pca_orientation_axis{}_grs", 6, unit_sum),
    ("degree_centrality rw_centrality", 1, z_score),
    ("hops_to_bg", 1, one_hot_hops),
    ("volume_um surface_um length_axis{}_grs", 1, z_score),
    ("lrs_axis12_dot_grs lrs_axis2_angle_grs", 1, np.abs),
    ("lrs_proj_axis{}_grs pca_proj_axis{}_grs", 3, np.abs),
    ("pca_explained_variance_grs", 3, z_score),
)
EDGE_FEATURES = _features(
    ("surface_um com_distance_um", 1, z_score),
    ("com_grs", 3, z_score),
    ("lrs_dot_axis{}_grs", 1, absolute_z_score),
    ("lrs_proj_grs", 3, absolute_z_score),
)
NODE_COLUMNS, EDGE_COLUMNS = ({f.name: place for f, place in every.items()} for every in (NODE_FEATURES, EDGE_FEATURES))


def find_specimens(root: Path) -> list[Path]:
    """The files of all specimens below ``root``, sorted by stage and stack: the published list order."""
    found = sorted((root / FOLDER).glob("*/*.h5"), key=lambda path: (path.parent.name, path.stem))
    if not found:
        raise FileNotFoundError(f"no CellTypeGraph data in {root}: need {FOLDER}/<stage>/<stack>.h5 below it")
    return found


def read_specimen(path: Path) -> Data:
    """The graph in one file. Raises a ValueError that names the file if it is damaged or incomplete."""
    try:
        with h5py.File(path) as file:
            return _graph(file)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def _graph(file: h5py.File) -> Data:
    def read(name: str, rows: int, width: int = 1) -> Array:
        """An array, checked: there, numeric, finite and of ``rows`` rows."""
        if name not in file:
            raise ValueError(f"missing {name}")
        values = np.asarray(file[name], dtype=np.float64)
        if values.size != rows * width or rows == 0:
            raise ValueError(f"{name} has shape {values.shape}, need {(rows, width)}, at least one row")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} holds values that are not finite")
        return values.reshape(rows, width)

    def classes(name: str) -> Array:
        return np.array([CLASS_OF_RAW_LABEL.get(label, UNLABELLED) for label in read(name, cells)[:, 0].tolist()])

    def moments(of: Array) -> torch.Tensor:
        return torch.from_numpy(np.append(of.mean(axis=0), of.std()))[None].float()

    cells, surfaces = (len(file[name]) if name in file else 0 for name in ("cell_ids", "edges_ids"))
    ids, row = np.unique(read("cell_ids", cells), return_index=True)
    if len(ids) < cells:
        raise ValueError("cell_ids holds the same id more than once")
    edges = read("edges_ids", surfaces, 2)
    inner = (edges != BACKGROUND).all(axis=1)
    if unknown := set(edges[inner].ravel()) - set(ids):
        raise ValueError(f"edges_ids names cell {min(unknown):g}, which is not in cell_ids")
    if unknown := set(read("cell_labels", cells)[:, 0]) - set(CLASS_OF_RAW_LABEL):
        raise ValueError(f"cell_labels holds {min(unknown):g}, need one of {sorted(CLASS_OF_RAW_LABEL)}")
    label = classes("cell_labels")
    votes = (label[:, None] == np.arange(len(CLASS_NAMES))).astype(np.int64)
    if "cell_labels_set2" in file:  # it has labels outside the mapping; such a cell has one vote only
        votes += classes("cell_labels_set2")[:, None] == np.arange(len(CLASS_NAMES))
    x = [f.transform(read(f"cell_features/{f.name}", cells, f.width)) for f in NODE_FEATURES]
    # Normalise first, remove background surfaces after: the published statistics are over all surfaces.
    edge_attr = [f.transform(read(f"edges_features/{f.name}", surfaces, f.width))[inner] for f in EDGE_FEATURES]
    return Data(
        x=torch.from_numpy(np.concatenate(x, axis=1)).float(),
        edge_index=torch.from_numpy(row[np.searchsorted(ids, edges[inner])].T.copy()),
        edge_attr=torch.from_numpy(np.concatenate(edge_attr, axis=1)).float(),
        y=torch.from_numpy(label),
        votes=torch.from_numpy(votes),
        node_com=moments(read("cell_features/com_grs", cells, 3)),
        edge_com=moments(read("edges_features/com_grs", surfaces, 3)),
    )


class Fold(NamedTuple):
    """Specimens for training, for choosing the epoch and for testing."""

    train: list[Path]
    selection: list[Path]
    test: list[Path]


def folds(specimens: Sequence[Path], honest: bool = False, k: int = 5) -> list[Fold]:
    """The benchmark's k folds.

    For each stage, the specimens in list order are shuffled with seed 0 and cut into k parts; part i of every stage is
    tested in fold i. The published protocol chooses the epoch on the test specimens. With ``honest`` it is chosen on
    the first of each stage's next part, which leaves the training set.
    """
    stages: dict[str, list[Path]] = {}
    for path in specimens:
        stages.setdefault(path.parent.name, []).append(path)
    if max(map(len, stages.values())) < k:
        raise ValueError(f"{len(specimens)} specimens in {len(stages)} stages cannot fill {k} folds")
    parts = []
    for stage in stages.values():
        order = np.random.RandomState(0).permutation(len(stage))  # the stream of np.random.seed(0), as published
        parts.append([[stage[j] for j in part] for part in np.array_split(order, k)])
    found = []
    for i in range(k):
        test = [path for stage_parts in parts for path in stage_parts[i]]
        chosen = [path for stage_parts in parts for path in stage_parts[(i + 1) % k][:1]] if honest else test
        every = [path for stage_parts in parts for part in stage_parts for path in part]
        found.append(Fold([path for path in every if path not in {*test, *chosen}], chosen, test))
    return found
