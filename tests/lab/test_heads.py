import pytest
import torch
from torch import nn

from softnce.lab.heads import HEADS, Head, build_head
from softnce.lab.models.graphs import build_network as graph_network
from softnce.lab.models.images import build_network as image_network
from softnce.lab.recipes.recipe import GraphModel, GraphRecipe, Model


@pytest.mark.parametrize("kind", HEADS)
def test_scores_of_every_head_can_be_normalised(kind):
    head = build_head(Head(kind, hidden=8, output_norm=True), 5, 3, seed=0)
    scores = head.train()(10 * torch.randn(64, 5))
    torch.testing.assert_close(scores.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.var(0, unbiased=False), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_initial_weights_follow_from_the_seed_and_leave_the_global_generator_alone(kind):
    state = torch.get_rng_state()
    first, second = (build_head(Head(kind, hidden=8), 5, 3, seed=1) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("kind", HEADS)
def test_networks_honour_the_normalisation(kind):
    head = Head(kind, hidden=8, output_norm=True)
    images = image_network(Model("resnet18", drop_path=0.0), head, 3, 32)
    graphs = graph_network(GraphModel(layers=1, hidden=8), head, 4, 0, 3)
    for network in (images, graphs):
        assert isinstance(network.head, nn.Sequential)
        assert isinstance(network.head[-1], nn.BatchNorm1d)
        assert not network.head[-1].affine


def test_a_network_without_a_head_cannot_take_one():
    with pytest.raises(ValueError, match="gcn has no separate head"):
        GraphRecipe(model=GraphModel("gcn"), head=Head("linear", output_norm=True))


def test_only_a_linear_head_of_graphs_has_a_bias():
    assert graph_network(GraphModel(layers=1, hidden=8), Head("linear"), 4, 0, 3).head.bias is not None
    assert build_head(Head("linear"), 5, 3).bias is None
