"""Trainings over ε with three soft losses, and without smoothing at the temperature that the identity gives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from softnce import SoftTargets, functional
from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.probe import HARD, Probe
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.heads import Head
from softnce.lab.losses import Loss
from softnce.lab.targets import Targets

VERSION = 1
CE, OURS, EXPECTED = "soft-ce", "soft-target-info-nce", "expected-info-nce"


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(6, "number of seeds; a seed fixes initial weights and batches", least=1)
    expected_seeds: int = option(3, "those of expected InfoNCE", least=1)
    data: Source = option("cifar100", "data set")
    smoothing: tuple[float, ...] = option((0.0, 0.05, 0.1, 0.2, 0.3, 0.5), "ε", least=0, below=1)
    expected_smoothing: tuple[float, ...] = option((0.0, 0.1, 0.3), "ε of expected InfoNCE; also among those above")
    epochs: int = option(3, "passes over the training set", least=1)
    batch: int = option(256, "rows per batch", least=2)
    hidden: int = option(256, "width of the head's hidden layers", least=1)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "learning rates tried for each loss and ε", above=0, fewest=1)


PRESETS = {
    "quick": Config(
        seeds=2,
        expected_seeds=2,
        data="digits",
        smoothing=(0.0, 0.1, 0.3),
        epochs=4,
        batch=64,
        hidden=64,
        rates=(1e-3, 3e-3),
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Twin:
    """A training without smoothing that the identity says is the same as one with ``smoothing``."""

    probe: Probe
    smoothing: float
    seed: int


Run = Probe | Twin


def settings(config: Config) -> list[Probe]:
    head = Head(hidden=config.hidden)
    return [
        Probe(config.data, Loss(name), Targets(smoothing=epsilon), head, config.batch, epochs=config.epochs)
        for epsilon in config.smoothing
        for name in (CE, OURS, EXPECTED)
        if name != EXPECTED or epsilon in config.expected_smoothing
    ]


def twin(probe: Probe) -> Twin:
    epsilon = probe.targets.smoothing
    loss = replace(probe.loss, temperature=probe.loss.temperature / (1 - epsilon))
    return Twin(replace(probe, loss=loss, targets=HARD), epsilon, probe.seed)


def runs(config: Config) -> list[Run]:
    return [*search.trials(settings(config), config.rates)]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    smoothed = [row for row in rows if "probe" not in row.config]
    wanted = settings(config)
    papers = [probe for probe in wanted if probe.loss.name != EXPECTED]
    probes = search.tuned(papers, smoothed, config.rates, config.seeds)
    probes += search.tuned([p for p in wanted if p not in papers], smoothed, config.rates, config.expected_seeds)
    return [*probes, *(twin(probe) for probe in probes if probe.loss.name == OURS and probe.targets.smoothing > 0)]


def prepare(todo: Sequence[Run]) -> None:
    training.prepare(run.probe if isinstance(run, Twin) else run for run in todo)


def perform(run: Run) -> dict[str, Any]:
    probe = run.probe if isinstance(run, Twin) else run
    features = data.load(probe.data)
    watch = training.trained(probe, features)
    watch.temperature = 1.0  # of the smoothed training: its twin is scored as it is
    result = watch.measurements(features)
    if isinstance(run, Probe) and probe.loss.name == OURS and probe.targets.smoothing > 0:
        x, labels = features.held_out.x[: probe.batch], features.held_out.y[: probe.batch]
        result["identity"] = identity_error(watch.logits(x), labels, probe.targets.smoothing)
    return result


def identity_error(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> dict[str, float]:
    """Largest difference of the loss at (ε, 1, η) and (0, 1/(1−ε), η^(1−ε)), in values and gradients, fp64.

    η falls like 1/k, so that the noise has a part in it.
    """
    num_classes = logits.shape[1]
    eta = 1 / torch.arange(1, num_classes + 1, dtype=torch.float64)
    found = []
    for smoothing, temperature, noise in ((epsilon, 1.0, eta), (0.0, 1 / (1 - epsilon), eta ** (1 - epsilon))):
        scores = logits.detach().double().requires_grad_()
        targets = SoftTargets.from_labels(labels, num_classes, smoothing)
        loss = functional.soft_target_info_nce(
            scores, targets, noise / noise.sum(), temperature=temperature, reduction="none"
        )
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        found.append((loss.detach(), gradient))
    (one, grad_one), (other, grad_other) = found
    return {"value": (one - other).abs().max().item(), "gradient": (grad_one - grad_other).abs().max().item()}
