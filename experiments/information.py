"""How much information do the losses find? Their bounds and the exact mutual information, over ε and M.

Z and Y are discrete with a known table p(z, y), so I(Z;Y) and I_ε(Z;Y), that of labels smoothed with their own
marginal, are finite sums. Critics are trained on samples to identify a label among M candidates: a free score for every
pair (z, y), which can be exact, and z·y with few dimensions, which cannot. No bound may exceed the truth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.harness.claims import Finding, verdict
from experiments.harness.experiment import Experiment
from experiments.harness.figures import LOOKS, OTHER, SERIES, Figure, curve, label, level
from experiments.harness.options import later, option
from experiments.harness.rows import Row
from experiments.harness.statistics import Estimate, alike, estimate, largest, over
from experiments.harness.tables import Table as MarkdownTable
from softnce.theory import information as theory

DRAWN, SOFT, EXPECTED = "soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce"
GROUPS = 8  # sets of negatives per step, each shared by an eighth of the batch
NEGATIVE_SETS = 2000  # over which a bound is averaged
TOGETHER = 20  # critics trained as one tensor program


@dataclass(frozen=True)
class Table:
    """The joint distribution of Z and Y: p(z) ∝ exp a_z, p(y|z) ∝ exp(b_y + c_zy) with normal a, b, c."""

    states: int = option(20, "values of Z", least=2)
    classes: int = option(20, "values of Y", least=2)
    sharpness: float = option(2.5, "standard deviation of c; more of it, more information")
    skew: float = option(1.0, "standard deviation of a and b")

    def joint(self) -> Tensor:
        """p(z, y), fp64, always the same."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        p_z = (self.skew * normal(self.states, 1)).softmax(0)
        logits = self.skew * normal(1, self.classes) + self.sharpness * normal(self.states, self.classes)
        return p_z * logits.softmax(1)


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds; a seed fixes the training samples", least=1)
    epsilons: tuple[float, ...] = option((0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), "values of ε", least=0, below=1)
    candidates: tuple[int, ...] = option((2, 4, 8, 16, 64, 256, 1024), "candidates M, with the true one", least=2)
    epsilon: float = option(0.1, "ε while M changes", least=0, below=1)
    steps: int = option(300, "training steps", least=1)
    batch_size: int = option(4096, "samples per step", least=GROUPS)
    lr: float = option(0.1, "learning rate of Adam at the start; it falls to 0", above=0)
    dimension: int = option(2, "dimension of the limited critic's embeddings", least=1)
    table: Table = field(default_factory=Table)


@dataclass(frozen=True)
class Run:
    """One critic; the exact one is not trained.

    ``noise_count`` further candidates of expected InfoNCE are draws from η in expectation. η is the labels' marginal;
    with another one, log(M + m) − ℓ bounds nothing.
    """

    table: Table
    loss: str
    critic: Literal["free", "embedding", "exact"]
    epsilon: float
    candidates: int
    seed: int
    steps: int
    batch_size: int
    lr: float
    dimension: int
    noise_count: float = later(0.0, "m")
    noise: Literal["marginal", "uniform"] = later("marginal", "η")


def runs(options: Options) -> list[Run]:
    o = options

    def critics(loss: str, critic: Any, epsilon: float, candidates: int, *more: Any) -> list[Run]:
        training = (o.steps, o.batch_size, o.lr) if critic != "exact" else (0, 0, 0.0)
        dimension = o.dimension if critic == "embedding" else 0
        seeds = range(o.seeds if critic != "exact" else 1)
        return [Run(o.table, loss, critic, epsilon, candidates, s, *training, dimension, *more) for s in seeds]

    most = max(o.candidates)
    wanted: list[Run] = []
    for loss, *more in ((DRAWN,), (EXPECTED, float(o.table.classes)), (EXPECTED, 0.0)):
        for epsilon in o.epsilons:
            wanted += critics(loss, "free", epsilon, most, *more)
            wanted += critics(loss, "embedding", epsilon, most, *more)
        for candidates in o.candidates:
            wanted += critics(loss, "free", o.epsilon, candidates, *more)
            wanted += critics(loss, "exact", o.epsilon, candidates, *more)
    for epsilon in o.epsilons:
        wanted += critics(SOFT, "free", epsilon, most)
    for noise in ("marginal", "uniform"):  # few candidates and many from η, which then has to be right
        wanted += critics(EXPECTED, "free", o.epsilon, min(o.candidates), float(50 * o.table.classes), noise)
    return wanted


