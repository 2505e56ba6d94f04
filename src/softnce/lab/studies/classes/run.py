"""Ten thousand to a million classes: what does a loss cost, and what does it learn, as classes grow?

A generated problem whose best possible accuracy is known: a class is a point in space, a sample is its point with
Gaussian noise, seen through a fixed invertible network; so the nearest point is the best guess, and its accuracy is
measured beside the models'. Every model is a small network and a table of label embeddings, trained on MixUp batches,
that is on soft targets of two pairs:

  soft target InfoNCE from the table, against the batch's targets, or against more targets drawn at random
  sampled softmax with log Q correction, the classes' usual shortcut
  soft target cross-entropy over all classes, where that can be afforded

Look for accuracy against time of training and against peak memory. Each loss is trained with every learning rate of
the table in --lrs and shown with its best. Runs are made one after another, on a machine that should be quiet.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softnce import BatchCandidates, SampledCandidates, SoftTargetInfoNCE, SoftTargets, functional
from softnce.heads import LabelEmbeddingHead
from softnce.lab.bench.baselines import sampled_softmax
from softnce.lab.bench.memory import peak_of
from softnce.lab.configuration import option
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import Outcome, StudyConfig

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.charts import Figure, Line, Points
    from softnce.lab.report.page import Section, Table

ORDER = 60
VERSION = 1
Method = Literal["info-nce", "info-nce-more", "sampled-softmax", "softmax"]
METHODS: tuple[Method, ...] = ("info-nce", "info-nce-more", "sampled-softmax", "softmax")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(1, "number of seeds; a seed fixes the problem, the batches and the first weights")
    classes: tuple[int, ...] = option((10_000, 100_000, 1_000_000), "K")
    steps: int = option(2000, "training steps, at least")
    views: int = option(20, "times every class is seen, at least; a million classes then need more steps")
    batch: int = option(1024, "N, rows of a batch")
    candidates: int = option(2048, "M of the run with more candidates than its batch has")
    negatives: int = option(2048, "classes drawn for sampled softmax")
    softmax_classes: int = option(100_000, "K up to which the full softmax is run")
    softmax_seconds: float = option(400.0, "time after which the full softmax stops where it is")
    lrs: tuple[float, ...] = option((0.3,), "learning rates of the table, each tried")
    network_lr: float = option(3e-3, "learning rate of the network")
    mix_alpha: float = option(0.2, "parameter of MixUp's Beta distribution")
    noise: float = option(0.5, "standard deviation around a class's point, of which each coordinate has 1")
    latent: int = option(32, "coordinates of a class's point, and of a sample")
    dim: int = option(64, "d, features of a label embedding")
    hidden: int = option(256, "width of the network")
    tests: int = option(1000, "samples accuracy is measured on")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "views", "batch", "candidates", "negatives", "latent", "dim", "hidden", "tests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, need at least 1")
        for name in ("softmax_seconds", "network_lr", "mix_alpha", "noise"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name):g}, need a positive number")
        if self.candidates <= self.batch:
            raise ValueError(f"candidates: got {self.candidates}, need more than the {self.batch} of the batch")
        for classes in self.classes:
            if classes < self.batch:
                raise ValueError(f"classes: got {classes}, need at least the {self.batch} rows of a batch")
        if not self.lrs or not all(lr > 0 for lr in self.lrs):
            raise ValueError(f"lrs: got {list(self.lrs)}, need positive numbers")


PRESETS = {
    "quick": Config(
        classes=(2_000, 10_000),
        steps=300,
        views=6,
        batch=256,
        candidates=1024,
        negatives=256,
        softmax_classes=2_000,
        lrs=(0.3,),
        tests=500,
        dim=48,
    ),
    "paper": Config(),
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
    others: int  # candidates beside the batch's, or negatives
    network_lr: float
    mix_alpha: float
    noise: float
    latent: int
    dim: int
    hidden: int
    tests: int


def runs(config: Config) -> list[Run]:
    others = {
        "info-nce": 0,
        "info-nce-more": config.candidates - config.batch,
        "sampled-softmax": config.negatives,
        "softmax": 0,
    }
    return [
        Run(
            method,
            classes,
            lr,
            seed,
            max(config.steps, math.ceil(config.views * classes / config.batch)),
            config.softmax_seconds if method == "softmax" else None,
            config.batch,
            others[method],
            config.network_lr,
            config.mix_alpha,
            config.noise,
            config.latent,
            config.dim,
            config.hidden,
            config.tests,
        )
        for seed in range(config.seeds)
        for classes in config.classes
        for method in METHODS
        for lr in config.lrs
        if method != "softmax" or classes <= config.softmax_classes
    ]


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    for run in todo:
        started = time.perf_counter()
        task = progress.add_task(f"{run.method}, K={run.classes:,}, lr {run.lr:g}", total=run.steps)
        with torch.random.fork_rng(devices=[]):
            result = train(run, partial(progress.advance, task))
        progress.remove_task(task)
        yield Outcome(run, result, time.perf_counter() - started)


# ------------------------------------------------------------------------------------------------------ the problem


class Problem:
    """Classes are Gaussian clouds of one width around random points; samples are seen through a fixed network.

    Every layer of it is a rotation and a leaky rectifier, hence invertible: what can be known of the class from the
    sample can be known from its place in space, and the best guess is the nearest of the points.
    """

    def __init__(self, classes: int, latent: int, noise: float, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._noise = noise
        self.points = torch.randn(classes, latent, generator=self._generator)
        layers = torch.randn(3, latent, latent, generator=self._generator)
        self._rotations = torch.linalg.qr(layers)[0]
        self._shifts = 0.5 * torch.randn(3, latent, generator=self._generator)
        self._left = torch.empty(0, dtype=torch.long)

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Samples (n, latent) and labels (n,), every class once before any comes again (n ≤ K)."""
        while len(self._left) < rows:  # a rest shorter than a batch is left out
            self._left = torch.randperm(len(self.points), generator=self._generator)
        labels, self._left = self._left[:rows], self._left[rows:]
        return self.seen(self._places(labels)), labels

    def test(self, rows: int) -> tuple[Tensor, Tensor, float]:
        """Samples, labels of classes drawn at random, and the accuracy of the best possible guess on them."""
        labels = torch.randint(len(self.points), (rows,), generator=self._generator)
        places = self._places(labels)
        # The nearest point has the largest u·p − |p|²/2.
        nearest = functional.linear_topk(
            places, self.points, 1, bias=-self.points.square().sum(1) / 2, chunk_size=16384
        )[1][:, 0]
        return self.seen(places), labels, (nearest == labels).float().mean().item()

    def seen(self, places: Tensor) -> Tensor:
        for rotation, shift in zip(self._rotations, self._shifts, strict=True):
            places = F.leaky_relu(places @ rotation + shift, 0.3)
        return places

    def _places(self, labels: Tensor) -> Tensor:
        noise = torch.randn(len(labels), self.points.shape[1], generator=self._generator)
        return self.points[labels] + self._noise * noise


