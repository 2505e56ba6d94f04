"""What the study ``exact-loss`` shows: its figures, tables and sentences, all computed from the results."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, get_args

from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate
from softnce.lab.report.charts import Figure, Level, Line, Mark, Panel, Points
from softnce.lab.report.page import Section, Table, counted, prose
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.exact_loss.distribution import EXACT_UP_TO, SMOOTHING
from softnce.lab.studies.exact_loss.training import CLASSES, DIMENSION, SPREAD, Kind, Method

EXACT, AVERAGED, ORANGE, BLUE = "#882255", "#56B4E9", "#D55E00", "#0072B2"
PROBLEMS = {
    "digits": "digits, K = 10, smoothed labels",
    "conditional": f"K = {CLASSES}, the true conditional",
    "labels": f"K = {CLASSES}, smoothed labels",
}
PROBLEMS_IN_WORDS = {"conditional": "the true conditional as target", "labels": "smoothed labels"}
FEWEST_SEEDS = 3  # for a verdict
BATCH = {"digits": 100, "conditional": 256, "labels": 256}
Block = str | Figure | Table
Curve = tuple[list[float], list[float] | None, list[float] | None]
"""Heights, and the band around them."""


def exact_loss_section(rows: Sequence[Row]) -> Section:
    by_part: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_part[row.config["part"]].append(row)
    summary = ["The exact loss can be trained, at any number of classes."]
    blocks: list[Block] = []
    if by_part["training"]:
        trained = _Trained(by_part["training"])
        summary.append(trained.summary())
        blocks += trained.blocks()
    if by_part["shape"]:
        shapes = {row.config["classes"]: row.result for row in by_part["shape"]}
        shapes = dict(sorted(shapes.items()))
        summary.append("At κ = 1, the derivation's, its draws say almost nothing once classes are many.")
        blocks += [*_strength(shapes), *_original(shapes)]
    if by_part["cost"]:
        blocks += _cost(by_part["cost"])
    return Section("What the exact loss buys", prose(" ".join(summary)), blocks, _method())


def exact_loss_claims(rows: Sequence[Row]) -> dict[str, Finding]:
    shapes = {row.config["classes"]: row.result for row in rows if row.config["part"] == "shape"}
    trainings = [row for row in rows if row.config["part"] == "training"]
    found = _sampling_claim(shapes) if 1000 in shapes else {}
    return found | (_Trained(trainings).claims() if trainings else {})


def _sampling_claim(shapes: dict[int, dict[str, Any]]) -> dict[str, Finding]:
    r = shapes[1000]
    most = max(shape["proposals"] for shape in shapes.values())
    ours = prose(f"""{r["proposals"]:.2f} proposals a draw at K = 1000 (at most {most:.2f} up to K = {max(shapes)});
        the method known before takes 10^{r["log10_original_proposals"]:.0f}. But such a draw says only
        {r["strength"]["1"]["nats"]:.1g} nats about its target""")
    efficient: Verdict = "beyond" if most < 10 else "reproduced"
    return {"exact-sampling": Finding(ours, f"labels smoothed by {SMOOTHING:g}, known in closed form", efficient)}


def name(method: Method) -> str:
    match method.kind:
        case "averaged":
            return f"mean of n = {method.strength:g}"
        case "continuous":
            return f"exact, κ = {method.strength:g}"
    return LOSSES[method.kind].name


class _Trained:
    """The trainings, those of the most epochs where there are several, by problem and method."""

    def __init__(self, rows: Sequence[Row]) -> None:
        most: dict[str, int] = defaultdict(int)
        for row in rows:
            most[row.config["problem"]] = max(most[row.config["problem"]], row.config["epochs"])
        self.rows: dict[str, dict[Method, list[Row]]] = {problem: {} for problem in PROBLEMS if problem in most}
        for row in rows:
            if row.config["epochs"] == most[row.config["problem"]]:
                of_problem = self.rows[row.config["problem"]]
                of_problem.setdefault(Method(**row.config["method"]), []).append(row)
        order = get_args(Kind)
        for problem, found in self.rows.items():
            self.rows[problem] = dict(
                sorted(found.items(), key=lambda item: (order.index(item[0].kind), item[0].strength))
            )
        self.seeds = counted(len({row.config["seed"] for row in rows}), "seed")

    def blocks(self) -> list[Block]:
        blocks: list[Block] = [self.errors_table(), self.training_figure()]
        if "conditional" in self.rows:
            blocks.append(self.course_figure())
        if self.goes_astray():
            blocks += [self.consistency_text(), self.strength_text(), self.labels_text()]
        return [*blocks, *(self.table(problem) for problem in self.rows)]

    def summary(self) -> str:
        drawn = self.best("conditional", "continuous")
        if drawn is None or not self.goes_astray():
            return "These trainings are too short to say what it buys; softnce study exact-loss --preset paper does."
        reached = self.error("conditional", drawn)
        better = [_short(m) for m in self.rows["conditional"] if self.error("conditional", m) < reached]
        also = f"; so do {' and '.join(dict.fromkeys(better))}, with less error" if better else ""
        behind = all(self.draws_are_behind(problem) for problem in ("digits", "labels") if problem in self.rows)
        labels = "With smoothed labels it has no advantage." if behind else ""
        return f"""It finds the conditional from soft targets that tell the samples apart, where soft target InfoNCE
            goes astray{also}. {labels}"""

    def goes_astray(self) -> bool:
        """Whether soft target InfoNCE fails on the known conditional where exact draws do not."""
        soft, drawn = self.best("conditional", "soft-target-info-nce"), self.best("conditional", "continuous")
        if soft is None or drawn is None:
            return False
        return self.error("conditional", soft) > 3 * self.error("conditional", drawn)

    def draws_are_behind(self, problem: str) -> bool:
        best, drawn = min(self.error(problem, m) for m in self.rows[problem]), self.best(problem, "continuous")
        return drawn is None or self.error(problem, drawn) > best

    def score(self, problem: str, method: Method, value: str) -> Estimate:
        return estimate([row.result[value] for row in self.rows[problem][method]])

    def error(self, problem: str, method: Method) -> float:
        return self.score(problem, method, "divergence_at_temperature").mean

    def measured(self, problem: str, method: Method, value: str) -> float | None:
        """What was measured for one seed only."""
        found = [row.result[value] for row in self.rows[problem][method] if row.result.get(value) is not None]
        return found[0] if found else None

    def of_kind(self, problem: str, kind: str) -> list[Method]:
        return [method for method in self.rows.get(problem, {}) if method.kind == kind]

    def best(self, problem: str, kind: str) -> Method | None:
        return min(self.of_kind(problem, kind), key=lambda method: self.error(problem, method), default=None)

    def claims(self) -> dict[str, Finding]:
        """Errors beside those of exact draws at their best κ: of the soft targets themselves, and of labels' means."""
        found: dict[str, Finding] = {}
        for key, kind in (
            ("exact-substitute", "soft-target-info-nce"),
            ("exact-alternative", "averaged"),
        ):
            words, ahead = [], []
            seeds = 0
            for problem in ("labels", "conditional"):
                other, drawn = self.best(problem, kind), self.best(problem, "continuous")
                if other is None or drawn is None:
                    continue
                ours, exact = (self.score(problem, m, "divergence_at_temperature") for m in (other, drawn))
                strength = f" (n = {other.strength:g})" if kind == "averaged" else ""
                words.append(f"{ours.spread(3)}{strength} against {exact.spread(3)} with {PROBLEMS_IN_WORDS[problem]}")
                ahead.append(ours.mean < 1.1 * exact.mean)
                seeds = min(ours.count, exact.count)
            if len(words) < 2:
                continue
            verdict: Verdict = "undecided"
            if seeds >= FEWEST_SEEDS:
                if kind == "averaged":
                    verdict = "beyond"
                else:
                    verdict = "reproduced" if all(ahead) else "explained" if any(ahead) else "not reproduced"
            text = f"KL {', '.join(words)}, at the best temperature"
            found[key] = Finding(prose(text), f"K = {CLASSES}, known conditional, {self.seeds}", verdict)
        return found

    # --- figures

    def training_figure(self) -> Figure:
        above, below = [], []
        for problem, title in PROBLEMS.items():
            if problem in self.rows:
                errors, noises = self.error_marks(problem), self.noise_marks(problem)
                label = "negative log-likelihood (nats)" if problem == "digits" else "KL(p‖q) (nats)"
                above.append(Panel(title, "nats in a draw", label, errors, log_x=True, log_y=True))
                below.append(Panel("", "nats in a draw", "gradient noise", noises, log_x=True, log_y=True))
        return Figure(
            "training",
            prose(f"""Above: error of the trained model at its best temperature, mean and 95 % interval over
                {self.seeds}, against what a draw says about its target. Below: noise of the gradient (seed 0), in
                batches to average until signal equals noise. Dashed: losses that draw nothing."""),
            [*above, *below],
            columns=len(above),
            panel_size=(3.9, 2.9),
        )

    def error_marks(self, problem: str) -> list[Mark]:
        def curve(methods: Sequence[Method]) -> Curve:
            scores = [self.score(problem, method, "divergence_at_temperature") for method in methods]
            # An interval may reach below zero, which a logarithmic axis does not.
            low = [max(e.low, e.mean / 10) for e in scores]
            return [e.mean for e in scores], low, [e.high for e in scores]

        marks = self.marks(problem, curve, lambda method: self.error(problem, method))
        heights = [y for mark in marks if isinstance(mark, Line | Points) for y in mark.y if y is not None]
        log_m = math.log(BATCH[problem])
        return [*marks, Line("log M", [log_m, log_m], [min(heights), max(heights)], dash="dot")]

    def noise_marks(self, problem: str) -> list[Mark]:
        def noise(method: Method) -> float:
            found = self.measured(problem, method, "gradient_noise")
            return math.nan if found is None else found

        return self.marks(problem, lambda methods: ([noise(method) for method in methods], None, None), noise)

    def marks(
        self,
        problem: str,
        curve: Callable[[Sequence[Method]], Curve],
        value: Callable[[Method], float],
    ) -> list[Mark]:
        """Lines over κ and over n; a point for the drawn label; dashed lines for what draws nothing."""
        marks: list[Mark] = []
        strengths = []
        for kind, label, colour, marker in (
            ("continuous", "exact, over κ", EXACT, "o"),
            ("averaged", "mean of n labels, over n", AVERAGED, "s"),
        ):
            pairs = [(m, self.measured(problem, m, "nats")) for m in self.of_kind(problem, kind)]
            known = [(method, strength) for method, strength in pairs if strength is not None]
            x = [strength for _, strength in known]
            strengths += x
            marks.append(Line(label, x, *curve([method for method, _ in known]), colour=colour, marker=marker))
        ends = [min(strengths, default=0.1), max(strengths, default=10.0)]
        for method in self.rows[problem]:
            strength = self.measured(problem, method, "nats")
            if method.kind == "soft-dist-info-nce" and strength is not None:
                marks.append(Points.of_loss(method.kind, [strength], [value(method)]))
            elif method.kind in ("soft-ce", "soft-target-info-nce"):
                marks.append(Line.of_loss(method.kind, ends, [value(method)] * 2, marker="", dash="dash"))
        return marks

    def course_figure(self) -> Figure:
        found = self.rows["conditional"]
        lines: list[Mark] = [
            Line.of_loss(method.kind, *_course(rows), marker="")
            for method, rows in found.items()
            if method.kind in LOSSES
        ]
        best = self.best("conditional", "continuous")
        if best is not None:
            for method in dict.fromkeys([self.of_kind("conditional", "continuous")[0], best]):
                dash = "solid" if method == best else "dot"
                lines.append(Line(name(method), *_course(found[method]), colour=EXACT, dash=dash))
        limit = next(iter(found.values()))[0].result["best_accuracy"]
        return Figure(
            "course",
            prose(
                f"""Test accuracy while training on the true conditional as the soft target, mean over {self.seeds}."""
            ),
            [Panel(PROBLEMS["conditional"], "epoch", "accuracy", [*lines, Level("best possible", limit)])],
            panel_size=(6.4, 3.2),
        )

    # --- tables and sentences

    def table(self, problem: str) -> Table:
        error = "NLL" if problem == "digits" else "KL(p‖q)"
        body = []
        for method in self.rows[problem]:

            def spread(value: str, digits: int, factor: float = 1.0, method: Method = method) -> str:
                e = self.score(problem, method, value)
                return f"{factor * e.mean:.{digits}f} ± {factor * (e.high - e.mean):.{digits}f}"

            body.append([
                name(method),
                spread("accuracy", 1, 100),
                spread("divergence", 3),
                spread("divergence_at_temperature", 3),
                spread("temperature", 2),
                spread("ece", 1, 100),
                spread("ece_at_temperature", 1, 100),
                _number(self.measured(problem, method, "nats")),
                _number(self.measured(problem, method, "gradient_noise")),
            ])  # fmt: skip
        header = [
            "loss",
            "accuracy (%)",
            error,
            f"{error}, best T",
            "best T",
            "ECE (%)",
            "ECE (%), best T",
            "nats",
            "noise",
        ]
        caption = f"{PROBLEMS[problem]}. Mean ± half of the 95 % interval over {self.seeds}; nats and noise for seed 0."
        return Table(header, body, caption)

    def errors_table(self) -> Table:
        """Each loss that draws nothing or a label, and of the others the best and the derivation's."""
        problems = list(self.rows)
        body = []
        for kind in ("soft-ce", "soft-target-info-nce", "soft-dist-info-nce"):
            found = [self.best(problem, kind) for problem in problems]
            cells = ["–" if m is None else f"{self.error(p, m):.3f}" for p, m in zip(problems, found, strict=True)]
            body.append([LOSSES[kind].name, *cells])
        for kind, title, symbol in (
            ("averaged", "mean of labels, the best n", "n"),
            ("continuous", "exact, the best κ", "κ"),
        ):
            found = [self.best(problem, kind) for problem in problems]
            cells = [
                "–" if m is None else f"{self.error(p, m):.3f} ({symbol} = {m.strength:g})"
                for p, m in zip(problems, found, strict=True)
            ]
            body.append([title, *cells])
        one = Method("continuous", 1.0)
        cells = [f"{self.error(p, one):.3f}" if one in self.rows[p] else "–" for p in problems]
        body.append(["exact, κ = 1, as derived", *cells])
        caption = (
            f"Error at the best temperature, in nats: KL(p‖q), for digits the likelihood. Means over {self.seeds}."
        )
        return Table(["loss", *(PROBLEMS[p] for p in problems)], body, caption)

    def strength_text(self) -> str:
        return prose("""What decides is how much a draw says. One that says far less than log M, the logarithm of the
            number of candidates, leaves noisy gradients. One that says far more is never confused with a draw from
            η: the loss is solved before the scores are right, and what is left to learn it does not teach. Neither κ
            nor n can be raised without end, and a single label, n = 1, already lies near the best place.""")

    def consistency_text(self) -> str:
        soft, exact = self.best("conditional", "soft-target-info-nce"), self.best("conditional", "continuous")
        assert soft is not None
        assert exact is not None
        a, b = (self.score("conditional", m, "accuracy").mean for m in (soft, exact))
        peak = max(_course(self.rows["conditional"][soft])[1])
        return prose(f"""With the true conditional as soft target, soft target InfoNCE goes astray: its accuracy ends
            at {100 * a:.1f} %, after a peak of {100 * peak:.1f} %, where the exact loss reaches {100 * b:.1f} %. The
            target of a sample is then hardly ever a mixture of the other samples' targets, so scores that single it
            out make the loss as small as one likes: the model learns to recognise a sample by the small print of its
            target, the classes that matter least, and its loss falls all the while. This concerns every soft target
            that is peculiar to its sample, a teacher's output among them. Labels drawn from such targets, and exact
            draws, do not have this flaw: their optimum is the conditional itself.""")

    def labels_text(self) -> str:
        temperatures = []
        for method in self.of_kind("labels", "averaged"):
            temperatures.append(f"{self.score('labels', method, 'temperature').mean:.2f} at n = {method.strength:g}")
        fall = f" ({', '.join(temperatures)}, for K = {CLASSES})" if temperatures else ""
        return prose(f"""Smoothed labels are only as many as classes, and do not tell samples apart. But then the
            draws of a sample are not draws from p(y|x): they are draws from whichever label it was given. Beyond a
            single label the ratio is no longer exact, and n and κ act as a temperature besides, as the best
            temperature shows{fall}.""")


