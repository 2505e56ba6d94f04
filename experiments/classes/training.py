"""A problem of many classes whose best possible accuracy is known, and one training on it by each loss."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.harness import later
from experiments.harness.memory import peak_of
from experiments.sampled_softmax import sampled_softmax
from softnce import (
    BatchCandidates,
    ExpectedInfoNCE,
    NoiseCandidates,
    SampledCandidates,
    SoftTargetInfoNCE,
    SoftTargets,
    functional,
    noise,
)
from softnce.heads import LabelEmbeddingHead
from softnce.optimisers import RowAdagrad

Method = Literal["info-nce", "info-nce-more", "expected-info-nce", "sampled-softmax", "softmax"]
"""info-nce is soft target InfoNCE against the batch's targets, info-nce-more against further drawn ones too."""
METHODS: tuple[Method, ...] = get_args(Method)
TABLE_OPTIMISERS = {"sparse-adam": torch.optim.SparseAdam, "row-adagrad": RowAdagrad}


@dataclass(frozen=True)
class Run:
    """One training."""

    method: Method
    classes: int
    lr: float  # of the table
    seed: int
    steps: int
    seconds: float | None  # None; two committed trainings stopped after that time
    batch: int
    others: int  # candidates beside the batch's, or negatives; of expected InfoNCE, labels drawn from η
    network_lr: float
    mix_alpha: float
    noise: float
    latent: int
    dim: int
    hidden: int
    tests: int
    zipf: float = later(0.0, "exponent of the classes' frequencies, 1/rank^zipf")
    part: Literal["", "searched"] = later("", "searched: smaller, optimiser and rate of the table are searched")
    table_optimiser: Literal["sparse-adam", "row-adagrad"] = later("sparse-adam", "of the table; Adam for softmax")


class Problem:
    """Classes are Gaussian clouds of one width around random points; samples are seen through a fixed network.

    Every layer of the network is a rotation and a leaky rectifier, hence invertible: the best guess is the nearest
    point, with a handicap for rare classes.
    """

    def __init__(self, classes: int, latent: int, noise: float, seed: int, zipf: float = 0.0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._noise = noise
        self.points = torch.randn(classes, latent, generator=self._generator)
        layers = torch.randn(3, latent, latent, generator=self._generator)
        self.rotations = torch.linalg.qr(layers)[0]
        self.shifts = 0.5 * torch.randn(3, latent, generator=self._generator)
        self._left = torch.empty(0, dtype=torch.long)
        self.marginal: Tensor | None = None
        if zipf:
            frequency = torch.arange(1, classes + 1, dtype=torch.float64) ** -zipf
            self.marginal = (frequency / frequency.sum()).float()

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Samples (n, latent) and labels (n,); equally frequent classes come once before any comes again (n ≤ K)."""
        if self.marginal is not None:
            labels = drawn(len(self.points), rows, self.marginal, self._generator)
        else:
            while len(self._left) < rows:  # a rest shorter than a batch is left out
                self._left = torch.randperm(len(self.points), generator=self._generator)
            labels, self._left = self._left[:rows], self._left[rows:]
        return self.seen(self._places(labels)), labels

    def test(self, rows: int) -> tuple[Tensor, Tensor, float]:
        """Samples, labels of classes drawn at random, and the accuracy of the best possible guess on them."""
        labels = drawn(len(self.points), rows, self.marginal, self._generator)
        places = self._places(labels)
        # The nearest point has the largest u·p − |p|²/2; the likeliest of unequal classes that + σ² log of its share.
        bias = -self.points.square().sum(1) / 2
        if self.marginal is not None:
            bias += self._noise**2 * self.marginal.log()
        nearest = functional.linear_topk(places, self.points, 1, bias=bias, chunk_size=16384)[1][:, 0]
        return self.seen(places), labels, (nearest == labels).float().mean().item()

    def seen(self, places: Tensor) -> Tensor:
        for rotation, shift in zip(self.rotations, self.shifts, strict=True):
            places = F.leaky_relu(places @ rotation + shift, 0.3)
        return places

    def _places(self, labels: Tensor) -> Tensor:
        noise = torch.randn(len(labels), self.points.shape[1], generator=self._generator)
        return self.points[labels] + self._noise * noise


def drawn(classes: int, rows: int, marginal: Tensor | None, generator: torch.Generator | None = None) -> Tensor:
    """Random classes (n,); None is the uniform marginal."""
    if marginal is None:
        return torch.randint(classes, (rows,), generator=generator)
    return torch.multinomial(marginal, rows, replacement=True, generator=generator)


def mixed(x: Tensor, labels: Tensor, classes: int, alpha: float) -> tuple[Tensor, SoftTargets]:
    """MixUp of each row with the next, a λ for every row."""
    lam = torch.distributions.Beta(alpha, alpha).sample((len(x),))
    plain = SoftTargets.from_labels(labels, classes)
    partner = SoftTargets.from_labels(labels.roll(1), classes)
    return torch.lerp(x.roll(1, 0), x, lam[:, None]), plain.mix(partner, lam)


class Model(nn.Module):
    """A network of two hidden layers and a table of label embeddings, each with its optimiser."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        layers = nn.Linear(run.latent, run.hidden), nn.Linear(run.hidden, run.hidden), nn.Linear(run.hidden, run.dim)
        self.network = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
        sparse = run.method != "softmax"
        self.head = LabelEmbeddingHead(run.dim, run.classes, sparse=sparse)
        table: Any = TABLE_OPTIMISERS[run.table_optimiser] if sparse else torch.optim.Adam
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(self.network.parameters(), lr=run.network_lr),
            table([self.head.weight], lr=run.lr),
        ]
        self.schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, run.steps) for o in self.optimisers]

    def step(self, loss: Tensor) -> None:
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()

    @torch.no_grad()
    def accuracy(self, x: Tensor, labels: Tensor) -> float:
        best = self.head.topk(self.network(x), 1, chunk_size=16384)[1][:, 0]
        return (best == labels).float().mean().item()

    def held_bytes(self) -> int:
        """Parameters and what the optimisers keep."""
        state = [value for o in self.optimisers for kept in o.state.values() for value in kept.values()]
        return sum(value.nbytes for value in [*self.parameters(), *state] if isinstance(value, Tensor))


