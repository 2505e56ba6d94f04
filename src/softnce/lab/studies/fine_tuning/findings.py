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
        text = f"""{signed(leads[CE])} points against soft target cross-entropy, {signed(leads[DRAWN])} against labels
            drawn from soft targets, {signed(leads[OURS])} against soft target InfoNCE"""
        found["fine-tuning-expected"] = Finding(text, part.on, "beyond")
    return found


def choices(rows: Sequence[Row]) -> list[Choice]:
    """The losses that are not behind the best one on any data set."""
    compared = ("nll", CE, EXPECTED, OURS)
    found = [part for part in parts(rows) if part.decides and all(part.seeds(loss) > 1 for loss in compared)]
    if not found:
        return []
    behind = set()
    for part in found:
        best = max(compared, key=lambda loss: part.losses[loss].mean(TOP1).mean)
        gaps = {loss: part.minus(loss, best) for loss in compared if loss != best}
        behind |= {loss for loss, gap in gaps.items() if gap and gap.high < 0}
    use = " or ".join(f"`{LOSSES[loss].name}`" for loss in compared if loss not in behind)
    said = []
    for part in found:
        nll, ce = (part.losses[loss].mean(TOP1).spread(2) for loss in ("nll", CE))
        gaps_said = ", ".join(
            f"`{LOSSES[loss].name}` {signed(part.from_cross_entropy()[loss])}" for loss in (EXPECTED, OURS)
        )
        said.append(f"{part.on}: top-1 `NLL` {nll}, `{LOSSES[CE].name}` {ce}; from the latter {gaps_said}")
    return [Choice("labels, smoothed, MixUp", "a pre-trained network, fine-tuned", use or "`NLL`", "; ".join(said))]
