"""What a head adds to a linear one, for each loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.claims import Finding, Verdict, ahead_would_take
from softnce.lab.experiment.comparison import difference_of_differences
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, Setting, chosen, largest_by_data
from softnce.lab.experiment.statistics import Estimate, signed
from softnce.lab.experiment.text import counted, minus
from softnce.lab.studies.head.run import CE, EXPECTED, LAYERS, LINEAR, OURS

Kind = tuple[str, bool]
PAPER = {"cifar100": {CE: 0.36, OURS: 0.70}, "tiny-imagenet": {CE: 0.60, OURS: 1.72}}
"""The paper's gains of three layers over a linear head, in points of top-1."""
PAPER_LINEAR = {"cifar100": 90.80 - 0.70 - (90.74 - 0.36), "tiny-imagenet": 83.86 - 1.72 - (83.67 - 0.60)}
"""Soft target InfoNCE minus soft target cross-entropy with a linear head: the paper's table less its gains."""


@dataclass(frozen=True)
class Part:
    """The trainings on one data set, by loss and head, losses in the registry's order."""

    data: str
    settings: dict[tuple[str, Kind], Setting]

    @property
    def name(self) -> str:
        return NAMES[self.data]

    @property
    def config(self) -> dict[str, Any]:
        return next(iter(self.settings.values())).config

    @property
    def seeds(self) -> int:
        """What every setting has at least."""
        return min(map(len, self.settings.values()))

    @property
    def is_complete(self) -> bool:
        """Whether the paper's comparison can be made."""
        return all((loss, head) in self.settings for loss in (OURS, CE) for head in (LINEAR, LAYERS))

    def gains(self, head: Kind = LAYERS) -> dict[str, Estimate]:
        """Points of top-1 that ``head`` adds to the plain linear one, by loss, paired by seed."""
        return {
            loss: setting.minus(self.settings[loss, LINEAR], TOP1)
            for (loss, of_head), setting in self.settings.items()
            if of_head == head and (loss, LINEAR) in self.settings
        }

    def extra(self) -> Estimate:
        """Soft target InfoNCE's gain of three layers minus soft target cross-entropy's."""
        wanted = ((OURS, LAYERS), (OURS, LINEAR), (CE, LAYERS), (CE, LINEAR))
        a, b, c, d = (self.settings[key].rows for key in wanted)
        return difference_of_differences(a, b, c, d, TOP1)

    def lead(self, head: Kind, loss: str = OURS) -> Estimate:
        """Soft target InfoNCE's top-1, or another loss's, minus soft target cross-entropy's."""
        return self.settings[loss, head].minus(self.settings[CE, head], TOP1)


def parts(rows: Sequence[Row]) -> list[Part]:
    """Of each data set the trainings of the most common sizes; digits only where there is nothing else."""
    found = []
    for source, group in largest_by_data(rows, "epochs", "batch", "head.hidden").items():
        settings = {(s.loss, (s.config["head"]["kind"], s.config["head"]["output_norm"])): s for s in chosen(group)}
        if settings:
            found.append(Part(source, settings))
    return [part for part in found if part.data != "digits"] or found


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = [part for part in parts(rows) if part.is_complete]
    if not found:
        return {}
    extra, lead = [part.extra() for part in found], [part.lead(LINEAR) for part in found]
    names = ", ".join(part.name for part in found)
    more = "; ".join(
        f"{gains[OURS].mean:+.2f} against {gains[CE].mean:+.2f} {part.name}, difference {signed(e)}"
        for part, e in zip(found, extra, strict=True)
        for gains in [part.gains()]
    )
    linear = _verdict(lead, [PAPER_LINEAR.get(part.data, 0.0) for part in found])
    less = "; ".join(
        f"{signed(e)} {part.name}{ahead_would_take(e) if linear == 'undecided' else ''}"
        for part, e in zip(found, lead, strict=True)
    )
    gaps = [PAPER[part.data][OURS] - PAPER[part.data][CE] if part.data in PAPER else 0.0 for part in found]
    answers = {
        "head-gain": Finding(minus(more), _on(names, extra), _verdict(extra, gaps)),
        "head-linear": Finding(less, _on(names, lead), linear),
    }
    trained = [part for part in found if all((EXPECTED, head) in part.settings for head in (LINEAR, LAYERS))]
    if trained == found and all(part.data in PAPER for part in found):
        ours = [(part.lead(LINEAR, EXPECTED), part.lead(LAYERS, EXPECTED)) for part in found]
        gaps_by_head = "; ".join(
            f"{part.name} {signed(plain)} with a linear head, {signed(deep)} with three layers"
            for part, (plain, deep) in zip(found, ours, strict=True)
        )
        text = f"points of top-1 minus soft target cross-entropy's: {gaps_by_head}"
        answers["head-expected"] = Finding(text, _on(names, [deep for _, deep in ours]) + " or more", "beyond")
    return answers


def _on(names: str, measured: Sequence[Estimate]) -> str:
    return f"{names} features, {counted(min(e.count for e in measured), 'seed')}"


def _verdict(measured: Sequence[Estimate], paper: Sequence[float]) -> Verdict:
    """Reproduced where every interval lies on the paper's side of 0, not reproduced where one excludes what it says."""
    if not all(paper) or min(e.count for e in measured) < 3:
        return "undecided"
    sides = [(e.low, e.high) if gap > 0 else (-e.high, -e.low) for e, gap in zip(measured, paper, strict=True)]
    if all(low > 0 for low, _ in sides):
        return "reproduced"
    if any(high < 0 for _, high in sides) or all(high < abs(gap) for (_, high), gap in zip(sides, paper, strict=True)):
        return "not reproduced"
    return "undecided"
