"""How much information do the losses find? Their bounds beside the exact mutual information, over ε and M.

Z and Y are discrete with a known table p(z, y), so I(Z;Y), the information of the labels, and I_ε(Z;Y), that of labels
smoothed with their own marginal, are finite sums. Critics are trained on samples, to find a label among M candidates:

  a free score for every pair (z, y), which can be exact, and z·y with embeddings of a few dimensions, which cannot;
  by soft distribution InfoNCE, whose labels are drawn from the smoothed ones, and by soft target InfoNCE.

Look for: no bound above its truth; the bound's ceiling log M; which information each of the two losses bounds.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from softnce.information import (
    classifier_information,
    conditional_entropy,
    entropy,
    information_bound,
    mutual_information,
    paper_information_bound,
    smoothed_joint,
)
from softnce.lab.configuration import option
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import Outcome, StudyConfig

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import Section

ORDER = 70
VERSION = 1
Loss = Literal["soft-dist-info-nce", "soft-target-info-nce"]
Critic = Literal["free", "embedding", "exact"]
GROUPS = 8  # sets of negatives a step, each shared by an eighth of the batch
NEGATIVE_SETS = 2000  # over which a bound is averaged


@dataclass(frozen=True)
class Table:
    """The joint distribution of Z and Y: p(z) ∝ exp a_z, p(y|z) ∝ exp(b_y + c_zy) with normal a, b, c."""

    states: int = option(20, "values of Z")
    classes: int = option(20, "values of Y")
    sharpness: float = option(2.5, "standard deviation of c; more of it, more information")
    skew: float = option(1.0, "standard deviation of a and b")

    def joint(self) -> Tensor:
        """p(z, y), fp64, the same whenever it is asked for."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        p_z = (self.skew * normal(self.states, 1)).softmax(0)
        logits = self.skew * normal(1, self.classes) + self.sharpness * normal(self.states, self.classes)
        return p_z * logits.softmax(1)


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "number of seeds; a seed fixes the training samples")
    epsilons: tuple[float, ...] = option((0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9), "values of ε")
    candidates: tuple[int, ...] = option((2, 4, 8, 16, 64, 256, 1024), "numbers of candidates M, the true one included")
    epsilon: float = option(0.1, "ε while M changes")
    steps: int = option(300, "training steps")
    batch_size: int = option(4096, "samples a step")
    lr: float = option(0.1, "learning rate of Adam at the start; it falls to 0")
    dimension: int = option(2, "dimension of the limited critic's embeddings")
    table: Table = field(default_factory=Table)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("epsilons", self.epsilons), ("epsilon", (self.epsilon,))):
            for value in values:
                if not 0 <= value < 1:
                    raise ValueError(f"{name}: got {value:g}, need values in [0, 1)")
        for value in self.candidates:
            if value < 2:
                raise ValueError(f"candidates: got {value}, need at least 2")
        for name, number in (("steps", self.steps), ("dimension", self.dimension)):
            if number < 1:
                raise ValueError(f"{name}: got {number}, need at least 1")
        if self.batch_size < GROUPS:
            raise ValueError(f"batch_size: got {self.batch_size}, need at least {GROUPS}")
        if min(self.table.states, self.table.classes) < 2:
            raise ValueError("table.states and table.classes: need at least 2 of each")
        if not self.lr > 0:
            raise ValueError(f"lr: got {self.lr:g}, need a positive number")


PRESETS = {
    "quick": Config(seeds=1, epsilons=(0.0, 0.1, 0.5, 0.9), candidates=(2, 16, 256), steps=200),
    "paper": Config(),
}


@dataclass(frozen=True)
class Run:
    """One critic; the exact one is not trained."""

    table: Table
    loss: Loss
    critic: Critic
    epsilon: float
    candidates: int
    seed: int
    steps: int
    batch_size: int
    lr: float
    dimension: int


