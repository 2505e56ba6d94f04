"""DDP by torchrun: the same training on any number of processes.

    python examples/ddp_torchrun.py
    torchrun --nproc_per_node 2 examples/ddp_torchrun.py       # prints the same numbers

The loss sees the targets of all ranks, and its gradient is scaled for DDP's average, so a batch of 128 on one process
and of 64 on each of two make the same step. The ranks may have different numbers of batches: softnce.join.
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import softnce


def main(epochs: int = 10) -> float:
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")  # nccl on GPUs
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net) if world > 1 else net
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = softnce.SoftTargetInfoNCE()

    for epoch in range(epochs):
        order = torch.randperm(1400, generator=torch.Generator().manual_seed(epoch))
        # 1,400 rows are 10 batches of 128 and a rest of 120, of which the last rank has fewer rows, or none.
        mine = [rows.split(128 // world)[rank : rank + 1] for rows in order.split(128)]
        with softnce.join(model, criterion) if world > 1 else softnce.join(criterion):
            for rows in (part[0] for part in mine if part):
                optimiser.zero_grad()
                loss = criterion(model(images[rows]), labels[rows])  # the mean over all ranks
                loss.backward()
                optimiser.step()

    with torch.no_grad():  # exchanges nothing
        accuracy = (net(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    if rank == 0:
        print(f"loss of the last step {loss.item():.6f}, accuracy {accuracy:.1%}")
    if world > 1:
        dist.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    main()
