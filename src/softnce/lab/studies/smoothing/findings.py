"""How much accuracy depends on ε, and how exact the identity is."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softnce.lab.data.features import NAMES
from softnce.lab.experiment.claims import Finding, Verdict, ahead, ahead_would_take
from softnce.lab.experiment.comparison import by_seed, largest
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import SCALED_ECE, TOP1, Setting, chosen
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.experiment.text import counted
from softnce.lab.studies.smoothing.run import CE, EXPECTED, OURS


@dataclass(frozen=True)
class Found:
    """Trainings over ε, of the data set and head with the most of them.

    Attributes:
        data: name of the data set.
        losses: by loss, then by ε.
        twins: by ε, soft target InfoNCE without smoothing at temperature 1/(1−ε).
    """

    data: str
    losses: dict[str, dict[float, Setting]]
    twins: dict[float, Setting]

    @property
    def name(self) -> str:
        return NAMES.get(self.data, self.data)

    def deviation(self, loss: str) -> tuple[float, float]:
        """Largest difference and standard deviation of the mean accuracies over ε, in points."""
        values = [setting.mean(TOP1).mean for setting in self.losses[loss].values()]
        return max(values) - min(values), statistics.pstdev(values)

    @property
    def steadiness(self) -> Estimate:
        """Standard deviation over ε of soft target cross-entropy's accuracy minus soft target InfoNCE's, by seed."""
        ce, ours = ([by_seed(of.rows, TOP1) for of in self.losses[loss].values()] for loss in (CE, OURS))
        seeds = sorted(set.intersection(*map(set, [*ce, *ours])))
        return estimate([statistics.stdev(of[s] for of in ce) - statistics.stdev(of[s] for of in ours) for s in seeds])

    @property
    def identity(self) -> tuple[float, float]:
        """Largest error of the identity on trained scores: value, gradient."""
        rows = [row for setting in self.losses[OURS].values() for row in setting.rows]
        errors = [row.result["identity"] for row in rows if "identity" in row.result]
        return max(e["value"] for e in errors), max(e["gradient"] for e in errors)

    @property
    def twin_gap(self) -> float:
        """Largest difference of mean accuracy between trainings with smoothing and their twins, in points."""
        pairs = [(self.losses[OURS][epsilon], of) for epsilon, of in self.twins.items()]
        return max(abs(ours.mean(TOP1).mean - of.mean(TOP1).mean) for ours, of in pairs)

    @property
    def is_complete(self) -> bool:
        ce, ours = (self.losses.get(loss, {}) for loss in (CE, OURS))
        return len(ce) > 1 and ce.keys() == ours.keys() and bool(self.twins)


def find(rows: Sequence[Row]) -> Found:
    group = largest([row for row in rows if "probe" not in row.config], "data", "head", "epochs", "batch")
    losses: dict[str, dict[float, Setting]] = defaultdict(dict)
    smoothed = set()
    for setting in sorted(chosen(group), key=lambda setting: float(setting.config["targets"]["smoothing"])):
        epsilon = setting.config["targets"]["smoothing"]
        losses[setting.loss][epsilon] = setting
        smoothed |= {(_key(row.config), epsilon) for row in setting.rows}
    twins: dict[float, list[Row]] = defaultdict(list)
    for row in sorted((row for row in rows if "probe" in row.config), key=lambda row: int(row.config["seed"])):
        if (_key(row.config["probe"]), row.config["smoothing"]) in smoothed:
            twins[row.config["smoothing"]].append(row)
    source = group[0].config["data"] if group else ""
    return Found(source, dict(losses), {epsilon: Setting(of) for epsilon, of in sorted(twins.items())})


def _key(config: Any) -> tuple[str, ...]:
    return tuple(repr(config[name]) for name in ("data", "head", "batch", "epochs", "lr", "seed"))


def claims(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    if not found.is_complete:
        return {}
    on = f"{found.name} features, {counted(max(map(len, found.losses[OURS].values())), 'seed')}"
    value, gradient = found.identity
    answers = {
        "smoothing-temperature": Finding(
            f"values differ by {value:.1e}, gradients by {gradient:.1e} on trained scores", on, "beyond"
        )
    }
    if found.data != "digits":
        (most, deviation), (most_ce, deviation_ce) = found.deviation(OURS), found.deviation(CE)
        steadier: Verdict = ahead(found.steadiness)
        answers["smoothing-sensitivity"] = Finding(
            f"largest deviation {most:.2f} against {most_ce:.2f}, standard deviation {deviation:.2f} against "
            f"{deviation_ce:.2f}; by seed the second is larger by {signed(found.steadiness)}"
            f"{ahead_would_take(found.steadiness)}",
            on,
            "explained" if steadier == "reproduced" else steadier,
        )
        if len(found.losses.get(EXPECTED, {})) > 1:
            answers["smoothing-expected"] = _expected(found)
    return answers


def _expected(found: Found) -> Finding:
    """Expected InfoNCE over ε, beside soft target cross-entropy: accuracy, and calibration after scaling."""
    ours, ce = found.losses[EXPECTED], found.losses[CE]
    gaps = [of.minus(ce[epsilon], TOP1) for epsilon, of in ours.items()]
    most, least = max(gaps, key=lambda gap: gap.mean), min(gaps, key=lambda gap: gap.mean)
    scaled = [f"{of[max(ours)].mean(SCALED_ECE).mean:.1f}" for of in (ours, ce, found.losses[OURS])]
    text = f"""between {signed(least)} and {signed(most)} points against soft target cross-entropy over
        {counted(len(ours), "value")} of ε; at ε = {max(ours):g} its ECE after temperature scaling is {scaled[0]} %,
        that of soft target cross-entropy {scaled[1]} %, that of soft target InfoNCE {scaled[2]} %"""
    return Finding(text, f"{found.name} features, {counted(min(map(len, ours.values())), 'seed')}", "beyond")
