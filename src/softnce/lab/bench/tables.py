"""The result as text: tables that are printed, and pasted into the README as they are."""

from collections.abc import Mapping, Sequence

from softnce.lab.bench.cases import REFERENCE, Family, Size
from softnce.lab.bench.limits import Limit
from softnce.lab.bench.measurement import Measurement
from softnce.lab.bench.scaling import Axis, Exponent
from softnce.lab.experiment.table import Table

TITLES: dict[Family, str] = {
    "soft": f"Soft targets (MixUp, smoothed). × is against {REFERENCE['soft']}",
    "labels": f"Labels. × is against {REFERENCE['labels']}",
    "table": f"From features and a table of label embeddings, without logits. × is against {REFERENCE['table']}",
}


def comparison(family: Family, measurements: Sequence[Measurement]) -> Table:
    """Losses down, sizes across; a cell is ratio, time with half its interquartile range, and peak memory."""
    mine = [m for m in measurements if m.case.family == family]
    sizes = list(dict.fromkeys(m.size for m in mine))
    cells = {(m.case.name, m.size): _cell(m) for m in mine}
    names = list(dict.fromkeys(m.case.name for m in mine))
    rows = [[name, *(cells.get((name, size), "–") for size in sizes)] for name in names]
    return Table(TITLES[family], ["forward + backward", *map(_size, sizes)], rows)


def summary(measurements: Sequence[Measurement]) -> str | None:
    """What the largest size says of targets as people have them, in one sentence."""
    found = {(m.case.name, m.size): m for m in measurements if m.ratio is not None and m.case.family != "table"}
    if not found:
        return None
    size = max((size for _, size in found), key=lambda size: size.rows * size.classes)
    named = {
        "labels": "softnce, labels",
        "MixUp as pairs": "softnce, MixUp pairs",
        "MixUp as probabilities": "softnce, probabilities",
        "expected InfoNCE of probabilities": "softnce expected, probabilities",
    }
    costs = [
        f"{what} {_three(m.ratio.median)}×"
        for what, name in named.items()
        if (m := found.get((name, size))) is not None and m.ratio is not None
    ]
    return f"At {_size(size)} a step costs, against F.cross_entropy with the same targets: {', '.join(costs)}."


def growth(exponents: Mapping[Axis, Mapping[str, Mapping[str, Exponent]]]) -> Table:
    """Exponents of time and memory in N, M and K."""
    names = list(dict.fromkeys(name for by_case in exponents.values() for name in by_case))
    rows = []
    for name in names:
        cells = []
        for what in ("time", "memory"):
            for axis in exponents:
                fitted = exponents[axis].get(name)
                cells.append("–" if fitted is None else str(fitted[what]))
        rows.append([name, *cells])
    header = ["cost ∝ size^exponent", *(f"{what} in {axis}" for what in ("time", "memory") for axis in exponents)]
    return Table("Exponents, fitted over the sizes in the figure, with the standard error of the fit", header, rows)


def exchange(sent: Mapping[str, int], rows: int, classes: int) -> Table:
    body = [[kind, f"{count:,}", f"1/{sent['dense'] / count:.0f}"] for kind, count in sent.items()]
    title = f"Bytes that each rank sends per step, {rows} rows per rank, {classes} classes"
    return Table(title, ["targets", "bytes", "share of dense"], body)


def kept(limits: Sequence[Limit]) -> Table:
    rows = [
        [limit.what, f"{'≥' if limit.at_least else '≤'} {limit.bound:g}", _three(limit.measured), _verdict(limit)]
        for limit in limits
    ]
    return Table("Limits that the losses should keep", ["ratio", "limit", "measured", "kept"], rows)


def _verdict(limit: Limit) -> str:
    return "yes" if limit.is_kept else "no"


def _cell(m: Measurement) -> str:
    if m.needs is not None:
        return f"needs {memory(m.needs)}"
    ratio = "" if m.ratio is None else f"{_three(m.ratio.median)}× · "
    return f"{ratio}{_seconds(m.seconds.median)} ± {100 * m.seconds.relative:.0f} % · {memory(m.bytes)}"


def _size(size: Size) -> str:
    return f"N={size.rows:,}, K={size.classes:,}"


def _seconds(value: float) -> str:
    return f"{_three(value)} s" if value >= 1 else f"{_three(1e3 * value)} ms"


def memory(value: float) -> str:
    """Bytes as GB, MB or kB, to three digits."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{_three(value / unit)} {name}"
    return f"{value:.0f} B"


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
