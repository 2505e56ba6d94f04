"""One head trained on people's votes, judged by the votes of images it has not seen."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from softnce import calibration, noise
from softnce.draws import Averaged
from softnce.lab.data.votes import Source, Voted, draw, load, majority
from softnce.lab.experiment.probe import build_head, fit
from softnce.lab.recipes.recipe import Head
from softnce.losses import NLL, ClassifierLoss, SoftDistributionInfoNCE, SoftTargetCrossEntropy, SoftTargetInfoNCE
from softnce.targets import SoftTargets

Method = Literal["nll", "soft-ce", "soft-dist-info-nce", "soft-target-info-nce", "averaged"]


@dataclass(frozen=True)
class Run:
    """Everything that determines one training.

    Attributes:
        method: a loss; ``averaged`` is soft target InfoNCE with ``n`` labels drawn from the votes and averaged.
        votes: people asked about each image, 0 for all there were.
    """

    data: Source
    method: Method
    n: int
    votes: int
    hidden: int
    batch: int
    epochs: int
    lr: float = 1e-3
    seed: int = 0


def train(run: Run) -> dict[str, Any]:
    """Train on the drawn votes; scores of the last epoch.

    The held-out part is judged by as many votes as the training part has, the test part by all of its votes, as it is
    and at the temperature that fits the held-out votes best.
    """
    parts = load(run.data)
    generator = torch.Generator().manual_seed(run.seed)
    asked, known = (_ask(part, run.votes, generator) for part in (parts.train, parts.held_out))
    soft = SoftTargets.from_votes(asked)
    num_classes = soft.num_classes
    loss = build(run, noise.from_counts(soft.class_mass(), floor=1))
    if run.method == "nll":
        soft = SoftTargets.from_labels(majority(asked, generator), num_classes)
    head = build_head(Head(hidden=run.hidden), parts.train.x.shape[1], num_classes, run.seed)
    fit(head, loss, parts.train.x, soft, batch=run.batch, lr=run.lr, epochs=run.epochs, seed=run.seed)
    with torch.no_grad():
        held, test = head(parts.held_out.x), head(parts.test.x)
    temperature = calibration.fit_temperature(held, _shares(known))
    return {
        "held_out": agreement(held, parts.held_out.y, known),
        "test": agreement(test, parts.test.y, parts.test.votes),
        "temperature": temperature,
        "scaled": agreement(test / temperature, parts.test.y, parts.test.votes),
    }


def build(run: Run, eta: Tensor) -> ClassifierLoss:
    match run.method:
        case "nll":
            return NLL()
        case "soft-ce":
            return SoftTargetCrossEntropy()
        case "soft-dist-info-nce":
            return SoftDistributionInfoNCE(eta)
        case "soft-target-info-nce":
            return SoftTargetInfoNCE(eta)
        case "averaged":
            return SoftTargetInfoNCE(eta, draw=Averaged(run.n))


def agreement(logits: Tensor, labels: Tensor, votes: Tensor) -> dict[str, float]:
    """Of softmax(logits) (N, K) with labels (N,) and with the shares p of votes (N, K), means over the images.

    ``cross_entropy`` is −Σ p log q and ``kl`` that minus the entropy of p, in nats; ``kl_disputed`` is the latter over
    the tenth of the images people disagree most about; ``ece`` is the predicted class's calibration error by the votes.
    """
    shares = _shares(votes)
    entropy = -torch.special.xlogy(shares, shares).sum(1)
    divergence = -(shares * logits.double().log_softmax(1)).sum(1) - entropy
    disputed = entropy.topk(max(1, len(entropy) // 10)).indices
    return {
        "top1": (logits.argmax(1) == labels).double().mean().item(),
        "cross_entropy": (divergence + entropy).mean().item(),
        "kl": divergence.mean().item(),
        "kl_disputed": divergence[disputed].mean().item(),
        "ece": calibration.expected_calibration_error(logits.softmax(1), shares).item(),
    }


def _ask(part: Voted, number: int, generator: torch.Generator) -> Tensor:
    return draw(part.votes, number, generator) if number else part.votes


def _shares(votes: Tensor) -> Tensor:
    return votes.double() / votes.sum(1, keepdim=True)
