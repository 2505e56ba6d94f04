"""Accuracy by frequency of a class, the shift of scores, and predictions beside what was measured."""

from collections.abc import Sequence

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.comparison import mean, percent
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import PAPER, TITLES
from softnce.lab.report.charts import Diagonal, Figure, Line, Mark, Panel, Points, band
from softnce.lab.report.page import Section, Table
from softnce.lab.studies.long_tail.findings import SWITCHED, TOP1, Tail, Variant, in_group, tails
from softnce.lab.studies.long_tail.run import CONTRASTIVE, GROUPS

ORDER = 50
TITLE = "Rare classes and −log η"


def section(rows: Sequence[Row]) -> Section:
    found = tails(rows)
    complete = [tail for tail in found if tail.complete]
    if not found:
        return Section(TITLE, "The runs of this study are not finished yet.", [])
    summary = "The runs of this study are not finished yet."
    if found[-1].complete:
        effects = "; ".join(f"{TITLES[loss]} {signed(found[-1].effect(loss))}" for loss in CONTRASTIVE)
        summary = f"""With −log η a contrastive loss aims at p(y|x), as NLL does; without it at p(x|y). At imbalance
            {found[-1].imbalance:g}, leaving it out changes top-1 on a balanced test by this many points: {effects}."""
    blocks = [
        _tail_figure(found),
        _predictions(complete) if complete else None,
        _best(complete[-1]) if complete else None,
        _shift_figure(found),
        _table(found),
    ]
    return Section(TITLE, summary, blocks, [_method(found[-1])])


def _name(variant: Variant) -> str:
    loss, corrected = variant
    return TITLES[loss] + ("" if loss not in CONTRASTIVE else ", with −log η" if corrected else ", without")


def _tail_figure(found: Sequence[Tail]) -> Figure:
    panels = []
    for tail in found:
        bins = tail.bins()
        x = [sum(tail.counts[k] for k in classes) / len(classes) for classes in bins]
        marks = []
        for variant in sorted(tail.chosen, key=lambda variant: PAPER.index(variant[0])):
            loss, corrected = variant
            dash = "dash" if loss in CONTRASTIVE and not corrected else "solid"
            suffix = _name(variant).removeprefix(TITLES[loss])
            bands = band([tail.accuracy(variant, classes) for classes in bins])
            marks.append(Line.of_loss(loss, x, *bands, suffix=suffix, dash=dash))
        title = f"imbalance {tail.imbalance:g}"
        panels.append(Panel(title, "training samples of the class", "accuracy (%)", marks, log_x=True))
    seeds = counted(max(tail.seeds for tail in found), "seed")
    caption = f"""Test accuracy of classes, in {len(found[-1].bins())} groups of as many classes each, against how often
        they are seen in training; {NAMES[found[-1].config["data"]]}, mean and 95 % interval over {seeds}. Solid: losses
        that model p(y|x); dashed: contrastive losses without −log η."""
    return Figure("tail", caption, panels, panel_size=(5.2, 3.8))


def _predictions(found: Sequence[Tail]) -> Table:
    """What theory says beside what was measured, one column per imbalance."""
    body = [
        ["InfoNCE with −log η, minus NLL (points of top-1)", "0", *(signed(tail.behind_nll) for tail in found)],
        [
            "InfoNCE without, minus NLL with log p(y) subtracted afterwards (points)",
            "0",
            *(signed(tail.behind_adjusted) for tail in found),
        ],
    ]
    for loss in CONTRASTIVE:
        body += [
            [
                f"{TITLES[loss]}: slope of the shift of scores against −log p(y)",
                "1",
                *(", ".join(f"{slope:.2f}" for slope in tail.slopes(loss).values()) for tail in found),
            ],
            [
                f"{TITLES[loss]}: points from log p(y) subtracted afterwards; from leaving −log η out",
                "equal",
                *(f"{signed(tail.switched(loss), 1)}; {signed(tail.effect(loss), 1)}" for tail in found),
            ],
            [
                f"{TITLES[loss]}: points from leaving it out, classes with few samples; some; many",
                "+; ; −",
                *(
                    "; ".join(signed(tail.effect(loss, in_group(name)), 1) for name in reversed(GROUPS))
                    for tail in found
                ),
            ],
        ]
    rates = ", ".join(f"{lr:g}" for lr in found[-1].slopes(CONTRASTIVE[0]))
    return Table(
        ["on a balanced test", "predicted", *(f"imbalance {tail.imbalance:g}" for tail in found)],
        body,
        f"""Differences are paired by seed, with 95 % intervals. Slopes are those of seed 0 at the learning rates
            {rates}, the same with and without.""",
    )


def _best(tail: Tail) -> str:
    best, nll = mean(tail.chosen[tail.best], TOP1).mean, tail.chosen["nll", False]
    return f"""At imbalance {tail.imbalance:g} ({max(tail.counts)} samples of the commonest class, {min(tail.counts)} of
        the rarest) the highest accuracy on a balanced test is {best:.1f} %, of {_name(tail.best)}; NLL has
        {mean(nll, TOP1).mean:.1f} %, and {mean(nll, SWITCHED).mean:.1f} % with log p(y) subtracted afterwards."""


def _shift_figure(found: Sequence[Tail]) -> Figure:
    panels = []
    for tail in found:
        centre = sum(tail.surprise) / len(tail.surprise)
        x = [value - centre for value in tail.surprise]
        marks: list[Mark] = [Diagonal("theory: slope 1", min(x), max(x))]
        for loss in CONTRASTIVE:
            if shifts := tail.shifts(loss):
                lr = tail.shared_rate(loss)
                hover = [f"learning rate {lr:g}"] * len(x)
                marks.append(Points.of_loss(loss, x, shifts[lr], size=3.5, opacity=0.75, hover=hover))
        title = f"imbalance {tail.imbalance:g}"
        panels.append(Panel(title, "−log p(y), centred", "score without − with correction", marks))
    caption = """What leaving −log η out does to the scores: a point is a class, its mean score over the test part
        without the correction minus with it, at the same learning rate and seed (0), against the prediction −log p(y),
        centred over classes."""
    return Figure("shift", caption, panels, panel_size=(4.6, 3.6))


def _table(found: Sequence[Tail]) -> Table:
    return Table(
        [
            "loss",
            "imbalance",
            "top-1 (%)",
            *(f"classes with {name} (%)" for name in GROUPS),
            "ECE (%)",
            "top-1, prior switched afterwards (%)",
            "learning rate",
        ],
        [
            [
                _name(variant),
                f"{tail.imbalance:g}",
                mean(runs, TOP1).spread(2),
                *(mean(runs, in_group(name)).spread(1) for name in GROUPS),
                mean(runs, percent("ece")).spread(1),
                mean(runs, SWITCHED).spread(2),
                f"{runs[0].config['lr']:g}",
            ]
            for tail in found
            for variant, runs in tail.chosen.items()
        ],
        f"""Balanced test part, mean ± half of the 95 % interval over
            {counted(max(tail.seeds for tail in found), "seed")}. Prior switched afterwards: log p(y) subtracted from
            the scores of models of p(y|x), added to those of models of p(x|y).""",
    )


def _method(tail: Tail) -> str:
    config = tail.config
    return f"""{config["epochs"]} epochs of batches of {config["batch"]}, three layers of {config["head"]["hidden"]}.
        Hard losses see labels, soft ones labels smoothed by 0.1 and mixed (MixUp, 0.8). The same samples are kept in
        every run. Theory: docs/evidence.md."""
