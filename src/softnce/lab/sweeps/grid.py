"""Options with several values, as the trainings they stand for.

``--seeds 2 --optimiser.base_lr 1e-4,3e-4`` are four trainings, in the folders ``base_lr=0.0001,seed=0`` and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_origin

from softnce.lab.configuration import dotted, field_types, to_mapping
from softnce.lab.recipes.recipe import AnyRecipe

FOLDS = {"celltypegraph": 5, "tissue": 5}
"""Data sets that are divided into folds."""


@dataclass(frozen=True)
class Training:
    """One training of many: a recipe and the folder of its run."""

    recipe: AnyRecipe
    out: Path


def several(recipe: AnyRecipe, options: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Options with one value, and those with several, by name.

    Several values are written a,b,c, without spaces; ``--seeds N`` stands for ``--seed 0,…,N−1`` and ``--folds all``
    for all values of ``--data.fold``. A comma in a list, a path or a name of an option that is not the recipe's is
    none of this.
    """
    types = field_types(type(recipe))
    single: list[str] = []
    varied: dict[str, list[str]] = {}
    for name, value in pairs(options):
        if name == "seeds":
            varied["seed"] = [str(seed) for seed in range(_positive(name, value))]
        elif name == "folds":
            kind = recipe.data.kind
            if value != "all" or kind not in FOLDS:
                wanted = f"got {value!r}, need all" if value != "all" else f"data.kind {kind} has no folds"
                raise ValueError(f"--folds: {wanted}")
            varied["data.fold"] = [str(fold) for fold in range(FOLDS[kind])]
        elif value is not None and "," in value and name in types and not _takes_commas(types[name], value):
            varied[name] = value.split(",")
            if len(set(varied[name])) < len(varied[name]) or "" in varied[name]:
                raise ValueError(f"--{name}: got {value!r}, need different values a,b,…")
        else:
            single += [f"--{name}"] if value is None else [f"--{name}", value]
    return single, varied


def combinations(single: Sequence[str], varied: dict[str, list[str]]) -> list[list[str]]:
    """The options of each training; the last one varies fastest."""
    return [
        [*single, *(word for name, value in zip(varied, values, strict=True) for word in (f"--{name}", value))]
        for values in product(*varied.values())
    ]


def folder_name(recipe: AnyRecipe, varied: Sequence[str]) -> str:
    """What tells a training from the others: base_lr=0.0003,seed=2."""
    values = dotted(to_mapping(recipe))
    pairs = zip(short_names(varied), varied, strict=True)
    return ",".join(f"{short}={written(values.get(name)).replace('/', '-')}" for short, name in pairs)


def short_names(names: Sequence[str]) -> list[str]:
    """The last part of each dotted name, or all of it where two share that part."""
    short = [name.rpartition(".")[2] for name in names]
    return [brief if short.count(brief) == 1 else name for brief, name in zip(short, names, strict=True)]


def written(value: Any) -> str:
    """A setting in a name or a table."""
    return f"{value:g}" if isinstance(value, float) else "–" if value is None else str(value)


def _takes_commas(kind: Any, value: str) -> bool:
    return kind is Path or get_origin(kind) in (list, tuple, dict) or value.startswith(("[", "{"))


def pairs(options: Sequence[str]) -> list[tuple[str, str | None]]:
    """Names and values of ``--name value`` and ``--name=value``; None where none follows."""
    found: list[tuple[str, str | None]] = []
    for word in options:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found.append((name, value if equals else None))
        elif found and found[-1][1] is None:
            found[-1] = found[-1][0], word
        else:
            raise ValueError(f"unexpected argument {word!r}; options are written --name value")
    return found


def _positive(name: str, value: str | None) -> int:
    if value is None or not value.isdigit() or int(value) < 1:
        raise ValueError(f"--{name}: got {value!r}, need a number of at least 1")
    return int(value)
