"""Every study at its quick preset, without any data set, and the page of them all."""

import html
import math

import pytest

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.commands.report import build_report

JUDGED = ("density", "long-tail", "classes", "human-labels", "distillation", "information", "exact-loss")
"""Studies whose claims need no real data set: the quick preset says something about each of them."""


@pytest.mark.slow
def test_all_studies_make_their_page(tmp_path, monkeypatch):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    study_command.main(["all", "--preset", "quick", "--out", str(tmp_path)])
    written = build_report(tmp_path)  # fails if a study's results cannot be shown
    page = html.unescape(written.read_text(encoding="utf-8"))
    found = {}
    for study in map(studies.load, studies.names()):
        rows = study.results(tmp_path).rows()
        assert rows, study.name
        assert all(math.isfinite(row.seconds) for row in rows)
        assert study.page.section(rows).title in page
        found |= study.judge(rows)
    for name in JUDGED:
        assert {claim.key for claim in studies.load(name).claims} <= found.keys(), name
    decided = {key for key in found if found[key].verdict != "undecided" and key.startswith(("accuracy", "head"))}
    assert not decided  # digits decide nothing about the paper's images


@pytest.mark.parametrize("name", ["accuracy", "head", "noise-samples", "smoothing", "calibration"])
def test_missing_data_is_said_before_any_work(name, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(SystemExit):
        study_command.main([name, "--preset", "paper", "--out", str(tmp_path)])
    assert "SOFTNCE_DATA" in capsys.readouterr().err
