"""Recipes: one YAML file a training run, checked against :class:`~softnce.lab.recipes.recipe.Recipe`, or
:class:`~softnce.lab.recipes.recipe.GraphRecipe` where ``data.kind`` is one of graphs.

A file may ``inherit`` another (a path relative to itself) and then says only what differs.
"""

import difflib
import sys
from pathlib import Path
from typing import Any

import yaml

from softnce.lab.configuration import from_mapping, to_mapping
from softnce.lab.losses import PAPER as LOSSES
from softnce.lab.recipes.recipe import GRAPH_KINDS, IMAGE_KINDS, GraphRecipe, Recipe

FOLDER = Path(__file__).parent
DATA_SETS = ("imagenet", "tiny-imagenet", "cifar100")
PAPER = tuple(f"{data}/{loss}" for data in DATA_SETS for loss in LOSSES)

HELP = """usage: softnce recipes [NAME]

Without NAME, list the recipes with the values in which they differ. With NAME, print that recipe as YAML with every
value filled in; saved to a file and edited, `softnce train FILE.yaml` runs it.
"""


def names() -> list[str]:
    """The recipes that come with the package: the paper's 15 cells first."""
    found = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.yaml"))
    return [*PAPER, *(name for name in found if name not in PAPER)]


def load(name: str) -> Recipe | GraphRecipe:
    """The recipe of this name, or in this YAML file."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        if path == Path(name):
            raise ValueError(f"no file {name}")
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0)
        raise ValueError(f"no recipe {name!r}; did you mean {near[0]!r}? `softnce recipes` lists them")
    return from_plain(read(path), source=str(name))


def from_plain(mapping: dict[str, Any], *, source: str) -> Recipe | GraphRecipe:
    """The recipe in a mapping, of images or of graphs as its ``data.kind`` says; a ValueError names what is wrong."""
    data = mapping.get("data")
    kind = data.get("kind", IMAGE_KINDS[0]) if isinstance(data, dict) else IMAGE_KINDS[0]
    if kind not in (*IMAGE_KINDS, *GRAPH_KINDS):
        raise ValueError(f"{source}: data.kind: got {kind!r}, need one of {', '.join((*IMAGE_KINDS, *GRAPH_KINDS))}")
    if kind in GRAPH_KINDS:
        return from_mapping(GraphRecipe, mapping, source=source)
    return from_mapping(Recipe, mapping, source=source)


def read(path: Path, heirs: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in a file, laid over those it inherits."""
    path = path.resolve()
    if path in heirs:
        raise ValueError(f"{path.name} inherits itself: {' → '.join(p.name for p in (*heirs, path))}")
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}, inherited by {heirs[-1].name}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if mapping is None:
        raise ValueError(f"{path} is empty")
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


def to_yaml(recipe: Recipe | GraphRecipe) -> str:
    """Every value, in the order of the dataclasses; ``load`` reads it back."""
    return yaml.safe_dump(to_mapping(recipe), sort_keys=False, allow_unicode=True)


COLUMNS = (
    "recipe", "optimiser", "base lr", "lr", "batch", "epochs", "warm-up", "decay", "layer decay", "smoothing",
    "MixUp", "CutMix", "augment", "drop path",
)  # fmt: skip


def row(name: str, recipe: Recipe | GraphRecipe) -> list[str]:
    """The values of the paper's tables, as the run will use them; – where a field has no such thing."""
    o, t, s = recipe.optimiser, recipe.targets, recipe.schedule
    images = isinstance(recipe, Recipe)
    values = (
        recipe.optimiser.base_lr if isinstance(recipe, Recipe) else None,
        o.lr, o.batch, s.epochs, s.warmup_epochs, o.weight_decay,
        recipe.optimiser.layer_decay if isinstance(recipe, Recipe) else None,
        t.smoothing, t.mixup if images else None, t.cutmix if images else None,
    )  # fmt: skip
    drop_path = f"{recipe.model.drop_path:g}" if isinstance(recipe, Recipe) else "–"
    numbers = ("–" if value is None else f"{value:g}" for value in values)
    return [name, o.name, *numbers, recipe.data.augment, drop_path]


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
