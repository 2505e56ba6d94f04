"""Is the exact loss better than soft target InfoNCE, which replaces its draws by the soft targets themselves?

Soft target InfoNCE is derived from draws of the continuous categorical distribution, then uses the soft targets,
because draws were considered too expensive. Here the exact loss is trained, at concentrations κ from 1 (as derived) up,
and with means of n labels, whose ratio is exact too. Four parts:

  training on digits, and on 100 classes whose conditional p(y|x) is known, with that conditional or a smoothed label as
  the soft target; gradient noise of the losses compared closely; the draws themselves as classes grow (information,
  proposals, error of the normaliser, beside the original authors' method); the cost of a step.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, get_args

from experiments.exact_loss.training import CE, CLASSES, Cost, Kind, Method, Noise, Problem, Shape, Training, perform
from experiments.harness.claims import Finding, verdict
from experiments.harness.experiment import Experiment
from experiments.harness.figures import LOOKS, SERIES, Figure, curve, label, level
from experiments.harness.options import option
from experiments.harness.rows import Row
from experiments.harness.statistics import Estimate, Value, by_seed, estimate, exactly, mean
from experiments.harness.tables import Table

# ------------------------------------------------------------------------------------------------------------ the runs

DRAWN, EXPECTED = Method("soft-dist-info-nce"), Method("expected-info-nce")
BATCH_ONLY = Method("expected-info-nce", noise_count=0.0)
PLAIN = (CE, Method("soft-target-info-nce"), DRAWN)
CLOSE = (CE, DRAWN, EXPECTED, BATCH_ONLY)


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "number of seeds; a seed fixes data, first weights, batches and draws", least=1)
    close_seeds: int = option(5, "seeds of the losses compared closely: known conditional, gradient noise", least=1)
    concentrations: tuple[float, ...] = option(
        (1.0, 3.0, 10.0, 30.0, 100.0), "κ of continuous categorical draws", above=0, below=float("inf")
    )
    labels: tuple[int, ...] = option((1, 2, 4, 16), "n of averaged draws", least=1)
    epochs: int = option(40, "passes over the known conditional's training set, 4096 in batches of 256", least=1)
    digits_epochs: int = option(100, "passes over the training set of digits, 400 in batches of 100", least=1)
    gradients: int = option(200, "batches over which gradient noise is measured", least=2)
    classes: tuple[int, ...] = option(
        (2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 1000, 3000, 10_000), "K for the distribution itself", least=2
    )
    cost_classes: tuple[int, ...] = option((10, 100, 1000), "K for the cost of a step", least=2)


PRESETS = {
    "quick": Options(
        seeds=1, close_seeds=1, concentrations=(1.0, 10.0), labels=(1, 4), epochs=4, digits_epochs=20, gradients=20,
        classes=(2, 3, 5, 10, 20, 30, 100, 1000), cost_classes=(10, 100),
    ),
    "paper": Options(),
}  # fmt: skip


def runs(options: Options) -> list[Any]:
    o, problems = options, get_args(Problem)
    averaged = [Method("averaged", n) for n in o.labels]
    methods = (*PLAIN, *averaged, *(Method("continuous", concentration) for concentration in o.concentrations))
    wanted: list[Any] = [Shape(classes) for classes in o.classes]
    for problem, seed in product(problems, range(max(o.seeds, o.close_seeds))):
        epochs = o.digits_epochs if problem == "digits" else o.epochs
        if seed < o.seeds:
            gradients = o.gradients if seed == 0 else 0
            wanted += [Training(problem, m, seed, epochs, gradients) for m in (*methods, EXPECTED, BATCH_ONLY)]
        elif problem == "conditional":
            wanted += [Training(problem, method, seed, epochs, 0) for method in CLOSE]
        if seed < o.close_seeds:
            wanted += [Noise(problem, method, seed, o.gradients) for method in CLOSE]
    for seed in range(o.close_seeds):
        wanted.append(Noise("labels", Method("expected-info-nce", noise_count=10.0 * CLASSES), seed, o.gradients))
        wanted += [Noise("labels", method, seed, o.gradients, "labels") for method in (EXPECTED, BATCH_ONLY)]
    return [*wanted, *(Cost(classes, methods) for classes in o.cost_classes)]


# --------------------------------------------------------------------------------------------------------- the numbers

TARGETS: dict[str, str] = {"labels": "smoothed labels", "conditional": "true conditional", "digits": "digits"}
Trained = dict[str, dict[Method, list[Row]]]


def of_part(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row.config["part"] == part]


def by_method(rows: Sequence[Row], problem: str) -> dict[Method, list[Row]]:
    """The trainings of the most epochs."""
    of = [row for row in of_part(rows, "training") if row.config["problem"] == problem]
    epochs = max((row.config["epochs"] for row in of), default=0)
    found: dict[Method, list[Row]] = defaultdict(list)
    for row in of:
        if row.config["epochs"] == epochs:
            found[Method(**row.config["method"])].append(row)
    return found


def trainings(rows: Sequence[Row]) -> Trained:
    """By problem and method, of the seeds that all methods of a problem have."""
    found: Trained = {}
    for problem in get_args(Problem):
        if groups := by_method(rows, problem):
            shared = set.intersection(*({row.config["seed"] for row in group} for group in groups.values()))
            order = sorted(groups, key=lambda m: (get_args(Kind).index(m.kind), m.strength, m.noise_count is not None))
            found[problem] = {m: [row for row in groups[m] if row.config["seed"] in shared] for m in order}
    return found


def kl(row: Row) -> float:
    """KL(p‖q), of digits the negative log-likelihood."""
    return float(row.result["divergence"])


def error(row: Row) -> float:
    """The same at the best temperature."""
    return float(row.result["divergence_at_temperature"])


def noise(row: Row) -> float:
    return float(row.result["gradient_noise"])


def best(trained: Trained, problem: str, kind: str) -> list[Row]:
    """The trainings at the strength of the least error."""
    of_kind = [group for method, group in trained.get(problem, {}).items() if method.kind == kind]
    return min(of_kind, key=lambda group: mean(group, error).mean, default=[])


def gradient_noises(rows: Sequence[Row]) -> dict[tuple[str, Method, str], list[Row]]:
    """By problem, method and η."""
    found: dict[tuple[str, Method, str], list[Row]] = defaultdict(list)
    for row in of_part(rows, "noise"):
        c = row.config
        if row.result["gradient_noise"] is not None:
            found[c["problem"], Method(**c["method"]), c.get("eta", "targets")].append(row)
    return found


def excess(ours: Sequence[Row], factor: float, theirs: Sequence[Row], value: Value) -> Estimate | None:
    """Ours minus ``factor`` times theirs, paired by seed."""
    a, b = by_seed(ours, value), by_seed(theirs, value)
    return (
        estimate([a[seed] - factor * b[seed] for seed in sorted(shared)]) if (shared := a.keys() & b.keys()) else None
    )


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    answers = {}
    proposals = {row.config["classes"]: row.result["proposals"] for row in of_part(rows, "shape")}
    if 1000 in proposals:
        most = max(proposals.values())
        # The claim is that draws take many proposals; it is refuted by few.
        text = f"{proposals[1000]:.2f} proposals per draw, at most {most:.2f}"
        decided = verdict(exactly(most), below=10, new=True)
        answers["exact-sampling"] = Finding(text, f"K = 1,000, up to {max(proposals):,}", decided)
    trained = trainings(rows)
    for key, kind in (("exact-substitute", "soft-target-info-nce"), ("exact-alternative", "averaged")):
        if finding := _beside_exact_draws(trained, kind):
            answers[key] = finding
    return answers | _expected(rows)


def _beside_exact_draws(trained: Trained, kind: str) -> Finding | None:
    """KL of a kind of loss minus 1.1 times that of exact draws, each at its best strength."""
    gaps, words = {}, []
    for problem in ("labels", "conditional"):
        ours, exact = best(trained, problem, kind), best(trained, problem, "continuous")
        if (gap := excess(ours, 1.1, exact, error)) is None:
            return None
        gaps[problem] = gap
        words.append(f"KL {mean(ours, error).spread(3)}, exact {mean(exact, error).spread(3)}")
    # With smoothed labels, which do not tell samples apart, the substitute works: see docs/theory.md.
    cause = [gaps["labels"]] if kind == "soft-target-info-nce" else []
    decided = verdict(*gaps.values(), below=0, new=kind == "averaged", cause=cause)
    on = f"{', '.join(TARGETS[problem] for problem in gaps)}, {gaps['labels'].count} seeds"
    return Finding("; ".join(words), on, decided)


def _expected(rows: Sequence[Row]) -> dict[str, Finding]:
    answers, trained, noises = {}, by_method(rows, "conditional"), gradient_noises(rows)

    def noisier(problem: str, factor: float) -> Estimate | None:
        ours, theirs = (noises.get((problem, method, "targets"), []) for method in (EXPECTED, CE))
        return excess(ours, factor, theirs, noise)

    ours, ce, drawn = (trained.get(method, []) for method in (EXPECTED, CE, DRAWN))
    known = [excess(ours, 1.3, ce, kl), excess(ours, 0.5, drawn, kl), noisier("conditional", 1.1)]
    if all(known):
        text = "; ".join(f"KL {mean(of, kl).spread(4)}" for of in (ours, ce, drawn))
        on = f"expected InfoNCE, soft target cross-entropy, soft distribution InfoNCE; {known[0].count} seeds"
        answers["expected-conditional"] = Finding(text, on, verdict(*known, below=0, new=True))
    known = [noisier(problem, 1.0) for problem in ("labels", "digits")]
    if all(known):
        text = "; ".join(gap.signed(3) for gap in known)
        on = f"K = {CLASSES}; K = 10; {known[0].count} seeds"
        answers["expected-noise"] = Finding(text, on, verdict(*known, below=0, new=True))
    return answers


def name_of(method: Method) -> str:
    match method.kind:
        case "averaged":
            return f"mean of {method.strength:g} labels"
        case "continuous":
            return f"exact, κ = {method.strength:g}"
    return LOOKS[method.kind].name + ("" if method.noise_count is None else f", m = {method.noise_count:g}")


def tables(rows: Sequence[Row]) -> list[Table]:
    trained = trainings(rows)
    scores: dict[str, tuple[Value, int]] = {
        "error": (error, 3), "accuracy (%)": (lambda row: 100 * row.result["accuracy"], 1)
    }  # fmt: skip
    errors = [
        [name_of(method), *(
            mean(of[method], value).spread(digits) if of.get(method) else ""
            for of in trained.values()
            for value, digits in scores.values()
        )]
        for method in dict.fromkeys(method for of in trained.values() for method in of)
    ]  # fmt: skip
    kls, noises, problems = by_method(rows, "conditional"), gradient_noises(rows), ("conditional", "labels", "digits")
    measured = []
    for method, eta in dict.fromkeys((method, eta) for _, method, eta in noises):
        columns = [(kls.get(method, []) if eta == "targets" else [], kl, 4)]
        columns += [(noises.get((problem, method, eta), []), noise, 3) for problem in problems]
        cells = [mean(of, value).spread(digits) if of else "" for of, value, digits in columns]
        measured.append([name_of(method) + ("" if eta == "targets" else ", η unsmoothed"), *cells])
    costs = {row.config["classes"]: row for row in of_part(rows, "cost")}
    times: dict[Method, dict[int, float]] = defaultdict(dict)
    for k, row in costs.items():
        for method, ms in zip(row.config["methods"], row.result["milliseconds"], strict=True):
            times[Method(**method)][k] = ms
    sizes = sorted(costs)
    steps = [[name_of(m), *(f"{of[k]:.3g}" if k in of else "" for k in sizes)] for m, of in times.items()]
    draws = [costs[k].result["draw_seconds"] for k in sizes]
    steps.append(["10,000 draws, times Dirichlet's", *(f"{d['continuous'] / d['dirichlet']:.1f}" for d in draws)])
    return [
        Table("exact-loss-errors", ["loss", *(f"{TARGETS[p]}: {score}" for p in trained for score in scores)], errors),
        Table("exact-loss-noise", ["loss", "KL", *(f"noise, {TARGETS[problem]}" for problem in problems)], measured),
        Table("exact-loss-cost", ["milliseconds per step", *(f"K = {k:,}" for k in sizes)], steps),
    ]


def figures(rows: Sequence[Row]) -> list[Figure]:
    trained, drawn = trainings(rows), []
    shapes = {row.config["classes"]: row.result for row in of_part(rows, "shape")}
    if trained:
        draw, columns = partial(_information, trained), len(trained)
        drawn.append(Figure("exact-loss-information", draw, panels=2 * columns, columns=columns, size=(3.9, 2.9)))
    if shapes:
        draw = partial(_draws, dict(sorted(shapes.items())))
        drawn.append(Figure("exact-loss-draws", draw, 3, size=(3.6, 3.0)))
    return drawn


def gradient_noise(group: Sequence[Row]) -> float | None:
    """Of seed 0."""
    return next((row.result["gradient_noise"] for row in group if row.result.get("gradient_noise")), None)


def _information(trained: Trained, axes: Sequence[Any]) -> None:
    """Error, and below it gradient noise, against the information in a draw."""
    heights = {"error": lambda group: mean(group, error).mean if group else None, "gradient noise": gradient_noise}
    for place, (problem, of) in enumerate(trained.items()):
        nats = {m: row.result["nats"] for m, group in of.items() for row in group if row.result.get("nats") is not None}
        below = axes[len(trained) + place]
        for ax, height in zip((axes[place], below), heights.values(), strict=True):
            for kind, colour, name in (("continuous", SERIES[1], "exact, over κ"), ("averaged", SERIES[2], "n labels")):
                points = {nats[m]: height(of[m]) for m in nats if m.kind == kind}
                curve(ax, {x: y for x, y in sorted(points.items()) if y}, name=name, colour=colour, marker="o")
            for method in (CE, Method("soft-target-info-nce"), EXPECTED):
                if y := height(of.get(method, [])):
                    level(ax, y, LOOKS[method.kind].name, LOOKS[method.kind].colour)
        what = "NLL (nats)" if problem == "digits" else "KL (nats)"
        label(axes[place], "nats in a draw", what, title=TARGETS[problem], log="xy")
        label(below, "nats in a draw", "gradient noise", log="xy")


def _draws(shapes: Mapping[int, Mapping[str, Any]], axes: Sequence[Any]) -> None:
    """Information in a draw; error of the normaliser and proposals per draw, beside the original authors' method."""
    for place, name in enumerate(("1", "√K", "K")):
        points = {k: shape["strength"][name]["nats"] for k, shape in shapes.items()}
        curve(axes[0], points, name=f"κ = {name}", colour=SERIES[place])
    curve(axes[0], {k: shape["label_nats"] for k, shape in shapes.items()}, name="one label", dash="--")
    known = {k: (shape["error"], shape["original_error"]) for k, shape in shapes.items() if "error" in shape}
    proposals = {k: shape["log10_original_proposals"] for k, shape in shapes.items()}
    ours = [{k: e for k, (e, _) in known.items()}, {k: shape["proposals"] for k, shape in shapes.items()}]
    theirs = [{k: 1.0 if e is None else min(e, 1.0) for k, (_, e) in known.items()},
              {k: 10**log10 for k, log10 in proposals.items() if log10 <= 15}]  # fmt: skip
    for ax, *both in zip(axes[1:], ours, theirs, strict=True):
        for points, name, colour in zip(both, ("softnce", "original"), (SERIES[2], SERIES[0]), strict=True):
            curve(ax, {k: max(y, 1e-16) for k, y in points.items()}, name=name, colour=colour)
    label(axes[0], "classes", "nats in a draw", log="xy")
    label(axes[1], "classes", "absolute error of log Z", log="xy")
    label(axes[2], "classes", "proposals per draw", log="xy")


EXPERIMENT = Experiment(
    name="exact-loss",
    question="Is the exact loss better than soft target InfoNCE, which replaces its draws by the soft targets?",
    minutes=25, presets=PRESETS, runs=runs, alone=lambda run: isinstance(run, Cost), perform=perform,
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
