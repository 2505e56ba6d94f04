"""Recipes: one YAML file a training run, checked against :class:`~softnce.lab.recipes.recipe.Recipe`.

A file may ``inherit`` another (a path relative to itself) and then says only what differs.
"""

import difflib
import sys
from pathlib import Path
from typing import Any

import yaml

from softnce.lab.configuration import from_mapping, to_mapping
from softnce.lab.recipes.recipe import Recipe

FOLDER = Path(__file__).parent
DATA_SETS = ("imagenet", "tiny-imagenet", "cifar100")
LOSSES = ("nll", "soft-ce", "info-nce", "soft-dist-info-nce", "soft-target-info-nce")
PAPER = tuple(f"{data}/{loss}" for data in DATA_SETS for loss in LOSSES)

HELP = """usage: softnce recipes [NAME]

Without NAME, list the recipes with the values in which they differ. With NAME, print that recipe as YAML with every
value filled in; saved to a file and edited, `softnce train FILE.yaml` runs it.
"""


def names() -> list[str]:
    """The recipes that come with the package: the paper's 15 cells first."""
    found = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.yaml"))
    return [*PAPER, *(name for name in found if name not in PAPER)]


def load(name: str) -> Recipe:
    """The recipe of this name, or in this YAML file."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0)
        raise ValueError(f"no recipe {name!r}; did you mean {near[0]!r}? `softnce recipes` lists them")
    return from_mapping(Recipe, read(path), source=str(name))


def read(path: Path, heirs: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in a file, laid over those it inherits."""
    path = path.resolve()
    if path in heirs:
        raise ValueError(f"{path.name} inherits itself: {' → '.join(p.name for p in (*heirs, path))}")
    try:
        mapping = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ValueError(f"cannot read {path}, inherited by {heirs[-1].name}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(mapping, dict):
        raise ValueError(f"{path} must hold a mapping of fields, got {type(mapping).__name__}")
    parent = mapping.pop("inherit", None)
    if parent is None:
        return mapping
    return overlay(read(path.parent / parent, (*heirs, path)), mapping)


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, group by group."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = overlay(merged[key], value) if both else value
    return merged


def to_yaml(recipe: Recipe) -> str:
    """Every value, in the order of the dataclasses; ``load`` reads it back."""
    return yaml.safe_dump(to_mapping(recipe), sort_keys=False, allow_unicode=True)


COLUMNS = (
    "recipe", "optimiser", "base lr", "lr", "batch", "epochs", "warm-up", "decay", "layer decay", "smoothing",
    "MixUp", "CutMix", "augment", "drop path",
)  # fmt: skip


def row(name: str, recipe: Recipe) -> list[str]:
    """The values of the paper's tables, as the run will use them."""
    o, t, s = recipe.optimiser, recipe.targets, recipe.schedule
    values = (
        o.base_lr, o.lr, o.batch, s.epochs, s.warmup_epochs, o.weight_decay, o.layer_decay, t.smoothing,
        t.mixup, t.cutmix,
    )  # fmt: skip
    return [name, o.name, *(f"{value:g}" for value in values), recipe.data.augment, f"{recipe.model.drop_path:g}"]


def main(argv: list[str]) -> None:
    if any(word in ("-h", "--help") for word in argv):
        print(HELP, end="")
        return
    if len(argv) > 1:
        sys.exit(f"softnce recipes: at most one NAME, got {len(argv)}\n\n{HELP}")
    try:
        if argv:
            print(to_yaml(load(argv[0])), end="")
            return
        rows = [row(name, load(name)) for name in names()]
    except ValueError as error:
        sys.exit(f"softnce recipes: {error}")
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for cells in (COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
