"""Does InfoNCE estimate parameters better than NLL? The paper's first figure, and what is behind it.

Linear softmax models are fitted to mixtures of Gaussians whose true conditional is known, from orthogonal modes (0 %
alignment) to almost parallel ones (80 %, an angle of 18°), and scored by KL(p‖q). Five parts:

  fits at the paper's protocol (Adam, 1e-3, batches of 1024, up to 500 epochs) and with noisier steps (SGD, 0.1);
  the three soft losses, with the true conditional as soft target or with smoothed labels;
  the exact maximum-likelihood fit, and the statistical limit (K-1)d/(2n) of sampled labels;
  a grid of optimisers, learning rates and batch sizes;
  the gradient noise of each loss at the optimum, and the error it predicts.

A fit stops early when the loss over all training samples has not fallen by 1e-5 nats for 20 epochs.
"""

import itertools
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softnce.lab.configuration import option
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.studies.density import error, gradient_noise
from softnce.lab.studies.density.fits import Gradient, Loss, Optimiser, Stopping, Variant, fit
from softnce.lab.studies.density.maximum_likelihood import maximum_likelihood
from softnce.lab.studies.density.mixture import Mixture, sample_mixtures, spherical_modes
from softnce.lab.studies.density.plain import fit_one

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import Section

ORDER = 0
VERSION = 1
PAIR: tuple[Loss, ...] = ("nll", "info-nce")
OPTIMISERS: tuple[Optimiser, ...] = ("adam", "sgd")


@dataclass(frozen=True)
class Sizes:
    """Size of the data sets."""

    num_modes: int = option(20, "K, modes and classes")
    dimension: int = option(20, "d, at least as many as modes")
    num_points: int = option(1600, "distinct points drawn from the mixture")
    num_samples: int = option(32_000, "n, samples drawn from those points with repetition, each with a label")


@dataclass(frozen=True)
class Grid:
    """Optimisers (Adam and SGD) × learning rates × batch sizes, NLL and InfoNCE, all epochs run."""

    alignments: tuple[float, ...] = option((20.0, 80.0), "alignments in %")
    seeds: int = option(3, "number of seeds")
    epochs: int = option(100, "epochs of each fit")
    lrs: tuple[float, ...] = option((1e-3, 1e-2, 1e-1), "learning rates")
    batch_sizes: tuple[int, ...] = option((64, 256, 1024, 4096), "batch sizes")


@dataclass(frozen=True)
class Contrast:
    """Soft target InfoNCE, whose step costs N² instead of N·K and which therefore gets fewer fits."""

    alignments: tuple[float, ...] = option((0.0, 20.0, 50.0, 80.0), "alignments in %")
    seeds: int = option(3, "number of seeds")
    epochs: int = option(80, "epochs of each fit, at most")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(10, "number of seeds; a seed fixes the data and the order of batches")
    alignments: tuple[float, ...] = option(tuple(float(a) for a in range(0, 90, 10)), "mode alignments in %")
    epochs: int = option(500, "epochs of a fit, at most")
    batch_size: int = option(1024, "samples in a batch")
    lr: float = option(1e-3, "learning rate of Adam, the paper's protocol")
    noisy_lr: float = option(0.1, "learning rate of SGD, the noisier protocol")
    smoothing: float = option(0.1, "ε of soft distribution InfoNCE")
    patience: int = option(20, "epochs without progress after which a fit stops")
    tolerance: float = option(1e-5, "fall of the training loss, in nats, that counts as progress")
    noise_seeds: int = option(3, "seeds for which gradient noise is measured and the control fitted")
    noise_epochs: int = option(10, "epochs of batches over which gradient noise is measured")
    maps: tuple[float, ...] = option((0.0, 20.0, 50.0, 80.0), "alignments in % drawn as t-SNE maps")
    sizes: Sizes = field(default_factory=Sizes)
    grid: Grid = field(default_factory=Grid)
    contrast: Contrast = field(default_factory=Contrast)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, alignments in (
            ("alignments", self.alignments),
            ("grid.alignments", self.grid.alignments),
            ("contrast.alignments", self.contrast.alignments),
            ("maps", self.maps),
        ):
            for alignment in alignments:
                if not 0 <= alignment < 100:
                    raise ValueError(f"{name}: got {alignment:g} %, need values in [0, 100)")
        for name, sizes in (("batch_size", [self.batch_size]), ("grid.batch_sizes", self.grid.batch_sizes)):
            for size in sizes:
                if not 1 <= size <= self.sizes.num_samples:
                    raise ValueError(f"{name}: got {size}, need 1 to {self.sizes.num_samples}, sizes.num_samples")
        for name, number in (
            ("epochs", self.epochs),
            ("patience", self.patience),
            ("sizes.num_points", self.sizes.num_points),
            ("noise_epochs", self.noise_epochs),
            ("grid.seeds", self.grid.seeds),
            ("contrast.seeds", self.contrast.seeds),
            ("contrast.epochs", self.contrast.epochs),
        ):
            if number < 1:
                raise ValueError(f"{name}: got {number}, need at least 1")
        if self.grid.epochs < 4:
            raise ValueError(f"grid.epochs: got {self.grid.epochs}, need at least 4")
        for name, rate in [("lr", self.lr), ("noisy_lr", self.noisy_lr), *(("grid.lrs", lr) for lr in self.grid.lrs)]:
            if not rate > 0:
                raise ValueError(f"{name}: got {rate:g}, need a positive number")
        if not 0 < self.smoothing < 1:
            raise ValueError(f"smoothing: got {self.smoothing:g}, need a value in (0, 1)")
        spherical_modes(0, self.sizes.num_modes, self.sizes.dimension)


