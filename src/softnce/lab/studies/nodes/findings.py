"""Six losses on tissue, compared fold by fold, and on citation graphs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from softnce.lab.data.graph_metrics import Score, per_class, score
from softnce.lab.data.layout import CLASS_NAMES, EMBRYO_SAC
from softnce.lab.experiment.claims import Finding, Verdict, ahead, ahead_would_take, on_par, on_par_would_take
from softnce.lab.experiment.comparison import Value, alike, difference, mean, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.losses import LOSSES, PAPER, TITLES
from softnce.lab.studies.nodes.run import CITATION

OURS, DRAWN, EXPECTED = "soft-target-info-nce", "soft-dist-info-nce", "expected-info-nce"
ENOUGH = 30  # specimens: what the paper preset has; fewer decide nothing
MODELS = {"gcn": "GCN", "deeper-gcn": "DeeperGCN, 2 layers"}
TOP1, AVERAGE = percent("top1", "honest"), percent("class_average", "honest")
PUBLISHED, LAST = percent("top1", "published"), percent("top1", "last")


def early(row: Row) -> float:
    """Test top-1 in per cent, mean over the first half of the epochs."""
    return 100 * fmean(row.result["test_top1"][: row.config["epochs"] // 2 or 1])


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{fmean(values):.1f}"


@dataclass(frozen=True)
class Folds:
    """The runs on tissue, by loss."""

    rows: dict[str, list[Row]]

    @property
    def all(self) -> list[Row]:
        return [row for found in self.rows.values() for row in found]

    @property
    def config(self) -> dict[str, Any]:
        return self.all[0].config

    @property
    def seeds(self) -> int:
        return len({row.config["seed"] for row in self.all})

    @property
    def folds(self) -> int:
        return len({row.config["fold"] for row in self.all})

    @property
    def smoothing(self) -> float:
        """ε of the soft losses."""
        return max(row.config["smoothing"] for row in self.all)

    @property
    def decides(self) -> bool:
        return self.config["specimens"] >= ENOUGH and self.folds == 5

    def values(self, loss: str, value: Value = TOP1) -> dict[tuple[int, int], float]:
        """By seed and fold."""
        return {(row.config["seed"], row.config["fold"]): value(row) for row in self.rows[loss]}

    def mean(self, loss: str, value: Value = TOP1) -> float:
        return mean(self.rows[loss], value).mean

    def gaps(self, a: str, b: str, value: Value = TOP1) -> list[float]:
        """``value`` of a minus that of b, by seed and fold; none where one of them is missing."""
        if a not in self.rows or b not in self.rows:
            return []
        first, second = self.values(a, value), self.values(b, value)
        return [first[key] - second[key] for key in sorted(first.keys() & second.keys())]

    def difference(self, a: str, b: str, value: Value = TOP1) -> Estimate | None:
        gaps = self.gaps(a, b, value)
        return estimate(gaps) if gaps else None

    @property
    def noise(self) -> float | None:
        """Standard deviation over folds of InfoNCE minus NLL, which are nearly one loss, in points."""
        gaps = self.gaps("info-nce", "nll")
        return stdev(gaps) if len(gaps) > 1 else None

    @property
    def told_apart(self) -> dict[str, Estimate]:
        """The losses whose difference to soft target InfoNCE has an interval without 0."""
        found = {loss: self.difference(loss, OURS) for loss in self.rows if loss != OURS}
        return {loss: e for loss, e in found.items() if e and e.count > 1 and (e.low > 0 or e.high < 0)}

    @property
    def optimism(self) -> list[float]:
        """What choosing the epoch on the scored specimens adds to each run, in points."""
        return [PUBLISHED(row) - TOP1(row) for row in self.all]

    @property
    def same_epoch(self) -> int:
        """In how many runs both rules chose the same epoch."""
        return sum(row.result["published"]["epoch"] == row.result["honest"]["epoch"] for row in self.all)

    @property
    def cells_per_batch(self) -> int:
        """About: eight training specimens of the mean size of those tested."""
        cells = self.confusions(next(iter(self.rows))).sum((1, 2))
        return round(0.08 * cells.double().mean().item()) * 100

    def pooled(self, loss: str) -> Score:
        """Over all specimens, as the benchmark's leaderboard counts."""
        return score(self.confusions(loss), (EMBRYO_SAC,))

    def by_class(self, loss: str) -> list[dict[str, Any]]:
        """See :func:`~softnce.lab.data.graph_metrics.per_class`."""
        return per_class(self.confusions(loss), CLASS_NAMES)

    def confusions(self, loss: str) -> Tensor:
        """(specimens of all folds and seeds, K, K)"""
        return torch.cat([torch.tensor(row.result["honest"]["confusions"]) for row in self.rows[loss]])

    def course(self, loss: str, name: str) -> list[float]:
        """Mean over the runs, by epoch."""
        return [fmean(values) for values in zip(*(row.result[name] for row in self.rows[loss]), strict=True)]


