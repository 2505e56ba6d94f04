"""The learning rate of a setting: tried for one seed or a few, chosen on the held-out part, then used for all seeds.

A setting is a run (a dataclass with ``lr`` and ``seed``, such as a Probe) without these two. The rate of the highest
``score`` is chosen, by default the held-out accuracy, ``held_out.top1`` of a result.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row

Setting = TypeVar("Setting", bound=Any)

LEARNING_RATES = (5e-5, 1e-4, 3e-4, 1e-3, 3e-3)
"""The interval [5e-5, 3e-3] in which the paper tunes its learning rates."""


def top1(row: Row) -> float:
    return float(row.result["held_out"]["top1"])


def tried_rates(rows: Sequence[Row]) -> list[float]:
    """The learning rates of the search: those that most settings were tried with, for seed 0."""
    tried: dict[Any, set[float]] = defaultdict(set)
    for row in rows:
        if row.config["seed"] == 0:
            tried[setting_key(row.config)].add(row.config["lr"])
    sets = Counter(frozenset(rates) for rates in tried.values())
    return sorted(max(sets, key=lambda rates: (sets[rates], len(rates)), default=()))


def trials(settings: Iterable[Setting], rates: Sequence[float], seeds: int = 1) -> list[Setting]:
    """Every setting at every learning rate, for seed 0 or the first ``seeds``."""
    return [replace(setting, lr=lr, seed=seed) for setting in settings for lr in rates for seed in range(seeds)]


def tuned(
    settings: Iterable[Setting],
    rows: Sequence[Row],
    rates: Sequence[float],
    seeds: int,
    score: Callable[[Row], float] = top1,
    searched: int = 1,
) -> list[Setting]:
    """Every setting at its best learning rate, for all seeds; settings whose trials are not finished are left out."""
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
    """By setting, the rate of the highest score, that of seed 0 or the mean of the first ``searched`` seeds.

    Of these, the seeds that were not tried with all ``rates`` do not count; a setting without any is left out.
    """
    tried: dict[Any, dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.config["seed"] < searched:
            tried[setting_key(row.config)][row.config["seed"]][row.config["lr"]] = score(row)
    found = {}
    for key, by_seed in tried.items():
        whole = [of_rate for of_rate in by_seed.values() if all(lr in of_rate for lr in rates)]
        if whole:
            totals = {lr: sum(of_rate[lr] for of_rate in whole) for lr in rates}
            found[key] = max(rates, key=totals.__getitem__)
    return found


def at_best_rate(
    rows: Sequence[Row], rates: Sequence[float], score: Callable[[Row], float] = top1, searched: int = 1
) -> dict[Any, list[Row]]:
    """The rows at the chosen learning rate, by setting, in order of their seeds."""
    found = best_rates(rows, rates, score, searched)
    chosen: dict[Any, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.config["seed"]):
        key = setting_key(row.config)
        if found.get(key) == row.config["lr"]:
            chosen[key].append(row)
    return dict(chosen)


def setting_key(config: Any) -> Any:
    """What a run has in common with the other seeds and learning rates of its setting; can be hashed."""
    return _frozen({name: value for name, value in config.items() if name not in ("lr", "seed")})


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(inner)) for name, inner in value.items()))
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
