"""Errors and gradient noise against what a draw says; the distribution of draws; the cost of a step."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import estimate
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.report.charts import Figure, Level, Line, Mark, Panel, Points, band
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import AVERAGED, LOSSES, SERIES
from softnce.lab.studies.exact_loss.distribution import EXACT_UP_TO, SMOOTHING
from softnce.lab.studies.exact_loss.findings import (
    EXPECTED,
    TARGETS,
    Close,
    Cost,
    Shapes,
    Trainings,
    close,
    costs,
    shapes,
    trainings,
)
from softnce.lab.studies.exact_loss.training import CLASSES, DIMENSION, SPREAD, Method, Problem

ORDER = 80
EXACT, THEIRS, OURS = SERIES[1], SERIES[0], SERIES[2]
STRENGTHS = {"1": (EXACT, "o"), "√K": (THEIRS, "D"), "K": (OURS, "s")}  # how each κ is drawn
PROBLEMS: dict[Problem, str] = {
    "digits": "digits, K = 10, smoothed labels",
    "conditional": f"K = {CLASSES}, the true conditional",
    "labels": f"K = {CLASSES}, smoothed labels",
}
BATCH: dict[Problem, int] = {"digits": 100, "conditional": 256, "labels": 256}
PLAIN = ("soft-ce", "soft-target-info-nce", "soft-dist-info-nce")
EXPECTED_LOSSES = (EXPECTED, Method("expected-info-nce", noise_count=0.0))
METHOD = f"""Digits: two hidden layers of 128, Adam at 1e-3. Known conditional: x normal in {DIMENSION} dimensions,
    p(y|x) ∝ exp(x·θ_y + b_y) with normal θ (standard deviation {SPREAD:g}) and b, {CLASSES} classes, 4096 samples to
    train on and 4096 to test; the linear model, which contains the truth, Adam at 0.02. Learning rates fall to 0 on a
    cosine; they were not tuned for any loss. The best temperature is fitted on the test set itself: it shows how much
    of the error depends on the scale of the scores. Gradient noise is measured at the weights after one epoch of soft
    target cross-entropy. Errors of log Z are medians of five ω, up to K = {EXACT_UP_TO} and within 1e-16 and 1."""
Curve = tuple[list[float], list[float] | None, list[float] | None]
"""Heights, and the band around them."""


def section(rows: Sequence[Row]) -> Section:
    trained, of_classes, of_cost = trainings(rows), shapes(rows), costs(rows)
    blocks: list[str | Figure | Table | None] = []
    if trained.rows:
        blocks += [_errors_table(trained), _training_figure(trained), _course_figure(trained), _astray(trained)]
        blocks += [_table(trained, problem) for problem in trained.rows]
        blocks.append(_close_table(close(rows)))
    if of_classes:
        blocks += [_strength_figure(of_classes), _original_figure(of_classes)]
    if of_cost:
        blocks.append(_cost_table(of_cost))
    return Section("The exact loss", _summary(trained), blocks, [METHOD])


def _name(method: Method) -> str:
    match method.kind:
        case "averaged":
            return f"mean of n = {method.strength:g}"
        case "continuous":
            return f"exact, κ = {method.strength:g}"
    return TITLES[method.kind] + ("" if method.noise_count is None else f", m = {method.noise_count:g}")


def _summary(trained: Trainings) -> str:
    parts = []
    for problem, target in TARGETS.items():
        best = [trained.best(problem, kind) for kind in ("continuous", "soft-ce")]
        if all(best):
            ours, plain = (trained.error(problem, method).mean for method in best if method)
            parts.append(f"""With {target}, its KL to the truth at the best temperature is {ours:.3f} nats, that of soft
                target cross-entropy {plain:.3f}.""")
    return f"The exact loss can be trained with any number of classes. {' '.join(parts)}"


def _training_figure(trained: Trainings) -> Figure:
    above, below = [], []
    for problem in trained.rows:
        label = "negative log-likelihood (nats)" if problem == "digits" else "KL(p‖q) (nats)"
        errors, noises = _error_marks(trained, problem), _noise_marks(trained, problem)
        above.append(Panel(PROBLEMS[problem], "nats in a draw", label, errors, log_x=True, log_y=True))
        below.append(Panel("", "nats in a draw", "gradient noise", noises, log_x=True, log_y=True))
    caption = f"""Above: error of the trained model at its best temperature, mean and 95 % interval over
        {counted(trained.seeds, "seed")}, against the information in a draw. Below: noise of the gradient (seed
        0), as the number of batches to average until signal equals noise. Dashed: losses that draw nothing."""
    return Figure("training", caption, [*above, *below], columns=len(above), panel_size=(3.9, 2.9))


def _error_marks(trained: Trainings, problem: Problem) -> list[Mark]:
    def curve(methods: Sequence[Method]) -> Curve:
        errors = [trained.error(problem, method) for method in methods]
        middle, _, high = band(errors)
        # An interval may reach below zero, which a logarithmic axis does not.
        return middle, [max(e.low, e.mean / 10) for e in errors], high

    marks = _marks(trained, problem, curve)
    heights = [y for mark in marks if isinstance(mark, Line | Points) for y in mark.y if y is not None]
    log_m = math.log(BATCH[problem])
    return [*marks, Line("log M", [log_m, log_m], [min(heights), max(heights)], dash="dot")]


def _noise_marks(trained: Trainings, problem: Problem) -> list[Mark]:
    def curve(methods: Sequence[Method]) -> Curve:
        found = [trained.once(problem, method, "gradient_noise") for method in methods]
        return [math.nan if value is None else value for value in found], None, None

    return _marks(trained, problem, curve)


def _marks(trained: Trainings, problem: Problem, curve: Callable[[Sequence[Method]], Curve]) -> list[Mark]:
    """Lines over κ and over n; a point for the drawn label; dashed lines for what draws nothing."""
    nats = {method: trained.once(problem, method, "nats") for method in trained.rows[problem]}
    known = {method: value for method, value in nats.items() if value is not None}
    marks: list[Mark] = []
    strengths: list[float] = []
    for kind, label, colour, marker in (
        ("continuous", "exact, over κ", EXACT, "o"),
        ("averaged", "mean of n labels, over n", AVERAGED[0], "s"),
    ):
        x = {method: value for method, value in known.items() if method.kind == kind}
        strengths += x.values()
        marks.append(Line(label, list(x.values()), *curve(list(x)), colour=colour, marker=marker))
    ends = [min(strengths, default=0.1), max(strengths, default=10.0)]
    for method in trained.rows[problem]:
        height = curve([method])[0] if method.kind in LOSSES else []
        if method.kind == "soft-dist-info-nce" and method in known:
            marks.append(Points.of_loss(method.kind, [known[method]], height))
        elif method.kind in ("soft-ce", "soft-target-info-nce", "expected-info-nce") and method.noise_count is None:
            marks.append(Line.of_loss(method.kind, ends, 2 * height, marker="", dash="dash"))
    return marks


def _course_figure(trained: Trainings) -> Figure | None:
    found = trained.rows.get("conditional")
    if not found:
        return None

    def course(method: Method) -> tuple[list[int], list[float]]:
        accuracy = trained.course("conditional", method)
        return list(range(1, 1 + len(accuracy))), accuracy

    lines: list[Mark] = [
        Line.of_loss(method.kind, *course(method), marker="")
        for method in found
        if method.kind in LOSSES and method.noise_count is None
    ]
    best = trained.best("conditional", "continuous")
    if best is not None:
        for method in dict.fromkeys([trained.of_kind("conditional", "continuous")[0], best]):
            dash = "solid" if method == best else "dot"
            lines.append(Line(_name(method), *course(method), colour=EXACT, dash=dash))
    limit = Level("best possible", next(iter(found.values()))[0].result["best_accuracy"])
    caption = f"""Test accuracy while training on the true conditional as the soft target, mean over
        {counted(trained.seeds, "seed")}."""
    panel = Panel(PROBLEMS["conditional"], "epoch", "accuracy", [*lines, limit])
    return Figure("course", caption, [panel], panel_size=(6.4, 3.2))


def _table(trained: Trainings, problem: Problem) -> Table:
    error = "NLL" if problem == "digits" else "KL(p‖q)"
    columns = {
        "accuracy (%)": ("accuracy", 1, 100),
        error: ("divergence", 3, 1),
        f"{error}, best T": ("divergence_at_temperature", 3, 1),
        "best T": ("temperature", 2, 1),
        "ECE (%)": ("ece", 1, 100),
        "ECE (%), best T": ("ece_at_temperature", 1, 100),
    }
    body = []
    for method in trained.rows[problem]:
        cells = []
        for value, digits, factor in columns.values():
            e = trained.score(problem, method, value)
            cells.append(f"{factor * e.mean:.{digits}f} ± {factor * (e.high - e.mean):.{digits}f}")
        once = [_number(trained.once(problem, method, value)) for value in ("nats", "gradient_noise")]
        body.append([_name(method), *cells, *once])
    caption = f"""{PROBLEMS[problem]}. Mean ± half of the 95 % interval over {counted(trained.seeds, "seed")}; nats and
        noise for seed 0."""
    return Table(["loss", *columns, "nats", "noise"], body, caption)


def _errors_table(trained: Trainings) -> Table:
    """Each loss that draws nothing or a label, and of the others the best and the derivation's."""
    one = Method("continuous", 1.0)
    lines: dict[str, tuple[str, Callable[[Problem], Method | None]]] = {
        **{TITLES[kind]: ("", partial(trained.best, kind=kind)) for kind in PLAIN},
        **{_name(method): ("", partial(_if_there, trained, method)) for method in EXPECTED_LOSSES},
        "mean of labels, the best n": ("n", partial(trained.best, kind="averaged")),
        "exact, the best κ": ("κ", partial(trained.best, kind="continuous")),
        "exact, κ = 1, as derived": ("", partial(_if_there, trained, one)),
    }
    body = []
    for title, (symbol, find) in lines.items():
        cells = []
        for problem in trained.rows:
            method = find(problem)
            strength = f" ({symbol} = {method.strength:g})" if method and symbol else ""
            cells.append(f"{trained.error(problem, method).mean:.3f}{strength}" if method else "–")
        body.append([title, *cells])
    caption = f"""Error at the best temperature, in nats: KL(p‖q), for digits the likelihood. Means over
        {counted(trained.seeds, "seed")}."""
    return Table(["loss", *(PROBLEMS[problem] for problem in trained.rows)], body, caption)


