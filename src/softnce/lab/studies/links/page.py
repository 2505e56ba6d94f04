"""Scores of the test split, the way to them, and the search."""

from collections.abc import Sequence
from typing import Any

from softnce.lab.experiment.results import Row
from softnce.lab.report.charts import Figure, Level, Line, Panel, Points
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import LOSSES as LOOKS
from softnce.lab.report.style import OTHER
from softnce.lab.studies.links.findings import NAMES, PUBLISHED, TARGET, Key, Trained, finals, searched
from softnce.lab.studies.links.training import Loss

ORDER = 62
AS_IN: dict[Loss, str] = {"grouped-info-nce": "info-nce", "softmax": "nll", "soft-softmax": "soft-ce"}
"""Losses that other studies draw under another name."""
SHORT: dict[Loss, str] = {
    "info-nce": "InfoNCE",
    "grouped-info-nce": "InfoNCE, grouped",
    "expected-info-nce": "expected InfoNCE",
    "soft-target-info-nce": "soft target InfoNCE",
    "sampled-softmax": "sampled softmax",
    "softmax": "full softmax, 1vsAll",
    "soft-softmax": "full softmax, KvsAll",
}
"""For figures; the tables' names are longer."""


def _look(key: Key) -> dict[str, Any]:
    _, model, loss = key
    if loss == "sampled-softmax":
        return {"colour": OTHER, "marker": "v"}
    name = AS_IN.get(loss, loss)
    marker = "*" if model == "distmult" else "x" if loss == "grouped-info-nce" else LOOKS[name].marker
    return {"colour": LOOKS[name].colour, "marker": marker, "loss": name}


def section(rows: Sequence[Row]) -> Section:
    found = finals(rows)
    best = {graph: max(of.values(), key=lambda trained: trained.valid) for graph, of in _by_graph(found).items()}
    parts = [
        f"{graph}: best on the validation split is {NAMES[trained.loss]}, test MRR {trained.score('mrr').spread(3)}, "
        f"hits@10 {trained.score('hits10').spread(3)}"
        for graph, trained in best.items()
    ]
    method = """Reciprocal relations. Adagrad, whose learning rate falls linearly to 0, touches only the rows of
        the table that occur, except under the full softmax. N3 weighs the embeddings of each triple. A question
        with all its right answers weighs as many triples as it has answers, so that an epoch sums over the same
        triples for every loss. After each epoch the same sample of validation triples is ranked, and the best epoch
        is kept. Filtered ranks, both directions; ties get the mean of their ranks. Seconds are processor time of
        the steps with their batches on one thread. Memory of a step: the most that it allocates beside parameters
        and optimiser."""
    courses = [_course(graph, of) for graph, of in _by_graph(found).items()]
    tables = [_table(graph, of) for graph, of in _by_graph(found).items()]
    return Section(
        "Links of knowledge graphs",
        "; ".join(parts) + "." if parts else "No final training is there yet.",
        [*courses, _memory(found), *tables, _search(searched(rows))],
        [method],
    )


def _by_graph(found: dict[Key, Trained]) -> dict[str, dict[Key, Trained]]:
    graphs: dict[str, dict[Key, Trained]] = {}
    for key, trained in found.items():
        graphs.setdefault(key[0], {})[key] = trained
    return graphs


def _name(key: Key) -> str:
    return NAMES[key[2]] if key[1] == "complex" else f"{NAMES[key[2]]}, DistMult"


def _short(key: Key) -> str:
    return SHORT[key[2]] if key[1] == "complex" else f"{SHORT[key[2]]}, DistMult"


def _course(graph: str, found: dict[Key, Trained]) -> Figure:
    lines = []
    for key, trained in found.items():
        course = trained.rows[0].result["course"]
        dash = "dot" if key[1] == "distmult" else "dash" if key[2] == "grouped-info-nce" else "solid"
        lines.append(Line(_short(key), course["cpu_seconds"], course["mrr"], dash=dash, **_look(key)))
    level = [Level(f"MRR {TARGET}", TARGET)] if graph == "FB15k-237" else []
    panel = Panel(graph, "processor seconds of training", "validation MRR", [*lines, *level], log_x=True)
    caption = f"""{graph}: filtered MRR of a sample of the validation split after each epoch, against processor time of
        training on one thread; seed 0."""
    return Figure(f"course-{graph.lower()}", caption, [panel], panel_size=(7.0, 4.4))


def _memory(found: dict[Key, Trained]) -> Figure | None:
    panels = [
        Panel(
            graph, "memory of a step (MB)", "test MRR",
            [Points(_short(key), [t.of("step_bytes") / 1e6], [t.score("mrr").mean], **_look(key))
             for key, t in of.items()],
            log_x=True,
        )
        for graph, of in _by_graph(found).items()
    ]  # fmt: skip
    caption = """Filtered MRR of the test split against what a step allocates beside parameters and optimiser. A step of
        the full softmax grows with the number of entities; the others' does not."""
    return Figure("memory", caption, panels) if panels else None


def _table(graph: str, found: dict[Key, Trained]) -> Table:
    def seconds(trained: Trained) -> str:
        time = trained.time_to(TARGET)
        return f"{time:,.0f}" if time is not None and graph == "FB15k-237" else ""

    body = [
        [
            _name(key),
            f"{len(t.rows)}",
            f"{t.config['lr']:g}, {t.config['n3']:g}",
            f"{t.epochs:.0f}",
            f"{t.processor:,.0f}",
            seconds(t),
            f"{t.of('step_bytes') / 1e6:,.0f}",
            *(t.score(score).spread(3) for score in ("mrr", "hits1", "hits3", "hits10")),
        ]
        for key, t in found.items()
    ]
    for source, (mrr, hits) in PUBLISHED.get(graph, {}).items():
        body.append([f"ComplEx as published, {source}", *[""] * 6, f"{mrr:.3f}", "", "", f"{hits:.3f}"])
    costs = ["epochs", "processor s", f"s to {TARGET}", "step MB"]
    header = ["loss", "seeds", "lr, N3", *costs, "MRR", "hits@1", "hits@3", "hits@10"]
    first = next(iter(found.values()))
    caption = f"""{graph}, whole test split, both directions, filtered. {first.rows[0].result["unseen"]} test triples
        have an entity without a training triple; they are counted. A model has {first.of("parameters") / 1e6:.1f}
        million parameters."""
    return Table(header, body, caption)


def _search(rows: Sequence[Row]) -> Table | None:
    body = [
        [f"{row.config['graph']}, {NAMES[row.config['loss']]}", f"{row.config['lr']:g}", f"{row.config['n3']:g}",
         f"{row.result['course']['epoch'][-1]}", f"{row.result['course']['cpu_seconds'][-1]:,.0f}",
         f"{row.result['valid']['mrr']:.4f}"]
        for row in rows
    ]  # fmt: skip
    caption = "The search: every trial, seed 0, with the MRR of the whole validation split."
    return Table(["graph, loss", "lr", "N3", "epochs", "processor s", "MRR"], body, caption) if body else None