def runs(config: Config) -> list[Run]:
    def critics(loss: Loss, critic: Critic, epsilon: float, candidates: int) -> list[Run]:
        training = (config.steps, config.batch_size, config.lr) if critic != "exact" else (0, 0, 0.0)
        dimension = config.dimension if critic == "embedding" else 0
        seeds = range(config.seeds if critic != "exact" else 1)
        return [Run(config.table, loss, critic, epsilon, candidates, s, *training, dimension) for s in seeds]

    most = max(config.candidates)
    wanted: list[Run] = []
    for epsilon in config.epsilons:
        wanted += critics("soft-dist-info-nce", "free", epsilon, most)
        wanted += critics("soft-dist-info-nce", "embedding", epsilon, most)
        wanted += critics("soft-target-info-nce", "free", epsilon, most)
    for candidates in config.candidates:
        wanted += critics("soft-dist-info-nce", "free", config.epsilon, candidates)
        wanted += critics("soft-dist-info-nce", "exact", config.epsilon, candidates)
    return wanted


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    try:
        for run in todo:
            started = time.perf_counter()
            result = measure(run)
            yield Outcome(run, result, time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)


def measure(run: Run) -> dict[str, float]:
    """Train a critic, and take its bound over the whole table and many sets of negatives."""
    random = np.random.default_rng(run.seed)
    channel = _channel(run)
    scores = _train(run, channel, random) if run.critic != "exact" else _log_ratio(channel)
    p_y = channel.sum(0)
    sets = _counts(p_y, NEGATIVE_SETS, run.candidates - 1, random)
    # The expectation over (z, y) is exact; only the negatives are sampled.
    each = torch.cat([(channel * _losses(scores, part)).sum((-1, -2)) for part in sets.split(200)])
    loss, negatives = each.mean(), run.candidates - 1
    posterior = channel / channel.sum(1, keepdim=True)
    classifier = classifier_information(scores + p_y.log(), posterior, p_y)
    return {
        "truth": mutual_information(channel).item(),
        "bound": information_bound(loss, negatives).item(),
        "standard_error": (each.std() / math.sqrt(len(each))).item(),
        "paper_bound": paper_information_bound(loss, negatives).item(),
        "classifier_bound": (channel.sum(1) @ classifier).item(),
    }


def _channel(run: Run) -> Tensor:
    """p(z, a) of what the loss contrasts: labels drawn from the smoothed ones, or the soft targets themselves.

    A soft target (1 − ε)·e_y + ε·p_Y tells its label, so as a variable it is the label.
    """
    joint = run.table.joint()
    return smoothed_joint(joint, run.epsilon) if run.loss == "soft-dist-info-nce" else joint


def _log_ratio(channel: Tensor) -> Tensor:
    return (channel / channel.sum(0) / channel.sum(1, keepdim=True)).log()


def _train(run: Run, channel: Tensor, random: np.random.Generator) -> Tensor:
    """Scores of all pairs (Z, K) after training. A soft target scores (1 − ε)·s_y, plus what all have in common."""
    states, classes = channel.shape
    if run.critic == "free":
        parameters = [torch.zeros(states, classes, dtype=torch.float64)]
    else:
        shapes = (states, run.dimension), (classes, run.dimension)
        parameters = [torch.from_numpy(random.normal(size=shape)) for shape in shapes]
    for parameter in parameters:
        parameter.requires_grad_()
    p_y, size = channel.sum(0), run.batch_size // GROUPS
    sharpness = 1 - run.epsilon if run.loss == "soft-target-info-nce" else 1.0
    optimiser = torch.optim.Adam(parameters, lr=run.lr / sharpness)  # the same steps in the scores whatever ε is
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, run.steps)

    def scores() -> Tensor:
        return sharpness * (parameters[0] if len(parameters) == 1 else parameters[0] @ parameters[1].T)

    for _ in range(run.steps):
        pairs = _counts(channel.flatten(), GROUPS, size, random).view(GROUPS, states, classes)
        negatives = _counts(p_y, GROUPS, run.candidates - 1, random)
        optimiser.zero_grad()
        ((pairs * _losses(scores(), negatives)).sum() / (GROUPS * size)).backward()
        optimiser.step()
        schedule.step()
    return scores().detach()


