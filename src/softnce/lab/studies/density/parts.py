"""The parts of the density study: what describes a run of each, and how it is computed."""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from softnce.lab.configuration import later
from softnce.lab.experiment import parallel
from softnce.lab.studies.density import error, gradient_noise
from softnce.lab.studies.density.fits import Gradient, Loss, Optimiser, Stopping, Variant, fit
from softnce.lab.studies.density.maximum_likelihood import maximum_likelihood
from softnce.lab.studies.density.mixture import Mixture, sample_mixtures
from softnce.lab.studies.density.plain import fit_one


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
    losses: tuple[str, ...] = later(("nll", "info-nce", "info-nce-without-noise"), "measured on the same batches")


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


def fit_together(groups: Sequence[Sequence[Fit]], advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """Results of fits that share a tensor program, in their order.

    Args:
        groups: one per data set, with the same variants in the same order.
        advance: told how many epochs of fits have passed.
    """
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


def optimum(run: Optimum) -> dict[str, Any]:
    data = _sample([run.data])
    weights = maximum_likelihood(data)[:, None]
    smoothed = torch.lerp(data.conditional, torch.full_like(data.conditional, 1 / data.num_classes), run.smoothing)
    floor = maximum_likelihood(data, data.weight[:, :, None] * smoothed)[:, None]
    ignorant = torch.zeros_like(weights)
    return {
        "kl": error.kl_divergence(data, weights).item(),
        "parameter_error": error.parameter_error(data, weights).item(),
        "smoothed_floor": error.kl_divergence(data, floor, run.smoothing).item(),
        "uniform": error.kl_divergence(data, ignorant).item(),
        "limit": error.statistical_limit(run.data.num_modes, run.data.dimension, run.data.num_samples),
    }


def noise_together(runs: Sequence[Noise]) -> list[dict[str, Any]]:
    """Results of measurements on the same batches, in their order: a loss that several want is measured once."""
    run, losses = runs[0], list(dict.fromkeys(loss for run in runs for loss in run.losses))
    data = _sample([run.data])
    variants = [Variant(cast(Loss, loss)) for loss in losses]
    found = gradient_noise.measure(
        data, maximum_likelihood(data), variants, batch_size=run.batch_size, epochs=run.epochs, seed=run.data.seed
    )
    steps = run.data.num_samples // run.batch_size
    excess_kl = {lr: found.excess_kl(lr, steps)[0].tolist() for run in runs for lr in run.lrs}

    def of_loss(loss: str, lrs: Sequence[float]) -> dict[str, Any]:
        j = losses.index(loss)
        return {
            "total": found.total[0, j].item(),
            "along_mean": found.along_mean[0, j].item(),
            "excess_kl": {f"{lr:g}": excess_kl[lr][j] for lr in lrs},
        }

    curvature = {"largest_curvature": found.curvature.max().item()}
    return [{loss: of_loss(loss, run.lrs) for loss in run.losses} | curvature for run in runs]


def tsne_map(run: Map) -> dict[str, Any]:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    data = _sample([run.data])
    points = data.points[0, : run.points]
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):
        tsne = TSNE(init="pca", random_state=run.data.seed, perplexity=perplexity, n_jobs=1)
        map_ = tsne.fit_transform(points.numpy())
    generator = torch.Generator().manual_seed(run.data.seed)
    labels = torch.multinomial(data.conditional[0, : run.points], 1, generator=generator)[:, 0]
    x, y = ([round(float(value), 2) for value in column] for column in map_.T)
    return {"x": x, "y": y, "labels": labels.tolist()}


def speed(run: Speed) -> dict[str, Any]:
    """Seconds per fit and epoch: batched on all cores, batched on one, and one after another with one thread or with
    torch's own number, whichever is faster; medians of interleaved repetitions."""
    seeds = list(range(run.fits // 2))
    data = _sample([replace(run.data, seed=seed) for seed in seeds])
    variants = [Variant("nll"), Variant("info-nce")]
    cores = parallel.cores()
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
    return {
        "batched": all_cores,
        "batched_on_one_core": one_core,
        "plain": best,
        "ratio": best / all_cores,
        "ratio_on_one_core": best / one_core,
        "cores": cores,
    }


def _sample(wanted: Sequence[Data]) -> Mixture:
    sizes = {name: value for name, value in asdict(wanted[0]).items() if name not in ("alignment", "seed")}
    return sample_mixtures([data.alignment for data in wanted], [data.seed for data in wanted], **sizes)
