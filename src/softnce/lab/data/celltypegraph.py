"""Specimens of the CellTypeGraph layout as PyTorch Geometric graphs.

    specimens = find_specimens(root)                 # [Specimen(stage="2-III", stack="…"), …]
    graph = load_specimen(specimens[0])              # Data, through the cache
    SoftTargets.from_votes(graph.votes[graph.y >= 0], num_classes=9)     # both experts' labels as soft targets

A graph holds, for n cells and e shared surfaces:

    x           (n, 74) float   node features in the published order, transformed
    edge_index  (2, e)          each surface once, as published (``torch_geometric.transforms.ToUndirected`` doubles)
    edge_attr   (e, 11) float   edge features, normalised over all surfaces, those to the background included
    y           (n,)            class 0–8 by the first expert, −100 where unlabelled
    votes       (n, 9)          how many experts chose each class: one or, with a second expert, up to two per cell
    pos         (n, 3)          centre in the specimen's reference system, µm
    node_com, edge_com (1, 4)   mean position (3) and joint deviation (1) that normalised ``com_grs``: what a change of
                                basis after normalisation needs
    stage, specimen             names
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch_geometric.data import Data

from softnce.lab.atomic import replacing
from softnce.lab.data import layout
from softnce.lab.data.layout import Array, Feature


class SpecimenError(ValueError):
    """A specimen's file is damaged or incomplete; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Specimen:
    path: Path

    @property
    def stage(self) -> str:
        return self.path.parent.name

    @property
    def stack(self) -> str:
        return self.path.stem

    @property
    def name(self) -> str:
        return f"{self.stage}_{self.stack}"


def find_specimens(root: str | Path) -> list[Specimen]:
    """All specimens below ``root``, sorted by stage and stack: the published list order."""
    folder = Path(root) / layout.FOLDER
    if not folder.is_dir():
        raise FileNotFoundError(f"no CellTypeGraph data in {root}: need {layout.FOLDER}/<stage>/<stack>.h5 below it")
    specimens = sorted((Specimen(path) for path in folder.glob("*/*.h5")), key=lambda s: (s.stage, s.stack))
    if not specimens:
        raise FileNotFoundError(f"no specimens in {folder}: need <stage>/<stack>.h5 below it")
    return specimens


def read_specimen(path: str | Path) -> Data:
    """Read one file, without the cache. Raises :class:`SpecimenError` if it is damaged or incomplete."""
    path = Path(path)
    arrays = _read_arrays(path)
    ids, edges = arrays["cell_ids"].astype(np.int64), arrays["edges_ids"].astype(np.int64)

    # Normalise first, remove background surfaces after: the published statistics are over all surfaces.
    node = [f.transform(arrays[f"cell_features/{f.name}"]) for f in layout.NODE_FEATURES]
    edge = [f.transform(arrays[f"edges_features/{f.name}"]) for f in layout.EDGE_FEATURES]
    inner = (edges != layout.BACKGROUND).all(axis=1)

    label = _classes(arrays["cell_labels"], path)
    votes = _votes(label)
    if "cell_labels_set2" in arrays:
        # The published expert baseline meets labels outside the mapping here; such a cell has one vote only.
        votes += _votes(_classes(arrays["cell_labels_set2"]))

    position = arrays["cell_features/com_grs"]
    specimen = Specimen(path)
    return Data(
        x=_float(np.concatenate(node, axis=1)),
        edge_index=torch.from_numpy(_renumber(edges[inner], ids, path).T.copy()),
        edge_attr=_float(np.concatenate(edge, axis=1)[inner]),
        y=torch.from_numpy(label),
        votes=torch.from_numpy(votes),
        pos=_float(position),
        node_com=_moments(position),
        edge_com=_moments(arrays["edges_features/com_grs"]),
        stage=specimen.stage,
        specimen=specimen.name,
    )


def load_specimen(specimen: Specimen, cache: Path | None = None) -> Data:
    """Read a specimen, or its cached graph if the file has not changed since.

    Args:
        specimen: from :func:`find_specimens`.
        cache: folder of the cache; ``softnce-cache`` in the data's root where None. A folder that cannot be written
            costs a warning, not the run.
    """
    cache = specimen.path.parents[len(layout.FOLDER.parts) + 1] / "softnce-cache" if cache is None else Path(cache)
    entry = cache / specimen.stage / f"{specimen.stack}.pt"
    fingerprint = _fingerprint(specimen.path)
    try:
        cached = torch.load(entry, weights_only=True)
        if cached["fingerprint"] == fingerprint:
            return Data(**cached["graph"])
    except Exception:  # absent, damaged or of another version: all are answered by reading the file again
        pass
    graph = read_specimen(specimen.path)
    try:
        with replacing(entry, shared=True) as partial:
            torch.save({"fingerprint": fingerprint, "graph": graph.to_dict()}, partial)
    except OSError as error:
        warnings.warn(f"cannot write the cache {entry}: {error}", stacklevel=2)
    return graph


