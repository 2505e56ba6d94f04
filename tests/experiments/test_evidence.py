"""The committed rows: all are read, none is damaged, and what they say is what the documentation shows."""

import json
from pathlib import Path

import pytest

from experiments.harness.experiment import load, names
from experiments.harness.report import EVIDENCE, TABLES, evidence, linked
from experiments.harness.rows import run_id

HERE = Path(__file__).parent
CHANGES = HERE.parents[1] / "results" / "changes.md"


@pytest.fixture(scope="module")
def found():
    return evidence(EVIDENCE)


def test_every_row_is_used(found):
    assert found.problems == []
    for name in found.experiments:
        committed = (EVIDENCE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(load(name).results(EVIDENCE).rows()) == len(committed)


@pytest.mark.parametrize("name", [name for name in names() if (EVIDENCE / f"{name}.jsonl").is_file()])
def test_the_paper_preset_generates_committed_runs_only(name):
    from experiments.harness.options import to_mapping

    experiment = load(name)
    committed = experiment.results(EVIDENCE).ids()
    wanted = {run_id(name, experiment.version, to_mapping(run)) for run in experiment.runs(experiment.presets["paper"])}
    assert wanted
    assert wanted <= committed


def test_claims_are_those_of_before_except_for_listed_changes(found):
    before = {claim["key"]: claim for claim in json.loads((HERE / "claims_before.json").read_text(encoding="utf-8"))}
    listed = {line.split("|")[1].strip() for line in CHANGES.read_text(encoding="utf-8").splitlines() if "|" in line}
    changed = set()
    for experiment in found.experiments.values():
        for claim in experiment.claims:
            old, finding = before.get(claim.key), found.findings.get(claim.key)
            now = (claim.text, finding and finding.ours, finding and finding.on, finding and finding.verdict)
            then = old and tuple(
                (old[part] or "").replace("\N{NO-BREAK SPACE}", " ") for part in ("text", "ours", "on", "verdict")
            )
            if now != then:
                changed.add(claim.key)
    gone = {key for key, old in before.items() if old["experiment"] in found.experiments} - found.findings.keys()
    assert (changed | gone) - listed == set()


def test_pages_show_the_computed_tables(found):
    computed = linked(found)
    stale = [p.name for p, text in computed.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    assert stale == [], "python -m experiments report"
    assert {path.name for path in TABLES.glob("*.md")} == {path.name for path in computed}
