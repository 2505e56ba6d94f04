"""The section of the density study."""

import math
import statistics
from collections.abc import Sequence
from itertools import product

from softnce.lab.experiment.results import Row
from softnce.lab.experiment.text import counted
from softnce.lab.report.charts import Diagonal, Figure, Heat, Level, Line, Mark, Panel, Points, curve
from softnce.lab.report.page import Block, Headline, Section, Table
from softnce.lab.report.style import LOSSES
from softnce.lab.studies.density.findings import (
    EXPECTED,
    PAIR,
    PROTOCOLS,
    Cell,
    Density,
    by_alignment,
    interval,
    milli,
    read,
)

ORDER = 0
ALIGNMENT = "mode alignment (%)"
KL = "KL(p‖q) (nats)"
LIMIT = "statistical limit (K−1)d/(2n)"


def section(rows: Sequence[Row]) -> Section:
    found = read(rows)
    highest, c, d = max(found.alignments), found.config, found.config["data"]
    adam, sgd = (interval(found.gap(highest, optimiser)) for optimiser in PROTOCOLS)
    summary = f"""The paper reports that, as classes overlap, NLL estimates parameters worse than InfoNCE. At
        {highest:g} % alignment NLL's KL minus InfoNCE's is {adam} thousandths of a nat with the paper's small steps
        (Adam) and {sgd} with noisier steps (SGD); the statistical limit is {1e3 * found.limit:.2f}. The
        cause is gradient noise. The batch's label counts in InfoNCE's denominator cancel it."""
    method = f"""{d["num_modes"]} modes of unit length in {d["dimension"]} dimensions, the first at one angle to all
        others; {d["num_points"]} points drawn around ten times the modes, resampled to {d["num_samples"]} samples,
        labels from softmax(xᵀθ). A seed fixes all of it; alignments of one seed share their random numbers. The paper
        names no optimiser. Fits start at zero, take batches of {c["batch_size"]} without replacement and at most
        {c["epochs"]} epochs, and stop when the training loss has not fallen by {c["tolerance"]:g} nats for
        {c["patience"]} epochs."""
    blocks: list[Block] = [_kl_figure(found), _kl_text(found), _table(found), _expected_table(found)]
    if found.noise:
        blocks += [_noise_figure(found), _noise_text(found)]
    blocks += [
        _grid_figure(found) if found.grid else None,
        _soft_figure(found),
        _soft_text(found) if found.contrast else None,
        _maps_figure(found) if found.maps else None,
        _speed_text(found) if found.speed else None,
    ]
    headline = f"""Where classes overlap ({highest:g} % alignment), NLL's KL minus InfoNCE's is {adam} thousandths of a
        nat with the paper's small steps and {sgd} with noisier steps: an effect of gradient noise."""
    return Section("Estimating a known conditional", summary, blocks, [method], Headline(30, headline, "kl"))


def _kl_figure(found: Density) -> Figure:
    fitted = [e for loss in PAIR for optimiser in PROTOCOLS for e in found.kl(loss, optimiser).values()]
    top = 1.1 * max([e.high for e in fitted] + [1.5 * found.limit])
    panels = []
    for optimiser, words in (("adam", "(a) the paper's protocol: Adam"), ("sgd", "(b) noisier: SGD")):
        marks: list[Mark] = [
            Line("always predicting 1/K", *curve(found.exact("uniform"))[:2], dash="dash"),
            Line("maximum likelihood", *curve(found.exact("kl"))[:2], dash="dot"),
            *(Line.of_loss(loss, *curve(found.kl(loss, optimiser))) for loss in PAIR),
            Level(LIMIT, found.limit),
        ]
        if ours := found.kl(EXPECTED, optimiser):
            marks.append(Line.of_loss(EXPECTED, *curve(ours), dash="dash"))
        rate = "".join(f", {row.config['lr']:g}" for row in found.of("nll", optimiser)[:1])
        panels.append(Panel(f"{words}{rate}", ALIGNMENT, KL, marks, y_range=(0, top)))
    caption = f"""Error of the fitted conditional; mean and 95 % confidence band over
        {counted(max(e.count for e in fitted), "seed")}. (a) With small steps both losses reach the statistical
        limit. (b) With noisy steps only InfoNCE does."""
    return Figure("kl", caption, panels, panel_size=(4.6, 3.4))