def _close_table(near: Close) -> Table | None:
    """KL on the known conditional, and gradient noise on every problem, over more seeds."""
    body = []
    columns: dict[Problem, str] = {"conditional": "true conditional", "labels": "smoothed labels", "digits": "digits"}
    methods = dict.fromkeys((method, eta) for _, method, eta in near.noise)
    for method, eta in methods:
        of_problem = [near.noise.get((problem, method, eta), {}) for problem in columns]
        kl = near.kl.get(method, {}) if eta == "targets" else {}
        cells = [_spread(kl, 4), *(_spread(values, 3) for values in of_problem)]
        body.append([_name(method) + ("" if eta == "targets" else ", η of the labels before smoothing"), *cells])
    if not body:
        return None
    seeds = max(len(values) for values in near.noise.values())
    caption = f"""Left: KL(p‖q) of the model trained on the true conditional, K = {CLASSES}, as it is. The others: noise
        of the gradient. Mean ± half of the 95 % interval over {counted(seeds, "seed")}. m: number of
        further candidates from η, K unless given."""
    return Table(["loss", "KL(p‖q)", *(f"noise, {title}" for title in columns.values())], body, caption)


def _spread(values: dict[int, float], digits: int) -> str:
    return estimate(list(values.values())).spread(digits) if values else "–"


