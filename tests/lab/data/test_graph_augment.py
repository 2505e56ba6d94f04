"""What each augmentation must preserve, and that it does what it says."""

import copy
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from softnce.lab.data import graph_augment as augment
from softnce.lab.data import layout
from softnce.lab.data.celltypegraph import find_specimens, read_specimen
from softnce.lab.data.graph_augment import (
    AddEdges,
    AddNoise,
    DropEdges,
    DropFeatures,
    MaskFeatures,
    RandomBasis,
    paper_augmentations,
    random_rotation,
)

EVERY = [DropEdges(0.3), AddEdges(0.3), DropFeatures(0.3), MaskFeatures(0.3), AddNoise(0.3), RandomBasis()]
EVERY_AND_ALL = [*EVERY, paper_augmentations()]


def name(transform) -> str:
    return type(transform).__name__


@pytest.fixture
def graph(graphs) -> Data:
    torch.manual_seed(0)
    return copy.deepcopy(graphs[0])


@pytest.mark.parametrize("transform", EVERY_AND_ALL, ids=name)
def test_labels_votes_and_nodes_stay_and_the_given_graph_is_untouched(graph: Data, transform):
    before = copy.deepcopy(graph)
    after = transform(graph)
    for key, value in before.to_dict().items():
        same = torch.equal(graph[key], value) if isinstance(value, torch.Tensor) else graph[key] == value
        assert same, f"{key} of the given graph changed"
    assert torch.equal(after.y, before.y)
    assert torch.equal(after.votes, before.votes)
    assert after.x.shape == before.x.shape
    assert after.edge_attr.shape == (after.num_edges, 11)
    assert after.x.isfinite().all()
    assert after.edge_attr.isfinite().all()
    assert after.validate()


@pytest.mark.parametrize("transform", EVERY, ids=name)
def test_something_changes_and_differs_from_time_to_time(graph: Data, transform):
    def fingerprint(g: Data) -> tuple[float, ...]:
        return (float(g.x.sum()), float(g.edge_attr.sum()), float(g.edge_index.sum()), g.num_edges)

    assert len({fingerprint(graph), fingerprint(transform(graph)), fingerprint(transform(graph))}) == 3


@pytest.mark.parametrize("transform", EVERY_AND_ALL, ids=name)
def test_torchs_seed_decides(graph: Data, transform):
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(transform(graph))
    assert torch.equal(results[0].x, results[1].x)
    assert torch.equal(results[0].edge_index, results[1].edge_index)


def test_dropped_edges_keep_order_and_their_own_features(graph: Data):
    kept = DropEdges(0.3)(graph)
    original = {tuple(pair): k for k, pair in enumerate(graph.edge_index.T.tolist())}
    where = [original[tuple(pair)] for pair in kept.edge_index.T.tolist()]
    assert where == sorted(where)
    assert torch.equal(kept.edge_attr, graph.edge_attr[where])
    # binomial, 5 deviations
    e = graph.num_edges
    assert abs(kept.num_edges - 0.7 * e) < 5 * (0.21 * e) ** 0.5


@pytest.mark.parametrize("edge_features", [True, False])
def test_added_edges_are_new_blank_and_last(graph: Data, edge_features: bool):
    if not edge_features:
        graph.edge_attr = None
    e = graph.num_edges
    more = AddEdges(0.3)(graph)
    assert more.num_edges == e + round(0.3 * e)
    assert torch.equal(more.edge_index[:, :e], graph.edge_index)
    pairs = [frozenset(pair) for pair in more.edge_index.T.tolist()]
    assert len(set(pairs)) == more.num_edges, "no pair twice, in either direction"
    assert all(len(pair) == 2 for pair in pairs), "no loops"
    if edge_features:
        assert torch.equal(more.edge_attr[:e], graph.edge_attr)
        assert (more.edge_attr[e:] == 0).all()


