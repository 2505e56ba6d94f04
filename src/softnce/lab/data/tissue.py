"""Tissue-like specimens in the CellTypeGraph layout, to try and test everything without a download.

    python -m softnce.lab.data.tissue --out data/tissue

A specimen is an ovoid on a stalk, filled shell by shell with jittered cell centres and cut into Voronoi cells. Cell
types follow from the shell and the height: two outer and two inner coats that grow over the core from the base as
the stage advances, a core of three regions along the axis, an embryo sac of one to four cells, a stalk. All features
are measured on the Voronoi cells, with noise. The types are unbalanced (the embryo sac is rare) and depend on the
context: an outer cell beyond the edge of the coats belongs to the core. The second expert sees the same tissue and
takes a cell for one of its neighbours' type more often the more surface it shares with them.

It is not a model of an ovule: results on it show that the pipeline works and compare losses with each other; they say
nothing about the benchmark's numbers.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import h5py
import numpy as np
from scipy.spatial import Voronoi, cKDTree

from softnce.lab.atomic import replacing
from softnce.lab.configuration import check_ranges, from_args, option
from softnce.lab.data import layout
from softnce.lab.data.layout import Array

STAGES = ("2-III", "2-IV", "2-V", "3-I", "3-II", "3-III", "3-IV", "3-V", "3-VI")
CELL_UM = 6.0  # diameter of a cell; lengths below are in units of it until a specimen is written
L1, L2, L3, L4, NU, PC, FUNICULUS, ES, AC, L5 = 1, 2, 3, 4, 5, 6, 7, 8, 10, 14  # raw labels of the layout


@dataclass(frozen=True)
class TissueConfig:
    """What to generate."""

    out: Path = field(default=Path("data/tissue"), metadata={"help": "root to write the benchmark's folders into"})
    specimens: int = option(30, "number of specimens, distributed evenly over the stages")
    stages: int = option(6, "number of developmental stages, 1 to 9", least=1, most=9)
    cells: tuple[int, int] = option(
        (300, 800), "approximate cells per specimen in the first and in the last stage", least=50
    )
    noise: float = option(0.15, "relative error of every measured length, area, volume and direction", least=0)
    disagreement: float = option(
        0.3, "probability that the second expert follows the neighbours, per share of surface", least=0, most=1
    )
    seed: int = option(0, "seed")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.specimens < self.stages:
            raise ValueError(f"specimens: got {self.specimens}, need at least one for each of {self.stages} stages")


def write_tissue(config: TissueConfig) -> Path:
    """Generate the missing specimens; returns the root. A root generated with other settings is an error.

    About 0.3 s and 0.5 MB for a specimen of 500 cells.
    """
    from rich.progress import track

    settings = json.loads(json.dumps({k: v for k, v in asdict(config).items() if k != "out"}))
    record = config.out / "tissue.json"
    if record.exists() and json.loads(record.read_text()) != settings:
        raise ValueError(
            f"{record} was generated with {record.read_text().strip()}, not {settings}: use another folder"
        )
    if not record.exists():
        with replacing(record, shared=True) as partial:
            partial.write_text(json.dumps(settings) + "\n")

    stages = [STAGES[round(i)] for i in np.linspace(0, len(STAGES) - 1, config.stages)]
    paths = [config.out / layout.FOLDER / stages[i % config.stages] / f"T{i:03d}.h5" for i in range(config.specimens)]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    for i in track(missing, "growing specimens", disable=len(missing) < 10, transient=True):
        maturity = (i % config.stages) / max(config.stages - 1, 1)
        cells = round(config.cells[0] + maturity * (config.cells[1] - config.cells[0]))
        rng = np.random.default_rng([config.seed, i])
        write_specimen(paths[i], grow(cells, maturity, rng, config.noise, config.disagreement))
    return config.out


def recorded(out: Path) -> TissueConfig:
    """The settings that the tissue in ``out`` was generated with; the default ones if there is none."""
    record = out / "tissue.json"
    settings = json.loads(record.read_text()) if record.exists() else {}
    if "cells" in settings:
        settings["cells"] = tuple(settings["cells"])
    return TissueConfig(out=out, **settings)


def write_specimen(path: Path, contents: Mapping[str, np.ndarray]) -> None:
    """Write arrays named by their HDF5 path; names that start with ``@`` are attributes of the file."""
    with replacing(path, shared=True) as partial, h5py.File(partial, "w") as file:
        for name, values in contents.items():
            if name.startswith("@"):
                file.attrs[name[1:]] = values
            else:
                file[name] = values


def grow(
    cells: int, maturity: float, rng: np.random.Generator, noise: float = 0.15, disagreement: float = 0.3
) -> dict[str, np.ndarray]:
    """One specimen: the arrays of its file.

    Args:
        cells: approximate number of cells.
        maturity: 0 (first stage: two coats that cover a third) to 1 (four coats that cover all).
        rng: source of everything random.
        noise: relative error of the measurements.
        disagreement: how often the second expert gives a cell the type of a neighbour.
    """
    seeds, label, outside = _seeds(cells, maturity, rng)
    n = len(seeds)
    cut = _voronoi(seeds, outside)
    hops = _hops(n, cut)

    # Measured directions and sizes. Everything derived from them below inherits their errors.
    def scaled(values: Array) -> Array:
        return values * np.exp(noise * rng.standard_normal(values.shape))

    tilt = _rotation(0.1 * rng.standard_normal(3))  # reference axes found in a specimen are a little off
    lrs, angle = _local_axes(cut, hops)
    pca, variance = _principal_axes(n, cut)
    lrs, pca = (_unit(axes + noise * rng.standard_normal(axes.shape)) @ tilt.T for axes in (lrs, pca))
    centre = cut.centre + 0.5 * noise * rng.standard_normal((n, 3))
    origin = centre[label == L1].mean(axis=0) if (label == L1).any() else centre.mean(axis=0)

    def coordinates(points: Array) -> Array:
        return CELL_UM * (points - origin) @ tilt.T

    # Surfaces between cells i < j, then one for each cell on the background.
    inner = cut.neighbour < n
    i, j = cut.cell[inner], cut.neighbour[inner]
    first = i < j
    i, j = i[first], j[first]
    area, face = cut.area[inner][first], cut.face_centre[inner][first]
    outer_area = np.bincount(cut.cell[~inner], cut.area[~inner], minlength=n)
    surface_cells = np.flatnonzero(outer_area > 0)
    outer_face = _sum_by(cut.cell[~inner], cut.area[~inner, None] * cut.face_centre[~inner], n)[surface_cells]
    outer_face /= outer_area[surface_cells, None]
    zeros = np.zeros(len(surface_cells))  # what the layout writes where a background surface has no value
    direction = _unit(centre[j] - centre[i]) @ tilt.T

    ids = 1 + np.sort(rng.choice(3 * n, n, replace=False))  # ids of a cleaned segmentation have gaps
    ids_of_edges = np.concatenate([np.stack([ids[i], ids[j]], 1), np.stack([0 * surface_cells, ids[surface_cells]], 1)])
    second = _second_expert(label, i, j, area, disagreement, rng)
    same = np.concatenate([label[i] == label[j], zeros.astype(bool)])

    cell = {
        "com_grs": coordinates(centre),
        "degree_centrality": np.bincount(np.concatenate([i, j]), minlength=n) / (n - 1),
        "rw_centrality": _random_walk_betweenness(n, i, j, rng),
        "hops_to_bg": hops,
        "volume_um": CELL_UM**3 * scaled(cut.volume),
        "surface_um": CELL_UM**2 * scaled(np.bincount(cut.cell, cut.area, minlength=n)),
        "lrs_axis12_dot_grs": (lrs[:, 0] * lrs[:, 1]).sum(1),
        "lrs_axis2_angle_grs": angle,
        "pca_explained_variance_grs": CELL_UM**2 * scaled(variance),
    }
    for k in range(3):
        cell[f"length_axis{k + 1}_grs"] = CELL_UM * scaled(_length(n, cut, lrs[:, k] @ tilt))
        for name, axes in (("lrs", lrs), ("pca", pca)):
            cell[f"{name}_axis{k + 1}_grs"] = axes[:, k]
            cell[f"{name}_orientation_axis{k + 1}_grs"] = layout.orientation(axes[:, k])
            cell[f"{name}_proj_axis{k + 1}_grs"] = axes[:, k]  # on the reference axes: its coordinates
    edge = {
        "surface_um": CELL_UM**2 * scaled(np.concatenate([area, outer_area[surface_cells]])),
        "com_distance_um": CELL_UM * np.concatenate([np.linalg.norm(centre[i] - centre[j], axis=1), zeros]),
        "com_grs": coordinates(np.concatenate([face, outer_face])),
        "lrs_proj_grs": np.concatenate([direction, np.zeros((len(zeros), 3))]),
    }
    for k in range(3):
        edge[f"lrs_dot_axis{k + 1}_grs"] = np.concatenate([(lrs[i, k] * lrs[j, k]).sum(1), zeros])

    specimen: dict[str, np.ndarray] = {
        "cell_ids": ids.astype(np.int32),
        "cell_labels": label.astype(np.int32),
        "cell_labels_set2": second.astype(np.int32),
        "edges_ids": ids_of_edges.astype(np.int32),
        "edges_labels": same.astype(np.int32),
        "cell_samples/random_samples_grs": coordinates(_samples_of_cells(centre, rng)).astype(np.float32),
        "edges_samples/random_samples_grs": edge["com_grs"][:, None].astype(np.float32),
        "@global_reference_system_origin": CELL_UM * origin,
        "@global_reference_system_axis": tilt,
        "@element_size_um": np.full(3, 0.2),
    }
    origins = {"label_grs_surface": label == L1, "label_grs_funiculus": label == FUNICULUS}
    for name, chosen in {**origins, "es_trivial_grs": label == ES, "es_pca_grs": label == ES}.items():
        specimen[f"grs/{name}_axis"] = np.eye(3) if name == "es_trivial_grs" else tilt
        specimen[f"grs/{name}_origin"] = CELL_UM * (centre[chosen].mean(axis=0) if chosen.any() else origin)
    for group, features in (("cell_features", cell), ("edges_features", edge)):
        for name, values in features.items():
            whole = name == "hops_to_bg"
            specimen[f"{group}/{name}"] = values.astype(np.int32 if whole else np.float32)
    return specimen


def _seeds(cells: int, maturity: float, rng: np.random.Generator) -> tuple[Array, np.ndarray, Array]:
    """Cell centres (n, 3), their raw labels, and centres of background cells all around."""
    slenderness = rng.uniform(1.3, 1.6)
    b = (3 * 0.88 * cells / (4 * np.pi * slenderness)) ** (1 / 3)  # 12 % of the cells go to the stalk
    a = slenderness * b

    shells: list[Array] = []
    below = 0.0  # how deep the next shell begins
    while b - below > 0.3:
        thickness = 0.8 if len(shells) < 4 else 1.0  # coats are flatter than the core's cells
        middle = min(below + thickness / 2, b - 0.1)
        p, q = a - middle, b - middle
        area = 4 * np.pi * ((2 * (p * q) ** 1.6 + q**3.2) / 3) ** (1 / 1.6)  # of an ellipsoid, Thomsen's formula
        sphere = _fibonacci_sphere(max(2, round(area * thickness)), rng.uniform(0, 2 * np.pi))
        shells.append(np.column_stack([sphere * [q, q, p], np.full(len(sphere), len(shells))]))
        below += thickness
    body = np.concatenate(shells)
    depth, body = body[:, 3], body[:, :3] + 0.12 * rng.standard_normal((len(body), 3))

    radius = max(1.0, 0.38 * b)
    length = 0.12 * cells / (np.pi * radius**2)
    grid = _grid([-radius, -radius, -a - length], [radius, radius, -0.5 * a], 1.0)
    grid += 0.12 * rng.standard_normal(grid.shape)
    stalk = grid[np.hypot(grid[:, 0], grid[:, 1]) < radius]
    stalk = stalk[cKDTree(body).query(stalk)[0] > 0.75]
    stalk = stalk[stalk[:, 2] < -0.5 * a]

    height = (body[:, 2] + a) / (2 * a)  # 0 at the stalk, 1 at the tip
    wobble = 0.03 * rng.standard_normal((4, 1)) + 0.02 * rng.standard_normal((4, len(body)))
    base = height + wobble[0]
    label = np.where(base < 0.33, PC, np.where(base < 0.42, AC, NU))
    outer, inner = (0.4 + 0.6 * maturity + wobble[1], 0.35 + 0.55 * maturity + wobble[2])
    for coat, shell in ((L1, 0), (L2, 1)):
        label[(depth == shell) & (height < outer)] = coat
    if maturity > 0.3:
        for coat, shell in ((L3, 2), (L4, 3)):
            label[(depth == shell) & (base > 0.38) & (height < inner)] = coat
    if maturity > 0.7:
        label[(depth == 4) & (base > 0.38) & (height < 0.45 + wobble[3])] = L5

    order = np.argsort(np.linalg.norm(body - [0, 0, 0.3 * a], axis=1))
    sac = order[: 1 if maturity < 0.5 else rng.integers(1, 5)]
    label[sac] = ES
    crowded = np.linalg.norm(body - body[sac[0]], axis=1) < 1.2  # the embryo sac is larger than other cells
    keep = ~crowded | (label == ES)
    seeds = np.concatenate([body[keep], stalk])
    label = np.concatenate([label[keep], np.full(len(stalk), FUNICULUS)])

    outside = _grid(seeds.min(axis=0) - 2, seeds.max(axis=0) + 2, 0.9)
    outside += 0.05 * rng.standard_normal(outside.shape)
    in_body = (outside[:, 0] ** 2 + outside[:, 1] ** 2) / b**2 + outside[:, 2] ** 2 / a**2 < 1
    distance = cKDTree(seeds).query(outside)[0]
    outside = outside[~in_body & (distance > 0.75) & (distance < 2.0)]

    bend = rng.uniform(0.0, 0.6) * b / a**2
    for points in (seeds, outside):
        points[:, 0] += bend * points[:, 2] ** 2
    return seeds, label, outside


@dataclass(frozen=True)
class _Cut:
    """Voronoi faces, each seen from a cell: entry f is a face of ``cell[f]`` towards ``neighbour[f]``.

    Neighbours n and above are background. Triangles of the faces: corners (t, 3, 3), area, and the face they are of.
    """

    cell: np.ndarray
    neighbour: np.ndarray
    normal: Array
    area: Array
    face_centre: Array
    volume: Array
    centre: Array
    corners: Array
    triangle_area: Array
    triangle_cell: np.ndarray


def _voronoi(seeds: Array, outside: Array) -> _Cut:
    n = len(seeds)
    points = np.concatenate([seeds, outside])
    diagram = Voronoi(points)
    pairs = diagram.ridge_points
    wanted = (pairs < n).any(axis=1)
    pairs = pairs[wanted]
    polygons = [polygon for polygon, keep in zip(diagram.ridge_vertices, wanted, strict=True) if keep]
    if any(-1 in polygon for polygon in polygons):
        raise RuntimeError("a cell of the tissue is not closed: the background around it is too thin")

    # Fan triangulation of all polygons at once: (first, k, k + 1).
    sizes = np.array([len(polygon) for polygon in polygons])
    flat = np.concatenate(polygons)
    starts = np.cumsum(sizes) - sizes
    of_polygon = np.repeat(np.arange(len(polygons)), sizes - 2)
    k = np.arange(len(of_polygon)) - np.repeat(np.cumsum(sizes - 2) - (sizes - 2), sizes - 2) + 1
    first = starts[of_polygon]
    corners = diagram.vertices[np.stack([flat[first], flat[first + k], flat[first + k + 1]], axis=1)]
    triangle_area = 0.5 * np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    area = np.bincount(of_polygon, triangle_area, minlength=len(polygons))
    face_centre = _sum_by(of_polygon, triangle_area[:, None] * corners.mean(axis=1), len(polygons))
    face_centre /= np.maximum(area, 1e-300)[:, None]

    seen = area > 1e-2  # a segmentation does not resolve smaller contacts
    half = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1) / 2
    volume, moment = np.zeros(n), np.zeros((n, 3))
    faces: dict[str, list[np.ndarray]] = {"polygon": [], "cell": [], "neighbour": []}
    triangles: dict[str, list[np.ndarray]] = {"index": [], "cell": []}
    for side in (0, 1):
        cell, neighbour = pairs[:, side], pairs[:, 1 - side]
        own = cell < n
        # A face and the seed span a pyramid of height `half`; its triangles give tetrahedra.
        t = np.flatnonzero(own[of_polygon])
        owner = cell[of_polygon[t]]
        tetrahedron = triangle_area[t] * half[of_polygon[t]] / 3
        volume += np.bincount(owner, tetrahedron, minlength=n)
        moment += _sum_by(owner, tetrahedron[:, None] * (points[owner] + corners[t].sum(axis=1)) / 4, n)
        triangles["index"].append(t)
        triangles["cell"].append(owner)
        f = np.flatnonzero(own & seen)
        faces["polygon"].append(f)
        faces["cell"].append(cell[f])
        faces["neighbour"].append(neighbour[f])
    polygon, cell, neighbour = (np.concatenate(faces[name]) for name in ("polygon", "cell", "neighbour"))
    index = np.concatenate(triangles["index"])
    return _Cut(
        cell=cell,
        neighbour=neighbour,
        normal=_unit(points[neighbour] - points[cell]),
        area=area[polygon],
        face_centre=face_centre[polygon],
        volume=volume,
        centre=moment / volume[:, None],
        corners=corners[index],
        triangle_area=triangle_area[index],
        triangle_cell=np.concatenate(triangles["cell"]),
    )


def _hops(n: int, cut: _Cut) -> np.ndarray:
    """Surfaces to cross from each cell to the background: 1 on the outside."""
    hops = np.full(n, n)
    hops[cut.cell[cut.neighbour >= n]] = 1
    inner = cut.neighbour < n
    cell, neighbour = cut.cell[inner], cut.neighbour[inner]
    for step in range(2, n):
        reached = cell[hops[neighbour] == step - 1]
        reached = reached[hops[reached] > step]
        if len(reached) == 0:
            break
        hops[reached] = step
    return hops


def _local_axes(cut: _Cut, hops: np.ndarray) -> tuple[Array, Array]:
    """Each cell's own axes (n, 3, 3), and the angle between the neighbours that span the second.

    First axis: outward, through the surfaces that lead to the background. Second: between the two neighbours of the
    same layer that lie most opposite. Third: normal to both.
    """
    n = len(hops)
    hops_beyond = np.append(hops, 0)[np.minimum(cut.neighbour, n)]
    outward = hops_beyond < hops[cut.cell]
    weighted = cut.area[outward, None] * cut.normal[outward]
    first = _unit(_sum_by(cut.cell[outward], weighted, n))

    second, angle = np.cross(first, [0.0, 0.0, 1.0]), np.full(n, np.pi)
    beside = np.flatnonzero(hops_beyond == hops[cut.cell])
    beside = beside[np.argsort(cut.cell[beside], kind="stable")]
    bounds = np.searchsorted(cut.cell[beside], np.arange(n + 1))
    for c in range(n):
        direction = cut.normal[beside[bounds[c] : bounds[c + 1]]]
        if len(direction) > 1:
            cosine = direction @ direction.T
            p, q = np.unravel_index(cosine.argmin(), cosine.shape)
            second[c], angle[c] = direction[p] - direction[q], np.arccos(np.clip(cosine[p, q], -1, 1))
    second = _unit(second)
    return np.stack([first, second, _unit(np.cross(first, second))], axis=1), angle


def _principal_axes(n: int, cut: _Cut) -> tuple[Array, Array]:
    """Principal axes (n, 3, 3) of each cell's surface, longest first, and the variances along them (n, 3)."""
    weight = np.repeat(cut.triangle_area / 3, 3)
    cell = np.repeat(cut.triangle_cell, 3)
    points = cut.corners.reshape(-1, 3)
    total = np.bincount(cell, weight, minlength=n)[:, None]
    centred = points - (_sum_by(cell, weight[:, None] * points, n) / total)[cell]
    square = centred[:, :, None] * centred[:, None, :]
    covariance = _sum_by(cell, (weight[:, None, None] * square).reshape(-1, 9), n) / total
    variance, axes = np.linalg.eigh(covariance.reshape(n, 3, 3))
    return np.swapaxes(axes, 1, 2)[:, ::-1], variance[:, ::-1]


