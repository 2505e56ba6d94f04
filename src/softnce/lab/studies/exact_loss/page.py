"""Errors and gradient noise against what a draw says; the distribution of draws; the cost of a step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.text import counted
from softnce.lab.losses import TITLES
from softnce.lab.report.charts import Figure, Level, Line, Mark, Panel, Points, band
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import AVERAGED, LOSSES
from softnce.lab.studies.exact_loss.distribution import EXACT_UP_TO, SMOOTHING
from softnce.lab.studies.exact_loss.findings import TARGETS, Cost, Trainings, costs, shapes, trainings
from softnce.lab.studies.exact_loss.training import CLASSES, DIMENSION, SPREAD, Method, Problem

ORDER = 80
EXACT, ORANGE, BLUE = "#882255", "#D55E00", "#0072B2"
PROBLEMS: dict[Problem, str] = {
    "digits": "digits, K = 10, smoothed labels",
    "conditional": f"K = {CLASSES}, the true conditional",
    "labels": f"K = {CLASSES}, smoothed labels",
}
BATCH: dict[Problem, int] = {"digits": 100, "conditional": 256, "labels": 256}
PLAIN = ("soft-ce", "soft-target-info-nce", "soft-dist-info-nce")
Curve = tuple[list[float], list[float] | None, list[float] | None]
"""Heights, and the band around them."""


def section(rows: Sequence[Row]) -> Section:
    trained, of_classes, of_cost = trainings(rows), shapes(rows), costs(rows)
    blocks: list[str | Figure | Table | None] = []
    if trained.rows:
        blocks += [_errors_table(trained), _training_figure(trained), _course_figure(trained), _astray(trained)]
        blocks += [_table(trained, problem) for problem in trained.rows]
    if of_classes:
        blocks += [_strength_text(of_classes), _strength_figure(of_classes)]
        blocks += [_original_text(of_classes), _original_figure(of_classes)]
    if of_cost:
        largest = max(of_cost)
        blocks.append(f"""10,000 draws from the continuous categorical of one smoothed label at K = {largest} take
            {of_cost[largest].times_dirichlet:.1f} times what 10,000 Dirichlet draws take.""")
        blocks.append(_cost_table(of_cost))
    return Section("What the exact loss buys", _summary(trained), blocks, _method())


def _name(method: Method) -> str:
    match method.kind:
        case "averaged":
            return f"mean of n = {method.strength:g}"
        case "continuous":
            return f"exact, κ = {method.strength:g}"
    return TITLES[method.kind]


def _summary(trained: Trainings) -> str:
    parts = []
    for problem, target in TARGETS.items():
        best = [trained.best(problem, kind) for kind in ("continuous", *PLAIN)]
        if all(best):
            errors = (f"{trained.error(problem, method).mean:.3f} ({_name(method)})" for method in best if method)
            parts.append(f"With {target}, KL to the truth at the best temperature is {', '.join(errors)} nats.")
    return f"The exact loss can be trained, at any number of classes. {' '.join(parts)}"


def _errors_table(trained: Trainings) -> Table:
    """Each loss that draws nothing or a label, and of the others the best and the derivation's."""

    def line(title: str, find: Callable[[Problem], Method | None], symbol: str = "") -> list[str]:
        cells = []
        for problem in trained.rows:
            method = find(problem)
            strength = f" ({symbol} = {method.strength:g})" if method and symbol else ""
            cells.append(f"{trained.error(problem, method).mean:.3f}{strength}" if method else "–")
        return [title, *cells]

    one = Method("continuous", 1.0)
    body = [line(TITLES[kind], lambda problem, kind=kind: trained.best(problem, kind)) for kind in PLAIN]  # type: ignore[misc]
    body += [
        line("mean of labels, the best n", lambda problem: trained.best(problem, "averaged"), "n"),
        line("exact, the best κ", lambda problem: trained.best(problem, "continuous"), "κ"),
        line("exact, κ = 1, as derived", lambda problem: one if one in trained.rows[problem] else None),
    ]
    return Table(
        ["loss", *(PROBLEMS[problem] for problem in trained.rows)],
        body,
        f"""Error at the best temperature, in nats: KL(p‖q), for digits the likelihood. Means over
        {counted(trained.seeds, "seed")}.""",
    )


