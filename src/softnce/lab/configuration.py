"""Typed configuration: one dataclass defines the command line, the YAML file and the help text.

    @dataclass(frozen=True)
    class Optimiser:
        \"\"\"How the weights are updated.\"\"\"

        name: Literal["adam", "sgd"] = option("adam", "update rule")
        lr: float = option(1e-3, "learning rate", above=0)

    @dataclass(frozen=True)
    class Fit:
        epochs: int = option(500, "passes over the data", least=1)
        optimiser: Optimiser = field(default_factory=Optimiser)      # nested: a group of --help

    config = from_args(Fit, ["--optimiser.lr", "0.1"], prog="softnce fit", description="Fit a model.")

Any field can be set by its dotted name. jsonargparse reads the values. The error for an unknown key names the nearest
known one, the error for a wrong value the type or range needed, always on one line. Rules between fields belong in the
dataclass's ``__post_init__``, as a ValueError that names the field.
"""

import argparse
import dataclasses
import difflib
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from operator import ge, gt, le, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union

from jsonargparse import ArgumentParser, Namespace

from softnce.cli import SIMILAR, refuse

Config = TypeVar("Config")


LIMITS = {"least": (ge, "at least"), "above": (gt, "more than"), "most": (le, "at most"), "below": (lt, "less than")}


def option(
    default: Config,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    fewest: int = 0,
) -> Config:
    """A dataclass field with its (immutable) default and the sentence ``--help`` shows for it.

    For a list, dictionary or path write ``field(default_factory=…, metadata={"help": …})``.

    Args:
        default: value if none is given.
        help: one line, without a full stop.
        least, above, most, below: range of the number, or of each number of a list; None is in every range.
        fewest: number of values that a list needs at least.

    The range is enforced by :func:`from_args`, :func:`from_mapping` and :func:`check_ranges`.
    """
    given = {"least": least, "above": above, "most": most, "below": below}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits, "fewest": fewest})


def later(default: Config, help: str) -> Config:
    """An :func:`option` that was added to a dataclass after runs described by it had been saved.

    While it has its default, :func:`to_mapping` leaves it out: those runs keep their configuration, hence their id.
    """
    return dataclasses.field(default=default, metadata={"help": help, "later": True})


def required(help: str) -> Any:
    """A dataclass field without default; if it is missing, the error names it."""
    return dataclasses.field(metadata={"help": help})


def from_args(
    config_type: type[Config],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    defaults: Config | None = None,
    presets: Mapping[str, Config] | None = None,
) -> Config:
    """Read a configuration from command-line arguments ``--dotted.field value``.

    Args:
        config_type: the dataclass to fill.
        argv: the arguments, without the name of the program.
        prog: name of the program in messages.
        description: first paragraph of ``--help``.
        defaults: values of fields that are not given; ``config_type``'s own where None.
        presets: named configurations; adds ``--preset NAME``, whose configuration then gives the defaults.
            The first is used when none is named.

    Prints help and exits 0 for ``--help``; exits 2 with one line on bad input.
    """
    try:
        if presets is not None:
            if defaults is not None:
                raise TypeError("from_args: give defaults or presets, not both")
            defaults = presets[_preset_named(argv, presets)]
        parser = _parser(config_type, defaults, prog=prog, description=description)
        if presets is not None:
            names = tuple(presets)
            parser.add_argument(
                "--preset",
                type=Literal[names],
                default=names[0],
                help="named set of defaults; with --help, shows its values",
            )
        given = _options(argv)
        return _checked(config_type, parser, lambda: parser.parse_args(list(argv)), given, dashes="--")
    except ValueError as error:
        refuse(f"{prog}: {error}")