def _kl_text(found: Density) -> str:
    ranges = []
    for optimiser, loss in product(PROTOCOLS, PAIR):
        shares = [100 * (e.mean / found.limit - 1) for a, e in found.kl(loss, optimiser).items() if a >= 20]
        if shares:
            how = f"{LOSSES[loss].name} {PROTOCOLS[optimiser]}"
            ranges.append(f"{how}: {min(shares):+.0f} % to {max(shares):+.0f} %")
    if not ranges:
        return ""
    last = {loss: list(found.kl(loss, "sgd", "parameter_error").values())[-1:] for loss in PAIR}
    errors = " and ".join(f"{e.mean:.4f} with {LOSSES[loss].name}" for loss, each in last.items() for e in each)
    parameters = f"Root mean square error of the parameters at {max(found.alignments):g} %, SGD: {errors}."
    return f"""Mean error relative to the limit, for alignments of 20 % and more: {"; ".join(ranges)}.
        {parameters if errors else ""}"""


def _table(found: Density) -> Table:
    exact = [found.exact(value) for value in ("kl", "uniform")]
    rows = []
    for alignment in found.alignments:
        cells = [f"{alignment:g} %"]
        for optimiser in PROTOCOLS:
            cells += [milli(found.at(alignment, loss, optimiser)) for loss in PAIR]
            cells.append(interval(found.gap(alignment, optimiser)))
        cells += [f"{1e3 * e[alignment].mean:.2f}" if alignment in e else "–" for e in exact]
        rows.append(cells)
    parts = [f"{name}: {part}" for name in ("Adam", "SGD") for part in ("NLL", "InfoNCE", "difference, 95 %")]
    caption = """KL in thousandths of a nat, means over seeds. Differences (NLL − InfoNCE) are paired: the same data,
        the same batches."""
    return Table(["alignment", *parts, "maximum likelihood", "predicting 1/K"], rows, caption)


def _expected_table(found: Density) -> Table | None:
    """Expected InfoNCE with m = K on labels: errors with noisy steps, and gradient noise, beside NLL and InfoNCE."""
    size = found.config["batch_size"]
    losses = ("nll", "info-nce", EXPECTED)
    body = []
    for alignment in found.kl(EXPECTED, "sgd"):
        errors = [milli(found.at(alignment, loss, "sgd")) for loss in losses]
        cells = [f"{alignment:g} %, SGD, batch {size}", *errors, interval(found.gap(alignment, "sgd", EXPECTED))]
        noise = found.relative_noise(alignment, size)
        body.append([*cells, *(f"{noise[loss]:.2f}" if loss in noise else "–" for loss in losses[1:])])
    for alignment, batch_size in found.noise_places():
        if batch_size != size:
            noise = found.relative_noise(alignment, batch_size)
            cells = [f"{noise[loss]:.2f}" for loss in losses[1:]]
            body.append([f"{alignment:g} %, batch {batch_size}", "–", "–", "–", "–", *cells])
    header = ["alignment", *(f"KL, {LOSSES[loss].name}" for loss in losses), "NLL − expected, 95 %"]
    header += [f"noise, {LOSSES[loss].name}" for loss in losses[1:]]
    caption = """Expected InfoNCE of labels, m = K further candidates from η (with m = 0 it is InfoNCE). KL in
        thousandths of a nat, means over seeds; noise: variance of the batch gradient at the optimum, over that of
        NLL."""
    return Table(header, body, caption) if body else None


