"""How the losses compare on each data set, beside the paper's table and what was published for the data."""

from collections.abc import Sequence
from dataclasses import dataclass

from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import (
    Finding,
    ahead,
    ahead_would_take,
    on_par,
    on_par_would_take,
    together,
)
from softnce.lab.experiment.comparison import Value, alike, difference_of_differences, for_other_samples, largest
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, TOP1, Setting, chosen, tried
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.losses import LOSSES
from softnce.lab.studies.fine_tuning.run import held_out

OURS, CE, DRAWN, EXPECTED = "soft-target-info-nce", "soft-ce", "soft-dist-info-nce", "expected-info-nce"
DATA = {
    "banking77": "Banking77",
    "clinc150": "CLINC150",
    "cifar100-fine-tuned": "CIFAR-100",
    "requests": "generated requests",
}
"""Names of the data sets, in the order of the page."""
CALLED = {loss: f"`{kind.name}`" for loss, kind in LOSSES.items()}
"""How each loss is written in code."""
HEADS = {"linear": "linear head", "mlp": "three layers"}
PUBLISHED = {"banking77": 93.66, "clinc150": 96.93}
"""Top-1 of fine-tuned BERT (Casanueva et al., 2020, Efficient Intent Detection with Dual Sentence Encoders)."""


@dataclass(frozen=True)
class Part:
    """The fine-tunings on one data set with one head.

    Attributes:
        recipe: of the folder laptop.
        head: linear or mlp.
        losses: by name, at their chosen rates.
        tried: held-out top-1 in per cent, by loss and learning rate.
        frozen: the head alone trained on features of the same images, by NLL; None where it was not.
        epochs: passes over the training set.
    """

    recipe: str
    head: str
    losses: dict[str, Setting]
    tried: dict[str, dict[float, float]]
    frozen: Setting | None
    epochs: int

    @property
    def data(self) -> str:
        return DATA[self.recipe]

    @property
    def title(self) -> str:
        return f"{self.data}, {HEADS[self.head]}"

    @property
    def on(self) -> str:
        seeds = max(map(len, self.losses.values()), default=0)
        return f"{self.title}, {counted(self.epochs, 'epoch')}, {counted(seeds, 'seed')}"

    @property
    def published(self) -> float | None:
        return PUBLISHED.get(self.recipe)

    @property
    def decides(self) -> bool:
        """Whether the paper's claims can be judged on these data."""
        return self.recipe != "requests"

    @property
    def best(self) -> tuple[list[str], float]:
        """The losses of the highest mean top-1 on the test split, and that mean; one loss if there is no tie."""
        means = {name: setting.mean(TOP1).mean for name, setting in self.losses.items()}
        highest = max(means.values())
        return [name for name, mean in means.items() if mean == highest], highest

    def seeds(self, loss: str) -> int:
        return len(self.losses[loss]) if loss in self.losses else 0

    def minus(self, loss: str, other: str, value: Value = TOP1) -> Estimate | None:
        """A loss minus another, paired by seed; None where one of them was not trained."""
        if loss not in self.losses or other not in self.losses:
            return None
        return self.losses[loss].minus(self.losses[other], value)

    def from_cross_entropy(self, value: Value = TOP1) -> dict[str, Estimate]:
        """Every loss minus soft target cross-entropy, paired by seed."""
        gaps = {loss: self.minus(loss, CE, value) for loss in self.losses if loss != CE}
        return {loss: gap for loss, gap in gaps.items() if gap is not None}

    def for_other_samples(self) -> dict[str, Estimate]:
        """Every loss minus soft target cross-entropy in points of top-1, for other test samples too."""
        if CE not in self.losses:
            return {}
        theirs = self.losses[CE].rows
        gaps = {loss: for_other_samples(of.rows, theirs) for loss, of in self.losses.items() if loss != CE}
        return {loss: gap for loss, gap in gaps.items() if gap is not None}


def parts(rows: Sequence[Row]) -> list[Part]:
    """Of each data set and head the trainings of the most common sizes, in the order of the page."""
    found = []
    for group in alike(rows, "recipe", "head.kind"):
        tuned = largest([row for row in group if not row.config["frozen"]], "batch", "epochs")
        if not tuned:
            continue
        config = tuned[0].config
        frozen = chosen([row for row in group if row.config["frozen"]], score=held_out)
        losses = {setting.loss: setting for setting in chosen(tuned, score=held_out)}
        still = frozen[0] if frozen else None
        found.append(Part(config["recipe"], config["head"]["kind"], losses, tried(tuned), still, config["epochs"]))
    order = list(DATA)
    return sorted(found, key=lambda part: order.index(part.recipe))


@dataclass(frozen=True)
class Layers:
    """One data set with a linear head and with three layers, trained alike."""

    linear: Part
    deep: Part

    @property
    def data(self) -> str:
        return self.deep.data

    def gains(self, value: Value = TOP1) -> dict[str, Estimate]:
        """What three layers add to a linear head, by loss, paired by seed."""
        return {
            loss: setting.minus(self.linear.losses[loss], value)
            for loss, setting in self.deep.losses.items()
            if loss in self.linear.losses
        }

    @property
    def extra(self) -> Estimate | None:
        """What they add to soft target InfoNCE's top-1 minus what they add to soft target cross-entropy's."""
        if not all(part.seeds(loss) for part in (self.deep, self.linear) for loss in (OURS, CE)):
            return None
        a, b, c, d = (part.losses[loss].rows for loss in (OURS, CE) for part in (self.deep, self.linear))
        return difference_of_differences(a, b, c, d, TOP1)


