"""The parts of the experiment: everything that determines a result, and how it is computed."""

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from experiments.density import mixture
from experiments.density.fits import Gradient, Loss, Optimiser, Variant, fit, fit_plainly, measure_noise
from experiments.density.mixture import Mixture, kl_divergence, maximum_likelihood, sample_mixtures
from experiments.harness.options import later
from experiments.harness.runs import cores


@dataclass(frozen=True)
class Data:
    """A data set."""

    alignment: float
    seed: int
    num_modes: int = 20  # K, also the number of classes
    dimension: int = 20
    num_points: int = 1600  # distinct points
    num_samples: int = 32_000  # drawn from those points with repetition, each with a label


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

    @property
    def is_slow(self) -> bool:
        return self.loss == "soft-target-info-nce"


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
    losses: tuple[Loss, ...] = later(("nll", "info-nce", "info-nce-without-noise"), "measured on the same batches")


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


def groups(todo: Sequence[Run]) -> list[list[Run]]:
    """Runs that are computed together, the costliest first: fits of the same variants on several data sets."""
    found: list[list[Run]] = [[run] for run in todo if not isinstance(run, Fit)]
    by_data: dict[Any, list[Fit]] = defaultdict(list)
    for run in todo:
        if isinstance(run, Fit):
            protocol = run.is_slow, run.batch_size, run.epochs, run.patience, run.tolerance, run.tail
            by_data[protocol, run.data].append(run)
    alike: dict[Any, list[list[Fit]]] = defaultdict(list)
    for (protocol, _), fits in by_data.items():
        fits.sort(key=lambda run: run.variant.family)
        alike[protocol, tuple(run.variant for run in fits)].append(fits)
    for (protocol, variants), sets in alike.items():
        is_slow, batch_size, *_ = protocol
        at_once = 1 if is_slow else max(1, 30_000 // (len(variants) * batch_size))  # as many as a cache holds
        for first in range(0, len(sets), at_once):
            found.append([run for fits in sets[first : first + at_once] for run in fits])
    return sorted(found, key=cost, reverse=True)


def cost(group: Sequence[Run]) -> float:
    """In about the same unit for all parts."""
    run = group[0]
    if isinstance(run, Fit):
        return len(group) * run.epochs * (30 if run.is_slow else 1)
    return {Map: 900, Noise: 150}.get(type(run), 30)


def perform(todo: Sequence[Run]) -> list[dict[str, Any]]:
    """Results of the runs of a group, in their order."""
    if isinstance(todo[0], Fit):
        return fit_together(todo)
    return [{Optimum: optimum, Noise: noise, Map: tsne_map, Speed: speed}[type(run)](run) for run in todo]


def fit_together(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Results of fits of the same variants on several data sets."""
    run, places = fits[0], list(dict.fromkeys(member.data for member in fits))
    variants = [member.variant for member in fits if member.data == run.data]
    data = sample(places)
    gradient = Gradient(data, variants, torch.float32)
    tail: list[Tensor] = []
    objectives: list[Tensor] = []

    def on_epoch(epoch: int, weights: Tensor) -> None:
        if epoch > run.epochs - 2 * run.tail:
            objectives.append(gradient.objective(weights))
        if epoch > run.epochs - run.tail:
            tail.append(kl_divergence(data, weights))

    weights, epochs = fit(
        data, variants, [place.seed for place in places], batch_size=run.batch_size, epochs=run.epochs,
        patience=run.patience, tolerance=run.tolerance, on_epoch=on_epoch,
    )  # fmt: skip
    temperature, tempered = mixture.best_temperature(data, weights)
    found = {
        "kl": kl_divergence(data, weights), "epochs": epochs, "agreement": mixture.agreement(data, weights),
        "best_temperature": temperature, "kl_at_best_temperature": tempered,
    }  # fmt: skip
    if tail:
        found["kl_tail"] = torch.stack(tail).mean(0)
        before, after = torch.stack(objectives).split(run.tail)  # the training objective falls by more than its noise
        fall, noise = before.mean(0) - after.mean(0), ((before.var(0) + after.var(0)) / run.tail).sqrt()
        found["still_falling"] = (fall > 3 * noise) & (fall > 1e-6)
    results = []
    for i, j in itertools.product(range(len(places)), range(len(variants))):
        results.append({name: values[i, j].item() for name, values in found.items()})
        if variants[j].smoothing:
            smoothed = kl_divergence(data, weights[:, j : j + 1], variants[j].smoothing)
            results[-1]["kl_smoothed"] = smoothed[i, 0].item()
    return results


def optimum(run: Optimum) -> dict[str, Any]:
    data = sample([run.data])
    weights = maximum_likelihood(data)[:, None]
    smoothed = (1 - run.smoothing) * data.conditional + run.smoothing / data.num_classes
    floor = maximum_likelihood(data, data.weight[:, :, None] * smoothed)[:, None]
    return {
        "kl": kl_divergence(data, weights).item(),
        "smoothed_floor": kl_divergence(data, floor, run.smoothing).item(),
        "uniform": kl_divergence(data, torch.zeros_like(weights)).item(),
    }


def noise(run: Noise) -> dict[str, Any]:
    data, variants = sample([run.data]), [Variant(loss) for loss in run.losses]
    sizes = {"batch_size": run.batch_size, "epochs": run.epochs, "seed": run.data.seed}
    found = measure_noise(data, maximum_likelihood(data), variants, **sizes)
    excess = {f"{lr:g}": found.excess_kl(lr, run.data.num_samples // run.batch_size)[0] for lr in run.lrs}
    return {
        loss: {
            "total": found.total[0, j].item(), "along_mean": found.along_mean[0, j].item(),
            "excess_kl": {lr: values[j].item() for lr, values in excess.items()},
        }
        for j, loss in enumerate(run.losses)
    }  # fmt: skip


def tsne_map(run: Map) -> dict[str, Any]:
    from sklearn.manifold import TSNE

    data = sample([run.data])
    points = data.points[0, : run.points]
    tsne = TSNE(init="pca", random_state=run.data.seed, n_jobs=1)
    generator = torch.Generator().manual_seed(run.data.seed)
    labels = torch.multinomial(data.conditional[0, : run.points], 1, generator=generator)[:, 0]
    x, y = ([round(float(value), 2) for value in column] for column in tsne.fit_transform(points.numpy()).T)
    return {"x": x, "y": y, "labels": labels.tolist()}


def speed(run: Speed) -> dict[str, Any]:
    """Seconds per fit and epoch, medians of interleaved repetitions: batched on all cores and on one; plainly with one
    thread or with all, whichever is faster."""
    seeds, variants = list(range(run.fits // 2)), [Variant("nll"), Variant("info-nce")]
    data = sample([replace(run.data, seed=seed) for seed in seeds])
    sizes: dict[str, Any] = {"batch_size": run.batch_size, "epochs": run.epochs}

    def seconds(work: Callable[[int], Any], workers: int, threads: int, fits: int) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
            list(pool.map(work, range(workers)))
        return (time.perf_counter() - started) / (workers * fits * run.epochs)

    def batched(workers: int) -> float:
        return seconds(lambda _: fit(data, variants, seeds, **sizes), workers, 1, 2 * len(seeds))

    def plain(threads: int) -> float:
        return seconds(lambda _: [fit_plainly(data[[0]], v, 0, **sizes) for v in variants], 1, threads, 2)

    times = [(batched(cores()), batched(1), plain(1), plain(cores())) for _ in range(3)]
    every_core, one_core, one_thread, threads = (statistics.median(column) for column in zip(*times, strict=True))
    return {"batched": every_core, "batched_on_one_core": one_core, "plain": min(one_thread, threads)}


def sample(wanted: Sequence[Data]) -> Mixture:
    sizes = {name: value for name, value in asdict(wanted[0]).items() if name not in ("alignment", "seed")}
    return sample_mixtures([data.alignment for data in wanted], [data.seed for data in wanted], **sizes)