def _length(n: int, cut: _Cut, axis: Array) -> Array:
    """Extent of each cell along its axis (n, 3)."""
    cell = np.repeat(cut.triangle_cell, 3)
    along = (cut.corners.reshape(-1, 3) * axis[cell]).sum(axis=1)
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, cell, along)
    np.maximum.at(high, cell, along)
    return high - low


def _random_walk_betweenness(n: int, i: np.ndarray, j: np.ndarray, rng: np.random.Generator) -> Array:
    """Current-flow betweenness, up to its scale, over at most 256 terminals drawn from the cells.

    A unit current from s to t drives |P_es − P_et| through edge e, with P the differences of the Laplacian's
    pseudo-inverse across e; its sum over pairs of terminals needs only the sorted row. O(n³/3 + e·256·log 256).
    """
    laplacian = np.zeros((n, n))
    np.subtract.at(laplacian, (np.concatenate([i, j]), np.concatenate([j, i])), 1.0)
    laplacian[np.arange(n), np.arange(n)] = -laplacian.sum(axis=1)
    terminals = rng.permutation(n)[:256]
    potential = np.linalg.solve(laplacian + 1.0 / n, np.eye(n)[:, terminals])
    across = np.sort(potential[i] - potential[j], axis=1)
    m = len(terminals)
    current = across @ (2 * np.arange(m) - m + 1) / (m * (m - 1) / 2)
    return 0.5 * np.bincount(np.concatenate([i, j]), np.concatenate([current, current]), minlength=n)


