"""Rows of the density study to errors by alignment, gaps between losses, noise, what it predicts, and verdicts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.comparison import over
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.studies.density.error import statistical_limit

PAIR = ("nll", "info-nce")
EXPECTED = "expected-info-nce"
PROTOCOLS = {"adam": "with Adam, small steps", "sgd": "with SGD, noisy steps"}
FEWEST_SEEDS = 3  # for a verdict

BySeed = dict[int, float]
ByAlignment = dict[float, Estimate]


@dataclass(frozen=True)
class Cell:
    """A setting of the grid: mean KL over the limit (None: diverged), and whether most fits are still falling."""

    ratio: float | None
    falling: bool


@dataclass(frozen=True)
class Prediction:
    """Excess KL of SGD in a setting of the grid."""

    loss: str
    predicted: float
    measured: float
    where: str


@dataclass(frozen=True)
class Density:
    """The protocol (epochs, batch size, stopping, sizes) that most fits of NLL have, and the rows of the same sizes.

    Attributes:
        fits: at that protocol.
        optimum, maps: exact fits, and t-SNE maps.
        noise: measured gradient noise, at any batch size.
        expected_noise: that of expected InfoNCE beside NLL and InfoNCE, likewise.
        grid: fits at fixed epochs, of the most epochs.
        contrast: fits of soft target InfoNCE, of the most epochs.
        speed: seconds per fit and epoch, batched and one after another; empty if not measured.
    """

    fits: list[Row]
    optimum: list[Row]
    noise: list[Row]
    expected_noise: list[Row]
    grid: list[Row]
    contrast: list[Row]
    maps: list[Row]
    speed: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        return self.fits[0].config

    @property
    def limit(self) -> float:
        """The statistical limit of the KL."""
        return statistical_limit(*(self.config["data"][name] for name in ("num_modes", "dimension", "num_samples")))

    @property
    def alignments(self) -> list[float]:
        return list(self.kl("nll"))

    def of(self, loss: str, optimiser: str) -> list[Row]:
        """The fits of a loss, at the learning rate that most fits of NLL with this optimiser have."""
        rates = Counter(row.config["lr"] for row in self.fits if _how(row) == ("nll", optimiser))
        rate = max(rates, key=rates.__getitem__, default=None)
        return [row for row in self.fits if _how(row) == (loss, optimiser) and row.config["lr"] == rate]

    def kl(self, loss: str, optimiser: str = "adam", value: str = "kl") -> ByAlignment:
        return by_alignment(self.of(loss, optimiser), value)

    def at(self, alignment: float, loss: str, optimiser: str) -> BySeed:
        """KL by seed."""
        there = ((_place(row), row.result["kl"]) for row in self.of(loss, optimiser))
        return {seed: kl for (place, seed), kl in there if place == alignment}

    def gap(self, alignment: float, optimiser: str, other: str = "info-nce") -> list[float]:
        """KL of NLL minus that of InfoNCE (or another loss), paired: the same data and the same batches."""
        return _paired(*(self.at(alignment, loss, optimiser) for loss in ("nll", other)))

    def exact(self, value: str) -> ByAlignment:
        return by_alignment(self.optimum, value)

    def noise_over(self, value: Callable[[dict[str, Any]], float]) -> ByAlignment:
        """Of the gradient noise at the protocol's batch size."""
        return by_alignment([r for r in self.noise if r.config["batch_size"] == self.config["batch_size"]], value)

    def noise_places(self) -> list[tuple[float, int]]:
        """Alignments and batch sizes at which the gradient noise of expected InfoNCE was measured."""
        return sorted({(_place(row)[0], row.config["batch_size"]) for row in self.expected_noise})

    def relative_noise(self, alignment: float, batch_size: int) -> dict[str, float]:
        """Variance of the batch gradient over that of NLL, mean over seeds, of the losses measured together."""
        there = [r for r in self.expected_noise if (_place(r)[0], r.config["batch_size"]) == (alignment, batch_size)]
        return {
            loss: sum(row.result[loss]["total"] / row.result["nll"]["total"] for row in there) / len(there)
            for loss in (there[0].config["losses"] if there else ())
        }

    def cells(self) -> dict[tuple[float, str, str, float, int], Cell]:
        """By alignment, optimiser, loss, learning rate and batch size."""
        groups: dict[tuple[float, str, str, float, int], list[dict[str, Any]]] = defaultdict(list)
        for row in self.grid:
            c = row.config
            groups[_place(row)[0], c["optimiser"], c["loss"], c["lr"], c["batch_size"]].append(row.result)
        cells = {}
        for key, results in groups.items():
            numbers = [r["kl_tail"] for r in results if r["kl_tail"] is not None]
            ratio = sum(numbers) / len(numbers) / self.limit if numbers else None
            cells[key] = Cell(ratio, sum(r["still_falling"] for r in results) > len(results) / 2)
        return cells

    def predictions(self) -> list[Prediction]:
        """Every setting of SGD on the grid whose training loss has stopped falling.

        Settings are chosen by that alone, never by the excess they show, which can be negative: a fit whose slow
        directions have not converged may lie below the optimum's KL.
        """
        excess = {
            (*_place(row), row.config["batch_size"], loss, lr): value
            for row in self.noise
            for loss in PAIR
            for lr, value in row.result[loss]["excess_kl"].items()
        }
        optimum = {_place(row): row.result["kl"] for row in self.optimum}
        settings: dict[Any, list[tuple[float, float, bool]]] = defaultdict(list)
        for row in self.grid:
            c, place = row.config, _place(row)
            setting = c["batch_size"], c["loss"], f"{c['lr']:g}"
            predicted = excess.get((*place, *setting))
            if c["optimiser"] == "sgd" and predicted and place in optimum:
                measured = row.result["kl_tail"] - optimum[place]
                settings[place[0], *setting].append((predicted, measured, row.result["still_falling"]))
        points = []
        for (alignment, batch_size, loss, lr), found in settings.items():
            predicted, measured, falling = (sum(column) / len(found) for column in zip(*found, strict=True))
            if not falling:
                where = f"{alignment:g} %, batch {batch_size}, rate {lr}"
                points.append(Prediction(loss, predicted, measured, where))
        return points


