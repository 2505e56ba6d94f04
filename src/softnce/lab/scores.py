"""What is reported about a classifier."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from softnce.calibration import CalibrationMeter
from softnce.lab.targets import IGNORED


class Scores:
    """Top-1, top-5, mean over classes, likelihood and calibration over an evaluation set, batch by batch."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.calibration = CalibrationMeter()
        self.reset()

    def reset(self) -> None:
        self.calibration.reset()
        # by class: rows, rows ranked first, rows ranked among the first five
        self.counts = torch.zeros(3, self.num_classes, dtype=torch.double)

    def update(self, logits: Tensor, labels: Tensor, inputs: Any = None) -> None:
        """Add rows: logits (n, K), labels (n,); rows labelled IGNORED are left out. ``inputs`` are not used here."""
        kept = labels != IGNORED
        logits, labels = logits[kept], labels[kept]
        if len(labels) == 0:
            return
        ranked = logits.topk(min(5, self.num_classes), dim=1).indices == labels[:, None]
        hits = torch.stack([torch.ones_like(labels, dtype=torch.bool), ranked[:, 0], ranked.any(1)]).double()
        self.counts += torch.zeros_like(self.counts).index_add_(1, labels.cpu(), hits.cpu())
        self.calibration.update(logits, labels)

    def gather(self) -> None:
        """Sum over all processes; every process must call it."""
        self.calibration.gather()
        if dist.is_available() and dist.is_initialized():
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, self.counts)
            self.counts = torch.stack(everyone).sum(0)

    def compute(self) -> dict[str, float]:
        """Shares in [0, 1]. Classes without rows are left out of the class average."""
        rows, first, five = self.counts
        present = rows > 0
        return {
            "top1": (first.sum() / rows.sum()).item(),
            "top5": (five.sum() / rows.sum()).item(),
            "class_average": (first[present] / rows[present]).mean().item(),
            **self.calibration.compute(),
        }
