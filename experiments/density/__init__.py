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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from experiments.density import mixture
from experiments.density.fits import Gradient, Loss, Optimiser, Stopping, Variant, fit, fit_plainly, measure_noise
from experiments.density.mixture import Mixture, kl_divergence, maximum_likelihood, sample_mixtures, statistical_limit
from experiments.harness import (
    LOOKS,
    Claim,
    Estimate,
    Experiment,
    Figure,
    Finding,
    Row,
    Table,
    curve,
    estimate,
    heat,
    label,
    later,
    level,
    option,
    over,
    verdict,
)  # fmt: skip
from experiments.harness.runs import cores

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


# How runs are computed: fits of the same sizes as one tensor program


def groups(todo: Sequence[Run]) -> list[list[Run]]:
    """Runs that are computed together, the costliest first."""
    found: list[tuple[float, list[Run]]] = []
    shapes: dict[Any, dict[Data, list[Fit]]] = defaultdict(lambda: defaultdict(list))
    noises: dict[Any, list[Run]] = defaultdict(list)
    for run in todo:
        match run:
            case Fit():
                # Fits that stop early stay with those that stop at about the same time.
                loss = "labels" if run.loss in EXPECTED else run.loss
                alike = (loss, run.optimiser, run.lr) if run.patience else None
                shape = (run.batch_size, run.epochs, run.patience, run.tolerance, run.tail, alike)
                shapes[_sizes(asdict(run.data)), shape][run.data].append(run)
            case Noise():
                noises[run.data, run.batch_size, run.epochs].append(run)
            case _:
                found.append((900.0 if isinstance(run, Map) else 30.0, [run]))
    found += [(150.0, members) for members in noises.values()]
    for by_data in shapes.values():
        same: dict[tuple[Variant, ...], list[list[Fit]]] = defaultdict(list)
        for members in by_data.values():
            members.sort(key=lambda run: run.variant.family)
            same[tuple(run.variant for run in members)].append(members)
        for sets in same.values():
            run, slow = sets[0][0], sets[0][0].loss == "soft-target-info-nce"
            at_once = 1 if slow else 10 if run.batch_size >= 1024 else 30
            for first in range(0, len(sets), at_once):
                together: list[Run] = [member for members in sets[first : first + at_once] for member in members]
                found.append((len(together) * run.epochs * (30 if slow else 1), together))
    return [members for _, members in sorted(found, key=lambda pair: -pair[0])]


def perform_group(todo: Sequence[Run]) -> list[dict[str, Any]]:
    match todo[0]:
        case Fit():
            return fit_together([run for run in todo if isinstance(run, Fit)])
        case Noise():
            return noise_together([run for run in todo if isinstance(run, Noise)])
    return [perform(run) for run in todo]


def perform(run: Run) -> dict[str, Any]:
    match run:
        case Optimum():
            return optimum(run)
        case Map():
            return tsne_map(run)
        case Speed():
            return speed(run)
    return perform_group([run])[0]


