"""docs/evidence.md and docs/which-loss.md say what the committed results say."""

import re
from pathlib import Path

import pytest

from softnce.lab import studies
from softnce.lab.experiment import choices, claims

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "paper"
MOST = 18
"""Figures in the summary of a claim; all others are in the section of its study."""
SEVERAL = {"expected-classes", "links-quality"}
"""Claims about several problems at once."""


@pytest.mark.slow
def test_the_claims_of_the_page_follow_from_the_committed_results(tmp_path):
    findings, advised = {}, {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        (tmp_path / path.name).write_bytes(path.read_bytes())  # reading makes a lock file
        study = studies.load(path.stem)
        rows = study.results(tmp_path).rows()
        findings |= study.judge(rows)
        advised[study.name] = study.advise(rows)
    assert findings
    chains = {
        key: finding.ours for key, finding in findings.items() if len(re.findall(r"\d+(?:\.\d+)?", finding.ours)) > MOST
    }
    assert chains.keys() <= SEVERAL, "a sentence with the figures that matter"
    table = claims.as_markdown([claim for study in studies.in_order() for claim in study.claims], findings)
    assert table in (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    in_order = {study.name: advised[study.name] for study in studies.in_order() if study.name in advised}
    assert choices.as_markdown(in_order) in (ROOT / "docs" / "which-loss.md").read_text(encoding="utf-8")
