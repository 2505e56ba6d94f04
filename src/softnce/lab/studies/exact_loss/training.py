"""Problems to train on, the losses compared, the noise of their gradients, and the cost of a step."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence

import softnce
from softnce import SoftTargets, calibration
from softnce.distributions import AveragedCategorical, ContinuousCategorical
from softnce.lab.configuration import later
from softnce.lab.experiment.probe import fit
from softnce.lab.losses import loss_with_noise
from softnce.lab.studies.exact_loss.distribution import SMOOTHING, smoothed_label
from softnce.losses import ClassifierLoss

Problem = Literal["digits", "conditional", "labels"]
Kind = Literal["soft-ce", "soft-target-info-nce", "soft-dist-info-nce", "expected-info-nce", "averaged", "continuous"]
Marginal = Literal["targets", "labels"]
CLASSES, DIMENSION, SPREAD = 100, 16, 0.9  # of the problem with a known conditional


@dataclass(frozen=True)
class Method:
    """A loss, and n of averaged or κ of continuous categorical draws, or m of expected InfoNCE (None: its default)."""

    kind: Kind
    strength: float = 0.0
    noise_count: float | None = later(None, "m of expected InfoNCE")


class Data(NamedTuple):
    """What is trained on and tested with. Test targets are labels, or the true conditional where it is known."""

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
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
        train, test = torch.randperm(len(images), generator=generator).split([400, len(images) - 400])
        targets = SoftTargets.from_labels(labels[train], 10, SMOOTHING)
        noise = softnce.noise.from_labels(labels[train], 10, floor=1)
        return Data(images[train], targets, images[test], labels[test], noise, 100, 1e-3)
    theta = SPREAD * torch.randn(CLASSES, DIMENSION, generator=generator)
    bias = torch.randn(CLASSES, generator=generator)
    inputs = torch.randn(8192, DIMENSION, generator=generator)
    conditional = (inputs @ theta.T + bias).softmax(1)
    known, held_out = conditional.split(4096)
    if problem == "conditional":
        targets = SoftTargets.from_dense(known)
    else:
        labels = torch.multinomial(known, 1, generator=generator)[:, 0]
        targets = SoftTargets.from_labels(labels, CLASSES, SMOOTHING)
    return Data(inputs[:4096], targets, inputs[4096:], held_out, softnce.noise.from_counts(known.sum(0)), 256, 0.02)


def train(problem: Problem, method: Method, seed: int, epochs: int) -> dict[str, Any]:
    """Train one model; returns its test scores, and the accuracy after each epoch."""
    generator = torch.Generator().manual_seed(seed)
    here = data(problem, seed)
    model = _model(problem, generator)
    course: list[float] = []
    _fit(model, _loss(method, here), here, epochs, generator, lambda _: course.append(_accuracy(model, here)))
    with torch.no_grad():
        logits = model(here.test_inputs)
    truth = here.test_targets
    known = truth.is_floating_point()
    # The likelihood less the entropy of a known conditional is KL(p‖q).
    entropy = -torch.xlogy(truth.double(), truth.double()).sum(1).mean().item() if known else 0.0
    temperature = calibration.fit_temperature(logits, truth)
    tempered = logits / temperature
    return {
        "accuracy": course[-1],
        "course": course,
        "best_accuracy": truth.amax(1).double().mean().item() if known else None,
        "divergence": calibration.negative_log_likelihood(logits, truth).item() - entropy,
        "ece": calibration.expected_calibration_error(logits.softmax(1), truth).item(),
        "temperature": temperature,
        "divergence_at_temperature": calibration.negative_log_likelihood(tempered, truth).item() - entropy,
        "ece_at_temperature": calibration.expected_calibration_error(tempered.softmax(1), truth).item(),
    }


def nats(problem: Problem, method: Method, seed: int) -> float | None:
    """KL of a draw from the target to one from the noise, over 512 targets: what one draw can say about its target."""
    here = data(problem, seed)
    probs, noise = here.targets[:512].dense(torch.float64), here.noise.double()
    draws: list[Distribution]
    match method.kind:
        case "soft-dist-info-nce" | "averaged":
            draws = [AveragedCategorical(int(method.strength) or 1, p) for p in (probs, noise)]
        case "continuous":
            draws = [ContinuousCategorical(p, concentration=method.strength) for p in (probs, noise)]
        case _:
            return None
    return kl_divergence(*draws).mean().item()


def gradient_noise(
    problem: Problem, method: Method, seed: int, batches: int, eta: Marginal = "targets"
) -> float | None:
    """Variance of a batch's gradient over the square of its mean: how many batches to average until they are equal.

    At the same weights for all losses, those after an epoch of soft target cross-entropy. The square of the mean is
    estimated without bias, from products of different batches; None where it is not above zero.
    """
    generator = torch.Generator().manual_seed(seed)
    here = data(problem, seed)
    model = _model(problem, generator)
    _fit(model, _loss(Method("soft-ce"), here), here, 1, generator)
    loss, parameters = _loss(method, here, eta), list(model.parameters())
    total, squares = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64), 0.0
    for _ in range(batches):
        batch = torch.randint(len(here.inputs), (here.batch_size,), generator=generator)
        value = loss(model(here.inputs[batch]), here.targets[batch], generator=generator)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]).double()
        total += gradient
        squares += gradient.square().sum().item()
    mean_square = (total.square().sum().item() - squares) / (batches * (batches - 1))
    return (squares / batches - mean_square) / mean_square if mean_square > 0 else None


def cost(classes: int, methods: Sequence[Method], rows: int) -> dict[str, Any]:
    """Milliseconds of loss and gradient, in the order of ``methods``, and seconds of 10,000 draws beside Dirichlet's.

    Medians of interleaved repetitions, on one thread.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _cost(classes, methods, rows)
    finally:
        torch.set_num_threads(threads)