def fit_together(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Results of fits of the same variants on several data sets, in their order."""
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

    stopping = Stopping(run.patience, run.tolerance) if run.patience else None
    seeds = [place.seed for place in places]
    found = fit(
        data, variants, seeds, batch_size=run.batch_size, epochs=run.epochs, stopping=stopping, on_epoch=on_epoch
    )
    kl, parameters = kl_divergence(data, found.weights), mixture.parameter_error(data, found.weights)
    temperature, tempered = mixture.best_temperature(data, found.weights)
    agreement = mixture.agreement(data, found.weights)
    results = []
    for i, j in itertools.product(range(len(places)), range(len(variants))):
        result: dict[str, Any] = {
            "kl": kl[i, j].item(), "parameter_error": parameters[i, j].item(), "epochs": int(found.epochs[i, j]),
            "agreement": agreement[i, j].item(), "best_temperature": temperature[i, j].item(),
            "kl_at_best_temperature": tempered[i, j].item(),
        }  # fmt: skip
        if variants[j].smoothing:
            smoothed = kl_divergence(data, found.weights[:, j : j + 1], variants[j].smoothing)
            result["kl_smoothed"] = smoothed[i, 0].item()
        if tail:
            course = torch.stack(objectives)[:, i, j]
            result["kl_tail"] = torch.stack(tail)[:, i, j].mean().item()
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
    steps = run.data.num_samples // run.batch_size
    excess = {lr: found.excess_kl(lr, steps)[0].tolist() for run in todo for lr in run.lrs}
    results: list[dict[str, Any]] = []
    for run in todo:
        result: dict[str, Any] = {"largest_curvature": found.curvature.max().item()}
        for j in map(losses.index, run.losses):
            result[losses[j]] = {
                "total": found.total[0, j].item(), "along_mean": found.along_mean[0, j].item(),
                "excess_kl": {f"{lr:g}": excess[lr][j] for lr in run.lrs},
            }  # fmt: skip
        results.append(result)
    return results


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


@dataclass(frozen=True)
class Density:
    """Rows by part: the fits of the protocol (epochs, batch, stopping, sizes) that most fits of NLL have, and the other
    parts at the same sizes; ``grid`` and ``contrast`` of the most epochs."""

    fits: list[Row]
    optimum: list[Row]
    noise: list[Row]
    expected_noise: list[Row]
    grid: list[Row]
    contrast: list[Row]
    maps: list[Row]
    speed: list[Row]

    @property
    def limit(self) -> float:
        """Statistical limit of the KL."""
        data = self.fits[0].config["data"]
        return statistical_limit(data["num_modes"], data["dimension"], data["num_samples"])

    @property
    def alignments(self) -> list[float]:
        return list(self.kl("nll", "adam"))

    def of(self, loss: str, optimiser: str) -> list[Row]:
        """The fits of a loss, at the learning rate that most fits of NLL with this optimiser have."""
        with_optimiser = [row for row in self.fits if row.config["optimiser"] == optimiser]
        rates = Counter(row.config["lr"] for row in with_optimiser if row.config["loss"] == "nll")
        rate = max(rates, key=rates.__getitem__, default=None)
        return [row for row in with_optimiser if (row.config["loss"], row.config["lr"]) == (loss, rate)]

    def kl(self, loss: str, optimiser: str, value: str = "kl") -> dict[float, Estimate]:
        return by_alignment(self.of(loss, optimiser), value)

    def at(self, alignment: float, loss: str, optimiser: str) -> dict[int, float]:
        """KL by seed, in thousandths."""
        rows = self.of(loss, optimiser)
        return {_place(row)[1]: 1e3 * row.result["kl"] for row in rows if _place(row)[0] == alignment}

    def gap(self, alignment: float, optimiser: str, other: str = "info-nce", loss: str = "nll") -> Estimate | None:
        """KL of ``loss`` minus that of ``other`` in thousandths, paired: the same data and the same batches."""
        return _minus(self.at(alignment, loss, optimiser), self.at(alignment, other, optimiser))

    def noise_over(self, value: Callable[[Mapping[str, Any]], float]) -> dict[float, Estimate]:
        """Of the gradient noise at the protocol's batch size."""
        size = self.fits[0].config["batch_size"]
        return by_alignment([row for row in self.noise if row.config["batch_size"] == size], value)

    def relative_noise(self, alignment: float, batch_size: int, loss: str) -> Estimate | None:
        """Variance of the batch gradient over that of NLL."""
        there = [r for r in self.expected_noise if (_place(r)[0], r.config["batch_size"]) == (alignment, batch_size)]
        return estimate([r.result[loss]["total"] / r.result["nll"]["total"] for r in there]) if there else None

    def predictions(self) -> dict[tuple[float, int, str, str], tuple[float, float]]:
        """Predicted and measured excess KL by alignment, batch size, loss and rate.

        Of every SGD setting whose training loss has stopped falling. Settings are chosen by that alone, never by the
        excess, which can be negative: slow directions that have not converged may lie below the optimum's KL.
        """
        excess = {
            (*_place(row), row.config["batch_size"], loss, lr): value
            for row in self.noise for loss in PAIR for lr, value in row.result[loss]["excess_kl"].items()
        }  # fmt: skip
        best = {_place(row): row.result["kl"] for row in self.optimum}
        found: dict[Any, list[tuple[float, float, bool]]] = defaultdict(list)
        for row in self.grid:
            c, place = row.config, _place(row)
            setting = c["batch_size"], c["loss"], f"{c['lr']:g}"
            predicted = excess.get((*place, *setting))
            if c["optimiser"] == "sgd" and predicted and place in best:
                r = row.result
                found[place[0], *setting].append((predicted, r["kl_tail"] - best[place], r["still_falling"]))
        means = {key: tuple(map(statistics.fmean, zip(*each, strict=True))) for key, each in found.items()}
        return {key: (predicted, measured) for key, (predicted, measured, falling) in means.items() if not falling}


def read(rows: Sequence[Row]) -> Density:
    fits = [row for row in rows if row.config["part"] == "fit"]
    protocols = Counter(_protocol(row) for row in fits if row.config["loss"] == "nll" and row.config["patience"])
    if not protocols:
        raise ValueError("no finished fit of NLL yet")
    protocol = max(protocols, key=lambda key: (protocols[key], key[0]))
    part: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if _sizes(row.config["data"]) == protocol[-1] or row.config["part"] == "speed":
            part[row.config["part"]].append(row)
    return Density(
        fits=[row for row in fits if _protocol(row) == protocol],
        optimum=part["optimum"],
        noise=[row for row in part["noise"] if "losses" not in row.config],
        expected_noise=[row for row in part["noise"] if "losses" in row.config],
        grid=_longest(row for row in part["fit"] if row.config["tail"]),
        contrast=_longest(row for row in part["fit"] if row.config["loss"] == "soft-target-info-nce"),
        maps=sorted(part["map"], key=_place),
        speed=part["speed"][-1:],
    )


def by_alignment(rows: Sequence[Row], value: str | Callable[[Mapping[str, Any]], float]) -> dict[float, Estimate]:
    """Mean of a measured value over the rows of each alignment."""
    get = value if callable(value) else lambda result: result[value]
    return over(rows, lambda row: _place(row)[0], lambda row: float(get(row.result)))


def _minus(a: dict[int, float], b: dict[int, float]) -> Estimate | None:
    seeds = sorted(a.keys() & b.keys())
    return estimate([a[seed] - b[seed] for seed in seeds]) if seeds else None


def _longest(rows: Iterable[Row]) -> list[Row]:
    found = list(rows)
    most = max((row.config["epochs"] for row in found), default=0)
    return [row for row in found if row.config["epochs"] == most]


def _place(row: Row) -> tuple[float, int]:
    return float(row.config["data"]["alignment"]), row.config["data"]["seed"]


def _sizes(data: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(value for name, value in sorted(data.items()) if name not in ("alignment", "seed"))


def _protocol(row: Row) -> tuple[Any, ...]:
    c = row.config
    return c["epochs"], c["batch_size"], c["patience"], c["tolerance"], _sizes(c["data"])


# Claims. "Better" and "worse" mean by more than a tenth of the statistical limit.

PRINTED = "no numbers printed"
CLAIMS = (
    Claim("density-gap", "The more classes overlap, the worse NLL estimates parameters, compared with InfoNCE.",
          "Figure 1", f"a gap in KL that opens with alignment ({PRINTED})"),
    Claim("density-trend", "The error of both losses grows with alignment.",
          "Figure 1", f"both curves rise ({PRINTED})"),
    Claim("density-orthogonal", "With orthogonal modes, 0 % alignment, both losses estimate equally well.",
          "Figure 1", f"comparable ({PRINTED})"),
    Claim("density-soft-target", "Soft target InfoNCE estimates the conditional density, up to a factor.",
          "Derivation of soft target InfoNCE", "argued for the exact loss, not measured for the one used"),
    Claim("density-expected", "With noisy steps and overlapping classes, expected InfoNCE (default m = K) estimates "
          "parameters better than NLL.", "Figure 1", "not considered; for labels and m = 0 it is InfoNCE"),
)  # fmt: skip


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = read(rows)
    lowest, highest = min(found.alignments), max(found.alignments)
    tenth, unit = 100 * found.limit, " (thousandths of a nat)"
    answers: dict[str, Finding] = {}

    def on(gap: Estimate) -> str:
        return f"mixtures of {found.fits[0].config['data']['num_modes']} Gaussians, {gap.count} seeds"

    gaps = {optimiser: gap for optimiser in PROTOCOLS if (gap := found.gap(highest, optimiser))}
    if len(gaps) == 2:
        words = "; ".join(f"{gap.signed()} {PROTOCOLS[optimiser]}" for optimiser, gap in gaps.items())
        decided = verdict(gaps["adam"], above=tenth, cause=[gaps["sgd"]])
        answers["density-gap"] = Finding(f"NLL − InfoNCE at {highest:g} %: {words}{unit}", on(gaps["adam"]), decided)

    rises, words = {}, []
    for optimiser in PROTOCOLS:
        ends = {loss: [found.at(end, loss, optimiser) for end in (lowest, highest)] for loss in PAIR}
        rises[optimiser] = [rise for first, last in ends.values() if (rise := _minus(last, first))]
        courses = [f"{milli(first)} → {milli(last)} ({LOOKS[loss].name})" for loss, (first, last) in ends.items()]
        words.append(f"{PROTOCOLS[optimiser]} {', '.join(courses)}")
    if all(len(each) == 2 for each in rises.values()):
        decided = verdict(*rises["adam"], above=tenth, cause=rises["sgd"])
        text = f"from {lowest:g} % to {highest:g} %: {'; '.join(words)}{unit}"
        answers["density-trend"] = Finding(text, on(rises["adam"][0]), decided)

    if gap := found.gap(0, "adam"):
        nll, info_nce = (milli(found.at(0, loss, "adam")) for loss in PAIR)
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


def milli(of_seed: Mapping[int, float]) -> str:
    return f"{estimate(list(of_seed.values())).mean:.2f}" if of_seed else "–"


# Tables and figures


def tables(rows: Sequence[Row]) -> list[Table]:
    found = read(rows)
    exact, ignorant = (by_alignment(found.optimum, value) for value in ("kl", "uniform"))
    body, expected = [], []
    for a in found.alignments:
        cells = [f"{a:g} %"]
        for optimiser in PROTOCOLS:
            gap = found.gap(a, optimiser)
            cells += [*(milli(found.at(a, loss, optimiser)) for loss in PAIR), gap.spread(2, sign=True) if gap else "–"]
        body.append([*cells, *(f"{1e3 * e[a].mean:.2f}" if a in e else "–" for e in (exact, ignorant))])
        if gap := found.gap(a, "sgd", "expected-info-nce"):
            kls = [milli(found.at(a, loss, "sgd")) for loss in EXPECTED]
            expected.append([f"{a:g} %", *kls, gap.spread(2, sign=True)])
    sides = [f"{name}, {part}" for name in ("Adam", "SGD") for part in ("NLL", "InfoNCE", "difference")]
    noise = []
    for a, size in sorted({(_place(row)[0], row.config["batch_size"]) for row in found.expected_noise}):
        ratios = [found.relative_noise(a, size, loss) for loss in EXPECTED[1:]]
        noise.append([f"{a:g} %, batch {size}", *(f"{ratio.mean:.2f}" if ratio else "–" for ratio in ratios)])
    large = [
        [f"{a:g} %, batch {size}, rate {lr}, {LOOKS[loss].name}", f"{1e3 * predicted:.2f}", f"{1e3 * measured:.2f}",
         f"{measured / predicted:.2f}"]
        for (a, size, loss, lr), (predicted, measured) in sorted(found.predictions().items())
        if predicted >= found.limit / 10
    ]  # fmt: skip
    names = [LOOKS[loss].name for loss in EXPECTED]
    thousandths = "KL in thousandths of a nat"
    return [
        Table("density-kl", ("alignment", *sides, "exact fit", "1/K"), body,
              title=f"{thousandths}; difference NLL − InfoNCE"),
        Table("density-expected", ("alignment", *names, "NLL − expected"), expected, title=f"{thousandths}, SGD"),
        Table("density-noise", ("alignment, batch", *names[1:]), noise, title="gradient variance over NLL's"),
        Table("density-predicted", ("setting", "predicted", "measured", "ratio"), large,
              title=f"Excess KL of SGD, {thousandths}"),
        Table("density-soft", *_soft_table(found), title="KL in nats, the true conditional as target"),
        Table("density-speed", *_speed_table(found), title="ms per fit and epoch"),
    ]  # fmt: skip


def _soft_table(found: Density) -> tuple[tuple[str, ...], list[list[str]]]:
    values = ("kl", "best_temperature", "kl_at_best_temperature", "agreement")
    kl, temperature, tempered, right = (by_alignment(found.contrast, value) for value in values)
    exact, ignorant = found.kl("soft-ce", "adam"), by_alignment(found.optimum, "uniform")
    body = [
        [f"{a:g} %", f"{exact[a].mean:.1e}" if a in exact else "–", f"{kl[a].mean:.2g}", f"{temperature[a].mean:.2g}",
         f"{tempered[a].mean:.2g}", f"{ignorant[a].mean:.2g}" if a in ignorant else "–", f"{100 * right[a].mean:.0f}"]
        for a in kl
    ]  # fmt: skip
    names = ("soft target cross-entropy", "soft target InfoNCE", "best temperature", "at that temperature")
    return ("alignment", *names, "predicting 1/K", "right class (%)"), body


def _speed_table(found: Density) -> tuple[tuple[str, ...], list[list[str]]]:
    body = []
    for row in found.speed:
        s = row.result
        body.append(["all fits as one tensor program, every core", f"{1e3 * s['batched']:.1f}", "1.0"])
        body.append(["the same on one core", f"{1e3 * s['batched_on_one_core']:.1f}",
                     f"{s['batched_on_one_core'] / s['batched']:.1f}"])  # fmt: skip
        body.append(["one fit after another, autograd", f"{1e3 * s['plain']:.1f}", f"{s['ratio']:.1f}"])
    return ("program", "ms", "ratio"), body


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = read(rows)
    drawn = [_kl_figure(found)]
    if found.noise and found.grid:
        drawn += [_noise_figure(found), _grid_figure(found)]
    if found.contrast and found.kl("soft-ce", "adam"):
        drawn.append(_soft_figure(found))
    return [*drawn, _maps_figure(found)] if found.maps else drawn


ALIGNMENT, KL, LIMIT = "mode alignment (%)", "KL(p‖q) (nats)", "statistical limit"


def _kl_figure(found: Density) -> Figure:
    top = 1.1 * max(e.high for loss, o in itertools.product(PAIR, PROTOCOLS) for e in found.kl(loss, o).values())

    def draw(axes: Any) -> None:
        for ax, optimiser, title in zip(axes, PROTOCOLS, ("the paper's protocol: Adam", "noisier: SGD"), strict=True):
            curve(ax, by_alignment(found.optimum, "uniform"), name="predicting 1/K", dash="--", band=False)
            for loss in EXPECTED:
                if points := found.kl(loss, optimiser):
                    curve(ax, points, loss=loss)
            level(ax, found.limit, LIMIT)
            label(ax, ALIGNMENT, KL, title=title, ylim=(0, max(top, 1.5 * found.limit)))

    return Figure("density-kl", draw, panels=2)


def _noise_figure(found: Density) -> Figure:
    points = {key: pair for key, pair in found.predictions().items() if pair[1] > 0}
    ends = [value for pair in points.values() for value in pair] or [1e-5, 1e-2]

    def draw(axes: Any) -> None:
        for loss in PAIR:
            curve(axes[0], found.noise_over(lambda result, loss=loss: result[loss]["total"]), loss=loss)
        rest = found.noise_over(lambda result: result["nll"]["total"] - result["nll"]["along_mean"])
        curve(axes[0], rest, name="NLL, off the mean of x", colour=LOOKS["nll"].colour, dash=":")
        label(axes[0], ALIGNMENT, "variance of the batch gradient", title="noise at the optimum")
        limits = 0.5 * min(ends), 2 * max(ends)
        axes[1].plot(limits, limits, color="#808080", ls="--", lw=1)
        for (_, _, loss, _), (predicted, measured) in points.items():
            look, alpha = LOOKS[loss], 1.0 if predicted >= found.limit / 10 else 0.35
            axes[1].plot(predicted, measured, look.marker, color=look.colour, alpha=alpha, mew=0)
        label(axes[1], "predicted (nats)", "measured (nats)", title="excess KL of SGD", log="xy", xlim=limits,
              ylim=limits)  # fmt: skip
        curve(axes[2], found.kl("info-nce", "adam"), loss="info-nce")
        curve(axes[2], found.kl("info-nce-without-noise", "adam"), name="without −log η", dash="--")
        level(axes[2], found.limit, LIMIT)
        label(axes[2], ALIGNMENT, KL, title="control: InfoNCE without −log η", log="y")

    return Figure("density-noise", draw, panels=3)


def _grid_figure(found: Density) -> Figure:
    cells: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in found.grid:
        c = row.config
        cells[_place(row)[0], c["optimiser"], c["loss"], c["lr"], c["batch_size"]].append(row.result)
    alignments, _, _, lrs, sizes = (sorted(set(values)) for values in zip(*cells, strict=True))
    panels = list(itertools.product(alignments, OPTIMISERS, PAIR))

    def cell(*key: Any) -> tuple[float | None, str]:
        results = cells.get(key, [])
        numbers = [r["kl_tail"] / found.limit for r in results if r["kl_tail"] is not None]
        if not numbers:
            return None, "diverged" if results else ""
        ratio = statistics.fmean(numbers)
        falling = sum(r["still_falling"] for r in results) > len(results) / 2
        return math.log10(ratio), f"{ratio:.{2 if ratio < 10 else 0}f}" + (" ↓" if falling else "")

    def draw(axes: Any) -> None:
        for ax, (alignment, optimiser, loss) in zip(axes, panels, strict=True):
            found_cells = [[cell(alignment, optimiser, loss, lr, size) for lr in lrs] for size in sizes]
            values, texts = ([[one[part] for one in row] for row in found_cells] for part in (0, 1))
            heat(ax, [f"{lr:g}" for lr in lrs], list(map(str, sizes)), values, texts, 0, 1)
            label(ax, "learning rate", "batch", title=f"{LOOKS[loss].name}, {optimiser}, {alignment:g} %")

    return Figure("density-grid", draw, panels=len(panels), columns=4, size=(3.0, 2.4))


def _soft_figure(found: Density) -> Figure:
    look = LOOKS["soft-target-info-nce"]

    def draw(axes: Any) -> None:
        curve(axes[0], found.kl("soft-ce", "adam"), loss="soft-ce", band=False)
        curve(axes[0], by_alignment(found.contrast, "kl"), loss="soft-target-info-nce", band=False)
        tempered = by_alignment(found.contrast, "kl_at_best_temperature")
        curve(axes[0], tempered, name="at its best temperature", colour=look.colour, dash=":", band=False)
        curve(axes[0], by_alignment(found.optimum, "uniform"), name="predicting 1/K", dash="--", band=False)
        label(axes[0], ALIGNMENT, KL, title="true conditional as soft target", log="y", ylim=(1e-7, 200))
        curve(axes[1], found.kl("soft-dist-info-nce", "adam", "kl_smoothed"), loss="soft-dist-info-nce")
        floor = by_alignment(found.optimum, "smoothed_floor")
        curve(axes[1], floor, name="best linear model", dash=":", band=False)
        label(axes[1], ALIGNMENT, "KL(p^ε‖q) (nats)", title="labels redrawn with smoothing", log="y")

    return Figure("density-soft", draw, panels=2)


def _maps_figure(found: Density) -> Figure:
    def draw(axes: Any) -> None:
        for ax, row in zip(axes, found.maps, strict=True):
            r = row.result
            ax.scatter(r["x"], r["y"], c=r["labels"], cmap="viridis", s=5, lw=0, alpha=0.85, rasterized=True)
            ax.set_axis_off()
            ax.set_title(f"{_place(row)[0]:g} %")

    return Figure("density-maps", draw, panels=len(found.maps), size=(2.4, 2.3))


EXPERIMENT = Experiment(
    name="density",
    question="Does InfoNCE estimate parameters better than NLL, and why?",
    minutes=3,
    presets={"quick": QUICK, "paper": Options()},
    runs=runs,
    perform=perform,
    alone=lambda run: isinstance(run, Speed),
    groups=groups,
    perform_group=perform_group,
    claims=CLAIMS,
    findings=findings,
    tables=tables,
    figures=figures,
)