def _second_expert(
    label: np.ndarray, i: np.ndarray, j: np.ndarray, area: Array, disagreement: float, rng: np.random.Generator
) -> np.ndarray:
    """Another reading of the same cells: each type is taken in proportion to the surface the cell shares with it."""
    n, values = len(label), np.unique(label)
    kind = np.searchsorted(values, label)
    shared = np.zeros((n, len(values)))
    np.add.at(shared, (i, kind[j]), area)
    np.add.at(shared, (j, kind[i]), area)
    total = shared.sum(axis=1)
    chance = disagreement * shared / np.maximum(total, 1e-300)[:, None]
    chance[np.arange(n), kind] = 0
    chance[np.arange(n), kind] = 1 - chance.sum(axis=1)
    drawn = (rng.random((n, 1)) > np.cumsum(chance, axis=1)[:, :-1]).sum(axis=1)
    second = values[drawn]
    second[rng.random(n) < 0.005] = layout.RAW_UNLABELLED
    return second


def _samples_of_cells(centre: Array, rng: np.random.Generator) -> Array:
    return centre[:, None] + 0.25 * rng.standard_normal((len(centre), 8, 3))


def _fibonacci_sphere(n: int, turn: float) -> Array:
    z = 1 - (2 * np.arange(n) + 1) / n
    longitude = turn + np.pi * (3 - np.sqrt(5)) * np.arange(n)
    radius = np.sqrt(1 - z**2)
    return np.stack([radius * np.cos(longitude), radius * np.sin(longitude), z], axis=1)


def _grid(low: Array | list[float], high: Array | list[float], step: float) -> Array:
    axes = [np.arange(start, stop + step / 2, step) for start, stop in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def _rotation(vector: Array) -> Array:
    """Rotation about ``vector`` by its length (Rodrigues)."""
    angle = np.linalg.norm(vector)
    x, y, z = vector / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300)


def _sum_by(group: np.ndarray, rows: Array, n: int) -> Array:
    """Sum the rows (m, d) of each of n groups."""
    return np.stack([np.bincount(group, column, minlength=n) for column in rows.T], axis=1)


def main(argv: list[str]) -> None:
    description = "Grow tissue-like specimens in the layout of the CellTypeGraph benchmark."
    config = from_args(TissueConfig, argv, prog="python -m softnce.lab.data.tissue", description=description)
    try:
        root = write_tissue(config)
    except ValueError as error:
        sys.exit(str(error))
    print(f"{config.specimens} specimens in {root / layout.FOLDER}")


if __name__ == "__main__":
    main(sys.argv[1:])