def _if_there(trained: Trainings, method: Method, problem: Problem) -> Method | None:
    return method if method in trained.rows[problem] else None


def _astray(trained: Trainings) -> str | None:
    """How far soft target InfoNCE falls where a target tells its sample from the others."""
    soft, exact = (trained.best("conditional", kind) for kind in ("soft-target-info-nce", "continuous"))
    if soft is None or exact is None:
        return None
    accuracy = trained.course("conditional", soft)
    return f"""With the true conditional as soft target the accuracy of soft target InfoNCE ends at
        {100 * accuracy[-1]:.1f} %, after a peak of {100 * max(accuracy):.1f} %; that of the exact loss at
        {100 * trained.score("conditional", exact, "accuracy").mean:.1f} % (docs/theory.md says why)."""


def _strength_figure(of_classes: Shapes) -> Figure:
    def lines(value: Callable[[int, dict[str, Any]], float]) -> list[Mark]:
        marks: list[Mark] = []
        for name, (colour, marker) in STRENGTHS.items():
            y = [value(k, shape["strength"][name]) for k, shape in of_classes.items()]
            marks.append(Line(f"κ = {name}", list(of_classes), y, colour=colour, marker=marker))
        return marks

    label = Line("one label", list(of_classes), [shape["label_nats"] for shape in of_classes.values()], dash="dash")
    nats = [*lines(lambda k, strength: strength["nats"]), label]
    weight = [*lines(lambda k, strength: k * strength["mean_of_true_class"]), Level("", 1.0)]
    k = 1000 if 1000 in of_classes else max(of_classes)
    weak, strong = (of_classes[k]["strength"][name] for name in ("1", "K"))
    caption = f"""What a draw from the continuous categorical distribution of a label smoothed by {SMOOTHING:g} says
        about it, exactly. Left: KL to a draw from the uniform noise. Right: mean weight of the true class, in units of
        the 1/K it has under the noise. At K = {k} and κ = 1 that mean is {weak["mean_of_true_class"]:.6f}, and the draw
        carries {weak["nats"]:.2g} nats about its target, a drawn label {of_classes[k]["label_nats"]:.2g}, a draw at κ =
        K {strong["nats"]:.2g}."""
    panels = [
        Panel("nats in a draw", "K", "nats", nats, log_x=True, log_y=True),
        Panel("weight of the true class", "K", "mean × K", weight, log_x=True, log_y=True),
    ]
    return Figure("strength", caption, panels)


