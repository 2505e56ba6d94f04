"""Ratios within one run that the losses should keep, and what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from softnce.lab.bench.cases import CHUNK, FLOAT, REFERENCE
from softnce.lab.bench.measurement import Measurement
from softnce.lab.bench.scaling import Axis, Exponent

PAIRS = "softnce, MixUp pairs"
PUBLISHED = "published N×M×K formulation"
TABLE = "softnce.linear, pairs"
FULL_SOFTMAX = (REFERENCE["table"], "F.linear_cross_entropy, labels", "F.linear_cross_entropy by 256 rows, labels")


@dataclass(frozen=True)
class Limit:
    """``measured`` should be at most ``bound``, or at least where ``at_least``."""

    what: str
    bound: float
    measured: float
    at_least: bool = False

    @property
    def is_kept(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def limits(
    measurements: Sequence[Measurement],
    exponents: Mapping[Axis, Mapping[str, Mapping[str, Exponent]]],
    sent: Mapping[str, int],
) -> list[Limit]:
    """The limits that the measured sizes can decide."""
    measured = {(m.case.name, m.size.rows, m.size.classes): m for m in measurements if m.times}
    return [
        *_published(measured),
        *_cross_entropy(measured),
        *_table(measured),
        *_chunk(measured),
        *_growth(exponents),
        *_exchange(sent),
    ]


Measured = Mapping[tuple[str, int, int], Measurement]


def _published(measured: Measured) -> list[Limit]:
    theirs, ours = (measured.get((name, 1024, 1000)) for name in (PUBLISHED, PAIRS))
    if theirs is None or ours is None:
        return []
    where = "N=M=1024, K=1000"
    return [
        Limit(f"time of the published formulation over pairs, {where}", 300, theirs.over(ours), True),
        Limit(f"peak of the published formulation over pairs, {where}", 200, theirs.bytes / ours.bytes, True),
    ]


BOUNDS: dict[str, dict[tuple[int, int], float]] = {
    PAIRS: {(1024, 1_000): 2.5, (1024, 10_000): 0.7, (1024, 100_000): 0.35},
    "softnce, probabilities": {(1024, 1_000): 3.5, (256, 1_000): 2.0},
    "softnce, probabilities of one λ": {(4096, 10): 4.0},
    "softnce, labels": {(128, 100): 2.5, (1024, 1_000): 1.5},
    "softnce, smoothed labels": {(128, 100): 2.5, (1024, 1_000): 1.5},
    "softnce expected, labels": {(1024, 1_000): 1.3},
    "softnce expected, MixUp pairs": {(1024, 1_000): 1.3, (1024, 10_000): 1.0, (1024, 100_000): 1.0},
    "softnce expected, probabilities": {(1024, 1_000): 1.6},
    "softnce expected, a teacher's rows": {(1024, 1_000): 1.6},
}
"""Times F.cross_entropy with the same targets, by N and K."""


def _cross_entropy(measured: Measured) -> list[Limit]:
    found = []
    for name, bounds in BOUNDS.items():
        for (n, k), bound in bounds.items():
            m = measured.get((name, n, k))
            if m is not None and m.ratio is not None:
                what = f"{name.removeprefix('softnce, ')} over {REFERENCE[m.case.family]}, N={n:,}, K={k:,}"
                found.append(Limit(what, bound, m.ratio.median))
    for (name, n, k), m in measured.items():
        eager = measured.get((name.removesuffix(", compiled"), n, k))
        if m.case.is_compiled and m.case.is_ours and eager is not None:
            found.append(Limit(f"{name} over eager, N={n:,}, K={k:,}", 1.0, m.over(eager)))
    return found


def _table(measured: Measured) -> list[Limit]:
    """The step from a label table, its sparse optimiser included; the others' steps are counted without one."""
    steps = {k: m for (case, _, k), m in measured.items() if case == f"{TABLE}, SparseAdam"}
    found = []
    if 10_000 in steps and 1_000_000 in steps:
        growth = steps[1_000_000].over(steps[10_000])
        found.append(Limit("step from a table with SparseAdam, K=1,000,000 over K=10,000", 1.3, growth))
    k = 100_000
    peers = [m for (case, _, classes), m in measured.items() if case in FULL_SOFTMAX and classes == k]
    if k in steps and peers:
        what = "fastest full softmax over the step from a table with SparseAdam, K=100,000"
        found.append(Limit(what, 50, min(peer.over(steps[k]) for peer in peers), True))
    return found


def _chunk(measured: Measured) -> list[Limit]:
    """For batches of many chunks, whose memory ``chunk_size`` should limit."""
    found = []
    for (case, n, k), m in measured.items():
        if case == f"{PAIRS}, chunk_size={CHUNK}" and n >= 8 * CHUNK:
            share = m.bytes / (FLOAT * (n * k + CHUNK * m.size.m))
            found.append(Limit(f"peak over logits and one chunk, chunk_size={CHUNK}, N={n:,}, K={k:,}", 1.5, share))
    return found


def _growth(exponents: Mapping[Axis, Mapping[str, Mapping[str, Exponent]]]) -> list[Limit]:
    in_k = exponents.get("K", {})
    found = []
    if PAIRS in in_k:
        found.append(Limit("exponent of time in K, pairs from logits", 1.1, in_k[PAIRS]["time"].value))
    if TABLE in in_k:
        off = abs(in_k[TABLE]["time"].value)
        found.append(Limit("exponent of time in K, pairs from a table, without its sign", 0.05, off))
    return found


def _exchange(sent: Mapping[str, int]) -> list[Limit]:
    if not sent:
        return []
    what = "bytes sent as dense rows over MixUp pairs, N=1024 per rank, K=1000"
    return [Limit(what, 200, sent["dense"] / sent["pairs"], True)]