def test_a_full_graph_takes_no_more_edges():
    pairs = torch.combinations(torch.arange(6)).T
    full = Data(x=torch.zeros(6, 1), edge_index=pairs)
    assert torch.equal(AddEdges(0.5)(full).edge_index, pairs)
    lonely = Data(x=torch.zeros(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert AddEdges(0.5)(lonely).num_edges == 0


def test_dropped_entries_are_zero_and_the_mean_is_kept(graph: Data):
    after = DropFeatures(0.3)(graph)
    kept = after.x != 0
    torch.testing.assert_close(after.x[kept], graph.x[kept] / 0.7)
    entries = int((graph.x != 0).sum())
    assert abs(int(kept.sum()) - 0.7 * entries) < 5 * (0.21 * entries) ** 0.5
    assert ((after.x == 0).any(0) & (after.x != 0).any(0)).sum() > 50, "single entries go, not columns"
    assert torch.equal(after.edge_attr, graph.edge_attr)


def test_masked_features_vanish_for_all_nodes_the_others_stay(graph: Data):
    masked = 0
    for _ in range(50):
        after = MaskFeatures(0.3)(graph)
        gone = (after.x == 0).all(0) & ~(graph.x == 0).all(0)
        assert torch.equal(after.x[:, ~gone], graph.x[:, ~gone])
        masked += int(gone.sum())
    columns = 50 * int((~(graph.x == 0).all(0)).sum())
    assert abs(masked - 0.3 * columns) < 5 * (0.21 * columns) ** 0.5


def test_noise_has_the_stated_deviation(graph: Data):
    after = AddNoise(0.1)(graph)
    for key in ("x", "edge_attr"):
        noise = (after[key] - graph[key]).flatten()
        m = noise.numel()
        assert abs(float(noise.mean())) < 5 * 0.1 / m**0.5
        assert abs(float(noise.std()) - 0.1) < 5 * 0.1 / (2 * m) ** 0.5
    assert torch.equal(after.edge_index, graph.edge_index)


@pytest.mark.parametrize("edge_attr", [True, False])
def test_zero_strength_changes_nothing(graph: Data, edge_attr: bool):
    if not edge_attr:
        graph.edge_attr = None
    for transform in (DropEdges(0.0), AddEdges(0.0), DropFeatures(0.0), MaskFeatures(0.0), AddNoise(0.0)):
        after = transform(graph)
        assert torch.equal(after.x, graph.x)
        assert torch.equal(after.edge_index, graph.edge_index)


# --- random basis -------------------------------------------------------------------------------------------------


def rotate_file(source: Path, target: Path, rotation: np.ndarray) -> None:
    """The specimen's file as it would be had the reference axes been rotated: from the stored axis vectors."""
    with h5py.File(source) as old, h5py.File(target, "w") as new:
        for key in old:
            old.copy(key, new)
        for group in ("cell_features", "edges_features"):
            new[f"{group}/com_grs"][...] = old[f"{group}/com_grs"][...] @ rotation.T
        for kind in ("lrs", "pca"):
            for k in (1, 2, 3):
                turned = old[f"cell_features/{kind}_axis{k}_grs"][...] @ rotation.T
                new[f"cell_features/{kind}_orientation_axis{k}_grs"][...] = layout.orientation(turned)


def test_rotating_the_graph_equals_reading_the_rotated_file(tissue: Path, tmp_path: Path):
    source = find_specimens(tissue)[0].path
    rotation = random_rotation()
    rotate_file(source, tmp_path / "rotated.h5", rotation.numpy())
    expected = read_specimen(tmp_path / "rotated.h5")
    rotated = RandomBasis(rotation)(read_specimen(source))
    for key in ("x", "edge_attr", "pos", "node_com", "edge_com"):
        torch.testing.assert_close(rotated[key], expected[key], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected.x, read_specimen(source).x, atol=0.1), "the rotation is no small one"


def test_basis_changes_only_positions_and_orientations_and_can_be_undone(graph: Data):
    rotation = random_rotation()
    there = RandomBasis(rotation)(graph)
    turned = {"com_grs", *augment.ORIENTATIONS}
    assert len(turned) == 7
    for feature, columns in layout.NODE_COLUMNS.items():
        assert torch.equal(there.x[:, columns], graph.x[:, columns]) == (feature not in turned), feature
    for feature, columns in layout.EDGE_COLUMNS.items():
        assert torch.equal(there.edge_attr[:, columns], graph.edge_attr[:, columns]) == (feature != "com_grs")
    back = RandomBasis(rotation.T)(there)
    for key in ("x", "edge_attr", "pos"):
        torch.testing.assert_close(back[key], graph[key], rtol=1e-3, atol=1e-4)


def test_basis_preserves_distances_between_cells_up_to_scale(graph: Data):
    there = RandomBasis()(graph)
    columns = layout.NODE_COLUMNS["com_grs"]
    before, after = torch.pdist(graph.x[:, columns].double()), torch.pdist(there.x[:, columns].double())
    ratio = after / before
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.pdist(there.pos), torch.pdist(graph.pos), rtol=1e-4, atol=1e-4)


def test_rotations_are_proper_and_uniform():
    rotations = torch.stack([random_rotation() for _ in range(4000)])
    identity = torch.eye(3, dtype=torch.float64).expand(4000, 3, 3)
    torch.testing.assert_close(rotations @ rotations.mT, identity)
    torch.testing.assert_close(torch.linalg.det(rotations), torch.ones(4000, dtype=torch.float64))
    # Uniform: entries have mean 0 and variance 1/3; the trace 1 + 2cos θ has mean 0 and variance 1. 5 deviations.
    assert rotations.mean(0).abs().max() < 5 * (1 / 3 / 4000) ** 0.5
    trace = rotations.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(float(trace.mean())) < 5 / 4000**0.5
    assert abs(float(trace.var()) - 1) < 5 * (2 / 4000) ** 0.5


# --- misuse -------------------------------------------------------------------------------------------------------


def test_wrong_strengths():
    for make in (DropEdges, DropFeatures, MaskFeatures):
        for p in (-0.1, 1.0, float("nan")):
            with pytest.raises(ValueError, match="p: got"):
                make(p)
    with pytest.raises(ValueError, match="ratio: got -1"):
        AddEdges(-1)
    with pytest.raises(ValueError, match="sigma: got -1"):
        AddNoise(-1)


def test_batches_and_foreign_graphs_are_refused_where_they_make_no_sense(graphs):
    batch = Batch.from_data_list(graphs[:2])
    for transform in (AddEdges(), RandomBasis()):
        with pytest.raises(ValueError, match="one graph at a time, got a batch of 2"):
            transform(batch)
    with pytest.raises(ValueError, match="CellTypeGraph layout"):
        RandomBasis()(Data(x=torch.zeros(3, 74), edge_index=torch.zeros(2, 0, dtype=torch.long)))
