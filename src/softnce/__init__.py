"""Noise contrastive estimation with soft targets: losses for very many classes.

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
    functional,
    heads,
    losses,
    mixing,
    noise,
    optimisers,
    ranking,
    targets,
    teacher,
    theory,
)
from softnce._core.contrast import set_memory_budget
from softnce._inputs import set_validation
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
    join,
)
from softnce.noise import RunningNoise
from softnce.targets import SoftTargets

__version__ = "0.3.0"

__all__ = [
    "NLL", "BatchCandidates", "Candidates", "ClassCandidates", "ClassifierLoss", "ContrastiveLoss",
    "ExpectedInfoNCE", "InfoNCE", "NoiseCandidates", "QueueCandidates", "RunningNoise", "SampledCandidates",
    "SoftDistributionInfoNCE", "SoftTargetCrossEntropy", "SoftTargetInfoNCE", "SoftTargets", "calibration",
    "candidates", "distributions", "draws", "functional", "heads", "join", "losses", "mixing", "noise", "optimisers",
    "ranking", "set_memory_budget", "set_validation", "targets", "teacher", "theory",
]  # fmt: skip