def _fingerprint(path: Path) -> list[Any]:
    """Changes whenever the file or the transforms do. ctime sees replaced contents even if size and mtime are kept."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise SpecimenError(f"{path}: no such file") from None
    features = [f"{f.name}:{f.transform.__name__}" for f in (*layout.NODE_FEATURES, *layout.EDGE_FEATURES)]
    return [1, status.st_size, status.st_mtime_ns, status.st_ctime_ns, *features]


def _read_arrays(path: Path) -> dict[str, Array]:
    """The arrays the graph is made of, checked: all there, numeric, finite and of matching length."""
    groups = {"cell_features": layout.NODE_FEATURES, "edges_features": layout.EDGE_FEATURES}
    features: dict[str, Feature] = {f"{group}/{f.name}": f for group in groups for f in groups[group]}
    required = ["cell_ids", "cell_labels", "edges_ids", *features]
    arrays: dict[str, Array] = {}
    try:
        with h5py.File(path, "r") as file:
            missing = [name for name in required if not isinstance(file.get(name), h5py.Dataset)]
            if missing:
                raise SpecimenError(f"{path}: missing {', '.join(missing)}")
            for name in [*required, "cell_labels_set2"]:
                if name not in file:
                    continue
                try:
                    arrays[name] = np.asarray(file[name][...], dtype=np.float64)
                except (OSError, ValueError, TypeError) as error:
                    raise SpecimenError(f"{path}: cannot read {name} as numbers ({error})") from error
    except FileNotFoundError:
        raise SpecimenError(f"{path}: no such file") from None
    except OSError as error:
        raise SpecimenError(f"{path}: not a readable HDF5 file ({error})") from error

    if arrays["cell_ids"].ndim != 1 or arrays["cell_ids"].size == 0:
        raise SpecimenError(f"{path}: cell_ids has shape {arrays['cell_ids'].shape}, need (cells,), at least one")
    if arrays["edges_ids"].ndim != 2 or arrays["edges_ids"].shape[1] != 2:
        raise SpecimenError(f"{path}: edges_ids has shape {arrays['edges_ids'].shape}, need (surfaces, 2)")
    cells, surfaces = len(arrays["cell_ids"]), len(arrays["edges_ids"])
    for name in arrays:
        if name in features:
            rows = cells if name.startswith("cell_features") else surfaces
            shape: tuple[int, ...] = (rows, features[name].width)
            if arrays[name].size == rows and features[name].width == 1:
                arrays[name] = arrays[name].reshape(shape)
        else:
            shape = (surfaces, 2) if name == "edges_ids" else (cells,)
        if arrays[name].shape != shape:
            raise SpecimenError(f"{path}: {name} has shape {arrays[name].shape}, need {shape}")
        if not np.isfinite(arrays[name]).all():
            raise SpecimenError(f"{path}: {name} holds values that are not finite")
    if len(np.unique(arrays["cell_ids"])) != cells:
        raise SpecimenError(f"{path}: cell_ids holds the same id more than once")
    return arrays


def _classes(raw: Array, path: Path | None = None) -> np.ndarray:
    """Raw labels -> classes, −100 where unlabelled; with ``path``, a label outside the mapping is an error."""
    label = np.full(len(raw), layout.UNLABELLED, dtype=np.int64)
    for value, index in layout.CLASS_OF_RAW_LABEL.items():
        label[raw == value] = index
    if path is not None:
        unknown = np.unique(raw[(label == layout.UNLABELLED) & (raw != layout.RAW_UNLABELLED)])
        if len(unknown):
            known = sorted([layout.RAW_UNLABELLED, *layout.CLASS_OF_RAW_LABEL])
            raise SpecimenError(f"{path}: cell_labels holds {unknown.tolist()}, the known labels are {known}")
    return label


def _votes(label: np.ndarray) -> np.ndarray:
    return (label[:, None] == np.arange(layout.NUM_CLASSES)).astype(np.int64)


def _renumber(edges: np.ndarray, ids: np.ndarray, path: Path) -> np.ndarray:
    """Cell ids -> row numbers of ``cell_ids``."""
    order = np.argsort(ids)
    row = order[np.searchsorted(ids, edges, sorter=order).clip(max=len(ids) - 1)]
    unknown = edges[ids[row] != edges]
    if len(unknown):
        raise SpecimenError(f"{path}: edges_ids names cell {unknown[0]}, which is not in cell_ids")
    return row


def _moments(coordinates: Array) -> torch.Tensor:
    return _float(np.append(coordinates.mean(axis=0), coordinates.std()))[None]


def _float(values: Array) -> torch.Tensor:
    return torch.from_numpy(values).float()
