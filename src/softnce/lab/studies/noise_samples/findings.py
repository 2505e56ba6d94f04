"""Gaps to soft target cross-entropy, by where candidates come from, how many there are, and batch size."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import MARGIN, Finding, ahead, on_par, on_par_would_take
from softnce.lab.experiment.comparison import alike, largest
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, Setting, chosen
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.studies.noise_samples.run import FURTHER, SEARCHED

SHARPER = "sharper"
COUNTED = ("sampled", "queue", SHARPER)
"""What has a number M of candidates; the others have as many as there are."""

Key = tuple[str, int, int]
"""Method, batch size, number of candidates."""


@dataclass(frozen=True)
class Found:
    """Trainings of the data set and head with the most of them."""

    data: str
    settings: dict[Key, Setting]

    @property
    def name(self) -> str:
        return NAMES[self.data]

    def of(self, method: str, batch: int, number: int | None = None, further: bool = False) -> Setting | None:
        """Trainings on the first seeds, or on further ones, which had no part in deciding what to train."""
        number = self.num_candidates if number is None else number
        setting = self.settings.get((method, batch, number if method in COUNTED else 0))
        return setting and setting.of_seeds(lambda seed: (seed >= FURTHER) == further)

    def gap(self, method: str, batch: int, number: int | None = None, further: bool = False) -> Estimate | None:
        """Points of top-1 over soft target cross-entropy, paired by seed; None where one of them is missing."""
        ours, theirs = self.of(method, batch, number, further), self.of("soft-ce", batch, further=further)
        return ours.minus(theirs, TOP1) if ours and theirs and method != "soft-ce" else None

    @property
    def epochs(self) -> int:
        return int(next(iter(self.settings.values())).config["epochs"])

    @property
    def num_candidates(self) -> int:
        """M of the comparison over batch sizes."""
        queued = [number for (method, _, number), of in self.settings.items() if method == "queue" for _ in of.rows]
        return statistics.mode(queued) if queued else 0

    @property
    def tested_batch(self) -> int:
        """The batch size with the most seeds."""
        return max(self.settings, key=lambda key: (len(self.settings[key]), -key[1]), default=("", 0, 0))[1]

    @property
    def batches(self) -> list[int]:
        return sorted({batch for _, batch, _ in self.settings})

    @property
    def numbers(self) -> list[int]:
        """M of sampled candidates at the tested batch size."""
        return sorted(n for method, batch, n in self.settings if method == "sampled" and batch == self.tested_batch)


def find(rows: Sequence[Row], searched: int = SEARCHED) -> Found:
    """Trainings at the learning rates that the first ``searched`` seeds decide, as far as they tried all of them."""
    return _found(largest(rows, "data", "head", "epochs", "targets"), searched)


def longer(rows: Sequence[Row]) -> Found | None:
    """The trainings of the same head for more epochs, at the largest batch size; None where there are none."""
    config = largest(rows, "data", "head", "epochs", "targets")[0].config
    more = [
        row
        for row in rows
        if row.config["epochs"] > config["epochs"]
        and all(row.config[name] == config[name] for name in ("data", "head", "targets"))
    ]
    return _found(more, searched=1) if more else None


def _found(group: Sequence[Row], searched: int) -> Found:
    found: dict[Key, Setting] = {}
    for of_batch in alike(group, "batch"):  # other rates are tried at large batches
        for setting in chosen(of_batch, searched):
            key = _key(setting)
            if key not in found or len(setting) > len(found[key]):  # of several mixings the one most often trained
                found[key] = setting
    return Found(group[0].config["data"], found)


def _key(setting: Setting) -> Key:
    loss = setting.config["loss"]
    method = SHARPER if "candidate_mixup" in setting.config else loss["candidates"]
    if loss["name"] == "soft-ce":
        method = "soft-ce"
    elif loss["name"] == "expected-info-nce":
        method = "expected-0" if loss.get("noise_count") == 0 else "expected"
    return method, setting.config["batch"], loss["num_candidates"] if method in COUNTED else 0


def equivalence(gap: Estimate, margin: float = MARGIN) -> float:
    """p of two one-sided tests: how surprising the gap would be if it were ±margin or more."""
    from scipy.stats import t

    if gap.count < 2:
        return 1.0
    error = (gap.high - gap.mean) / float(t.ppf(0.975, gap.count - 1))
    if error == 0:
        return float(abs(gap.mean) >= margin)
    return float(t.sf((margin - abs(gap.mean)) / error, gap.count - 1))


@dataclass(frozen=True)
class FurtherGap:
    """A gap of expected InfoNCE to soft target cross-entropy on further seeds.

    Where seed 0 alone chose another learning rate, ``first`` is the gap at that one, which was tested first.
    """

    where: str
    now: Estimate
    first: Estimate | None


def further_gaps(rows: Sequence[Row]) -> list[FurtherGap]:
    found, alone, gaps = find(rows), find(rows, 1), []
    for batch in found.batches:
        for method, name in (("expected", ""), ("expected-0", ", m = 0")):
            ours, gap = found.of(method, batch, further=True), found.gap(method, batch, further=True)
            if ours is None or gap is None or gap.count < 2:
                continue
            other, first = alone.of(method, batch, further=True), alone.gap(method, batch, further=True)
            gaps.append(FurtherGap(f"batch {batch}{name}", gap, first if other and other.lr != ours.lr else None))
    return gaps


def expected_gaps(rows: Sequence[Row]) -> str:
    """The gaps on further seeds with their tests of equivalence."""
    return _listed(further_gaps(rows), lambda gap: f" ({counted(gap.count, 'seed')}, p = {equivalence(gap):.2g})")


def _listed(gaps: Sequence[FurtherGap], more: Callable[[Estimate], str] = lambda gap: "") -> str:
    return "; ".join(
        f"{gap.where}: {signed(gap.now)} points{more(gap.now)}"
        + (f", in a first test at the learning rate that one seed chose {signed(gap.first)}" if gap.first else "")
        for gap in gaps
    )


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    if len(found.batches) < 2 or found.data == "digits":
        return {}
    batch, largest_batch = found.tested_batch, max(found.batches)

    def on(size: int) -> str:
        seeds = len(setting) if (setting := found.of("batch", size)) else 0
        return f"{found.name} features, batch {size}, {counted(seeds, 'seed')}"

    answers = {}
    if drop := found.gap("batch", batch):
        answers["small-batch-drop"] = Finding(f"{signed(drop)} points", on(batch), ahead(-drop))
    if par := found.gap("batch", largest_batch):
        text, where = f"{signed(par)} points", on(largest_batch)
        more = longer(rows)
        if more and (later := more.gap("batch", largest_batch)):
            text = f"{signed(later)} points; after one epoch {text}"
            where = (
                f"{found.name} features, batch {largest_batch}, {more.epochs} epochs, {counted(later.count, 'seed')}"
            )
            par = later
        answers["large-batch-par"] = Finding(f"{text}{on_par_would_take(par)}", where, on_par(par))
    if (mended := found.gap("sampled", batch)) and mended.count > 1:
        said = [
            f"{signed(gap)} points with {found.num_candidates} sampled {way} (p = {equivalence(gap):.2g})"
            for way, method in (("as targets are made", "sampled"), ("nearer to the classes", SHARPER))
            for gap in [found.gap(method, batch, further=True) or found.gap(method, batch)]
            if gap
        ]
        again = found.gap("sampled", batch, further=True)
        seeds = f"on {counted(again.count, 'further seed')} " if again else ""
        ours = f"{seeds}{'; '.join(said)}; p of a gap of {MARGIN:g} or more"
        answers["small-batch-mended"] = Finding(ours, on(batch), "beyond")
    if gaps := further_gaps(rows):
        ours = f"{_listed(gaps)}; p of a gap of {MARGIN:g} or more at most {max(equivalence(g.now) for g in gaps):.2g}"
        on_further = f"{found.name} features, {counted(min(g.now.count for g in gaps), 'further seed')}"
        answers["small-batch-expected"] = Finding(ours, on_further, "beyond")
    return answers


def choices(rows: Sequence[Row]) -> list[Choice]:
    found, advice = find(rows), []
    if found.data == "digits":
        return []
    for batch in found.batches:
        gap = found.gap("expected", batch, further=True)
        if gap is None or gap.count < 2:
            continue
        level = equivalence(gap) < 0.05
        own = found.gap("batch", batch)
        text = f"""{found.name} features, batch {batch}: `ExpectedInfoNCE` minus `SoftTargetCrossEntropy`
            {signed(gap)} points""" + (f", `SoftTargetInfoNCE` {signed(own)}" if own else "")
        use = "`SoftTargetCrossEntropy`" + (" or `ExpectedInfoNCE`" if level else "")
        advice.append(Choice("smoothed labels, MixUp, CutMix", f"all logits fit, batch {batch}", use, text))
    return advice
