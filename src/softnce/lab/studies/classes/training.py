"""A small network and a table of label embeddings, trained by each method; what a training costs and learns."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from softnce import (
    BatchCandidates,
    ExpectedInfoNCE,
    NoiseCandidates,
    SampledCandidates,
    SoftTargetInfoNCE,
    SoftTargets,
    functional,
)
from softnce.heads import LabelEmbeddingHead
from softnce.lab.configuration import later
from softnce.lab.experiment.memory import peak_of
from softnce.lab.studies.classes.problem import Problem, mixed
from softnce.lab.studies.classes.sampled_softmax import sampled_softmax
from softnce.losses import ContrastiveLoss
from softnce.optimisers import RowAdagrad

Method = Literal["info-nce", "info-nce-more", "expected-info-nce", "sampled-softmax", "softmax"]
METHODS: tuple[Method, ...] = get_args(Method)
TableOptimiser = Literal["sparse-adam", "row-adagrad"]
TABLE_OPTIMISERS: dict[TableOptimiser, type[torch.optim.SparseAdam | RowAdagrad]] = {
    "sparse-adam": torch.optim.SparseAdam,
    "row-adagrad": RowAdagrad,
}


@dataclass(frozen=True)
class Run:
    """One training."""

    method: Method
    classes: int
    lr: float
    seed: int
    steps: int
    seconds: float | None  # after which it stops where it is
    batch: int
    others: int  # candidates beside the batch's, or negatives; of expected InfoNCE, labels drawn from η
    network_lr: float
    mix_alpha: float
    noise: float
    latent: int
    dim: int
    hidden: int
    tests: int
    zipf: float = later(0.0, "exponent of the classes' frequencies")
    part: Literal["", "searched"] = later("", "which part of the study; that with a search is smaller")
    table_optimiser: Literal["sparse-adam", "row-adagrad"] = later(
        "sparse-adam", "of the table; of the full softmax's it is Adam"
    )


class Model(nn.Module):
    """A network of two hidden layers and a table of label embeddings, each with its optimiser."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(run.latent, run.hidden),
            nn.GELU(),
            nn.Linear(run.hidden, run.hidden),
            nn.GELU(),
            nn.Linear(run.hidden, run.dim),
        )
        sparse = run.method != "softmax"
        self.head = LabelEmbeddingHead(run.dim, run.classes, sparse=sparse)
        table = TABLE_OPTIMISERS[run.table_optimiser] if sparse else torch.optim.Adam
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
    """The loss of features and soft targets; classes are as frequent as ``marginal`` (K,) says, None for equally."""
    if run.method == "softmax":
        return lambda z, targets: functional.soft_target_cross_entropy(model.head(z), targets)
    if run.method == "sampled-softmax":

        def sampled(z: Tensor, targets: SoftTargets) -> Tensor:
            assert targets.index is not None
            if marginal is None:
                negatives = torch.randint(run.classes, (run.others,))
            else:
                negatives = torch.multinomial(marginal, run.others, replacement=True)
            table, weight = model.head.weight, targets.pair_weight()
            return sampled_softmax(z, table, targets.index, weight, negatives, marginal, sparse=True)

        return sampled
    contrast: ContrastiveLoss
    if run.method == "expected-info-nce":
        contrast = ExpectedInfoNCE(marginal, candidates=BatchCandidates() + NoiseCandidates(run.others))
    else:
        more = SampledCandidates(run.others, marginal, mix_alpha=run.mix_alpha) if run.others else None
        contrast = SoftTargetInfoNCE(marginal, candidates=BatchCandidates() + more if more else None)
    return lambda z, targets: model.head.loss(z, targets, contrast)


def evaluation_steps(steps: int) -> list[int]:
    """After which steps to look: twelve of them, ever further apart, the last included."""
    return sorted({max(1, round(steps * 1.5**-i)) for i in range(12)})


def train(run: Run, on_step: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Accuracy in the course of training; time counts steps with their batches, not evaluations."""
    torch.manual_seed(run.seed)
    problem = Problem(run.classes, run.latent, run.noise, run.seed, run.zipf)
    x_test, y_test, best = problem.test(run.tests)
    model = Model(run)
    loss = criterion(run, model, problem.marginal)
    looks = set(evaluation_steps(run.steps))
    course: dict[str, list[float]] = defaultdict(list)
    wall = processor = 0.0

    def batch() -> tuple[Tensor, SoftTargets]:
        return mixed(*problem.batch(run.batch), run.classes, run.mix_alpha)

    def step(x: Tensor, targets: SoftTargets) -> None:
        model.step(loss(model.network(x), targets))

    for done in range(1, run.steps + 1):
        started, used = time.perf_counter(), time.process_time()
        step(*batch())
        for schedule in model.schedules:
            schedule.step()
        wall += time.perf_counter() - started
        processor += time.process_time() - used
        on_step()
        is_over = run.seconds is not None and wall > run.seconds
        if done in looks or is_over:
            for name, value in (
                ("step", done),
                ("seconds", wall),
                ("cpu_seconds", processor),
                ("accuracy", model.accuracy(x_test, y_test)),
            ):
                course[name].append(value)
        if is_over:
            break
    held = model.held_bytes()
    return {
        "accuracy": course["accuracy"][-1],
        "best_possible": best,
        "steps": done,
        "course": dict(course),
        "held_bytes": held,
        "peak_bytes": held + peak_of(partial(step, *batch())),
    }
