"""Critics trained to find a label among M candidates, and the bounds they give on a known information."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from softnce.information import (
    classifier_information,
    information_bound,
    mutual_information,
    paper_information_bound,
    smoothed_joint,
)
from softnce.lab.configuration import later, option
from softnce.lab.experiment.study import StudyConfig

VERSION = 1
Loss = Literal["soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce"]
Critic = Literal["free", "embedding", "exact"]
GROUPS = 8  # sets of negatives per step, each shared by an eighth of the batch
NEGATIVE_SETS = 2000  # over which a bound is averaged


@dataclass(frozen=True)
class Table:
    """The joint distribution of Z and Y: p(z) ∝ exp a_z, p(y|z) ∝ exp(b_y + c_zy) with normal a, b, c."""

    states: int = option(20, "values of Z", least=2)
    classes: int = option(20, "values of Y", least=2)
    sharpness: float = option(2.5, "standard deviation of c; more of it, more information")
    skew: float = option(1.0, "standard deviation of a and b")

    def joint(self) -> Tensor:
        """p(z, y), fp64, the same whenever it is asked for."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        p_z = (self.skew * normal(self.states, 1)).softmax(0)
        logits = self.skew * normal(1, self.classes) + self.sharpness * normal(self.states, self.classes)
        return p_z * logits.softmax(1)


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes the training samples")
    epsilons: tuple[float, ...] = option((0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), "values of ε", least=0, below=1)
    candidates: tuple[int, ...] = option(
        (2, 4, 8, 16, 64, 256, 1024), "numbers of candidates M, with the true one", least=2
    )
    epsilon: float = option(0.1, "ε while M changes", least=0, below=1)
    steps: int = option(300, "training steps", least=1)
    batch_size: int = option(4096, "samples per step", least=GROUPS)
    lr: float = option(0.1, "learning rate of Adam at the start; it falls to 0", above=0)
    dimension: int = option(2, "dimension of the limited critic's embeddings", least=1)
    table: Table = field(default_factory=Table)


PRESETS = {
    "quick": Config(seeds=1, epsilons=(0.0, 0.1, 0.5, 0.9), candidates=(2, 16, 256), steps=200),
    "paper": Config(),
}


@dataclass(frozen=True)
class Run:
    """One critic; the exact one is not trained.

    ``noise_count`` further candidates of expected InfoNCE are draws from η in expectation. η is the labels' marginal;
    with another one, log(M + m) − ℓ bounds nothing.
    """

    table: Table
    loss: Loss
    critic: Critic
    epsilon: float
    candidates: int
    seed: int
    steps: int
    batch_size: int
    lr: float
    dimension: int
    noise_count: float = later(0.0, "m")
    noise: Literal["marginal", "uniform"] = later("marginal", "η")


def runs(config: Config) -> list[Run]:
    def critics(loss: Loss, critic: Critic, epsilon: float, candidates: int, *more: Any) -> list[Run]:
        training = (config.steps, config.batch_size, config.lr) if critic != "exact" else (0, 0, 0.0)
        dimension = config.dimension if critic == "embedding" else 0
        seeds = range(config.seeds if critic != "exact" else 1)
        return [Run(config.table, loss, critic, epsilon, candidates, s, *training, dimension, *more) for s in seeds]

    most = max(config.candidates)
    wanted: list[Run] = []
    for epsilon in config.epsilons:
        wanted += critics("soft-dist-info-nce", "free", epsilon, most)
        wanted += critics("soft-dist-info-nce", "embedding", epsilon, most)
        wanted += critics("soft-target-info-nce", "free", epsilon, most)
    for candidates in config.candidates:
        wanted += critics("soft-dist-info-nce", "free", config.epsilon, candidates)
        wanted += critics("soft-dist-info-nce", "exact", config.epsilon, candidates)
    for m in (float(config.table.classes), 0.0):  # the default, and none
        for epsilon in config.epsilons:
            wanted += critics("expected-info-nce", "free", epsilon, most, m)
            wanted += critics("expected-info-nce", "embedding", epsilon, most, m)
        for candidates in config.candidates:
            wanted += critics("expected-info-nce", "free", config.epsilon, candidates, m)
            wanted += critics("expected-info-nce", "exact", config.epsilon, candidates, m)
    for noise in ("marginal", "uniform"):  # few candidates and many from η, which then has to be right
        m = float(50 * config.table.classes)
        wanted += critics("expected-info-nce", "free", config.epsilon, min(config.candidates), m, noise)
    return wanted


