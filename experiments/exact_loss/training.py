"""The runs of the exact loss: trainings, gradient noise, the distribution of a draw, and the cost of a step."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

import softnce
from experiments.digits import digits, mlp
from experiments.exact_loss.original import (
    cancelling_log_integral,
    exact_log_integral,
    ordered_rejection_log_acceptance,
)
from experiments.harness import later
from experiments.losses import loss_with_noise
from experiments.training import fit
from softnce import SoftTargets, calibration
from softnce.distributions import AveragedCategorical, ContinuousCategorical
from softnce.distributions.simplex import SimplexIntegral

SMOOTHING = 0.1
CLASSES, DIMENSION, SPREAD = 100, 16, 0.9  # of the problem with a known conditional
EXACT_UP_TO = 300  # classes; exact arithmetic takes time ~ K
Problem = Literal["digits", "conditional", "labels"]
Kind = Literal["soft-ce", "soft-target-info-nce", "soft-dist-info-nce", "expected-info-nce", "averaged", "continuous"]


@dataclass(frozen=True)
class Method:
    """A loss; ``strength`` is n of averaged or κ of continuous draws, ``noise_count`` m of expected InfoNCE."""

    kind: Kind
    strength: float = 0.0
    noise_count: float | None = later(None, "m of expected InfoNCE; None: as many as classes")


@dataclass(frozen=True)
class Training:
    """One training. If ``gradients`` is not 0, also the noise of its gradient and the information in its draws."""

    problem: Problem
    method: Method
    seed: int
    epochs: int
    gradients: int
    part: str = "training"


@dataclass(frozen=True)
class Noise:
    """Gradient noise of one loss. ``eta``: η of expected InfoNCE is the marginal of the targets, or of the labels."""

    problem: Problem
    method: Method
    seed: int
    batches: int
    eta: Literal["targets", "labels"] = later("targets", "marginal of the targets, or of the labels")
    part: str = "noise"


@dataclass(frozen=True)
class Shape:
    """The distribution of a draw at K classes."""

    classes: int
    part: str = "shape"


@dataclass(frozen=True)
class Cost:
    """Time of a step at K classes, for each method."""

    classes: int
    methods: tuple[Method, ...]
    rows: int = 256
    part: str = "cost"


CE = Method("soft-ce")


def perform(run: Any) -> dict[str, Any]:
    match run:
        case Shape(classes):
            return shape(classes)
        case Cost(classes, methods, rows):
            return cost(classes, methods, rows)
        case Noise(problem, method, seed, batches, eta):
            return {"gradient_noise": gradient_noise(problem, method, seed, batches, eta)}
    problem, method, seed = run.problem, run.method, run.seed
    result = train(problem, method, seed, run.epochs)
    if run.gradients:
        result["gradient_noise"] = gradient_noise(problem, method, seed, run.gradients)
        result["nats"] = nats(problem, method, seed)
    return result


class Data(NamedTuple):
    """Training and test rows; test targets are labels, or the true conditional if it is known."""

    inputs: Tensor
    targets: SoftTargets
    test_inputs: Tensor
    test_targets: Tensor
    noise: Tensor
    batch_size: int
    lr: float


@cache
def data(problem: Problem, seed: int) -> Data:
    """Digits; or x normal and p(y|x) ∝ exp(x·θ_y + b_y), with that conditional or a smoothed label as target."""
    generator = torch.Generator().manual_seed(seed)
    if problem == "digits":
        images, labels = digits()
        train, test = torch.randperm(len(images), generator=generator).split([400, len(images) - 400])
        targets = SoftTargets.from_labels(labels[train], 10, SMOOTHING)
        noise = softnce.noise.from_labels(labels[train], 10, floor=1)
        return Data(images[train], targets, images[test], labels[test], noise, 100, 1e-3)
    theta = SPREAD * torch.randn(CLASSES, DIMENSION, generator=generator)
    bias = torch.randn(CLASSES, generator=generator)
    inputs = torch.randn(8192, DIMENSION, generator=generator)
    known, held_out = (inputs @ theta.T + bias).softmax(1).split(4096)
    if problem == "conditional":
        targets = SoftTargets.from_dense(known)
    else:
        labels = torch.multinomial(known, 1, generator=generator)[:, 0]
        targets = SoftTargets.from_labels(labels, CLASSES, SMOOTHING)
    return Data(inputs[:4096], targets, inputs[4096:], held_out, softnce.noise.from_counts(known.sum(0)), 256, 0.02)


def model_of(problem: Problem, generator: torch.Generator) -> nn.Module:
    """An MLP for digits; for the known conditional the linear model that can represent it."""
    if problem == "digits":
        return mlp(128, generator)
    model = nn.Linear(DIMENSION, CLASSES)
    nn.init.kaiming_uniform_(model.weight, nonlinearity="relu", generator=generator)
    nn.init.zeros_(model.bias)
    return model


def loss_of(method: Method, here: Data, eta: str = "targets") -> Any:
    """The loss with η the marginal of the labels; of expected InfoNCE that of the targets, after smoothing."""
    noise = here.noise
    if method.kind == "expected-info-nce" and eta == "targets":
        noise = softnce.noise.from_counts(here.targets.class_mass(torch.float64))
    return loss_with_noise(method.kind, noise, method.strength, method.noise_count)


def train(problem: Problem, method: Method, seed: int, epochs: int) -> dict[str, Any]:
    """Accuracy of one model on the test rows, and its divergence before and after temperature scaling.

    The divergence is the likelihood less the entropy of a known conditional, KL(p‖q).
    """
    generator = torch.Generator().manual_seed(seed)
    here = data(problem, seed)
    model = model_of(problem, generator)
    _fit(model, loss_of(method, here), here, epochs, generator)
    with torch.no_grad():
        logits = model(here.test_inputs)
    truth, probs = here.test_targets, here.test_targets.double()
    if not truth.is_floating_point():
        probs = nn.functional.one_hot(truth, logits.shape[1]).double()
    entropy = -torch.xlogy(probs, probs).sum(1).mean().item()
    tempered = logits / calibration.fit_temperature(logits, truth)
    return {
        "accuracy": probs.gather(1, logits.argmax(1, keepdim=True)).mean().item(),
        "divergence": calibration.negative_log_likelihood(logits, truth).item() - entropy,
        "divergence_at_temperature": calibration.negative_log_likelihood(tempered, truth).item() - entropy,
    }


def _fit(model: nn.Module, loss: Any, here: Data, epochs: int, generator: torch.Generator) -> None:
    sizes: dict[str, Any] = {"batch": here.batch_size, "lr": here.lr, "epochs": epochs}
    fit(model, loss, here.inputs, here.targets, seed=generator, weight_decay=0.0, **sizes)


def nats(problem: Problem, method: Method, seed: int) -> float | None:
    """KL of a draw from the target to one from the noise, mean over 512 targets: the information in one draw."""
    here = data(problem, seed)
    probs, noise = here.targets[:512].dense(torch.float64), here.noise.double()
    draws: list[Any]
    if method.kind in ("soft-dist-info-nce", "averaged"):
        draws = [AveragedCategorical(int(method.strength) or 1, p) for p in (probs, noise)]
    elif method.kind == "continuous":
        draws = [ContinuousCategorical(p, concentration=method.strength) for p in (probs, noise)]
    else:
        return None
    return kl_divergence(*draws).mean().item()


def gradient_noise(problem: Problem, method: Method, seed: int, batches: int, eta: str = "targets") -> float | None:
    """Variance of a batch's gradient over the square of its mean: how many batches to average until they are equal.

    At the same weights for all losses, those after an epoch of soft target cross-entropy. The square of the mean is
    estimated without bias, from products of different batches; None if the estimate is not above zero.
    """
    generator = torch.Generator().manual_seed(seed)
    here = data(problem, seed)
    model = model_of(problem, generator)
    _fit(model, loss_of(CE, here), here, 1, generator)
    loss, parameters = loss_of(method, here, eta), list(model.parameters())
    total, squares = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64), 0.0
    for _ in range(batches):
        batch = torch.randint(len(here.inputs), (here.batch_size,), generator=generator)
        value = loss(model(here.inputs[batch]), here.targets[batch], generator=generator)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]).double()
        total += gradient
        squares += gradient.square().sum().item()
    mean_square = (total.square().sum().item() - squares) / (batches * (batches - 1))
    return (squares / batches - mean_square) / mean_square if mean_square > 0 else None


def smoothed_label(classes: int) -> Tensor:
    probs = torch.full((classes,), SMOOTHING / classes, dtype=torch.float64)
    probs[0] += 1 - SMOOTHING
    return probs


def shape(classes: int) -> dict[str, Any]:
    """Information in a draw and proposals it takes, for a smoothed label; error of log Z, for normal ω."""
    target, flat = smoothed_label(classes), torch.full((classes,), 1 / classes, dtype=torch.float64)
    strength = {}
    for name, concentration in {"1": 1.0, "√K": math.sqrt(classes), "K": float(classes)}.items():
        draws = (ContinuousCategorical(p, concentration=concentration) for p in (target, flat))
        strength[name] = {"nats": kl_divergence(*draws).item()}
    drawn = ContinuousCategorical(target)
    log_acceptance = ordered_rejection_log_acceptance(drawn.natural_parameters, drawn.log_normalizer).item()
    result: dict[str, Any] = {
        "strength": strength,
        "label_nats": kl_divergence(AveragedCategorical(1, target), AveragedCategorical(1, flat)).item(),
        "proposals": drawn.expected_proposals.item(),
        "log10_original_proposals": -log_acceptance / math.log(10),
    }
    if classes <= EXACT_UP_TO:
        ours, original = [], []
        for seed in range(5):
            omega = torch.randn(classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            exact = exact_log_integral(omega.tolist())
            ours.append(_error(SimplexIntegral(omega).log_value, exact))
            original.append(_error(cancelling_log_integral(omega), exact))
        result |= {"error": statistics.median(ours), "original_error": statistics.median(original)}
    return result


def _error(found: Tensor, exact: Decimal) -> float:
    value = found.item()
    return abs(float(Decimal(value) - exact)) if math.isfinite(value) else math.inf


def cost(classes: int, methods: Sequence[Method], rows: int) -> dict[str, Any]:
    """Milliseconds of loss and gradient, in the order of ``methods``, and seconds of 10,000 draws beside Dirichlet's.

    Medians of interleaved repetitions, on one thread.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator, requires_grad=True)
    labels = torch.randint(classes, (rows,), generator=generator)
    targets = SoftTargets.from_labels(labels, classes, SMOOTHING)
    target, eta = smoothed_label(classes).float(), softnce.noise.uniform(classes)
    losses = [loss_with_noise(method.kind, eta, method.strength, method.noise_count) for method in methods]
    steps = [lambda loss=loss: loss(logits, targets, generator=generator).backward() for loss in losses]
    samplers = [
        lambda: ContinuousCategorical(target).sample((10_000,)),
        lambda: torch.distributions.Dirichlet(1 + target).sample((10_000,)),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        milliseconds, (continuous, dirichlet) = [1e3 * t for t in _medians(steps, 7)], _medians(samplers, 3)
    finally:
        torch.set_num_threads(threads)
    return {"milliseconds": milliseconds, "draw_seconds": {"continuous": continuous, "dirichlet": dirichlet}}


def _medians(works: Sequence[Callable[[], Any]], repetitions: int) -> list[float]:
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repetitions + 1):
        for work, seconds in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds[1:]) for seconds in times]  # the first warms up
