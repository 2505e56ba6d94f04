import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.spatial import ConvexHull

from softnce.lab.data import layout, tissue
from softnce.lab.data.celltypegraph import find_specimens, read_specimen
from softnce.lab.data.tissue import TissueConfig, grow, main, write_specimen, write_tissue

EXACT = {"noise": 0.0, "disagreement": 0.0}


@pytest.fixture(scope="module")
def specimen() -> dict[str, np.ndarray]:
    return grow(150, 1.0, np.random.default_rng(3), **EXACT)


def test_file_has_the_published_layout(tissue: Path):
    (path, *_) = [s.path for s in find_specimens(tissue)]
    assert path.relative_to(tissue).parts[:3] == ("ovules-celltype-dataset", "raw", "label_grs_surface")
    with h5py.File(path) as file:
        groups = {"cell_features", "edges_features", "cell_samples", "edges_samples", "grs"}
        datasets = {"cell_ids", "cell_labels", "cell_labels_set2", "edges_ids", "edges_labels"}
        assert set(file) == groups | datasets
        assert set(file.attrs) == {
            "global_reference_system_origin",
            "global_reference_system_axis",
            "element_size_um",
        }
        assert set(file["cell_features"]) >= {f.name for f in layout.NODE_FEATURES}
        assert set(file["edges_features"]) >= {f.name for f in layout.EDGE_FEATURES}
        assert (file["edges_ids"][...] == 0).any(), "surfaces to the background"


def test_arrays_round_trip_through_the_file(tmp_path: Path, specimen):
    path = tmp_path / "stage" / "specimen.h5"
    write_specimen(path, specimen)
    with h5py.File(path) as file:
        for name, values in specimen.items():
            stored = file.attrs[name[1:]] if name.startswith("@") else file[name]
            np.testing.assert_array_equal(stored, values, err_msg=name)
            assert stored.dtype == values.dtype
    with pytest.raises(TypeError):
        write_specimen(path, {**specimen, "cell_ids": object()})
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["cell_ids"], specimen["cell_ids"])  # an interrupted write costs nothing
    assert [p.name for p in path.parent.iterdir()] == ["specimen.h5"]


def test_graph_keeps_cells_labels_and_inner_surfaces(tmp_path: Path, specimen):
    path = tmp_path / "stage" / "specimen.h5"
    write_specimen(path, specimen)
    graph = read_specimen(path)
    ids, edges = specimen["cell_ids"], specimen["edges_ids"]
    inner = edges[(edges != 0).all(1)]
    np.testing.assert_array_equal(ids[graph.edge_index.numpy()].T, inner)
    np.testing.assert_array_equal(graph.y.numpy(), [layout.CLASS_OF_RAW_LABEL[v] for v in specimen["cell_labels"]])
    np.testing.assert_array_equal(graph.pos.numpy(), specimen["cell_features/com_grs"])


def test_volumes_are_those_of_the_voronoi_cells():
    """The pyramids' volumes against each cell's convex hull, and no cell reaches outside."""
    seeds, _, outside = tissue._seeds(100, 0.5, np.random.default_rng(0))
    cut = tissue._voronoi(seeds, outside)
    for cell in range(0, len(seeds), 9):
        hull = ConvexHull(cut.corners[cut.triangle_cell == cell].reshape(-1, 3))
        assert cut.volume[cell] == pytest.approx(hull.volume, rel=1e-9)
        assert (hull.equations[:, :3] @ cut.centre[cell] + hull.equations[:, 3] < 0).all(), "centre lies inside"
    assert 0.2 < cut.volume.min() < cut.volume.max() < 4


def test_graph_features_agree_with_the_graph(specimen):
    ids, edges = specimen["cell_ids"], specimen["edges_ids"]
    n = len(ids)
    row = np.where(edges == 0, n, np.searchsorted(ids, edges))  # node n is the background
    graph = coo_array((np.ones(len(row)), row.T), shape=(n + 1, n + 1)).tocsr()
    np.testing.assert_array_equal(
        specimen["cell_features/hops_to_bg"], shortest_path(graph, directed=False, unweighted=True, indices=n)[:n]
    )
    inner = edges[(edges != 0).all(1)]
    degree = np.array([(inner == i).sum() for i in ids])
    np.testing.assert_allclose(specimen["cell_features/degree_centrality"], degree / (n - 1), rtol=1e-6)
    assert connected_components(graph[:n, :n], directed=False)[0] == 1
    assert (edges[:, 0] < edges[:, 1]).all()
    assert len(np.unique(edges, axis=0)) == len(edges)


def test_random_walk_betweenness_is_networkxs():
    """Current-flow betweenness of a small graph, all nodes as terminals; equal up to the affine map of its scaling."""
    networkx = pytest.importorskip("networkx")
    graph = networkx.random_geometric_graph(40, 0.35, seed=1)
    assert networkx.is_connected(graph)
    i, j = np.array(graph.edges).T
    ours = tissue._random_walk_betweenness(40, i, j, np.random.default_rng(0))
    theirs = np.array([networkx.current_flow_betweenness_centrality(graph)[v] for v in range(40)])
    slope, shift = np.polyfit(ours, theirs, 1)
    np.testing.assert_allclose(slope * ours + shift, theirs, atol=1e-10)


