"""Every study at its quick preset, without any data set."""

import html
import math

import pytest

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.commands.report import build_report

JUDGED = ("density", "long-tail", "human-labels", "distillation", "information")
"""Studies whose claims need no real data set: the quick preset says something about each of them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", studies.names())
def test_the_quick_preset_makes_a_page(name, made, tmp_path, monkeypatch):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    study, rows = studies.load(name), made(name, "--preset", "quick")
    assert rows
    assert all(math.isfinite(row.seconds) for row in rows)
    page = html.unescape(build_report(tmp_path).read_text(encoding="utf-8"))
    assert study.page.section(rows).title in page
    found = study.judge(rows)
    if name in JUDGED:
        assert {claim.key for claim in study.claims} <= found.keys()
    if name in ("accuracy", "head"):  # digits decide nothing about the paper's images
        assert {finding.verdict for finding in found.values()} <= {"undecided"}


@pytest.mark.parametrize("name", ["accuracy", "head", "noise-samples", "smoothing", "calibration"])
def test_missing_data_is_said_before_any_work(name, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(SystemExit):
        study_command.main([name, "--preset", "paper", "--out", str(tmp_path)])
    assert "SOFTNCE_DATA" in capsys.readouterr().err
