"""Does InfoNCE estimate parameters better than NLL? The paper's first figure and its cause.

Linear softmax models are fitted to mixtures of Gaussians whose true conditional is known, from orthogonal modes (0 %
alignment) to almost parallel ones (80 %), and scored by KL(p‖q). The parts: fits at the paper's protocol (Adam, small
steps) and with noisier steps (SGD); the soft losses; the exact maximum-likelihood fit; a grid of optimisers, rates and
batch sizes; the gradient noise at the optimum and the error that it predicts.
"""

import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.density import mixture
from experiments.density.fits import Gradient, Loss, Optimiser, Variant, fit, fit_plainly, measure_noise
from experiments.density.mixture import Mixture, kl_divergence, maximum_likelihood, sample_mixtures, statistical_limit
from experiments.harness.claims import Finding, verdict
from experiments.harness.experiment import Experiment
from experiments.harness.figures import LOOKS, OTHER, Figure, curve, heat, label, level
from experiments.harness.options import later, option
from experiments.harness.rows import Row
from experiments.harness.runs import cores
from experiments.harness.statistics import Estimate, estimate, largest, over
from experiments.harness.tables import Table

PAIR: tuple[Loss, ...] = ("nll", "info-nce")
EXPECTED = (*PAIR, "expected-info-nce")
OPTIMISERS: tuple[Optimiser, ...] = ("adam", "sgd")
PROTOCOLS = {"adam": "with Adam, small steps", "sgd": "with SGD, noisy steps"}


# Options and runs


@dataclass(frozen=True)
class Sizes:
    num_modes: int = option(20, "K, modes and classes")
    dimension: int = option(20, "d, at least as many as modes")
    num_points: int = option(1600, "distinct points drawn from the mixture", least=1)
    num_samples: int = option(32_000, "n, samples drawn from those points with repetition, each with a label")


@dataclass(frozen=True)
class Grid:
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
class Options:
    seeds: int = option(10, "number of seeds; a seed fixes the data and the order of batches", least=1)
    alignments: tuple[float, ...] = option(
        tuple(float(a) for a in range(0, 90, 10)), "mode alignments in %", least=0, below=100
    )
    epochs: int = option(500, "epochs of a fit, at most", least=1)
    batch_size: int = option(1024, "rows of a batch", least=1)
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
        for name, sizes in (("batch_size", (self.batch_size,)), ("grid.batch_sizes", self.grid.batch_sizes)):
            for size in sizes:
                if size > self.sizes.num_samples:
                    raise ValueError(f"{name}: got {size}, need at most {self.sizes.num_samples}, sizes.num_samples")
        mixture.spherical_modes(0, self.sizes.num_modes, self.sizes.dimension)


QUICK = Options(
    seeds=2, alignments=(0.0, 40.0, 80.0), epochs=60, noise_seeds=1, noise_epochs=4, maps=(0.0, 80.0),
    grid=Grid(alignments=(80.0,), seeds=1, epochs=20, batch_sizes=(256, 1024)),
    contrast=Contrast(alignments=(0.0, 80.0), seeds=1, epochs=10),
)  # fmt: skip


@dataclass(frozen=True)
class Data:
    """A data set."""

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


Run = Fit | Optimum | Noise | Map | Speed


