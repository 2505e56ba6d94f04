import copy

import pytest
import torch
from lab.training import small_graphs
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import DeepGCNLayer, GENConv

from softnce.heads import MLPHead
from softnce.lab.data.graph_module import NodeData
from softnce.lab.models.graphs import GCN, DeeperGCN, build_network
from softnce.lab.recipes.recipe import (
    GraphModel,
    Head,
)


def double(graph: Data) -> Data:
    graph = copy.copy(graph)
    graph.x, graph.edge_attr = graph.x.double(), graph.edge_attr.double()
    return graph


@pytest.fixture
def two(graphs) -> list[Data]:
    return [double(graphs[0]), double(graphs[-1])]


def make(edges: bool, *, layers: int = 4, **options) -> DeeperGCN:
    torch.manual_seed(0)
    return DeeperGCN(74, 9, edge_features=11 if edges else 0, hidden=16, layers=layers, **options).double()


MODELS = {
    "edges": lambda: make(True),
    "no edges": lambda: make(False),
    "checkpointed": lambda: make(True, checkpointing=True),
    "deep": lambda: make(True, layers=32),
    "gcn": lambda: GCN(74, 9).double(),
}


@pytest.mark.parametrize("model", MODELS)
def test_permuting_nodes_permutes_scores(two, model: str):
    (graph, _), net = two, MODELS[model]().eval()
    order = torch.randperm(graph.num_nodes)
    place = torch.argsort(order)
    shuffled_edges = torch.randperm(graph.num_edges)
    permuted = Data(
        x=graph.x[order],
        edge_index=place[graph.edge_index][:, shuffled_edges],
        edge_attr=graph.edge_attr[shuffled_edges],
    )
    torch.testing.assert_close(net(permuted), net(graph)[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_equals_separate_graphs_forward_and_backward(two, model: str):
    net = MODELS[model]().eval()  # no dropout
    together = net(Batch.from_data_list(two))
    together.square().sum().backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    apart = torch.cat([net(graph) for graph in two])
    apart.square().sum().backward()
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)
    for a, p in zip(gradients, net.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-7, atol=1e-7 * float(a.abs().max() + 1))


def test_deepergcn_is_the_published_stack(two):
    """Written out: encode, first convolution alone, res+ layers, layer 0's norm and activation, head."""
    net, graph = make(True, layers=3).eval(), two[0]
    edge = net.edge_encoder(graph.edge_attr)
    x = net.layers[0].conv(net.node_encoder(graph.x), graph.edge_index, edge)
    for layer in list(net.layers)[1:]:
        x = x + layer.conv(torch.relu(layer.norm(x)), graph.edge_index, edge)
    expected = net.head(torch.relu(net.layers[0].norm(x)))
    torch.testing.assert_close(net(graph), expected)
    for layer in net.layers:
        assert isinstance(layer, DeepGCNLayer)
        assert isinstance(layer.conv, GENConv)
        assert (layer.block, layer.dropout) == ("res+", 0.1)
        assert layer.conv.aggr_module.t.requires_grad
        assert layer.conv.aggr_module.t.item() == 1.0
        assert isinstance(layer.conv.mlp[1], nn.LayerNorm)
        assert layer.conv.mlp[0].out_channels == 32, "the perceptron is twice as wide inside"


@pytest.mark.parametrize("training", [True, False])
def test_checkpointing_changes_nothing_but_memory(two, training: bool):
    plain, saving = make(True).train(training), make(True, checkpointing=True).train(training)
    results = []
    for net in (plain, saving):
        torch.manual_seed(3)  # the same dropout, drawn again in the backward pass
        scores = net(two[0])
        scores.square().sum().backward()
        results.append([scores.detach(), *(p.grad for p in net.parameters())])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert saving.eval()(two[0]).shape == (two[0].num_nodes, 9)


def test_checkpointing_keeps_fewer_tensors(two):
    """Bytes that autograd holds after the forward pass."""
    held = {}
    for checkpointing in (False, True):
        net = make(True, layers=8, checkpointing=checkpointing)
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor, sizes=sizes) -> torch.Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            scores = net(two[0])
        held[checkpointing] = sum(sizes.values())
        del scores
    assert held[True] < held[False] / 3


def test_head_may_be_any_module(two):
    head = MLPHead(16, 9, hidden=24).double()
    net = DeeperGCN(74, 9, edge_features=11, hidden=16, layers=2, head=head).double()
    scores = net(two[0])
    assert scores.shape == (two[0].num_nodes, 9)
    assert net.embed(two[0]).shape == (two[0].num_nodes, 16)
    scores.sum().backward()
    assert all(p.grad is not None for p in head.parameters())
    assert isinstance(make(True).head, nn.Linear)


def test_every_parameter_learns(two):
    net = make(True)
    net(two[0]).square().sum().backward()
    still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_edge_features_are_used_and_needed(two):
    net, graph = make(True).eval(), copy.copy(two[0])
    before = net(graph)
    graph.edge_attr = graph.edge_attr + 1
    assert not torch.allclose(net(graph), before)
    graph.edge_attr = None
    with pytest.raises(ValueError, match=r"graph.edge_attr: got None"):
        net(graph)
    assert make(False)(graph).shape == before.shape
    with pytest.raises(ValueError, match="layers: got 0"):
        make(True, layers=0)


@pytest.mark.parametrize("model", ["no edges", "gcn"])
def test_sparse_features_score_and_learn_as_dense_ones(two, model: str):
    dense, sparse = copy.copy(two[0]), copy.copy(two[0])
    dense.x = dense.x * (torch.rand_like(dense.x) < 0.1)
    sparse.x = dense.x.to_sparse()
    results = []
    for graph in (dense, sparse):
        torch.manual_seed(0)
        net = MODELS[model]().eval()
        scores = net(graph)
        scores.square().sum().backward()
        results.append([scores.detach(), *(p.grad for p in net.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sparse", [True, False])
def test_gcn_drops_half_of_its_input(sparse: bool):
    """With one feature of value 1, no edges and the weights of a sum, the first layer shows the dropout."""
    x = torch.ones(10_000, 1)
    graph = Data(x=x.to_sparse() if sparse else x, edge_index=torch.zeros(2, 0, dtype=torch.long))
    net = GCN(1, 1, hidden=1, dropout=0.5)
    nn.init.ones_(net.first.lin.weight)
    seen = []
    net.first.register_forward_hook(lambda _, __, out: seen.append(out))
    net(graph)
    assert set(seen[0].flatten().tolist()) == {0.0, 2.0}
    assert abs(float((seen[0] > 0).float().mean()) - 0.5) < 5 * 0.005  # 5 deviations


def test_isolated_nodes_and_graphs_without_edges_are_scored():
    lonely = Data(
        x=torch.randn(3, 74, dtype=torch.float64),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        edge_attr=torch.zeros(0, 11, dtype=torch.float64),
    )
    for model in MODELS.values():
        assert model()(lonely).isfinite().all()


def test_heads_of_deeper_gcn(tissue):
    batch = next(iter(NodeData(small_graphs(tissue)).val_dataloader())).inputs
    for head in (Head("linear"), Head("mlp", hidden=6), Head("cosine")):
        network = build_network(GraphModel(layers=2, hidden=8), head, 74, 11, 9)
        assert network(batch).shape == (batch.num_nodes, 9)
    without_edges = build_network(GraphModel(layers=2, hidden=8, edge_features=False), Head("linear"), 74, 11, 9)
    assert without_edges.edge_encoder is None