def _training_figure(trained: Trainings) -> Figure:
    above, below = [], []
    for problem in trained.rows:
        label = "negative log-likelihood (nats)" if problem == "digits" else "KL(p‖q) (nats)"
        errors, noises = _error_marks(trained, problem), _noise_marks(trained, problem)
        above.append(Panel(PROBLEMS[problem], "nats in a draw", label, errors, log_x=True, log_y=True))
        below.append(Panel("", "nats in a draw", "gradient noise", noises, log_x=True, log_y=True))
    caption = f"""Above: error of the trained model at its best temperature, mean and 95 % interval over
        {counted(trained.seeds, "seed")}, against what a draw says about its target. Below: noise of the gradient (seed
        0), in batches to average until signal equals noise. Dashed: losses that draw nothing."""
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
        height = curve([method])[0] if method.kind in PLAIN else []
        if method.kind == "soft-dist-info-nce" and method in known:
            marks.append(Points.of_loss(method.kind, [known[method]], height))
        elif method.kind in ("soft-ce", "soft-target-info-nce"):
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
        Line.of_loss(method.kind, *course(method), marker="") for method in found if method.kind in LOSSES
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


def _astray(trained: Trainings) -> str | None:
    """How far soft target InfoNCE falls where a target tells its sample from the others."""
    soft, exact = (trained.best("conditional", kind) for kind in ("soft-target-info-nce", "continuous"))
    if soft is None or exact is None:
        return None
    accuracy = trained.course("conditional", soft)
    return f"""With the true conditional as soft target the accuracy of soft target InfoNCE ends at
        {100 * accuracy[-1]:.1f} %, after a peak of {100 * max(accuracy):.1f} %; that of the exact loss at
        {100 * trained.score("conditional", exact, "accuracy").mean:.1f} % (docs/theory.md says why)."""


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


def _strength_figure(of_classes: dict[int, dict[str, Any]]) -> Figure:
    classes = list(of_classes)
    looks = {"1": (EXACT, "o"), "√K": (ORANGE, "D"), "K": (BLUE, "s")}

    def lines(value: Callable[[int, dict[str, Any]], float]) -> list[Mark]:
        return [
            Line(
                f"κ = {name}",
                classes,
                [value(k, shape["strength"][name]) for k, shape in of_classes.items()],
                colour=colour,
                marker=marker,
            )
            for name, (colour, marker) in looks.items()
        ]

    label = Line("one label", classes, [shape["label_nats"] for shape in of_classes.values()], dash="dash")
    nats = [*lines(lambda k, strength: strength["nats"]), label]
    weight = [*lines(lambda k, strength: k * strength["mean_of_true_class"]), Level("", 1.0)]
    caption = f"""What a draw from the continuous categorical distribution of a label smoothed by {SMOOTHING:g} says
        about it, exactly. Left: KL to a draw from the uniform noise. Right: mean weight of the true class, in units of
        the 1/K it has under the noise."""
    panels = [
        Panel("nats in a draw", "K", "nats", nats, log_x=True, log_y=True),
        Panel("weight of the true class", "K", "mean × K", weight, log_x=True, log_y=True),
    ]
    return Figure("strength", caption, panels)


def _strength_text(of_classes: dict[int, dict[str, Any]]) -> str:
    k = 1000 if 1000 in of_classes else max(of_classes)
    weak, strong = (of_classes[k]["strength"][name] for name in ("1", "K"))
    return f"""At K = {k} and κ = 1 the true class has mean {weak["mean_of_true_class"]:.6f} in a draw against
        {1 / k:.6f} under the noise, and the draw carries {weak["nats"]:.2g} nats about its target, where a drawn label
        carries {of_classes[k]["label_nats"]:.2g}, and a draw at κ = K {strong["nats"]:.2g}."""


