"""docs/evidence.md says what the committed results say."""

from pathlib import Path

import pytest

from softnce.lab import studies
from softnce.lab.experiment import claims

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "paper"


@pytest.mark.slow
def test_the_claims_of_the_page_follow_from_the_committed_results(tmp_path):
    findings = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        (tmp_path / path.name).write_bytes(path.read_bytes())  # reading makes a lock file
        study = studies.load(path.stem)
        findings |= study.judge(study.results(tmp_path).rows())
    assert findings
    table = claims.as_markdown([claim for study in studies.in_order() for claim in study.claims], findings)
    assert table in (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
