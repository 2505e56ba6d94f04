from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from softnce.lab.data.celltypegraph import find_specimens
from softnce.lab.data.graph_augment import paper_augmentations
from softnce.lab.data.tasks import celltypegraph_task, node_task, planetoid_task


def names(graphs) -> set[str]:
    return {graph.specimen for graph in graphs}


def test_folds_of_a_root(tissue: Path, tmp_path: Path):
    everything = {s.name for s in find_specimens(tissue)}
    tested = []
    for fold in range(5):
        task = celltypegraph_task(tissue, fold, cache=tmp_path)
        assert names(task.train) | names(task.test) == everything
        assert not names(task.train) & names(task.test)
        assert names(task.selection) == names(task.test)
        tested += sorted(names(task.test))
    assert sorted(tested) == sorted(everything)
    assert (task.num_node_features, task.num_edge_features, task.num_classes) == (74, 11, 9)
    assert task.left_out == (7,)
    assert task.class_counts().sum() == sum(graph.num_nodes for graph in task.train)


def test_honest_protocol_holds_specimens_back(tissue: Path, tmp_path: Path):
    honest = celltypegraph_task(tissue, 0, protocol="honest", cache=tmp_path)
    published = celltypegraph_task(tissue, 0, cache=tmp_path)
    assert names(honest.test) == names(published.test)
    assert names(honest.train) | names(honest.selection) == names(published.train)
    assert len(names(honest.selection)) == 2


def test_augmentation_touches_training_graphs_only_and_is_drawn_anew(tissue: Path, tmp_path: Path):
    task = celltypegraph_task(tissue, 0, transform=paper_augmentations(), cache=tmp_path)
    assert not torch.equal(task.train[0].x, task.train[0].x)
    assert torch.equal(task.test[0].x, task.test[0].x)


def test_batches_of_specimens(tissue: Path, tmp_path: Path):
    task = celltypegraph_task(tissue, 0, transform=paper_augmentations(), cache=tmp_path)
    batch = next(iter(DataLoader(task.train, batch_size=8)))
    n = sum(task.train.graphs[i].num_nodes for i in range(8))
    assert batch.x.shape == (n, 74)
    assert batch.votes.shape == (n, 9)
    assert batch.node_com.shape == (8, 4)
    assert batch.specimen == [graph.specimen for graph in task.train.graphs]
    assert batch.batch.max() == 7


def test_wrong_folds_and_protocols(tissue: Path):
    with pytest.raises(ValueError, match="fold: got 5, need 0 to 4"):
        celltypegraph_task(tissue, 5)
    with pytest.raises(ValueError, match="protocol: got 'best', need one of published, honest"):
        celltypegraph_task(tissue, 0, protocol="best")


def one_graph(**changes) -> Data:
    masks = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)
    fields = {
        "x": torch.randn(5, 3),
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "y": torch.tensor([0, 1, 2, 0, 1]),
        **dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True)),
        **changes,
    }
    return Data(**{name: value for name, value in fields.items() if value is not None})


def test_nodes_outside_a_mask_are_ignored():
    task = node_task([one_graph()], name="toy")
    assert task.train[0].y.tolist() == [0, 1, -100, -100, -100]
    assert task.selection[0].y.tolist() == [-100, -100, 2, -100, -100]
    assert task.test[0].y.tolist() == [-100, -100, -100, 0, 1]
    assert task.train[0].x is task.test[0].x, "one copy of the features"
    assert (task.num_classes, task.num_node_features, task.num_edge_features) == (3, 3, 0)
    assert task.class_counts().tolist() == [1, 1, 0]
    assert "train_mask" not in task.train[0]


def test_several_splits_and_column_labels():
    masks = {f"{part}_mask": torch.zeros(5, 4, dtype=torch.bool) for part in ("train", "val", "test")}
    masks["train_mask"][2, 3] = True
    graph = one_graph(y=torch.tensor([[0], [1], [2], [0], [1]]), **masks)
    assert node_task([graph], split=3).train[0].y.tolist() == [-100, -100, 2, -100, -100]
    with pytest.raises(ValueError, match="split: got 4, but the dataset has 4"):
        node_task([graph], split=4)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (one_graph(val_mask=None), "has no val_mask"),
        (one_graph(y=None), "need one integer label per node in y, got None"),
        (one_graph(y=torch.zeros(5, 2)), r"got \(torch.float32, \(5, 2\)\) for 5 nodes"),
        (one_graph(y=torch.zeros(4, dtype=torch.long)), "for 5 nodes"),
    ],
)
def test_unsuitable_datasets(graph, message):
    with pytest.raises(ValueError, match=message):
        node_task([graph])


def test_empty_dataset_and_too_few_names():
    with pytest.raises(ValueError, match="dataset has no graphs"):
        node_task([])
    with pytest.raises(ValueError, match="class_names: got 2, but the labels go up to 2"):
        node_task([one_graph()], class_names=("a", "b"))


def test_planetoid_never_downloads(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"missing ind\.cora\.x, .*, ind\.cora\.test\.index"):
        planetoid_task(tmp_path, "Cora")
    with pytest.raises(ValueError, match="name: got 'cora'"):
        planetoid_task(tmp_path, "cora")


@pytest.mark.parametrize(("name", "nodes", "classes", "train"), [("Cora", 2708, 7, 140), ("CiteSeer", 3327, 6, 120)])
def test_public_split(real_data: Path, name: str, nodes: int, classes: int, train: int):
    if not (real_data / "planetoid" / name / "raw").is_dir():
        pytest.skip("planetoid is not in SOFTNCE_DATA")
    task = planetoid_task(real_data / "planetoid", name)
    assert (task.train[0].num_nodes, task.num_classes) == (nodes, classes)
    labelled = [int((part[0].y >= 0).sum()) for part in (task.train, task.selection, task.test)]
    assert labelled == [train, 500, 1000]
    assert task.class_counts().tolist() == [20] * classes
    sums = task.train[0].x.to_dense().sum(1)
    torch.testing.assert_close(sums[sums > 0], torch.ones(int((sums > 0).sum())))
    batch = next(iter(DataLoader(task.train, batch_size=1)))
    assert torch.equal(batch.x.to_dense(), task.train[0].x.to_dense())