def groups(todo: Sequence[Run]) -> list[list[Run]]:
    """Critics of one shape are trained together."""
    alike: dict[Any, list[Run]] = {}
    for run in todo:
        alike.setdefault((run.table, run.critic, run.steps, run.batch_size, run.lr, run.dimension), []).append(run)
    parts = [of[first : first + TOGETHER] for of in alike.values() for first in range(0, len(of), TOGETHER)]
    return sorted(parts, key=lambda part: part[0].critic == "exact")


def perform(todo: Sequence[Run]) -> list[dict[str, float]]:
    """Trains critics, and takes the bound of each over the whole table and many sets of negatives."""
    channels = torch.stack([_channel(run) for run in todo])
    randoms = [np.random.default_rng(run.seed) for run in todo]
    trained = _log_ratio(channels) if todo[0].critic == "exact" else _train(todo, channels, randoms)
    return [_measure(*one) for one in zip(todo, channels, trained, randoms, strict=True)]


def _measure(run: Run, channel: Tensor, scores: Tensor, random: np.random.Generator) -> dict[str, float]:
    p_y = channel.sum(0)
    sets = _negatives(run, p_y, NEGATIVE_SETS, random)
    # The expectation over (z, y) is exact; only the negatives are sampled.
    each = torch.cat([(channel * _losses(scores, part)).sum((-1, -2)) for part in sets.split(200)])
    loss, negatives = each.mean(), run.candidates - 1 + round(run.noise_count)
    posterior = channel / channel.sum(1, keepdim=True)
    classifier = theory.classifier_information(scores + p_y.log(), posterior, p_y)
    return {
        "truth": theory.mutual_information(channel).item(),
        "bound": theory.information_bound(loss, negatives).item(),
        "standard_error": (each.std() / math.sqrt(len(each))).item(),
        "paper_bound": theory.paper_information_bound(loss, negatives).item(),
        "classifier_bound": (channel.sum(1) @ classifier).item(),
    }


def _channel(run: Run) -> Tensor:
    """p(z, a) of the contrasted variable: labels drawn from the smoothed ones, or the soft targets themselves.

    A soft target (1 − ε)·e_y + ε·p_Y tells its label, so as a variable it is the label; expected InfoNCE sums over the
    labels that could be drawn from it.
    """
    joint = run.table.joint()
    return joint if run.loss == SOFT else theory.smoothed_joint(joint, run.epsilon)


def _negatives(run: Run, p_y: Tensor, sets: int, random: np.random.Generator) -> Tensor:
    """Class counts of the negatives, (sets, K): as many labels; in expected InfoNCE their soft targets.

    M − 1 soft targets (1 − ε)·e_y + ε·p(y) count (1 − ε)·n + ε·(M − 1)·p(y) for labels counted n, and m draws from η in
    expectation m·η.
    """
    counts = _counts(p_y, sets, run.candidates - 1, random)
    if run.loss != EXPECTED:
        return counts
    eta = p_y if run.noise == "marginal" else torch.full_like(p_y, 1 / len(p_y))
    return torch.lerp(counts, (run.candidates - 1) * p_y, run.epsilon) + run.noise_count * eta


def _log_ratio(channel: Tensor) -> Tensor:
    return (channel / channel.sum(-2, keepdim=True) / channel.sum(-1, keepdim=True)).log()