PRESETS = {
    "quick": Config(
        seeds=2,
        alignments=(0.0, 40.0, 80.0),
        epochs=60,
        noise_seeds=1,
        noise_epochs=4,
        maps=(0.0, 80.0),
        grid=Grid(alignments=(80.0,), seeds=1, epochs=20, batch_sizes=(256, 1024)),
        contrast=Contrast(alignments=(0.0, 80.0), seeds=1, epochs=10),
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Data:
    """Which data set."""

    alignment: float
    seed: int
    num_modes: int
    dimension: int
    num_points: int
    num_samples: int


@dataclass(frozen=True)
class Fit:
    """One fit. Without ``patience`` all epochs run, and errors are also averaged over the last ``tail`` of them."""

    data: Data
    loss: Loss
    optimiser: Optimiser
    lr: float
    batch_size: int
    epochs: int
    smoothing: float = 0.0
    patience: int | None = None
    tolerance: float = 0.0
    tail: int = 0
    part: str = "fit"

    @property
    def variant(self) -> Variant:
        return Variant(self.loss, self.optimiser, self.lr, self.smoothing)


@dataclass(frozen=True)
class Optimum:
    """The exact fits: to the labels (maximum likelihood), and to the smoothed conditional itself."""

    data: Data
    smoothing: float
    part: str = "optimum"


@dataclass(frozen=True)
class Noise:
    """Gradient noise at the maximum-likelihood fit, and the excess KL it predicts at each learning rate."""

    data: Data
    batch_size: int
    epochs: int
    lrs: tuple[float, ...]
    part: str = "noise"


@dataclass(frozen=True)
class Map:
    """A t-SNE map of the points."""

    data: Data
    points: int = 800
    part: str = "map"


@dataclass(frozen=True)
class Speed:
    """Time of the batched program beside one fit after another by autograd."""

    data: Data
    fits: int
    epochs: int
    batch_size: int
    part: str = "speed"


Run = Fit | Optimum | Noise | Map | Speed


def runs(config: Config) -> list[Run]:
    def data(alignment: float, seed: int) -> Data:
        sizes = config.sizes
        return Data(alignment, seed, sizes.num_modes, sizes.dimension, sizes.num_points, sizes.num_samples)

    stopping: dict[str, Any] = {"patience": config.patience, "tolerance": config.tolerance}
    every: dict[str, Any] = {"batch_size": config.batch_size, "epochs": config.epochs} | stopping
    wanted: list[Run] = []
    for alignment, seed in itertools.product(config.alignments, range(config.seeds)):
        here = data(alignment, seed)
        for loss in PAIR:
            wanted.append(Fit(here, loss, "adam", config.lr, **every))
            wanted.append(Fit(here, loss, "sgd", config.noisy_lr, **every))
        wanted.append(Fit(here, "soft-dist-info-nce", "adam", config.lr, smoothing=config.smoothing, **every))
        wanted.append(Fit(here, "soft-ce", "adam", config.lr, **every))
        wanted.append(Optimum(here, config.smoothing))
        if seed < config.noise_seeds:
            wanted.append(Fit(here, "info-nce-without-noise", "adam", config.lr, **every))
            wanted.append(Noise(here, config.batch_size, config.noise_epochs, (config.noisy_lr,)))

    contrast = config.contrast
    for alignment, seed in itertools.product(contrast.alignments, range(contrast.seeds)):
        shorter = every | {"epochs": contrast.epochs}
        wanted.append(Fit(data(alignment, seed), "soft-target-info-nce", "adam", config.lr, **shorter))

    grid = config.grid
    tail = max(min(5, grid.epochs // 2), grid.epochs // 10)
    for alignment, seed, batch_size in itertools.product(grid.alignments, range(grid.seeds), grid.batch_sizes):
        here = data(alignment, seed)
        wanted.append(Optimum(here, config.smoothing))
        wanted.append(Noise(here, batch_size, config.noise_epochs, grid.lrs))
        for loss, optimiser, lr in itertools.product(PAIR, OPTIMISERS, grid.lrs):
            wanted.append(Fit(here, loss, optimiser, lr, batch_size, grid.epochs, tail=tail))

    wanted.extend(Map(data(alignment, 0)) for alignment in config.maps)
    wanted.append(Speed(data(config.alignments[-1], 0), fits=20, epochs=3, batch_size=config.batch_size))
    return wanted


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    """Batches of fits on one core each, as many at a time as there are cores; then the timing, alone."""
    fits = [run for run in todo if isinstance(run, Fit)]
    bar = progress.add_task("epochs of fits", total=sum(run.epochs for run in fits), visible=bool(fits))
    cancelled = threading.Event()

    def advance(epochs: int) -> None:
        if cancelled.is_set():
            raise InterruptedError
        progress.advance(bar, epochs)

    jobs = _fit_jobs(fits, advance)
    jobs += [Job([run], partial(_optimum, run), 30) for run in todo if isinstance(run, Optimum)]
    jobs += [Job([run], partial(_noise, run), 150) for run in todo if isinstance(run, Noise)]
    jobs += [Job([run], partial(_map, run), 900) for run in todo if isinstance(run, Map)]
    jobs.sort(key=lambda job: -job.cost)  # the longest first, so that no core is left with it at the end

    with ThreadPoolExecutor(_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            pending: set[Future[list[Outcome]]] = {pool.submit(job) for job in jobs}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        finally:
            cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)
    for run in todo:
        if isinstance(run, Speed):
            yield from Job([run], partial(_speed, run), 0)()


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.studies.density.page import density_section

    return density_section(rows)


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.studies.density.page import density_claims

    return density_claims(rows)


@dataclass(frozen=True)
class Job:
    """Runs computed together, and a guess of their cost in arbitrary units."""

    runs: Sequence[Run]
    work: Callable[[], list[dict[str, Any]]]
    cost: float

    def __call__(self) -> list[Outcome]:
        started = time.perf_counter()
        results = self.work()
        share = (time.perf_counter() - started) / len(self.runs)
        return [Outcome(run, result, share) for run, result in zip(self.runs, results, strict=True)]


def _fit_jobs(fits: Sequence[Fit], advance: Callable[[int], None]) -> list[Job]:
    """Fits that can share a tensor program: the same sizes, batches, epochs and variants on several data sets."""
    variants: dict[Any, dict[Data, list[Fit]]] = defaultdict(lambda: defaultdict(list))
    for run in fits:
        sizes = (run.data.num_modes, run.data.dimension, run.data.num_points, run.data.num_samples)
        # Fits that stop early stay together with those that stop at about the same time.
        alike_in_time = (run.loss if run.loss not in PAIR else "pair", run.optimiser, run.lr) if run.patience else None
        shape = (sizes, run.batch_size, run.epochs, run.patience, run.tolerance, run.tail, alike_in_time)
        variants[shape][run.data].append(run)
    jobs = []
    for by_data in variants.values():
        alike: dict[tuple[Variant, ...], list[list[Fit]]] = defaultdict(list)
        for group in by_data.values():
            group.sort(key=lambda run: run.variant.family)
            alike[tuple(run.variant for run in group)].append(group)
        for groups in alike.values():
            run = groups[0][0]
            at_once = 1 if run.loss == "soft-target-info-nce" else 10 if run.batch_size >= 1024 else 30
            for first in range(0, len(groups), at_once):
                chunk = groups[first : first + at_once]
                cost = sum(member.epochs for group in chunk for member in group)
                cost *= 30 if run.loss == "soft-target-info-nce" else 1
                members = [member for group in chunk for member in group]
                jobs.append(Job(members, partial(_fit, chunk, advance), cost))
    return jobs


def _fit(groups: Sequence[Sequence[Fit]], advance: Callable[[int], None]) -> list[dict[str, Any]]:
    run, variants = groups[0][0], [member.variant for member in groups[0]]
    data = _sample([group[0].data for group in groups])
    count = len(groups) * len(variants)
    tail: list[Tensor] = []
    objectives: list[Tensor] = []
    gradient = Gradient(data, variants, torch.float32)
    seen = 0

    def on_epoch(epoch: int, weights: Tensor, running: int) -> None:
        nonlocal seen
        seen += count
        advance(count)
        if epoch > run.epochs - 2 * run.tail:
            objectives.append(gradient.objective(weights))
        if epoch > run.epochs - run.tail:
            tail.append(error.kl_divergence(data, weights))

    stopping = Stopping(run.patience, run.tolerance) if run.patience else None
    seeds = [group[0].data.seed for group in groups]
    fits = fit(
        data, variants, seeds, batch_size=run.batch_size, epochs=run.epochs, stopping=stopping, on_epoch=on_epoch
    )
    advance(count * run.epochs - seen)

    kl, parameters = error.kl_divergence(data, fits.weights), error.parameter_error(data, fits.weights)
    temperature, tempered = error.best_temperature(data, fits.weights)
    agreement = error.agreement(data, fits.weights)
    results = []
    for i, group in enumerate(groups):
        for j, member in enumerate(group):
            result: dict[str, Any] = {
                "kl": kl[i, j].item(),
                "parameter_error": parameters[i, j].item(),
                "epochs": int(fits.epochs[i, j]),
                "agreement": agreement[i, j].item(),
                "best_temperature": temperature[i, j].item(),
                "kl_at_best_temperature": tempered[i, j].item(),
            }
            if member.smoothing:
                smoothed = error.kl_divergence(data, fits.weights[:, j : j + 1], member.smoothing)
                result["kl_smoothed"] = smoothed[i, 0].item()
            if tail:
                result["kl_tail"] = torch.stack(tail)[:, i, j].mean().item()
                course = torch.stack(objectives)[:, i, j]
                result["still_falling"] = _still_falling(course[: -run.tail], course[-run.tail :])
            results.append(result)
    return results


def _still_falling(before: Tensor, after: Tensor) -> bool:
    """Whether the mean training objective fell from one stretch of epochs to the next by more than its noise."""
    fall = before.mean() - after.mean()
    noise = ((before.var() + after.var()) / len(after)).sqrt()
    return bool(fall > 3 * noise) and bool(fall > 1e-6)


def _optimum(run: Optimum) -> list[dict[str, Any]]:
    data = _sample([run.data])
    weights = maximum_likelihood(data)[:, None]
    smoothed = torch.lerp(data.conditional, torch.full_like(data.conditional, 1 / data.num_classes), run.smoothing)
    floor = maximum_likelihood(data, data.weight[:, :, None] * smoothed)[:, None]
    ignorant = torch.zeros_like(weights)
    result = {
        "kl": error.kl_divergence(data, weights).item(),
        "parameter_error": error.parameter_error(data, weights).item(),
        "smoothed_floor": error.kl_divergence(data, floor, run.smoothing).item(),
        "uniform": error.kl_divergence(data, ignorant).item(),
        "limit": error.statistical_limit(run.data.num_modes, run.data.dimension, run.data.num_samples),
    }
    return [result]


def _noise(run: Noise) -> list[dict[str, Any]]:
    data = _sample([run.data])
    optimum = maximum_likelihood(data)
    losses: tuple[Loss, ...] = ("nll", "info-nce", "info-nce-without-noise")
    noise = gradient_noise.measure(
        data,
        optimum,
        [Variant(loss) for loss in losses],
        batch_size=run.batch_size,
        epochs=run.epochs,
        seed=run.data.seed,
    )
    steps = run.data.num_samples // run.batch_size
    by_loss: dict[str, Any] = {
        loss: {
            "total": noise.total[0, j].item(),
            "along_mean": noise.along_mean[0, j].item(),
            "excess_kl": {f"{lr:g}": noise.excess_kl(lr, steps)[0, j].item() for lr in run.lrs},
        }
        for j, loss in enumerate(losses)
    }
    return [by_loss | {"largest_curvature": noise.curvature.max().item()}]


def _map(run: Map) -> list[dict[str, Any]]:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    data = _sample([run.data])
    points = data.points[0, : run.points]
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):
        tsne = TSNE(init="pca", random_state=run.data.seed, perplexity=perplexity, n_jobs=1)
        map_ = tsne.fit_transform(points.numpy())
    labels = torch.multinomial(
        data.conditional[0, : run.points], 1, generator=torch.Generator().manual_seed(run.data.seed)
    )
    return [{"x": _rounded(map_[:, 0]), "y": _rounded(map_[:, 1]), "labels": labels[:, 0].tolist()}]


def _speed(run: Speed) -> list[dict[str, Any]]:
    """Seconds a fit and epoch: batched on all cores, batched on one, and one after another with one thread or with
    torch's own number, whichever is faster; medians of interleaved repetitions."""
    seeds = list(range(run.fits // 2))
    data = _sample([Data(run.data.alignment, seed, *_sizes(run.data)) for seed in seeds])
    variants = [Variant("nll"), Variant("info-nce")]
    cores = _cores()
    options: dict[str, Any] = {"batch_size": run.batch_size, "epochs": run.epochs}

    def batched(cores: int) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(lambda _: fit(data, variants, seeds, **options), range(cores)))
        return (time.perf_counter() - started) / (cores * len(seeds) * 2 * run.epochs)

    def plain(threads: int) -> float:
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
            started = time.perf_counter()
            for variant in variants:
                pool.submit(fit_one, data[[0]], variant, 0, **options).result()
            return (time.perf_counter() - started) / (2 * run.epochs)

    times = [(batched(cores), batched(1), plain(1), plain(cores)) for _ in range(3)]
    all_cores, one_core, one_thread, threads = (statistics.median(column) for column in zip(*times, strict=True))
    best = min(one_thread, threads)
    return [
        {
            "batched": all_cores,
            "batched_on_one_core": one_core,
            "plain": best,
            "ratio": best / all_cores,
            "ratio_on_one_core": best / one_core,
            "cores": cores,
        }
    ]


def _sample(wanted: Sequence[Data]) -> Mixture:
    num_modes, dimension, num_points, num_samples = _sizes(wanted[0])
    return sample_mixtures(
        [data.alignment for data in wanted],
        [data.seed for data in wanted],
        num_modes=num_modes,
        dimension=dimension,
        num_points=num_points,
        num_samples=num_samples,
    )


def _sizes(data: Data) -> tuple[int, int, int, int]:
    return data.num_modes, data.dimension, data.num_points, data.num_samples


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 2) for value in values]
