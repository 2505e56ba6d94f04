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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

FOLDER = Path("ovules-celltype-dataset/raw/label_grs_surface")
CLASS_NAMES = ("L1", "L2", "L3", "L4", "nu", "pc", "funiculus", "es", "ac")
NUM_CLASSES = len(CLASS_NAMES)
EMBRYO_SAC = 7  # left out of the class average: one to a few cells per specimen
FOLDS = 5
UNLABELLED = -100
CLASS_OF_RAW_LABEL = {0: UNLABELLED, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 10: 8, 14: 3}  # 14, L5, is L4
BACKGROUND = 0  # cell id of everything outside the tissue
Array = NDArray[Any]


class SpecimenError(ValueError):
    """A specimen's file is damaged or incomplete; the message names the file and the fault."""


def z_score(values: Array) -> Array:
    """Mean 0, deviation 1 over the whole array: the coordinates of a vector share one mean and deviation."""
    return (values - values.mean()) / (values.std() + 1e-16)


def unit_sum(values: Array) -> Array:
    """Rows divided by |Σ of their entries|.

    The published code calls this a unit vector; its norm is √((Σ v)²), not √(Σ v²), and the published results
    depend on it.
    """
    return values / (np.abs(values.sum(axis=1, keepdims=True)) + 1e-16)


def one_hot_hops(values: Array) -> Array:
    """Hops to the background, counted from the specimen's smallest, the last of five channels meaning "or more"."""
    return np.eye(5)[np.clip(values[:, 0] - values.min(), 0, 4).astype(int)]


def absolute_z_score(values: Array) -> Array:
    return z_score(np.abs(values))


@dataclass(frozen=True)
class Feature:
    """An array of the file: its name, its columns there, its transform and the columns that come out."""

    name: str
    width: int
    transform: Callable[[Array], Array]

    @property
    def columns(self) -> int:
        return 5 if self.transform is one_hot_hops else self.width


def _features(*groups: tuple[str, int, Callable[[Array], Array]]) -> tuple[Feature, ...]:
    """Features by groups of names; ``{}`` stands for each of three axes."""
    return tuple(
        Feature(name.format(axis), width, transform)
        for names, width, transform in groups
        for name in names.split()
        for axis in ((1, 2, 3) if "{}" in name else ("",))
    )


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
NODE_COLUMNS, EDGE_COLUMNS = (
    {f.name: slice(stop - f.columns, stop) for f, stop in zip(every, stops.tolist(), strict=True)}
    for every in (NODE_FEATURES, EDGE_FEATURES)
    for stops in [np.cumsum([f.columns for f in every])]
)
"""The columns of each feature in the concatenated matrix."""


def find_specimens(root: Path) -> list[Path]:
    """The files of all specimens below ``root``, sorted by stage and stack: the published list order."""
    found = sorted((root / FOLDER).glob("*/*.h5"), key=lambda path: (path.parent.name, path.stem))
    if not found:
        raise FileNotFoundError(f"no CellTypeGraph data in {root}: need {FOLDER}/<stage>/<stack>.h5 below it")
    return found


def read_specimen(path: Path) -> Data:
    """The graph in one file. Raises :class:`SpecimenError` if it is damaged or incomplete."""
    arrays = _read_arrays(path)
    ids, edges = arrays["cell_ids"].astype(np.int64), arrays["edges_ids"].astype(np.int64)
    # Normalise first, remove background surfaces after: the published statistics are over all surfaces.
    node = [f.transform(arrays[f"cell_features/{f.name}"]) for f in NODE_FEATURES]
    edge = [f.transform(arrays[f"edges_features/{f.name}"]) for f in EDGE_FEATURES]
    inner = (edges != BACKGROUND).all(axis=1)
    label = _classes(arrays["cell_labels"])
    if unknown := sorted(set(arrays["cell_labels"]) - set(CLASS_OF_RAW_LABEL)):
        raise SpecimenError(f"{path}: cell_labels holds {unknown[0]:g}, need one of {sorted(CLASS_OF_RAW_LABEL)}")
    votes = label[:, None] == np.arange(NUM_CLASSES)
    if "cell_labels_set2" in arrays:  # it has labels outside the mapping; such a cell has one vote only
        votes = votes.astype(np.int64) + (_classes(arrays["cell_labels_set2"])[:, None] == np.arange(NUM_CLASSES))
    return Data(
        x=torch.from_numpy(np.concatenate(node, axis=1)).float(),
        edge_index=torch.from_numpy(_renumber(edges[inner], ids, path).T.copy()),
        edge_attr=torch.from_numpy(np.concatenate(edge, axis=1)[inner]).float(),
        y=torch.from_numpy(label),
        votes=torch.from_numpy(votes.astype(np.int64)),
        node_com=_moments(arrays["cell_features/com_grs"]),
        edge_com=_moments(arrays["edges_features/com_grs"]),
    )


