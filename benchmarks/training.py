"""What surrounds a loss: its step from a table of label embeddings, and its share of a whole training step."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.regime.training import small_resnet
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


def training_steps(rows: int = 256, dim: int = 512) -> dict[str, tuple[Step, Step, Step]]:
    """For each model its training step with expected InfoNCE, with cross-entropy, and the step of the former alone."""
    torch.manual_seed(0)
    features = torch.randn(rows, dim)
    ours = ExpectedInfoNCE("uniform")

    def step(model: nn.Module, x: Tensor, loss: Callable[[Tensor, Tensor], Tensor], classes: int) -> Step:
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
        labels = torch.randint(classes, (rows,))

        def run() -> None:
            optimiser.zero_grad()
            loss(model(x), labels).backward()
            optimiser.step()

        return run

    def loss_alone(classes: int) -> Step:
        logits, labels = torch.randn(rows, classes, requires_grad=True), torch.randint(classes, (rows,))

        def run() -> None:
            logits.grad = None
            ours(logits, labels).backward()

        return run

    images = torch.randn(rows, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    models = {
        "linear probe, 1,000 classes": (nn.Linear(dim, 1000), features, 1000),
        "three-layer head, 1,000 classes": (MLPHead(dim, 1000, 1024), features, 1000),
        "small network of CIFAR-100": (small_resnet(100), images, 100),
    }
    return {
        name: (step(model, x, ours, classes), step(model, x, F.cross_entropy, classes), loss_alone(classes))
        for name, (model, x, classes) in models.items()
    }