def _counts(probs: Tensor, sets: int, size: int, random: np.random.Generator) -> Tensor:
    """How often each outcome came up among ``size`` draws, (sets, outcomes); by binomials, whatever the size."""
    return torch.from_numpy(random.multinomial(size, (probs / probs.sum()).numpy(), size=sets)).double()


def _losses(scores: Tensor, counts: Tensor) -> Tensor:
    """ℓ of every pair (z, y) beside each set of negatives, from their class counts: (Z, K), (B, K) → (B, Z, K)."""
    others = (scores + counts.log()[:, None]).logsumexp(-1, keepdim=True)
    return torch.logaddexp(scores, others) - scores


def _main(rows: Sequence[Row]) -> tuple[list[Row], tuple[str, int, int]]:
    """The rows of the table, steps and batch size that have the most of them, and these three."""
    trained = [row for row in rows if row.config["critic"] != "exact"]
    settings = [(str(row.config["table"]), row.config["steps"], row.config["batch_size"]) for row in trained]
    chosen = max(set(settings), key=lambda setting: (settings.count(setting), setting))
    wanted = [row for row in rows if str(row.config["table"]) == chosen[0] and row.config["steps"] in (0, chosen[1])]
    return wanted, chosen


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding
    from softnce.lab.experiment.statistics import estimate
    from softnce.lab.report.page import counted, prose

    rows, _ = _main(rows)
    on = f"a known table p(z, y), {counted(len({row.config['seed'] for row in rows}), 'seed')}"
    drawn = [row for row in rows if row.config["loss"] == "soft-dist-info-nce"]
    excess = {row.id: row.result["paper_bound"] - row.result["truth"] for row in drawn}
    errors = max(excess[row.id] / row.result["standard_error"] for row in drawn)
    above = f"the highest of {len(drawn)} bounds stands at {max(excess.values()):+.4f} nats from its truth"
    found = {"bound": Finding(prose(above), on, "reproduced" if errors <= 4 else "not reproduced")}

    most = max(row.config["candidates"] for row in rows)
    free = [row for row in rows if row.config["critic"] == "free" and row.config["candidates"] == most]
    ends = min(row.config["epsilon"] for row in free), max(row.config["epsilon"] for row in free)
    bounds = {
        loss: [
            estimate([r.result["bound"] for r in free if (r.config["loss"], r.config["epsilon"]) == (loss, end)]).mean
            for end in ends
        ]
        for loss in ("soft-dist-info-nce", "soft-target-info-nce")
    }
    (first, last), (soft_first, soft_last) = bounds.values()
    course = f"""bound {first:.2f} → {last:.2f} nats from ε = {ends[0]:g} to {ends[1]:g} for labels drawn from soft
        targets; it does not carry over to soft target InfoNCE, {soft_first:.2f} → {soft_last:.2f}"""
    if ends[0] < ends[1]:
        found["bound-epsilon"] = Finding(prose(course), on, "reproduced" if last < first else "not reproduced")
    return found


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.experiment.statistics import estimate
    from softnce.lab.report.charts import Figure, Level, Line, Panel
    from softnce.lab.report.page import Section, counted, prose
    from softnce.lab.report.style import OTHER

    rows, chosen = _main(rows)
    table = Table(**rows[0].config["table"])
    joint = table.joint()
    most = max(row.config["candidates"] for row in rows)

    def curve(x: str, value: str = "bound", **wanted: Any) -> tuple[list[float], list[float], list[float], list[float]]:
        groups: dict[float, list[float]] = {}
        for row in rows:
            if all(row.config[name] == choice for name, choice in wanted.items()):
                groups.setdefault(row.config[x], []).append(row.result[value])
        points = [(at, estimate(values)) for at, values in sorted(groups.items())]
        mean, low, high = ([getattr(e, name) for _, e in points] for name in ("mean", "low", "high"))
        return [at for at, _ in points], mean, low, high

    soft_dist = {"loss": "soft-dist-info-nce", "critic": "free"}
    soft_target = {"loss": "soft-target-info-nce", "critic": "free"}
    varied = [row for row in rows if row.config["critic"] == "exact"]
    epsilon = varied[0].config["epsilon"]
    dimension = max(row.config["dimension"] for row in rows)
    grid = [i / 50 for i in range(51)]
    smoothed = [mutual_information(smoothed_joint(joint, e)).item() for e in grid]
    uniform = torch.full((table.classes,), 1 / table.classes, dtype=torch.float64)
    elsewhere = [smoothed_joint(joint, e, uniform) for e in grid]
    expression = [(entropy(joint.sum(0)) - conditional_entropy(channel)).item() for channel in elsewhere]
    information = [mutual_information(channel).item() for channel in elsewhere]
    truth = mutual_information(joint).item()
    at_epsilon = mutual_information(smoothed_joint(joint, epsilon)).item()
    over_m = [float(m) for m in sorted({row.config["candidates"] for row in varied})]

    figure = Figure(
        "bounds",
        prose(f"""Bounds found by trained critics, and the truth they bound; means over
            {counted(len({row.config["seed"] for row in rows}), "seed")}, whose 95 % intervals are mostly narrower than
            the lines. Left: over ε, with M = {most} candidates. Middle: over M, at ε = {epsilon:g}. Right: ξ uniform
            instead of the labels' marginal; the printed left-hand side of the bound falls below zero."""),
        [
            Panel(
                f"smoothing, M = {most}",
                "ε",
                "information (nats)",
                [
                    Line("I_ε(Z;Y)", grid, smoothed, colour="#333333"),
                    Level("I(Z;Y)", truth),
                    Line.of_loss(
                        "soft-dist-info-nce",
                        *curve("epsilon", candidates=most, **soft_dist),
                        suffix=", free critic",
                        dash="dot",
                    ),
                    Line.of_loss(
                        "soft-target-info-nce",
                        *curve("epsilon", candidates=most, **soft_target),
                        suffix=", free critic",
                        dash="dot",
                    ),
                    Line(
                        f"soft distribution InfoNCE, z·y of {counted(dimension, 'dimension')}",
                        *curve("epsilon", candidates=most, loss="soft-dist-info-nce", critic="embedding"),
                        colour="#56B4E9",
                        marker="s",
                        dash="dot",
                    ),
                ],
                y_range=(0, 1.1 * truth),
            ),
            Panel(
                f"candidates, ε = {epsilon:g}",
                "M",
                "information (nats)",
                [
                    Line("I_ε(Z;Y)", over_m, [at_epsilon] * len(over_m), colour="#333333"),
                    Line("log M, the ceiling", over_m, [math.log(m) for m in over_m], colour=OTHER, dash="dash"),
                    Line.of_loss(
                        "soft-dist-info-nce",
                        *curve("candidates", epsilon=epsilon, **soft_dist),
                        suffix=", free critic",
                        dash="dot",
                    ),
                    Line(
                        "the same as printed, log N − ℓ",
                        *curve("candidates", "paper_bound", epsilon=epsilon, **soft_dist),
                        colour="#D55E00",
                        marker="x",
                        dash="dot",
                    ),
                    Line(
                        "the same critic as a classifier",
                        *curve("candidates", "classifier_bound", epsilon=epsilon, **soft_dist),
                        colour="#E69F00",
                        marker="D",
                        dash="dot",
                    ),
                ],
                log_x=True,
                y_range=(-0.75, 1.35 * at_epsilon),
            ),
            Panel(
                "ξ uniform, not p(y)",
                "ε",
                "nats",
                [
                    Line("H(Y) − H_ε(Y|Z), as printed", grid, expression, colour="#D55E00"),
                    Line("I of the smoothed channel", grid, information, colour="#333333", dash="dash"),
                    Level("", 0.0),
                ],
            ),
        ],
    )

    free = [row for row in rows if row.config["critic"] == "free"]
    highest = max(row.result["bound"] - row.result["truth"] for row in rows)
    excess = max((row.result["bound"] - row.result["truth"]) / row.result["standard_error"] for row in rows)
    at_most = [row for row in free if row.config["candidates"] == most]
    gap = max(row.result["truth"] - row.result["bound"] for row in at_most)
    limit = max(row.result["truth"] - row.result["bound"] for row in varied if row.config["candidates"] == most)
    here = [row for row in at_most if row.config["epsilon"] == epsilon and row.config["loss"] == "soft-dist-info-nce"]
    missed = max(row.result["truth"] - row.result["bound"] for row in here)
    fewest = min(row.config["candidates"] for row in varied)
    few = [row for row in free if row.config["candidates"] == fewest]
    saturated = sum(row.result["bound"] for row in few) / len(few)
    classifier = max(row.result["truth"] - row.result["classifier_bound"] for row in few)
    small = [row for row in rows if row.config["critic"] == "embedding" and row.config["epsilon"] == 0]
    rule = "No bound exceeds the information it bounds" if excess <= 4 else "A bound exceeds the information it bounds"
    summary = prose(f"""{rule}, and a critic that can be exact comes within {gap:.3f} nats of it at M = {most}.
        Smoothing lowers what soft distribution InfoNCE bounds; it leaves untouched what soft target InfoNCE bounds,
        which is I(Z;Y) itself.""")
    blocks: list[str | Figure] = [
        prose(f"""Z has {table.states} values, Y {table.classes}, I(Z;Y) = {truth:.3f} nats and
            I_ε(Z;Y) = {at_epsilon:.3f} at ε = {epsilon:g}. The highest bound stands at {highest:+.4f} nats from its
            truth, {excess:+.1f} standard errors of its {NEGATIVE_SETS} sets of negatives. Of the {missed:.4f} nats that
            the free critic misses at that ε and M = {most}, {limit:.4f} are missed by the exact critic too: they are
            the price of M candidates, not of training."""),
        figure,
        prose("""A soft target (1 − ε)·e_y + ε·p_Y tells its label however large ε < 1 is. The information that soft
            target InfoNCE bounds is therefore the labels', for every ε, and ε only scales its scores. Drawing a label
            from the same soft target loses information, and soft distribution InfoNCE bounds what is left,
            I_ε(Z;Y). That ε regulates the information holds for that loss, and does not carry over to the other."""),
        prose(f"""With M = {fewest} the bound cannot exceed log {fewest} = {math.log(fewest):.2f} and is
            {saturated:.2f}; yet the critic is good: read as a classifier, by log q(y|z)/p(y), it shows the whole
            information but {classifier:.3f} nats. Few negatives limit the bound, not what is learned from it."""),
    ]
    if small:
        bound = sum(row.result["bound"] for row in small) / len(small)
        blocks.append(
            prose(f"""A critic z·y of {counted(dimension, "dimension")} cannot represent the ratio, and finds
                {bound:.2f} of {truth:.2f} nats without smoothing: a low bound says that the critic is poor, or the
                information, and not which.""")
        )
    method = prose(f"""{chosen[1]} steps of Adam on batches of {chosen[2]} pairs (z, y), in {GROUPS} groups that share
        their M − 1 negatives; the learning rate falls to 0 on a cosine. A bound is log M − ℓ, the loss averaged exactly
        over the table and over {NEGATIVE_SETS} fresh sets of negatives. For soft target InfoNCE the learning rate is
        divided by 1 − ε, by which its scores are multiplied.""")
    return Section("What the losses bound", summary, blocks, [method])
