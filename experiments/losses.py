"""The losses of the experiments: one table, by the names that recipes, runs and results use.

To add a loss, add one entry to :data:`LOSSES`, and its colour to ``harness/figures.py``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

import softnce
from experiments.data.targets import Targets
from experiments.harness.options import check, later, option
from softnce import BatchCandidates, ClassCandidates, NoiseCandidates, QueueCandidates, SampledCandidates

ClassifierLoss = softnce.losses.ClassifierLoss


@dataclass(frozen=True)
class LossKind:
    """An entry of the table of losses.

    Attributes:
        title: name in sentences, tables and figures.
        module: class in :mod:`softnce`.
        labels_only: takes hard labels, no soft targets.
        contrastive: contrasts a target with those of other rows, corrected by the noise η.
        takes_candidates: the recipe may choose the candidates.
        smooths_noise: η is smoothed as the targets are, so that it is their marginal.
    """

    title: str
    module: Callable[..., ClassifierLoss]
    labels_only: bool = False
    contrastive: bool = True
    takes_candidates: bool = False
    smooths_noise: bool = False

    @property
    def takes_noise_count(self) -> bool:
        """Adds candidates from η in expectation."""
        return self.module is softnce.ExpectedInfoNCE


LOSSES: dict[str, LossKind] = {
    "nll": LossKind("NLL", softnce.NLL, labels_only=True, contrastive=False),
    "soft-ce": LossKind("soft target cross-entropy", softnce.SoftTargetCrossEntropy, contrastive=False),
    "info-nce": LossKind("InfoNCE", softnce.InfoNCE, labels_only=True),
    # The authors' way: η are the frequencies of the labels, although the targets are smoothed.
    "soft-dist-info-nce": LossKind("soft distribution InfoNCE", softnce.SoftDistributionInfoNCE),
    "soft-target-info-nce": LossKind("soft target InfoNCE", softnce.SoftTargetInfoNCE, takes_candidates=True),
    "expected-info-nce": LossKind(
        "expected InfoNCE", softnce.ExpectedInfoNCE, takes_candidates=True, smooths_noise=True
    ),
    # Corrected: η is the marginal of the smoothed targets, from which the labels are drawn.
    "soft-dist-info-nce-smoothed-noise": LossKind(
        "soft distribution InfoNCE, η smoothed", softnce.SoftDistributionInfoNCE, smooths_noise=True
    ),
}
PAPER = ("nll", "soft-ce", "info-nce", "soft-dist-info-nce", "soft-target-info-nce")
"""The paper's five losses, in the order of its tables; soft distribution InfoNCE in the authors' way."""
STUDIED = (*PAPER, "expected-info-nce")
"""The losses that the studies compare."""
TITLES = {name: kind.title for name, kind in LOSSES.items()}


def targets_for(name: str, soft: Targets) -> Targets:
    """The targets a loss is trained on: ``soft``, or hard labels if it takes no others."""
    return Targets() if LOSSES[name].labels_only else soft


@dataclass(frozen=True)
class Loss:
    """A loss and its options."""

    name: str = option("soft-target-info-nce", f"one of {', '.join(LOSSES)}", of=LOSSES)
    temperature: float = option(1.0, "τ, divides the scores", above=0, below=math.inf)
    noise: Literal["labels", "uniform"] = option("labels", "η: frequencies of the training labels, or uniform")
    candidates: Literal["batch", "sampled", "queue", "classes", "batch+classes"] = option(
        "batch", "what targets are contrasted with, for soft-target-info-nce and expected-info-nce"
    )
    num_candidates: int = option(4096, "number of sampled or queued candidates", least=1)
    noise_count: float | None = later(
        None, "m of expected-info-nce, candidates from η in expectation; null: K", least=0, below=math.inf
    )

    def __post_init__(self) -> None:
        check(self, "loss.")
        if self.candidates != "batch" and not self.kind.takes_candidates:
            raise ValueError(f"loss.candidates: got {self.candidates}, need batch for {self.name}")
        if self.noise_count is not None and not self.kind.takes_noise_count:
            raise ValueError(f"loss.noise_count: got {self.noise_count}, need none for {self.name}")

    @property
    def kind(self) -> LossKind:
        return LOSSES[self.name]


def build_loss(config: Loss, targets: Targets, labels: Tensor, num_classes: int) -> ClassifierLoss:
    """The loss of a recipe.

    Args:
        config: the recipe's loss.
        targets: smoothing and mixing; sampled candidates are made the same way.
        labels: (N,) of the training rows, or (N, K) votes; their class frequencies are η.
        num_classes: K.
    """
    kind, temperature = config.kind, config.temperature
    if not kind.contrastive:
        return kind.module(temperature=temperature)
    eta = softnce.noise.uniform(num_classes)
    if config.noise == "labels":
        try:
            eta = softnce.noise.from_counts(class_counts(labels, num_classes))
        except ValueError as error:  # a class without samples
            raise ValueError(f"{str(error).partition(';')[0]}; --loss.noise uniform needs no frequencies") from None
    if kind.smooths_noise:
        eta = (1 - targets.smoothing) * eta + targets.smoothing / num_classes
    if not kind.takes_candidates:
        return kind.module(eta, temperature=temperature)
    candidates: Any = ClassCandidates() if config.candidates == "classes" else BatchCandidates()
    if config.candidates == "sampled":
        marginal = softnce.noise.from_counts(class_counts(labels, num_classes), floor=1)
        candidates = SampledCandidates(config.num_candidates, marginal, targets.mixup, targets.smoothing)
    elif config.candidates == "queue":
        candidates += QueueCandidates(config.num_candidates)
    elif config.candidates == "batch+classes":
        candidates += ClassCandidates()
    if kind.takes_noise_count:
        candidates += NoiseCandidates(num_classes if config.noise_count is None else config.noise_count)
    return kind.module(eta, candidates=candidates, temperature=temperature)


def loss_with_noise(name: str, eta: Tensor, strength: float = 0.0, noise_count: float | None = None) -> ClassifierLoss:
    """A loss at temperature 1 with a given noise.

    Args:
        name: one of LOSSES; or averaged or continuous, for soft target InfoNCE of such draws against draws from η.
        eta: η, (K,); ``softnce.noise.uniform(K)`` for uniform.
        strength: number n of averaged labels, or concentration κ, of the draws.
        noise_count: m of expected InfoNCE; None for as many as classes.
    """
    if name == "averaged":
        return softnce.SoftTargetInfoNCE(eta, draw=softnce.draws.Averaged(int(strength)))
    if name == "continuous":
        return softnce.SoftTargetInfoNCE(eta, draw=softnce.draws.ContinuousCategorical(strength))
    kind = LOSSES[name]
    if noise_count is not None and kind.takes_noise_count:
        return kind.module(eta, candidates=BatchCandidates() + NoiseCandidates(noise_count))
    return kind.module(eta) if kind.contrastive else kind.module()


def class_counts(labels: Tensor, num_classes: int) -> Tensor:
    """Class counts (K,) of labels (N,), ignored ones left out, or of votes (N, K), where every row counts once."""
    if labels.dim() == 1:
        return labels[labels >= 0].bincount(minlength=num_classes).double()
    return (labels.double() / labels.sum(1, keepdim=True).clamp(min=1e-300)).sum(0)
