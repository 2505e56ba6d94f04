"""The paper's claims and what the studies found about them.

A study's claims are data, ``claims.toml`` in its folder; its ``findings.py`` answers them:

    def claims(rows: Sequence[Row]) -> dict[str, Finding]:
        return {"small-batch-drop": Finding("−3.9 ± 0.4 points", "CIFAR-100 features, 20 seeds", "reproduced")}

The page opens with all claims of all studies. A key without a finding is "not yet run"; what the rows cannot decide
(a short preset, an interval that contains both answers) has the verdict "undecided", and says how many seeds would
decide if the gap is as measured (80 % power).
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from softnce.lab.experiment.statistics import MOST_SEEDS, Estimate, seeds_needed
from softnce.lab.experiment.text import prose

MARGIN = 0.5
"""Points of top-1 within which two losses count as equivalent."""
Verdict = Literal["reproduced", "not reproduced", "explained", "beyond", "undecided"]
NOT_YET_RUN = "not yet run"
MEANING = {
    "reproduced": "we measured what the paper says",
    "not reproduced": "we measured something else",
    "explained": "we know why the paper saw it, and when it holds",
    "beyond": "the paper left it open or did not look",
    "undecided": "these runs are too few or too short to tell",
    NOT_YET_RUN: "no results in this folder",
}


@dataclass(frozen=True)
class Claim:
    """Something the paper says, or leaves open.

    Attributes:
        key: stable name.
        text: the claim in one sentence.
        where: figure, table, equation or section of the paper, in words.
        paper: the paper's figure.
        study: the study that tests it.
    """

    key: str
    text: str
    where: str
    paper: str
    study: str

    @property
    def command(self) -> str:
        return f"softnce study {self.study} --preset paper"


@dataclass(frozen=True)
class Finding:
    """What a study measured about a claim. Texts may be written over several lines.

    Attributes:
        ours: our figure, to compare with the paper's, with its spread: "62.1 ± 0.3", "+0.4 [0.1, 0.7] points".
        on: data, model and number of seeds, in a few words.
        verdict: one of ``Verdict``.
        command: what repeats it, if not the study's paper preset.
    """

    ours: str
    on: str
    verdict: Verdict
    command: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"verdict: got {self.verdict!r}, need one of {', '.join(get_args(Verdict))}")
        for name in ("ours", "on"):
            object.__setattr__(self, name, prose(getattr(self, name)))


def read(path: Path, study: str) -> tuple[Claim, ...]:
    """The claims of a study from its TOML file, ``[[claim]]`` with key, text, where and paper; none without a file."""
    if not path.is_file():
        return ()
    return tuple(Claim(study=study, **entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["claim"])


def together(found: Sequence[Finding]) -> Finding:
    """One finding of a claim that was tested on several data sets.

    It holds where it holds on all of them, and fails where it fails on one.
    """
    verdicts = {finding.verdict for finding in found}
    verdict: Verdict = "not reproduced" if "not reproduced" in verdicts else "undecided"
    return Finding(
        "; ".join(finding.ours for finding in found),
        "; ".join(finding.on for finding in found),
        verdicts.pop() if len(verdicts) == 1 else verdict,
    )


def ahead(gap: Estimate) -> Verdict:
    """Of a claim that something is ahead by ``gap``: the whole interval is above 0, or below it."""
    if gap.count < 2:
        return "undecided"
    return "reproduced" if gap.low > 0 else "not reproduced" if gap.high < 0 else "undecided"


def on_par(gap: Estimate) -> Verdict:
    """Of a claim that two losses are on par: the whole interval of their gap lies within the margin, or beyond it."""
    if gap.count < 2:
        return "undecided"
    if gap.low > -MARGIN and gap.high < MARGIN:
        return "reproduced"
    return "not reproduced" if gap.low > MARGIN or gap.high < -MARGIN else "undecided"


def ahead_would_take(gap: Estimate, unit: str = "seeds") -> str:
    """Of an undecided lead, how many seeds would decide it; nothing where it is decided."""
    return _would_take(gap, unit, "", abs(gap.mean)) if ahead(gap) == "undecided" else ""


def on_par_would_take(gap: Estimate, unit: str = "seeds") -> str:
    """Of an undecided equivalence, how many seeds would decide it; nothing where it is decided."""
    size = abs(gap.mean)
    ends = (MARGIN - size, MARGIN + size) if size < MARGIN else (size - MARGIN,)
    return _would_take(gap, unit, " whether it is within half a point", *ends) if on_par(gap) == "undecided" else ""


def _would_take(gap: Estimate, unit: str, what: str, *distances: float) -> str:
    if gap.count < 2:
        return ""
    count = seeds_needed(gap, *distances)
    return f" ({f'about {count:,}' if count else f'more than {MOST_SEEDS:,}'} {unit} would decide{what})"


def checked(study: str, claims: Sequence[Claim], findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """The findings, if every key is one of the study's claims; otherwise a ValueError that says which are."""
    keys = [claim.key for claim in claims]
    for key in findings:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its claims are {', '.join(keys) or 'none'}"
            raise ValueError(f"claims: {key!r} is not a claim of {study}; {hint}")
    return dict(findings)


def as_markdown(claims: Sequence[Claim], findings: Mapping[str, Finding]) -> str:
    """The table of claims for a text page, claims without a finding left out."""
    lines = ["| claim | the paper | ours | on | verdict | study |", "|---|---|---|---|---|---|"]
    for claim in claims:
        if claim.key in findings:
            found = findings[claim.key]
            cells = (claim.text, claim.paper, found.ours, found.on, f"**{found.verdict}**", f"`{claim.study}`")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
