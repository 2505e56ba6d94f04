"""Heads trained on people's votes, judged by the votes of images they have not seen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from softnce import calibration, noise
from softnce.lab.configuration import later, option
from softnce.lab.data import votes
from softnce.lab.data.votes import Source
from softnce.lab.experiment import search
from softnce.lab.experiment.probe import fit
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head, build_head
from softnce.lab.losses import loss_with_noise
from softnce.targets import SoftTargets

VERSION = 1
Method = Literal["nll", "soft-ce", "soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce", "averaged"]
PLAIN: tuple[Method, ...] = ("nll", "soft-ce", "soft-dist-info-nce", "soft-target-info-nce")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(5, "number of seeds; each fixes the votes drawn, initial weights, batches and draws", least=1)
    data: Source = option("cifar10h", "cifar10h, or simulated votes on digits")
    votes: tuple[int, ...] = option(
        (1, 3, 10, 0), "votes per image, drawn without replacement; 0 for all", least=0, fewest=1
    )
    draws: tuple[int, ...] = option((2, 4), "n of averaged draws", least=1)
    epochs: int = option(15, "passes over the training part", least=1)
    batch: int = option(256, "rows in a batch, which are also the candidates", least=2)
    hidden: int = option(128, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "learning rates tried for each setting", above=0, fewest=1)


PRESETS = {
    "quick": Config(
        seeds=3, data="simulated", votes=(1, 3, 0), draws=(2,), epochs=8, batch=64, hidden=64, rates=(3e-3,)
    ),
    "paper": Config(),
}


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
    noise_count: float | None = later(None, "m of expected InfoNCE; None for its default, as many as classes")


def settings(config: Config) -> list[Run]:
    methods: list[tuple[Method, int]] = [(method, 0) for method in PLAIN]
    methods += [("averaged", n) for n in config.draws]
    found = [
        Run(config.data, method, n, number, config.hidden, config.batch, config.epochs)
        for number in config.votes
        for method, n in [*methods, ("expected-info-nce", 0)]
    ]
    return [*found, *(replace(run, noise_count=0.0) for run in found if run.method == "expected-info-nce")]


def held_out(row: Row) -> float:
    """What a learning rate is chosen by: likelihood of the held-out votes; a run that diverged comes last."""
    value = row.result["held_out"]["cross_entropy"]
    return float("-inf") if value is None else -value


def runs(config: Config) -> list[Run]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    return search.tuned(settings(config), rows, config.rates, config.seeds, held_out)


def prepare(todo: Sequence[Run]) -> None:
    for source in {run.data for run in todo}:
        votes.load(source)  # missing data is said once, before processes start


def perform(run: Run) -> dict[str, Any]:
    """Train on the drawn votes; scores of the last epoch.

    The held-out part is judged by as many votes as the training part has, the test part by all of its votes, as it is
    and at the temperature that fits the held-out votes best.
    """
    parts = votes.load(run.data)
    generator = torch.Generator().manual_seed(run.seed)
    asked, known = (
        votes.draw(part.votes, run.votes, generator) if run.votes else part.votes
        for part in (parts.train, parts.held_out)
    )
    soft = SoftTargets.from_votes(asked, asked.shape[1])
    loss = loss_with_noise(run.method, noise.from_counts(soft.class_mass(), floor=1), run.n, run.noise_count)
    if run.method == "nll":
        soft = SoftTargets.from_labels(votes.majority(asked, generator), soft.num_classes)
    head = build_head(Head(hidden=run.hidden), parts.train.x.shape[1], soft.num_classes, run.seed)
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


def _shares(votes: Tensor) -> Tensor:
    return votes.double() / votes.sum(1, keepdim=True)
