"""From ten thousand to a million classes: train from features and a table of label embeddings, without logits.

All K logits of a batch cost N·K·d operations. Here a row is contrasted with the labels of its batch and some more from
the noise, so a step reads a few thousand rows of the table, whatever K, and its gradient is sparse.

    python examples/many_classes.py 10000 100000 1000000
"""

import sys
import time

import torch
from torch import nn

from softnce import BatchCandidates, ExpectedInfoNCE, NoiseCandidates, SoftTargets
from softnce.heads import LabelEmbeddingHead

DIM, BATCH = 64, 512


def main(num_classes: int = 10_000, steps: int = 300) -> tuple[float, float]:
    torch.manual_seed(0)
    names = torch.randn(num_classes, DIM)  # what a class looks like

    encoder = nn.Linear(DIM, DIM)
    head = LabelEmbeddingHead(DIM, num_classes)
    # Sparse gradients: SparseAdam for the table touches only the rows of the step, any optimiser for the rest.
    table_optimiser = torch.optim.SparseAdam(head.parameters(), lr=0.05)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    criterion = ExpectedInfoNCE(candidates=BatchCandidates() + NoiseCandidates(1024))

    seconds = []
    for step in range(steps):
        # A step sees 512 of the first 10,000 classes, so that all sizes get the same number of views per class.
        labels = torch.randint(min(num_classes, 10_000), (BATCH,))
        share = 0.5 + 0.5 * torch.rand(BATCH)
        x = names[labels] + 0.5 * torch.randn(BATCH, DIM)
        x = share[:, None] * x + (1 - share[:, None]) * x.flip(0)
        targets = SoftTargets.from_labels(labels, num_classes)
        targets = targets.mix(targets.flip(0), share)  # MixUp, as pairs

        start = time.perf_counter()
        loss = head.loss(encoder(x), targets, criterion)
        table_optimiser.zero_grad()
        optimiser.zero_grad()
        loss.backward()
        table_optimiser.step()
        optimiser.step()
        seconds.append(time.perf_counter() - start)
        if step % 100 == 0:
            print(f"step {step:4}  loss {loss.item():.3f}")

    # Prediction goes through the whole table once, in chunks that fit the memory.
    labels = torch.randint(min(num_classes, 10_000), (200,))
    _, best = head.topk(encoder(names[labels]), 5)
    found = (best == labels[:, None]).any(1).float().mean().item()
    median = sorted(seconds)[len(seconds) // 2]
    print(f"{num_classes:,} classes: {1e3 * median:.1f} ms per step, {found:.0%} among the best five")
    return found, median


if __name__ == "__main__":
    for size in map(int, sys.argv[1:] or ["10000", "100000"]):
        main(size)
