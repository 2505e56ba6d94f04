"""What surrounds a loss: its step from a table of label embeddings, and its share of a whole training step."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softnce import BatchCandidates, ExpectedInfoNCE, NoiseCandidates
from softnce.heads import LabelEmbeddingHead, MLPHead

Step = Callable[[], None]


def from_a_table(rows: int = 720, classes: int = 54_542, dim: int = 64, negatives: int = 1024) -> dict[str, Step]:
    """Expected InfoNCE with labels of a popularity η, the same by hand, and sampled softmax with the draws alone."""
    torch.manual_seed(0)
    eta = (1 / torch.arange(1.0, classes + 1)).div_((1 / torch.arange(1.0, classes + 1)).sum())
    head, log_eta = LabelEmbeddingHead(dim, classes), eta.log()
    z, labels, table = torch.randn(rows, dim, requires_grad=True), torch.multinomial(eta, rows, True), head.table.weight
    loss = ExpectedInfoNCE(eta, candidates=BatchCandidates() + NoiseCandidates(negatives))

    def step(value: Callable[[], Tensor]) -> Step:
        def run() -> None:
            z.grad = table.grad = None
            value().backward()

        return run

    def scores(used: Tensor) -> Tensor:
        return z @ F.embedding(used, table, sparse=True).T - log_eta[used]

    def by_hand() -> Tensor:
        named = torch.cat([labels, torch.multinomial(eta, negatives, True)])
        used, place, counts = named.unique(return_inverse=True, return_counts=True)
        return F.cross_entropy(scores(used) + counts.log(), place[:rows])

    def sampled_softmax() -> Tensor:
        drawn = torch.multinomial(eta, negatives, True)
        own = (z * F.embedding(labels, table, sparse=True)).sum(1, keepdim=True) - log_eta[labels, None]
        return F.cross_entropy(torch.cat([own, scores(drawn)], 1), torch.zeros_like(labels))

    return {
        "expected InfoNCE": step(lambda: head.loss(z, labels, loss)),
        "by hand": step(by_hand),
        "sampled softmax": step(sampled_softmax),
    }


def training_steps(rows: int = 256, classes: int = 1000, dim: int = 512) -> dict[str, tuple[Step, Step]]:
    """A training step of a linear probe and of a three-layer head: with expected InfoNCE, with cross-entropy."""
    torch.manual_seed(0)
    x, labels = torch.randn(rows, dim), torch.randint(classes, (rows,))
    ours = ExpectedInfoNCE("uniform")

    def step(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Step:
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

        def run() -> None:
            optimiser.zero_grad()
            loss(model(x), labels).backward()
            optimiser.step()

        return run

    models = {"linear probe": nn.Linear(dim, classes), "three-layer head": MLPHead(dim, classes, 1024)}
    return {name: (step(model, ours), step(model, F.cross_entropy)) for name, model in models.items()}