def _train(todo: Sequence[Run], channels: Tensor, randoms: Sequence[np.random.Generator]) -> Tensor:
    """Scores of all pairs after training, (runs, Z, K).

    A soft target scores (1 − ε)·s_y and a part common to all, so that its table of scores is as free as a label's.
    """
    run, (_, states, classes), p_y = todo[0], channels.shape, channels.sum(1)
    if run.critic == "free":
        parameters = [torch.zeros_like(channels)]
    else:
        shapes = (states, run.dimension), (classes, run.dimension)
        parameters = [torch.stack([torch.from_numpy(r.normal(size=shape)) for r in randoms]) for shape in shapes]
    for parameter in parameters:
        parameter.requires_grad_()
    optimiser = torch.optim.Adam(parameters, lr=run.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, run.steps)
    size = run.batch_size // GROUPS

    def scores() -> Tensor:
        return parameters[0] if len(parameters) == 1 else parameters[0] @ parameters[1].mT

    for _ in range(run.steps):
        pairs, negatives = [], []
        for one, channel, marginal, random in zip(todo, channels, p_y, randoms, strict=True):
            pairs.append(_counts(channel.flatten(), GROUPS, size, random).view(GROUPS, states, classes))
            negatives.append(_negatives(one, marginal, GROUPS, random))
        optimiser.zero_grad()
        losses = _losses(scores(), torch.stack(negatives))
        ((torch.stack(pairs) * losses).sum() / (GROUPS * size)).backward()
        optimiser.step()
        schedule.step()
    return scores().detach()


def _counts(probs: Tensor, sets: int, size: int, random: np.random.Generator) -> Tensor:
    """Counts of each outcome among ``size`` draws, (sets, outcomes)."""
    return torch.from_numpy(random.multinomial(size, (probs / probs.sum()).numpy(), size=sets)).double()


def _losses(scores: Tensor, counts: Tensor) -> Tensor:
    """ℓ of every pair (z, y) beside each of B sets of negatives: (…, Z, K), class counts (…, B, K) → (…, B, Z, K)."""
    top = scores.detach().amax(-1, keepdim=True)
    others = top + ((scores - top).exp() @ counts.mT).log()  # (…, Z, B)
    return F.softplus(others.mT[..., None] - scores[..., None, :, :], threshold=40.0)


# Rows to numbers


def excess(rows: Sequence[Row], bound: str = "bound") -> Estimate:
    """The highest mean over seeds of a bound minus its truth, among settings.

    The truth is exact. The interval is the wider of that over seeds and that over the sampled negatives of one run.
    """
    found = []
    for members in alike(rows, *(name for name in Run.__dataclass_fields__ if name != "seed")):
        e = estimate([above_truth(row, bound) for row in members])
        half = max(e.high - e.mean, 1.96 * max(row.result["standard_error"] for row in members))
        found.append(Estimate(e.mean, e.mean - half, e.mean + half, max(e.count, 2)))
    return max(found, key=lambda e: e.high)


def above_truth(row: Row, bound: str = "bound") -> float:
    return float(row.result[bound] - row.result["truth"])