def mixed(x: Tensor, labels: Tensor, classes: int, alpha: float) -> tuple[Tensor, SoftTargets]:
    """MixUp of each row with the next, a λ for every row."""
    lam = torch.distributions.Beta(alpha, alpha).sample((len(x),))
    plain = SoftTargets.from_labels(labels, classes)
    partner = SoftTargets.from_labels(labels.roll(1), classes)
    return torch.lerp(x.roll(1, 0), x, lam[:, None]), plain.mix(partner, lam)


# ----------------------------------------------------------------------------------------------------- the training


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
        table = torch.optim.SparseAdam if sparse else torch.optim.Adam
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


def criterion(run: Run, model: Model) -> Callable[[Tensor, SoftTargets], Tensor]:
    """The loss of features and soft targets."""
    if run.method == "softmax":
        return lambda z, targets: functional.soft_target_cross_entropy(model.head(z), targets)
    if run.method == "sampled-softmax":

        def sampled(z: Tensor, targets: SoftTargets) -> Tensor:
            assert targets.index is not None
            negatives = torch.randint(run.classes, (run.others,))
            table, weight = model.head.weight, targets.pair_weight()
            return sampled_softmax(z, table, targets.index, weight, negatives, sparse=True)

        return sampled
    candidates = BatchCandidates() + SampledCandidates(run.others, mix_alpha=run.mix_alpha) if run.others else None
    contrast = SoftTargetInfoNCE(candidates=candidates)
    return lambda z, targets: model.head.loss(z, targets, contrast)


def evaluation_steps(steps: int) -> list[int]:
    """After which steps to look: twelve of them, ever further apart, the last included."""
    return sorted({max(1, round(steps * 1.5**-i)) for i in range(12)})