def _noise_figure(found: Density) -> Figure:
    across = found.noise_over(lambda r: r["nll"]["total"] - r["nll"]["along_mean"])
    variance = Panel(
        "(a) gradient noise at the optimum",
        ALIGNMENT,
        "variance of the batch gradient",
        [
            Line.of_loss("nll", *curve(found.noise_over(lambda r: r["nll"]["total"]))),
            Line.of_loss("info-nce", *curve(found.noise_over(lambda r: r["info-nce"]["total"]))),
            Line("NLL, without its part along the mean of x", *curve(across), colour=LOSSES["nll"].colour, dash="dot"),
        ],
    )
    drawn = [point for point in found.predictions() if point.measured > 0]
    ends = [value for point in drawn for value in (point.predicted, point.measured)] or [1e-5, 1e-2]
    limits = 0.5 * min(ends), 2 * max(ends)
    marks: list[Mark] = [Diagonal("predicted = measured", *limits)]
    for loss, large in product(PAIR, (True, False)):
        chosen = [p for p in drawn if p.loss == loss and (p.predicted >= found.limit / 10) == large]
        if chosen:
            x, y = [p.predicted for p in chosen], [p.measured for p in chosen]
            opacity = 1.0 if large else 0.35
            marks.append(Points.of_loss(loss, x, y, hover=[p.where for p in chosen], opacity=opacity))
    axes = "predicted from the noise (nats)", "measured (nats)"
    excess = Panel("(b) excess error of SGD", *axes, marks, log_x=True, log_y=True, x_range=limits, y_range=limits)
    controls: list[Mark] = [
        Line.of_loss("info-nce", *curve(found.kl("info-nce"))),
        Line("InfoNCE without −log η", *curve(found.kl("info-nce-without-noise")), dash="dash"),
        Level(LIMIT, found.limit),
    ]
    control = Panel("(c) control: InfoNCE without −log η", ALIGNMENT, KL, controls, log_y=True)
    caption = """(a) NLL's gradient noise lies along the mean of x. It comes from the fluctuation of the batch's label
        counts, which does not affect InfoNCE. (b) The KL that SGD adds to the optimum's KL, predicted without free
        parameters, for every grid setting whose training loss has stopped falling. Pale points: predicted below a tenth
        of the limit. Negative measured values are not drawn. (c) Without −log η InfoNCE fits p/η instead of p."""
    return Figure("noise", caption, [variance, excess, control])


def _noise_text(found: Density) -> str:
    ratio = found.noise_over(lambda r: r["nll"]["total"] / r["info-nce"]["total"])
    share = found.noise_over(lambda r: r["nll"]["along_mean"] / r["nll"]["total"])
    highest = max(ratio)
    text = f"""At {highest:g} % alignment NLL's gradient has {ratio[highest].mean:.1f} times the variance of
        InfoNCE's, and {100 * share[highest].mean:.0f} % of NLL's lies along the mean of x."""
    points = found.predictions()
    large = sorted(p.measured / p.predicted for p in points if p.predicted >= found.limit / 10)
    below = sum(p.measured <= 0 for p in points)
    if large:
        text += f""" The training loss has stopped falling for {len(points)} SGD settings. In {len(large)} of them the
            predicted excess is at least a tenth of the limit; there, measured over predicted has median
            {statistics.median(large):.2f} (range {large[0]:.2f} to {large[-1]:.2f}). {below} of the others measure
            below the optimum's KL: they have not converged in their slow directions."""
    return text


def _grid_figure(found: Density) -> Figure:
    grid, epochs = found.cells(), found.grid[0].config["epochs"]
    alignments, _, _, lrs, sizes = (sorted(set(values)) for values in zip(*grid, strict=True))
    panels = []
    for alignment, (optimiser, name), loss in product(alignments, (("adam", "Adam"), ("sgd", "SGD")), PAIR):
        cells = [[grid.get((alignment, optimiser, loss, lr, size)) for lr in lrs] for size in sizes]
        heat = Heat(
            [f"{lr:g}" for lr in lrs],
            [str(size) for size in sizes],
            [[math.log10(cell.ratio) if cell and cell.ratio is not None else None for cell in row] for row in cells],
            [[_words(cell) for cell in row] for row in cells],
            low=0,
            high=1,
        )
        panels.append(Panel(f"{LOSSES[loss].name}, {name}, {alignment:g} %", "learning rate", "batch size", [heat]))
    caption = f"""KL divided by the statistical limit after {epochs} epochs, mean over seeds and the last tenth of the
        epochs. ↓: the training loss is still falling; values well below 1 have not yet fitted the noise in the
        labels."""
    return Figure("grid", caption, panels, columns=4, panel_size=(3.0, 2.6))