def perform(run: Run) -> dict[str, float]:
    """Train a critic, and take its bound over the whole table and many sets of negatives."""
    random = np.random.default_rng(run.seed)
    channel = _channel(run)
    scores = _train(run, channel, random) if run.critic != "exact" else _log_ratio(channel)
    p_y = channel.sum(0)
    sets = _others(run, p_y, NEGATIVE_SETS, random)
    # The expectation over (z, y) is exact; only the negatives are sampled.
    each = torch.cat([(channel * _losses(scores, part)).sum((-1, -2)) for part in sets.split(200)])
    loss, negatives = each.mean(), run.candidates - 1 + round(run.noise_count)
    posterior = channel / channel.sum(1, keepdim=True)
    classifier = classifier_information(scores + p_y.log(), posterior, p_y)
    return {
        "truth": mutual_information(channel).item(),
        "bound": information_bound(loss, negatives).item(),
        "standard_error": (each.std() / math.sqrt(len(each))).item(),
        "paper_bound": paper_information_bound(loss, negatives).item(),
        "classifier_bound": (channel.sum(1) @ classifier).item(),
    }


def _channel(run: Run) -> Tensor:
    """p(z, a) of what the loss contrasts: labels drawn from the smoothed ones, or the soft targets themselves.

    A soft target (1 − ε)·e_y + ε·p_Y tells its label, so as a variable it is the label; expected InfoNCE sums over the
    labels that could be drawn from it.
    """
    joint = run.table.joint()
    return joint if run.loss == "soft-target-info-nce" else smoothed_joint(joint, run.epsilon)


def _others(run: Run, p_y: Tensor, sets: int, random: np.random.Generator) -> Tensor:
    """Class counts of the other candidates, (sets, K): as many labels; in expected InfoNCE their soft targets.

    Smoothing with ξ = p(y) leaves the marginal p(y) as it is. M − 1 soft targets (1 − ε)·e_y + ε·p(y) count
    (1 − ε)·n + ε·(M − 1)·p(y) for labels counted n, and m draws from η in expectation m·η.
    """
    counts = _counts(p_y, sets, run.candidates - 1, random)
    if run.loss != "expected-info-nce":
        return counts
    eta = p_y if run.noise == "marginal" else torch.full_like(p_y, 1 / len(p_y))
    return torch.lerp(counts, (run.candidates - 1) * p_y, run.epsilon) + run.noise_count * eta


def _log_ratio(channel: Tensor) -> Tensor:
    return (channel / channel.sum(0) / channel.sum(1, keepdim=True)).log()


def _train(run: Run, channel: Tensor, random: np.random.Generator) -> Tensor:
    """Scores of all pairs (Z, K) after training. A soft target scores (1 − ε)·s_y, plus what all have in common."""
    states, classes = channel.shape
    if run.critic == "free":
        parameters = [torch.zeros(states, classes, dtype=torch.float64)]
    else:
        shapes = (states, run.dimension), (classes, run.dimension)
        parameters = [torch.from_numpy(random.normal(size=shape)) for shape in shapes]
    for parameter in parameters:
        parameter.requires_grad_()
    p_y, size = channel.sum(0), run.batch_size // GROUPS
    sharpness = 1 - run.epsilon if run.loss == "soft-target-info-nce" else 1.0
    optimiser = torch.optim.Adam(parameters, lr=run.lr / sharpness)  # the same steps in the scores whatever ε is
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, run.steps)

    def scores() -> Tensor:
        return sharpness * (parameters[0] if len(parameters) == 1 else parameters[0] @ parameters[1].T)

    for _ in range(run.steps):
        pairs = _counts(channel.flatten(), GROUPS, size, random).view(GROUPS, states, classes)
        negatives = _others(run, p_y, GROUPS, random)
        optimiser.zero_grad()
        ((pairs * _losses(scores(), negatives)).sum() / (GROUPS * size)).backward()
        optimiser.step()
        schedule.step()
    return scores().detach()


def _counts(probs: Tensor, sets: int, size: int, random: np.random.Generator) -> Tensor:
    """How often each outcome came up among ``size`` draws, (sets, outcomes); by binomials, whatever the size."""
    return torch.from_numpy(random.multinomial(size, (probs / probs.sum()).numpy(), size=sets)).double()


def _losses(scores: Tensor, counts: Tensor) -> Tensor:
    """ℓ of every pair (z, y) beside each set of negatives, from their class counts: (Z, K), (B, K) → (B, Z, K)."""
    others = (scores + counts.log()[:, None]).logsumexp(-1, keepdim=True)
    return torch.logaddexp(scores, others) - scores