def criterion(run: Run, model: Model, marginal: Tensor | None = None) -> Callable[[Tensor, SoftTargets], Tensor]:
    """The loss of features and soft targets; η and the negatives follow ``marginal`` (K,), None for uniform."""
    eta = noise.uniform(run.classes) if marginal is None else marginal
    if run.method == "softmax":
        return lambda z, targets: functional.soft_target_cross_entropy(model.head(z), targets)
    if run.method == "sampled-softmax":

        def sampled(z: Tensor, targets: SoftTargets) -> Tensor:
            pairs: Any = targets.index, targets.pair_weight()
            negatives = drawn(run.classes, run.others, marginal)
            return sampled_softmax(z, model.head.weight, *pairs, negatives, marginal, sparse=True).mean()

        return sampled
    contrast: Any
    if run.method == "expected-info-nce":
        contrast = ExpectedInfoNCE(eta, candidates=BatchCandidates() + NoiseCandidates(run.others))
    else:
        more = SampledCandidates(run.others, eta, mix_alpha=run.mix_alpha) if run.others else None
        contrast = SoftTargetInfoNCE(eta, candidates=BatchCandidates() + more if more else BatchCandidates())
    return lambda z, targets: model.head.loss(z, targets, contrast)


@torch.random.fork_rng(devices=[])
def perform(run: Run) -> dict[str, Any]:
    """Accuracy in the course of training, at twelve steps ever further apart; time counts steps with their batches."""
    torch.manual_seed(run.seed)
    problem = Problem(run.classes, run.latent, run.noise, run.seed, run.zipf)
    x_test, y_test, best = problem.test(run.tests)
    model = Model(run)
    loss = criterion(run, model, problem.marginal)
    looks = {max(1, round(run.steps * 1.5**-i)) for i in range(12)}
    course: dict[str, list[float]] = defaultdict(list)
    used = 0.0

    def batch() -> tuple[Tensor, SoftTargets]:
        return mixed(*problem.batch(run.batch), run.classes, run.mix_alpha)

    def step(x: Tensor, targets: SoftTargets) -> None:
        model.step(loss(model.network(x), targets))

    for done in range(1, run.steps + 1):
        started = time.process_time()
        step(*batch())
        for schedule in model.schedules:
            schedule.step()
        used += time.process_time() - started
        if done in looks:
            point = {"step": done, "cpu_seconds": used, "accuracy": model.accuracy(x_test, y_test)}
            for name, value in point.items():
                course[name].append(value)
    return {
        "accuracy": course["accuracy"][-1],
        "best_possible": best,
        "steps": run.steps,
        "course": dict(course),
        "peak_bytes": model.held_bytes() + peak_of(partial(step, *batch())),
    }