def layers(found: Sequence[Part]) -> list[Layers]:
    """The data sets that were trained with both heads for equally many epochs."""
    return [
        Layers(linear, deep)
        for linear in found
        for deep in found
        if (linear.head, deep.head) == ("linear", "mlp")
        and (linear.recipe, linear.epochs) == (deep.recipe, deep.epochs)
    ]


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    """What all data sets say."""
    found = [part for part in parts(rows) if part.decides]
    answers: dict[str, list[Finding]] = {}
    for part in found:
        for key, finding in _claims(part).items():
            answers.setdefault(key, []).append(finding)
    answers["fine-tuning-head"] = [_head(of, extra) for of in layers(found) if (extra := of.extra)]
    answers["fine-tuning-expected"] = _expected(found)
    return {key: together(of) for key, of in answers.items() if of}


def _claims(part: Part) -> dict[str, Finding]:
    found = {}
    if gap := part.minus(OURS, CE):
        found["fine-tuning-soft-ce"] = Finding(f"{signed(gap)} points{on_par_would_take(gap)}", part.on, on_par(gap))
    for key, other in (("fine-tuning-nll", "nll"), ("fine-tuning-soft-distribution", DRAWN)):
        if gap := part.minus(OURS, other):
            found[key] = Finding(f"{signed(gap)} points{ahead_would_take(gap)}", part.on, ahead(gap))
    if gap := part.minus(OURS, CE, ECE):
        text = f"ECE {signed(gap)} points{ahead_would_take(-gap)}"
        found["fine-tuning-calibration"] = Finding(text, part.on, ahead(-gap))
    return found


def _head(of: Layers, extra: Estimate) -> Finding:
    gains = of.gains()
    text = f"""{gains[OURS].mean:+.2f} against {gains[CE].mean:+.2f} points, difference
        {signed(extra)}{ahead_would_take(extra)}"""
    return Finding(text, of.deep.on.replace(HEADS["mlp"], "both heads"), ahead(extra))


def _expected(found: Sequence[Part]) -> list[Finding]:
    """Expected InfoNCE beside the other soft losses, where all have several seeds: none or one finding."""
    trained = [part for part in found if all(part.seeds(loss) > 1 for loss in (EXPECTED, CE, DRAWN, OURS))]
    if not trained:
        return []
    leads = {other: [gap for part in trained if (gap := part.minus(EXPECTED, other))] for other in (CE, DRAWN, OURS)}
    ce, drawn, ours = (_range([gap.mean for gap in gaps]) for gaps in leads.values())
    low, high = min(gap.low for gap in leads[CE]), max(gap.high for gap in leads[CE])
    text = f"""means {ce} points against soft target cross-entropy, their intervals within [{low:+.2f}, {high:+.2f}];
        {drawn} against labels drawn from soft targets, {ours} against soft target InfoNCE"""
    return [Finding(text, "; ".join(part.on for part in trained), "beyond")]


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:+.2f}" if low == high else f"from {low:+.2f} to {high:+.2f}"


def choices(rows: Sequence[Row]) -> list[Choice]:
    """Labels or soft targets, and which loss for soft targets: what is not behind on any data set."""
    soft = (CE, EXPECTED, OURS)
    found = [part for part in parts(rows) if part.decides and all(part.seeds(loss) > 1 for loss in ("nll", *soft))]
    if not found:
        return []
    setting = "a pre-trained network, fine-tuned for a few epochs"
    gaps = [part.from_cross_entropy() for part in found]
    hard = [
        f"{part.on}: {part.losses['nll'].mean(TOP1).spread(2)}, {signed(of['nll'])}"
        for part, of in zip(found, gaps, strict=True)
    ]
    mixed = [f"{part.on}: {signed(of[EXPECTED])}, {signed(of[OURS])}" for part, of in zip(found, gaps, strict=True)]
    labels = f"top-1 of `NLL`, and minus that of {CALLED[CE]} on smoothed and mixed labels, {'; '.join(hard)}"
    soft_targets = f"top-1 of {CALLED[EXPECTED]} and {CALLED[OURS]} minus that of {CALLED[CE]}, {'; '.join(mixed)}"
    return [
        Choice("labels", setting, _not_behind(found, ("nll", CE)), labels),
        Choice("smoothed labels, MixUp, CutMix", setting, _not_behind(found, soft), soft_targets),
    ]


def _not_behind(found: Sequence[Part], compared: Sequence[str]) -> str:
    """The losses that are not behind the best of those compared on any data set."""
    behind = set()
    for part in found:
        best = max(compared, key=lambda loss: part.losses[loss].mean(TOP1).mean)
        behind |= {loss for loss in compared if part.losses[loss].minus(part.losses[best], TOP1).high < 0}
    use = " or ".join(CALLED[loss] for loss in compared if loss not in behind)
    return use or "no loss is best on all data sets: compare them on yours"
