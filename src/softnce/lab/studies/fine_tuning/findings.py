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
from softnce.lab.experiment.comparison import Value, alike, for_other_samples, largest
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, TOP1, Setting, chosen, tried
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted, minus
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
HEADS = {"linear": "linear head", "mlp": "head of three layers"}
PUBLISHED = {"banking77": 93.66, "clinc150": 96.93}
"""Top-1 of fine-tuned BERT (Casanueva et al., 2020, Efficient Intent Detection with Dual Sentence Encoders)."""


@dataclass(frozen=True)
class Part:
    """The fine-tunings on one data set with one head.

    Attributes:
        recipe: of the folder laptop.
        title: data set and head.
        losses: by name, at their chosen rates.
        tried: held-out top-1 in per cent, by loss and learning rate.
        frozen: the head alone trained on features of the same images, by NLL; None where it was not.
        epochs: passes over the training set.
    """

    recipe: str
    title: str
    losses: dict[str, Setting]
    tried: dict[str, dict[float, float]]
    frozen: Setting | None
    epochs: int

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
    def best(self) -> tuple[str, Estimate] | None:
        """The loss of the highest mean top-1 on the test split."""
        means = {name: setting.mean(TOP1) for name, setting in self.losses.items()}
        return max(means.items(), key=lambda item: item[1].mean, default=None)

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
        title = f"{DATA[config['recipe']]}, {HEADS[config['head']['kind']]}"
        losses = {setting.loss: setting for setting in chosen(tuned, score=held_out)}
        found.append(
            Part(config["recipe"], title, losses, tried(tuned), frozen[0] if frozen else None, config["epochs"])
        )
    order = list(DATA)
    return sorted(found, key=lambda part: order.index(part.recipe))


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    """What all data sets say."""
    answers: dict[str, list[Finding]] = {}
    for part in parts(rows):
        if part.decides:
            for key, finding in _claims(part).items():
                answers.setdefault(key, []).append(finding)
    return {key: together(found) for key, found in answers.items()}


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
    leads = {other: gap for other in (CE, DRAWN, OURS) if (gap := part.minus(EXPECTED, other))}
    if len(leads) == 3:
        drawn, ours = (minus(f"{leads[other].mean:+.2f}") for other in (DRAWN, OURS))
        text = f"""{signed(leads[CE])} points against soft target cross-entropy, {drawn} against labels drawn from
            soft targets, {ours} against soft target InfoNCE"""
        found["fine-tuning-expected"] = Finding(text, part.on, "beyond")
    return found


def choices(rows: Sequence[Row]) -> list[Choice]:
    """Labels or soft targets, and which loss for soft targets: what is not behind on any data set."""
    soft = (CE, EXPECTED, OURS)
    found = [part for part in parts(rows) if part.decides and all(part.seeds(loss) > 1 for loss in ("nll", *soft))]
    if not found:
        return []
    setting = "a pre-trained network, fine-tuned for a few epochs"
    hard = [
        f"{part.on}: top-1 `NLL` {part.losses['nll'].mean(TOP1).spread(2)}, minus {CALLED[CE]} on smoothed and mixed "
        f"labels {signed(part.losses['nll'].minus(part.losses[CE], TOP1))}"
        for part in found
    ]
    mixed = [f"{part.on}: top-1 {CALLED[CE]} {part.losses[CE].mean(TOP1).spread(2)}, {_gaps(part)}" for part in found]
    return [
        Choice("labels", setting, _not_behind(found, ("nll", CE)), "; ".join(hard)),
        Choice("smoothed labels, MixUp, CutMix", setting, _not_behind(found, soft), "; ".join(mixed)),
    ]


def _gaps(part: Part) -> str:
    gaps = part.from_cross_entropy()
    return "from it " + ", ".join(f"{CALLED[loss]} {signed(gaps[loss])}" for loss in (EXPECTED, OURS))


def _not_behind(found: Sequence[Part], compared: Sequence[str]) -> str:
    """The losses that are not behind the best of those compared on any data set."""
    behind = set()
    for part in found:
        best = max(compared, key=lambda loss: part.losses[loss].mean(TOP1).mean)
        behind |= {loss for loss in compared if part.losses[loss].minus(part.losses[best], TOP1).high < 0}
    use = " or ".join(CALLED[loss] for loss in compared if loss not in behind)
    return use or "no loss is best on all data sets: compare them on yours"
