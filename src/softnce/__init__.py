"""Noise contrastive estimation with soft targets, for classifiers.

>>> import torch
>>> from softnce import SoftTargetInfoNCE
>>> loss = SoftTargetInfoNCE()                       # where nn.CrossEntropyLoss() was
>>> loss(torch.randn(8, 10), torch.randint(10, (8,))).shape
torch.Size([])
"""

from softnce import draws, functional, heads, noise
from softnce.candidates import BatchCandidates, Candidates, ClassCandidates, QueueCandidates, SampledCandidates
from softnce.losses import NLL, InfoNCE, SoftDistributionInfoNCE, SoftTargetCrossEntropy, SoftTargetInfoNCE
from softnce.targets import SoftTargets
from softnce.validation import set_validation

__version__ = "0.1.0"

__all__ = [
    "NLL",
    "BatchCandidates",
    "Candidates",
    "ClassCandidates",
    "InfoNCE",
    "QueueCandidates",
    "SampledCandidates",
    "SoftDistributionInfoNCE",
    "SoftTargetCrossEntropy",
    "SoftTargetInfoNCE",
    "SoftTargets",
    "draws",
    "functional",
    "heads",
    "noise",
    "set_validation",
]
