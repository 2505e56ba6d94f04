"""Node classifiers: graph in, one row of class scores per node out."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import DeepGCNLayer, GCNConv, GENConv

from experiments.models.heads import Head, build_head
from experiments.models.options import GraphModel


class DeeperGCN(nn.Module):
    """DeeperGCN (Li et al., 2020) as the CellTypeGraph benchmark builds it.

    Encode node (and edge) features linearly, then ``layers`` pre-activation residual layers: normalise, ReLU, dropout,
    convolve, add. The first layer is its convolution alone; its normalisation closes the stack instead.
    """

    def __init__(self, model: GraphModel, head: Head, node_features: int, edge_features: int, num_classes: int) -> None:
        super().__init__()
        hidden, self.dropout = model.hidden, model.dropout
        self.node_encoder = nn.Linear(node_features, hidden)
        self.edge_encoder = nn.Linear(edge_features, hidden) if edge_features and model.edge_features else None
        self.layers = nn.ModuleList(
            DeepGCNLayer(
                # bias: PyG's default when the benchmark was published
                GENConv(hidden, hidden, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer", bias=True),
                nn.LayerNorm(hidden),
                nn.ReLU(),
                block="res+",
                dropout=model.dropout,
            )
            for _ in range(model.layers)
        )
        self.head = build_head(head, hidden, num_classes, bias=True)  # as the benchmark has it

    def forward(self, graph: Data) -> Tensor:
        edge = None if self.edge_encoder is None else self.edge_encoder(graph.edge_attr)
        first: Any = self.layers[0]
        x = first.conv(self.node_encoder(graph.x), graph.edge_index, edge)
        for layer in self.layers[1:]:
            x = layer(x, graph.edge_index, edge)
        x = first.act(first.norm(x))
        return self.head(F.dropout(x, self.dropout, self.training))


class GCN(nn.Module):
    """The two-layer graph convolutional network of Kipf and Welling (2017), for citation graphs."""

    def __init__(self, model: GraphModel, node_features: int, num_classes: int) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.first = GCNConv(node_features, model.hidden)
        self.second = GCNConv(model.hidden, num_classes)

    def forward(self, graph: Data) -> Tensor:
        x = graph.x
        if x.is_sparse:  # drop among the stored entries; the others are 0 anyway
            x = x.coalesce()
            kept = F.dropout(x.values(), self.dropout, self.training)
            x = torch.sparse_coo_tensor(x.indices(), kept, x.shape, check_invariants=False, is_coalesced=True)
        else:
            x = F.dropout(x, self.dropout, self.training)
        x = F.dropout(self.first(x, graph.edge_index).relu(), self.dropout, self.training)
        return self.second(x, graph.edge_index)


def build_network(
    model: GraphModel, head: Head, node_features: int, edge_features: int, num_classes: int
) -> DeeperGCN | GCN:
    """The network a recipe describes, for a task's features and classes."""
    if model.name == "gcn":
        return GCN(model, node_features, num_classes)
    return DeeperGCN(model, head, node_features, edge_features, num_classes)
