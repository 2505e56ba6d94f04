"""Typed options: a frozen dataclass is the command line, its help, and the configuration that names a run.

    @dataclass(frozen=True)
    class Options:
        seeds: int = option(3, "number of seeds", least=1)
        lr: float = option(1e-3, "learning rate", above=0)
        grid: Grid = field(default_factory=Grid)          # nested: --grid.lrs

jsonargparse reads the values. Ranges are those of the declarations; `check` applies them to any such dataclass.
"""

import argparse
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Literal, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter

Value = TypeVar("Value")
LIMITS = {"least": (ge, "at least"), "above": (gt, "more than"), "most": (le, "at most"), "below": (lt, "less than")}


def option(default: Value, help: str, *, fewest: int = 0, of: Collection[Any] = (), **limits: float) -> Value:
    """A dataclass field with its default and one line of help.

    Args:
        default: an immutable value.
        help: shown by ``--help``.
        fewest: number of values that a tuple needs at least.
        of: the values that it, or each value of a tuple, can have; empty: any.
        limits: ``least``, ``above``, ``most`` or ``below``, of the number or of each number of a tuple.
    """
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits, "fewest": fewest, "of": of})


def later(default: Value, help: str, **limits: float) -> Value:
    """A field added after runs were saved: while it has its default it is left out of a run's configuration and id."""
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits, "later": True})


def leaves(options: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Dotted name, field and value of every option, also of dataclasses inside."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field, value


def dotted(options: Any) -> dict[str, Any]:
    """The values by their dotted names."""
    return {name: value for name, _, value in leaves(options)}


def check(options: Any) -> None:
    """Raises a ValueError that names the first field outside its declared range or values."""
    for name, field, value in leaves(options):
        values = value if isinstance(value, tuple | list) else (value,)
        if len(values) < field.metadata.get("fewest", 0):
            raise ValueError(f"{name}: got {len(values)} values, need at least {field.metadata['fewest']}")
        allowed = field.metadata.get("of")
        if allowed and (strange := [one for one in values if one not in allowed]):
            raise ValueError(f"{name}: got {strange[0]!r}, need one of {', '.join(map(str, allowed))}")
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

    return dict(plain(run))


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
        return f"{action.help} (default: {shown})"


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
        prog=prog, usage=f"{prog} [options]", description=description, formatter_class=_Help, exit_on_error=False,
        allow_abbrev=False, epilog="Several numbers: --name '[1, 2]'. A repeated command does what is missing.",
    )  # fmt: skip
    parser.add_class_arguments(Where, None)
    parts: list[Any] = [Where()]
    titles = {str(Where): "of every experiment"}
    if presets:
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        first.add_argument("--preset", nargs="?")
        preset = first.parse_known_args(argv)[0].preset or next(iter(presets))
        if preset not in presets:
            raise ValueError(f"preset: got {preset!r}, need one of {', '.join(presets)}")
        parts.append(presets[preset])
        parser.add_class_arguments(type(parts[1]), None)
        parser.set_defaults(dotted(parts[1]))
        titles[str(type(parts[1]))] = "of this experiment"
    helps = {name: field.metadata.get("help", "") for part in parts for name, field, _ in leaves(part)}
    helps["help"] = "show this text"
    for action in parser._actions:
        action.help = helps.get(action.dest, "YAML file with these options")
    for group in parser._action_groups:
        title = str(group.title).rstrip(":")
        group.title = titles.get(title, title.rpartition(".")[2].rstrip("'>").lower())
    try:
        values = parser.parse_args(list(argv))
    except Exception as error:  # jsonargparse raises several kinds
        raise ValueError(" ".join(str(error).split())) from None
    where, *options = (_built(part, values) for part in parts)
    for part in (where, *options):
        check(part)
    return where, options[0] if options else None


def _built(like: Any, values: Any, prefix: str = "") -> Any:
    """A dataclass as ``like`` with the parsed values."""
    arguments = {}
    for field in dataclasses.fields(like):
        key, default = f"{prefix}{field.name}", getattr(like, field.name)
        arguments[field.name] = _built(default, values, f"{key}.") if dataclasses.is_dataclass(default) else values[key]
    return type(like)(**arguments)
