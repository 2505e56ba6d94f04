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
import difflib
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


def check(options: Any, prefix: str = "") -> None:
    """Raises a ValueError that names the first field outside its declared range or values."""
    for name, field, value in leaves(options, prefix):
        values = value if isinstance(value, tuple | list) else (value,)
        if len(values) < field.metadata.get("fewest", 0):
            raise ValueError(f"{name}: got {len(values)} values, need at least {field.metadata['fewest']}")
        allowed = field.metadata.get("of")
        if allowed and (strange := [one for one in values if one not in allowed]):
            meant = near(strange[0], [one for one in allowed if isinstance(one, str)])
            raise ValueError(f"{name}: got {strange[0]!r}, need one of {', '.join(map(str, allowed))}{meant}")
        for key, limit in field.metadata.get("limits", {}).items():
            holds, words = LIMITS[key]
            for number in values:
                if number is not None and not holds(number, limit):
                    raise ValueError(f"{name}: got {number:g}, need {words} {limit:g}")


def near(name: str, known: Collection[str]) -> str:
    """The known name that may have been meant, as the end of a message; "" without any."""
    found = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
    return f", did you mean {found[0]}?" if found else ""


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
        shown = list(action.default) if isinstance(action.default, tuple) else action.default
        if action.dest == "help" or shown is None or shown == "==SUPPRESS==":
            return str(action.help or "")
        return f"{action.help} (default: {'empty' if shown == '' else shown})"


def parser_of(prog: str, description: str = "", **groups: Any) -> ArgumentParser:
    """A parser of the fields of dataclasses, by titles of groups; their values are the defaults."""
    parser = ArgumentParser(
        prog=prog, usage=f"{prog} [options]", description=description, formatter_class=_Help, exit_on_error=False,
        allow_abbrev=False, epilog="Several numbers: --name '[1, 2]'. A repeated command does what is missing.",
    )  # fmt: skip
    for title, options in groups.items():
        group = parser.add_argument_group(title.replace("_", " "))
        for name, field, value in leaves(options):
            group.add_argument(f"--{name}", type=field.type, default=value, help=field.metadata.get("help", ""))
    return parser


def parsed(parser: ArgumentParser, argv: Sequence[str], *like: Any) -> list[Any]:
    """Dataclasses like those given with the values of the command line; a one-line ValueError names a fault."""
    try:
        values = parser.parse_args(list(argv))
    except Exception as error:  # jsonargparse raises several kinds
        raise ValueError(" ".join(str(error).split())) from None
    found = [_built(part, values) for part in like]
    for part in found:
        check(part)
    return found


def parse(
    argv: Sequence[str], *, prog: str, description: str, presets: Mapping[str, Value] | None = None
) -> tuple[Where, Value | None]:
    """The options of the command line. Raises a one-line ValueError; ``--help`` prints and exits.

    Args:
        presets: the options of an experiment by the name of their preset; None for those of every experiment alone.
    """
    groups: dict[str, Any] = {"of_every_experiment": Where()}
    if presets:
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        first.add_argument("--preset", nargs="?")
        preset = first.parse_known_args(argv)[0].preset or next(iter(presets))
        if preset not in presets:
            raise ValueError(f"preset: got {preset!r}, need one of {', '.join(presets)}")
        groups["of_this_experiment"] = presets[preset]
    where, *options = parsed(parser_of(prog, description, **groups), argv, *groups.values())
    return where, options[0] if options else None


def _built(like: Any, values: Any, prefix: str = "") -> Any:
    """A dataclass as ``like`` with the parsed values."""
    arguments = {}
    for field in dataclasses.fields(like):
        key, default = f"{prefix}{field.name}", getattr(like, field.name)
        arguments[field.name] = _built(default, values, f"{key}.") if dataclasses.is_dataclass(default) else values[key]
    return type(like)(**arguments)
