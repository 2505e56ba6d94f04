"""Calibration of every loss, by data set and augmentation."""

from collections.abc import Sequence
from dataclasses import dataclass

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.choices import Choice
from softnce.lab.experiment.claims import Finding, ahead
from softnce.lab.experiment.comparison import Value
from softnce.lab.experiment.probe import targets_for
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import ECE, SCALED_ECE, Setting, chosen, largest_by_data
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.studies.calibration.run import AUGMENTATIONS

OURS, CE, EXPECTED = "soft-target-info-nce", "soft-ce", "expected-info-nce"
SHOWN = {"nll": "NLL on labels", CE: "soft target CE", OURS: "soft target InfoNCE", EXPECTED: "expected InfoNCE"}
PAPER = {  # ECE of soft target InfoNCE and soft target cross-entropy, ViT-B/16, and the claim's name
    ("tiny-imagenet", "smoothing"): (3.9, 7.0, "calibration-smoothing"),
    ("cifar100", "smoothing and MixUp"): (2.9, 15.8, "calibration-mixing"),
    ("tiny-imagenet", "smoothing and MixUp"): (7.7, 6.3, "calibration-reversed"),
}


@dataclass(frozen=True)
class Case:
    """A data set with one augmentation; losses on labels are the same in every augmentation."""

    data: str
    augmentation: str
    losses: dict[str, Setting]

    @property
    def title(self) -> str:
        return f"{NAMES[self.data]}, {self.augmentation}"

    @property
    def paper(self) -> tuple[float, float, str] | None:
        return PAPER.get((self.data, self.augmentation))

    @property
    def is_complete(self) -> bool:
        return OURS in self.losses and CE in self.losses

    def gap(self, value: Value = ECE, loss: str = OURS) -> Estimate:
        """Soft target InfoNCE, or another loss, minus soft target cross-entropy, paired by seed."""
        return self.losses[loss].minus(self.losses[CE], value)


def cases(rows: Sequence[Row]) -> list[Case]:
    """Of each data set the trainings of the most common sizes."""
    found = []
    for source, group in largest_by_data(rows, "epochs", "batch", "head").items():
        settings = chosen(group)
        for augmentation, targets in AUGMENTATIONS.items():
            losses = {
                setting.loss: setting
                for setting in settings
                if setting.config["targets"]["mixup"] == targets_for(setting.loss, targets).mixup
            }
            if losses:
                found.append(Case(source, augmentation, losses))
    return found


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    answers = {}
    for case in cases(rows):
        if case.paper is None or not case.is_complete:
            continue
        paper_ours, paper_ce, key = case.paper
        gap, ours, ce = case.gap(), case.losses[OURS], case.losses[CE]
        answers[key] = Finding(
            f"ECE {ours.mean(ECE).mean:.1f} % against {ce.mean(ECE).mean:.1f} %, difference {signed(gap, 1)}",
            f"{NAMES[case.data]} features, {case.augmentation}, {counted(len(ours), 'seed')}",
            ahead(gap if paper_ours > paper_ce else -gap),
        )
    compared = [case for case in cases(rows) if case.data != "digits" and {EXPECTED, CE} <= case.losses.keys()]
    if compared:
        plain, scaled = ([case.gap(value, EXPECTED).mean for case in compared] for value in (ECE, SCALED_ECE))
        text = f"""ECE minus that of soft target cross-entropy: from {min(plain):+.1f} to {max(plain):+.1f} points over
            {counted(len(compared), "case")}; after temperature scaling from {min(scaled):+.1f} to {max(scaled):+.1f}"""
        seeds = min(len(case.losses[EXPECTED]) for case in compared)
        answers["calibration-expected"] = Finding(text, f"features, {counted(seeds, 'seed')}", "beyond")
    return answers


def choices(rows: Sequence[Row]) -> list[Choice]:
    of_case = [case for case in cases(rows) if case.is_complete and case.data != "digits"]
    if not of_case:
        return []
    errors = {loss: [case.losses[loss].mean(ECE).mean for case in of_case if loss in case.losses] for loss in SHOWN}
    text = f"ECE over {counted(len(of_case), 'case')}: " + ", ".join(
        f"{SHOWN[loss]} {min(each):.1f} to {max(each):.1f} %" for loss, each in errors.items() if each
    )
    use = "no loss is calibrated in every case: fit a temperature (`softnce.calibration.fit_temperature`)"
    return [Choice("smoothed labels, MixUp", "calibrated probabilities wanted", use, text)]
