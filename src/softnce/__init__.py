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
    mixing,
    noise,
    targets,
    teacher,
)
from softnce._checks import set_validation
from softnce._scores.kernel import set_memory_budget
from softnce.candidates import (
    BatchCandidates,
    Candidates,
    ClassCandidates,
    NoiseCandidates,
    QueueCandidates,
    SampledCandidates,
)
from softnce.losses import (
    NLL,
    ClassifierLoss,
    ContrastiveLoss,
    ExpectedInfoNCE,
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
    "ExpectedInfoNCE",
    "InfoNCE",
    "NoiseCandidates",
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
    "mixing",
    "noise",
    "set_memory_budget",
    "set_validation",
    "targets",
    "teacher",
]
