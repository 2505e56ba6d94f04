"""Plain PyTorch: digits with MixUp, in the loop that you already have.

Three lines change against a loop with nn.CrossEntropyLoss: the criterion, the mixing, and how validation is measured.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from softnce import ExpectedInfoNCE, calibration, mixing


def main(epochs: int = 30) -> float:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)

    # nn.CrossEntropyLoss() was here. Every loss of softnce takes (logits, targets) as it does.
    criterion = ExpectedInfoNCE()

    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))].split(128):
            # The mixed batch and its targets: two (class, weight) pairs per row, never an N × K matrix.
            x, targets = mixing.mixup(images[rows], labels[rows], num_classes=10, alpha=0.4)
            optimiser.zero_grad()
            criterion(model(x), targets).backward()
            optimiser.step()

    with torch.no_grad():
        logits = model(images[test])
        accuracy = (logits.argmax(1) == labels[test]).float().mean().item()
        # A contrastive loss grows with the number of candidates, so compare cross-entropies: one scale for all losses.
        held_out = criterion.against_classes(logits, labels[test]).item()
    # MixUp makes a classifier cautious. One number, fitted on held-out data, takes that back.
    temperature = calibration.fit_temperature(logits, labels[test])
    print(f"accuracy {accuracy:.1%}, cross-entropy {held_out:.3f}, best temperature {float(temperature):.2f}")
    return accuracy


if __name__ == "__main__":
    main()
