"""Does InfoNCE estimate parameters better than NLL? The paper's first figure and its cause.

Linear softmax models are fitted to mixtures of Gaussians whose true conditional is known, from orthogonal modes (0 %
alignment) to almost parallel ones (80 %), and scored by KL(p‖q). The parts: fits at the paper's protocol (Adam, small
steps) and with noisier steps (SGD); the soft losses; the exact maximum-likelihood fit; a grid of optimisers, rates and
batch sizes; the gradient noise at the optimum and the error that it predicts.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from experiments.density.fits import Loss, Optimiser
from experiments.density.mixture import statistical_limit
from experiments.density.parts import Data, Fit, Map, Noise, Optimum, Run, Speed, groups, perform
from experiments.harness.claims import Finding, verdict
from experiments.harness.experiment import Experiment
from experiments.harness.figures import LOOKS, SERIES, Figure, curve, heat, label, level
from experiments.harness.options import option
from experiments.harness.rows import Row
from experiments.harness.statistics import Estimate, estimate, largest, over
from experiments.harness.tables import Table

PAIR: tuple[Loss, ...] = ("nll", "info-nce")
EXPECTED: tuple[Loss, ...] = (*PAIR, "expected-info-nce")
ADAM: tuple[Optimiser, float] = ("adam", 1e-3)
"""The paper's protocol: optimiser and learning rate."""
SGD: tuple[Optimiser, float] = ("sgd", 0.1)
PROTOCOLS = {"adam": "with Adam, small steps", "sgd": "with SGD, noisy steps"}
BATCH = 1024
SMOOTHING = 0.1  # ε of soft distribution InfoNCE
STOPPING: dict[str, Any] = {"patience": 20, "tolerance": 1e-5}
"""Epochs without progress after which a fit stops, and the fall of the training loss, in nats, that is progress."""
GRID_RATES = (1e-3, 1e-2, 1e-1)

# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True)
class Options:
    seeds: int = option(10, "number of seeds; a seed fixes the data and the order of batches", least=1)
    alignments: tuple[float, ...] = option(
        tuple(float(a) for a in range(0, 90, 10)), "mode alignments in %", least=0, below=100, fewest=1
    )
    epochs: int = option(500, "epochs of a fit, at most", least=1)
    noise_seeds: int = option(3, "seeds for which gradient noise is measured and the control fitted")
    noise_epochs: int = option(10, "epochs of batches over which gradient noise is measured", least=1)
    maps: tuple[float, ...] = option((0.0, 20.0, 50.0, 80.0), "alignments in % drawn as t-SNE maps", least=0, below=100)
    grid_alignments: tuple[float, ...] = option((20.0, 80.0), "of the grid of optimisers, in %", least=0, below=100)
    grid_seeds: int = option(3, "its seeds", least=1)
    grid_epochs: int = option(100, "its epochs", least=4)
    grid_batches: tuple[int, ...] = option((64, 256, 1024, 4096), "its batch sizes", least=1, most=Data.num_samples)
    soft_alignments: tuple[float, ...] = option(
        (0.0, 20.0, 50.0, 80.0), "of soft target InfoNCE, whose step costs N² instead of N·K", least=0, below=100
    )
    soft_seeds: int = option(3, "its seeds", least=1)
    soft_epochs: int = option(80, "its epochs, at most", least=1)


QUICK = Options(
    seeds=2, alignments=(0.0, 40.0, 80.0), epochs=60, noise_seeds=1, noise_epochs=4, maps=(0.0, 80.0),
    grid_alignments=(80.0,), grid_seeds=1, grid_epochs=20, grid_batches=(256, 1024),
    soft_alignments=(0.0, 80.0), soft_seeds=1, soft_epochs=10,
)  # fmt: skip