def test_directions_and_projections_belong_together(specimen):
    cell = {k.split("/")[1]: v.astype(float) for k, v in specimen.items() if k.startswith("cell_features")}
    for kind in ("lrs", "pca"):
        axes = np.stack([cell[f"{kind}_axis{k}_grs"] for k in (1, 2, 3)], axis=1)
        np.testing.assert_allclose(np.linalg.norm(axes, axis=2), 1, atol=1e-6)
        for k in (1, 2, 3):
            expected = layout.orientation(cell[f"{kind}_axis{k}_grs"])
            np.testing.assert_allclose(cell[f"{kind}_orientation_axis{k}_grs"], expected, atol=1e-6)
    variance = cell["pca_explained_variance_grs"]
    assert (np.diff(variance, axis=1) <= 0).all(), "longest axis first"
    assert (cell["lrs_axis2_angle_grs"] >= 0).all()


def test_types_are_unbalanced_layered_and_stage_dependent():
    young, old = (grow(400, maturity, np.random.default_rng(0)) for maturity in (0.0, 1.0))
    kinds = {name: set(s["cell_labels"].tolist()) for name, s in (("young", young), ("old", old))}
    assert kinds["young"] == {1, 2, 5, 6, 7, 8, 10}, "no inner coats yet"
    assert kinds["old"] >= {1, 2, 3, 4, 5, 6, 7, 8, 10}
    label, hops = old["cell_labels"], old["cell_features/hops_to_bg"]
    depth = [hops[label == coat].mean() for coat in (1, 2, 3, 4)]
    assert depth == sorted(depth), "coats lie within each other"
    assert (label == 8).sum() <= 4 < 50 < (label == 1).sum()


def test_second_expert_disagrees_at_borders_only_and_as_told():
    def disagreement(strength: float) -> tuple[float, np.ndarray, dict[str, np.ndarray]]:
        specimen = grow(400, 0.6, np.random.default_rng(1), disagreement=strength)
        first, second = specimen["cell_labels"], specimen["cell_labels_set2"]
        differs = (first != second) & (second != 0)
        return differs.mean(), differs, specimen

    none, some, much = (disagreement(strength) for strength in (0.0, 0.3, 0.9))
    assert none[0] == 0.0
    assert 0.02 < some[0] < much[0]
    _, differs, specimen = much
    row = {c: i for i, c in enumerate(specimen["cell_ids"])}
    inner = [(row[a], row[b]) for a, b in specimen["edges_ids"] if a != 0]
    label = specimen["cell_labels"]
    around: dict[int, set[int]] = {i: set() for i in range(len(label))}
    for a, b in inner:
        around[a].add(label[b])
        around[b].add(label[a])
    assert all(specimen["cell_labels_set2"][i] in around[i] for i in np.flatnonzero(differs))


def test_noise_blurs_measurements_and_nothing_else():
    exact, noisy = (grow(150, 0.5, np.random.default_rng(2), noise=noise) for noise in (0.0, 0.2))
    for name in ("cell_ids", "cell_labels", "edges_ids", "edges_labels", "cell_features/hops_to_bg"):
        np.testing.assert_array_equal(exact[name], noisy[name], err_msg=name)
    ratio = np.log(noisy["cell_features/volume_um"] / exact["cell_features/volume_um"])
    assert 0.1 < ratio.std() < 0.3
    assert abs(ratio.mean()) < 0.1


def test_same_seed_same_specimen_other_seed_another():
    a, b = (grow(120, 0.5, np.random.default_rng([0, 1])) for _ in range(2))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    c = grow(120, 0.5, np.random.default_rng([0, 2]))
    assert not np.array_equal(a["cell_features/com_grs"], c["cell_features/com_grs"])


def test_cell_counts_are_about_what_was_asked():
    for cells, maturity in ((60, 0.0), (300, 0.0), (800, 1.0)):
        assert len(grow(cells, maturity, np.random.default_rng(0))["cell_ids"]) == pytest.approx(cells, rel=0.2)


def test_writing_resumes_and_refuses_to_mix(tmp_path: Path):
    config = TissueConfig(out=tmp_path, specimens=3, stages=1, cells=(60, 60))
    write_tissue(config)
    paths = [s.path for s in find_specimens(tmp_path)]
    before = {p: p.read_bytes() for p in paths}
    times = {p: p.stat().st_mtime_ns for p in paths}
    paths[1].unlink()
    write_tissue(config)
    assert {p: read_specimen(p).x.sum() for p in paths[1:2]}, "grown again"
    assert all(p.stat().st_mtime_ns == times[p] for p in (paths[0], paths[2])), "the others are left alone"
    with h5py.File(paths[1]) as again:
        expected = grow(60, 0.0, np.random.default_rng([0, 1]))
        np.testing.assert_array_equal(again["cell_features/com_grs"], expected["cell_features/com_grs"])
    assert paths[0].read_bytes() == before[paths[0]]
    with pytest.raises(ValueError, match="use another folder"):
        write_tissue(replace(config, seed=1))
    assert json.loads((tmp_path / "tissue.json").read_text())["seed"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 0}, "stages: got 0, need at least 1 and at most 9"),
        ({"stages": 6, "specimens": 5}, "specimens: got 5"),
        ({"cells": (10, 80)}, r"cells: got 10, need at least 50"),
        ({"noise": -0.1}, "noise: got -0.1"),
        ({"disagreement": 1.5}, "disagreement: got 1.5"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        TissueConfig(**options)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--out", str(tmp_path), "--specimens", "1", "--stages", "1", "--cells", "[60, 60]"]
    main(arguments)
    assert "1 specimens in" in capsys.readouterr().out
    assert len(find_specimens(tmp_path)) == 1
    with pytest.raises(SystemExit, match="use another folder"):
        main([*arguments, "--seed", "7"])
