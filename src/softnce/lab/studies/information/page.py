"""The section of the information study."""

import math
from collections.abc import Sequence
from typing import Any

from softnce.lab.experiment.comparison import over
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import estimate
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Figure, Level, Line, Mark, Panel, curve
from softnce.lab.report.page import Block, Section, Table
from softnce.lab.report.style import OTHER, SERIES
from softnce.lab.studies.information.findings import (
    DRAWN,
    ERRORS,
    EXPECTED,
    SOFT,
    UNFINISHED,
    Information,
    excess,
    read,
)
from softnce.lab.studies.information.run import GROUPS, NEGATIVE_SETS

ORDER = 70
TRUTH = OTHER


def section(rows: Sequence[Row]) -> Section:
    found = read(rows)
    exact, free = (found.over("candidates", critic=critic) for critic in ("exact", "free"))
    if not exact or not {min(exact), found.most} <= free.keys():
        raise ValueError(UNFINISHED)
    rule = "No bound exceeds" if max(map(excess, found.rows)) <= ERRORS else "A bound exceeds"
    highest = max(row.result["bound"] - row.result["truth"] for row in found.rows)
    gap = max(row.result["truth"] - row.result["bound"] for row in found.of(critic="free", candidates=found.most))
    summary = f"""{rule} the information it bounds (highest difference {highest:+.4f} nats), and a critic that can
        be exact comes within {gap:.3f} nats at M = {found.most}. Smoothing lowers I_ε(Z;Y), which soft distribution
        InfoNCE bounds. It does not change I(Z;Y), which soft target InfoNCE bounds."""
    method = f"""{found.steps} steps of Adam on batches of {found.batch_size} pairs (z, y), in {GROUPS} groups that
        share their M − 1 negatives; the learning rate falls to 0 on a cosine. A bound is log M − ℓ, the loss averaged
        exactly over the table and over {NEGATIVE_SETS} fresh sets of negatives. For soft target InfoNCE the learning
        rate is divided by 1 − ε, because its scores are multiplied by it."""
    blocks: list[Block] = [_figure(found), _few_candidates(found), _expected_table(found)]
    return Section("What the losses bound", summary, blocks, [method])


def _figure(found: Information) -> Figure:
    most, epsilon = found.most, found.epsilon
    grid = [i / 50 for i in range(51)]
    expression, information = zip(*map(found.smoothed_uniformly, grid), strict=True)
    free: dict[str, Any] = {"critic": "free", "candidates": most}
    varied: dict[str, Any] = {"critic": "free", "loss": DRAWN, "epsilon": epsilon}
    over_m = [float(m) for m in found.over("candidates", critic="exact")]
    dimension = counted(max(row.config["dimension"] for row in found.rows), "dimension")
    embedding = curve(found.over("epsilon", loss=DRAWN, critic="embedding", candidates=most))
    trained: dict[str, Any] = {"suffix": ", free critic", "dash": "dot"}
    smoothing: list[Mark] = [
        Line("I_ε(Z;Y)", grid, [found.truth(e) for e in grid], colour=TRUTH),
        Level("I(Z;Y)", found.truth()),
        *(Line.of_loss(loss, *curve(found.over("epsilon", loss=loss, **free)), **trained) for loss in (DRAWN, SOFT)),
        Line(f"soft distribution InfoNCE, z·y of {dimension}", *embedding, colour=SERIES[2], marker="s", dash="dot"),
    ]
    paper, classifier = (
        curve(found.over("candidates", value, **varied)) for value in ("paper_bound", "classifier_bound")
    )
    candidates: list[Mark] = [
        Line("I_ε(Z;Y)", over_m, [found.truth(epsilon)] * len(over_m), colour=TRUTH),
        Line("log M, the ceiling", over_m, [math.log(m) for m in over_m], colour=SERIES[3], dash="dash"),
        Line.of_loss(DRAWN, *curve(found.over("candidates", **varied)), **trained),
        Line("the same as printed, log N − ℓ", *paper, colour=SERIES[1], marker="x", dash="dot"),
        Line("the same critic as a classifier", *classifier, colour=SERIES[0], marker="D", dash="dot"),
    ]
    uniform: list[Mark] = [
        Line("H(Y) − H_ε(Y|Z), as printed", grid, expression, colour=SERIES[1]),
        Line("I of the smoothed channel", grid, information, colour=TRUTH, dash="dash"),
        Level("", 0.0),
    ]
    if found.expected:
        m = max(row.config.get("noise_count", 0.0) for row in found.expected if row.config["critic"] == "exact")
        ours = [row for row in found.expected if row.config["critic"] == "free" and row.config.get("noise_count") == m]
        at_most = [row for row in ours if row.config["candidates"] == most]
        at_epsilon = [row for row in ours if row.config["epsilon"] == epsilon]
        smoothing.append(Line.of_loss(EXPECTED, *_course(at_most, "epsilon"), suffix=f", m = {m:g}", dash="dot"))
        candidates.append(Line.of_loss(EXPECTED, *_course(at_epsilon, "candidates"), suffix=f", m = {m:g}", dash="dot"))
    nats, top = "information (nats)", 1.35 * found.truth(epsilon)
    return Figure(
        "bounds",
        f"""Bounds found by trained critics, and the true values; means over {found.seeds}, whose 95 % intervals
            are mostly narrower than the lines. Left: over ε. Middle: over M. Right: ξ uniform instead of the labels'
            marginal; the printed left-hand side of the bound falls below zero.""",
        [
            Panel(f"smoothing, M = {most}", "ε", nats, smoothing, y_range=(0, 1.1 * found.truth())),
            Panel(f"candidates, ε = {epsilon:g}", "M", nats, candidates, log_x=True, y_range=(-0.75, top)),
            Panel("ξ uniform, not p(y)", "ε", "nats", uniform),
        ],
    )


