"""PyTorch Geometric: nodes of a graph, few of them labelled, some of those by more than one opinion.

Nodes without a label are ignored (label −100): they are neither positives nor candidates. The graph is generated:
blocks of nodes that link to each other more than to others.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv
from torch_geometric.utils import stochastic_blockmodel_graph

from softnce import ExpectedInfoNCE, SoftTargets

CLASSES = 5


class GCN(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(dim, 32), GCNConv(32, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x, edges)), edges)


def main(nodes_per_class: int = 100, steps: int = 100) -> float:
    torch.manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(nodes_per_class)
    links = 0.01 * torch.ones(CLASSES, CLASSES) + 0.07 * torch.eye(CLASSES)
    edges = stochastic_blockmodel_graph([nodes_per_class] * CLASSES, links)
    x = F.one_hot(labels, CLASSES).float() + 1.5 * torch.randn(len(labels), CLASSES)

    # Ten per cent of the nodes are labelled.
    known = torch.rand(len(labels)) < 0.1
    first = SoftTargets.from_labels(torch.where(known, labels, -100), CLASSES)
    # A second annotator of the same nodes is wrong in every fifth case; the two opinions weigh 0.7 and 0.3.
    second = torch.where(torch.rand(len(labels)) < 0.2, torch.randint(CLASSES, labels.shape), labels)
    targets = first.mix(SoftTargets.from_labels(second, CLASSES), 0.7)
    print(targets)

    model = GCN(CLASSES)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    criterion = ExpectedInfoNCE()
    for _ in range(steps):
        optimiser.zero_grad()
        criterion(model(x, edges), targets).backward()  # all nodes; those without a label count nowhere
        optimiser.step()
    with torch.no_grad():
        accuracy = (model(x, edges).argmax(1) == labels)[~known].float().mean().item()
    print(f"accuracy on nodes without a label {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
