"""How much information do the losses find? Their bounds and the exact mutual information, over ε and M.

Z and Y are discrete with a known table p(z, y), so I(Z;Y) and I_ε(Z;Y), that of labels smoothed with their own
marginal, are finite sums. Critics are trained on samples to identify a label among M candidates: a free score for every
pair (z, y), which can be exact, and z·y with few dimensions, which cannot. No bound may exceed the truth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.harness import LOOKS, OTHER, SERIES, Experiment, Figure, Row, Table, curve, label, later, level, option
from experiments.harness.claims import Finding, verdict
from experiments.harness.statistics import Estimate, alike, estimate, exactly, largest, over
from softnce.theory import information as theory

DRAWN, SOFT, EXPECTED = "soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce"
GROUPS = 8  # sets of negatives per step, each shared by an eighth of the batch
NEGATIVE_SETS = 2000  # over which a bound is averaged
TOGETHER = 20  # critics trained as one tensor program


@dataclass(frozen=True)
class Joint:
    """The joint distribution of Z and Y: p(z) ∝ exp a_z, p(y|z) ∝ exp(b_y + c_zy) with normal a, b, c."""

    states: int = option(20, "values of Z", least=2)
    classes: int = option(20, "values of Y", least=2)
    sharpness: float = option(2.5, "standard deviation of c; more of it, more information")
    skew: float = option(1.0, "standard deviation of a and b")

    def probs(self) -> Tensor:
        """p(z, y), fp64, always the same."""
        generator = torch.Generator().manual_seed(0)
        shapes = (self.states, 1), (1, self.classes), (self.states, self.classes)
        a, b, c = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
        return (self.skew * a).softmax(0) * (self.skew * b + self.sharpness * c).softmax(1)


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds; a seed fixes the training samples", least=1)
    epsilons: tuple[float, ...] = option((0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), "values of ε", least=0, below=1)
    candidates: tuple[int, ...] = option((2, 4, 8, 16, 64, 256, 1024), "candidates M, with the true one", least=2)
    epsilon: float = option(0.1, "ε while M changes", least=0, below=1)
    steps: int = option(300, "training steps", least=1)
    table: Joint = field(default_factory=Joint)


@dataclass(frozen=True)
class Run:
    """One critic; the exact one is not trained.

    ``noise_count`` further candidates of expected InfoNCE are draws from η in expectation. η is the labels' marginal;
    with another one, log(M + m) − ℓ bounds nothing.
    """

    table: Joint
    loss: str
    critic: Literal["free", "embedding", "exact"]
    epsilon: float
    candidates: int
    seed: int = 0
    steps: int = 0
    batch_size: int = 0
    lr: float = 0.0  # at the start; it falls to 0
    dimension: int = 0
    noise_count: float = later(0.0, "m")
    noise: Literal["marginal", "uniform"] = later("marginal", "η")


def runs(options: Options) -> list[Run]:
    o, most, m = options, max(options.candidates), float(options.table.classes)
    exact = Run(o.table, DRAWN, "exact", o.epsilon, most)
    free = replace(exact, critic="free", steps=o.steps, batch_size=4096, lr=0.1)
    wanted = []
    for loss, count in ((DRAWN, 0.0), (EXPECTED, m), (EXPECTED, 0.0)):
        one = replace(free, loss=loss, noise_count=count)
        for epsilon in o.epsilons:
            wanted += [replace(one, epsilon=epsilon), replace(one, epsilon=epsilon, critic="embedding", dimension=2)]
        for critic in (one, replace(exact, loss=loss, noise_count=count)):
            wanted += [replace(critic, candidates=candidates) for candidates in o.candidates]
    wanted += [replace(free, loss=SOFT, epsilon=epsilon) for epsilon in o.epsilons]
    # few candidates and many from η, which then has to be right
    many = replace(free, loss=EXPECTED, candidates=min(o.candidates), noise_count=50 * m)
    wanted += [many, replace(many, noise="uniform")]
    return [replace(run, seed=s) for run in wanted for s in range(1 if run.critic == "exact" else o.seeds)]


def groups(todo: Sequence[Run]) -> list[list[Run]]:
    """Critics of one shape are trained together."""
    shapes: dict[Any, list[Run]] = {}
    for run in todo:
        shapes.setdefault((run.table, run.critic, run.steps, run.batch_size, run.lr, run.dimension), []).append(run)
    parts = [alike[first : first + TOGETHER] for alike in shapes.values() for first in range(0, len(alike), TOGETHER)]
    return sorted(parts, key=lambda part: part[0].critic == "exact")


def perform(todo: Sequence[Run]) -> list[dict[str, float]]:
    """Trains critics, and takes the bound of each over the whole table and many sets of negatives."""
    channels = torch.stack([channel_of(run) for run in todo])
    randoms = [np.random.default_rng(run.seed) for run in todo]
    exact = (channels / channels.sum(-2, keepdim=True) / channels.sum(-1, keepdim=True)).log()
    scores = exact if todo[0].critic == "exact" else train(todo, channels, randoms)
    return [measure(*one) for one in zip(todo, channels, scores, randoms, strict=True)]


def channel_of(run: Run) -> Tensor:
    """p(z, a) of the contrasted variable: labels drawn from the smoothed ones, or the soft targets themselves.

    A soft target (1 − ε)·e_y + ε·p_Y tells its label, so as a variable it is the label; expected InfoNCE sums over the
    labels that could be drawn from it.
    """
    joint = run.table.probs()
    return joint if run.loss == SOFT else theory.smoothed_joint(joint, run.epsilon)


def train(todo: Sequence[Run], channels: Tensor, randoms: Sequence[np.random.Generator]) -> Tensor:
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
            pairs.append(drawn_counts(channel.flatten(), GROUPS, size, random).view(GROUPS, states, classes))
            negatives.append(negative_counts(one, marginal, GROUPS, random))
        optimiser.zero_grad()
        of_pairs = losses(scores(), torch.stack(negatives))
        ((torch.stack(pairs) * of_pairs).sum() / (GROUPS * size)).backward()
        optimiser.step()
        schedule.step()
    return scores().detach()


def measure(run: Run, channel: Tensor, scores: Tensor, random: np.random.Generator) -> dict[str, float]:
    """The bounds of a critic; the expectation over (z, y) is exact, only the negatives are sampled."""
    p_y = channel.sum(0)
    sets = negative_counts(run, p_y, NEGATIVE_SETS, random)
    each = torch.cat([(channel * losses(scores, part)).sum((-1, -2)) for part in sets.split(200)])
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


def negative_counts(run: Run, p_y: Tensor, sets: int, random: np.random.Generator) -> Tensor:
    """Class counts of the negatives, (sets, K): as many labels; in expected InfoNCE their soft targets.

    M − 1 soft targets (1 − ε)·e_y + ε·p(y) count (1 − ε)·n + ε·(M − 1)·p(y) for labels counted n, and m draws from η in
    expectation m·η.
    """
    counts = drawn_counts(p_y, sets, run.candidates - 1, random)
    if run.loss != EXPECTED:
        return counts
    eta = p_y if run.noise == "marginal" else torch.full_like(p_y, 1 / len(p_y))
    return torch.lerp(counts, (run.candidates - 1) * p_y, run.epsilon) + run.noise_count * eta


def drawn_counts(probs: Tensor, sets: int, size: int, random: np.random.Generator) -> Tensor:
    """Counts of each outcome among ``size`` draws, (sets, outcomes)."""
    return torch.from_numpy(random.multinomial(size, (probs / probs.sum()).numpy(), size=sets)).double()


def losses(scores: Tensor, counts: Tensor) -> Tensor:
    """ℓ of every pair (z, y) beside each of B sets of negatives: (…, Z, K), class counts (…, B, K) → (…, B, Z, K)."""
    top = scores.detach().amax(-1, keepdim=True)
    others = top + ((scores - top).exp() @ counts.mT).log()  # (…, Z, B)
    return F.softplus(others.mT[..., None] - scores[..., None, :, :], threshold=40.0)


# Rows to numbers


def main(rows: Sequence[Row]) -> list[Row]:
    """The critics of the table p(z, y), steps and batch size that most were trained with, and its exact critics."""
    trained = largest([row for row in rows if row.config["critic"] != "exact"], "table", "steps", "batch_size")
    if not trained:
        raise ValueError("no trained critic is finished yet")
    table, steps = trained[0].config["table"], trained[0].config["steps"]
    return [row for row in rows if row.config["table"] == table and row.config["steps"] in (0, steps)]


def of(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows whose configuration has these values; η is the marginal unless another is named."""
    wanted = {"noise": "marginal"} | wanted
    defaults = {"noise": "marginal", "noise_count": 0.0}
    return [row for row in rows if wanted.items() <= (defaults | row.config).items()]


