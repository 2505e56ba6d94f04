"""Noise contrastive estimation with soft targets, for classifiers.

>>> import torch
>>> from softnce import SoftTargetInfoNCE
>>> loss = SoftTargetInfoNCE()                       # where nn.CrossEntropyLoss() was
>>> loss(torch.randn(8, 10), torch.randint(10, (8,))).shape
torch.Size([])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        optimisers,
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
        join,
    )
    from softnce.noise import RunningNoise
    from softnce.targets import SoftTargets

__version__ = "0.2.0"

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
    "join",
    "losses",
    "mixing",
    "noise",
    "optimisers",
    "set_memory_budget",
    "set_validation",
    "targets",
    "teacher",
]

_HOME = {
    **dict.fromkeys(
        (
            "NLL",
            "ClassifierLoss",
            "ContrastiveLoss",
            "ExpectedInfoNCE",
            "InfoNCE",
            "SoftDistributionInfoNCE",
            "SoftTargetCrossEntropy",
            "SoftTargetInfoNCE",
            "join",
        ),
        "losses",
    ),
    **dict.fromkeys(
        (
            "BatchCandidates",
            "Candidates",
            "ClassCandidates",
            "NoiseCandidates",
            "QueueCandidates",
            "SampledCandidates",
        ),
        "candidates",
    ),
    "RunningNoise": "noise",
    "SoftTargets": "targets",
    "set_memory_budget": "_scores.kernel",
    "set_validation": "_checks",
}
"""Modules of the names that are not modules themselves."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``softnce --help`` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'softnce' has no attribute {name!r}")
    home = import_module(f"softnce.{_HOME.get(name, name)}")
    value = globals()[name] = getattr(home, name) if name in _HOME else home
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
