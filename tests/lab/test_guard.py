"""The committed evidence keeps its meaning: ids of runs, findings and verdicts of ``results/paper``, whatever moves.

``golden.json`` holds what the studies computed from the committed rows: for every claim its verdict and the numbers of
its finding, for every table the numbers of its cells, for every curve its length, sum and extremes. Words may change,
numbers may not. After new runs: ``python tests/lab/test_guard.py`` writes it anew, and the difference is to be read.
"""

import json
import math
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from softnce.lab import studies
from softnce.lab.configuration import later, option, to_mapping
from softnce.lab.experiment.results import run_id
from softnce.lab.report import charts
from softnce.lab.report.page import Table

PAPER = Path(__file__).parents[2] / "results" / "paper"
GOLDEN = Path(__file__).with_name("golden.json")
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-−+]?\d+)?(?!\w)")
STUDIES = sorted(path.stem for path in PAPER.glob("*.jsonl") if path.stem in studies.names())


def numbers(text: str) -> list[float]:
    return [float(found.replace("−", "-").replace(",", "")) for found in NUMBER.findall(text)]


def curve(values: object) -> list[float] | None:
    """Length, sum and extremes of a series of numbers; of names, its length."""
    if values is None:
        return None
    flat = [v for row in values for v in (row if isinstance(row, list | tuple) else [row])]
    finite = [float(v) for v in flat if isinstance(v, int | float) and math.isfinite(v)]
    return [len(flat), math.fsum(finite), min(finite), max(finite)] if finite else [len(flat)]


def mark(item: charts.Mark) -> dict[str, object]:
    places = ("x", "y", "low", "high", "values")
    return {
        name: curve(value) if isinstance(value, list | tuple) else value
        for name in places
        if (value := getattr(item, name, None)) is not None
    }


@cache
def rows(study: str):
    return studies.load(study).results(PAPER).rows()


def computed(study: str) -> dict[str, object]:
    """The numbers of a study's claims, tables and figures."""
    found = studies.load(study)
    section = found.page.section(rows(study))
    return {
        "runs": len(rows(study)),
        "claims": {
            key: {"verdict": finding.verdict, "numbers": numbers(finding.ours)}
            for key, finding in found.judge(rows(study)).items()
        },
        "tables": [
            [numbers(cell) for row in block.rows for cell in row]
            for block in section.blocks
            if isinstance(block, Table)
        ],
        "figures": {
            block.name: [[mark(item) for item in panel.marks] for panel in block.panels]
            for block in section.blocks
            if isinstance(block, charts.Figure)
        },
    }


@cache
def golden() -> dict[str, dict[str, object]]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def same(ours: object, theirs: object) -> bool:
    """Equal, numbers to rounding."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        is_list = isinstance(ours, list | tuple) and len(ours) == len(theirs)
        return is_list and all(map(same, ours, theirs))
    if isinstance(theirs, float) and not isinstance(ours, bool) and isinstance(ours, int | float):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)
    return ours == theirs


def test_every_study_with_results_is_in_the_golden_file():
    assert set(STUDIES) <= golden().keys()


@pytest.mark.parametrize("study", STUDIES)
def test_claims_keep_their_verdicts_and_numbers(study):
    assert same(computed(study)["claims"], golden()[study]["claims"])


@pytest.mark.parametrize("study", STUDIES)
def test_tables_and_figures_keep_their_numbers(study):
    ours, theirs = computed(study), golden()[study]
    assert ours["runs"] == theirs["runs"]
    for table in theirs["tables"]:
        assert any(same(mine, table) for mine in ours["tables"]), table
    for name, panels in theirs["figures"].items():
        assert same(ours["figures"].get(name), panels), name


@pytest.mark.parametrize("study", STUDIES)
def test_ids_follow_from_the_committed_configurations(study):
    version = studies.load(study).run.VERSION
    for line in (PAPER / f"{study}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["version"] == version:
            assert run_id(study, version, row["config"]) == row["id"]


@pytest.mark.parametrize("study", STUDIES)
def test_the_paper_preset_finds_nothing_to_do(study):
    module, there = studies.load(study).run, {row.id for row in rows(study)}
    config = module.PRESETS["paper"]
    stages = [module.runs(config)]
    if follow_up := getattr(module, "follow_up", None):
        stages.append(follow_up(config, rows(study)))
    ids = [{run_id(study, module.VERSION, to_mapping(run)) for run in stage} for stage in stages]
    for stage in ids:
        assert stage
        assert stage <= there
    if study != "nodes" or "SOFTNCE_DATA" in os.environ:  # without their files the citation graphs are left out
        assert set.union(*ids) == there


def test_a_field_added_later_is_left_out_of_the_id_while_it_has_its_default():
    @dataclass(frozen=True)
    class Before:
        lr: float = option(0.1, "learning rate")

    @dataclass(frozen=True)
    class After:
        lr: float = option(0.1, "learning rate")
        momentum: float = later(0.0, "momentum")

    @dataclass(frozen=True)
    class Around:
        inner: After = field(default_factory=After)

    assert to_mapping(After()) == to_mapping(Before())
    assert to_mapping(After(momentum=0.9)) == {"lr": 0.1, "momentum": 0.9}
    assert to_mapping(Around()) == {"inner": {"lr": 0.1}}
    assert run_id("s", 1, to_mapping(After())) == run_id("s", 1, to_mapping(Before()))
    assert run_id("s", 1, to_mapping(After(momentum=0.9))) != run_id("s", 1, to_mapping(Before()))


if __name__ == "__main__":
    lines = (f"{json.dumps(study)}: {json.dumps(computed(study), ensure_ascii=False)}" for study in STUDIES)
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"{GOLDEN}\n")
