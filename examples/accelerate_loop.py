"""Accelerate: a loop with exact gradient accumulation, on one process or several.

    python examples/accelerate_loop.py
    accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py      # the same steps

Accelerate averages the gradients of the processes, as our losses expect, and divides every loss by the number of parts,
which they do not: the parts already add up to the loss of the update.
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn

from softnce import ContrastiveLoss, SoftTargetInfoNCE, SoftTargets


def update(
    accelerator: Accelerator,
    net: nn.Module,
    optimiser: torch.optim.Optimizer,
    criterion: ContrastiveLoss,
    x: Tensor,
    whole: SoftTargets,
) -> None:
    """One step on this process's rows, in parts."""
    for own in torch.arange(len(x)).chunk(accelerator.gradient_accumulation_steps):
        with accelerator.accumulate(net):
            loss = criterion(net(x[own]), whole[own], batch=whole, own=own)
            accelerator.backward(loss * accelerator.gradient_accumulation_steps)  # which it divides by
            optimiser.step()
            optimiser.zero_grad()
    criterion.remember(whole)  # the estimate of η takes in an update once


def main(epochs: int = 20) -> float:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    targets = SoftTargets.from_labels(labels, 10)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    net, optimiser = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.5))
    criterion = SoftTargetInfoNCE()
    for epoch in range(epochs):
        order = torch.randperm(1400, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(128)[:-1]:
            mine = rows.chunk(accelerator.num_processes)[accelerator.process_index]
            update(accelerator, net, optimiser, criterion, images[mine], targets[mine])

    # Under no_grad a loss exchanges nothing, so every process may validate for itself.
    with torch.no_grad():
        accuracy = (net(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    accelerator.print(f"accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
