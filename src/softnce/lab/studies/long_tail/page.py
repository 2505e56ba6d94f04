"""Accuracy by frequency of a class, the shift of scores, and predictions beside what was measured."""

from collections.abc import Callable, Sequence

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, TOP1
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Diagonal, Figure, Line, Mark, Panel, Points, band
from softnce.lab.report.losses import INTERVAL, Columns, cells
from softnce.lab.report.page import UNFINISHED, Section, Table
from softnce.lab.studies.long_tail.findings import (
    BATCH_ALONE,
    NAMED,
    NLL,
    SWITCHED,
    Tail,
    Variant,
    in_group,
    of_classes,
    tails,
)
from softnce.lab.studies.long_tail.run import GROUPS

ORDER = 50
TITLE = "Rare classes and −log η"
COLUMNS: Columns = {
    "top-1 (%)": (TOP1, 2),
    **{f"classes with {name} (%)": (in_group(name), 1) for name in GROUPS},
    "ECE (%)": (ECE, 1),
    "top-1, prior switched afterwards (%)": (SWITCHED, 2),
}


def section(rows: Sequence[Row]) -> Section:
    found = tails(rows)
    if not found:
        return Section(TITLE, UNFINISHED, [])
    complete = [tail for tail in found if tail.complete]
    last, config = found[-1], found[-1].first.config
    summary = UNFINISHED
    if last.complete:
        summary = f"""With −log η a contrastive loss aims at p(y|x), as NLL does; without it at p(x|y). At imbalance
            {last.imbalance:g}, leaving it out changes top-1 on a balanced test by
            {signed(last.effect("soft-target-info-nce"))} points with soft target InfoNCE."""
    blocks = [
        _tail_figure(found),
        _predictions(complete) if complete else None,
        _best(complete[-1]) if complete else None,
        _shift_figure(found),
        _table(found),
    ]
    method = f"""{config["epochs"]} epochs of batches of {config["batch"]}, three layers of {config["head"]["hidden"]}.
        Hard losses see labels, soft ones labels smoothed by 0.1 and mixed (MixUp, 0.8). The same samples are kept in
        every run. Theory: docs/evidence.md."""
    return Section(TITLE, summary, blocks, [method])


def _name(variant: Variant) -> str:
    loss, corrected = variant
    return NAMED[loss] + ("" if not _is_contrastive(variant) else " with −log η" if corrected else " without −log η")


def _is_contrastive(variant: Variant) -> bool:
    return variant[0] not in ("nll", "soft-ce")


def _tail_figure(found: Sequence[Tail]) -> Figure:
    panels = []
    for tail in found:
        x = [sum(tail.counts[k] for k in classes) / len(classes) for classes in tail.bins()]
        marks = []
        shown = [variant for variant in tail.chosen if variant[0] != BATCH_ALONE]
        for variant in sorted(shown, key=lambda variant: list(NAMED).index(variant[0])):
            means = [tail.chosen[variant].mean(of_classes(classes)) for classes in tail.bins()]
            dash = "dash" if _is_contrastive(variant) and not variant[1] else "solid"
            suffix = _name(variant).removeprefix(NAMED[variant[0]])
            marks.append(Line.of_loss(variant[0], x, *band(means), suffix=suffix, dash=dash))
        axes = "training samples of the class", "accuracy (%)"
        panels.append(Panel(f"imbalance {tail.imbalance:g}", *axes, marks, log_x=True))
    caption = f"""Test accuracy of classes, in {len(found[-1].bins())} groups of as many classes each, against how often
        they are seen in training; {found[-1].data}, mean and 95 % interval over
        {counted(max(tail.seeds for tail in found), "seed")}. Solid: losses that model p(y|x); dashed: contrastive
        losses without −log η."""
    return Figure("tail", caption, panels, panel_size=(5.2, 3.8))


def _predictions(found: Sequence[Tail]) -> Table:
    """What theory says beside what was measured, one column per imbalance."""

    def line(words: str, predicted: str, measured: Callable[[Tail], str], loss: str = "info-nce") -> list[str]:
        return [words, predicted, *(measured(tail) if loss in tail.both_ways else "–" for tail in found)]

    nll, adjusted = "minus NLL (points of top-1)", "minus NLL with log p(y) subtracted afterwards (points)"
    body = [
        line(f"InfoNCE with −log η, {nll}", "0", lambda tail: signed(tail.behind_nll)),
        line(f"InfoNCE without, {adjusted}", "0", lambda tail: signed(tail.behind_adjusted)),
    ]
    for loss in found[-1].both_ways:

        def slopes(tail: Tail, loss: str = loss) -> str:
            return ", ".join(f"{slope:.2f}" for slope in tail.slopes(loss).values())

        def points(tail: Tail, loss: str = loss) -> str:
            return f"{signed(tail.switched(loss), 1)}; {signed(tail.effect(loss), 1)}"

        def by_group(tail: Tail, loss: str = loss) -> str:
            return "; ".join(signed(tail.effect(loss, in_group(name)), 1) for name in reversed(GROUPS))

        left_out = "points from leaving it out, classes with few samples; some; many"
        body += [
            line(f"{NAMED[loss]}: slope of the shift of scores against −log p(y)", "1", slopes, loss),
            line(
                f"{NAMED[loss]}: points from log p(y) subtracted afterwards; from leaving −log η out",
                "equal",
                points,
                loss,
            ),
            line(f"{NAMED[loss]}: {left_out}", "+; ; −", by_group, loss),
        ]
    rates = ", ".join(f"{lr:g}" for lr in found[-1].slopes(found[-1].both_ways[0]))
    caption = f"""Differences are paired by seed, with 95 % intervals. Slopes are those of seed 0 at the learning rates
        {rates}, the same with and without."""
    return Table(["on a balanced test", "predicted", *(f"imbalance {t.imbalance:g}" for t in found)], body, caption)


def _best(tail: Tail) -> str:
    top1 = {variant: setting.mean(TOP1).mean for variant, setting in tail.chosen.items()}
    best = max(top1, key=top1.__getitem__)
    return f"""At imbalance {tail.imbalance:g} ({max(tail.counts)} samples of the commonest class, {min(tail.counts)} of
        the rarest) {_name(best)} has the highest accuracy on a balanced test, {top1[best]:.1f} %. NLL has
        {top1[NLL]:.1f} %, and {tail.chosen[NLL].mean(SWITCHED).mean:.1f} % with log p(y) subtracted afterwards."""


def _shift_figure(found: Sequence[Tail]) -> Figure:
    panels = []
    for tail in found:
        centre = sum(tail.surprise) / len(tail.surprise)
        x = [value - centre for value in tail.surprise]
        marks: list[Mark] = [Diagonal("theory: slope 1", min(x), max(x))]
        for loss in tail.both_ways:
            if loss != BATCH_ALONE and (shifts := tail.shifts(loss)):
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
    body = [
        [_name(variant), f"{tail.imbalance:g}", *cells(setting, COLUMNS), f"{setting.lr:g}"]
        for tail in found
        for variant, setting in tail.chosen.items()
    ]
    caption = f"""Balanced test part, {INTERVAL}. Prior switched afterwards: log p(y) subtracted from the scores of
        models of p(y|x), added to those of models of p(x|y)."""
    return Table(["loss", "imbalance", *COLUMNS, "learning rate"], body, caption)