def _cost(classes: int, methods: Sequence[Method], rows: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator, requires_grad=True)
    labels = torch.randint(classes, (rows,), generator=generator)
    targets = SoftTargets.from_labels(labels, classes, SMOOTHING)
    target = smoothed_label(classes).float()

    def step(loss: nn.Module) -> Callable[[], None]:
        return lambda: loss(logits, targets, generator=generator).backward()

    samplers = {
        "continuous": lambda: ContinuousCategorical(target).sample((10_000,)),
        "dirichlet": lambda: torch.distributions.Dirichlet(1 + target).sample((10_000,)),
    }
    steps = _medians({str(i): step(_loss(method, None)) for i, method in enumerate(methods)}, 7)
    return {"milliseconds": [1e3 * seconds for seconds in steps.values()], "draw_seconds": _medians(samplers, 3)}


def _medians(works: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    times = defaultdict(list)
    for repetition in range(repetitions + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if repetition:  # the first warms up
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def _loss(method: Method, here: Data | None, eta: Marginal = "targets") -> ClassifierLoss:
    """The loss with the problem's noise; that of expected InfoNCE is the marginal of the targets, after smoothing."""
    noise = None if here is None else here.noise
    if here is not None and method.kind == "expected-info-nce" and eta == "targets":
        noise = softnce.noise.from_counts(here.targets.class_mass(torch.float64))
    return loss_with_noise(method.kind, noise, method.strength, method.noise_count)


def _fit(
    model: nn.Module,
    loss: ClassifierLoss,
    here: Data,
    epochs: int,
    generator: torch.Generator,
    after: Callable[[int], None] = lambda epoch: None,
) -> None:
    fit(
        model, loss, here.inputs, here.targets,
        batch=here.batch_size, lr=here.lr, epochs=epochs, seed=generator, weight_decay=0.0, after=after,
    )  # fmt: skip


def _accuracy(model: nn.Module, here: Data) -> float:
    """Share of the test set predicted rightly; its expectation where the conditional is known."""
    with torch.no_grad():
        predicted = model(here.test_inputs).argmax(1, keepdim=True)
    if here.test_targets.is_floating_point():
        return here.test_targets.gather(1, predicted).double().mean().item()
    return (predicted[:, 0] == here.test_targets).double().mean().item()


def _model(problem: Problem, generator: torch.Generator) -> nn.Module:
    """An MLP for digits; for the known conditional the linear model that can represent it."""
    if problem == "digits":
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    else:
        model = nn.Sequential(nn.Linear(DIMENSION, CLASSES))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
    return model
