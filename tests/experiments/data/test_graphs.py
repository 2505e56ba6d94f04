"""Specimens as the published layout defines them, the benchmark's folds and accuracies, the paper's augmentations."""

import copy
import math
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from experiments.data import celltypegraph as cells
from experiments.data import graph_augment as augment
from experiments.data.celltypegraph import find_specimens, folds, read_specimen
from experiments.data.graph_metrics import class_average, pooled, specimen_confusions, top1
from experiments.data.graphs import open_task, write_random_specimens

K = 9


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_random_specimens(tmp_path_factory.mktemp("specimens"), specimens=6)


@pytest.fixture
def graph(root) -> Data:
    torch.manual_seed(0)
    return read_specimen(find_specimens(root)[0])


@pytest.fixture
def own(root, tmp_path) -> Path:
    """A specimen of its own to damage."""
    return Path(shutil.copy(find_specimens(root)[0], tmp_path / "own.h5"))


def reference(path: Path) -> dict[str, np.ndarray]:
    """The published recipe in plain loops, written from its description alone."""
    with h5py.File(path) as f:
        raw = {k: {n: v[...].astype(float) for n, v in f[k].items()} for k in ("cell_features", "edges_features")}
        ids, edges, labels, labels2 = (f[k][...] for k in ("cell_ids", "edges_ids", "cell_labels", "cell_labels_set2"))

    def z(v):
        return (v - v.mean()) / v.std()

    cell, edge = raw["cell_features"], raw["edges_features"]
    columns = [z(cell["com_grs"])]
    for kind in ("lrs", "pca"):
        for k in (1, 2, 3):
            columns.append(np.array([row / abs(sum(row)) for row in cell[f"{kind}_orientation_axis{k}_grs"]]))
    columns += [z(cell["degree_centrality"]), z(cell["rw_centrality"])]
    hops = np.zeros((len(ids), 5))
    for i, h in enumerate(cell["hops_to_bg"].ravel()):
        hops[i, min(int(h - cell["hops_to_bg"].min()), 4)] = 1
    columns += [hops, z(cell["volume_um"]), z(cell["surface_um"])]
    columns += [z(cell[f"length_axis{k}_grs"]) for k in (1, 2, 3)]
    columns += [abs(cell["lrs_axis12_dot_grs"]), abs(cell["lrs_axis2_angle_grs"])]
    columns += [abs(cell[f"{kind}_proj_axis{k}_grs"]) for kind in ("lrs", "pca") for k in (1, 2, 3)]
    columns += [z(cell["pca_explained_variance_grs"])]
    edge_columns = [z(edge["surface_um"]), z(edge["com_distance_um"]), z(edge["com_grs"])]
    edge_columns += [z(abs(edge[f"lrs_dot_axis{k}_grs"])) for k in (1, 2, 3)] + [z(abs(edge["lrs_proj_grs"]))]

    def table(parts):
        return np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1)

    row = {c: i for i, c in enumerate(ids)}
    kept = [k for k, (a, b) in enumerate(edges) if a != 0 and b != 0]
    classes = {0: -100, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 10: 8, 14: 3}
    votes = np.zeros((len(ids), 9), int)
    for expert in (labels, labels2):
        for i, raw_label in enumerate(expert):
            if raw_label in classes and raw_label != 0:
                votes[i, classes[raw_label]] += 1
    return {
        "x": table(columns),
        "edge_attr": table(edge_columns)[kept],
        "edge_index": np.array([[row[edges[k][0]], row[edges[k][1]]] for k in kept]).T,
        "y": np.array([classes[v] for v in labels]),
        "votes": votes,
    }


def test_a_graph_equals_a_slow_reading_of_its_file(own):
    with h5py.File(own, "a") as file:
        file["cell_labels"][:4] = [0, 14, 4, 10]
        file["cell_labels_set2"][:4] = [0, 9, 4, 10]  # 9 is outside the mapping
        order = np.random.default_rng(0).permutation(len(file["cell_ids"]))  # ids in another order than rows
        for name in ["cell_ids", *(f"cell_features/{n}" for n in file["cell_features"])]:
            file[name][...] = file[name][...][order]
    graph, expected = read_specimen(own), reference(own)
    for name in ("edge_index", "y", "votes"):
        np.testing.assert_array_equal(graph[name].numpy(), expected[name], err_msg=name)
    for name in ("x", "edge_attr"):  # both from the same fp32 numbers; rounding to fp32 at the end
        np.testing.assert_allclose(graph[name].numpy(), expected[name], rtol=1e-5, atol=2e-6, err_msg=name)
    assert graph.y[:4].tolist() == [-100, 3, 3, 8]
    assert graph.votes[:4].sum(1).tolist() == [0, 1, 2, 2]
    assert graph.validate()


