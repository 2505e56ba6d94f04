"""Do the losses differ on graphs? Node classification: generated tissue fold by fold, and citation graphs.

The paper's benchmark, CellTypeGraph, is not at hand. Tissue in its layout (30 specimens of 290 to 800 cells, nine
types) was grown by a generator that is no longer here; its rows stay and are read. DeeperGCN of 8 layers, width 64, 30
epochs for every loss, a fold each. Cora and CiteSeer: public split, a GCN and a DeeperGCN of two layers, a seed each.

NLL and InfoNCE see labels, the soft losses the same labels smoothed by 0.1. Soft distribution InfoNCE is run in the
authors' way, where η are the labels' frequencies, and on tissue also corrected, with η the marginal of the smoothed
targets. On citation graphs the training classes are balanced, so both are the same loss there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from experiments.data import features
from experiments.data.targets import Targets
from experiments.features import CE, CORRECTED, DRAWN, EXPECTED, OURS
from experiments.harness import Experiment, Figure, Row, Table, curve, dots, label, option
from experiments.harness.claims import ON_PAR, Finding, needed, verdict
from experiments.harness.statistics import Estimate, Value, difference, estimate, mean, percent
from experiments.losses import LOSSES, STUDIED, TITLES

CITATION = {"cora": "Cora", "citeseer": "CiteSeer"}
MODELS = {"gcn": "GCN", "deeper-gcn": "DeeperGCN"}

# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True)
class Options:
    seeds: int = option(10, "seeds of the GCN; a seed fixes first weights, dropout and draws", least=1)
    deeper_seeds: int = option(5, "seeds of the DeeperGCN; 0 for none", least=0)
    graphs: tuple[str, ...] = option(tuple(CITATION), "cora or citeseer", fewest=1, of=CITATION)


@dataclass(frozen=True)
class Run:
    """One training on a citation graph."""

    data: str
    model: str
    loss: str
    seed: int
    smoothing: float
    part: str = "citation"


def runs(options: Options) -> list[Run]:
    return [
        Run(data, model, loss, seed, 0.0 if LOSSES[loss].labels_only else 0.1)
        for model, seeds in (("deeper-gcn", options.deeper_seeds), ("gcn", options.seeds))
        for seed in range(seeds)
        for data in options.graphs
        for loss in STUDIED
    ]


def prepare(todo: Sequence[Run]) -> None:
    """Names a missing graph before any work."""
    from experiments.data.graphs import open_task

    for data in {run.data for run in todo}:
        open_task(data, features.folder("planetoid"))


def perform(run: Run) -> dict[str, Any]:
    """Courses, and scores at the epoch that the validation nodes choose, that the test nodes choose, and the last."""
    from experiments.cells import recipes
    from experiments.cells.nodes import follow

    recipe = recipes.load(f"laptop/{run.data}" + ("-deeper-gcn" if run.model == "deeper-gcn" else ""))
    data, loss = replace(recipe.data, dir=features.folder("planetoid")), replace(recipe.loss, name=run.loss)
    recipe = replace(recipe, seed=run.seed, data=data, loss=loss, targets=Targets(smoothing=run.smoothing))
    return follow(recipe)[1]


# --------------------------------------------------------------------------------------------------------- the numbers

PAPERS = {"nll": (86.92, 80.57), CE: (87.67, 81.41), "info-nce": (86.80, 80.00), DRAWN: (86.62, 79.97),
          OURS: (87.12, 81.27)}  # fmt: skip
"""Top-1 and class average on CellTypeGraph, in per cent: Tables 1 and 2 of the paper."""
TOP1, AVERAGE, PUBLISHED = percent("top1", "honest"), percent("class_average", "honest"), percent("top1", "published")
COMPARED: dict[str, tuple[list[tuple[str, str]], Mapping[str, Any]]] = {
    "nodes-soft-ce": ([(CE, OURS)], {"above": 0}),
    "nodes-hard": ([(OURS, "nll"), (OURS, "info-nce")], ON_PAR),
    "nodes-soft-distribution": ([(loss, DRAWN) for loss in PAPERS if loss != DRAWN], {"above": 0}),
    "nodes-expected": ([(EXPECTED, CE), (EXPECTED, "nll")], {**ON_PAR, "new": True}),
    "nodes-noise": ([(CORRECTED, DRAWN)], {"above": 0, "new": True}),
}
"""By claim: pairs of losses, and the bounds of the first minus the second of every pair."""
Folds = Mapping[tuple[int, int], Row]
"""The rows of a loss on tissue, by seed and fold."""


def tissue(rows: Sequence[Row]) -> dict[str, Folds]:
    found: dict[str, dict[tuple[int, int], Row]] = {loss: {} for loss in (*STUDIED, CORRECTED)}
    for row in rows:
        if (c := row.config)["part"] == "tissue":
            found[c["loss"]][c["seed"], c["fold"]] = row
    return {loss: of for loss, of in found.items() if of}


def by_fold(of: Folds, value: Value, minus: Folds | None = None) -> Estimate:
    """Over folds, each with its mean over seeds: a value, or its difference from that of other rows."""
    values: dict[int, list[float]] = {}
    for seed, fold in sorted(of.keys() & minus.keys() if minus else of, key=lambda key: key[1]):
        values.setdefault(fold, []).append(value(of[seed, fold]) - (value(minus[seed, fold]) if minus else 0))
    return estimate(list(map(fmean, values.values())))


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, answers = tissue(rows), {}
    for key, (pairs, bounds) in COMPARED.items():
        if {loss for pair in pairs for loss in pair} <= found.keys():
            gaps = [by_fold(found[a], TOP1, minus=found[b]) for a, b in pairs]
            limits = {name: bound for name, bound in bounds.items() if name != "new"}
            ours = "; ".join(
                f"{TITLES[a]} {e.signed()} from {TITLES[b]}{needed(e, **limits, unit='folds')}"
                for (a, b), e in zip(pairs, gaps, strict=True)
            )
            seeds = len({seed for a, b in pairs for seed, _ in found[a].keys() & found[b].keys()})
            on = f"{gaps[0].count} folds" + (f", {seeds} seeds" if seeds > 1 else "")
            answers[key] = Finding(ours, on, verdict(*gaps, **bounds))
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    body = []
    for loss, of in tissue(rows).items():
        papers = [f"{value:.2f}" for value in PAPERS.get(loss, ())] or ["", ""]
        body.append([TITLES[loss], *(by_fold(of, value).spread(1) for value in (TOP1, AVERAGE, PUBLISHED)), *papers])
    header = ["loss", "top-1", "class average", "top-1, published rule", "paper: top-1", "paper: class average"]
    cited: dict[str, dict[str, list[Row]]] = {}  # by graph and model, then by loss
    for row in sorted(rows, key=lambda row: list(MODELS).index(row.config.get("model", "gcn"))):
        if (c := row.config)["part"] == "citation":
            of = cited.setdefault(f"{CITATION[c['data']]}, {MODELS[c['model']]}", {})
            of.setdefault(c["loss"], []).append(row)
    scores = [[TITLES[loss], *(mean(of[loss], TOP1).spread(1) if loss in of else "" for of in cited.values())]
              for loss in STUDIED]  # fmt: skip
    gaps = [[name, *(difference(of[EXPECTED], of[other], TOP1).signed() for other in (CE, "nll"))]
            for name, of in cited.items() if {EXPECTED, CE, "nll"} <= of.keys()]  # fmt: skip
    return [
        Table("nodes-tissue", header, body),
        Table("nodes-citation", ["loss", *cited], scores),
        Table("nodes-expected", ["expected InfoNCE minus", "soft target cross-entropy", "NLL"], gaps),
    ]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = tissue(rows)

    def draw(axes: Sequence[Any]) -> None:
        dots(axes[0], {loss: by_fold(of, TOP1) for loss, of in found.items()}, TITLES)
        label(axes[0], "top-1 on tissue (%)")
        for loss, of in found.items():
            courses = list(zip(*(row.result["test_top1"] for row in of.values()), strict=True))
            points = {epoch: 100 * fmean(values) for epoch, values in enumerate(courses, 1)}
            curve(axes[1], points, loss=loss)
        label(axes[1], "epoch", "top-1 on tissue (%)")

    return [Figure("nodes-tissue", draw, panels=2, size=(5.4, 3.4))] if found else []


EXPERIMENT = Experiment(
    name="nodes", question="Do the losses differ on graphs, where the nodes are classified?", minutes=20,
    presets={"quick": Options(seeds=1, deeper_seeds=0, graphs=("cora",)), "paper": Options()},
    runs=runs, prepare=prepare, perform=perform, findings=findings, tables=tables,
    figures=figures,
)  # fmt: skip
