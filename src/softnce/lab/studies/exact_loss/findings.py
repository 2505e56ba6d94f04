"""Errors of trained models with and without draws, what a draw says, and what it costs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.comparison import mean
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate
from softnce.lab.experiment.text import counted
from softnce.lab.studies.exact_loss.distribution import SMOOTHING
from softnce.lab.studies.exact_loss.training import CLASSES, Kind, Method, Problem

FEWEST_SEEDS = 3  # for a verdict
Shapes = dict[int, dict[str, Any]]
"""What :func:`~softnce.lab.studies.exact_loss.distribution.shape` measured, by the number of classes."""
CE, DRAWN, EXPECTED = Method("soft-ce"), Method("soft-dist-info-nce"), Method("expected-info-nce")
TARGETS: dict[Problem, str] = {"labels": "smoothed labels", "conditional": "the true conditional as target"}


@dataclass(frozen=True)
class Trainings:
    """The trainings by problem and method, of the most epochs and of the seeds that all methods of a problem have."""

    rows: dict[Problem, dict[Method, list[Row]]]

    @property
    def seeds(self) -> int:
        return len({row.config["seed"] for found in self.rows.values() for rows in found.values() for row in rows})

    def score(self, problem: Problem, method: Method, value: str) -> Estimate:
        """Mean over seeds of what was measured under that name."""
        return mean(self.rows[problem][method], lambda row: row.result[value])

    def error(self, problem: Problem, method: Method) -> Estimate:
        """KL(p‖q), for digits the negative log-likelihood, at the best temperature."""
        return self.score(problem, method, "divergence_at_temperature")

    def once(self, problem: Problem, method: Method, value: str) -> float | None:
        """What was measured for one seed only."""
        found = [row.result[value] for row in self.rows[problem][method] if row.result.get(value) is not None]
        return found[0] if found else None

    def course(self, problem: Problem, method: Method) -> list[float]:
        """Test accuracy after each epoch, mean over seeds."""
        courses = [row.result["course"] for row in self.rows[problem][method]]
        return [sum(values) / len(values) for values in zip(*courses, strict=True)]

    def of_kind(self, problem: Problem, kind: str) -> list[Method]:
        return [method for method in self.rows.get(problem, {}) if method.kind == kind]

    def best(self, problem: Problem, kind: str) -> Method | None:
        """The strength of the least error."""
        return min(self.of_kind(problem, kind), key=lambda method: self.error(problem, method).mean, default=None)


@dataclass(frozen=True)
class Cost:
    """At one number of classes: milliseconds per step by method, and the time of draws beside Dirichlet's."""

    rows: int
    milliseconds: dict[Method, float]
    times_dirichlet: float


def trainings(rows: Sequence[Row]) -> Trainings:
    epochs: dict[str, int] = defaultdict(int)
    for row in of_part(rows, "training"):
        epochs[row.config["problem"]] = max(epochs[row.config["problem"]], row.config["epochs"])
    found: dict[Problem, dict[Method, list[Row]]] = {
        problem: defaultdict(list) for problem in get_args(Problem) if problem in epochs
    }
    for row in of_part(rows, "training"):
        if row.config["epochs"] == epochs[row.config["problem"]]:
            found[row.config["problem"]][Method(**row.config["method"])].append(row)
    return Trainings({problem: _shared_seeds(of_method) for problem, of_method in found.items()})


def _shared_seeds(of_method: dict[Method, list[Row]]) -> dict[Method, list[Row]]:
    """The methods in their order, with the seeds that all of them have, if there are any."""
    shared = set.intersection(*({row.config["seed"] for row in rows} for rows in of_method.values()))
    kept = {
        method: [row for row in rows if not shared or row.config["seed"] in shared]
        for method, rows in of_method.items()
    }
    kinds = get_args(Kind)
    return {
        method: kept[method]
        for method in sorted(kept, key=lambda m: (kinds.index(m.kind), m.strength, m.noise_count is not None))
    }


@dataclass(frozen=True)
class Close:
    """What was measured for more seeds than the rest, by seed.

    Attributes:
        kl: KL(p‖q) on the known conditional, as trained.
        noise: gradient noise by problem, method and η (of the targets, or of the labels before smoothing).
    """

    kl: dict[Method, dict[int, float]]
    noise: dict[tuple[Problem, Method, str], dict[int, float]]

    def noise_of(self, problem: Problem, method: Method) -> dict[int, float]:
        return self.noise.get((problem, method, "targets"), {})


def close(rows: Sequence[Row]) -> Close:
    kl: dict[Method, dict[int, float]] = defaultdict(dict)
    noise: dict[tuple[Problem, Method, str], dict[int, float]] = defaultdict(dict)
    trained = [row for row in of_part(rows, "training") if row.config["problem"] == "conditional"]
    epochs = max((row.config["epochs"] for row in trained), default=0)
    for row in trained:
        if row.config["epochs"] == epochs and "divergence" in row.result:
            kl[Method(**row.config["method"])][row.config["seed"]] = row.result["divergence"]
    for row in of_part(rows, "noise"):
        c = row.config
        if row.result["gradient_noise"] is not None:
            key = c["problem"], Method(**c["method"]), c.get("eta", "targets")
            noise[key][c["seed"]] = row.result["gradient_noise"]
    return Close(dict(kl), dict(noise))


def excess(ours: dict[int, float], factor: float, theirs: dict[int, float]) -> Estimate | None:
    """Ours minus ``factor`` times theirs, paired by seed; None where no seed has both."""
    shared = sorted(ours.keys() & theirs.keys())
    return estimate([ours[seed] - factor * theirs[seed] for seed in shared]) if shared else None


