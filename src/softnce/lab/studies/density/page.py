"""What the density study shows: its figures, tables and sentences, all computed from the results."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from softnce.lab.experiment.claims import Finding, Verdict
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.report.charts import Diagonal, Figure, Heat, Level, Line, Mark, Panel, Points
from softnce.lab.report.page import Section, Table, counted, prose
from softnce.lab.report.style import LOSSES, OTHER

ALIGNMENT = "mode alignment (%)"
KL = "KL(p‖q) (nats)"
LIMIT = "statistical limit (K−1)d/(2n)"
PAIR = ("nll", "info-nce")
PROTOCOLS = {"adam": "with Adam, small steps", "sgd": "with SGD, noisy steps"}
FEWEST_SEEDS = 3  # for a verdict


def density_section(rows: Sequence[Row]) -> Section:
    study = _Findings(rows)
    blocks: list[str | Figure | Table] = [study.kl_figure(), study.kl_text(), study.difference_table()]
    for block in (
        study.noise_figure(),
        study.noise_text(),
        study.grid_figure(),
        study.soft_figure(),
        study.soft_text(),
        study.maps_figure(),
        study.speed_text(),
    ):
        if block:
            blocks.append(block)
    return Section("Estimating a known conditional", study.summary(), blocks, study.method())


def density_claims(rows: Sequence[Row]) -> dict[str, Finding]:
    study = _Findings(rows)
    return {key: finding for key, finding in study.claims().items() if finding}


class _Findings:
    """The rows of the study with the most runs at one protocol, by part."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = [(row.config, row.result) for row in rows]
        fits = self._part("fit")
        protocols = Counter(_protocol(config) for config, _ in fits if config["loss"] == "nll" and config["patience"])
        if not protocols:
            raise ValueError("density: no finished fit of NLL yet; run softnce study density again")
        self.protocol = max(protocols, key=lambda key: (protocols[key], key[0]))
        self.main = [(config, result) for config, result in fits if _protocol(config)[1:] == self.protocol[1:]]
        self.epochs, self.sizes = self.protocol[0], dict(self.protocol[-1])
        self.limit = (self.sizes["num_modes"] - 1) * self.sizes["dimension"] / (2 * self.sizes["num_samples"])
        self.optimum = self._of_size("optimum")

    # --- the paper's figure

    def kl_figure(self) -> Figure:
        fitted = [self._kl(loss, optimiser) for loss in PAIR for optimiser in ("adam", "sgd")]
        estimates = [e for by_alignment in fitted for e in by_alignment.values()]
        top = 1.1 * max([e.high for e in estimates] + [1.5 * self.limit])
        panels = []
        for optimiser, words in (("adam", "(a) the paper's protocol: Adam"), ("sgd", "(b) noisier: SGD")):
            marks: list[Mark] = [
                _line_of("answering 1/K always", self._optimum("uniform"), dash="dash", band=False),
                _line_of("maximum likelihood", self._optimum("kl"), dash="dot", band=False),
                _line("nll", self._kl("nll", optimiser)),
                _line("info-nce", self._kl("info-nce", optimiser)),
                Level(LIMIT, self.limit),
            ]
            title = f"{words}, {self._lr(optimiser):g}"
            panels.append(Panel(title, ALIGNMENT, KL, marks, y_range=(0, top)))
        caption = f"""
            Error of the fitted conditional against mode alignment; mean and 95 % confidence band over
            {counted(max(e.count for e in estimates), "seed")}. (a) With small steps both losses reach what sampled
            labels allow. (b) With noisy steps NLL does not, InfoNCE does."""
        exact, ignorant = self._optimum("kl"), self._optimum("uniform")
        lowest, highest = min(exact, default=None), max(exact, default=None)
        if lowest is not None and exact[lowest].mean > top:
            caption += f""" At {lowest:g} % the classes are almost separable, the labels determine little, and the exact
                maximum-likelihood fit lies above the picture, at {exact[lowest].mean:.2g}."""
        if highest is not None and ignorant[highest].mean < 1.1 * exact[highest].mean:
            caption += f""" At {highest:g} % the classes overlap so much that a model which ignores x, and always
                answers 1/K, has about the error of the exact fit."""
        return Figure("kl", prose(caption), panels, panel_size=(4.6, 3.4))

    def kl_text(self) -> str:
        sentences = []
        for optimiser, words in (("adam", "At the paper's protocol"), ("sgd", "With SGD")):
            ranges = []
            for loss in PAIR:
                shares = [e.mean / self.limit - 1 for a, e in self._kl(loss, optimiser).items() if a >= 20]
                if shares:
                    ranges.append(f"{LOSSES[loss].name} {100 * min(shares):+.0f} % to {100 * max(shares):+.0f} %")
            if ranges:
                text = f"{words} the mean error at alignments of 20 % and more lies, relative to the limit:"
                sentences.append(f"{text} {', '.join(ranges)}.")
        differences = {a: self._difference(a, "adam") for a in self._kl("nll", "adam")}
        paired = {a: estimate(values) for a, values in differences.items() if len(values) > 1}
        if paired:
            most = max(paired, key=lambda a: paired[a].mean)
            sentences.append(f"""
                The largest paired difference at the paper's protocol is {_interval(differences[most])} thousandths of
                a nat, at {most:g} %.""")
        highest = max(self._kl("nll", "adam"))
        errors = [self._kl(loss, "sgd", "parameter_error").get(highest) for loss in PAIR]
        if all(errors):
            values = " and ".join(
                f"{e.mean:.4f} with {LOSSES[loss].name}" for e, loss in zip(errors, PAIR, strict=True) if e
            )
            sentences.append(f"The parameters' root mean square error at {highest:g} % with SGD is {values}.")
        return prose(" ".join(sentences))

    def difference_table(self) -> Table:
        rows = []
        for alignment in self._kl("nll", "adam"):
            cells = [f"{alignment:g} %"]
            for optimiser in ("adam", "sgd"):
                cells += [_milli(self._by_seed(loss, optimiser).get(alignment, {}).values()) for loss in PAIR]
                cells.append(_interval(self._difference(alignment, optimiser)))
            cells += [_milli(self._optimum_by_seed(name).get(alignment, {}).values()) for name in ("kl", "uniform")]
            rows.append(cells)
        header = ["alignment"]
        for optimiser in ("Adam", "SGD"):
            header += [f"{optimiser}: NLL", f"{optimiser}: InfoNCE", f"{optimiser}: difference, 95 %"]
        caption = f"""
            KL in thousandths of a nat, means over seeds. Differences (NLL − InfoNCE) are paired: the same data and
            the same batches. The statistical limit is {1e3 * self.limit:.2f}."""
        return Table([*header, "maximum likelihood", "answering 1/K"], rows, prose(caption))

    # --- why

    def noise_figure(self) -> Figure | None:
        noise = self._noise()
        if not noise:
            return None
        total = {loss: _estimates((c["data"]["alignment"], r[loss]["total"]) for c, r in noise) for loss in PAIR}
        rest = _estimates((c["data"]["alignment"], r["nll"]["total"] - r["nll"]["along_mean"]) for c, r in noise)
        variance = Panel(
            "(a) gradient noise at the optimum",
            ALIGNMENT,
            "variance of the batch gradient",
            [
                _line("nll", total["nll"]),
                _line("info-nce", total["info-nce"]),
                _line_of("NLL, without its part along the mean of x", rest, LOSSES["nll"].colour, "dot"),
            ],
        )
        control = Panel(
            "(c) control: InfoNCE without −log η",
            ALIGNMENT,
            KL,
            [
                _line("info-nce", self._kl("info-nce", "adam")),
                _line_of("InfoNCE without −log η", self._kl("info-nce-without-noise", "adam"), dash="dash"),
                Level(LIMIT, self.limit),
            ],
            log_y=True,
        )
        caption = """
            (a) The more the modes align, the noisier NLL's gradient. The noise lies along the mean of x, where it
            is the fluctuation of the batch's label counts; InfoNCE, whose denominator holds those counts, is free of
            it. (b) The KL that gradient descent adds to the optimum's, predicted from the measured noise and
            curvature without a free parameter, for every setting of the grid whose training loss has stopped falling;
            pale where less than a tenth of the limit is predicted, not drawn where the measured value is negative.
            (c) Without −log η InfoNCE fits p/η instead of p."""
        return Figure("noise", prose(caption), [variance, self._prediction_panel(), control])

    def _prediction_panel(self) -> Panel:
        drawn = [point for point in self.predictions() if point.measured > 0]
        ends = [value for point in drawn for value in (point.predicted, point.measured)] or [1e-5, 1e-2]
        low, high = 0.5 * min(ends), 2 * max(ends)
        marks: list[Mark] = [Diagonal("predicted = measured", low, high)]
        for loss, large in product(PAIR, (True, False)):
            chosen = [point for point in drawn if point.loss == loss and (point.predicted >= self.limit / 10) == large]
            if chosen:
                x, y = [point.predicted for point in chosen], [point.measured for point in chosen]
                hover = [point.where for point in chosen]
                marks.append(Points.of_loss(loss, x, y, hover=hover, opacity=1.0 if large else 0.35))
        return Panel(
            "(b) excess error of SGD",
            "predicted from the noise (nats)",
            "measured (nats)",
            marks,
            log_x=True,
            log_y=True,
            x_range=(low, high),
            y_range=(low, high),
        )

    def predictions(self) -> list["_Prediction"]:
        """Excess KL of SGD for every setting of the grid whose training loss has stopped falling.

        Settings are chosen by that alone, never by the excess they show, which can be negative: a fit whose slow
        directions have not converged may lie below the optimum's KL.
        """
        noise = {
            (c["data"]["alignment"], c["data"]["seed"], c["batch_size"], loss, lr): value
            for c, r in self._of_size("noise")
            for loss in PAIR
            for lr, value in r[loss]["excess_kl"].items()
        }
        optimum = {(c["data"]["alignment"], c["data"]["seed"]): r["kl"] for c, r in self.optimum}
        settings: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        falling = set()
        for config, result in self._grid():
            alignment, seed = config["data"]["alignment"], config["data"]["seed"]
            key = alignment, seed, config["batch_size"], config["loss"], f"{config['lr']:g}"
            if config["optimiser"] == "sgd" and noise.get(key) and (alignment, seed) in optimum:
                settings[alignment, *key[2:]].append((noise[key], result["kl_tail"] - optimum[alignment, seed]))
                if result["still_falling"]:
                    falling.add((alignment, *key[2:]))
        points = []
        for setting, pairs in settings.items():
            if setting not in falling:
                alignment, batch_size, loss, lr = setting
                predicted, measured = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
                where = f"{alignment:g} %, batch {batch_size}, rate {lr}"
                points.append(_Prediction(loss, predicted, measured, where))
        return points

    def noise_text(self) -> str | None:
        noise = self._noise()
        if not noise:
            return None
        highest = max(c["data"]["alignment"] for c, _ in noise)
        there = [r for c, r in noise if c["data"]["alignment"] == highest]
        ratio = estimate([r["nll"]["total"] / r["info-nce"]["total"] for r in there])
        share = estimate([r["nll"]["along_mean"] / r["nll"]["total"] for r in there])
        text = f"""
            At {highest:g} % alignment NLL's gradient has {ratio.mean:.1f} times the variance of InfoNCE's, and
            {100 * share.mean:.0f} % of NLL's lies along one direction of x, its mean. Along it a batch's gradient is
            the difference between the labels the batch happened to contain and those the model expects. InfoNCE
            weighs each class by the batch's own count and so expects the labels that are there: the counts are a
            control variate. NLL with the same correction is InfoNCE; the two have one gradient."""
        points = self.predictions()
        large = sorted(p.measured / p.predicted for p in points if p.predicted >= self.limit / 10)
        if large:
            text += f"""
                Of the grid's settings of SGD, {len(points)} have stopped falling. For the {len(large)} of them with a
                predicted excess error of at least a tenth of the limit, the measured one is
                {statistics.median(large):.2f} times as large (median; {large[0]:.2f} to {large[-1]:.2f})."""
        small = [p for p in points if p.predicted < self.limit / 10]
        if small:
            worst = max(abs(p.measured - p.predicted) for p in small)
            text += f" For the other {len(small)}, measured and predicted differ by up to {worst:.1g} nats."
        below = sum(p.measured <= 0 for p in small)
        if below:
            text += f"""
                {below} of them measure below the optimum's KL, which noise cannot do: they have not converged in
                their slow directions."""
        return prose(text)

    def grid_figure(self) -> Figure | None:
        grid = self._grid()
        if not grid:
            return None
        lrs, sizes = sorted({c["lr"] for c, _ in grid}), sorted({c["batch_size"] for c, _ in grid})
        alignments = sorted({c["data"]["alignment"] for c, _ in grid})
        cells: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for c, r in grid:
            cells[c["data"]["alignment"], c["optimiser"], c["loss"], c["lr"], c["batch_size"]].append(r)
        panels = []
        for alignment, (optimiser, name), loss in product(alignments, (("adam", "Adam"), ("sgd", "SGD")), PAIR):
            table = [[self._cell(cells[alignment, optimiser, loss, lr, size]) for lr in lrs] for size in sizes]
            heat = Heat(
                [f"{lr:g}" for lr in lrs],
                [str(size) for size in sizes],
                [[None if ratio is None else math.log10(ratio) for ratio, _ in row] for row in table],
                [[text for _, text in row] for row in table],
                low=0,
                high=1,
            )
            panels.append(Panel(f"{LOSSES[loss].name}, {name}, {alignment:g} %", "learning rate", "batch size", [heat]))
        caption = f"""
            KL divided by the statistical limit after {grid[0][0]["epochs"]} epochs, mean over
            {counted(len({c["data"]["seed"] for c, _ in grid}), "seed")} and the last tenth of the epochs. ↓: the
            training loss is still falling. Where steps are noisy (large rate, small batch) InfoNCE is nearer to the
            limit; where they are not, the two agree. Values well below 1 are fits that have not yet learned the labels'
            noise."""
        return Figure("grid", prose(caption), panels, columns=4, panel_size=(3.0, 2.6))

    def _cell(self, results: Sequence[dict[str, Any]]) -> tuple[float | None, str]:
        numbers = [r["kl_tail"] for r in results if r["kl_tail"] is not None]
        if not numbers:
            return None, "diverged" if results else ""
        ratio = sum(numbers) / len(numbers) / self.limit
        text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
        return ratio, text + (" ↓" if sum(r["still_falling"] for r in results) > len(results) / 2 else "")

    # --- soft targets

    def soft_figure(self) -> Figure | None:
        exact, drawn = self._kl("soft-ce", "adam"), self._kl("soft-dist-info-nce", "adam", "kl_smoothed")
        contrast = self._contrast()
        if not exact or not drawn:
            return None
        look = LOSSES["soft-target-info-nce"]
        as_is = _estimates((c["data"]["alignment"], r["kl"]) for c, r in contrast)
        tempered = _estimates((c["data"]["alignment"], r["kl_at_best_temperature"]) for c, r in contrast)
        left: list[Mark] = [
            _line("soft-ce", exact, band=False),
            _line("soft-target-info-nce", as_is, band=False),
            _line_of(f"{look.name}, best temperature", tempered, look.colour, "dot", band=False),
            _line_of("answering 1/K always", self._optimum("uniform"), dash="dash", band=False),
            Level(LIMIT, self.limit),
        ]
        right: list[Mark] = [
            _line("soft-dist-info-nce", drawn),
            _line_of("best linear model of p^ε", self._optimum("smoothed_floor"), dash="dot", band=False),
            Level(LIMIT, self.limit),
        ]
        caption = """
            (a) Soft target cross-entropy with the true conditional as target has no label noise and finds the
            truth (below 1e-7 where its line leaves the picture). Soft target InfoNCE, its scores normalised by a
            softmax, does not: it learns to tell the batch's targets apart, not to match them. (b) Soft distribution
            InfoNCE against the smoothed conditional p^ε, to which it converges as far as a linear model can follow."""
        panels = [
            Panel("(a) true conditional as soft target", ALIGNMENT, KL, left, log_y=True, y_range=(1e-7, 200)),
            Panel("(b) labels redrawn with smoothing", ALIGNMENT, "KL(p^ε‖q) (nats)", right, log_y=True),
        ]
        return Figure("soft", prose(caption), panels, panel_size=(4.6, 3.4))

    def soft_text(self) -> str | None:
        contrast = self._contrast()
        if not contrast:
            return None
        highest = max(c["data"]["alignment"] for c, _ in contrast)
        there = [r for c, r in contrast if c["data"]["alignment"] == highest]
        names = ("best_temperature", "kl", "kl_at_best_temperature", "agreement")
        temperature, kl, best, right = (estimate([r[name] for r in there]).mean for name in names)
        return prose(f"""
            Soft target InfoNCE is not a density estimate. At {highest:g} % alignment, after at most
            {max(c["epochs"] for c, _ in contrast)} epochs, its normalised scores have a KL of {kl:.2g}; divided by the
            temperature that suits them best ({temperature:.2g}), one of {best:.2g}, with the most probable class right
            for {100 * right:.0f} % of the samples. Targets that mix many classes differ little from each other, so the
            loss gains by inflating the scores until it can pick a sample's own target among the batch's.""")

    # --- maps, speed, method

    def maps_figure(self) -> Figure | None:
        maps = sorted(self._of_size("map"), key=lambda entry: float(entry[0]["data"]["alignment"]))
        if not maps:
            return None
        panels = []
        for config, result in maps:
            points = Points(
                "",
                result["x"],
                result["y"],
                colour=[_along_viridis(label / (self.sizes["num_modes"] - 1)) for label in result["labels"]],
                size=2.6,
                opacity=0.85,
                hover=[f"class {label + 1}" for label in result["labels"]],
            )
            panels.append(Panel(f"{config['data']['alignment']:g} %", "", "", [points], bare=True))
        caption = f"""
            t-SNE maps of data sets at several alignments, each point coloured by a class drawn for it (1 dark to
            {self.sizes["num_modes"]} light). The more the modes align, the less a point tells about its label."""
        return Figure("maps", prose(caption), panels, panel_size=(2.6, 2.5))

    def speed_text(self) -> str | None:
        speed = [result for _, result in self._part("speed")]
        if not speed:
            return None
        r = speed[-1]
        return prose(f"""
            All fits run as one tensor program, {1e3 * r["batched"]:.1f} ms a fit and epoch on {r["cores"]} cores; one
            after another, by autograd and torch.optim, they take {1e3 * r["plain"]:.1f} ms, {r["ratio"]:.1f} times as
            long ({r["ratio_on_one_core"]:.1f} times if the program has one core).""")

    def summary(self) -> str:
        highest = max(self._kl("nll", "adam"))
        text = "The paper reports that, as classes overlap, NLL estimates parameters worse than InfoNCE."
        far = [abs(e.mean / self.limit - 1) for loss in PAIR for a, e in self._kl(loss, "adam").items() if a >= 20]
        if far:
            text += f"""
                Here, with the paper's small steps, both come within {100 * max(far):.0f} % of the statistical limit
                wherever it applies. The gap opens with noisier steps: it is gradient noise, and the batch's label
                counts in InfoNCE's denominator cancel it."""
        adam, sgd = (self._difference(highest, optimiser) for optimiser in ("adam", "sgd"))
        if adam and sgd:
            text += f"""
                At {highest:g} % alignment NLL's KL minus InfoNCE's is {_interval(adam)} thousandths of a nat with
                Adam and {_interval(sgd)} with SGD; the limit is {1e3 * self.limit:.2f}."""
        return prose(text)

    def method(self) -> list[str]:
        config = next(c for c, _ in self.main if c["loss"] == "nll" and c["optimiser"] == "adam")
        s = self.sizes
        paragraphs = [
            f"""{s["num_modes"]} modes of unit length in {s["dimension"]} dimensions, the first at one angle to all
            others; {s["num_points"]} points drawn around ten times the modes, resampled to {s["num_samples"]} samples,
            labels from softmax(xᵀθ). A seed fixes all of it; alignments of one seed share their random numbers.""",
            f"""The paper gives rate, batch size and epochs but no optimiser; Adam is our reading. Fits start at zero,
            take batches of {config["batch_size"]} without replacement and at most {self.epochs} epochs, and stop when
            the loss over all training samples has not fallen by {config["tolerance"]:g} nats for
            {config["patience"]} epochs; the last parameters count. KL is averaged over the samples' x. η is the class
            frequencies of the training labels.""",
            """The limit (K−1)d/(2n) is half a nat for each free parameter, divided by the samples. It is asymptotic:
            where classes are almost separable the labels do not determine the parameters, the exact
            maximum-likelihood fit is worse than the limit, and stopping early helps.""",
            """Excess error of SGD: near the optimum, along an eigenvector of the Hessian with value h and gradient
            variance c, a step multiplies the deviation by a = 1 − lr·h and adds noise that, without replacement, sums
            to zero over an epoch's m batches. The variance of the deviation follows in closed form; for small
            steps and many batches the excess KL is lr/4 times the trace of the gradient's covariance.""",
        ]
        return [prose(paragraph) for paragraph in paragraphs]

    # --- the paper's claims

    def claims(self) -> dict[str, Finding | None]:
        alignments = list(self._kl("nll", "adam"))
        return {
            "density-gap": self._gap(max(alignments)),
            "density-trend": self._trend(min(alignments), max(alignments)),
            "density-orthogonal": self._orthogonal() if 0 in alignments else None,
            "density-soft-target": self._soft_target(),
        }

    def _gap(self, alignment: float) -> Finding:
        gaps = {optimiser: self._difference(alignment, optimiser) for optimiser in PROTOCOLS}
        words = [f"{_interval(gap)} {PROTOCOLS[optimiser]}" for optimiser, gap in gaps.items()]
        ours = f"NLL − InfoNCE at {alignment:g} %: {'; '.join(words)} (thousandths of a nat)"
        return Finding(prose(ours), self._on(gaps["adam"]), self._verdict(*([gap] for gap in gaps.values())))

    def _trend(self, low: float, high: float) -> Finding:
        rises: dict[str, list[list[float]]] = {}
        words = []
        for optimiser in PROTOCOLS:
            ends = [[self._by_seed(loss, optimiser).get(a, {}) for a in (low, high)] for loss in PAIR]
            rises[optimiser] = [
                [last[seed] - first[seed] for seed in sorted(set(first) & set(last))] for first, last in ends
            ]
            courses = [
                f"{_milli(first.values())} → {_milli(last.values())} ({LOSSES[loss].name})"
                for loss, (first, last) in zip(PAIR, ends, strict=True)
            ]
            words.append(f"{PROTOCOLS[optimiser]} {', '.join(courses)}")
        ours = f"from {low:g} % to {high:g} %: {'; '.join(words)} (thousandths of a nat)"
        return Finding(prose(ours), self._on(rises["adam"][0]), self._verdict(*rises.values()))

    def _verdict(self, small_steps: list[list[float]], noisy_steps: list[list[float]]) -> Verdict:
        """On the claim that all of these differences are positive: by more than a tenth of the limit, or not."""
        there: list[bool | None] = []
        for differences in (small_steps, noisy_steps):
            if any(len(values) < FEWEST_SEEDS for values in differences):
                there.append(None)
                continue
            estimates = [estimate(values) for values in differences]
            surely = all(e.low > 0 and e.mean > self.limit / 10 for e in estimates)
            surely_not = any(e.high < self.limit / 10 for e in estimates)
            there.append(True if surely else False if surely_not else None)
        match there:
            case [True, _]:
                return "reproduced"
            case [False, True]:
                return "explained"
            case [False, False]:
                return "not reproduced"
        return "undecided"

    def _orthogonal(self) -> Finding:
        difference = self._difference(0, "adam")
        means = [_milli(self._by_seed(loss, "adam").get(0, {}).values()) for loss in PAIR]
        ours = f"NLL {means[0]}, InfoNCE {means[1]}; difference {_interval(difference)} (thousandths of a nat)"
        verdict: Verdict = "undecided"
        if len(difference) >= FEWEST_SEEDS:
            e, margin = estimate(difference), self.limit / 10
            if max(abs(e.low), abs(e.high)) < margin:
                verdict = "reproduced"
            elif min(abs(e.low), abs(e.high)) > margin and e.low * e.high > 0:
                verdict = "not reproduced"
        return Finding(prose(ours), self._on(difference), verdict)

    def _soft_target(self) -> Finding | None:
        by_alignment: dict[float, list[dict[str, Any]]] = defaultdict(list)
        for config, result in self._contrast():
            by_alignment[config["data"]["alignment"]].append(result)
        if not by_alignment:
            return None
        errors = {a: estimate([r["kl"] for r in results]) for a, results in by_alignment.items()}
        worst = max(errors, key=lambda a: errors[a].mean)
        e, there, ignorant = errors[worst], by_alignment[worst], self._optimum("uniform").get(worst)
        tempered, temperature = (
            estimate([r[name] for r in there]).mean for name in ("kl_at_best_temperature", "best_temperature")
        )
        ours = f"KL {e.mean:.2g} nats at {worst:g} % alignment; {tempered:.2g} with scores divided by {temperature:.2g}"
        verdict: Verdict = "undecided"
        if ignorant:
            ours += f"; answering 1/K always has {ignorant.mean:.2g}"
            if e.count >= FEWEST_SEEDS and e.low > ignorant.mean:
                verdict = "not reproduced"
        if e.count >= FEWEST_SEEDS and e.high < 2 * self.limit:
            verdict = "reproduced"
        epochs = max(c["epochs"] for c, _ in self._contrast())
        on = f"the true conditional as soft target, {counted(e.count, 'seed')}, at most {epochs} epochs"
        return Finding(prose(ours), on, verdict)

    def _on(self, values: Sequence[float]) -> str:
        return f"mixtures of {self.sizes['num_modes']} Gaussians, {counted(len(values), 'seed')}"

    # --- selections

    def _part(self, part: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(config, result) for config, result in self.rows if config["part"] == part]

    def _of_size(self, part: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(config, result) for config, result in self._part(part) if self._same_size(config)]

    def _same_size(self, config: dict[str, Any]) -> bool:
        return dict(_sizes(config)) == self.sizes

    def _noise(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(c, r) for c, r in self._of_size("noise") if c["batch_size"] == self.protocol[1]]

    def _contrast(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        fits = [(c, r) for c, r in self._of_size("fit") if c["loss"] == "soft-target-info-nce"]
        longest = max((c["epochs"] for c, _ in fits), default=0)
        return [(c, r) for c, r in fits if c["epochs"] == longest]

    def _grid(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        grid = [(c, r) for c, r in self._of_size("fit") if c["tail"]]
        longest = max((c["epochs"] for c, _ in grid), default=0)
        return [(c, r) for c, r in grid if c["epochs"] == longest]

    def _lr(self, optimiser: str) -> float:
        rates = Counter(c["lr"] for c, _ in self.main if c["optimiser"] == optimiser and c["loss"] == "nll")
        return float(rates.most_common(1)[0][0]) if rates else math.nan

    def _by_seed(self, loss: str, optimiser: str, value: str = "kl") -> dict[float, dict[int, float]]:
        lr = self._lr(optimiser)
        found: dict[float, dict[int, float]] = defaultdict(dict)
        for c, r in self.main:
            if (c["loss"], c["optimiser"], c["lr"], c["epochs"]) == (loss, optimiser, lr, self.epochs):
                found[c["data"]["alignment"]][c["data"]["seed"]] = r[value]
        return dict(sorted(found.items()))

    def _kl(self, loss: str, optimiser: str, value: str = "kl") -> dict[float, Estimate]:
        return {a: estimate(list(by_seed.values())) for a, by_seed in self._by_seed(loss, optimiser, value).items()}

    def _difference(self, alignment: float, optimiser: str) -> list[float]:
        nll, info = (self._by_seed(loss, optimiser).get(alignment, {}) for loss in ("nll", "info-nce"))
        return [nll[seed] - info[seed] for seed in sorted(set(nll) & set(info))]

    def _optimum_by_seed(self, value: str) -> dict[float, dict[int, float]]:
        found: dict[float, dict[int, float]] = defaultdict(dict)
        for c, r in self.optimum:
            found[c["data"]["alignment"]][c["data"]["seed"]] = r[value]
        return dict(sorted(found.items()))

    def _optimum(self, value: str) -> dict[float, Estimate]:
        return {a: estimate(list(by_seed.values())) for a, by_seed in self._optimum_by_seed(value).items()}


@dataclass(frozen=True)
class _Prediction:
    loss: str
    predicted: float
    measured: float
    where: str


def _sizes(config: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    names = ("num_modes", "dimension", "num_points", "num_samples")
    return tuple((name, config["data"][name]) for name in names)


def _protocol(config: dict[str, Any]) -> tuple[Any, ...]:
    return config["epochs"], config["batch_size"], config["patience"], config["tolerance"], _sizes(config)


def _estimates(pairs: Iterable[tuple[float, float | None]]) -> dict[float, Estimate]:
    grouped: dict[float, list[float]] = defaultdict(list)
    for key, value in pairs:
        if value is not None:
            grouped[key].append(value)
    return {key: estimate(values) for key, values in sorted(grouped.items())}


def _line(loss: str, estimates: dict[float, Estimate], band: bool = True) -> Line:
    line = _line_of(LOSSES[loss].name, estimates, LOSSES[loss].colour, band=band)
    return replace(line, marker=LOSSES[loss].marker, loss=loss)


def _line_of(
    name: str, estimates: dict[float, Estimate], colour: str = OTHER, dash: str = "solid", band: bool = True
) -> Line:
    values = list(estimates.values())
    low, high = ([e.low for e in values], [e.high for e in values]) if band else (None, None)
    return Line(name, list(estimates), [e.mean for e in values], low, high, colour=colour, dash=dash)


def _milli(values: Iterable[float], scale: float = 1e3, digits: int = 2) -> str:
    values = list(values)
    return f"{scale * estimate(values).mean:.{digits}f}" if values else "–"


def _interval(values: Sequence[float]) -> str:
    return signed(estimate([1e3 * value for value in values])) if values else "–"


def _along_viridis(position: float) -> str:
    """Colour at ``position`` in [0, 1] of matplotlib's viridis, as hexadecimal."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return str(to_hex(colormaps["viridis"](position)))
