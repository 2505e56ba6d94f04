"""Classification heads: from features (N, dim) to class logits (N, K).

A plain linear head is ``nn.Linear(dim, num_classes, bias=False)``: its weight rows are the label embeddings y_k, its
logits the dot products z·y_k.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLPHead(nn.Sequential):
    """The paper's head: three linear layers without bias, dim → hidden → hidden → K.

    BatchNorm and ReLU follow the first two. The authors' code also normalises the output scores by a BatchNorm without
    affine parameters, which the paper does not mention; ``output_norm=True`` does that. It fixes the scale of the
    scores over the batch (unit variance a class), so it acts like a temperature, and at evaluation its running
    statistics take over.

    Args:
        dim: features.
        num_classes: K.
        hidden: width of the two hidden layers.
        output_norm: BatchNorm without affine parameters on the scores.
    """

    def __init__(self, dim: int, num_classes: int, hidden: int = 4096, output_norm: bool = False) -> None:
        layers: list[nn.Module] = [
            nn.Linear(dim, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes, bias=False),
        ]
        if output_norm:
            layers.append(nn.BatchNorm1d(num_classes, affine=False))
        super().__init__(*layers)


class CosineHead(nn.Module):
    """Cosine similarities of features and label embeddings, z·y_k / (‖z‖‖y_k‖), divided by a temperature.

    The similarity lies in [−1, 1], so the temperature sets how sharp a prediction can be. It is learned on a log scale
    unless ``learn_temperature`` is False; leave the loss's own temperature at 1.
    """

    log_temperature: Tensor

    def __init__(self, dim: int, num_classes: int, temperature: float = 0.07, learn_temperature: bool = True) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.weight = nn.Parameter(torch.randn(num_classes, dim) / math.sqrt(dim))
        log_temperature = torch.tensor(math.log(temperature))
        if learn_temperature:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def forward(self, features: Tensor) -> Tensor:
        similarity = F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))
        return similarity / self.log_temperature.exp()
