"""What is reported of a node classifier: accuracies as the CellTypeGraph benchmark counts them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from softnce.lab.data.graph_metrics import score, specimen_confusions
from softnce.lab.scores import Scores


class NodeScores(Scores):
    """As :class:`~softnce.lab.scores.Scores`, but ``top1`` and ``class_average`` are means over graphs.

    See :mod:`softnce.lab.data.graph_metrics`. Top-5, likelihood and calibration are over all nodes.

    Args:
        num_classes: K.
        left_out: classes excluded from the class average.
    """

    def __init__(self, num_classes: int, left_out: Sequence[int] = ()) -> None:
        self.left_out = left_out
        super().__init__(num_classes)

    def reset(self) -> None:
        super().reset()
        self.confusions = torch.zeros(0, self.num_classes, self.num_classes, dtype=torch.long)

    def update(self, logits: Tensor, labels: Tensor, inputs: Any = None) -> None:
        super().update(logits, labels)
        graph = None if inputs is None else inputs.batch.cpu()
        found = specimen_confusions(logits.argmax(1).cpu(), labels.cpu(), graph, self.num_classes)
        self.confusions = torch.cat([self.confusions, found])

    def gather(self) -> None:
        super().gather()
        if dist.is_available() and dist.is_initialized():
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, self.confusions)
            self.confusions = torch.cat(everyone)

    def compute(self) -> dict[str, float]:
        of_graphs = score(self.confusions, self.left_out)
        return super().compute() | {
            "top1": of_graphs.top1,
            "class_average": of_graphs.class_average,
            "class_average_published": of_graphs.class_average_published,
        }
