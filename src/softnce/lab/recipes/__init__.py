"""Recipes: one YAML file per training run, checked against :class:`~softnce.lab.recipes.recipe.Recipe`, or
:class:`~softnce.lab.recipes.recipe.TextRecipe` or :class:`~softnce.lab.recipes.recipe.GraphRecipe` where ``data.kind``
is one of text or of graphs.

A file may ``inherit`` another (a path relative to itself) and then says only what differs.
"""

from pathlib import Path
from typing import Any

import yaml

from softnce.cli import did_you_mean
from softnce.lab import losses
from softnce.lab.configuration import from_mapping, to_mapping
from softnce.lab.recipes.recipe import KINDS, AnyRecipe, Recipe

FOLDER = Path(__file__).parent
DATA_SETS = ("imagenet", "tiny-imagenet", "cifar100")
PAPER = tuple(f"{data}/{loss}" for data in DATA_SETS for loss in losses.PAPER)


def names() -> list[str]:
    """The recipes that come with the package: the paper's 15 cells first."""
    found = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.yaml"))
    return [*PAPER, *(name for name in found if name not in PAPER)]


def load(name: str) -> AnyRecipe:
    """The recipe of this name, or in this YAML file."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        if path == Path(name):
            raise ValueError(f"no file {name}")
        raise ValueError(f"no recipe {name!r};{did_you_mean(name, names())} `softnce recipes` lists them")
    return from_plain(read(path), source=str(name))


def from_plain(mapping: dict[str, Any], *, source: str) -> AnyRecipe:
    """The recipe in a mapping, of the type that its ``data.kind`` needs; a ValueError names what is wrong."""
    data = mapping.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in (None, *KINDS):
        raise ValueError(f"{source}: data.kind: got {kind!r}, need one of {', '.join(KINDS)}")
    recipe_type: Any = Recipe if kind is None else KINDS[kind]
    return from_mapping(recipe_type, mapping, source=source)


def read(path: Path, heirs: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in a file, laid over those it inherits."""
    path = path.resolve()
    if path in heirs:
        raise ValueError(f"{path.name} inherits itself: {' → '.join(p.name for p in (*heirs, path))}")
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        inherited = f", inherited by {heirs[-1].name}" if heirs else ""
        raise ValueError(f"cannot read {path}{inherited}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if mapping is None:
        raise ValueError(f"{path} is empty")
    if not isinstance(mapping, dict):
        raise ValueError(f"{path} must hold a mapping of fields, got {type(mapping).__name__}")
    parent = mapping.pop("inherit", None)
    if parent is None:
        return mapping
    if not isinstance(parent, str):
        raise ValueError(f"{path}: inherit: got {parent!r}, need the path of a recipe file")
    return overlay(read(path.parent / parent, (*heirs, path)), mapping)


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, group by group."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = overlay(merged[key], value) if both else value
    return merged


def to_yaml(recipe: AnyRecipe) -> str:
    """Every value, in the order of the dataclasses; ``load`` reads it back."""
    return yaml.safe_dump(to_mapping(recipe), sort_keys=False, allow_unicode=True)