def course(rows: Sequence[Row], x: str, value: str = "bound", **wanted: Any) -> dict[float, Estimate]:
    return over(of(rows, **wanted), lambda row: row.config[x], lambda row: row.result[value])


def sizes(rows: Sequence[Row]) -> tuple[list[int], float]:
    """All M, and ε while M changes."""
    drawn = sorted(of(rows, loss=DRAWN), key=lambda row: row.config["critic"] != "exact")
    return sorted({row.config["candidates"] for row in drawn}), drawn[0].config["epsilon"]


def above_truth(row: Row, bound: str = "bound") -> float:
    return float(row.result[bound] - row.result["truth"])


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


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    kept = main(rows)
    (*_, most), _ = sizes(kept)
    drawn, expected, outside = of(kept, loss=DRAWN), of(kept, loss=EXPECTED), of(kept, noise="uniform")
    on = f"a known table p(z, y), {len({row.config['seed'] for row in kept})} seeds"

    def highest(rows: Sequence[Row], bound: str) -> str:
        value = max(above_truth(row, bound) for row in rows)
        return f"the highest of {len(rows)} bounds differs by {exactly(value).signed(4)} nats from the true value"

    holds = verdict(excess(drawn, "paper_bound"), below=0.0)
    answers = {"bound": Finding(highest(drawn, "paper_bound"), on, holds)}
    courses = [course(kept, "epsilon", loss=loss, critic="free", candidates=most) for loss in (DRAWN, SOFT)]
    low, high = min(courses[0]), max(courses[0])
    if low < high:
        of_drawn, of_soft = (f"{course[low].mean:.2f} → {course[high].mean:.2f}" for course in courses)
        text = (f"bound {of_drawn} nats from ε = {low:g} to {high:g} for labels drawn from soft targets; for soft "
                f"target InfoNCE it does not change, {of_soft}")  # fmt: skip
        first, last = courses[0][low], courses[0][high]
        fall = Estimate(first.mean - last.mean, first.low - last.high, first.high - last.low, first.count)
        answers["bound-epsilon"] = Finding(text, on, verdict(fall, above=0))
    worst = max(outside, key=above_truth).result
    text = f"with uniform η (not the marginal): {worst['bound']:.2f}, true value {worst['truth']:.2f}"
    holds = verdict(excess(expected), below=0.0, new=True)
    answers["expected-bound"] = Finding(f"{highest(expected, 'bound')}; {text}", on, holds)
    return answers