def from_mapping(
    config_type: type[Config], mapping: Mapping[str, Any], *, source: str, defaults: Config | None = None
) -> Config:
    """Read a configuration from nested dictionaries, such as a parsed YAML file.

    Raises a one-line ValueError that starts with ``source`` (usually the file's name) on an unknown key, a
    value of the wrong type, a missing field or a broken rule between fields.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{source}: need a mapping of fields, got {mapping!r}")
    parser = _parser(config_type, defaults, prog=source, description="")
    try:
        given = _flatten(mapping, _leaves(config_type))
        return _checked(config_type, parser, lambda: parser.parse_object(dict(mapping)), given, dashes="")
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def check_ranges(config: Any, prefix: str = "") -> None:
    """Raise a one-line ValueError that names the field if a value of the dataclass is outside its declared range."""
    for field in dataclasses.fields(config):
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{name}.")
            continue
        numbers = value if isinstance(value, list | tuple) else [value]
        limits, fewest = field.metadata.get("limits", {}), field.metadata.get("fewest", 0)
        if len(numbers) < fewest:
            raise ValueError(f"{name}: got {len(numbers)} values, need at least {fewest}")
        for number in numbers:
            if number is not None and not all(LIMITS[key][0](number, limit) for key, limit in limits.items()):
                wanted = " and ".join(f"{LIMITS[key][1]} {limit:.10g}" for key, limit in limits.items())
                raise ValueError(f"{name}: got {number:.10g}, need {wanted}")


def to_mapping(config: Any) -> dict[str, Any]:
    """The configuration as nested dictionaries of JSON values; ``from_mapping`` reads it back."""

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

    result = plain(config)
    assert isinstance(result, dict)
    return result


def dotted(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested dictionaries by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def field_types(config_type: type) -> dict[str, Any]:
    """Types of all fields by their dotted names."""
    return {name: leaf.type for name, leaf in _leaves(config_type).items()}


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A field that holds a value, at its dotted place."""

    type: Any
    help: str
    default: Any
    group: str  # dotted name of the dataclass around it


def _leaves(config_type: type, defaults: Any = None, prefix: str = "") -> dict[str, _Leaf]:
    hints = typing.get_type_hints(config_type)
    leaves: dict[str, _Leaf] = {}
    for field in dataclasses.fields(config_type):
        if not field.init:
            continue
        key = f"{prefix}{field.name}"
        if defaults is not None:
            default = getattr(defaults, field.name)
        elif field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = dataclasses.MISSING
        if dataclasses.is_dataclass(hints[field.name]):
            inner = None if default is dataclasses.MISSING else default
            leaves |= _leaves(hints[field.name], inner, f"{key}.")
        elif not field.metadata.get("help"):
            raise TypeError(f"{config_type.__name__}.{field.name} has no help: declare it with option(default, help)")
        else:
            leaves[key] = _Leaf(hints[field.name], field.metadata["help"], default, prefix.rstrip("."))
    return leaves


def _parser(config_type: type, defaults: Any, *, prog: str, description: str) -> ArgumentParser:
    parser = ArgumentParser(prog=prog, description=description, exit_on_error=False)
    groups: dict[str, Any] = {}
    for key, leaf in _leaves(config_type, defaults).items():
        if leaf.group not in groups:
            groups[leaf.group] = parser.add_argument_group(leaf.group) if leaf.group else parser
        is_required = leaf.default is dataclasses.MISSING
        groups[leaf.group].add_argument(
            f"--{key}",
            type=str if leaf.type is Path else leaf.type,
            required=is_required,
            default=None if is_required else str(leaf.default) if leaf.type is Path else leaf.default,
            help=leaf.help,
        )
    return parser


def _checked(
    config_type: type[Config],
    parser: ArgumentParser,
    parse: Callable[[], Namespace],
    given: Mapping[str, Any],
    dashes: str,
) -> Config:
    """Parse; every error becomes a one-line ValueError."""
    leaves = _leaves(config_type)
    known = [action.dest for action in parser._actions]
    for key in given:
        # An entry of a dictionary field, --field.entry, is known by its field.
        if key not in known and not any(key.startswith(f"{field}.") for field in known):
            near = _nearest(key, known)
            raise ValueError(f"unknown option {dashes}{key}" + (f"; did you mean {dashes}{near}?" if near else ""))
    try:
        values = parse()
    except (argparse.ArgumentError, TypeError, ValueError) as error:
        raise ValueError(_one_line(str(error), leaves, given, dashes)) from None
    config = _build(config_type, {key: values[key] for key in leaves})
    check_ranges(config)
    return config