class Information:
    """The rows of the table p(z, y), steps and batch size that most critics were trained with.

    ``outside`` are those of expected InfoNCE with an η that is not the labels' marginal: they bound nothing. ``most``
    is the largest number of candidates M, ``epsilon`` ε while M changes.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        trained = largest([row for row in rows if row.config["critic"] != "exact"], "table", "steps", "batch_size")
        if not trained:
            raise ValueError("no trained critic is finished yet")
        table, steps = trained[0].config["table"], trained[0].config["steps"]
        kept = [row for row in rows if row.config["table"] == table and row.config["steps"] in (0, steps)]
        self.outside = [row for row in kept if "noise" in row.config]
        self.paper = [row for row in kept if row.config["loss"] != EXPECTED]
        self.expected = [row for row in kept if row.config["loss"] == EXPECTED and "noise" not in row.config]
        exact = [row for row in self.paper if row.config["critic"] == "exact"]
        self.joint = Table(**table).joint()
        self.most = max(row.config["candidates"] for row in self.paper)
        self.epsilon = (exact or self.paper)[0].config["epsilon"]

    def of(self, **wanted: Any) -> list[Row]:
        """The rows whose configuration has these values."""
        every = [*self.paper, *self.expected]
        return [row for row in every if wanted.items() <= ({"noise_count": 0.0} | row.config).items()]

    def over(self, x: str, value: str = "bound", **wanted: Any) -> dict[float, Estimate]:
        return over(self.of(**wanted), lambda row: row.config[x], lambda row: row.result[value])

    def truth(self, epsilon: float = 0.0) -> float:
        """I_ε(Z;Y)."""
        return theory.mutual_information(theory.smoothed_joint(self.joint, epsilon)).item()

    def smoothed_uniformly(self, epsilon: float) -> tuple[float, float]:
        """With ξ uniform instead of p(y): H(Y) − H_ε(Y|Z) as printed, and the information of the smoothed channel."""
        channel = theory.smoothed_joint(self.joint, epsilon, torch.full_like(self.joint[0], 1 / self.joint.shape[1]))
        printed = theory.entropy(self.joint.sum(0)) - theory.conditional_entropy(channel)
        return printed.item(), theory.mutual_information(channel).item()


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = Information(rows)
    on = f"a known table p(z, y), {len({row.config['seed'] for row in found.paper})} seeds"
    drawn = found.of(loss=DRAWN)

    def highest(rows: Sequence[Row], bound: str) -> str:
        value = max(above_truth(row, bound) for row in rows)
        return f"the highest of {len(rows)} bounds differs by {_signed(value)} nats from the true value"

    decided = verdict(excess(drawn, "paper_bound"), below=0.0)
    answers = {"bound": Finding(highest(drawn, "paper_bound"), on, decided)}
    courses = [found.over("epsilon", loss=loss, critic="free", candidates=found.most) for loss in (DRAWN, SOFT)]
    ends = min(courses[0]), max(courses[0])
    if ends[0] < ends[1]:
        (first, last), (soft_first, soft_last) = ([course[end] for end in ends] for course in courses)
        text = f"bound {first.mean:.2f} → {last.mean:.2f} nats from ε = {ends[0]:g} to {ends[1]:g} for labels drawn"
        text += " from soft targets; for soft target InfoNCE it does not change, "
        text += f"{soft_first.mean:.2f} → {soft_last.mean:.2f}"
        fall = Estimate(first.mean - last.mean, first.low - last.high, first.high - last.low, first.count)
        answers["bound-epsilon"] = Finding(text, on, verdict(fall, above=0))
    if found.expected:
        text = highest(found.expected, "bound")
        if found.outside:
            worst = max(found.outside, key=above_truth).result
            text += f"; with uniform η (not the marginal): {worst['bound']:.2f}, true value {worst['truth']:.2f}"
        answers["expected-bound"] = Finding(text, on, verdict(excess(found.expected), below=0.0, new=True))
    return answers


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


# Tables and figures


def tables(rows: Sequence[Row]) -> list[MarkdownTable]:
    found = Information(rows)
    sizes = sorted({row.config["candidates"] for row in found.paper})
    kinds = {
        "soft distribution InfoNCE": found.of(loss=DRAWN, critic="free"),
        "the same as printed, log N − ℓ": found.of(loss=DRAWN, critic="free"),
        "soft distribution InfoNCE, exact critic": found.of(loss=DRAWN, critic="exact"),
    }
    for rows_of, eta in ((found.expected, ""), (found.outside, ", η uniform")):
        of = [row for row in rows_of if row.config["critic"] == "free" and row.config.get("noise") != "marginal"]
        for m in sorted({row.config.get("noise_count", 0.0) for row in of}):
            kinds[f"expected InfoNCE, m = {m:g}{eta}"] = [r for r in of if r.config.get("noise_count", 0.0) == m]
    body = []
    for name, of in kinds.items():
        value = "paper_bound" if "printed" in name else "bound"
        there = [row for row in of if row.config["epsilon"] == found.epsilon]
        means = over(there, lambda row: row.config["candidates"], lambda row, value=value: row.result[value])
        highest = max((above_truth(row, value) for row in of), default=math.nan)
        body.append([name, *(f"{means[size].mean:.3f}" if size in means else "–" for size in sizes), _signed(highest)])
    e, truth = found.epsilon, found.truth(found.epsilon)
    title = f"Bounds in nats at ε = {e:g}, where I_ε(Z;Y) = {truth:.3f}; highest excess"
    return [MarkdownTable("information-bounds", ("loss", *(f"M = {n}" for n in sizes), "highest"), body, title=title)]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = Information(rows)
    most, epsilon, m = found.most, found.epsilon, float(found.joint.shape[1])
    grid = [i / 50 for i in range(51)]
    uniform = [found.smoothed_uniformly(e) for e in grid]
    look = LOOKS[EXPECTED]

    def draw(axes: Any) -> None:
        curve(axes[0], {e: found.truth(e) for e in grid}, name="I_ε(Z;Y)")
        for loss in (DRAWN, SOFT):
            curve(axes[0], found.over("epsilon", loss=loss, critic="free", candidates=most), loss=loss, dash=":")
        embedding = found.over("epsilon", loss=DRAWN, critic="embedding", candidates=most)
        curve(axes[0], embedding, name="z·y of 2 dimensions", colour=SERIES[2], dash=":")
        level(axes[0], found.truth(), "I(Z;Y)")
        label(axes[0], "ε", "information (nats)", title=f"smoothing, M = {most}", ylim=(0, 1.15 * found.truth()))
        varied: dict[str, Any] = {"critic": "free", "loss": DRAWN, "epsilon": epsilon}
        ceiling = {float(n): math.log(n) for n in found.over("candidates", **varied)}
        curve(axes[1], ceiling, name="log M", colour=OTHER, dash="--")
        curve(axes[1], found.over("candidates", **varied), loss=DRAWN, dash=":")
        curve(axes[1], found.over("candidates", "paper_bound", **varied), name="as printed", colour=SERIES[1], dash=":")
        classifier = found.over("candidates", "classifier_bound", **varied)
        curve(axes[1], classifier, name="as a classifier", colour=SERIES[0], dash=":")
        if ours := found.over("candidates", critic="free", loss=EXPECTED, epsilon=epsilon, noise_count=m):
            curve(axes[1], ours, name=f"{look.name}, m = {m:g}", colour=look.colour, dash=":", marker=look.marker)
        title, top = f"candidates, ε = {epsilon:g}", 1.3 * found.truth(epsilon)
        label(axes[1], "candidates M", title=title, log="x", ylim=(-0.75, top))
        level(axes[1], found.truth(epsilon), "I_ε(Z;Y)")
        curve(axes[2], dict(zip(grid, (p for p, _ in uniform), strict=True)), name="as printed", colour=SERIES[1])
        curve(axes[2], dict(zip(grid, (i for _, i in uniform), strict=True)), name="the channel's information")
        level(axes[2], 0.0)
        label(axes[2], "ε", title="ξ uniform instead of p(y)")

    return [Figure("information-bounds", draw, panels=3, size=(4.4, 3.2))]


EXPERIMENT = Experiment(
    name="information", question="How much information do the losses find, and do their bounds hold?", minutes=1,
    presets={"quick": Options(seeds=1, epsilons=(0.0, 0.1, 0.5, 0.9), candidates=(2, 16, 256), steps=200),
             "paper": Options()},
    runs=runs, groups=groups, perform_group=perform, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
