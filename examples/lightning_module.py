"""Lightning: a LightningModule with exact gradient accumulation, on one device or several.

Two things matter. Lightning divides every loss by the number of parts; our parts already add up to the loss of the
update, so the module multiplies by that number. And each part needs the targets of the whole update, so the data set
below deals out updates, not batches.
"""

from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from softnce import ContrastiveLoss, SoftTargetInfoNCE, SoftTargets


class Updates(IterableDataset):
    """The parts of one update after another: inputs, targets, the targets of the update, the rows' positions in it."""

    def __init__(self, x: Tensor, targets: SoftTargets, size: int, parts: int) -> None:
        self.x, self.targets, self.size, self.parts = x, targets, size, parts
        self.epoch = 0

    def __iter__(self):
        # The same order on every rank; each takes its share of every update.
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(self.epoch))
        self.epoch += 1
        for update in order.split(self.size):
            if len(update) < self.size:
                return  # the last rows of an epoch, too few for an update
            mine = update.chunk(world)[rank]
            whole = self.targets[mine]
            for own in torch.arange(len(mine)).chunk(self.parts):
                yield self.x[mine[own]], whole[own], whole, own


class SoftTargetModule(L.LightningModule):
    def __init__(self, net: nn.Module, criterion: ContrastiveLoss, rate: float) -> None:
        super().__init__()
        self.net, self.criterion, self.rate = net, criterion, rate

    def training_step(self, batch: tuple[Tensor, SoftTargets, SoftTargets, Tensor], batch_idx: int) -> Tensor:
        x, targets, whole, own = batch
        loss = self.criterion(self.net(x), targets, batch=whole, own=own)
        return loss * self.trainer.accumulate_grad_batches  # which Lightning divides by

    def on_train_batch_end(self, outputs: Any, batch: tuple[Tensor, SoftTargets, SoftTargets, Tensor], _: int) -> None:
        if (batch[3] == len(batch[2]) - 1).any():  # the last part of an update
            self.criterion.remember(batch[2])  # the estimate of η takes in an update once

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def main(epochs: int = 20, devices: int = 1) -> float:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    L.seed_everything(0, verbose=False)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    module = SoftTargetModule(net, SoftTargetInfoNCE(), rate=0.5)
    updates = Updates(images[:1400], SoftTargets.from_labels(labels[:1400], 10), size=128, parts=4)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=devices, accumulate_grad_batches=4, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(updates, batch_size=None))
    with torch.no_grad():
        accuracy = (net(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    print(f"accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
