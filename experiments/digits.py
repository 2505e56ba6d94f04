"""One small network on scikit-learn's digits, trained with each loss.

NLL and InfoNCE see labels; the four soft losses see the same smoothed and mixed (MixUp) labels. Data, first weights,
order of batches and mixing come from the seed; only the loss differs. A demonstration, not a benchmark: all losses have
one learning rate, which was not tuned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from experiments.harness import LOOKS, Experiment, Figure, Row, Table, dots, label, largest, later, mean, option
from experiments.harness.statistics import Value, alike
from experiments.losses import STUDIED, loss_with_noise
from softnce import SoftTargets, calibration, noise

IMAGES, CLASSES = 1797, 10
HARD = ("nll", "info-nce")
LOSSES = (*HARD, *(name for name in STUDIED if name not in HARD))


@dataclass(frozen=True)
class Options:
    seeds: int = option(10, "number of seeds; a seed fixes split, first weights, batches and mixing", least=1)
    epochs: int = option(100, "passes over the training set", least=1)


@dataclass(frozen=True)
class Run:
    """One training. ``noise`` is the η of soft distribution InfoNCE: label frequencies as in the authors' code, or the
    marginal of the smoothed targets, which is what its labels are drawn from."""

    loss: str
    seed: int
    train_size: int = 400  # the other digits are the test set
    epochs: int = 100
    batch_size: int = 100
    hidden: int = 128
    lr: float = 1e-3
    smoothing: float = 0.1
    mixup: float = 0.2
    noise: Literal["labels", "smoothed"] = later("labels", "η of soft distribution InfoNCE")


def runs(options: Options) -> list[Run]:
    found = [Run(loss, seed, epochs=options.epochs) for loss in LOSSES for seed in range(options.seeds)]
    found = [replace(run, smoothing=0.0, mixup=0.0) if run.loss in HARD else run for run in found]
    return [*found, *(replace(run, noise="smoothed") for run in found if run.loss == "soft-dist-info-nce")]


def perform(run: Run) -> dict[str, Any]:
    """Trains one network; returns its test scores."""
    generator = torch.Generator().manual_seed(run.seed)
    mixing = np.random.default_rng(run.seed)
    images, labels = digits()
    order = torch.randperm(IMAGES, generator=generator)
    train, test = order[: run.train_size], order[run.train_size :]

    model = mlp(run.hidden, generator)
    frequency = noise.from_labels(labels[train], CLASSES, floor=1e-3)
    smoothed = (1 - run.smoothing) * frequency + run.smoothing / CLASSES
    on_marginal = run.loss == "expected-info-nce" or run.noise == "smoothed"
    loss = loss_with_noise(run.loss, smoothed if on_marginal else frequency)
    soft = SoftTargets.from_labels(labels, CLASSES, run.smoothing)
    optimiser = torch.optim.Adam(model.parameters(), lr=run.lr)
    for _ in range(run.epochs):
        shuffled = train[torch.randperm(len(train), generator=generator)]
        for start in range(0, len(shuffled) - run.batch_size + 1, run.batch_size):
            batch = shuffled[start : start + run.batch_size]
            x, targets = images[batch], soft[batch]
            if run.mixup:
                share = float(mixing.beta(run.mixup, run.mixup))
                partner = torch.randperm(len(batch), generator=generator)
                x, targets = share * x + (1 - share) * x[partner], targets.mix(targets[partner], share)
            optimiser.zero_grad()
            loss(model(x), targets, generator=generator).backward()
            optimiser.step()

    with torch.no_grad():
        logits, truth = model(images[test]), labels[test]
    temperature = calibration.fit_temperature(logits, truth)
    return {
        "accuracy": (logits.argmax(1) == truth).double().mean().item(),
        "nll": calibration.negative_log_likelihood(logits, truth).item(),
        "ece": calibration.expected_calibration_error(logits.softmax(1), truth).item(),
        "best_temperature": temperature,
        "nll_at_best_temperature": calibration.negative_log_likelihood(logits / temperature, truth).item(),
    }


@cache
def digits() -> tuple[Tensor, Tensor]:
    """(1797, 64) images in [0, 1] and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def mlp(hidden: int, generator: torch.Generator) -> nn.Sequential:
    """64 → hidden → hidden → 10 with ReLU, first weights from the generator."""
    layers = nn.Linear(64, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, CLASSES)
    for layer in layers:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


SCORES: dict[str, tuple[Value, int]] = {  # and digits after the point
    "accuracy (%)": (lambda row: 100 * row.result["accuracy"], 2),
    "NLL (nats)": (lambda row: row.result["nll"], 3),
    "ECE (%)": (lambda row: 100 * row.result["ece"], 2),
    "NLL, best temperature": (lambda row: row.result["nll_at_best_temperature"], 3),
    "best temperature": (lambda row: row.result["best_temperature"], 2),
}


def by_loss(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The runs of the commonest sizes, by the name of their loss and η."""
    kept = alike(largest(rows, "train_size", "epochs", "batch_size", "hidden", "lr"), "loss", "noise")
    kept.sort(key=lambda of: (LOSSES.index(of[0].config["loss"]), "noise" in of[0].config))
    return {LOOKS[of[0].config["loss"]].name + ", smoothed η" * ("noise" in of[0].config): of for of in kept}


def tables(rows: Sequence[Row]) -> list[Table]:
    found = by_loss(rows).items()
    body = [[name, *(mean(of, value).spread(digits) for value, digits in SCORES.values())] for name, of in found]
    return [Table("digits-scores", ("loss", *SCORES), body, title="Six losses on digits, test scores")]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = {of[0].config["loss"]: of for name, of in by_loss(rows).items() if "η" not in name}

    def draw(axes):
        for place, (ax, (score, (value, _))) in enumerate(zip(axes, SCORES.items(), strict=False)):
            dots(ax, {loss: mean(of, value) for loss, of in found.items()})
            label(ax, score)
            if place:
                ax.set_yticklabels([])

    return [Figure("digits-scores", draw, panels=3, size=(3.3, 2.2))]


EXPERIMENT = Experiment(
    name="digits", question="How do the six losses compare on a network that trains in seconds?", minutes=1,
    presets={"quick": Options(seeds=3), "paper": Options()}, runs=runs, perform=perform, tables=tables, figures=figures,
)  # fmt: skip