def read(rows: Sequence[Row]) -> Density:
    fits = [row for row in rows if row.config["part"] == "fit"]
    protocols = Counter(_protocol(row) for row in fits if row.config["loss"] == "nll" and row.config["patience"])
    if not protocols:
        raise ValueError("density: no finished fit of NLL yet; run softnce study density again")
    protocol = max(protocols, key=lambda key: (protocols[key], key[0]))

    def of(part: str) -> list[Row]:
        return [row for row in rows if row.config["part"] == part and _sizes(row) == protocol[-1]]

    return Density(
        fits=[row for row in fits if _protocol(row) == protocol],
        optimum=of("optimum"),
        noise=[row for row in of("noise") if "losses" not in row.config],
        expected_noise=[row for row in of("noise") if "losses" in row.config],
        grid=_longest(row for row in of("fit") if row.config["tail"]),
        contrast=_longest(row for row in of("fit") if row.config["loss"] == "soft-target-info-nce"),
        maps=sorted(of("map"), key=lambda row: _place(row)[0]),
        speed=next((row.result for row in reversed(rows) if row.config["part"] == "speed"), {}),
    )


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = read(rows)
    answers = {"density-gap": _gap(found), "density-trend": _trend(found)}
    if 0 in found.alignments:
        answers["density-orthogonal"] = _orthogonal(found)
    if found.contrast:
        answers["density-soft-target"] = _soft_target(found)
    if found.of(EXPECTED, "sgd"):
        answers["density-expected"] = _expected(found)
    return answers


def _expected(found: Density) -> Finding:
    highest = max(found.alignments)
    gap, beside = found.gap(highest, "sgd", EXPECTED), _paired(
        found.at(highest, EXPECTED, "sgd"), found.at(highest, "info-nce", "sgd")
    )  # fmt: skip
    ours = f"""NLL − expected InfoNCE at {highest:g} %: {interval(gap)}, expected InfoNCE − InfoNCE {interval(beside)},
        {PROTOCOLS["sgd"]} (thousandths of a nat)"""
    verdict: Verdict = "undecided"
    if len(gap) >= FEWEST_SEEDS:
        e = estimate(gap)
        surely = e.low > 0 and e.mean > found.limit / 10
        verdict = "beyond" if surely else "not reproduced" if e.high < found.limit / 10 else "undecided"
    return Finding(ours, _on(found, gap), verdict)


def _gap(found: Density) -> Finding:
    highest = max(found.alignments)
    gaps = {optimiser: found.gap(highest, optimiser) for optimiser in PROTOCOLS}
    words = "; ".join(f"{interval(gap)} {PROTOCOLS[optimiser]}" for optimiser, gap in gaps.items())
    ours = f"NLL − InfoNCE at {highest:g} %: {words} (thousandths of a nat)"
    return Finding(ours, _on(found, gaps["adam"]), _verdict(found.limit, *([gap] for gap in gaps.values())))