def _build(config_type: type[Config], values: Mapping[str, Any], prefix: str = "") -> Config:
    hints = typing.get_type_hints(config_type)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(config_type):  # type: ignore[arg-type]
        key, hint = f"{prefix}{field.name}", hints[field.name]
        if not field.init:
            continue
        if dataclasses.is_dataclass(hint):
            arguments[field.name] = _build(typing.cast(type, hint), values, f"{key}.")
        else:
            arguments[field.name] = Path(values[key]) if hint is Path else values[key]
    return config_type(**arguments)


def _options(argv: Sequence[str]) -> dict[str, Any]:
    """What was given, by name: every option takes one value, ``--name value`` or ``--name=value``."""
    given: dict[str, Any] = {}
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word in ("-h", "--help"):
            continue
        if not word.startswith("--"):
            raise ValueError(f"unexpected argument {word!r}; options are written --name value")
        name, equals, value = word[2:].partition("=")
        if not equals and position < len(argv) and not argv[position].startswith("--"):
            value = argv[position]
            position += 1
        given[name] = value
    return given


def _preset_named(argv: Sequence[str], presets: Mapping[str, Any]) -> str:
    name = _options(argv).get("preset", next(iter(presets)))
    if name not in presets:
        raise ValueError(f"--preset: got {name!r}, need {_type_name(Literal[tuple(presets)])}")
    return str(name)


def _flatten(mapping: Mapping[str, Any], leaves: Mapping[str, _Leaf], prefix: str = "") -> dict[str, Any]:
    groups = {leaf.group for leaf in leaves.values()}
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        key = f"{prefix}{name}"
        if key in leaves or not any(group == key or group.startswith(f"{key}.") for group in groups):
            flat[key] = value
        elif isinstance(value, Mapping):
            flat |= _flatten(value, leaves, f"{key}.")
        else:
            raise ValueError(f"{key}: got {value!r}, need a mapping of fields")
    return flat


def _nearest(key: str, known: Sequence[str]) -> str | None:
    """The option most like ``key``; None if none is like it."""

    def likeness(candidate: str) -> float:
        # The last part alone often tells more than the whole: "lr" means "optimiser.lr".
        pairs = ((key, candidate), (key.split(".")[-1], candidate.split(".")[-1]))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    near = max((candidate for candidate in known if candidate != "help"), key=likeness)
    return near if likeness(near) >= SIMILAR else None


def _one_line(message: str, leaves: Mapping[str, _Leaf], given: Mapping[str, Any], dashes: str) -> str:
    if found := re.search(r'Parser key "([^"]+)"', message):
        key = found[1]
        if key in leaves:
            value = given.get(key, {name: given[name] for name in given if name.startswith(f"{key}.")})
            finite = str(value).lower().lstrip("+-") not in ("nan", "inf", "infinity")
            return f"{dashes}{key}: got {value!r}, need {_type_name(leaves[key].type) if finite else 'a finite number'}"
    if found := re.search(r"argument --(\S+): expected one argument", message):
        wanted = _type_name(leaves[found[1]].type) if found[1] in leaves else "a value"
        return f"--{found[1]}: got nothing, need {wanted}"
    for key, leaf in leaves.items():
        if leaf.default is dataclasses.MISSING and key not in given:
            return f"missing option {dashes}{key}: {leaf.help}"
    return " ".join(message.split())


def _type_name(wanted: Any) -> str:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join("null" if part is NoneType else _type_name(part) for part in arguments)
    if origin in (list, tuple, set):
        item = arguments[0] if arguments else str
        if typing.get_origin(item) in (list, tuple, set):
            return f"a list of lists of {_type_name(typing.get_args(item)[0])}, written [[a, b], …]"
        return f"a list of {_type_name(item)}, written [a, b, …]"
    if origin is dict:
        return "a mapping to " + _type_name(arguments[1])
    names = {int: "int", float: "float", bool: "true or false", str: "text", Path: "a path"}
    return names.get(wanted, getattr(wanted, "__name__", str(wanted)))