def runs(options: Options) -> list[Run]:
    o = options
    wanted: list[Run] = []

    def noises(here: Data, batch: int, lrs: tuple[float, ...]) -> list[Run]:
        usual = Noise(here, batch, o.noise_epochs, lrs)
        return [usual, Noise(here, batch, o.noise_epochs, lrs, losses=EXPECTED), Optimum(here, SMOOTHING)]

    for alignment, seed in product(o.alignments, range(o.seeds)):
        here = Data(alignment, seed)
        fit = partial(Fit, here, batch_size=BATCH, epochs=o.epochs, **STOPPING)
        wanted += [fit(loss, *way) for loss, way in product(PAIR, (ADAM, SGD))]
        wanted += [fit("expected-info-nce", *SGD), fit("soft-ce", *ADAM), Optimum(here, SMOOTHING)]
        wanted.append(fit("soft-dist-info-nce", *ADAM, smoothing=SMOOTHING))
        if seed < o.noise_seeds:
            wanted += [fit("info-nce-without-noise", *ADAM), *noises(here, BATCH, SGD[1:])]
    for alignment, seed in product(o.soft_alignments, range(o.soft_seeds)):
        here = Data(alignment, seed)
        wanted.append(Fit(here, "soft-target-info-nce", *ADAM, BATCH, o.soft_epochs, **STOPPING))
    tail = max(min(5, o.grid_epochs // 2), o.grid_epochs // 10)
    for alignment, seed, batch in product(o.grid_alignments, range(o.grid_seeds), o.grid_batches):
        here = Data(alignment, seed)
        wanted += noises(here, batch, GRID_RATES)
        for loss, optimiser, lr in product(PAIR, PROTOCOLS, GRID_RATES):
            wanted.append(Fit(here, loss, optimiser, lr, batch, o.grid_epochs, tail=tail))
    wanted += [Map(Data(alignment, 0)) for alignment in o.maps]
    return [*wanted, Speed(Data(o.alignments[-1], 0), fits=20, epochs=3, batch_size=BATCH)]


# --------------------------------------------------------------------------------------------------------- the numbers


LIMIT = statistical_limit(Data.num_modes, Data.dimension, Data.num_samples)
"""KL, in nats, that sampled labels leave to the best of fits."""


class Density:
    """Rows by part; the fits until they stop are those of the commonest length."""

    def __init__(self, rows: Sequence[Row]) -> None:
        of_part: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            of_part[row.config["part"]].append(row)
        fits = of_part["fit"]
        self.fits = largest([row for row in fits if row.config["patience"]], "epochs")
        if not self.of("nll", "adam"):
            raise ValueError("no finished fit of NLL yet")
        self.optimum, self.speed = of_part["optimum"], of_part["speed"][-1:]
        self.maps = sorted(of_part["map"], key=alignment_of)
        self.noise = [row for row in of_part["noise"] if "losses" not in row.config]
        self.expected_noise = [row for row in of_part["noise"] if "losses" in row.config]
        self.grid = largest([row for row in fits if row.config["tail"]], "epochs")
        self.soft = largest([row for row in fits if row.config["loss"] == "soft-target-info-nce"], "epochs")
        self.alignments = list(self.kl("nll", "adam"))

    def of(self, loss: str, optimiser: str) -> list[Row]:
        return [row for row in self.fits if (row.config["loss"], row.config["optimiser"]) == (loss, optimiser)]

    def kl(self, loss: str, optimiser: str, value: str = "kl") -> dict[float, Estimate]:
        return by_alignment(self.of(loss, optimiser), value)

    def milli(self, alignment: float, loss: str, optimiser: str) -> str:
        """Mean KL in thousandths."""
        return cell(self.kl(loss, optimiser), alignment, factor=1e3)

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
        best = {_place(row): row.result["kl"] for row in self.optimum}
        noise = {(_place(row), row.config["batch_size"]): row.result for row in self.noise}
        found: dict[Any, list[tuple[float, float, bool]]] = defaultdict(list)
        for row in self.grid:
            c, r, place, rate = row.config, row.result, _place(row), f"{row.config['lr']:g}"
            excess = noise.get((place, c["batch_size"]), {}).get(c["loss"], {}).get("excess_kl", {}).get(rate)
            if c["optimiser"] == "sgd" and excess and place in best:
                measured = excess, r["kl_tail"] - best[place], r["still_falling"]
                found[alignment_of(row), c["batch_size"], c["loss"], rate].append(measured)
        means = {key: tuple(map(statistics.fmean, zip(*each, strict=True))) for key, each in found.items()}
        return {key: (predicted, measured) for key, (predicted, measured, falling) in means.items() if not falling}


def _place(row: Row) -> tuple[float, int]:
    return alignment_of(row), row.config["data"]["seed"]


def alignment_of(row: Row) -> float:
    return float(row.config["data"]["alignment"])


def by_alignment(rows: Sequence[Row], value: str | Callable[[Mapping[str, Any]], float]) -> dict[float, Estimate]:
    """Mean of a measured value over the rows of each alignment."""
    get = value if callable(value) else lambda result: result[value]
    return over(rows, alignment_of, lambda row: float(get(row.result)))


def cell(of: Mapping[Any, Estimate], at: Any, shown: str = ".2f", factor: float = 1.0) -> str:
    return f"{factor * of[at].mean:{shown}}" if at in of else "–"


def _minus(a: dict[int, float], b: dict[int, float]) -> Estimate | None:
    seeds = sorted(a.keys() & b.keys())
    return estimate([a[seed] - b[seed] for seed in seeds]) if seeds else None


# ------------------------------------------------------------------------------------------------------------- claims
# "Better" and "worse" mean by more than a tenth of the statistical limit.


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = Density(rows)
    lowest, highest = min(found.alignments), max(found.alignments)
    tenth, unit = 100 * LIMIT, " (thousandths of a nat)"
    answers: dict[str, Finding] = {}

    def on(gap: Estimate) -> str:
        return f"mixtures of {Data.num_modes} Gaussians, {gap.count} seeds"

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
    if found.soft:
        answers["density-soft-target"] = _soft_target(found)
    gap = found.gap(highest, "sgd", "expected-info-nce")
    beside = found.gap(highest, "sgd", "info-nce", "expected-info-nce")
    if gap and beside:
        text = (f"NLL − expected InfoNCE at {highest:g} %: {gap.signed()}, expected InfoNCE − InfoNCE "
                f"{beside.signed()}, {PROTOCOLS['sgd']}{unit}")  # fmt: skip
        answers["density-expected"] = Finding(text, on(gap), verdict(gap, above=tenth, new=True))
    return answers


def _soft_target(found: Density) -> Finding:
    errors = by_alignment(found.soft, "kl")
    worst = max(errors, key=lambda alignment: errors[alignment].mean)
    tempered, temperature = (
        by_alignment(found.soft, value)[worst].mean for value in ("kl_at_best_temperature", "best_temperature")
    )
    text = f"KL {errors[worst].mean:.2g} nats at {worst:g} % alignment; {tempered:.2g} with scores divided by "
    text += f"{temperature:.2g}"
    if ignorant := by_alignment(found.optimum, "uniform").get(worst):
        text += f"; always predicting 1/K gives {ignorant.mean:.2g}"
    e, epochs = errors[worst], found.soft[0].config["epochs"]
    on = f"the true conditional as soft target, {e.count} seeds, at most {epochs} epochs"
    return Finding(text, on, verdict(e, below=2 * LIMIT))


# --------------------------------------------------------------------------------------------------- tables and figures


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
        if predicted >= LIMIT / 10
    ]  # fmt: skip
    ce = found.kl("soft-ce", "adam")
    kl, temperature, tempered, right = (
        by_alignment(found.soft, v) for v in ("kl", "best_temperature", "kl_at_best_temperature", "agreement")
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


ALIGNMENT, KL = "mode alignment (%)", "KL(p‖q) (nats)"


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = Density(rows)
    drawn = [Figure("density-kl", partial(_draw_kl, found), panels=2)]
    if found.noise and found.grid:
        panels = 4 * len({alignment_of(row) for row in found.grid})
        drawn.append(Figure("density-noise", partial(_draw_noise, found), panels=3))
        drawn.append(Figure("density-grid", partial(_draw_grid, found), panels, columns=4, size=(3.1, 2.4)))
    if found.soft and found.kl("soft-ce", "adam"):
        drawn.append(Figure("density-soft", partial(_draw_soft, found), panels=2))
    if found.maps:
        drawn.append(Figure("density-maps", partial(_draw_maps, found), len(found.maps), size=(2.4, 2.3)))
    return drawn


def _draw_kl(found: Density, axes: Any) -> None:
    top = 1.1 * max(e.high for loss, o in product(PAIR, PROTOCOLS) for e in found.kl(loss, o).values())
    for ax, optimiser, title in zip(axes, PROTOCOLS, ("the paper's protocol: Adam", "noisier: SGD"), strict=True):
        curve(ax, by_alignment(found.optimum, "uniform"), name="predicting 1/K", colour=SERIES[2], dash=":", band=False)
        for loss in EXPECTED:  # InfoNCE is seen between the dashes of expected InfoNCE
            if points := found.kl(loss, optimiser):
                curve(ax, points, loss=loss, dash="--" if loss == "expected-info-nce" else "-")
        level(ax, LIMIT, "statistical limit")
        label(ax, ALIGNMENT, KL, title=title, ylim=(0, max(top, 1.5 * LIMIT)))


def _draw_noise(found: Density, axes: Any) -> None:
    noise = [row for row in found.noise if row.config["batch_size"] == BATCH]
    for loss in PAIR:
        curve(axes[0], by_alignment(noise, lambda result, loss=loss: result[loss]["total"]), loss=loss)
    rest = by_alignment(noise, lambda result: result["nll"]["total"] - result["nll"]["along_mean"])
    curve(axes[0], rest, name="NLL, off the mean of x", colour=LOOKS["nll"].colour, dash=":")
    label(axes[0], ALIGNMENT, "variance of the batch gradient", title="noise at the optimum")
    points = {key: pair for key, pair in found.predictions().items() if pair[1] > 0}
    ends = [value for pair in points.values() for value in pair] or [1e-5, 1e-2]
    limits = 0.5 * min(ends), 2 * max(ends)
    curve(axes[1], dict(zip(limits, limits, strict=True)), name="as predicted", dash="--")
    for loss in PAIR:
        pairs = sorted(pair for key, pair in points.items() if key[2] == loss)
        curve(axes[1], dict(pair for pair in pairs if pair[0] >= LIMIT / 10), loss=loss, dash="")
        for faint in (pair for pair in pairs if pair[0] < LIMIT / 10):
            axes[1].plot(*faint, LOOKS[loss].marker, color=LOOKS[loss].colour, alpha=0.4, mew=0, ms=4)
    names = "predicted (nats)", "measured (nats)"
    title = "excess KL of SGD; faint: below limit/10"
    label(axes[1], *names, title=title, log="xy", xlim=limits, ylim=limits)
    curve(axes[2], found.kl("info-nce", "adam"), loss="info-nce")
    curve(axes[2], found.kl("info-nce-without-noise", "adam"), name="InfoNCE without −log η", dash="--")
    level(axes[2], LIMIT, "statistical limit")
    label(axes[2], ALIGNMENT, KL, title="control: InfoNCE without −log η", log="y")


def _draw_grid(found: Density, axes: Any) -> None:
    cells: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for row in found.grid:
        c = row.config
        cells[alignment_of(row), c["optimiser"], c["loss"], c["lr"], c["batch_size"]].append(row.result)
    alignments, _, _, lrs, sizes = (sorted(set(values)) for values in zip(*cells, strict=True))

    def ratio(*key: Any) -> tuple[float | None, str]:
        results = cells.get(key, [])
        numbers = [r["kl_tail"] / LIMIT for r in results if r["kl_tail"] is not None]
        if not numbers:
            return None, "diverged" if results else ""
        mean = statistics.fmean(numbers)
        falling = sum(r["still_falling"] for r in results) > len(results) / 2
        return math.log10(mean), f"{mean:.{2 if mean < 10 else 0}f}" + (" ↓" if falling else "")

    optimisers = zip(PROTOCOLS, ("Adam", "SGD"), strict=True)
    for ax, (alignment, (optimiser, name), loss) in zip(axes, product(alignments, optimisers, PAIR), strict=True):
        shown = [[ratio(alignment, optimiser, loss, lr, size) for lr in lrs] for size in sizes]
        values, texts = ([[one[part] for one in row] for row in shown] for part in (0, 1))
        heat(ax, [f"{lr:g}" for lr in lrs], list(map(str, sizes)), values, texts, 0, 1)
        label(ax, "learning rate", "batch", title=f"{LOOKS[loss].name}, {name}, alignment {alignment:g} %")
    axes[0].figure.suptitle("KL over the statistical limit: yellow 1 or less, dark blue 10 or more. ↓ still falling",
                            fontsize=10, x=0.01, ha="left")  # fmt: skip


def _draw_soft(found: Density, axes: Any) -> None:
    tempered = by_alignment(found.soft, "kl_at_best_temperature")
    colour = LOOKS["soft-target-info-nce"].colour
    curve(axes[0], found.kl("soft-ce", "adam"), loss="soft-ce", band=False)
    curve(axes[0], by_alignment(found.soft, "kl"), loss="soft-target-info-nce", band=False)
    curve(axes[0], tempered, name="at its best temperature", colour=colour, dash=":", band=False)
    curve(axes[0], by_alignment(found.optimum, "uniform"), name="predicting 1/K", dash="--", band=False)
    label(axes[0], ALIGNMENT, KL, title="true conditional as soft target", log="y", ylim=(1e-16, 200))
    curve(axes[1], found.kl("soft-dist-info-nce", "adam", "kl_smoothed"), loss="soft-dist-info-nce")
    floor = by_alignment(found.optimum, "smoothed_floor")
    curve(axes[1], floor, name="best linear model", dash=":", band=False)
    label(axes[1], ALIGNMENT, r"KL(p$^\epsilon$‖q) (nats)", title="labels redrawn with smoothing", log="y")


def _draw_maps(found: Density, axes: Any) -> None:
    for ax, row in zip(axes, found.maps, strict=True):
        r = row.result
        ax.scatter(r["x"], r["y"], c=r["labels"], cmap="tab20", s=5, lw=0, alpha=0.85, rasterized=True)
        ax.set_axis_off()
        ax.set_title(f"alignment {alignment_of(row):g} %")
    axes[0].figure.supxlabel("t-SNE maps of the points; a colour per class", fontsize=9.5)


EXPERIMENT = Experiment(
    name="density", question="Does InfoNCE estimate parameters better than NLL, and why?", minutes=3,
    presets={"quick": QUICK, "paper": Options()}, runs=runs, groups=groups, perform_group=perform,
    alone=lambda run: isinstance(run, Speed), findings=findings, tables=tables, figures=figures,
)  # fmt: skip