# Tables and figures


def tables(rows: Sequence[Row]) -> list[Table]:
    kept = main(rows)
    candidates, epsilon = sizes(kept)
    kinds = {
        "soft distribution InfoNCE": of(kept, loss=DRAWN, critic="free"),
        "the same as printed, log N − ℓ": of(kept, loss=DRAWN, critic="free"),
        "soft distribution InfoNCE, exact critic": of(kept, loss=DRAWN, critic="exact"),
    }
    for noise, eta in (("marginal", ""), ("uniform", ", η uniform")):
        free = of(kept, loss=EXPECTED, critic="free", noise=noise)
        for m in sorted({row.config.get("noise_count", 0.0) for row in free}):
            kinds[f"expected InfoNCE, m = {m:g}{eta}"] = of(free, noise_count=m, noise=noise)
    body = []
    for name, members in kinds.items():
        value = "paper_bound" if "printed" in name else "bound"
        means = over([row for row in members if row.config["epsilon"] == epsilon],
                     lambda row: row.config["candidates"], lambda row, value=value: row.result[value])  # fmt: skip
        highest = exactly(max((above_truth(row, value) for row in members), default=math.nan)).signed(4)
        body.append([name, *(f"{means[n].mean:.3f}" if n in means else "–" for n in candidates), highest])
    truth = theory.mutual_information(theory.smoothed_joint(Joint(**kept[0].config["table"]).probs(), epsilon))
    title = f"Bounds in nats at ε = {epsilon:g}, where I_ε(Z;Y) = {truth.item():.3f}; highest excess"
    return [Table("information-bounds", ("loss", *(f"M = {n}" for n in candidates), "highest"), body, title=title)]