def changed(name, change):
    def damage(path):
        with h5py.File(path, "a") as file:
            values = change(file[name][...])
            del file[name]
            if values is not None:
                file[name] = values

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed("cell_features/volume_um", lambda v: None), r"missing cell_features/volume_um$"),
        (changed("cell_features/surface_um", lambda v: v[:-1]), r"surface_um has shape \(119, 1\), need \(120, 1\)"),
        (changed("cell_labels_set2", lambda v: v[2:]), "cell_labels_set2 has shape"),
        (changed("edges_ids", np.ravel), "edges_ids has shape"),
        (changed("cell_ids", lambda v: v[:0]), "cell_ids has shape .* at least one row"),
        (changed("cell_features/rw_centrality", lambda v: v * np.nan), "rw_centrality holds .* not finite"),
        (changed("cell_features/volume_um", lambda v: np.array([b"many"] * len(v))), "no appropriate .* conversion"),
        (changed("cell_labels", lambda v: np.where(v == 1, 11, v)), "cell_labels holds 11, need one of"),
        (changed("edges_ids", lambda v: np.where(v == v.max(), 999, v)), "edges_ids names cell 999"),
        (changed("cell_ids", lambda v: np.where(v == v[1], v[0], v)), "cell_ids holds the same id more than once"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "truncated"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_a_damaged_file_is_one_line_with_its_name(own, damage, message):
    damage(own)
    with pytest.raises(ValueError, match=message) as error:
        read_specimen(own)
    assert str(error.value).startswith(f"{own}: ")
    assert "\n" not in str(error.value)


def test_a_folder_without_specimens_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data.dir .*need .*/<stage>/<stack>\.h5"):
        open_task("celltypegraph", tmp_path)


def test_folds_are_the_published_ones():
    """Per stage: list order, np.random.seed(0), shuffle, five parts; part i is tested in fold i."""
    stages = {"2-III": 7, "3-I": 12, "3-II": 5}
    paths = [Path(stage, f"{i:03d}.h5") for stage, n in stages.items() for i in range(n)]
    published, honest = folds(paths), folds(paths, honest=True)
    for i in range(5):
        expected = []
        for stage, n in stages.items():
            np.random.seed(0)  # noqa: NPY002
            order = np.arange(n)
            np.random.shuffle(order)  # noqa: NPY002
            expected += [Path(stage, f"{j:03d}.h5") for j in np.array_split(order, 5)[i]]
        assert sorted(published[i].test) == sorted(expected)
        assert published[i].selection == published[i].test == honest[i].test
        assert sorted(published[i].train + published[i].test) == sorted(paths)
        assert sorted(honest[i].train + honest[i].selection + honest[i].test) == sorted(paths)
        assert [path.parent.name for path in honest[i].selection] == list(stages)
    with pytest.raises(ValueError, match="4 specimens in 1 stages cannot fill 5 folds"):
        folds(paths[:4])


def test_augmented_graphs_keep_labels_votes_and_nodes(graph):
    before, after = copy.deepcopy(graph), augment.augmented(graph)
    for key, value in before.to_dict().items():
        assert torch.equal(graph[key], value), f"{key} of the given graph changed"
    assert torch.equal(after.y, before.y)
    assert torch.equal(after.votes, before.votes)
    assert after.x.shape == before.x.shape
    assert after.edge_attr.shape == (after.num_edges, 11)
    assert after.validate()
    assert not torch.equal(augment.augmented(graph).x, after.x)


def test_edges_are_dropped_with_their_features_and_new_ones_are_blank(graph):
    e = graph.num_edges
    fewer = copy.copy(graph)
    augment.drop_edges(fewer, 0.3)
    original = {tuple(pair): k for k, pair in enumerate(graph.edge_index.T.tolist())}
    where = [original[tuple(pair)] for pair in fewer.edge_index.T.tolist()]
    assert where == sorted(where)
    assert torch.equal(fewer.edge_attr, graph.edge_attr[where])
    assert abs(fewer.num_edges - 0.7 * e) < 5 * (0.21 * e) ** 0.5  # binomial, 5 deviations
    more = copy.copy(graph)
    augment.add_edges(more, 0.3)
    assert more.num_edges == e + round(0.3 * e)
    pairs = [frozenset(pair) for pair in more.edge_index.T.tolist()]
    assert len(set(pairs)) == more.num_edges, "no pair twice, in either direction"
    assert all(len(pair) == 2 for pair in pairs), "no loops"
    assert torch.equal(more.edge_attr[:e], graph.edge_attr)
    assert (more.edge_attr[e:] == 0).all()


def test_rotating_a_graph_equals_reading_the_rotated_file(own):
    rotation = augment.random_rotation()
    rotated = read_specimen(own)
    augment.rotate(rotated, rotation)
    turn = rotation.numpy()
    with h5py.File(own, "a") as file:
        for group in ("cell_features", "edges_features"):
            file[f"{group}/com_grs"][...] = file[f"{group}/com_grs"][...] @ turn.T
        for name in augment.ORIENTATIONS:  # xx, yy, zz, xy, yz, zx of v vᵀ
            xx, yy, zz, xy, yz, zx = file[f"cell_features/{name}"][...].T
            outer = turn @ np.array([[xx, xy, zx], [xy, yy, yz], [zx, yz, zz]]).transpose(2, 0, 1) @ turn.T
            six = [outer[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (2, 0))]
            file[f"cell_features/{name}"][...] = np.stack(six, 1)
    expected = read_specimen(own)
    for key in ("x", "edge_attr", "node_com", "edge_com"):
        torch.testing.assert_close(rotated[key], expected[key], rtol=1e-4, atol=1e-4)


def slow_scores(prediction, label, left_out, published):
    """One specimen, class by class."""
    pairs = [(p, t) for p, t in zip(prediction, label, strict=True) if t != -100]
    accuracies = []
    for k in set(range(K)) - set(left_out):
        own = [p == k for p, t in pairs if t == k]
        if own:
            accuracies.append(sum(own) / len(own))
        elif published and any(p == k for p, _ in pairs):
            accuracies.append(0.0)
    return sum(p == t for p, t in pairs) / len(pairs), np.mean(accuracies) if accuracies else math.nan


specimens = st.lists(
    st.lists(st.tuples(st.integers(0, K - 1), st.sampled_from([-100, *range(K)])), min_size=1, max_size=30).filter(
        lambda pairs: any(t != -100 for _, t in pairs)
    ),
    min_size=1,
    max_size=5,
)


@given(specimens, st.sampled_from([(), (7,), (0, 7)]))
def test_accuracies_equal_a_slow_reading_of_their_definition(found, left_out):
    prediction, label = (torch.tensor([pair[i] for s in found for pair in s]) for i in (0, 1))
    which = torch.repeat_interleave(torch.arange(len(found)), torch.tensor([len(s) for s in found]))
    confusions = specimen_confusions(prediction, label, which, K)
    for published in (False, True):
        slow = np.array([slow_scores(*zip(*s, strict=True), left_out, published) for s in found])
        np.testing.assert_allclose(top1(confusions).numpy(), slow[:, 0], rtol=1e-6)
        average = class_average(confusions, left_out, published=published)
        np.testing.assert_allclose(average.numpy(), slow[:, 1], rtol=1e-6)
    total = pooled(torch.cat([confusions, torch.zeros_like(confusions[:1])]), left_out)  # one without labels
    assert total["specimens"] == len(found)
    assert total["top1"] == pytest.approx(slow[:, 0].mean(), rel=1e-6)
    assert total["top1_deviation"] == pytest.approx(slow[:, 0].std(), rel=1e-5, abs=1e-7), "numpy's deviation"


def test_the_embryo_sac_is_left_out(root):
    assert cells.CLASS_NAMES[open_task("generated", root.parent / "none" / "x").left_out[0]] == "es"
