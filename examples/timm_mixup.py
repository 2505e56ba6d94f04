"""timm: its Mixup, its model, its ClassificationTask, and a loss of softnce as the criterion.

timm's Mixup gives dense rows (N, K). The losses accept them as they are and, on the CPU, recognise two labels on a flat
floor, so nothing has to be converted.
"""

import numpy as np
import timm
import torch
from sklearn.datasets import load_digits
from timm.data import Mixup
from timm.task import ClassificationTask

from softnce import ExpectedInfoNCE


def main(epochs: int = 8, samples: int = 1400) -> float:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = torch.nn.functional.interpolate(images.float()[:, None].view(-1, 1, 8, 8) / 16, size=32)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:samples], order[1400:]

    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  (timm draws its mixing from numpy)
    model = timm.create_model("test_resnet", num_classes=10, in_chans=1)  # timm's smallest network
    # MixUp and CutMix in turns, and label smoothing. Soft target InfoNCE would drop the smoothing, because what all
    # targets share cancels between candidates; expected InfoNCE smooths.
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, switch_prob=0.5, label_smoothing=0.1, num_classes=10)

    # ClassificationTask is what timm's train.py runs. SoftTargetCrossEntropy() was here.
    task = ClassificationTask(model, ExpectedInfoNCE(), verbose=False)
    optimiser = torch.optim.AdamW(task.parameters(), lr=3e-3)

    for _ in range(epochs):
        task.train()
        batches = train[torch.randperm(len(train))].split(64)
        for rows in batches:
            if len(rows) % 2:  # timm pairs a batch with itself, reversed
                rows = rows[:-1]
            x, targets = mixup(images[rows].clone(), labels[rows])
            optimiser.zero_grad()
            task(x, targets)["loss"].backward()
            optimiser.step()

    # task.eval() reaches the criterion too. Without it a loss is still local under no_grad.
    task.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    print(f"accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
