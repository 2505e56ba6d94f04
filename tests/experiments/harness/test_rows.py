"""Rows: ids, later fields, and files that were damaged in every way."""

import json
from dataclasses import dataclass, field

import pytest

from experiments.harness import later, option, to_mapping
from experiments.harness.rows import Results, run_id


@pytest.fixture
def results(tmp_path):
    results = Results(tmp_path, "study")
    for seed in range(12):
        results.append({"seed": seed, "loss": {"name": "nll"}}, {"test": {"top1": seed / 12}, "course": [0.1, 0.2]}, 1)
    return results


def again(results, version=1):
    """Rows and problems as another process reads them."""
    fresh = Results(results.path.parent, "study", version)
    return fresh.rows(), fresh.problems


def with_value(**values):
    return lambda line: json.dumps(json.loads(line) | values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line[:40], "Invalid control character"),
        (lambda line: "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        (lambda line: "3", "not a mapping"),
        (with_value(id=["a", "list"]), "id is ['a', 'list']"),
        (with_value(result="long"), "result is 'long'"),
        (with_value(config={"seed": 99}), "not that of its configuration"),
        (lambda line: line.replace('"top1": 0.25', '"top1": NaN'), "NaN is no JSON"),
        (lambda line: line.replace('"config"', '"settings"'), "config is missing"),
    ],
)
def test_a_damaged_line_is_named_and_skipped(results, change, words):
    lines = results.path.read_text().splitlines()
    lines[3] = change(lines[3])
    results.path.write_text("\n".join(lines) + "\n")
    rows, problems = again(results)
    assert [row.config["seed"] for row in rows] == [0, 1, 2, *range(4, 12)]
    assert len(problems) == 1
    assert problems[0].startswith(f"{results.path}:4: skipped, ")
    assert words in problems[0]
    assert len(problems[0]) < 250


def test_bytes_that_are_no_text(results):
    results.path.write_bytes(b"\xff\xfe\x00\n" + results.path.read_bytes())
    assert [len(found) for found in again(results)] == [12, 1]


def test_a_torn_last_line_keeps_its_own_line(results):
    with results.path.open("a") as file:
        file.write('{"id": "abc')
    Results(results.path.parent, "study").append({"seed": 99}, {"test": {"top1": 0.5}}, 1)
    assert [len(found) for found in again(results)] == [13, 1]


def test_the_first_row_of_a_run_counts(results):
    results.append({"seed": 0, "loss": {"name": "nll"}}, {"test": {"top1": 1.0}}, 1)
    assert len(results.path.read_text().splitlines()) == 12
    assert again(results, version=2) == ([], [])


def test_infinite_results_are_none(results):
    results.append({"seed": 50}, {"test": {"top1": float("inf")}}, 1)
    assert results.rows()[-1].result == {"test": {"top1": None}}


def test_later_fields_leave_ids_alone():
    @dataclass(frozen=True)
    class Before:
        lr: float = option(0.1, "learning rate")

    @dataclass(frozen=True)
    class After(Before):
        momentum: float = later(0.0, "momentum")

    @dataclass(frozen=True)
    class Around:
        inner: After = field(default_factory=After)

    assert to_mapping(Around()) == {"inner": {"lr": 0.1}}
    assert run_id("s", 1, to_mapping(After())) == run_id("s", 1, to_mapping(Before()))
    assert run_id("s", 1, to_mapping(After(momentum=0.9))) != run_id("s", 1, to_mapping(Before()))
    assert run_id("s", 1, {"a": 1, "b": 2.5}) == run_id("s", 1, {"b": 2.5, "a": 1.0})
