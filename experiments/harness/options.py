"""Typed options: a frozen dataclass is the command line, its help, and the configuration that names a run.

    @dataclass(frozen=True)
    class Options:
        seeds: int = option(3, "number of seeds", least=1)
        lr: float = option(1e-3, "learning rate", above=0)
        grid: Grid = field(default_factory=Grid)          # nested: --grid.lrs

jsonargparse reads the values. Ranges are those of the declarations; `check` applies them to any such dataclass.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Literal, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter

Value = TypeVar("Value")
LIMITS = {"least": (ge, "at least"), "above": (gt, "more than"), "most": (le, "at most"), "below": (lt, "less than")}


def option(default: Value, help: str, *, fewest: int = 0, **limits: float) -> Value:
    """A dataclass field with its default and one line of help.

    Args:
        default: an immutable value.
        help: shown by ``--help``.
        fewest: number of values that a tuple needs at least.
        limits: ``least``, ``above``, ``most`` or ``below``, of the number or of each number of a tuple.
    """
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits, "fewest": fewest})


def later(default: Value, help: str) -> Value:
    """A field added after runs were saved: while it has its default it is left out of a run's configuration and id."""
    return dataclasses.field(default=default, metadata={"help": help, "later": True})


def check(options: Any, prefix: str = "") -> None:
    """Raises a ValueError that names the first field outside its declared range."""
    for field in dataclasses.fields(options):
        name, value = f"{prefix}{field.name}", getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            check(value, f"{name}.")
            continue
        values = value if isinstance(value, tuple | list) else (value,)
        if len(values) < field.metadata.get("fewest", 0):
            raise ValueError(f"{name}: got {len(values)} values, need at least {field.metadata['fewest']}")
        for key, limit in field.metadata.get("limits", {}).items():
            holds, words = LIMITS[key]
            for number in values:
                if number is not None and not holds(number, limit):
                    raise ValueError(f"{name}: got {number:g}, need {words} {limit:g}")


def to_mapping(run: Any) -> dict[str, Any]:
    """The dataclass as nested dictionaries of JSON values, without `later` fields at their defaults."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                f.name: plain(getattr(value, f.name))
                for f in dataclasses.fields(value)
                if f.init and not (f.metadata.get("later") and getattr(value, f.name) == f.default)
            }
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    result = plain(run)
    assert isinstance(result, dict)
    return result


@dataclasses.dataclass(frozen=True)
class Where:
    """Options of every experiment: which runs, and where they are computed and written."""

    preset: Literal["quick", "paper"] = option("quick", "set of defaults; --help shows its values")
    out: str = option("results/reproduce", "folder of the results; experiments share it")
    engine: Literal["processes", "ray"] = option("processes", "one run per core of this machine, or of a Ray cluster")
    address: str = option("", "of the Ray cluster; auto: the one of this machine; empty: that, or a new one")


class _Help(DefaultHelpFormatter):
    """Help without Python types."""

    def _get_help_string(self, action: Any) -> str:
        default = action.default
        if action.dest == "help" or default is None or default == "==SUPPRESS==":
            return str(action.help or "")
        shown = "[" + ", ".join(map(_short, default)) + "]" if isinstance(default, tuple | list) else _short(default)
        return f"{action.help} (default: {shown})".replace("%", "%%")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) or "empty"


def parse(
    argv: Sequence[str], *, prog: str, description: str, presets: Mapping[str, Value] | None = None
) -> tuple[Where, Value | None]:
    """The options of the command line. Raises a one-line ValueError; ``--help`` prints and exits.

    Args:
        argv: ``--name value`` or ``--name=value``.
        prog: name of the command in messages.
        description: first paragraph of the help.
        presets: the options of an experiment by the name of their preset; None for those of every experiment alone.
    """
    parser = ArgumentParser(
        prog=prog, description=description, formatter_class=_Help, exit_on_error=False, allow_abbrev=False
    )
    parser.add_class_arguments(Where, None)
    if presets:
        chosen = presets[_preset(argv, list(presets))]
        parser.add_class_arguments(type(chosen), None)
        parser.set_defaults(dotted(chosen))
    helps = _helps(Where()) | (_helps(chosen) if presets else {})
    for action in parser._actions:
        action.help = helps.get(action.dest, action.help)
    titles = {str(Where): "of every experiment", str(type(chosen) if presets else None): "of this experiment"}
    for group in parser._action_groups:
        title = str(group.title).rstrip(":")
        is_nested = title.startswith("<class") and title not in titles
        group.title = title.rpartition(".")[2].rstrip("'>").lower() if is_nested else titles.get(title, title)
    try:
        values = parser.parse_args(list(argv))
    except Exception as error:  # jsonargparse raises several kinds
        raise ValueError(" ".join(str(error).split())) from None
    where = _built(Where(), values)
    options = _built(chosen, values) if presets else None
    for part in (where, options):
        if part is not None:
            check(part)
    return where, options


def _preset(argv: Sequence[str], names: list[str]) -> str:
    given = names[0]
    for place, word in enumerate(argv):
        if word.startswith("--preset="):
            given = word.partition("=")[2]
        elif word == "--preset" and place + 1 < len(argv):
            given = argv[place + 1]
    if given not in names:
        raise ValueError(f"preset: got {given!r}, need one of {', '.join(names)}")
    return given


def dotted(options: Any, prefix: str = "") -> dict[str, Any]:
    """The values by their dotted names."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        inner = dataclasses.is_dataclass(value)
        flat |= dotted(value, f"{prefix}{field.name}.") if inner else {f"{prefix}{field.name}": value}
    return flat


def _helps(options: Any, prefix: str = "") -> dict[str, str]:
    helps: dict[str, str] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            helps[f"{prefix}{field.name}"] = "YAML file with these options"
            helps |= _helps(value, f"{prefix}{field.name}.")
        else:
            helps[f"{prefix}{field.name}"] = field.metadata.get("help", "")
    return helps


def _built(like: Value, values: Any, prefix: str = "") -> Value:
    """A dataclass as ``like`` with the parsed values."""
    arguments = {}
    for field in dataclasses.fields(like):  # type: ignore[arg-type]
        key, default = f"{prefix}{field.name}", getattr(like, field.name)
        arguments[field.name] = _built(default, values, f"{key}.") if dataclasses.is_dataclass(default) else values[key]
    return type(like)(**arguments)
