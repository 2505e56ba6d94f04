"""Claims, findings, and the one function that decides verdicts.

A claim is static text in claims.yaml. A finding is computed from rows. A verdict follows from intervals over
seeds alone: a claim says that a number lies above, below or between bounds, and holds if the whole interval does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from experiments.harness.statistics import Estimate

MARGIN = 0.5
"""Points of top-1 within which two losses count as on par."""
ON_PAR: Mapping[str, float] = {"above": -MARGIN, "below": MARGIN}
TEXTS = Path(__file__).parents[1] / "claims.yaml"
MOST_SEEDS = 200
"""Beyond this the number of seeds that would decide is noise."""
Verdict = Literal["reproduced", "not reproduced", "explained", "beyond", "undecided"]
MEANING: dict[Verdict, str] = {
    "reproduced": "we measured what the paper says",
    "not reproduced": "we measured something else",
    "explained": "it holds under other conditions than the paper's, and we know why",
    "beyond": "the paper left it open; our own claim holds",
    "undecided": "these runs are too few or too short to tell",
}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper in one sentence, or a question that it leaves open."""

    key: str
    text: str
    where: str  # figure, table, equation or section of the paper
    paper: str  # the paper's figure


@cache
def all_claims() -> dict[str, tuple[Claim, ...]]:
    """The claims in ``claims.yaml``, by experiment."""
    import yaml

    texts = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
    return {
        experiment: tuple(Claim(key, text["claim"], text["where"], text["paper"]) for key, text in of.items())
        for experiment, of in texts.items()
    }


@dataclass(frozen=True)
class Gap:
    """The comparison that decides a claim: a score of one loss minus that of another lies between bounds."""

    ours: str
    theirs: str
    bounds: Mapping[str, Any]  # keyword arguments of :func:`verdict`


@dataclass(frozen=True)
class Finding:
    """Our answer to a claim."""

    ours: str  # our figure with its interval, to compare with the paper's
    on: str  # data, model and number of seeds, in a few words
    verdict: Verdict  # of :func:`verdict`


def verdict(
    *found: Estimate,
    above: float = -math.inf, below: float = math.inf, new: bool = False, cause: Sequence[Estimate] = (),
) -> Verdict:  # fmt: skip
    """The verdict on a claim that every number in ``found`` lies above ``above`` and below ``below``.

    It holds if all intervals lie inside, fails if one lies outside, and is undecided otherwise, or if a number comes
    from a single seed. "A beats B": the difference, ``above=0``. "A is on par with B": ``above=-MARGIN,
    below=MARGIN``. A bare measurement without bounds only needs its seeds.

    Args:
        found: one estimate per data set or condition.
        above, below: bounds of the claim.
        new: the paper does not make the claim: "beyond" instead of "reproduced".
        cause: the numbers under the condition that explains the paper's claim. If the claim fails on ``found`` but
            holds here, the verdict is "explained".
    """
    inside = [_inside(e, above, below) for e in found]
    if False in inside:
        is_explained = len(cause) > 0 and all(_inside(e, above, below) for e in cause)
        return "explained" if is_explained else "not reproduced"
    if not inside or None in inside:
        return "undecided"
    return "beyond" if new else "reproduced"


def decided(*found: Estimate, on: str, unit: str = " points", digits: int = 2, new: bool = False,
            **bounds: Any) -> Finding:  # fmt: skip
    """The finding of differences within ``bounds`` of :func:`verdict`, each with the seeds that would decide it."""
    ours = "; ".join(f"{e.signed(digits)}{unit}{needed(e, **bounds)}" for e in found)
    return Finding(ours, on, verdict(*found, new=new, **bounds))


def _inside(e: Estimate, above: float, below: float) -> bool | None:
    if e.count < 2 and not e.exact:
        return None
    if above < e.low and e.high < below:
        return True
    return False if e.high <= above or e.low >= below else None


def needed(e: Estimate, *, above: float = -math.inf, below: float = math.inf, unit: str = "seeds") -> str:
    """ " (about 13 seeds would decide)" for an undecided claim, if the number is as measured; otherwise nothing."""
    if e.count < 2 or e.exact or _inside(e, above, below) is not None:
        return ""
    distances = [abs(e.mean - bound) for bound in (above, below) if math.isfinite(bound)]
    if not above < e.mean < below:  # outside one bound: only that one has to be excluded
        distances = [min(distances)]
    count = seeds_needed(e, *distances)
    return f" ({f'about {count}' if count else f'more than {MOST_SEEDS}'} {unit} would decide)"


def seeds_needed(e: Estimate, *distances: float, power: float = 0.8) -> int | None:
    """Number of seeds whose 95 % interval excludes every bound that is ``distances`` away from the mean.

    With probability ``power``, for the measured mean and deviation, by the noncentral t distribution. None above
    :data:`MOST_SEEDS`.
    """
    from scipy.stats import nct, t

    deviation = (e.high - e.mean) / float(t.ppf(0.975, e.count - 1)) * math.sqrt(e.count)

    def misses(distance: float, count: int) -> float:
        if deviation == 0:
            return float(distance <= 0)
        apart = distance / deviation * math.sqrt(count)
        return 0.0 if apart > 20 else 1 - float(nct.sf(t.ppf(0.975, count - 1), count - 1, apart))

    for count in range(2, MOST_SEEDS + 1):
        if 1 - sum(misses(distance, count) for distance in distances) >= power:
            return count
    return None


def together(found: Sequence[Finding]) -> Finding:
    """One finding of several data sets: the claim holds if it holds on all, and fails if it fails on one."""
    verdicts = {finding.verdict for finding in found}
    joint: Verdict = "not reproduced" if "not reproduced" in verdicts else "undecided"
    return Finding(
        "; ".join(finding.ours for finding in found),
        "; ".join(finding.on for finding in found),
        verdicts.pop() if len(verdicts) == 1 else joint,
    )


def checked(experiment: str, claims: Sequence[Claim], findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """The findings; a ValueError names a key that is no claim of the experiment."""
    if unknown := sorted(findings.keys() - {claim.key for claim in claims}):
        raise ValueError(f"findings: {', '.join(unknown)} is no claim of {experiment}")
    return dict(findings)
