"""The learning rate of a setting: tried for one seed or a few, chosen on the held-out part, used for all seeds.

A setting is a run without its ``lr`` and ``seed``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from experiments.harness.figures import LOOKS
from experiments.harness.options import to_mapping
from experiments.harness.rows import Row
from experiments.harness.statistics import Estimate, Value, difference, mean

Run = TypeVar("Run", bound=Any)
LEARNING_RATES = (5e-5, 1e-4, 3e-4, 1e-3, 3e-3)
"""The interval in which the paper tunes its learning rates."""


def top1(row: Row) -> float:
    """The score that chooses a rate, unless another is given."""
    return float(row.result["held_out"]["top1"])


@dataclass(frozen=True)
class Setting:
    """The rows of one setting at its chosen rate, in order of seeds."""

    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the first seed."""
        return dict(self.rows[0].config)

    @property
    def loss(self) -> str:
        return str(self.config["loss"]["name"])

    @property
    def lr(self) -> float:
        return float(self.config["lr"])

    def mean(self, value: Value) -> Estimate:
        return mean(self.rows, value)

    def minus(self, other: "Setting", value: Value) -> Estimate:
        """``value`` of this setting minus that of another, paired by seed."""
        return difference(self.rows, other.rows, value)

    def of_seeds(self, kept: Callable[[int], bool]) -> "Setting | None":
        """The rows of some seeds; None without any."""
        rows = [row for row in self.rows if kept(row.config["seed"])]
        return Setting(rows) if rows else None


def trials(settings: Iterable[Run], rates: Sequence[float], seeds: int = 1) -> list[Run]:
    """Every setting at every learning rate, for the first ``seeds``."""
    return [replace(setting, lr=lr, seed=seed) for setting in settings for lr in rates for seed in range(seeds)]


def tuned(
    settings: Iterable[Run], rows: Sequence[Row], rates: Sequence[float], seeds: int,
    score: Callable[[Row], float] = top1, searched: int = 1,
) -> list[Run]:  # fmt: skip
    """Every setting at its best learning rate, for all seeds; settings with unfinished trials are left out."""
    found = best_rates(rows, rates, score, searched)
    return [
        replace(setting, lr=found[key], seed=seed)
        for setting in settings
        if (key := setting_key(to_mapping(setting))) in found
        for seed in range(seeds)
    ]


def best_rates(
    rows: Sequence[Row], rates: Sequence[float], score: Callable[[Row], float] = top1, searched: int = 1
) -> dict[Any, float]:
    """By setting, the rate of the highest score, summed over the first ``searched`` seeds that tried all rates."""
    tried: dict[Any, dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.config["seed"] < searched:
            tried[setting_key(row.config)][row.config["seed"]][row.config["lr"]] = score(row)
    found = {}
    for key, of_seeds in tried.items():
        if whole := [of_rate for of_rate in of_seeds.values() if of_rate.keys() >= set(rates)]:
            totals = {lr: sum(of_rate[lr] for of_rate in whole) for lr in rates}
            found[key] = max(rates, key=totals.__getitem__)
    return found


def at_best_rate(
    rows: Sequence[Row], rates: Sequence[float] = (), score: Callable[[Row], float] = top1, searched: int = 1
) -> dict[Any, Setting]:
    """The settings at their chosen rates; without ``rates``, of those that most settings were tried at."""
    found = best_rates(rows, rates or tried_rates(rows), score, searched)
    chosen: dict[Any, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.config["seed"]):
        key = setting_key(row.config)
        if found.get(key) == row.config["lr"]:
            chosen[key].append(row)
    return {key: Setting(of) for key, of in chosen.items()}


def chosen(rows: Sequence[Row], searched: int = 1, score: Callable[[Row], float] = top1) -> list[Setting]:
    """The settings whose search is finished, in the order of the losses."""
    found = at_best_rate(rows, (), score, searched).values()
    return [setting for loss in LOOKS for setting in found if setting.loss == loss]


def climb(
    scores: Mapping[float, float], first: Sequence[float], ladder: Sequence[float]
) -> tuple[float | None, list[float]]:
    """The best value of a search, None while it goes on, and the values still to try.

    All of ``first``, then neighbours on the ``ladder`` until the best has a worse one on either side. A single first
    value is taken without a search.
    """
    if len(first) == 1:
        return first[0], []
    if todo := [value for value in first if value not in scores]:
        return None, todo
    best = max(scores, key=lambda value: scores[value])
    at = ladder.index(best)
    todo = [value for value in ladder[max(at - 1, 0) : at + 2] if value not in scores]
    return (None if todo else best), todo


def tried_rates(rows: Sequence[Row]) -> list[float]:
    """The learning rates that most settings were tried at, for seed 0."""
    tried: dict[Any, set[float]] = defaultdict(set)
    for row in rows:
        if row.config["seed"] == 0:
            tried[setting_key(row.config)].add(row.config["lr"])
    sets = Counter(frozenset(rates) for rates in tried.values())
    return sorted(max(sets, key=lambda rates: (sets[rates], len(rates)), default=()))


def setting_key(config: Any) -> Any:
    """A configuration without learning rate and seed; can be hashed."""
    return _frozen({name: value for name, value in config.items() if name not in ("lr", "seed")})


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(inner)) for name, inner in value.items()))
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