def _short(method: Method) -> str:
    return "means of labels" if method.kind == "averaged" else name(method)


def _course(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    courses = [row.result["course"] for row in rows]
    mean = [sum(values) / len(values) for values in zip(*courses, strict=True)]
    return [float(epoch + 1) for epoch in range(len(mean))], mean


def _strength(shapes: dict[int, dict[str, Any]]) -> list[Block]:
    classes = [float(k) for k in shapes]
    looks = {"1": (EXACT, "o"), "√K": (ORANGE, "D"), "K": (BLUE, "s")}

    def lines(value: Callable[[int, dict[str, Any]], float]) -> list[Mark]:
        return [
            Line(f"κ = {name}", classes, [value(k, r["strength"][name]) for k, r in shapes.items()], colour=c, marker=m)
            for name, (c, m) in looks.items()
        ]

    nats, weight = lines(lambda k, r: r["nats"]), lines(lambda k, r: k * r["mean_of_true_class"])
    nats.append(Line("one label", classes, [r["label_nats"] for r in shapes.values()], dash="dash"))
    weight.append(Level("", 1.0))
    figure = Figure(
        "strength",
        prose(f"""What a draw from the continuous categorical distribution of a label smoothed by {SMOOTHING:g} says
            about it, exactly. Left: KL to a draw from the uniform noise. Right: mean weight of the true class, in units
            of the 1/K it has under the noise."""),
        [
            Panel("nats in a draw", "K", "nats", nats, log_x=True, log_y=True),
            Panel("weight of the true class", "K", "mean × K", weight, log_x=True, log_y=True),
        ],
    )
    k = 1000 if 1000 in shapes else max(shapes)
    weak, strong = shapes[k]["strength"]["1"], shapes[k]["strength"]["K"]
    text = prose(f"""At K = {k} and κ = 1 a draw is nearly uniform on the simplex: the true class has mean
        {weak["mean_of_true_class"]:.6f} against {1 / k:.6f} under the noise, and the draw carries {weak["nats"]:.2g}
        nats about its target, where a drawn label carries {shapes[k]["label_nats"]:.2g}. So the exact loss as
        derived is not only costly to sample at this size: it is statistically empty. A concentration of the order of
        K restores the contrast, and overshoots, with {strong["nats"]:.2g} nats.""")
    return [text, figure]


def _original(shapes: dict[int, dict[str, Any]]) -> list[Block]:
    errors = {k: r for k, r in shapes.items() if "error" in r}

    def shown(error: float | None) -> float:
        return 1.0 if error is None else min(max(error, 1e-16), 1.0)

    def lines(ours: dict[int, float], original: dict[int, float]) -> list[Mark]:
        return [
            Line("original authors", [float(k) for k in original], list(original.values()), colour=ORANGE, marker="D"),
            Line("softnce", [float(k) for k in ours], list(ours.values()), colour=BLUE, marker="o"),
        ]

    of_sum = lines(
        {k: shown(r["error"]) for k, r in errors.items()}, {k: shown(r["original_error"]) for k, r in errors.items()}
    )
    of_sampler = lines(
        {k: r["proposals"] for k, r in shapes.items()},
        {k: 10 ** r["log10_original_proposals"] for k, r in shapes.items() if r["log10_original_proposals"] <= 15},
    )
    figure = Figure(
        "original",
        prose("""This library beside the method of the distribution's original authors. Left: error of log Z in fp64,
            for normal ω. Right: proposals a draw takes for a smoothed label; the original's grow faster than
            exponentially and leave the picture."""),
        [
            Panel("normaliser", "K", "absolute error of log Z", of_sum, log_x=True, log_y=True),
            Panel("sampler", "K", "proposals a draw", of_sampler, log_x=True, log_y=True),
        ],
    )
    lost = next((k for k, r in errors.items() if shown(r["original_error"]) > 1e-3), None)
    before = f"The original sum has lost its digits by K = {lost}. Here" if lost else "Here"
    k, worst = max(shapes), max((r["error"] for r in errors.values()), default=math.nan)
    text = prose(f"""{before} the largest error up to K = {max(errors, default=0)} is {worst:.1g}, and a draw takes at
        most {max(r["proposals"] for r in shapes.values()):.2f} proposals up to K = {k}, where ordered rejection would
        take 10^{shapes[k]["log10_original_proposals"]:.0f}.""")
    return [text, figure]


def _cost(rows: Sequence[Row]) -> list[Block]:
    rows = sorted(rows, key=lambda row: row.config["classes"])
    times = [
        (row, {Method(**m): t for m, t in zip(row.config["methods"], row.result["milliseconds"], strict=True)})
        for row in rows
    ]
    by_classes = {row.config["classes"]: of_method for row, of_method in times}
    methods = dict.fromkeys(method for of_method in by_classes.values() for method in of_method)
    table = Table(
        ["milliseconds a step", *(f"K = {k}" for k in by_classes)],
        [[name(m), *(_number(of_method.get(m)) for of_method in by_classes.values())] for m in methods],
        prose(f"""Loss and gradient of {rows[-1].config["rows"]} rows against as many candidates, smoothed labels, one
            core; medians of interleaved repetitions."""),
    )
    largest = rows[-1]
    drawing = largest.result["draw_seconds"]
    text = prose(f"""10,000 draws from the continuous categorical of one smoothed label at K =
        {largest.config["classes"]} take {drawing["continuous"] / drawing["dirichlet"]:.1f} times what 10,000
        Dirichlet draws take. In the loss every row has a distribution of its own, and most of the time goes into
        planning its proposals.""")
    return [text, table]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _method() -> list[str]:
    return [
        prose(f"""Digits: 400 to train on, the other 1397 to test; two hidden layers of 128, Adam at 1e-3, batches of
            100. Known conditional: x normal in {DIMENSION} dimensions, p(y|x) ∝ exp(x·θ_y + b_y) with normal θ
            (standard deviation {SPREAD:g}) and b, {CLASSES} classes, 4096 samples to train on and 4096 to test; the
            linear model, which contains the truth, Adam at 0.02, batches of 256. Learning rates fall to 0 on a
            cosine; they were not tuned for any loss. Labels are smoothed by {SMOOTHING:g}. Draws are contrasted with
            as many draws from η as the batch has rows. The best temperature is fitted on the test set itself: it
            shows what of the error is a matter of scale."""),
        prose("""Gradient noise is the variance of one batch's gradient, from data and draws together, over the
            square of its mean, at the weights after one epoch of soft target cross-entropy: the number of batches to
            average until signal equals noise. Nats are KL(draw from the target ‖ draw from η), over 512 training
            targets."""),
        prose(f"""The original authors' method is re-implemented: the normaliser as a sum of terms of either sign, in
            fp64, against 30-digit arithmetic, for five normal ω up to K = {EXACT_UP_TO} (median errors; 1 and more,
            or no number at all, are shown as 1, and less than 1e-16 as that); the sampler by ordered rejection,
            whose acceptance is known in closed form."""),
    ]