def figures(rows: Sequence[Row]) -> list[Figure]:
    kept = main(rows)
    (*_, most), epsilon = sizes(kept)
    joint = Joint(**kept[0].config["table"]).probs()
    marginal, m = joint.sum(0), float(joint.shape[1])
    grid = [i / 50 for i in range(51)]
    truth = {e: theory.mutual_information(theory.smoothed_joint(joint, e)).item() for e in {*grid, epsilon}}
    # ξ uniform instead of p(y): the channel, and H(Y) − H_ε(Y|Z) as printed
    uniform = {e: theory.smoothed_joint(joint, e, torch.full_like(marginal, 1 / m)) for e in grid}
    entropy = theory.entropy(marginal)
    printed = {e: (entropy - theory.conditional_entropy(channel)).item() for e, channel in uniform.items()}
    channels = {e: theory.mutual_information(channel).item() for e, channel in uniform.items()}

    def smoothing(ax: Any) -> None:
        curve(ax, {e: truth[e] for e in grid}, name=r"$I_\epsilon$(Z;Y)")
        for loss in (DRAWN, SOFT):
            curve(ax, course(kept, "epsilon", loss=loss, critic="free", candidates=most), loss=loss, dash=":")
        embedding = course(kept, "epsilon", loss=DRAWN, critic="embedding", candidates=most)
        curve(ax, embedding, name="z·y of 2 dimensions", colour=SERIES[2], dash=":")
        level(ax, truth[0], "I(Z;Y)")
        label(ax, "ε", "information (nats)", title=f"smoothing, M = {most}", ylim=(0, 1.15 * truth[0]))

    def candidates(ax: Any) -> None:
        drawn = of(kept, loss=DRAWN, critic="free", epsilon=epsilon)
        bound = course(drawn, "candidates")
        curve(ax, {float(n): math.log(n) for n in bound}, name="log M", colour=OTHER, dash="--")
        curve(ax, bound, loss=DRAWN, dash=":")
        curve(ax, course(drawn, "candidates", "paper_bound"), name="as printed", colour=SERIES[1], dash=":")
        curve(ax, course(drawn, "candidates", "classifier_bound"), name="as a classifier", colour=SERIES[0], dash=":")
        look = LOOKS[EXPECTED]
        if ours := course(kept, "candidates", critic="free", loss=EXPECTED, epsilon=epsilon, noise_count=m):
            curve(ax, ours, name=f"{look.name}, m = {m:g}", colour=look.colour, dash=":", marker=look.marker)
        label(ax, "candidates M", title=f"candidates, ε = {epsilon:g}", log="x", ylim=(-0.75, 1.3 * truth[epsilon]))
        level(ax, truth[epsilon], r"$I_\epsilon$(Z;Y)")

    def draw(axes: Any) -> None:
        smoothing(axes[0])
        candidates(axes[1])
        curve(axes[2], printed, name="as printed", colour=SERIES[1])
        curve(axes[2], channels, name="the channel's information")
        level(axes[2], 0.0)
        label(axes[2], "ε", title="ξ uniform instead of p(y)")

    return [Figure("information-bounds", draw, panels=3, size=(4.4, 3.2))]


EXPERIMENT = Experiment(
    name="information", question="How much information do the losses find, and do their bounds hold?", minutes=1,
    presets={"quick": Options(seeds=1, epsilons=(0.0, 0.1, 0.5, 0.9), candidates=(2, 16, 256), steps=200),
             "paper": Options()},
    runs=runs, groups=groups, perform_group=perform, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