@dataclass(frozen=True)
class Citations:
    """The runs on citation graphs, by data set and model, and by loss."""

    groups: dict[tuple[str, str], dict[str, list[Row]]]

    def values(self, key: tuple[str, str], loss: str, value: Value = TOP1) -> list[float]:
        return [value(row) for row in self.groups[key][loss]]

    @property
    def beside_cross_entropy(self) -> dict[str, Estimate]:
        """Expected InfoNCE minus soft target cross-entropy, paired by seed, in points, by graph and model."""
        return {
            f"{CITATION[data]}, {MODELS[model]}": difference(of_loss[EXPECTED], of_loss["soft-ce"], TOP1)
            for (data, model), of_loss in self.groups.items()
            if EXPECTED in of_loss and "soft-ce" in of_loss
        }

    @property
    def reached(self) -> dict[str, float]:
        """Accuracy of the GCN with NLL, by name of the graph."""
        return {
            CITATION[data]: fmean(self.values((data, model), "nll"))
            for (data, model), of_loss in self.groups.items()
            if model == "gcn" and "nll" in of_loss
        }

    @property
    def largest_gaps(self) -> dict[str, float]:
        """By model, the largest |InfoNCE − NLL| at the last epoch over runs of one seed, in points."""
        gaps: dict[str, float] = {}
        for (_, model), of_loss in self.groups.items():
            by_seed = {row.config["seed"]: LAST(row) for row in of_loss.get("nll", [])}
            for row in of_loss.get("info-nce", []):
                if row.config["seed"] in by_seed:
                    gap = abs(LAST(row) - by_seed[row.config["seed"]])
                    gaps[MODELS[model]] = max(gap, gaps.get(MODELS[model], 0.0))
        return gaps


def _by_loss(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found = {loss: [row for row in rows if row.config["loss"] == loss] for loss in LOSSES}
    return {loss: of_loss for loss, of_loss in found.items() if of_loss}


def tissue(rows: Sequence[Row]) -> Folds | None:
    """The runs on the most cells where there are several sizes."""
    groups = alike(
        [row for row in rows if row.config["part"] == "tissue"], "specimens", "cells", "layers", "hidden", "epochs"
    )

    def size(group: Sequence[Row]) -> tuple[Any, ...]:
        c = group[0].config
        return c["specimens"], c["cells"][1], c["layers"], c["hidden"], c["epochs"]

    return Folds(_by_loss(max(groups, key=size))) if groups else None


def citations(rows: Sequence[Row]) -> Citations:
    found = {
        (data, model): _by_loss(
            [row for row in rows if (row.config.get("data"), row.config.get("model")) == (data, model)]
        )
        for model in MODELS
        for data in CITATION
    }
    return Citations({key: of_loss for key, of_loss in found.items() if of_loss})


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = tissue(rows)
    if found is None or not set(found.rows) >= set(PAPER):
        return {}
    folds = f"{found.folds} folds" + (f" × {found.seeds} seeds" if found.seeds > 1 else "")
    on = f"generated tissue, not CellTypeGraph; DeeperGCN of {found.config['layers']} layers, {folds}"
    rival = min((loss for loss in PAPER if loss != DRAWN), key=found.mean)
    is_worst = found.mean(DRAWN) < found.mean(rival)
    pairs = (("soft-ce", OURS), (OURS, "nll"), (OURS, "info-nce"), (rival, DRAWN))
    gaps = [gap for a, b in pairs if (gap := found.difference(a, b)) is not None]
    if len(gaps) < len(pairs):
        return {}
    lead, nll, info, behind = gaps
    both = {on_par(nll), on_par(info)}
    hard: Verdict = "not reproduced" if "not reproduced" in both else "undecided"
    verdicts: list[Verdict] = [ahead(lead), "reproduced" if both == {"reproduced"} else hard, ahead(behind)]
    texts = [
        f"{signed(lead)} points{ahead_would_take(lead, 'folds')}",
        f"{signed(nll)} points over NLL{on_par_would_take(nll, 'folds')}, {signed(info)} over "
        f"InfoNCE{on_par_would_take(info, 'folds')}",
        f"{found.mean(DRAWN):.2f}, the {'next' if is_worst else f'worst, {TITLES[rival]},'} {found.mean(rival):.2f}; "
        f"{signed(behind)} points between them{ahead_would_take(behind, 'folds')}",
    ]
    keys = ("nodes-soft-ce", "nodes-hard", "nodes-soft-distribution")
    answers = {
        key: Finding(text, on, verdict if found.decides else "undecided")
        for key, text, verdict in zip(keys, texts, verdicts, strict=True)
    }
    beside = [found.difference(EXPECTED, loss) for loss in ("soft-ce", "nll")]
    if found.decides and beside[0] and beside[1]:
        said = [
            f"{signed(gap)} points from {TITLES[loss]}{on_par_would_take(gap, 'folds')}"
            for gap, loss in zip(beside, ("soft-ce", "nll"), strict=True)
            if gap
        ]
        if cited := [gap.mean for gap in citations(rows).beside_cross_entropy.values()]:
            said.append(
                f"on citation graphs from {min(cited):+.2f} to {max(cited):+.2f} points from {TITLES['soft-ce']}"
            )
        text = "; ".join(said)
        par = {on_par(gap) for gap in beside if gap}
        answers["nodes-expected"] = Finding(text, on, "beyond" if par == {"reproduced"} else "undecided")
    return answers
