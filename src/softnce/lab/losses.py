"""The loss that a recipe names."""

from torch import Tensor

from softnce import noise
from softnce.candidates import BatchCandidates, Candidates, ClassCandidates, QueueCandidates, SampledCandidates
from softnce.draws import Categorical, Draw
from softnce.lab.recipes.recipe import Loss, Targets
from softnce.losses import NLL, ClassifierLoss, InfoNCE, SoftTargetCrossEntropy, SoftTargetInfoNCE

TITLES = {
    "nll": "NLL",
    "info-nce": "InfoNCE",
    "soft-ce": "soft target cross-entropy",
    "soft-dist-info-nce": "soft distribution InfoNCE",
    "soft-target-info-nce": "soft target InfoNCE",
}
"""What a loss is called in sentences, tables and figures."""


def build_loss(config: Loss, targets: Targets, labels: Tensor, num_classes: int) -> tuple[ClassifierLoss, Draw | None]:
    """The loss a recipe names and how its targets are drawn, with η from the training ``labels``."""
    if config.name == "nll":
        return NLL(config.temperature), None
    if config.name == "soft-ce":
        return SoftTargetCrossEntropy(config.temperature), None
    try:
        eta = None if config.noise == "uniform" else noise.from_labels(labels, num_classes)
    except ValueError as error:  # what is wrong, and what a recipe can do about it
        raise ValueError(f"{str(error).partition(';')[0]}; --loss.noise uniform does without η") from None
    if config.name == "info-nce":
        return InfoNCE(eta, config.temperature), None
    if config.name == "soft-dist-info-nce":
        return InfoNCE(eta, config.temperature), Categorical()
    batch, classes = BatchCandidates(), ClassCandidates()
    candidates: Candidates = batch
    if config.candidates == "sampled":
        marginal = noise.from_labels(labels, num_classes, floor=1)
        candidates = SampledCandidates(config.num_candidates, marginal, targets.mixup, targets.smoothing)
    elif config.candidates == "queue":
        candidates = batch + QueueCandidates(config.num_candidates)
    elif config.candidates == "classes":
        candidates = classes
    elif config.candidates == "batch+classes":
        candidates = batch + classes
    return SoftTargetInfoNCE(eta, config.temperature, candidates), None
