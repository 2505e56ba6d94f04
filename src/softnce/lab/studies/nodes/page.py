"""What the study ``nodes`` shows: its tables, figures and sentences, all computed from the results."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from softnce.lab.data.layout import CLASS_NAMES, EMBRYO_SAC
from softnce.lab.experiment.claims import Finding, Verdict, ahead, on_par
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.report.charts import Figure, Heat, Line, Mark, Panel, Points
from softnce.lab.report.page import Section, Table, counted, prose
from softnce.lab.report.style import LOSSES
from softnce.lab.train import graph_metrics as metrics

PAPER = {
    "nll": (86.92, 80.57),
    "soft-ce": (87.67, 81.41),
    "info-nce": (86.80, 80.00),
    "soft-dist-info-nce": (86.62, 79.97),
    "soft-target-info-nce": (87.12, 81.27),
}
"""Top-1 and class average on CellTypeGraph, in per cent: Tables 1 and 2 of the paper."""
OURS = "soft-target-info-nce"
ENOUGH = 30  # specimens: what the paper preset has; fewer decide nothing
CITATION = {"cora": "Cora", "citeseer": "CiteSeer"}
MODELS = {"gcn": "GCN", "deeper-gcn": "DeeperGCN, 2 layers"}
Rule = Literal["honest", "published", "last"]
Block = str | Figure | Table


def nodes_section(rows: Sequence[Row]) -> Section:
    tissue, citation = Folds.of(rows), Citations(rows)
    blocks: list[Block] = []
    summary, method = [], []
    if tissue:
        summary.append(tissue.summary())
        blocks += tissue.blocks()
        method.append(tissue.method())
    if citation.groups:
        summary.append(citation.summary())
        blocks += citation.blocks()
        method.append(citation.method())
    else:
        blocks.append("Cora and CiteSeer were not run: their files were not in $SOFTNCE_DATA/planetoid.")
    return Section("Five losses on graphs", prose(" ".join(summary)), blocks, method)


def nodes_claims(rows: Sequence[Row]) -> dict[str, Finding]:
    tissue = Folds.of(rows)
    return tissue.claims() if tissue else {}


class Folds:
    """The runs on tissue, those on the most cells where there are several sizes, by loss."""

    @staticmethod
    def of(rows: Sequence[Row]) -> "Folds | None":
        groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            if row.config["part"] == "tissue":
                c = row.config
                groups[(c["specimens"], c["cells"][1], c["layers"], c["hidden"], c["epochs"])].append(row)
        return Folds(groups[max(groups)]) if groups else None

    def __init__(self, rows: Sequence[Row]) -> None:
        self.config = rows[0].config
        self.rows = {loss: [row for row in rows if row.config["loss"] == loss] for loss in PAPER}
        self.rows = {loss: found for loss, found in self.rows.items() if found}
        self.seeds = len({row.config["seed"] for row in rows})
        self.folds = len({row.config["fold"] for row in rows})

    # --- numbers

    def values(self, loss: str, rule: Rule = "honest", score: str = "top1") -> dict[tuple[int, int], float]:
        """Per cent, by seed and fold."""
        return {(r.config["seed"], r.config["fold"]): 100 * r.result[rule][score] for r in self.rows[loss]}

    def mean(self, loss: str, rule: Rule = "honest", score: str = "top1") -> float:
        return estimate(list(self.values(loss, rule, score).values())).mean

    def difference(self, a: str, b: str, score: str = "top1") -> Estimate | None:
        """a − b in points, paired by seed and fold."""
        if a not in self.rows or b not in self.rows:
            return None
        first, second = self.values(a, score=score), self.values(b, score=score)
        shared = sorted(first.keys() & second.keys())
        return estimate([first[key] - second[key] for key in shared]) if shared else None

    def confusions(self, loss: str) -> Tensor:
        """(specimens of all folds and seeds, K, K)"""
        return torch.cat([torch.tensor(row.result["honest"]["confusions"]) for row in self.rows[loss]])

    def optimism(self) -> Estimate:
        """What choosing the epoch on the scored specimens adds, over all runs, in points."""
        return estimate([100 * (r.result["published"]["top1"] - r.result["honest"]["top1"]) for r in self.all()])

    def all(self) -> list[Row]:
        return [row for found in self.rows.values() for row in found]

    @property
    def decides(self) -> bool:
        return self.config["specimens"] >= ENOUGH and self.folds == 5

    # --- what is said

    def summary(self) -> str:
        if not self.decides:
            return """Tissue grown in the layout of the paper's benchmark: these trainings are too short to compare
                losses; softnce study nodes --preset paper does."""
        means = [self.mean(loss) for loss in self.rows]
        best = max(self.rows, key=self.mean)
        told = self.told_apart()
        apart = " and ".join(told) if told else f"no loss can be told from {LOSSES[OURS].name}"
        return f"""On tissue grown in the layout of the paper's benchmark, the five losses lie within
            {max(means) - min(means):.1f} points of each other, {LOSSES[best].name} in front. Paired over the folds,
            {apart}."""

    def told_apart(self) -> list[str]:
        """The losses whose difference to soft target InfoNCE has an interval without 0."""
        told = []
        for loss in self.rows:
            e = self.difference(loss, OURS) if loss != OURS else None
            if e is not None and e.count > 1 and (e.low > 0 or e.high < 0):
                side = "ahead of" if e.mean > 0 else "behind"
                told.append(f"{LOSSES[loss].name} is {abs(e.mean):.1f} points {side} {LOSSES[OURS].name}")
        return told

    def blocks(self) -> list[Block]:
        return [
            self.table(),
            self.explanation(),
            self.figure(),
            self.epoch_text(),
            self.course_text(),
            self.course_figure(),
            self.class_table(),
            self.confusion_figure(),
        ]

    def table(self) -> Table:
        body = []
        for loss in self.rows:
            pooled = metrics.score(self.confusions(loss), (EMBRYO_SAC,))
            paper_top1, paper_average = PAPER[loss]
            body.append(
                [
                    LOSSES[loss].name,
                    f"{paper_top1:.2f}",
                    f"{paper_average:.2f}",
                    _spread(list(self.values(loss).values())),
                    _spread(list(self.values(loss, score="class_average").values())),
                    _spread(list(self.values(loss, "published").values())),
                    f"{100 * pooled.top1:.1f} ± {100 * pooled.top1_deviation:.1f}",
                ]
            )
        return Table(
            [
                "loss",
                "CellTypeGraph, paper: top-1",
                "CellTypeGraph, paper: class average",
                "tissue, ours: top-1",
                "tissue, ours: class average",
                "tissue, ours: top-1, epoch as published",
                "tissue, ours: top-1 by specimen",
            ],
            body,
            prose(f"""The paper's table, and ours beside it on other data: the columns of the paper are
                CellTypeGraph, ours generated tissue, and only the order of losses within a column can be compared.
                Per cent; ours: mean ± standard deviation over {self.folds} folds ({counted(self.seeds, "seed")}), in
                the last column over all specimens, as the benchmark's leaderboard counts. The epoch was chosen on
                specimens kept from training, except where it says as published."""),
        )

    def explanation(self) -> str:
        measured = []
        for loss, other, score, name in (
            ("info-nce", "nll", "top1", "top-1"),
            (OURS, "info-nce", "top1", "top-1"),
            (OURS, "info-nce", "class_average", "class average"),
            ("soft-dist-info-nce", "info-nce", "top1", "top-1"),
            ("soft-ce", "nll", "top1", "top-1"),
        ):
            e = self.difference(loss, other, score)
            if e is not None:
                measured.append(f"{LOSSES[loss].name} minus {LOSSES[other].name} {signed(e)} ({name})")
        epsilon = _smoothing(self.rows)
        wrong = 100 * epsilon * (1 - 1 / len(CLASS_NAMES))
        return prose(f"""Theory says which losses should agree. A batch holds about {self.nodes_a_batch():,} labelled
            cells of nine classes, so the class counts among the candidates are close to η times their number, and
            InfoNCE then is NLL plus a constant. All targets are smoothed alike, so soft target InfoNCE is InfoNCE at
            temperature 1/(1−ε) and noise η^(1−ε): its best scores rank classes by p^(1/(1−ε))·η^(−ε/(1−ε)), which leans
            a little towards rare ones. Soft distribution InfoNCE sees {wrong:.0f} % wrong labels, drawn anew each time.
            Measured, in points with 95 % intervals over the folds: {"; ".join(measured)}. {self.noise()}""")

    def noise(self) -> str:
        """How far trainings of nearly one loss lie apart, and what that leaves to be seen."""
        if not {"nll", "info-nce"} <= self.rows.keys() or not self.decides:
            return ""
        first, second = self.values("info-nce"), self.values("nll")
        gaps = [first[key] - second[key] for key in sorted(first.keys() & second.keys())]
        return f"""On a single fold InfoNCE and NLL, nearly one loss, differ by {_deviation(gaps):.1f} points (standard
            deviation): that is the noise of a training. The paper's five figures on CellTypeGraph lie within
            {_paper_range():.1f} points, and it prints no spread; {len(gaps)} folds cannot tell such differences from
            noise."""

    def nodes_a_batch(self) -> int:
        """About: eight training specimens of the mean size of those tested."""
        return round(0.08 * self.confusions(next(iter(self.rows))).sum((1, 2)).double().mean().item()) * 100

    def epoch_text(self) -> str:
        gained, rows = self.optimism(), self.all()
        gap = [row.result["published"]["epoch"] - row.result["honest"]["epoch"] for row in rows]
        same = sum(1 for difference in gap if difference == 0)
        return prose(f"""Choosing the epoch on the very specimens that are scored, the published rule, adds
            {gained.mean:.2f} points on average ({_range(gained)}; largest
            {max(100 * (r.result["published"]["top1"] - r.result["honest"]["top1"]) for r in rows):.1f}) over choosing
            it on other specimens; the two rules chose the same epoch in {same} of {len(rows)} trainings. Compare the
            differences between losses with that before believing them.""")

    def course_text(self) -> str:
        early = [
            f"{LOSSES[loss].name} minus {LOSSES[other].name} {signed(e)}"
            for loss, other in (("info-nce", "nll"), (OURS, "soft-ce"), ("soft-dist-info-nce", "info-nce"))
            if (e := self.early_difference(loss, other)) is not None
        ]
        initial = "one initialisation" if self.seeds == 1 else f"{self.seeds} initialisations"
        return prose(f"""Losses that end alike can differ on the way. Test top-1 averaged over the first half of the
            epochs, in points with 95 % intervals over the folds (all from {initial}): {"; ".join(early)}. A likely
            reason, not tested here: batches differ in their class counts, most of all the last of an epoch, which holds
            what specimens are left, and in the contrastive losses the counts stand in the denominator, where they
            cancel such noise from the gradient.""")

    def early_difference(self, a: str, b: str) -> Estimate | None:
        """a − b in points over the first half of the epochs, paired by seed and fold."""
        if a not in self.rows or b not in self.rows:
            return None
        means = []
        for loss in (a, b):
            means.append(
                {
                    (r.config["seed"], r.config["fold"]): 100
                    * _mean(r.result["test_top1"][: r.config["epochs"] // 2 or 1])
                    for r in self.rows[loss]
                }
            )
        shared = sorted(means[0].keys() & means[1].keys())
        return estimate([means[0][key] - means[1][key] for key in shared]) if shared else None

    # --- figures

    def figure(self) -> Figure:
        panels = []
        for score, title in (("top1", "top-1 accuracy"), ("class_average", "class average")):
            marks: list[Mark] = []
            for place, loss in enumerate(self.rows):
                values = self.values(loss, score=score)
                x = [place + 0.13 * (fold - (self.folds - 1) / 2) for _, fold in values]
                hover = [f"fold {fold}, seed {seed}" for seed, fold in values]
                marks.append(Points.of_loss(loss, x, list(values.values()), hover=hover, size=5.5))
                middle = self.mean(loss, score=score)
                marks.append(Line("", [place - 0.36, place + 0.36], [middle, middle], colour=LOSSES[loss].colour))
            limits = (-0.6, len(self.rows) - 0.4)
            panels.append(Panel(title, "", "per cent of cells", marks, hide_x=True, x_range=limits))
        return Figure(
            "folds",
            prose(f"""Accuracy on tissue, a point for each of {self.folds} folds (from left to right, the same for
                every loss) and a line at their mean."""),
            panels,
            panel_size=(4.4, 3.1),
        )

    def course_figure(self) -> Figure:
        tested, trained = [], []
        for loss, found in self.rows.items():
            epochs = list(range(1, 1 + len(found[0].result["test_top1"])))
            tested.append(Line.of_loss(loss, epochs, _mean_course(found, "test_top1", 100), marker=""))
            course = _mean_course(found, "loss", 1)
            trained.append(Line.of_loss(loss, epochs, [v - course[-1] for v in course], marker=""))
        return Figure(
            "course",
            prose("""Training on tissue, means over folds. Left: top-1 on the test specimens. Right: the training loss
                above its last value, since losses differ by constants (a contrastive one grows with the log of the
                number of candidates)."""),
            [
                Panel("test specimens", "epoch", "top-1 (%)", tested),
                Panel("training", "epoch", "loss above its last value (nats)", trained),
            ],
            panel_size=(4.4, 3.1),
        )

    def class_table(self) -> Table:
        by_loss = {loss: metrics.per_class(self.confusions(loss), CLASS_NAMES) for loss in self.rows}
        first = next(iter(by_loss.values()))
        body = []
        for k, row in enumerate(first):
            cells = [f"{row['cells'] // self.seeds:,}", str(row["specimens"] // self.seeds)]
            shares = [_percent(found[k]["accuracy"]) for found in by_loss.values()]
            body.append([row["class"], *cells, *shares, by_loss[max(by_loss, key=self.mean)][k]["taken for"]])
        return Table(
            ["class", "cells", "specimens", *(LOSSES[loss].name for loss in by_loss), "most often taken for"],
            body,
            prose("""Accuracy by class on the test specimens of all folds, in per cent of its cells. The embryo sac
                (es), one to four cells a specimen, is left out of the class average, as in the benchmark. Last column:
                the commonest mistake under the loss with the best top-1."""),
        )

    def confusion_figure(self) -> Figure:
        panels = []
        shown = [loss for loss in ("nll", OURS) if loss in self.rows]
        for loss in shown:
            total = self.confusions(loss).sum(0).double()
            share = (100 * total / total.sum(1, keepdim=True).clamp(min=1)).flip(0).tolist()
            text = [[f"{value:.0f}" if value >= 0.5 else "" for value in row] for row in share]
            shown_share = [[value if value >= 0.5 else None for value in row] for row in share]
            names = [name.replace("funiculus", "fun.") for name in CLASS_NAMES]
            heat = Heat(names, names[::-1], shown_share, text, 0.0, 100.0, LOSSES[loss].name)
            panels.append(Panel(LOSSES[loss].name, "predicted", "true class", [heat]))
        return Figure(
            "confusion",
            prose("""Which cell types are taken for which: per cent of the true class (rows), over the test specimens
                of all folds. Blank: less than half a per cent. fun.: funiculus."""),
            panels,
            panel_size=(4.6, 4.2),
        )

    # --- claims

    def claims(self) -> dict[str, Finding]:
        if set(self.rows) != set(PAPER):
            return {}
        c = self.config
        folds = f"{self.folds} folds" + (f" × {self.seeds} seeds" if self.seeds > 1 else "")
        on = f"generated tissue, not CellTypeGraph; DeeperGCN of {c['layers']} layers, {folds}"
        lead = self.difference("soft-ce", OURS)
        hard = [self.difference(OURS, loss) for loss in ("nll", "info-nce")]
        assert lead is not None
        found = {"nodes-soft-ce": Finding(f"{signed(lead)} points", on, ahead(lead) if self.decides else "undecided")}
        if all(e is not None for e in hard):
            nll, info = (e for e in hard if e is not None)
            verdicts = {on_par(nll), on_par(info)}
            verdict: Verdict = "not reproduced" if "not reproduced" in verdicts else "undecided"
            verdict = "reproduced" if verdicts == {"reproduced"} else verdict
            text = f"{signed(nll)} points over NLL, {signed(info)} over InfoNCE"
            found["nodes-hard"] = Finding(text, on, verdict if self.decides else "undecided")
        worst = min(self.rows, key=self.mean)
        drawn = "soft-dist-info-nce"
        rival = min((loss for loss in self.rows if loss != drawn), key=self.mean)
        behind = self.difference(rival, drawn)
        assert behind is not None
        text = f"{self.mean(drawn):.2f}, the {'next' if worst == drawn else 'worst, ' + LOSSES[rival].name + ','} "
        found["nodes-soft-distribution"] = Finding(
            f"{text}{self.mean(rival):.2f}; {signed(behind)} points between them",
            on,
            ahead(behind) if self.decides else "undecided",
        )
        return found

    def method(self) -> str:
        c = self.config
        return prose(f"""{c["specimens"]} specimens of {c["stages"]} stages with about {c["cells"][0]} to
            {c["cells"][1]} cells, grown by softnce.lab.data.tissue with seed 0. DeeperGCN of {c["layers"]} layers,
            width {c["hidden"]}, with edge features; Adam at a constant 1e-3, batches of 8 specimens, {c["epochs"]}
            epochs for every loss (the paper: 32 layers, 500 epochs for hard and 1000 for soft losses), soft losses with
            smoothing {_smoothing(self.rows):g}; no augmentations, which cost accuracy in so short a
            training (docs/graphs.md). A fold trains on three fifths of the specimens, chooses the epoch on a fifth and
            scores a fifth. Recipe: laptop/tissue. Intervals over folds are Student's; folds share training specimens,
            so they are somewhat too narrow.""")


class Citations:
    """The runs on citation graphs, by data set, model and loss."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
        for row in rows:
            c = row.config
            if c["part"] == "citation":
                self.groups.setdefault((c["data"], c["model"]), {}).setdefault(c["loss"], []).append(row)
        order = [(data, model) for model in MODELS for data in CITATION]
        losses = list(PAPER)
        self.groups = {
            key: {loss: self.groups[key][loss] for loss in losses if loss in self.groups[key]}
            for key in order
            if key in self.groups
        }

    def values(self, key: tuple[str, str], loss: str, rule: Rule = "honest") -> list[float]:
        return [100 * row.result[rule]["top1"] for row in self.groups[key][loss]]

    def summary(self) -> str:
        reached = [
            f"{estimate(self.values(key, 'nll')).mean:.1f} % on {CITATION[key[0]]}"
            for key, of_loss in self.groups.items()
            if key[1] == "gcn" and "nll" in of_loss
        ]
        if not reached:
            return ""
        return f"""On citation graphs the same code gives the two-layer GCN its known accuracy with NLL:
            {" and ".join(reached)}."""

    def blocks(self) -> list[Block]:
        return [self.text(), self.table(), self.figure()]

    def text(self) -> str:
        gaps = self.largest_gaps()
        measured = ""
        if gaps and max(gaps.values()) == 0:
            measured = "Measured, their runs of one seed end with the same accuracy, all of them."
        elif gaps:
            by_model = " and ".join(f"{gap:.1f} points with {MODELS[model]}" for model, gap in gaps.items())
            measured = f"""Measured, the accuracies of their runs of one seed differ at the last epoch by up to
                {by_model}: rounding, which a training can grow. Differences of that size between other losses mean
                nothing."""
        return prose(f"""The public split has 20 labelled nodes of each class, and a batch is all of them, so the
            candidates' class counts are exactly η times their number: InfoNCE's gradient is NLL's, and the two are one
            loss here. {measured}""")

    def largest_gaps(self) -> dict[str, float]:
        """By model, the largest |InfoNCE − NLL| at the last epoch over runs of one seed, in points."""
        gaps: dict[str, float] = {}
        for (_, model), of_loss in self.groups.items():
            by_seed = {row.config["seed"]: row.result["last"]["top1"] for row in of_loss.get("nll", [])}
            for row in of_loss.get("info-nce", []):
                if row.config["seed"] in by_seed:
                    gap = abs(100 * (row.result["last"]["top1"] - by_seed[row.config["seed"]]))
                    gaps[model] = max(gap, gaps.get(model, 0.0))
        return gaps

    def table(self) -> Table:
        losses = list(dict.fromkeys(loss for of_loss in self.groups.values() for loss in of_loss))
        header, body = ["loss"], [[LOSSES[loss].name] for loss in losses]
        for key, of_loss in self.groups.items():
            seeds = counted(max(len(rows) for rows in of_loss.values()), "seed")
            header += [f"{CITATION[key[0]]}, {MODELS[key[1]]} ({seeds})", "at the last epoch"]
            for line, loss in zip(body, losses, strict=True):
                for rule in ("honest", "last"):
                    line.append(_spread(self.values(key, loss, rule)) if loss in of_loss else "–")
        return Table(
            header,
            body,
            prose("""Test accuracy on the public split in per cent, mean ± standard deviation over seeds: at the epoch
                that is best on the 500 validation nodes, and at the last."""),
        )

    def figure(self) -> Figure:
        panels = []
        for key, of_loss in self.groups.items():
            marks: list[Mark] = []
            for place, loss in enumerate(of_loss):
                values = self.values(key, loss)
                n = len(values)
                x = [place + 0.5 * (i - (n - 1) / 2) / max(n, 4) for i in range(n)]
                hover = [f"seed {row.config['seed']}" for row in of_loss[loss]]
                marks.append(Points.of_loss(loss, x, values, hover=hover, size=4.5))
                middle = estimate(values).mean
                marks.append(Line("", [place - 0.36, place + 0.36], [middle, middle], colour=LOSSES[loss].colour))
            title = f"{CITATION[key[0]]}, {MODELS[key[1]]}"
            limits = (-0.6, len(of_loss) - 0.4)
            panels.append(Panel(title, "", "test accuracy (%)", marks, hide_x=True, x_range=limits))
        return Figure(
            "citation",
            prose("""Test accuracy on citation graphs at the epoch that is best on the validation nodes: a point a seed,
                a line at the mean."""),
            panels,
            columns=min(2, len(panels)),
            panel_size=(4.4, 2.9),
        )

    def method(self) -> str:
        return prose("""Cora and CiteSeer, public split, features scaled to sum 1. GCN: two layers, width 16, dropout
            0.5, Adam at 0.01, L2 of 5e-4 on the first layer alone, 200 epochs. DeeperGCN: two layers, width 64, dropout
            0.5, Adam at 0.01, L2 of 5e-4, 50 epochs. Nothing was tuned for a loss. Recipes: laptop/cora,
            laptop/citeseer, laptop/cora-deeper-gcn, laptop/citeseer-deeper-gcn.""")


def _deviation(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.double).std()) if len(values) > 1 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float]) -> str:
    mean = _mean(values)
    return f"{mean:.1f} ± {_deviation(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _range(e: Estimate) -> str:
    return f"95 % interval {e.low:.2f} to {e.high:.2f}"


def _paper_range() -> float:
    top1s = [top1 for top1, _ in PAPER.values()]
    return max(top1s) - min(top1s)


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.1f}"


def _mean_course(rows: Sequence[Row], name: str, scale: float) -> list[float]:
    return (scale * torch.tensor([row.result[name] for row in rows], dtype=torch.double).mean(0)).tolist()


def _smoothing(rows: dict[str, list[Row]]) -> float:
    return max(row.config["smoothing"] for found in rows.values() for row in found)
