import shutil
from dataclasses import replace

import torch
from lab.training import small_graphs

from softnce.lab.data.batches import Share
from softnce.lab.data.graph_module import GraphRows, NodeData, open_task
from softnce.lab.recipes.recipe import (
    GraphData,
)


def test_a_share_knows_the_labels_of_the_whole_batch(tissue):
    data = NodeData(small_graphs(tissue))
    train_graphs = data.task.train.graphs
    rows = GraphRows(data.task.train, train_graphs, votes=True, seed=5)
    order = torch.tensor([4, 0, 2])
    share = rows.__getitems__(Share([4, 2], 0, 7, order, torch.tensor([0, 2])))
    assert torch.equal(share.whole, torch.cat([train_graphs[i].y for i in (4, 0, 2)]))
    assert torch.equal(share.votes, torch.cat([train_graphs[i].votes for i in (4, 0, 2)]))
    assert torch.equal(share.labels, torch.cat([train_graphs[i].y for i in (4, 2)]))
    assert torch.equal(share.whole[share.own], share.inputs.y)
    assert share.step == 7
    none = rows.__getitems__(Share([4], 0, 7, order, torch.tensor([], dtype=torch.long)))
    assert len(none.own) == len(none.labels) == 0, "a graph that only fills up counts for nothing"


def test_augmentation_follows_from_seed_epoch_and_graph(tissue):
    data = NodeData(small_graphs(tissue))

    def rows(seed):
        return GraphRows(data.task.train, data.task.train.graphs, seed=seed)

    one = rows(5).__getitems__(Share([1, 3], 2)).inputs
    again = rows(5).__getitems__(Share([3], 2)).inputs
    nodes = data.task.train.graphs[3].num_nodes
    assert torch.equal(one.x[-nodes:], again.x)
    for other in (rows(6).__getitems__(Share([3], 2)), rows(5).__getitems__(Share([3], 1))):
        assert not torch.equal(again.x, other.inputs.x)


def test_tissue_is_grown_where_it_is_not_there(tmp_path, monkeypatch):
    from softnce.lab.data import tissue as grower

    grown = []
    write = grower.write_tissue

    def fewer(config):
        grown.append(config)
        return write(replace(config, specimens=5, stages=1, cells=(60, 60)))

    monkeypatch.setattr(grower, "write_tissue", fewer)
    for _ in range(2):
        assert len(open_task(GraphData("tissue", tmp_path / "new")).train) == 4
    assert [(config.out, config.specimens) for config in grown] == [(tmp_path / "new", 30), (tmp_path / "new", 5)]


def test_tissue_that_is_not_complete_is_completed(tissue, tmp_path):
    """As an interrupted process, or one that is still at work, leaves it: with the record, without all specimens."""
    shutil.copytree(tissue, tmp_path / "tissue", ignore=shutil.ignore_patterns("T003.h5", "T006.h5", "softnce-cache"))
    data = GraphData("tissue", tmp_path / "tissue")
    task, whole = open_task(data), open_task(GraphData("tissue", tissue))
    assert len(task.train) + len(task.test) == len(whole.train) + len(whole.test) == 10
    assert all(torch.equal(a.x, b.x) for a, b in zip(task.train, whole.train, strict=True))
