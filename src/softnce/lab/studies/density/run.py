"""Which fits and measurements the density study makes, and how they share the cores."""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from softnce.lab.configuration import option
from softnce.lab.experiment import parallel
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.studies.density import parts
from softnce.lab.studies.density.fits import Loss, Optimiser, Variant
from softnce.lab.studies.density.mixture import spherical_modes
from softnce.lab.studies.density.parts import Data, Fit, Map, Noise, Optimum, Speed

if TYPE_CHECKING:
    from rich.progress import Progress

VERSION = 1
PAIR: tuple[Loss, ...] = ("nll", "info-nce")
EXPECTED = ("nll", "info-nce", "expected-info-nce")
OPTIMISERS: tuple[Optimiser, ...] = ("adam", "sgd")
Run = Fit | Optimum | Noise | Map | Speed


@dataclass(frozen=True)
class Sizes:
    """Size of the data sets."""

    num_modes: int = option(20, "K, modes and classes")
    dimension: int = option(20, "d, at least as many as modes")
    num_points: int = option(1600, "distinct points drawn from the mixture", least=1)
    num_samples: int = option(32_000, "n, samples drawn from those points with repetition, each with a label")


@dataclass(frozen=True)
class Grid:
    """Optimisers (Adam and SGD) × learning rates × batch sizes, NLL and InfoNCE, all epochs run."""

    alignments: tuple[float, ...] = option((20.0, 80.0), "alignments in %", least=0, below=100)
    seeds: int = option(3, "number of seeds", least=1)
    epochs: int = option(100, "epochs of each fit", least=4)
    lrs: tuple[float, ...] = option((1e-3, 1e-2, 1e-1), "learning rates", above=0)
    batch_sizes: tuple[int, ...] = option((64, 256, 1024, 4096), "batch sizes", least=1)


@dataclass(frozen=True)
class Contrast:
    """Soft target InfoNCE, whose step costs N² instead of N·K and which therefore gets fewer fits."""

    alignments: tuple[float, ...] = option((0.0, 20.0, 50.0, 80.0), "alignments in %", least=0, below=100)
    seeds: int = option(3, "number of seeds", least=1)
    epochs: int = option(80, "epochs of each fit, at most", least=1)


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(10, "number of seeds; a seed fixes the data and the order of batches")
    alignments: tuple[float, ...] = option(
        tuple(float(a) for a in range(0, 90, 10)), "mode alignments in %", least=0, below=100
    )
    epochs: int = option(500, "epochs of a fit, at most", least=1)
    batch_size: int = option(1024, "samples in a batch", least=1)
    lr: float = option(1e-3, "learning rate of Adam, the paper's protocol", above=0)
    noisy_lr: float = option(0.1, "learning rate of SGD, the noisier protocol", above=0)
    smoothing: float = option(0.1, "ε of soft distribution InfoNCE", above=0, below=1)
    patience: int = option(20, "epochs without progress after which a fit stops", least=1)
    tolerance: float = option(1e-5, "fall of the training loss, in nats, that counts as progress")
    noise_seeds: int = option(3, "seeds for which gradient noise is measured and the control fitted")
    noise_epochs: int = option(10, "epochs of batches over which gradient noise is measured", least=1)
    maps: tuple[float, ...] = option((0.0, 20.0, 50.0, 80.0), "alignments in % drawn as t-SNE maps", least=0, below=100)
    sizes: Sizes = field(default_factory=Sizes)
    grid: Grid = field(default_factory=Grid)
    contrast: Contrast = field(default_factory=Contrast)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, sizes in (("batch_size", [self.batch_size]), ("grid.batch_sizes", self.grid.batch_sizes)):
            for size in sizes:
                if size > self.sizes.num_samples:
                    raise ValueError(f"{name}: got {size}, need at most {self.sizes.num_samples}, sizes.num_samples")
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
        wanted.append(Fit(here, "expected-info-nce", "sgd", config.noisy_lr, **every))
        wanted.append(Fit(here, "soft-dist-info-nce", "adam", config.lr, smoothing=config.smoothing, **every))
        wanted.append(Fit(here, "soft-ce", "adam", config.lr, **every))
        wanted.append(Optimum(here, config.smoothing))
        if seed < config.noise_seeds:
            wanted.append(Fit(here, "info-nce-without-noise", "adam", config.lr, **every))
            wanted.append(Noise(here, config.batch_size, config.noise_epochs, (config.noisy_lr,)))
            wanted.append(Noise(here, config.batch_size, config.noise_epochs, (config.noisy_lr,), losses=EXPECTED))

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
        wanted.append(Noise(here, batch_size, config.noise_epochs, grid.lrs, losses=EXPECTED))
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
    jobs += [Job.of(run, parts.optimum, 30) for run in todo if isinstance(run, Optimum)]
    jobs += _noise_jobs([run for run in todo if isinstance(run, Noise)])
    jobs += [Job.of(run, parts.tsne_map, 900) for run in todo if isinstance(run, Map)]
    jobs.sort(key=lambda job: -job.cost)  # the longest first, so that no core is left with it at the end

    with ThreadPoolExecutor(parallel.cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
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
            yield from Job.of(run, parts.speed, 0)()


@dataclass(frozen=True)
class Job:
    """Runs computed together, and a guess of their cost in arbitrary units."""

    runs: Sequence[Run]
    work: Callable[[], list[dict[str, Any]]]
    cost: float

    @classmethod
    def of(cls, run: Run, work: Callable[[Any], dict[str, Any]], cost: float) -> "Job":
        """One run on its own."""
        return cls([run], lambda: [work(run)], cost)

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
        loss = "labels" if run.loss in EXPECTED else run.loss
        alike_in_time = (loss, run.optimiser, run.lr) if run.patience else None
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
                jobs.append(Job(members, partial(parts.fit_together, chunk, advance), cost))
    return jobs


def _noise_jobs(measurements: Sequence[Noise]) -> list[Job]:
    """Measurements that take the same batches of the same data, together."""
    alike: dict[tuple[Data, int, int], list[Noise]] = defaultdict(list)
    for run in measurements:
        alike[run.data, run.batch_size, run.epochs].append(run)
    return [Job(members, partial(parts.noise_together, members), 150) for members in alike.values()]