def _shown(error: float | None) -> float:
    return 1.0 if error is None else min(max(error, 1e-16), 1.0)


def _original_figure(of_classes: dict[int, dict[str, Any]]) -> Figure:
    errors = {k: shape for k, shape in of_classes.items() if "error" in shape}
    drawn = {k: shape for k, shape in of_classes.items() if shape["log10_original_proposals"] <= 15}

    def lines(original: dict[int, float], ours: dict[int, float]) -> list[Mark]:
        return [
            Line("original authors", list(original), list(original.values()), colour=ORANGE, marker="D"),
            Line("softnce", list(ours), list(ours.values()), colour=BLUE, marker="o"),
        ]

    normaliser = lines(
        {k: _shown(shape["original_error"]) for k, shape in errors.items()},
        {k: _shown(shape["error"]) for k, shape in errors.items()},
    )
    sampler = lines(
        {k: 10 ** shape["log10_original_proposals"] for k, shape in drawn.items()},
        {k: shape["proposals"] for k, shape in of_classes.items()},
    )
    caption = """This library beside the method of the distribution's original authors. Left: error of log Z in fp64,
        for normal ω. Right: proposals per draw for a smoothed label; the original's grow faster than exponentially and
        leave the picture."""
    panels = [
        Panel("normaliser", "K", "absolute error of log Z", normaliser, log_x=True, log_y=True),
        Panel("sampler", "K", "proposals per draw", sampler, log_x=True, log_y=True),
    ]
    return Figure("original", caption, panels)


def _original_text(of_classes: dict[int, dict[str, Any]]) -> str:
    errors = {k: shape for k, shape in of_classes.items() if "error" in shape}
    lost = next((k for k, shape in errors.items() if _shown(shape["original_error"]) > 1e-3), None)
    before = f"The original sum has lost its digits by K = {lost}. Here" if lost else "Here"
    k, worst = max(of_classes), max((shape["error"] for shape in errors.values()), default=math.nan)
    return f"""{before} the largest error up to K = {max(errors, default=0)} is {worst:.1g}, and a draw takes at most
        {max(shape["proposals"] for shape in of_classes.values()):.2f} proposals up to K = {k}, where ordered rejection
        would take 10^{of_classes[k]["log10_original_proposals"]:.0f}."""


def _cost_table(of_cost: dict[int, Cost]) -> Table:
    methods = dict.fromkeys(method for cost in of_cost.values() for method in cost.milliseconds)
    return Table(
        ["milliseconds per step", *(f"K = {k}" for k in of_cost)],
        [[_name(m), *(_number(cost.milliseconds.get(m)) for cost in of_cost.values())] for m in methods],
        f"""Loss and gradient of {of_cost[max(of_cost)].rows} rows against as many candidates, smoothed labels, one
        core; medians of interleaved repetitions.""",
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _method() -> list[str]:
    return [
        f"""Digits: 400 to train on, the other 1397 to test; two hidden layers of 128, Adam at 1e-3, batches of 100.
        Known conditional: x normal in {DIMENSION} dimensions, p(y|x) ∝ exp(x·θ_y + b_y) with normal θ (standard
        deviation {SPREAD:g}) and b, {CLASSES} classes, 4096 samples to train on and 4096 to test; the linear model,
        which contains the truth, Adam at 0.02, batches of 256. Learning rates fall to 0 on a cosine; they were not
        tuned for any loss. The best temperature is fitted on the test set itself: it shows what of the error is a
        matter of scale.""",
        """Gradient noise is the variance of one batch's gradient, from data and draws together, over the square of its
        mean, at the weights after one epoch of soft target cross-entropy. Nats are KL(draw from the target ‖ draw from
        η), over 512 training targets.""",
        f"""The original authors' method is re-implemented: the normaliser as a sum of terms of either sign, in fp64,
        against 30-digit arithmetic, for five normal ω up to K = {EXACT_UP_TO} (median errors, shown within 1e-16 and
        1); the sampler by ordered rejection, whose acceptance is known in closed form.""",
    ]
