"""``softnce report`` on folders that are not as they should be, and the claims on its page."""

import re
import sys
import textwrap

import pytest

from softnce.lab import studies
from softnce.lab.commands.report import main as report
from softnce.lab.commands.study import main as study
from softnce.lab.experiment.claims import CLAIMS, Finding, checked
from softnce.lab.report.page import Section

TOY = '''
"""A study for tests."""
from dataclasses import dataclass

from softnce.lab.experiment.claims import Finding
from softnce.lab.report.page import Section
from softnce.lab.experiment.study import Outcome, StudyConfig

ORDER = 5
VERSION = 1
Config = StudyConfig
PRESETS = {"quick": Config(seeds=3)}
found = {}


@dataclass(frozen=True)
class Run:
    seed: int


def runs(config):
    return [Run(seed) for seed in range(config.seeds)]


def execute(todo, progress):
    for run in todo:
        yield Outcome(run, {"value": run.seed}, 0.5)


def section(rows):
    return Section("NAME", str(sum(row.result["value"] for row in rows)), [])


def claims(rows):
    return found
'''


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Studies ``one`` and ``two`` beside the real ones."""
    package = tmp_path / "more"
    package.mkdir()
    for name in ("one", "two"):
        (package / name).mkdir()
        (package / name / "__init__.py").touch()
        (package / name / "run.py").write_text(textwrap.dedent(TOY).replace("NAME", f"Study {name}"))
    monkeypatch.setattr(studies, "__path__", [*studies.__path__, str(package)])
    yield {name: studies.load(name).module for name in ("one", "two")}
    for name in ("one", "two"):
        sys.modules.pop(f"softnce.lab.studies.{name}", None)
        sys.modules.pop(f"softnce.lab.studies.{name}.run", None)


@pytest.fixture
def results(tmp_path, toys):
    """A folder with results of both."""
    out = tmp_path / "out"
    for name in ("one", "two"):
        study([name, "--out", str(out)])
    return out


def fails(argv, capsys) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit:
        report(argv)
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_one_study_only(results):
    (results / "two.jsonl").unlink()
    report([str(results)])
    page = (results / "index.html").read_text()
    assert "Study one" in page
    assert "Study two" not in page
    assert page.count("<tr data-claim=") == len(CLAIMS)
    assert 'id="plotly"' not in page, "no figures, nothing to draw them with"


def test_damaged_lines_are_named_and_the_rest_shown(results, capsys):
    lines = (results / "one.jsonl").read_text().splitlines()
    (results / "one.jsonl").write_text(
        "\n".join([lines[0], lines[1][:30], "[1, 2]", "", lines[2]]) + "\n" + lines[1][:9]
    )
    report([str(results)])
    damaged = re.findall(r"^warning: .*one\.jsonl:(\d+): damaged line", capsys.readouterr().err, re.M)
    assert damaged == ["2", "3", "6"]
    assert '<p class="summary">2</p>' in (results / "index.html").read_text()


def test_a_study_that_stumbles_over_its_rows_is_named_and_the_others_shown(results, capsys):
    text = (results / "two.jsonl").read_text()
    (results / "two.jsonl").write_text(text.replace('"value"', '"valeu"'))
    error = fails([str(results)], capsys)
    assert re.fullmatch(
        r"softnce report: .*index\.html was written without two \(3 runs in two\.jsonl\): "
        r"KeyError: 'value' \(two\.py, line \d+\)\n",
        error,
    )
    page = (results / "index.html").read_text()
    assert "Study one" in page
    assert "Study two" not in page


@pytest.mark.parametrize("text", ["", "{broken\n"])
def test_a_study_without_a_readable_run_is_named(results, capsys, text):
    (results / "two.jsonl").write_text(text)
    assert "was written without two: two.jsonl holds no run that can be read" in fails([str(results)], capsys)


def test_no_study_can_be_shown(results, capsys):
    (results / "one.jsonl").unlink()
    text = (results / "two.jsonl").read_text()
    (results / "two.jsonl").write_text(re.sub(r'"result": \{[^}]*\}', '"result": 3', text))
    assert "no page, for want of two (3 runs in two.jsonl): TypeError" in fails([str(results)], capsys)
    assert not (results / "index.html").exists()


def test_a_claim_that_is_not_the_studys_is_an_error_that_names_it(results, toys, capsys):
    toys["one"].found = {"small-batch-drop": Finding("x", "y", "reproduced")}
    error = fails([str(results)], capsys)
    assert "one (3 runs in one.jsonl): claims: 'small-batch-drop' is not a claim of one; its claims are none" in error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda out: None, "is not a directory"),
        (lambda out: out.write_text(""), "is not a directory"),
        (lambda out: out.mkdir(), "no results in"),
    ],
)
def test_folders_without_results(tmp_path, capsys, make, message):
    out = tmp_path / "nothing"
    make(out)
    error = fails([str(out)], capsys)
    assert message in error
    assert f"softnce study density --out {out}" in error
    assert error.count("\n") == 1


def test_what_cannot_be_written_is_named(results, capsys):
    (results / "index.html").mkdir()
    assert re.match(r"softnce report: cannot write .*index", fails([str(results)], capsys))


def test_claims_are_distinct_and_belong_to_studies():
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.command == f"softnce study {claim.study} --preset paper"
        assert claim.text.endswith(".")


def test_findings_are_checked():
    finding = Finding("1", "data", "reproduced")
    assert checked("density", {"density-gap": finding}) == {"density-gap": finding}
    with pytest.raises(ValueError, match="'density-gab' is not a claim of density; did you mean 'density-gap'"):
        checked("density", {"density-gab": finding})
    with pytest.raises(ValueError, match="verdict: got 'proved', need one of reproduced"):
        Finding("1", "data", "proved")


def test_figures_of_a_section_have_names_of_their_own():
    from softnce.lab.report.charts import Figure, Panel

    figures = [Figure("same", "", [Panel("", "", "", [])])] * 2
    with pytest.raises(ValueError, match="2 figures are named 'same'"):
        Section("t", "s", figures)
