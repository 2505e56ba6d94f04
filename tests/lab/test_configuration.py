from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import yaml

from softnce.lab.configuration import from_args, from_mapping, option, required, to_mapping


@dataclass(frozen=True)
class Optimiser:
    """How the weights move."""

    name: Literal["adam", "sgd"] = option("adam", "update rule")
    lr: float = option(1e-3, "learning rate; 10 % more is fine", above=0)


@dataclass(frozen=True)
class Schedule:
    optimiser: Optimiser = field(default_factory=Optimiser)
    epochs: int = option(500, "passes over the data")


@dataclass(frozen=True)
class Study:
    seeds: int = option(10, "number of repetitions", least=1)
    alignments: tuple[float, ...] = option((0.0, 10.0), "mode alignment in %", least=0, below=100, fewest=1)
    out: Path = field(default=Path("results"), metadata={"help": "where results go"})
    stop_after: int | None = option(None, "patience in epochs")
    verbose: bool = option(False, "say more")
    weights: dict[str, float] = field(default_factory=dict, metadata={"help": "weight of each class"})
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True)
class WithRequired:
    data: str = required("directory of images")
    seeds: int = option(1, "repetitions")


def read(*argv: str, **options) -> Study:
    return from_args(Study, argv, prog="softnce try", description="Try 100 % of it.", **options)


def complaint(capsys: pytest.CaptureFixture[str], *argv: str, **options) -> str:
    with pytest.raises(SystemExit) as exit:
        read(*argv, **options)
    assert exit.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("softnce try: ")
    assert captured.err.count("\n") == 1, "one line"
    return captured.err


def test_no_arguments_give_the_defaults():
    assert read() == Study()


def test_dotted_fields_of_every_type():
    config = read(
        *(
            "--seeds",
            "3",
            "--alignments",
            "[0, 40, 80]",
            "--out",
            "there",
            "--stop_after=7",
            "--verbose",
            "true",
        ),
        *("--schedule.optimiser.lr", "1e-1", "--schedule.optimiser.name=sgd", "--schedule.epochs", "5"),
        *("--weights.cat", "2", "--weights.dog", "0.5"),
    )
    assert config == Study(
        seeds=3,
        alignments=(0.0, 40.0, 80.0),
        out=Path("there"),
        stop_after=7,
        verbose=True,
        weights={"cat": 2.0, "dog": 0.5},
        schedule=Schedule(Optimiser("sgd", 0.1), 5),
    )


def test_optional_can_be_unset():
    assert read("--stop_after", "null", defaults=Study(stop_after=3)).stop_after is None


def test_defaults_come_from_a_configuration():
    base = Study(seeds=4, schedule=Schedule(Optimiser("sgd", 1.0)))
    assert read("--schedule.optimiser.lr", "2", defaults=base) == Study(
        seeds=4, schedule=Schedule(Optimiser("sgd", 2.0))
    )


def test_presets_give_defaults_and_the_first_is_used():
    presets = {"quick": Study(seeds=1), "paper": Study(seeds=10, alignments=(80.0,))}
    assert read(presets=presets).seeds == 1
    assert read("--seeds", "2", "--preset", "paper", presets=presets) == Study(seeds=2, alignments=(80.0,))


def test_unknown_preset(capsys):
    line = complaint(capsys, "--preset", "papr", presets={"quick": Study(), "paper": Study()})
    assert "--preset: got 'papr', need one of quick, paper" in line


