"""torchvision v2: CutMix or MixUp in the DataLoader's collate function.

torchvision's transforms return dense targets (N, K). The losses take them; `SoftTargets` would be smaller, and
`softnce.mixing` makes those, if you are free to choose.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms import v2

from softnce import SoftTargetInfoNCE


def main(epochs: int = 12, samples: int = 1400) -> float:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:samples], order[1400:]

    torch.manual_seed(0)
    mix = v2.RandomChoice([v2.CutMix(num_classes=10), v2.MixUp(num_classes=10, alpha=0.2)])
    loader = DataLoader(
        TensorDataset(images[train], labels[train]),
        batch_size=128,
        shuffle=True,
        collate_fn=lambda samples: mix(*default_collate(samples)),
    )
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)

    # Soft target InfoNCE, the paper's loss: which of the batch's soft targets belongs to this image?
    criterion = SoftTargetInfoNCE()
    for _ in range(epochs):
        for x, targets in loader:
            optimiser.zero_grad()
            criterion(model(x), targets).backward()
            optimiser.step()

    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    print(f"accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