def runs(options: Options) -> list[Run]:
    o, sizes = options, asdict(options.sizes)
    stopping: dict[str, Any] = {"patience": o.patience, "tolerance": o.tolerance}
    every: dict[str, Any] = {"batch_size": o.batch_size, "epochs": o.epochs} | stopping
    wanted: list[Run] = []
    for alignment, seed in itertools.product(o.alignments, range(o.seeds)):
        here = Data(alignment, seed, **sizes)
        for loss in PAIR:
            wanted.append(Fit(here, loss, "adam", o.lr, **every))
            wanted.append(Fit(here, loss, "sgd", o.noisy_lr, **every))
        wanted.append(Fit(here, "expected-info-nce", "sgd", o.noisy_lr, **every))
        wanted.append(Fit(here, "soft-dist-info-nce", "adam", o.lr, smoothing=o.smoothing, **every))
        wanted.append(Fit(here, "soft-ce", "adam", o.lr, **every))
        wanted.append(Optimum(here, o.smoothing))
        if seed < o.noise_seeds:
            wanted.append(Fit(here, "info-nce-without-noise", "adam", o.lr, **every))
            wanted.append(Noise(here, o.batch_size, o.noise_epochs, (o.noisy_lr,)))
            wanted.append(Noise(here, o.batch_size, o.noise_epochs, (o.noisy_lr,), losses=EXPECTED))
    for alignment, seed in itertools.product(o.contrast.alignments, range(o.contrast.seeds)):
        shorter = every | {"epochs": o.contrast.epochs}
        wanted.append(Fit(Data(alignment, seed, **sizes), "soft-target-info-nce", "adam", o.lr, **shorter))
    grid = o.grid
    tail = max(min(5, grid.epochs // 2), grid.epochs // 10)
    for alignment, seed, batch_size in itertools.product(grid.alignments, range(grid.seeds), grid.batch_sizes):
        here = Data(alignment, seed, **sizes)
        wanted.append(Optimum(here, o.smoothing))
        wanted.append(Noise(here, batch_size, o.noise_epochs, grid.lrs))
        wanted.append(Noise(here, batch_size, o.noise_epochs, grid.lrs, losses=EXPECTED))
        for loss, optimiser, lr in itertools.product(PAIR, OPTIMISERS, grid.lrs):
            wanted.append(Fit(here, loss, optimiser, lr, batch_size, grid.epochs, tail=tail))
    wanted.extend(Map(Data(alignment, 0, **sizes)) for alignment in o.maps)
    wanted.append(Speed(Data(o.alignments[-1], 0, **sizes), fits=20, epochs=3, batch_size=o.batch_size))
    return wanted


# How runs are computed


def groups(todo: Sequence[Run]) -> list[list[Run]]:
    """Runs that are computed together, the costliest first: fits of the same variants, noise on the same batches."""
    found: list[tuple[float, list[Run]]] = []
    fits: dict[Any, dict[Data, list[Fit]]] = defaultdict(lambda: defaultdict(list))
    noises: dict[Any, list[Run]] = defaultdict(list)
    for run in todo:
        match run:
            case Fit():
                slow = run.loss == "soft-target-info-nce"
                sizes = replace(run.data, alignment=0.0, seed=0)
                protocol = run.batch_size, run.epochs, run.patience, run.tolerance, run.tail
                fits[sizes, slow, protocol][run.data].append(run)
            case Noise():
                noises[run.data, run.batch_size, run.epochs].append(run)
            case _:
                found.append((900.0 if isinstance(run, Map) else 30.0, [run]))
    found += [(150.0, members) for members in noises.values()]
    for (_, slow, (batch_size, epochs, *_)), by_data in fits.items():
        same: dict[tuple[Variant, ...], list[list[Fit]]] = defaultdict(list)
        for members in by_data.values():
            members.sort(key=lambda run: run.variant.family)
            same[tuple(run.variant for run in members)].append(members)
        for variants, sets in same.items():
            at_once = 1 if slow else max(1, 30_000 // (len(variants) * batch_size))  # as many as a cache holds
            for first in range(0, len(sets), at_once):
                together: list[Run] = [member for members in sets[first : first + at_once] for member in members]
                found.append((len(together) * epochs * (30 if slow else 1), together))
    return [members for _, members in sorted(found, key=lambda pair: -pair[0])]


def perform(todo: Sequence[Run]) -> list[dict[str, Any]]:
    """Results of the runs of a group, in their order."""
    match todo[0]:
        case Fit():
            return fit_together(todo)  # type: ignore[arg-type]
        case Noise():
            return noise_together(todo)  # type: ignore[arg-type]
        case Optimum():
            return [optimum(todo[0])]
        case Map():
            return [tsne_map(todo[0])]
    return [speed(todo[0])]


def fit_together(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Results of fits of the same variants on several data sets."""
    run, places = fits[0], list(dict.fromkeys(member.data for member in fits))
    variants = [member.variant for member in fits if member.data == run.data]
    data = _sample(places)
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
        "kl": kl_divergence(data, weights), "parameter_error": mixture.parameter_error(data, weights), "epochs": epochs,
        "agreement": mixture.agreement(data, weights), "best_temperature": temperature,
        "kl_at_best_temperature": tempered,
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
    data = _sample([run.data])
    weights = maximum_likelihood(data)[:, None]
    smoothed = (1 - run.smoothing) * data.conditional + run.smoothing / data.num_classes
    floor = maximum_likelihood(data, data.weight[:, :, None] * smoothed)[:, None]
    return {
        "kl": kl_divergence(data, weights).item(),
        "parameter_error": mixture.parameter_error(data, weights).item(),
        "smoothed_floor": kl_divergence(data, floor, run.smoothing).item(),
        "uniform": kl_divergence(data, torch.zeros_like(weights)).item(),
        "limit": statistical_limit(run.data.num_modes, run.data.dimension, run.data.num_samples),
    }


def noise_together(todo: Sequence[Noise]) -> list[dict[str, Any]]:
    """Results of measurements on the same batches; a loss that several want is measured once."""
    run, losses = todo[0], list(dict.fromkeys(loss for run in todo for loss in run.losses))
    data = _sample([run.data])
    variants = [Variant(loss) for loss in losses]  # type: ignore[arg-type]
    found = measure_noise(
        data, maximum_likelihood(data), variants, batch_size=run.batch_size, epochs=run.epochs, seed=run.data.seed
    )
    excess = {lr: found.excess_kl(lr, run.data.num_samples // run.batch_size)[0] for run in todo for lr in run.lrs}

    def of(loss: str, lrs: Sequence[float]) -> dict[str, Any]:
        j = losses.index(loss)
        return {
            "total": found.total[0, j].item(), "along_mean": found.along_mean[0, j].item(),
            "excess_kl": {f"{lr:g}": excess[lr][j].item() for lr in lrs},
        }  # fmt: skip

    curvature = found.curvature.max().item()
    return [{"largest_curvature": curvature} | {loss: of(loss, run.lrs) for loss in run.losses} for run in todo]


def tsne_map(run: Map) -> dict[str, Any]:
    from sklearn.manifold import TSNE

    data = _sample([run.data])
    points = data.points[0, : run.points]
    perplexity = min(30.0, (len(points) - 1) / 3)
    tsne = TSNE(init="pca", random_state=run.data.seed, perplexity=perplexity, n_jobs=1)
    generator = torch.Generator().manual_seed(run.data.seed)
    labels = torch.multinomial(data.conditional[0, : run.points], 1, generator=generator)[:, 0]
    x, y = ([round(float(value), 2) for value in column] for column in tsne.fit_transform(points.numpy()).T)
    return {"x": x, "y": y, "labels": labels.tolist()}


def speed(run: Speed) -> dict[str, Any]:
    """Seconds per fit and epoch, medians of interleaved repetitions: batched on all cores and on one; plainly with one
    thread or with all, whichever is faster."""
    seeds, variants = list(range(run.fits // 2)), [Variant("nll"), Variant("info-nce")]
    data = _sample([replace(run.data, seed=seed) for seed in seeds])
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
    best = min(one_thread, threads)
    return {
        "batched": every_core, "batched_on_one_core": one_core, "plain": best, "ratio": best / every_core,
        "ratio_on_one_core": best / one_core, "cores": cores(),
    }  # fmt: skip


def _sample(wanted: Sequence[Data]) -> Mixture:
    sizes = {name: value for name, value in asdict(wanted[0]).items() if name not in ("alignment", "seed")}
    return sample_mixtures([data.alignment for data in wanted], [data.seed for data in wanted], **sizes)


# Rows to numbers


class Density:
    """Rows by part: the fits of the commonest protocol, and the other parts at the same sizes of data."""

    def __init__(self, rows: Sequence[Row]) -> None:
        sizes = [f"data.{name}" for name in Sizes.__dataclass_fields__]
        stopped = [row for row in rows if row.config["part"] == "fit" and row.config["patience"]]
        self.fits = largest(stopped, "epochs", "batch_size", "patience", "tolerance", *sizes)
        if not self.of("nll", "adam"):
            raise ValueError("no finished fit of NLL yet")
        self.data = self.fits[0].config["data"]
        of_part: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row.config["part"] == "speed" or row.config["data"] | _place(self.data) == self.data:
                of_part[row.config["part"]].append(row)
        self.optimum, self.speed = of_part["optimum"], of_part["speed"][-1:]
        self.maps = sorted(of_part["map"], key=alignment_of)
        self.noise = [row for row in of_part["noise"] if "losses" not in row.config]
        self.expected_noise = [row for row in of_part["noise"] if "losses" in row.config]
        self.grid = largest([row for row in of_part["fit"] if row.config["tail"]], "epochs")
        self.contrast = largest(
            [row for row in of_part["fit"] if row.config["loss"] == "soft-target-info-nce"], "epochs"
        )
        self.limit = statistical_limit(*(self.data[name] for name in ("num_modes", "dimension", "num_samples")))
        self.alignments = list(self.kl("nll", "adam"))

    def of(self, loss: str, optimiser: str) -> list[Row]:
        """The fits of a loss, at the learning rate that most fits with this optimiser have."""
        at_rate = largest([row for row in self.fits if row.config["optimiser"] == optimiser], "lr")
        return [row for row in at_rate if row.config["loss"] == loss]

    def kl(self, loss: str, optimiser: str, value: str = "kl") -> dict[float, Estimate]:
        return by_alignment(self.of(loss, optimiser), value)

    def milli(self, alignment: float, loss: str, optimiser: str) -> str:
        """Mean KL in thousandths."""
        found = self.kl(loss, optimiser).get(alignment)
        return f"{1e3 * found.mean:.2f}" if found else "–"

    def gap(self, alignment: float, optimiser: str, other: str = "info-nce", loss: str = "nll") -> Estimate | None:
        """KL of ``loss`` minus that of ``other`` in thousandths, paired: the same data and the same batches."""
        return _minus(*(self._at(alignment, name, optimiser) for name in (loss, other)))

    def rise(self, loss: str, optimiser: str) -> Estimate | None:
        """KL at the highest alignment minus that at the lowest, in thousandths."""
        return _minus(*(self._at(end(self.alignments), loss, optimiser) for end in (max, min)))

    def _at(self, alignment: float, loss: str, optimiser: str) -> dict[int, float]:
        rows = [row for row in self.of(loss, optimiser) if alignment_of(row) == alignment]
        return {row.config["data"]["seed"]: 1e3 * row.result["kl"] for row in rows}

    def predictions(self) -> dict[tuple[float, int, str, str], tuple[float, float]]:
        """Predicted and measured excess KL by alignment, batch size, loss and rate.

        Of every SGD setting whose training loss has stopped falling. Settings are chosen by that alone, never by the
        excess, which can be negative: slow directions that have not converged may lie below the optimum's KL.
        """
        excess = {
            (*_place(row.config["data"]).values(), row.config["batch_size"], loss, lr): value
            for row in self.noise for loss in PAIR for lr, value in row.result[loss]["excess_kl"].items()
        }  # fmt: skip
        best = {tuple(_place(row.config["data"]).values()): row.result["kl"] for row in self.optimum}
        found: dict[Any, list[tuple[float, float, bool]]] = defaultdict(list)
        for row in self.grid:
            c, place = row.config, tuple(_place(row.config["data"]).values())
            setting = c["batch_size"], c["loss"], f"{c['lr']:g}"
            predicted = excess.get((*place, *setting))
            if c["optimiser"] == "sgd" and predicted and place in best:
                r = row.result
                found[place[0], *setting].append((predicted, r["kl_tail"] - best[place], r["still_falling"]))
        means = {key: tuple(map(statistics.fmean, zip(*each, strict=True))) for key, each in found.items()}
        return {key: (predicted, measured) for key, (predicted, measured, falling) in means.items() if not falling}


def _place(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"alignment": data["alignment"], "seed": data["seed"]}


def alignment_of(row: Row) -> float:
    return float(row.config["data"]["alignment"])


def by_alignment(rows: Sequence[Row], value: str | Callable[[Mapping[str, Any]], float]) -> dict[float, Estimate]:
    """Mean of a measured value over the rows of each alignment."""
    get = value if callable(value) else lambda result: result[value]
    return over(rows, alignment_of, lambda row: float(get(row.result)))


def _minus(a: dict[int, float], b: dict[int, float]) -> Estimate | None:
    seeds = sorted(a.keys() & b.keys())
    return estimate([a[seed] - b[seed] for seed in seeds]) if seeds else None


# Claims. "Better" and "worse" mean by more than a tenth of the statistical limit.


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = Density(rows)
    lowest, highest = min(found.alignments), max(found.alignments)
    tenth, unit = 100 * found.limit, " (thousandths of a nat)"
    answers: dict[str, Finding] = {}

    def on(gap: Estimate) -> str:
        return f"mixtures of {found.data['num_modes']} Gaussians, {gap.count} seeds"

    gaps = {optimiser: gap for optimiser in PROTOCOLS if (gap := found.gap(highest, optimiser))}
    if len(gaps) == 2:
        words = "; ".join(f"{gap.signed()} {PROTOCOLS[optimiser]}" for optimiser, gap in gaps.items())
        decided = verdict(gaps["adam"], above=tenth, cause=[gaps["sgd"]])
        answers["density-gap"] = Finding(f"NLL − InfoNCE at {highest:g} %: {words}{unit}", on(gaps["adam"]), decided)
    adam, sgd = ([rise for loss in PAIR if (rise := found.rise(loss, optimiser))] for optimiser in PROTOCOLS)
    if len(adam) == len(sgd) == 2:

        def course(loss: str, optimiser: str) -> str:
            first, last = (found.milli(end, loss, optimiser) for end in (lowest, highest))
            return f"{first} → {last} ({LOOKS[loss].name})"

        words = "; ".join(f"{name} {', '.join(course(loss, o) for loss in PAIR)}" for o, name in PROTOCOLS.items())
        text = f"from {lowest:g} % to {highest:g} %: {words}{unit}"
        answers["density-trend"] = Finding(text, on(adam[0]), verdict(*adam, above=tenth, cause=sgd))
    if gap := found.gap(0, "adam"):
        nll, info_nce = (found.milli(0, loss, "adam") for loss in PAIR)
        text = f"NLL {nll}, InfoNCE {info_nce}; difference {gap.signed()}{unit}"
        answers["density-orthogonal"] = Finding(text, on(gap), verdict(gap, above=-tenth, below=tenth))
    if found.contrast:
        answers["density-soft-target"] = _soft_target(found)
    gap = found.gap(highest, "sgd", "expected-info-nce")
    beside = found.gap(highest, "sgd", "info-nce", "expected-info-nce")
    if gap and beside:
        text = (f"NLL − expected InfoNCE at {highest:g} %: {gap.signed()}, expected InfoNCE − InfoNCE "
                f"{beside.signed()}, {PROTOCOLS['sgd']}{unit}")  # fmt: skip
        answers["density-expected"] = Finding(text, on(gap), verdict(gap, above=tenth, new=True))
    return answers


def _soft_target(found: Density) -> Finding:
    errors = by_alignment(found.contrast, "kl")
    worst = max(errors, key=lambda alignment: errors[alignment].mean)
    tempered, temperature = (
        by_alignment(found.contrast, value)[worst].mean for value in ("kl_at_best_temperature", "best_temperature")
    )
    text = f"KL {errors[worst].mean:.2g} nats at {worst:g} % alignment; {tempered:.2g} with scores divided by "
    text += f"{temperature:.2g}"
    if ignorant := by_alignment(found.optimum, "uniform").get(worst):
        text += f"; always predicting 1/K gives {ignorant.mean:.2g}"
    e, epochs = errors[worst], found.contrast[0].config["epochs"]
    on = f"the true conditional as soft target, {e.count} seeds, at most {epochs} epochs"
    return Finding(text, on, verdict(e, below=2 * found.limit))


# Tables and figures


def cell(of: Mapping[Any, Estimate], at: Any, shown: str = ".2f", factor: float = 1.0) -> str:
    return f"{factor * of[at].mean:{shown}}" if at in of else "–"


def tables(rows: Sequence[Row]) -> list[Table]:
    found = Density(rows)
    exact, ignorant = (by_alignment(found.optimum, value) for value in ("kl", "uniform"))
    names, thousandths = [LOOKS[loss].name for loss in EXPECTED], "KL in thousandths of a nat"
    body, expected = [], []
    for a in found.alignments:
        cells = [f"{a:g} %"]
        for optimiser in PROTOCOLS:
            gap = found.gap(a, optimiser)
            kls = (found.milli(a, loss, optimiser) for loss in PAIR)
            cells += [*kls, gap.spread(2, sign=True) if gap else "–"]
        body.append([*cells, cell(exact, a, factor=1e3), cell(ignorant, a, factor=1e3)])
        if gap := found.gap(a, "sgd", "expected-info-nce"):
            kls = (found.milli(a, loss, "sgd") for loss in EXPECTED)
            expected.append([f"{a:g} %", *kls, gap.spread(2, sign=True)])
    ratios = [over(found.expected_noise, lambda row: (alignment_of(row), row.config["batch_size"]),
                   lambda row, loss=loss: row.result[loss]["total"] / row.result["nll"]["total"])
              for loss in EXPECTED[1:]]  # fmt: skip
    noise = [[f"{a:g} %, batch {size}", *(cell(ratio, (a, size)) for ratio in ratios)] for a, size in ratios[0]]
    large = [
        [f"{a:g} %, batch {size}, rate {lr}, {LOOKS[loss].name}", f"{1e3 * predicted:.2f}", f"{1e3 * measured:.2f}",
         f"{measured / predicted:.2f}"]
        for (a, size, loss, lr), (predicted, measured) in sorted(found.predictions().items())
        if predicted >= found.limit / 10
    ]  # fmt: skip
    ce = found.kl("soft-ce", "adam")
    kl, temperature, tempered, right = (
        by_alignment(found.contrast, v) for v in ("kl", "best_temperature", "kl_at_best_temperature", "agreement")
    )
    soft = [
        [f"{a:g} %", cell(ce, a, ".1e"), cell(kl, a, ".2g"), cell(temperature, a, ".2g"), cell(tempered, a, ".2g"),
         cell(ignorant, a, ".2g"), cell(right, a, ".0f", 100)]
        for a in kl
    ]  # fmt: skip
    programs = {"all fits as one tensor program, every core": "batched", "the same on one core": "batched_on_one_core",
                "one fit after another, autograd": "plain"}  # fmt: skip
    speed = [
        [name, f"{1e3 * row.result[key]:.1f}", f"{row.result[key] / row.result['batched']:.1f}"]
        for row in found.speed
        for name, key in programs.items()
    ]
    sides = [f"{name}, {part}" for name in ("Adam", "SGD") for part in ("NLL", "InfoNCE", "difference")]
    return [
        Table("density-kl", ("alignment", *sides, "exact fit", "1/K"), body,
              title=f"{thousandths}; difference NLL − InfoNCE"),
        Table("density-expected", ("alignment", *names, "NLL − expected"), expected, title=f"{thousandths}, SGD"),
        Table("density-noise", ("alignment, batch", *names[1:]), noise, title="gradient variance over NLL's"),
        Table("density-predicted", ("setting", "predicted", "measured", "ratio"), large,
              title=f"Excess KL of SGD, {thousandths}"),
        Table("density-soft", ("alignment", "soft target cross-entropy", "soft target InfoNCE", "best temperature",
                               "at that temperature", "predicting 1/K", "right class (%)"), soft,
              title="KL in nats, the true conditional as target"),
        Table("density-speed", ("program", "ms", "ratio"), speed, title="ms per fit and epoch"),
    ]  # fmt: skip


ALIGNMENT, KL, LIMIT = "mode alignment (%)", "KL(p‖q) (nats)", "statistical limit"


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = Density(rows)
    drawn = [Figure("density-kl", partial(_draw_kl, found), panels=2)]
    if found.noise and found.grid:
        panels = 4 * len({alignment_of(row) for row in found.grid})
        drawn.append(Figure("density-noise", partial(_draw_noise, found), panels=3))
        drawn.append(Figure("density-grid", partial(_draw_grid, found), panels, columns=4, size=(3.0, 2.4)))
    if found.contrast and found.kl("soft-ce", "adam"):
        drawn.append(Figure("density-soft", partial(_draw_soft, found), panels=2))
    if found.maps:
        drawn.append(Figure("density-maps", partial(_draw_maps, found), len(found.maps), size=(2.4, 2.3)))
    return drawn


def _draw_kl(found: Density, axes: Any) -> None:
    top = 1.1 * max(e.high for loss, o in itertools.product(PAIR, PROTOCOLS) for e in found.kl(loss, o).values())
    for ax, optimiser, title in zip(axes, PROTOCOLS, ("the paper's protocol: Adam", "noisier: SGD"), strict=True):
        curve(ax, by_alignment(found.optimum, "uniform"), name="predicting 1/K", dash="--", band=False)
        for loss in EXPECTED:
            if points := found.kl(loss, optimiser):
                curve(ax, points, loss=loss)
        level(ax, found.limit, LIMIT)
        label(ax, ALIGNMENT, KL, title=title, ylim=(0, max(top, 1.5 * found.limit)))


def _draw_noise(found: Density, axes: Any) -> None:
    noise = [row for row in found.noise if row.config["batch_size"] == found.fits[0].config["batch_size"]]
    for loss in PAIR:
        curve(axes[0], by_alignment(noise, lambda result, loss=loss: result[loss]["total"]), loss=loss)
    rest = by_alignment(noise, lambda result: result["nll"]["total"] - result["nll"]["along_mean"])
    curve(axes[0], rest, name="NLL, off the mean of x", colour=LOOKS["nll"].colour, dash=":")
    label(axes[0], ALIGNMENT, "variance of the batch gradient", title="noise at the optimum")
    points = {key: pair for key, pair in found.predictions().items() if pair[1] > 0}
    ends = [value for pair in points.values() for value in pair] or [1e-5, 1e-2]
    limits = 0.5 * min(ends), 2 * max(ends)
    axes[1].plot(limits, limits, color=OTHER, ls="--", lw=1)
    for (_, _, loss, _), (predicted, measured) in points.items():
        look, alpha = LOOKS[loss], 1.0 if predicted >= found.limit / 10 else 0.35
        axes[1].plot(predicted, measured, look.marker, color=look.colour, alpha=alpha, mew=0)
    names = "predicted (nats)", "measured (nats)"
    label(axes[1], *names, title="excess KL of SGD", log="xy", xlim=limits, ylim=limits)
    curve(axes[2], found.kl("info-nce", "adam"), loss="info-nce")
    curve(axes[2], found.kl("info-nce-without-noise", "adam"), name="without −log η", dash="--")
    level(axes[2], found.limit, LIMIT)
    label(axes[2], ALIGNMENT, KL, title="control: InfoNCE without −log η", log="y")


def _draw_grid(found: Density, axes: Any) -> None:
    cells: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in found.grid:
        c = row.config
        cells[alignment_of(row), c["optimiser"], c["loss"], c["lr"], c["batch_size"]].append(row.result)
    alignments, _, _, lrs, sizes = (sorted(set(values)) for values in zip(*cells, strict=True))

    def ratio(*key: Any) -> tuple[float | None, str]:
        results = cells.get(key, [])
        numbers = [r["kl_tail"] / found.limit for r in results if r["kl_tail"] is not None]
        if not numbers:
            return None, "diverged" if results else ""
        mean = statistics.fmean(numbers)
        falling = sum(r["still_falling"] for r in results) > len(results) / 2
        return math.log10(mean), f"{mean:.{2 if mean < 10 else 0}f}" + (" ↓" if falling else "")

    for ax, (alignment, optimiser, loss) in zip(axes, itertools.product(alignments, OPTIMISERS, PAIR), strict=True):
        shown = [[ratio(alignment, optimiser, loss, lr, size) for lr in lrs] for size in sizes]
        values, texts = ([[one[part] for one in row] for row in shown] for part in (0, 1))
        heat(ax, [f"{lr:g}" for lr in lrs], list(map(str, sizes)), values, texts, 0, 1)
        label(ax, "learning rate", "batch", title=f"{LOOKS[loss].name}, {optimiser}, {alignment:g} %")


def _draw_soft(found: Density, axes: Any) -> None:
    tempered = by_alignment(found.contrast, "kl_at_best_temperature")
    colour = LOOKS["soft-target-info-nce"].colour
    curve(axes[0], found.kl("soft-ce", "adam"), loss="soft-ce", band=False)
    curve(axes[0], by_alignment(found.contrast, "kl"), loss="soft-target-info-nce", band=False)
    curve(axes[0], tempered, name="at its best temperature", colour=colour, dash=":", band=False)
    curve(axes[0], by_alignment(found.optimum, "uniform"), name="predicting 1/K", dash="--", band=False)
    label(axes[0], ALIGNMENT, KL, title="true conditional as soft target", log="y", ylim=(1e-7, 200))
    curve(axes[1], found.kl("soft-dist-info-nce", "adam", "kl_smoothed"), loss="soft-dist-info-nce")
    floor = by_alignment(found.optimum, "smoothed_floor")
    curve(axes[1], floor, name="best linear model", dash=":", band=False)
    label(axes[1], ALIGNMENT, "KL(p^ε‖q) (nats)", title="labels redrawn with smoothing", log="y")


def _draw_maps(found: Density, axes: Any) -> None:
    for ax, row in zip(axes, found.maps, strict=True):
        r = row.result
        ax.scatter(r["x"], r["y"], c=r["labels"], cmap="viridis", s=5, lw=0, alpha=0.85, rasterized=True)
        ax.set_axis_off()
        ax.set_title(f"{alignment_of(row):g} %")


EXPERIMENT = Experiment(
    name="density", question="Does InfoNCE estimate parameters better than NLL, and why?", minutes=3,
    presets={"quick": QUICK, "paper": Options()}, runs=runs, groups=groups, perform_group=perform,
    alone=lambda run: isinstance(run, Speed), findings=findings, tables=tables, figures=figures,
)  # fmt: skip