def test_help_documents_every_field(capsys):
    with pytest.raises(SystemExit) as exit:
        read("--help")
    assert exit.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Try 100 % of it." in text
    for key in ("seeds", "alignments", "out", "stop_after", "schedule.epochs", "schedule.optimiser.lr"):
        assert f"--{key}" in text
    for sentence in (
        "number of repetitions",
        "mode alignment in %",
        "10 % more is fine",
        "default: 500",
    ):
        assert sentence in text


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--seed", "--seeds"),
        ("--schedule.optimiser.lrr", "--schedule.optimiser.lr"),
        ("--lr", "--schedule.optimiser.lr"),
        ("--schedule.epoch", "--schedule.epochs"),
        ("--alignment", "--alignments"),
    ],
)
def test_unknown_key_names_the_nearest(capsys, given, meant):
    assert f"unknown option {given}; did you mean {meant}?" in complaint(capsys, given, "3")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seeds", "many"], "--seeds: got 'many', need int"),
        (["--seeds", "1.5"], "--seeds: got '1.5', need int"),
        (["--seeds"], "--seeds: got nothing, need int"),
        (["--schedule.optimiser.lr", "fast"], "--schedule.optimiser.lr: got 'fast', need float"),
        (["--schedule.optimiser.lr", "inf"], "--schedule.optimiser.lr: got 'inf', need a finite number"),
        (
            ["--schedule.optimiser.name", "lion"],
            "--schedule.optimiser.name: got 'lion', need one of adam, sgd",
        ),
        (["--alignments", "[0, x]"], "--alignments: got '[0, x]', need a list of float, written [a, b, …]"),
        (["--stop_after", "soon"], "--stop_after: got 'soon', need int or null"),
        (["--verbose", "perhaps"], "--verbose: got 'perhaps', need true or false"),
        (["--weights.cat", "heavy"], "--weights: got {'weights.cat': 'heavy'}, need a mapping to float"),
        (["stray"], "unexpected argument 'stray'"),
        (["--seeds", "0"], "seeds: got 0, need at least 1"),
        (["--schedule.optimiser.lr", "0"], "schedule.optimiser.lr: got 0, need more than 0"),
        (["--alignments", "[5, 100]"], "alignments: got 100, need at least 0 and less than 100"),
        (["--alignments", "[]"], "alignments: got 0 values, need at least 1"),
    ],
)
def test_bad_value_names_key_value_and_type(capsys, argv, message):
    assert message in complaint(capsys, *argv)


def test_missing_required_field(capsys):
    with pytest.raises(SystemExit):
        from_args(WithRequired, [], prog="softnce try", description="")
    assert "missing option --data: directory of images" in capsys.readouterr().err
    assert from_args(WithRequired, ["--data", "x"], prog="p", description="") == WithRequired("x")
    with pytest.raises(ValueError, match=r"^recipe\.yaml: missing option data: directory of images$"):
        from_mapping(WithRequired, {"seeds": 2}, source="recipe.yaml")


def test_mapping_round_trip():
    config = read("--schedule.optimiser.name", "sgd", "--alignments", "[5]", "--out", "a/b", "--weights.cat", "1")
    text = yaml.safe_dump(to_mapping(config))
    assert from_mapping(Study, yaml.safe_load(text), source="x") == config


def test_mapping_keeps_given_defaults():
    config = from_mapping(Study, {"schedule": {"epochs": 2}}, source="x", defaults=Study(seeds=3))
    assert config == Study(seeds=3, schedule=Schedule(epochs=2))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"seed": 3}, "unknown option seed; did you mean seeds?"),
        (
            {"schedule": {"optimizer": {"lr": 1}}},
            "unknown option schedule.optimizer; did you mean schedule.optimiser",
        ),
        (
            {"schedule": {"optimiser": {"lrr": 1}}},
            "unknown option schedule.optimiser.lrr; did you mean schedule.opt",
        ),
        ({"schedule": 3}, "schedule: got 3, need a mapping of fields"),
        ({"schedule": {"optimiser": {"lr": "fast"}}}, "schedule.optimiser.lr: got 'fast', need float"),
        ({"alignments": [0, "x"]}, "alignments: got [0, 'x'], need a list of float"),
        ({"seeds": 0}, "seeds: got 0, need at least 1"),
        ([1], "need a mapping of fields, got [1]"),
    ],
)
def test_bad_mapping(mapping, message):
    with pytest.raises(ValueError) as error:
        from_mapping(Study, mapping, source="recipe.yaml")
    assert str(error.value).startswith("recipe.yaml: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_field_without_help_is_a_programming_error():
    @dataclass
    class Bare:
        lr: float = 1.0

    with pytest.raises(TypeError, match=r"Bare\.lr has no help"):
        from_args(Bare, [], prog="p", description="")
