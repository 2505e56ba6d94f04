"""Small batches: accuracy and gap over batch sizes, the tests at one of them, and how many candidates are enough."""

from collections.abc import Sequence
from typing import Any

from softnce.lab.experiment.claims import MARGIN
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.report.charts import Figure, Level, Line, Panel, band
from softnce.lab.report.page import Section, Table
from softnce.lab.report.style import LOSSES, SHADES
from softnce.lab.studies.noise_samples.findings import COUNTED, SHARPER, Found, equivalence, expected_gaps, find
from softnce.lab.studies.noise_samples.run import METHODS, SEARCHED

ORDER = 50
LOOKS: dict[str, dict[str, Any]] = {
    "soft-ce": {"colour": LOSSES["soft-ce"].colour, "marker": "s"},
    "batch": {"colour": SHADES[0], "marker": "^"},
    "sampled": {"colour": SHADES[2], "marker": "D", "dash": "dash"},
    "queue": {"colour": SHADES[1], "marker": "o", "dash": "dot"},
    "batch+classes": {"colour": SHADES[3], "marker": "v"},
    "expected": {"colour": LOSSES["expected-info-nce"].colour, "marker": LOSSES["expected-info-nce"].marker},
    "expected-0": {"colour": LOSSES["expected-info-nce"].colour, "marker": "x", "dash": "dash"},
}


def section(rows: Sequence[Row]) -> Section:
    found = find(rows)
    return Section(
        "Small batches",
        _summary(found),
        [_over_batches(found), _tests(found), _over_numbers(found), _expected(rows)],
        [
            f"""Targets are smoothed (0.1) and mixed (MixUp 0.8, one share per batch). Sampled candidates are drawn
            afresh in every batch: two labels from the training frequencies, mixed by the same Beta distribution, each
            with its own share, and smoothed alike; those nearer to the classes are mixed by Beta(a, a) with a smaller
            a. Remembered ones are the soft targets of earlier batches. AdamW, weight decay 0.05, cosine; the learning
            rate is chosen on a tenth of the training set, for seed 0; of expected InfoNCE and soft target
            cross-entropy at batch size {found.tested_batch} by the mean of seeds 0 to {SEARCHED - 1}."""
        ],
    )


def _summary(found: Found) -> str:
    batch = found.tested_batch
    own, sampled = found.gap("batch", batch), found.gap("sampled", batch)
    if own is None or sampled is None:
        return "The runs are not complete."
    return f"""At batch size {batch}, soft target InfoNCE with candidates from the batch is {signed(own)} points from
        soft target cross-entropy; with {found.num_candidates} sampled candidates it is {signed(sampled)}."""


def _over_batches(found: Found) -> Figure:
    accuracy, gaps = [], []
    for method, label in METHODS.items():
        means = {batch: of.mean(TOP1) for batch in found.batches if (of := found.of(method, batch))}
        accuracy.append(Line(label, list(means), *band(means.values()), **LOOKS[method]))
        if method != "soft-ce":
            of_method = {batch: gap for batch in found.batches if (gap := found.gap(method, batch))}
            gaps.append(Line(label, list(of_method), *band(of_method.values()), **LOOKS[method]))
    return Figure(
        "batches",
        f"""A head on {found.name} features, {found.num_candidates} sampled or remembered candidates. Left: test
        accuracy, mean and 95 % interval over seeds. Right: the gap to soft target cross-entropy, paired by seed.""",
        [
            Panel("accuracy", "batch size", "top-1 (%)", accuracy, log_x=True),
            Panel("gap", "batch size", "points of top-1", [*gaps, Level("no gap", 0.0)], log_x=True),
        ],
        panel_size=(4.6, 3.4),
    )


def _tests(found: Found) -> Table:
    batch = found.tested_batch
    rows = []
    for method, name in (*METHODS.items(), (SHARPER, "sampled, nearer to the classes")):
        numbers = found.numbers if method == "sampled" else [found.num_candidates if method in COUNTED else 0]
        for number in numbers:
            if of := found.of(method, batch, number):
                gap, again = found.gap(method, batch, number), found.gap(method, batch, number, further=True)
                more = found.of(method, batch, number, further=True)
                rows.append([
                    f"{name}, M = {number}" if number else name,
                    of.mean(TOP1).spread(2),
                    signed(gap) if gap else "–",
                    f"{equivalence(gap):.2g}" if gap and gap.count > 1 else "–",
                    f"{signed(again)}, p {equivalence(again):.2g}" if again else "–",
                    f"{of.lr:g}",
                    f"{len(of)} + {len(more)}" if more else str(len(of)),
                ])  # fmt: skip
    return Table(
        ["candidates", "top-1 (%)", "gap to cross-entropy (points)", f"p, gap ≥ {MARGIN:g}", "on further seeds",
         "learning rate", "seeds"],
        rows,
        f"""Batch size {batch}. Gap: mean and 95 % interval, paired by seed. p: two one-sided tests; below 0.05 the loss
        is equivalent to soft target cross-entropy within {MARGIN:g} points. Further seeds had no part in deciding what
        to train.""",
    )  # fmt: skip


def _expected(rows: Sequence[Row]) -> str:
    said = expected_gaps(rows)
    return f"Expected InfoNCE minus soft target cross-entropy, on further seeds: {said}." if said else ""


def _over_numbers(found: Found) -> Figure | None:
    batch = found.tested_batch
    gaps: dict[float, Estimate] = {n: gap for n in found.numbers if (gap := found.gap("sampled", batch, n))}
    from_batch = found.gap("batch", batch)
    if len(gaps) < 2:
        return None
    line = Line("sampled", list(gaps), *band(gaps.values()), **LOOKS["sampled"])
    level = [Level("candidates from the batch", from_batch.mean)] if from_batch else []
    return Figure(
        "numbers",
        f"""Batch size {batch}: the gap to soft target cross-entropy against the number of sampled candidates, mean and
        95 % interval. The dashed line is where the batch's own targets are the candidates.""",
        [Panel("", "sampled candidates M", "points of top-1", [line, *level], log_x=True)],
        panel_size=(5.2, 3.2),
    )
