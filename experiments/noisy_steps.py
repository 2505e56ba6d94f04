"""Noisy steps on real data: does a contrast with the batch beat cross-entropy over all classes?

Experiment density finds that SGD with large steps estimates better with InfoNCE than with NLL: a batch holds some
classes too often, which pushes NLL's scores along the mean of the features, and InfoNCE counts the batch's classes.
Here a linear model without bias is trained on features that are not centred, by SGD at several constant rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from experiments.data import features
from experiments.data.targets import Targets
from experiments.features import EXPECTED, NLL, TOP1
from experiments.harness import Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.claims import Finding, verdict
from experiments.harness.statistics import Estimate, Value, alike, difference, largest, mean, nats
from experiments.losses import TITLES, Loss, build_loss
from experiments.training import BATCH, scores

LOSSES = ("nll", "info-nce", EXPECTED)


@dataclass(frozen=True)
class Options:
    seeds: int = option(10, "number of seeds", least=1)
    data: features.Source = option("tiny-imagenet", "data set")
    epochs: int = option(5, "passes over the training part", least=1)
    rates: tuple[float, ...] = option((100.0, 300.0, 1000.0), "rates, for features of mean square length 1", above=0)


@dataclass(frozen=True)
class Run:
    data: features.Source
    loss: str
    batch: int
    epochs: int
    lr: float
    seed: int


def runs(options: Options) -> list[Run]:
    each = product(range(options.seeds), options.rates, LOSSES)
    return [Run(options.data, loss, BATCH[options.data], options.epochs, lr, seed) for seed, lr, loss in each]


def perform(run: Run) -> dict[str, Any]:
    """Scores of the last weights."""
    data = features.load(run.data, standardised=False)
    scale = data.train.x.square().sum(1).mean().rsqrt()
    x, y = scale * data.train.x, data.train.y
    weight = torch.zeros(data.num_classes, data.dim, requires_grad=True)
    loss = build_loss(Loss(run.loss), Targets(), y, data.num_classes)
    optimiser = torch.optim.SGD([weight], lr=run.lr)
    generator = torch.Generator().manual_seed(run.seed)
    for _ in range(run.epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in order[: len(x) // run.batch * run.batch].view(-1, run.batch):
            optimiser.zero_grad()
            loss(x[rows] @ weight.t(), y[rows]).backward()
            optimiser.step()
    parts = {"held_out": data.held_out, "test": data.test}
    return {name: scores(scale * part.x @ weight.detach().t(), part.y) for name, part in parts.items()}


def grid(rows: Sequence[Row]) -> dict[str, dict[float, list[Row]]]:
    """The largest group of trainings by loss and rate."""
    found: dict[str, dict[float, list[Row]]] = {loss: {} for loss in LOSSES}
    group = largest(rows, "data", "batch", "epochs")
    for of in alike(sorted(group, key=lambda row: float(row.config["lr"])), "loss", "lr"):
        found[of[0].config["loss"]][of[0].config["lr"]] = of
    return found


def best_rate(by_rate: dict[float, list[Row]]) -> float:
    """The rate of the lowest held-out NLL."""
    return min(by_rate, key=lambda lr: mean(by_rate[lr], nats("nll", "held_out")).mean)


def at_best(found: dict[str, dict[float, list[Row]]], loss: str, value: Value = NLL) -> Estimate:
    """A loss minus NLL, each at its best rate."""
    ours, theirs = (found[name][best_rate(found[name])] for name in (loss, "nll"))
    return difference(ours, theirs, value)


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = grid(rows)
    *rates, last = found["nll"]
    config = found["nll"][last][0].config
    if config["data"] == "digits" or not rates:
        return {}
    best, most = at_best(found, EXPECTED), difference(found[EXPECTED][last], found["nll"][last], NLL)
    text = f"{best.signed(3)} nats at the best rates, {most.signed(3)} at {last:g}"
    training = f"linear model, {config['epochs']} epochs, batch {config['batch']}"
    tried = ", ".join(f"{lr:g}" for lr in (*rates, last))
    on = f"{features.NAMES[config['data']]} features, {training}, rates {tried}, {best.count} seeds"
    return {"noisy-steps": Finding(text, on, verdict(best, most, below=0, new=True))}


def tables(rows: Sequence[Row]) -> list[Table]:
    found, body = grid(rows), []
    for loss, by_rate in found.items():
        for lr, of in by_rate.items():
            gaps = ["–", "–"]
            if loss != "nll":
                gaps = [difference(of, found["nll"][lr], value).spread(n) for value, n in ((NLL, 3), (TOP1, 2))]
            mark = " (best)" if lr == best_rate(by_rate) else ""
            body.append([TITLES[loss], f"{lr:g}{mark}", mean(of, NLL).spread(3), mean(of, TOP1).spread(2), *gaps])
    header = ("loss", "rate", "NLL (nats)", "top-1 (%)", "NLL minus NLL's", "top-1 minus NLL's")
    best = [[TITLES[loss], at_best(found, loss).spread(3), at_best(found, loss, TOP1).spread(2)] for loss in LOSSES[1:]]
    titles = ("best rates: minus training with NLL", "NLL (nats)", "top-1 (points)")
    return [Table("noisy-steps", header, body), Table("noisy-steps-best", titles, best)]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = grid(rows)

    def draw(axes) -> None:
        for ax, value, unit in ((axes[0], NLL, "NLL (nats)"), (axes[1], TOP1, "top-1 (%)")):
            for loss, by_rate in found.items():
                curve(ax, {lr: mean(of, value) for lr, of in by_rate.items()}, loss=loss)
            label(ax, "learning rate", unit, log="x")

    return [Figure("noisy-steps", draw, panels=2)]


EXPERIMENT = Experiment(
    name="noisy-steps", question="With noisy steps, does a contrast with the batch beat cross-entropy on real data?",
    minutes=3, presets={"quick": Options(3, "digits", epochs=4, rates=(3.0, 10.0, 30.0)), "paper": Options()},
    runs=runs, prepare=lambda todo: features.prepare(run.data for run in todo), perform=perform, findings=findings,
    tables=tables, figures=figures,
)  # fmt: skip
