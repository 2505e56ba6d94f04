"""One small network on scikit-learn's digits, trained with each loss."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softnce import SoftTargets, calibration, noise
from softnce.lab.configuration import option
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.losses import LOSSES, LossName, loss_with_noise

VERSION = 1
IMAGES = 1797


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(10, "number of seeds; a seed fixes split, initial weights, batches and mixing")
    train_size: int = option(400, f"digits to train on; the others, of {IMAGES}, are the test set", below=IMAGES)
    epochs: int = option(100, "passes over the training set", least=1)
    batch_size: int = option(100, "samples in a batch", least=1)
    hidden: int = option(128, "width of both hidden layers", least=1)
    lr: float = option(1e-3, "learning rate of Adam", above=0)
    smoothing: float = option(0.1, "ε of the soft losses' targets", least=0, below=1)
    mixup: float = option(0.2, "α of MixUp for the soft losses; 0 for none", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_size < self.batch_size:
            raise ValueError(f"train_size: got {self.train_size}, need at least batch_size, {self.batch_size}")


PRESETS = {"quick": Config(seeds=3), "paper": Config()}


@dataclass(frozen=True)
class Run:
    """One training."""

    loss: LossName
    seed: int
    train_size: int
    epochs: int
    batch_size: int
    hidden: int
    lr: float
    smoothing: float
    mixup: float


def runs(config: Config) -> list[Run]:
    c = config
    sizes = c.train_size, c.epochs, c.batch_size, c.hidden, c.lr
    return [
        Run(loss, seed, *sizes, *((0.0, 0.0) if LOSSES[loss].labels_only else (c.smoothing, c.mixup)))
        for loss in LOSSES
        for seed in range(c.seeds)
    ]


def perform(run: Run) -> dict[str, Any]:
    """Train one network; returns its test scores."""
    generator = torch.Generator().manual_seed(run.seed)
    mixing = np.random.default_rng(run.seed)
    images, labels = _digits()
    order = torch.randperm(len(images), generator=generator)
    train, test = order[: run.train_size], order[run.train_size :]

    model = _mlp(run.hidden, generator)
    eta = noise.from_labels(labels[train], 10, floor=1e-3)
    if LOSSES[run.loss].counts_noise:  # η is the marginal of the smoothed targets
        eta = (1 - run.smoothing) * eta + run.smoothing / 10
    loss = loss_with_noise(run.loss, eta)
    optimiser = torch.optim.Adam(model.parameters(), lr=run.lr)
    for _ in range(run.epochs):
        shuffled = train[torch.randperm(len(train), generator=generator)]
        for start in range(0, len(shuffled) - run.batch_size + 1, run.batch_size):
            batch = shuffled[start : start + run.batch_size]
            x, y = images[batch], labels[batch]
            targets = SoftTargets.from_labels(y, num_classes=10, smoothing=run.smoothing)
            if run.mixup:
                share = float(mixing.beta(run.mixup, run.mixup))
                partner = torch.randperm(len(batch), generator=generator)
                x, targets = share * x + (1 - share) * x[partner], targets.mix(targets[partner], share)
            optimiser.zero_grad()
            loss(model(x), targets, generator=generator).backward()
            optimiser.step()

    model.eval()
    with torch.no_grad():
        logits = model(images[test])
    truth = labels[test]
    temperature = calibration.fit_temperature(logits, truth)
    return {
        "accuracy": (logits.argmax(1) == truth).double().mean().item(),
        "nll": calibration.negative_log_likelihood(logits, truth).item(),
        "ece": calibration.expected_calibration_error(logits.softmax(1), truth).item(),
        "best_temperature": temperature,
        "nll_at_best_temperature": calibration.negative_log_likelihood(logits / temperature, truth).item(),
    }


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """(1797, 64) images in [0, 1] and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def _mlp(hidden: int, generator: torch.Generator) -> nn.Module:
    """64 → hidden → hidden → 10 with ReLU, initial weights from the generator."""
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
    return model