def shapes(rows: Sequence[Row]) -> Shapes:
    found = {row.config["classes"]: row.result for row in of_part(rows, "shape")}
    return {classes: found[classes] for classes in sorted(found)}


def costs(rows: Sequence[Row]) -> dict[int, Cost]:
    """By the number of classes."""
    found = {}
    for row in sorted(of_part(rows, "cost"), key=lambda row: row.config["classes"]):
        methods = [Method(**method) for method in row.config["methods"]]
        drawing = row.result["draw_seconds"]
        found[row.config["classes"]] = Cost(
            row.config["rows"],
            dict(zip(methods, row.result["milliseconds"], strict=True)),
            drawing["continuous"] / drawing["dirichlet"],
        )
    return found


def of_part(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row.config["part"] == part]


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    of_classes, trained = shapes(rows), trainings(rows)
    found = {}
    if 1000 in of_classes:
        found["exact-sampling"] = _sampling(of_classes)
    for key, kind in (("exact-substitute", "soft-target-info-nce"), ("exact-alternative", "averaged")):
        finding = _beside_exact_draws(trained, kind)
        if finding:
            found[key] = finding
    near = close(rows)
    for key, finding in (("expected-conditional", _expected(near)), ("expected-noise", _expected_noise(near))):
        if finding:
            found[key] = finding
    return found


def _expected(near: Close) -> Finding | None:
    """Expected InfoNCE on the known conditional: KL and gradient noise beside the limits that were set beforehand."""
    kl = {method: near.kl.get(method, {}) for method in (CE, DRAWN, EXPECTED)}
    noise = {method: near.noise_of("conditional", method) for method in (CE, EXPECTED)}
    gaps = [
        excess(kl[EXPECTED], 1.3, kl[CE]),
        excess(kl[EXPECTED], 0.5, kl[DRAWN]),
        excess(noise[EXPECTED], 1.1, noise[CE]),
    ]
    if not all(gaps):
        return None
    known = [gap for gap in gaps if gap]
    ours, ce, drawn = (estimate(list(kl[method].values())) for method in (EXPECTED, CE, DRAWN))
    mine, theirs = (estimate(list(noise[method].values())) for method in (EXPECTED, CE))
    text = f"""KL {ours.spread(4)}, {ours.mean / ce.mean:.2f} times soft target cross-entropy's and
        {ours.mean / drawn.mean:.2f} times soft distribution InfoNCE's; gradient noise {mine.spread(3)}, {
        mine.mean / theirs.mean:.2f} times soft target cross-entropy's"""
    on = f"K = {CLASSES}, the true conditional as target, {counted(ours.count, 'seed')}"
    return Finding(text, on, _below(known))


def _expected_noise(near: Close) -> Finding | None:
    """Gradient noise of expected InfoNCE minus that of soft target cross-entropy where labels are smoothed."""
    words, gaps, seeds = [], [], 0
    smoothed: dict[Problem, int] = {"labels": CLASSES, "digits": 10}
    for problem, classes in smoothed.items():
        mine, theirs = (near.noise_of(problem, method) for method in (EXPECTED, CE))
        gap = excess(mine, 1.0, theirs)
        if gap is None:
            return None
        means = (estimate(list(values.values())) for values in (mine, theirs))
        words.append(f"{' against '.join(mean.spread(3) for mean in means)} at K = {classes}")
        gaps.append(gap)
        seeds = gap.count
    return Finding(", ".join(words), f"labels smoothed by {SMOOTHING:g}, {counted(seeds, 'seed')}", _below(gaps))


def _below(gaps: Sequence[Estimate]) -> Verdict:
    """Of a claim that goes beyond the paper: that all of these are below 0."""
    if min(gap.count for gap in gaps) < FEWEST_SEEDS:
        return "undecided"
    if all(gap.high < 0 for gap in gaps):
        return "beyond"
    return "not reproduced" if any(gap.low > 0 for gap in gaps) else "undecided"


def _sampling(of_classes: Shapes) -> Finding:
    many, most = of_classes[1000], max(shape["proposals"] for shape in of_classes.values())
    text = f"""{many["proposals"]:.2f} proposals per draw at K = 1000 (at most {most:.2f} up to K = {max(of_classes)});
        the earlier method needs 10^{many["log10_original_proposals"]:.0f}. But such a draw has only
        {many["strength"]["1"]["nats"]:.1g} nats of information about its target"""
    return Finding(
        text, f"labels smoothed by {SMOOTHING:g}, known in closed form", "beyond" if most < 10 else "reproduced"
    )


def _beside_exact_draws(trained: Trainings, kind: str) -> Finding | None:
    """Errors of a kind of loss beside those of exact draws, each at its best strength."""
    words, is_ahead, seeds = [], [], []
    for problem, target in TARGETS.items():
        other, drawn = trained.best(problem, kind), trained.best(problem, "continuous")
        if other is None or drawn is None:
            return None
        ours, exact = trained.error(problem, other), trained.error(problem, drawn)
        strength = f" (n = {other.strength:g})" if kind == "averaged" else ""
        words.append(f"{ours.spread(3)}{strength} against {exact.spread(3)} with {target}")
        is_ahead.append(ours.mean < 1.1 * exact.mean)
        seeds += [ours.count, exact.count]
    verdict: Verdict = "undecided"
    if min(seeds) >= FEWEST_SEEDS:
        verdict = "reproduced" if all(is_ahead) else "explained" if any(is_ahead) else "not reproduced"
        verdict = "beyond" if kind == "averaged" else verdict
    on = f"K = {CLASSES}, known conditional, {counted(trained.seeds, 'seed')}"
    return Finding(f"KL {', '.join(words)}, at the best temperature", on, verdict)
