"""The published CellTypeGraph layout: the arrays in a specimen's file and their transforms.

One HDF5 file per specimen, ``<root>/ovules-celltype-dataset/raw/label_grs_surface/<stage>/<stack>.h5``. Every
transform works on one specimen at a time, so no statistics leak from one specimen to another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path("ovules-celltype-dataset/raw/label_grs_surface")

CLASS_NAMES = ("L1", "L2", "L3", "L4", "nu", "pc", "funiculus", "es", "ac")
NUM_CLASSES = len(CLASS_NAMES)
EMBRYO_SAC = 7  # class left out of the class average: one to a few cells per specimen
FOLDS = 5
UNLABELLED = -100  # torch's and softnce's ignore_index

RAW_UNLABELLED = 0
CLASS_OF_RAW_LABEL = {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 10: 8, 14: 3}  # 14, L5, counts as L4

BACKGROUND = 0  # cell id of everything outside the tissue

Array = NDArray[Any]


def z_score(values: Array) -> Array:
    """Mean 0, deviation 1 over the whole array: the coordinates of a vector share one mean and deviation."""
    return (values - values.mean()) / (values.std() + 1e-16)


def unit_sum(values: Array) -> Array:
    """Rows divided by |Σ of their entries|.

    The published code calls this a unit vector; its norm is √((Σ v)²), not √(Σ v²), and the published results
    depend on it. For the orientation of a unit vector the sum lies in [1/2, 2].
    """
    return values / (np.abs(values.sum(axis=1, keepdims=True)) + 1e-16)


def one_hot_hops(values: Array) -> Array:
    """Hops to the background, counted from the specimen's smallest, the last of five channels meaning "or more"."""
    channel = np.clip(values[:, 0] - values.min(), 0, 4).astype(int)
    return np.eye(5)[channel]


def absolute_z_score(values: Array) -> Array:
    return z_score(np.abs(values))


@dataclass(frozen=True)
class Feature:
    """An array of the file: its name, its columns there, its transform and the columns that come out."""

    name: str
    width: int
    transform: Callable[[Array], Array]
    columns: int


def _features(*groups: tuple[tuple[str, ...], int, Callable[[Array], Array]]) -> tuple[Feature, ...]:
    return tuple(
        Feature(name, width, transform, 5 if transform is one_hot_hops else width)
        for names, width, transform in groups
        for name in names
    )


def _axes(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.format(axis) for axis in (1, 2, 3))


NODE_FEATURES = _features(
    (("com_grs",), 3, z_score),
    (_axes("lrs_orientation_axis{}_grs"), 6, unit_sum),
    (_axes("pca_orientation_axis{}_grs"), 6, unit_sum),
    (("degree_centrality", "rw_centrality"), 1, z_score),
    (("hops_to_bg",), 1, one_hot_hops),
    (("volume_um", "surface_um"), 1, z_score),
    (_axes("length_axis{}_grs"), 1, z_score),
    (("lrs_axis12_dot_grs", "lrs_axis2_angle_grs"), 1, np.abs),
    (_axes("lrs_proj_axis{}_grs"), 3, np.abs),
    (_axes("pca_proj_axis{}_grs"), 3, np.abs),
    (("pca_explained_variance_grs",), 3, z_score),
)
EDGE_FEATURES = _features(
    (("surface_um", "com_distance_um"), 1, z_score),
    (("com_grs",), 3, z_score),
    (_axes("lrs_dot_axis{}_grs"), 1, absolute_z_score),
    (("lrs_proj_grs",), 3, absolute_z_score),
)


def columns(features: tuple[Feature, ...]) -> Mapping[str, slice]:
    """The columns of each feature in the concatenated matrix."""
    stops = np.cumsum([feature.columns for feature in features])
    return {f.name: slice(int(stop) - f.columns, int(stop)) for f, stop in zip(features, stops, strict=True)}


NODE_COLUMNS = columns(NODE_FEATURES)
EDGE_COLUMNS = columns(EDGE_FEATURES)
NUM_NODE_FEATURES = sum(f.columns for f in NODE_FEATURES)
NUM_EDGE_FEATURES = sum(f.columns for f in EDGE_FEATURES)


def orientation(vectors: Array) -> Array:
    """A direction without sign, (…, 3) -> (…, 6): x², y², z², xy, yz, zx.

    These are the entries of v vᵀ, so a rotation R acts on them linearly, as R (v vᵀ) Rᵀ.
    """
    x, y, z = np.moveaxis(vectors, -1, 0)
    return np.stack([x * x, y * y, z * z, x * y, y * z, z * x], axis=-1)
