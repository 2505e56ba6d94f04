"""Five losses on scikit-learn's digits: accuracy, likelihood and calibration of one small network.

An MLP with two hidden layers is trained on a few hundred 8×8 digits, once with each loss. NLL and InfoNCE see the
labels; the soft losses see labels smoothed and mixed (MixUp), the same for all three. Only the loss differs: data,
initial weights, order of batches and mixing come from the seed. The rest of the digits is the test set. This is a
demonstration in seconds, not a benchmark: the learning rate is the same for all and was not tuned.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

import softnce
from softnce import SoftTargets, calibration
from softnce.lab.configuration import option
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import Outcome, StudyConfig

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.report.page import Section

ORDER = 20
VERSION = 1
Loss = Literal["nll", "info-nce", "soft-ce", "soft-dist-info-nce", "soft-target-info-nce"]
HARD = ("nll", "info-nce")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(10, "number of seeds; a seed fixes split, initial weights, batches and mixing")
    train_size: int = option(400, "digits to train on; the others, of 1797, are the test set")
    epochs: int = option(100, "passes over the training set")
    batch_size: int = option(100, "samples in a batch")
    hidden: int = option(128, "width of both hidden layers")
    lr: float = option(1e-3, "learning rate of Adam")
    smoothing: float = option(0.1, "ε of the soft losses' targets")
    mixup: float = option(0.2, "α of MixUp for the soft losses; 0 for none")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "batch_size", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, need at least 1")
        if not self.batch_size <= self.train_size < 1797:
            raise ValueError(
                f"train_size: got {self.train_size}, need at least batch_size = {self.batch_size} and fewer than 1797"
            )
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing: got {self.smoothing:g}, need a value in [0, 1)")
        if self.mixup < 0 or self.lr <= 0:
            raise ValueError(f"mixup and lr: got {self.mixup:g} and {self.lr:g}, need at least 0 and more than 0")


PRESETS = {"quick": Config(seeds=3), "paper": Config()}


@dataclass(frozen=True)
class Run:
    """One training."""

    loss: Loss
    seed: int
    train_size: int
    epochs: int
    batch_size: int
    hidden: int
    lr: float
    smoothing: float
    mixup: float


def runs(config: Config) -> list[Run]:
    wanted = []
    for loss in get_args(Loss):
        soft = loss not in HARD
        for seed in range(config.seeds):
            wanted.append(
                Run(
                    loss,
                    seed,
                    config.train_size,
                    config.epochs,
                    config.batch_size,
                    config.hidden,
                    config.lr,
                    config.smoothing if soft else 0.0,
                    config.mixup if soft else 0.0,
                )
            )
    return wanted


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small: more threads only wait for each other
    try:
        for run in todo:
            started = time.perf_counter()
            result = train(run)
            yield Outcome(run, result, time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)


def train(run: Run) -> dict[str, Any]:
    """Train one network; returns its test scores."""
    generator = torch.Generator().manual_seed(run.seed)
    mixing = np.random.default_rng(run.seed)
    images, labels = _digits()
    order = torch.randperm(len(images), generator=generator)
    train, test = order[: run.train_size], order[run.train_size :]

    model = _mlp(run.hidden, generator)
    loss = _loss(run.loss, softnce.noise.from_labels(labels[train], 10, floor=1e-3))
    drawing = {"generator": generator} if run.loss == "soft-dist-info-nce" else {}
    optimiser = torch.optim.Adam(model.parameters(), lr=run.lr)
    for _ in range(run.epochs):
        shuffled = train[torch.randperm(len(train), generator=generator)]
        for start in range(0, len(shuffled) - run.batch_size + 1, run.batch_size):
            batch = shuffled[start : start + run.batch_size]
            x, y = images[batch], labels[batch]
            targets: Tensor | SoftTargets = y
            if run.loss not in HARD:
                targets = SoftTargets.from_labels(y, num_classes=10, smoothing=run.smoothing)
                if run.mixup:
                    share = float(mixing.beta(run.mixup, run.mixup))
                    partner = torch.randperm(len(batch), generator=generator)
                    x, targets = share * x + (1 - share) * x[partner], targets.mix(targets[partner], share)
            optimiser.zero_grad()
            loss(model(x), targets, **drawing).backward()
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


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.experiment.comparison import mean
    from softnce.lab.experiment.statistics import estimate
    from softnce.lab.report.charts import Figure, Panel, Points
    from softnce.lab.report.page import Section, Table, counted, prose
    from softnce.lab.report.style import LOSSES

    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        sizes = tuple(row.config[name] for name in ("train_size", "epochs", "batch_size", "hidden", "lr"))
        groups[sizes].append(row)
    chosen = max(groups.values(), key=len)
    by_loss = {loss: [row for row in chosen if row.config["loss"] == loss] for loss in LOSSES}
    by_loss = {loss: found for loss, found in by_loss.items() if found}

    columns: list[tuple[str, str, Callable[[Row], float], int]] = [
        ("accuracy (%)", "accuracy", lambda row: 100 * row.result["accuracy"], 2),
        ("negative log-likelihood (nats)", "likelihood", lambda row: row.result["nll"], 3),
        ("expected calibration error (%)", "calibration", lambda row: 100 * row.result["ece"], 2),
        ("likelihood, best temperature", "", lambda row: row.result["nll_at_best_temperature"], 3),
        ("best temperature", "", lambda row: row.result["best_temperature"], 2),
    ]
    panels = []
    for label, title, value, _ in columns[:3]:
        marks = []
        for position, (loss, found) in enumerate(by_loss.items()):
            e = estimate([value(row) for row in found])
            marks.append(Points.of_loss(loss, [position], [e.mean], [e.low], [e.high], size=7.5))
        panels.append(Panel(title, "", label, marks, hide_x=True, x_range=(-0.6, len(by_loss) - 0.4)))
    config = chosen[0].config
    seeds = counted(max(len(found) for found in by_loss.values()), "seed")
    figure = Figure(
        "losses",
        prose(f"""Test scores of one network trained with each loss on {config["train_size"]} digits; mean and 95 %
            confidence interval over {seeds}."""),
        panels,
        panel_size=(3.2, 2.9),
    )
    table = Table(
        ["loss", *(label for label, *_ in columns)],
        [
            [LOSSES[loss].name] + [mean(found, value).spread(digits) for _, _, value, digits in columns]
            for loss, found in by_loss.items()
        ],
        "Mean ± half of the 95 % confidence interval. Probabilities are the softmax of the scores.",
    )
    text = ""
    if "soft-ce" in by_loss and "soft-target-info-nce" in by_loss:
        errors = {
            loss: 100 * estimate([row.result["ece"] for row in by_loss[loss]]).mean
            for loss in ("soft-ce", "soft-target-info-nce")
        }
        text = prose(f"""Smoothing all targets alike is a temperature to soft target InfoNCE and cancels otherwise: its
            calibration error is {errors["soft-target-info-nce"]:.1f} %. Soft target cross-entropy fits the smoothed
            targets themselves, and is as unsure as they are: {errors["soft-ce"]:.1f} %.""")
    best = max(by_loss, key=lambda loss: estimate([row.result["accuracy"] for row in by_loss[loss]]).mean)
    method = prose(f"""{config["train_size"]} digits to train on, the other {1797 - config["train_size"]} to test;
        two hidden layers of {config["hidden"]}, Adam at {config["lr"]:g}, {config["epochs"]} epochs of batches of
        {config["batch_size"]}. The best temperature is fitted on the test set itself: it shows what of the likelihood
        is a matter of scale.""")
    summary = prose(f"""One small network, five losses, the same data, weights and batches. The highest mean accuracy
        is {LOSSES[best].name}'s; intervals say which differences mean something.""")
    return Section("Five losses on digits", summary, [figure, table, *([text] if text else [])], [method])


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


def _loss(name: Loss, noise: Tensor) -> nn.Module:
    match name:
        case "nll":
            return softnce.NLL()
        case "info-nce":
            return softnce.InfoNCE(noise)
        case "soft-ce":
            return softnce.SoftTargetCrossEntropy()
        case "soft-dist-info-nce":
            return softnce.SoftDistributionInfoNCE(noise)
        case "soft-target-info-nce":
            return softnce.SoftTargetInfoNCE(noise)
