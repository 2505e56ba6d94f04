"""The losses of the laboratory, by name: the one registry that recipes, studies, the report and the commands use.

To add a loss, add one entry to :data:`LOSSES`, and its colour to ``report/style.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import softnce
from softnce.lab.configuration import later, option
from softnce.lab.targets import Targets

if TYPE_CHECKING:  # reading a recipe needs no torch
    from torch import Tensor

    from softnce.draws import Draw


@dataclass(frozen=True)
class LossKind:
    """What is known of a loss.

    Attributes:
        title: its name in tables and figures.
        name: of its class in :mod:`softnce`.
        labels_only: takes hard labels, no soft targets.
        contrastive: contrasts the target with those of other rows, and corrects by the noise η.
        takes_candidates: the recipe may say what a target is contrasted with.
        counts_noise: takes further candidates from η in expectation; its η is the marginal of the smoothed targets.
        in_paper: one of the paper's five, which the recipes and studies of the paper run.
    """

    title: str
    name: str
    labels_only: bool = False
    contrastive: bool = False
    takes_candidates: bool = False
    counts_noise: bool = False
    in_paper: bool = True

    def build(self, *noise: "Tensor | None", **options: Any) -> "softnce.ClassifierLoss":
        """The loss with ``temperature``; contrastive ones also with η, and with ``candidates`` where they take any."""
        return getattr(softnce, self.name)(*noise, **options)


LOSSES: dict[str, LossKind] = {
    "nll": LossKind("NLL", "NLL", labels_only=True),
    "soft-ce": LossKind("soft target cross-entropy", "SoftTargetCrossEntropy"),
    "info-nce": LossKind("InfoNCE", "InfoNCE", labels_only=True, contrastive=True),
    "soft-dist-info-nce": LossKind("soft distribution InfoNCE", "SoftDistributionInfoNCE", contrastive=True),
    "soft-target-info-nce": LossKind(
        "soft target InfoNCE", "SoftTargetInfoNCE", contrastive=True, takes_candidates=True
    ),
    "expected-info-nce": LossKind(
        "expected InfoNCE",
        "ExpectedInfoNCE",
        contrastive=True,
        takes_candidates=True,
        counts_noise=True,
        in_paper=False,
    ),
}
PAPER = tuple(name for name, kind in LOSSES.items() if kind.in_paper)
"""Names of the paper's five losses, in the order of its tables."""
TITLES = {name: kind.title for name, kind in LOSSES.items()}
"""What a loss is called in sentences, tables and figures."""
DRAWS: dict[str, Callable[[float], "Draw"]] = {
    "averaged": lambda n: softnce.draws.Averaged(int(n)),
    "continuous": lambda concentration: softnce.draws.ContinuousCategorical(concentration),
}
"""Draws that studies compare, by the number n of averaged labels or the concentration κ."""

if TYPE_CHECKING:
    LossName = str
else:
    LossName = Literal[tuple(LOSSES)]


@dataclass(frozen=True)
class Loss:
    """What is minimised."""

    name: LossName = option("soft-target-info-nce", "which loss")
    temperature: float = option(1.0, "τ, divides the scores", above=0)
    noise: Literal["labels", "uniform"] = option("labels", "η: frequencies of the training labels, or uniform")
    candidates: Literal["batch", "sampled", "queue", "classes", "batch+classes"] = option(
        "batch", "what soft-target-info-nce and expected-info-nce contrast a target with"
    )
    num_candidates: int = option(4096, "how many sampled or remembered candidates", least=1)
    noise_count: float | None = later(
        None, "expected-info-nce: further candidates from η, in expectation; null: as many as classes"
    )

    @property
    def kind(self) -> LossKind:
        return LOSSES[self.name]


def build_loss(config: Loss, targets: Targets, labels: "Tensor", num_classes: int) -> "softnce.ClassifierLoss":
    """The loss a recipe names.

    Args:
        config: the recipe's loss.
        targets: how sampled candidates are made.
        labels: (N,) of the training rows, whose frequencies are η.
        num_classes: K.
    """
    kind = config.kind
    if not kind.contrastive:
        return kind.build(temperature=config.temperature)
    try:
        eta = None if config.noise == "uniform" else softnce.noise.from_labels(labels, num_classes)
    except ValueError as error:  # what is wrong, and what a recipe can do about it
        raise ValueError(f"{str(error).partition(';')[0]}; --loss.noise uniform does without η") from None
    options = {"temperature": config.temperature}
    if not kind.takes_candidates:
        return kind.build(eta, **options)
    candidates = _candidates(config, targets, labels, num_classes)
    if kind.counts_noise:
        count = num_classes if config.noise_count is None else config.noise_count
        candidates = candidates + softnce.NoiseCandidates(count)
        eta = None if eta is None else (1 - targets.smoothing) * eta + targets.smoothing / num_classes
    return kind.build(eta, candidates=candidates, **options)


def loss_with_noise(
    name: str, eta: "Tensor | None", strength: float = 0.0, noise_count: float | None = None
) -> "softnce.ClassifierLoss":
    """A loss at temperature 1 with a noise of its own.

    Args:
        name: one of :data:`LOSSES`; or of :data:`DRAWS`, for soft target InfoNCE of such draws against draws from η.
        eta: η, (K,); None for uniform.
        strength: n or κ of the draws.
        noise_count: m of expected InfoNCE, further candidates from η; None for its default, as many as classes.
    """
    if name in DRAWS:
        return softnce.SoftTargetInfoNCE(eta, draw=DRAWS[name](strength))
    kind = LOSSES[name]
    if noise_count is not None and kind.counts_noise:
        return kind.build(eta, candidates=softnce.BatchCandidates() + softnce.NoiseCandidates(noise_count))
    return kind.build(eta) if kind.contrastive else kind.build()


def _candidates(config: Loss, targets: Targets, labels: "Tensor", num_classes: int) -> "softnce.Candidates":
    match config.candidates:
        case "sampled":
            marginal = softnce.noise.from_labels(labels, num_classes, floor=1)
            return softnce.SampledCandidates(config.num_candidates, marginal, targets.mixup, targets.smoothing)
        case "queue":
            return softnce.BatchCandidates() + softnce.QueueCandidates(config.num_candidates)
        case "classes":
            return softnce.ClassCandidates()
        case "batch+classes":
            return softnce.BatchCandidates() + softnce.ClassCandidates()
    return softnce.BatchCandidates()