def _trend(found: Density) -> Finding:
    ends = min(found.alignments), max(found.alignments)
    rises: list[list[list[float]]] = []
    words = []
    for optimiser in PROTOCOLS:
        first, last = ({loss: found.at(end, loss, optimiser) for loss in PAIR} for end in ends)
        rises.append([_paired(last[loss], first[loss]) for loss in PAIR])
        courses = [f"{milli(first[loss])} → {milli(last[loss])} ({TITLES[loss]})" for loss in PAIR]
        words.append(f"{PROTOCOLS[optimiser]} {', '.join(courses)}")
    ours = f"from {ends[0]:g} % to {ends[1]:g} %: {'; '.join(words)} (thousandths of a nat)"
    return Finding(ours, _on(found, rises[0][0]), _verdict(found.limit, *rises))


def _verdict(limit: float, small_steps: list[list[float]], noisy_steps: list[list[float]]) -> Verdict:
    """On the claim that all of these differences are positive: by more than a tenth of the limit, or not."""
    there: list[bool | None] = []
    for differences in (small_steps, noisy_steps):
        if any(len(values) < FEWEST_SEEDS for values in differences):
            there.append(None)
            continue
        found = [estimate(values) for values in differences]
        surely = all(e.low > 0 and e.mean > limit / 10 for e in found)
        there.append(True if surely else False if any(e.high < limit / 10 for e in found) else None)
    match there:
        case [True, _]:
            return "reproduced"
        case [False, True]:
            return "explained"
        case [False, False]:
            return "not reproduced"
    return "undecided"


def _orthogonal(found: Density) -> Finding:
    gap, margin = found.gap(0, "adam"), found.limit / 10
    nll, info_nce = (milli(found.at(0, loss, "adam")) for loss in PAIR)
    ours = f"NLL {nll}, InfoNCE {info_nce}; difference {interval(gap)} (thousandths of a nat)"
    verdict: Verdict = "undecided"
    if len(gap) >= FEWEST_SEEDS:
        e = estimate(gap)
        if -margin < e.low and e.high < margin:
            verdict = "reproduced"
        elif e.low > margin or e.high < -margin:
            verdict = "not reproduced"
    return Finding(ours, _on(found, gap), verdict)


def _soft_target(found: Density) -> Finding:
    errors = by_alignment(found.contrast, "kl")
    worst = max(errors, key=lambda alignment: errors[alignment].mean)
    e, ignorant = errors[worst], found.exact("uniform").get(worst)
    tempered, temperature = (
        by_alignment(found.contrast, value)[worst].mean for value in ("kl_at_best_temperature", "best_temperature")
    )
    ours = f"KL {e.mean:.2g} nats at {worst:g} % alignment; {tempered:.2g} with scores divided by {temperature:.2g}"
    if ignorant:
        ours += f"; always predicting 1/K gives {ignorant.mean:.2g}"
    verdict: Verdict = "undecided"
    if e.count >= FEWEST_SEEDS:
        if e.high < 2 * found.limit:
            verdict = "reproduced"
        elif ignorant and e.low > ignorant.mean:
            verdict = "not reproduced"
    epochs = found.contrast[0].config["epochs"]
    on = f"the true conditional as soft target, {counted(e.count, 'seed')}, at most {epochs} epochs"
    return Finding(ours, on, verdict)


def _on(found: Density, values: Sequence[float]) -> str:
    return f"mixtures of {found.config['data']['num_modes']} Gaussians, {counted(len(values), 'seed')}"


def by_alignment(rows: Sequence[Row], value: str | Callable[[dict[str, Any]], float]) -> ByAlignment:
    """Mean of a measured value over the rows of each alignment."""
    read = itemgetter(value) if isinstance(value, str) else value
    return over(rows, lambda row: _place(row)[0], lambda row: float(read(row.result)))


def milli(of_seed: BySeed) -> str:
    """Mean in thousandths."""
    return f"{1e3 * estimate(list(of_seed.values())).mean:.2f}" if of_seed else "–"


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval in thousandths."""
    return signed(estimate([1e3 * value for value in values])) if values else "–"


def _paired(a: BySeed, b: BySeed) -> list[float]:
    return [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]


def _longest(rows: Iterable[Row]) -> list[Row]:
    """The rows of the most epochs."""
    found = list(rows)
    most = max((row.config["epochs"] for row in found), default=0)
    return [row for row in found if row.config["epochs"] == most]


def _place(row: Row) -> tuple[float, int]:
    return float(row.config["data"]["alignment"]), row.config["data"]["seed"]


def _how(row: Row) -> tuple[str, str]:
    return row.config["loss"], row.config["optimiser"]


def _sizes(row: Row) -> tuple[int, ...]:
    sizes = sorted(row.config["data"].items())
    return tuple(value for name, value in sizes if name not in ("alignment", "seed"))


def _protocol(row: Row) -> tuple[Any, ...]:
    c = row.config
    return c["epochs"], c["batch_size"], c["patience"], c["tolerance"], _sizes(row)