def _original_figure(of_classes: Shapes) -> Figure:
    errors = {k: shape for k, shape in of_classes.items() if "error" in shape}
    original = {k: _shown(shape["original_error"]) for k, shape in errors.items()}
    drawn = {k: shape["log10_original_proposals"] for k, shape in of_classes.items()}
    proposals = {k: shape["proposals"] for k, shape in of_classes.items()}

    def lines(theirs: dict[int, float], ours: dict[int, float]) -> list[Mark]:
        return [
            Line("original authors", list(theirs), list(theirs.values()), colour=THEIRS, marker="D"),
            Line("softnce", list(ours), list(ours.values()), colour=OURS, marker="o"),
        ]

    normaliser = lines(original, {k: _shown(shape["error"]) for k, shape in errors.items()})
    sampler = lines({k: 10**power for k, power in drawn.items() if power <= 15}, proposals)
    lost = [f"The original sum has no correct digits left at K = {k}." for k, error in original.items() if error > 1e-3]
    worst = max((shape["error"] for shape in errors.values()), default=math.nan)
    caption = f"""This library and the method of the distribution's original authors. Left: error of log Z in fp64, for
        normal ω. Right: proposals per draw for a smoothed label. {lost[0] if lost else ""} Our error is at most
        {worst:.1g} up to K = {max(errors, default=0)}; a draw takes at most {max(proposals.values()):.2f} proposals up
        to K = {max(drawn)}, where ordered rejection would need 10^{drawn[max(drawn)]:.0f}."""
    panels = [
        Panel("normaliser", "K", "absolute error of log Z", normaliser, log_x=True, log_y=True),
        Panel("sampler", "K", "proposals per draw", sampler, log_x=True, log_y=True),
    ]
    return Figure("original", caption, panels)


def _shown(error: float | None) -> float:
    return 1.0 if error is None else min(max(error, 1e-16), 1.0)


def _cost_table(of_cost: dict[int, Cost]) -> Table:
    methods = dict.fromkeys(method for cost in of_cost.values() for method in cost.milliseconds)
    largest = max(of_cost)
    return Table(
        ["milliseconds per step", *(f"K = {k}" for k in of_cost)],
        [[_name(m), *(_number(cost.milliseconds.get(m)) for cost in of_cost.values())] for m in methods],
        f"""Loss and gradient of {of_cost[largest].rows} rows against as many candidates, smoothed labels, one core;
        medians of interleaved repetitions. 10,000 draws from the continuous categorical of one smoothed label at K =
        {largest} take {of_cost[largest].times_dirichlet:.1f} times what 10,000 Dirichlet draws take.""",
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