def _course(rows: Sequence[Row], x: str) -> tuple[list[float], list[float], list[float], list[float]]:
    return curve(over(rows, lambda row: row.config[x], lambda row: row.result["bound"]))


def _expected_table(found: Information) -> Table | None:
    """Bounds of expected InfoNCE over M, by m and η, at the ε while M changes."""
    rows = [r for r in [*found.expected, *found.outside] if r.config["critic"] == "free"]
    groups = {
        (m, eta): [r for r in rows if r.config.get("noise_count", 0.0) == m and r.config.get("noise", "p(y)") == eta]
        for eta, m in sorted({(r.config.get("noise", "p(y)"), r.config.get("noise_count", 0.0)) for r in rows})
    }
    sizes = sorted({row.config["candidates"] for row in rows})
    body = []
    for (m, eta), members in groups.items():
        there = [r for r in members if r.config["epsilon"] == found.epsilon]
        means = over(there, lambda row: row.config["candidates"], lambda row: row.result["bound"])
        highest = max(row.result["bound"] - row.result["truth"] for row in members)
        cells = [f"{means[size].mean:.3f}" if size in means else "–" for size in sizes]
        body.append([f"m = {m:g}, η {'= ' if eta == 'p(y)' else ''}{eta}", *cells, f"{highest:+.4f}"])
    caption = f"""Bounds log(M + m) − ℓ of free critics trained by expected InfoNCE, at ε = {found.epsilon:g}, where the
        true value is {found.truth(found.epsilon):.3f} nats; the last column is the highest bound minus its true value
        over all ε and seeds. If η is not the labels' marginal, it is not a bound."""
    return Table(["expected InfoNCE", *(f"M = {size}" for size in sizes), "highest"], body, caption) if body else None


def _few_candidates(found: Information) -> str:
    fewest = min(found.over("candidates", critic="exact"))
    few = found.of(critic="free", candidates=fewest)
    bound = estimate([row.result["bound"] for row in few]).mean
    lost = max(row.result["truth"] - row.result["classifier_bound"] for row in few)
    return f"""I(Z;Y) = {found.truth():.3f} nats, I_ε(Z;Y) = {found.truth(found.epsilon):.3f} at ε =
        {found.epsilon:g}. With M = {fewest} candidates the bound cannot exceed log {fewest} = {math.log(fewest):.2f}
        and is {bound:.2f}; the same critic used as a classifier, by log q(y|z)/p(y), finds all but {lost:.3f} nats of
        the information."""