def _read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a graph, checked: all there, numeric, finite and of matching length."""
    widths = {f"cell_features/{f.name}": f.width for f in NODE_FEATURES}
    widths |= {f"edges_features/{f.name}": f.width for f in EDGE_FEATURES}
    required = ["cell_ids", "cell_labels", "edges_ids", *widths]
    arrays: dict[str, Array] = {}
    try:
        with h5py.File(path, "r") as file:
            if missing := [name for name in required if not isinstance(file.get(name), h5py.Dataset)]:
                raise SpecimenError(f"{path}: missing {', '.join(missing)}")
            for name in [*required, *(["cell_labels_set2"] if "cell_labels_set2" in file else [])]:
                arrays[name] = np.asarray(file[name][...], dtype=np.float64)
    except FileNotFoundError:
        raise SpecimenError(f"{path}: no such file") from None
    except SpecimenError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise SpecimenError(f"{path}: cannot be read as HDF5 with numbers ({error})") from error
    cells, surfaces = arrays["cell_ids"].size, len(arrays["edges_ids"])
    for name, values in arrays.items():
        shape: tuple[int, ...] = (surfaces, 2) if name == "edges_ids" else (cells,)
        if name in widths:
            shape = (cells if name.startswith("cell_features") else surfaces, widths[name])
            if values.size == shape[0] and shape[1] == 1:
                values = arrays[name] = values.reshape(shape)
        if values.shape != shape or cells == 0:
            raise SpecimenError(f"{path}: {name} has shape {values.shape}, need {shape}, at least one cell")
        if not np.isfinite(values).all():
            raise SpecimenError(f"{path}: {name} holds values that are not finite")
    if len(np.unique(arrays["cell_ids"])) != cells:
        raise SpecimenError(f"{path}: cell_ids holds the same id more than once")
    return arrays


def _classes(raw: Array) -> NDArray[np.int64]:
    """Raw labels to classes; labels outside the mapping count as unlabelled."""
    return np.array([CLASS_OF_RAW_LABEL.get(value, UNLABELLED) for value in raw.tolist()], dtype=np.int64)


def _renumber(edges: Array, ids: Array, path: Path) -> Array:
    """Cell ids to row numbers of ``cell_ids``."""
    order = np.argsort(ids)
    row = order[np.searchsorted(ids, edges, sorter=order).clip(max=len(ids) - 1)]
    unknown = edges[ids[row] != edges]
    if len(unknown):
        raise SpecimenError(f"{path}: edges_ids names cell {unknown[0]}, which is not in cell_ids")
    return row


def _moments(coordinates: Array) -> torch.Tensor:
    return torch.from_numpy(np.append(coordinates.mean(axis=0), coordinates.std()))[None].float()


@dataclass(frozen=True)
class Fold:
    """Specimens for training, for choosing the epoch and for testing."""

    train: list[Path]
    selection: list[Path]
    test: list[Path]


def folds(specimens: Sequence[Path], honest: bool = False, k: int = FOLDS) -> list[Fold]:
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
        order = np.arange(len(stage))
        np.random.RandomState(0).shuffle(order)  # the stream of np.random.seed(0), which the published split uses
        parts.append([[stage[j] for j in part] for part in np.array_split(order, k)])
    found = []
    for i in range(k):
        test = [path for stage_parts in parts for path in stage_parts[i]]
        chosen = [path for stage_parts in parts for path in stage_parts[(i + 1) % k][:1]] if honest else test
        rest = [path for stage_parts in parts for j, part in enumerate(stage_parts) if j != i for path in part]
        found.append(Fold([path for path in rest if path not in chosen], chosen, test))
    return found
