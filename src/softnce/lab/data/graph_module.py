"""The graphs of a recipe, and batches of them for the classifier."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Batch as GraphBatch
from torch_geometric.data import Data

from softnce.lab.data.batches import Batch, EvaluationBatches, Loader, Share
from softnce.lab.data.graph_augment import paper_augmentations
from softnce.lab.data.module import TrainingData
from softnce.lab.data.tasks import NodeTask, celltypegraph_task, planetoid_task
from softnce.lab.recipes.recipe import GraphData, GraphRecipe
from softnce.lab.seeds import borrowed_generators, start_generators

PLANETOID = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


def open_task(data: GraphData) -> NodeTask:
    """The task a recipe names; a ValueError says what is missing. ``tissue`` is generated if it is missing."""
    folder = data.dir.expanduser()
    transform = paper_augmentations() if data.augment == "paper" else None
    try:
        if data.kind in PLANETOID:
            if transform is not None:
                raise ValueError(
                    f"data.augment paper needs cells with positions, got data.kind {data.kind}: set it to none"
                )
            return planetoid_task(folder, PLANETOID[data.kind])  # type: ignore[arg-type]
        if data.kind == "tissue":
            from softnce.lab.data.tissue import recorded, write_tissue

            write_tissue(recorded(folder))  # also what another process, or an interrupted one, has not yet written
        return celltypegraph_task(folder, data.fold, data.protocol, transform)
    except FileNotFoundError as error:
        raise ValueError(f"data.dir {folder}: {error} (see docs/graphs.md)") from None


class GraphRows(Dataset):
    """Turns a share into one graph of many parts, and the labels of its nodes.

    An augmented graph is a function of (seed, epoch, graph). Every share comes with the labels, or votes, of all nodes
    of the whole batch, which are known without it.
    """

    def __init__(self, graphs: Dataset[Data], untouched: Sequence[Data], votes: bool = False, seed: int = 0) -> None:
        self.graphs, self.untouched, self.votes, self.seed = graphs, untouched, votes, seed

    def __len__(self) -> int:
        return len(self.untouched)

    def __getitems__(self, share: Share) -> Batch:
        graphs = []
        with borrowed_generators():
            for row in share.rows:
                start_generators(self.seed, share.epoch, row)
                graphs.append(self.graphs[row])
        inputs = GraphBatch.from_data_list(graphs)
        if share.batch is None:
            return Batch(inputs, inputs.y)
        assert share.own is not None
        whole = [self.untouched[row] for row in share.batch.tolist()]
        labels = torch.cat([graph.y for graph in whole])
        votes = torch.cat([graph.votes for graph in whole]) if self.votes else None
        own = _nodes(share.own, torch.tensor([len(graph.y) for graph in whole]))
        return Batch(inputs, labels[own], labels, own, share.step, votes=votes)


def _nodes(graphs: Tensor, sizes: Tensor) -> Tensor:
    """Positions of the nodes of some ``graphs`` among those of all graphs, which have ``sizes``."""
    ends = sizes.cumsum(0)
    places = [torch.arange(int(ends[i] - sizes[i]), int(ends[i])) for i in graphs.tolist()]
    return torch.cat(places) if places else torch.empty(0, dtype=torch.long)


class NodeData(TrainingData):
    """Training and evaluation loaders of a recipe: evaluation is on the graphs that choose the epoch."""

    def __init__(self, recipe: GraphRecipe, world: int = 1) -> None:
        super().__init__(recipe, world)
        self.task = open_task(recipe.data)
        graphs = self.task.train.graphs
        if recipe.data.votes and graphs[0].get("votes") is None:
            raise ValueError(f"data.votes: {self.task.name} has no votes, only labels")
        self.labels = torch.cat([graph.y for graph in graphs])  # IGNORED among them
        self.classes, self.samples = self.task.class_names, len(graphs)
        self.features = self.task.num_node_features, self.task.num_edge_features

    def train_dataloader(self) -> Loader:
        train = self.task.train
        return Loader(GraphRows(train, train.graphs, self.recipe.data.votes, self.recipe.seed), self.batches(self.rank))

    def val_dataloader(self) -> Loader:
        return self.evaluation_loader("validation", self.rank)

    def evaluation_loader(self, split: str, rank: int = 0) -> Loader:
        """Batches of the graphs that are scored (``test``) or choose the epoch (``validation``)."""
        graphs = self.task.test if split == "test" else self.task.selection
        batches = EvaluationBatches(len(graphs), self.recipe.compute.eval_batch, rank, self.world)
        return Loader(GraphRows(graphs, graphs.graphs), batches)
