"""Noise contrastive estimation with soft targets, for classifiers.

>>> import torch
>>> from softnce import SoftTargetInfoNCE
>>> loss = SoftTargetInfoNCE()                       # where nn.CrossEntropyLoss() was
>>> loss(torch.randn(8, 10), torch.randint(10, (8,))).shape
torch.Size([])
"""

from softnce import (
    calibration,
    candidates,
    distributions,
    draws,
    dynamics,
    functional,
    heads,
    information,
    losses,
    noise,
    targets,
)
from softnce._checks import set_validation
from softnce.candidates import BatchCandidates, Candidates, ClassCandidates, QueueCandidates, SampledCandidates
from softnce.losses import (
    NLL,
    ClassifierLoss,
    ContrastiveLoss,
    InfoNCE,
    SoftDistributionInfoNCE,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
)
from softnce.noise import RunningNoise
from softnce.targets import SoftTargets

__version__ = "0.1.0"

__all__ = [
    "NLL",
    "BatchCandidates",
    "Candidates",
    "ClassCandidates",
    "ClassifierLoss",
    "ContrastiveLoss",
    "InfoNCE",
    "QueueCandidates",
    "RunningNoise",
    "SampledCandidates",
    "SoftDistributionInfoNCE",
    "SoftTargetCrossEntropy",
    "SoftTargetInfoNCE",
    "SoftTargets",
    "calibration",
    "candidates",
    "distributions",
    "draws",
    "dynamics",
    "functional",
    "heads",
    "information",
    "losses",
    "noise",
    "set_validation",
    "targets",
]