def _words(cell: Cell | None) -> str:
    if cell is None or cell.ratio is None:
        return "diverged" if cell else ""
    return f"{cell.ratio:.{2 if cell.ratio < 10 else 0}f}" + (" ↓" if cell.falling else "")


def _soft_figure(found: Density) -> Figure | None:
    exact, drawn = found.kl("soft-ce"), found.kl("soft-dist-info-nce", value="kl_smoothed")
    if not exact or not drawn:
        return None
    look = LOSSES["soft-target-info-nce"]
    tempered = curve(by_alignment(found.contrast, "kl_at_best_temperature"))[:2]
    left: list[Mark] = [
        Line.of_loss("soft-ce", *curve(exact)[:2]),
        Line.of_loss("soft-target-info-nce", *curve(by_alignment(found.contrast, "kl"))[:2]),
        Line(f"{look.name}, best temperature", *tempered, colour=look.colour, dash="dot"),
        Line("always predicting 1/K", *curve(found.exact("uniform"))[:2], dash="dash"),
        Level(LIMIT, found.limit),
    ]
    right: list[Mark] = [
        Line.of_loss("soft-dist-info-nce", *curve(drawn)),
        Line("best linear model of p^ε", *curve(found.exact("smoothed_floor"))[:2], dash="dot"),
        Level(LIMIT, found.limit),
    ]
    caption = """(a) With the true conditional as target, soft target cross-entropy finds the truth (below 1e-7 where
        its line leaves the plot). Soft target InfoNCE, with scores normalised by a softmax, does not. (b) Soft
        distribution InfoNCE and the smoothed conditional p^ε: it is as close as a linear model can be."""
    panels = [
        Panel("(a) true conditional as soft target", ALIGNMENT, KL, left, log_y=True, y_range=(1e-7, 200)),
        Panel("(b) labels redrawn with smoothing", ALIGNMENT, "KL(p^ε‖q) (nats)", right, log_y=True),
    ]
    return Figure("soft", caption, panels, panel_size=(4.6, 3.4))


def _soft_text(found: Density) -> str:
    values = ("kl", "best_temperature", "kl_at_best_temperature", "agreement")
    highest = max(by_alignment(found.contrast, "kl"))
    kl, temperature, best, right = (by_alignment(found.contrast, value)[highest].mean for value in values)
    return f"""Soft target InfoNCE at {highest:g} % alignment: KL {kl:.2g}; {best:.2g} after dividing the scores by
        their best temperature, {temperature:.2g}. The most probable class is correct for {100 * right:.0f} % of the
        samples."""


def _maps_figure(found: Density) -> Figure:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    modes = found.config["data"]["num_modes"]
    colours = [str(to_hex(colormaps["viridis"](k / (modes - 1)))) for k in range(modes)]
    panels = []
    for row in found.maps:
        labels = row.result["labels"]
        hover = [f"class {label + 1}" for label in labels]
        colour = [colours[label] for label in labels]
        points = Points("", row.result["x"], row.result["y"], colour=colour, size=2.6, opacity=0.85, hover=hover)
        panels.append(Panel(f"{row.config['data']['alignment']:g} %", "", "", [points], bare=True))
    caption = f"""t-SNE maps at several alignments, each point coloured by a class drawn for it (1 dark to {modes}
        light). The more the modes align, the less a point tells about its label."""
    return Figure("maps", caption, panels, panel_size=(2.6, 2.5))


def _speed_text(found: Density) -> str:
    s = found.speed
    return f"""All fits run as one tensor program: {1e3 * s["batched"]:.1f} ms per fit and epoch on {s["cores"]} cores.
        One fit at a time with autograd and torch.optim takes {1e3 * s["plain"]:.1f} ms, {s["ratio"]:.1f} times as long
        ({s["ratio_on_one_core"]:.1f} times on one core)."""