def train(run: Run, on_step: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Accuracy in the course of training; time counts steps with their batches, not evaluations."""
    torch.manual_seed(run.seed)
    problem = Problem(run.classes, run.latent, run.noise, run.seed)
    x_test, y_test, best = problem.test(run.tests)
    model = Model(run)
    loss = criterion(run, model)
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


# --------------------------------------------------------------------------------------------------------- the page

NAMES: dict[Method, str] = {
    "info-nce": "soft target InfoNCE, the batch as candidates",
    "info-nce-more": "soft target InfoNCE, more candidates",
    "sampled-softmax": "sampled softmax with log Q",
    "softmax": "full softmax cross-entropy",
}


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.page import Section, prose

    found = _best_of(rows)
    blocks: list[Any] = [_time_figure(found), _memory_figure(found), _table(found)]
    method = """
        Prototypes are standard normal in as many coordinates as the samples have; the noise around them leaves the
        accuracy in the last column to a classifier that knows everything. MixUp mixes each row with the next in the
        space the model sees. The network is trained by Adam, the table by SparseAdam on the rows touched (by Adam
        under the full softmax), both with a cosine schedule; of the table's learning rates that were tried, each loss
        is shown with the one that ended best. Seconds count drawing the batch, forward, backward and the optimiser,
        not evaluation. Peak memory is parameters and optimiser state, and the most that a step allocates beside them,
        traced at torch's allocator."""
    return Section("Ten thousand to a million classes", _summary(found), blocks, [prose(method)])


Found = dict[tuple[int, Method], list[Row]]


def _best_of(rows: Sequence[Row]) -> Found:
    """By classes and method, the longest runs of the commonest protocol with the learning rate that ended best."""
    varied = {"method", "classes", "lr", "seed", "steps", "seconds", "others"}
    protocols: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        protocols[tuple((key, row.config[key]) for key in sorted(row.config) if key not in varied)].append(row)
    chosen = max(protocols.values(), key=lambda group: (len(group), max(row.config["classes"] for row in group)))
    seeds: dict[tuple[int, Method], dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in chosen:
        config = row.config
        seeds[config["classes"], config["method"]][config["lr"], config["steps"], config["seconds"]].append(row)
    found = {
        key: max(of_key.values(), key=lambda rows: (rows[0].config["steps"], _mean_accuracy(rows)))
        for key, of_key in seeds.items()
    }
    return {key: found[key] for key in sorted(found, key=lambda key: (key[0], METHODS.index(key[1])))}


def _mean_accuracy(rows: Sequence[Row]) -> float:
    return _mean([row.result["accuracy"] for row in rows])


def _mean_seconds(rows: Sequence[Row]) -> float:
    return _mean([row.result["course"]["seconds"][-1] for row in rows])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _time_figure(found: Found) -> "Figure":
    from softnce.lab.report.charts import Figure, Level, Panel
    from softnce.lab.report.page import prose

    panels = []
    for classes in sorted({classes for classes, _ in found}):
        of_size = {method: rows for (k, method), rows in found.items() if k == classes}
        best = _mean([row.result["best_possible"] for rows in of_size.values() for row in rows])
        marks = [_course(method, rows) for method, rows in of_size.items()]
        title = f"K = {classes:,}"
        level = Level("best possible", 100 * best)
        panels.append(
            Panel(title, "seconds of training", "accuracy (%)", [*marks, level], log_x=True, y_range=(0, 102))
        )
    caption = """
        Accuracy on clean test samples against time of training, each loss with its best learning rate. A step of the
        full softmax grows with the number of classes; the others' does not."""
    return Figure("time", prose(caption), panels)


def _course(method: Method, rows: Sequence[Row]) -> "Line":
    """Means over the seeds, at the steps that all of them reached."""
    from softnce.lab.report.charts import Line

    courses = [row.result["course"] for row in rows]
    length = min(len(course["step"]) for course in courses)
    seconds, accuracy = (
        [_mean([course[name][i] for course in courses]) for i in range(length)] for name in ("seconds", "accuracy")
    )
    return Line(NAMES[method], seconds, [100 * a for a in accuracy], **_look(method))


def _look(method: Method) -> dict[str, Any]:
    from softnce.lab.report.style import LOSSES

    looks: dict[Method, dict[str, Any]] = {
        "info-nce": {"colour": LOSSES["soft-target-info-nce"].colour, "marker": "^", "loss": "soft-target-info-nce"},
        "info-nce-more": {"colour": LOSSES["info-nce"].colour, "marker": "D", "loss": "soft-target-info-nce"},
        "sampled-softmax": {"colour": LOSSES["soft-dist-info-nce"].colour, "marker": "v"},
        "softmax": {"colour": LOSSES["soft-ce"].colour, "marker": "s", "loss": "soft-ce"},
    }
    return looks[method]


def _memory_figure(found: Found) -> "Figure":
    from softnce.lab.report.charts import Figure, Line, Panel
    from softnce.lab.report.page import prose

    def of(method: Method, value: Callable[[Row], float]) -> list[float]:
        return [_mean([value(row) for row in rows]) for (_, m), rows in found.items() if m == method]

    methods = list(dict.fromkeys(method for _, method in found))
    points: list[Points | Line] = []
    steps, peaks = [], []
    for method in methods:
        gigabytes = of(method, lambda row: row.result["peak_bytes"] / 1e9)
        classes = of(method, lambda row: row.config["classes"])
        accuracy = of(method, lambda row: 100 * row.result["accuracy"])
        points.append(Line(NAMES[method], gigabytes, accuracy, **_look(method)))
        milliseconds = of(method, lambda row: 1e3 * row.result["course"]["seconds"][-1] / row.result["steps"])
        steps.append(Line(NAMES[method], classes, milliseconds, **_look(method)))
        spare = of(method, lambda row: (row.result["peak_bytes"] - row.result["held_bytes"]) / 1e9)
        peaks.append(Line(NAMES[method], classes, spare, **_look(method)))
    panels = [
        Panel("accuracy for memory", "peak memory (GB)", "accuracy (%)", points, log_x=True, y_range=(0, 102)),
        Panel("time of a step", "classes K", "milliseconds", steps, log_x=True, log_y=True),
        Panel("memory of a step", "classes K", "GB beside table and optimiser", peaks, log_x=True, log_y=True),
    ]
    caption = """
        Left: final accuracy against peak memory of training, table and optimiser included; along a line classes grow.
        Middle and right: what one step takes, and what it allocates beside the table and its optimiser."""
    return Figure("memory", prose(caption), panels)


def _table(found: Found) -> "Table":
    from softnce.lab.report.page import Table

    body = []
    for (classes, method), rows in found.items():
        first = rows[0]
        seconds = [row.result["course"]["seconds"][-1] for row in rows]
        steps = [row.result["steps"] for row in rows]
        stopped = "" if all(row.result["steps"] == row.config["steps"] for row in rows) else " (time was up)"
        body.append([
            f"{NAMES[method]}, K = {classes:,}",
            f"{first.config['lr']:g}",
            f"{_mean(steps):,.0f}{stopped}",
            f"{_mean_seconds(rows):,.0f}",
            f"{1e3 * sum(seconds) / sum(steps):.1f}",
            f"{_mean([row.result['peak_bytes'] for row in rows]) / 1e9:.2f}",
            f"{100 * _mean_accuracy(rows):.1f}",
            f"{100 * _mean([row.result['best_possible'] for row in rows]):.1f}",
        ])  # fmt: skip
    header = ["loss", "table's lr", "steps", "seconds", "ms a step", "peak GB", "accuracy (%)", "best possible (%)"]
    count = max(len(rows) for rows in found.values())
    return Table(header, body, f"Means over {count} seeds." if count > 1 else "One seed.")


def _summary(found: Found) -> str:
    """Where every loss ends at the largest number of classes, and what a step takes there."""
    largest = max(classes for classes, _ in found)
    parts = []
    for (classes, method), rows in found.items():
        if classes == largest:
            step = _mean([1e3 * row.result["course"]["seconds"][-1] / row.result["steps"] for row in rows])
            parts.append(f"{NAMES[method]} {100 * _mean_accuracy(rows):.1f} % at {step:.0f} ms a step")
    best = _mean([row.result["best_possible"] for (k, _), rows in found.items() if k == largest for row in rows])
    return f"With {largest:,} classes, where {100 * best:.1f} % is the best possible: {'; '.join(parts)}."


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import prose

    found = _best_of(rows)
    shared = [k for k, method in found if method == "softmax" and {(k, m) for m in METHODS} <= found.keys()]
    if not shared:
        return {}
    largest = max(shared)
    ours, sampled = found[largest, "info-nce-more"], found[largest, "sampled-softmax"]
    end = _mean_seconds(ours)
    by_then = {
        method: 100 * _mean([_accuracy_by(row, end) for row in found[largest, method]])
        for method in ("softmax", "sampled-softmax")
    }
    text = f"""{100 * _mean_accuracy(ours):.1f} % at the end of training, after {end:.0f} s; by then full softmax
        cross-entropy, on its way, has {by_then["softmax"]:.1f} %, sampled softmax {by_then["sampled-softmax"]:.1f} %
        ({100 * _mean_accuracy(sampled):.1f} % at its end after {_mean_seconds(sampled):.0f} s)"""
    pays = 100 * _mean_accuracy(ours) > by_then["softmax"]
    return {
        "many-classes": Finding(
            prose(text),
            f"generated problem, {largest:,} classes",
            "undecided" if largest < 100_000 else "beyond" if pays else "not reproduced",
        )
    }


def _accuracy_by(row: Row, seconds: float) -> float:
    """The best accuracy that was measured within that time, 0 if there was none."""
    course = row.result["course"]
    return max((a for a, s in zip(course["accuracy"], course["seconds"], strict=True) if s <= seconds), default=0.0)
