"""``softnce report`` on folders that are not as they should be, and the claims on its page."""

import base64
import gzip
import re

import pytest

from softnce.lab import studies
from softnce.lab.commands.report import main as report
from softnce.lab.commands.study import main as study
from softnce.lab.experiment.claims import Finding

PLAIN = """
from softnce.lab.report.page import Section

ORDER = 5


def section(rows):
    return Section("Plain", "Nothing to see.", [])
"""


@pytest.fixture
def toys(install):
    """Studies ``one`` and ``two`` beside the real ones."""
    return {name: install(name) for name in ("one", "two")}


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


@pytest.mark.slow
def test_report_builds_one_self_contained_page(results):
    report([str(results)])
    page = (results / "index.html").read_text()
    assert (results / "figures" / "one-squares.png").stat().st_size > 5000
    assert (results / "figures" / "one-squares.pdf").stat().st_size > 5000
    for part in (
        "Squares",
        "They add up to 5.",
        "By hand.",
        "A &lt;/script&gt; paragraph.",
        "3 runs",
        "data:image/png;base64,",
    ):
        assert part in page
    # The results, the library that draws them and nothing from elsewhere.
    (packed,) = re.findall(r'<script type="application/gzip" id="plotly">([^<]+)</script>', page)
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed))
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", outside)
    assert not (results / "index.partial.html").exists()


@pytest.mark.slow
def test_one_study_only(results):
    (results / "two.jsonl").unlink()
    report([str(results)])
    page = (results / "index.html").read_text()
    assert "Squares of one" in page
    assert "Squares of two" not in page
    assert "<tr data-claim=" not in page  # claims without results are counted, not listed
    assert f"{sum(len(studies.load(name).claims) for name in studies.names())} more claims have no results" in page


def test_without_figures_nothing_to_draw_them_with(install, tmp_path):
    install("plain", page=PLAIN)
    study(["plain", "--out", str(tmp_path)])
    report([str(tmp_path)])
    assert 'id="plotly"' not in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_damaged_lines_are_named_and_the_rest_shown(results, capsys):
    lines = (results / "one.jsonl").read_text().splitlines()
    (results / "one.jsonl").write_text(
        "\n".join([lines[0], lines[1][:30], "[1, 2]", "", lines[2]]) + "\n" + lines[1][:9]
    )
    report([str(results)])
    damaged = re.findall(r"^warning: .*one\.jsonl:(\d+): damaged line", capsys.readouterr().err, re.M)
    assert damaged == ["2", "3", "6"]
    assert '<p class="summary">They add up to 4.</p>' in (results / "index.html").read_text()


@pytest.mark.slow
def test_a_study_that_stumbles_over_its_rows_is_named_and_the_others_shown(results, capsys):
    text = (results / "two.jsonl").read_text()
    (results / "two.jsonl").write_text(text.replace('"value"', '"valeu"'))
    error = fails([str(results)], capsys)
    assert re.fullmatch(
        r"softnce report: .*index\.html was written without two \(3 runs in two\.jsonl\): "
        r"KeyError: 'value' \(page\.py, line \d+\)\n",
        error,
    )
    page = (results / "index.html").read_text()
    assert "Squares of one" in page
    assert "Squares of two" not in page


@pytest.mark.slow
def test_a_study_without_a_readable_run_is_named(results, capsys):
    (results / "two.jsonl").write_text("{broken\n")
    assert "was written without two: two.jsonl has no readable run" in fails([str(results)], capsys)


def test_no_study_can_be_shown(results, capsys):
    (results / "one.jsonl").unlink()
    text = (results / "two.jsonl").read_text()
    (results / "two.jsonl").write_text(re.sub(r'"result": \{[^}]*\}', '"result": 3', text))
    assert "no page written: two (3 runs in two.jsonl): TypeError" in fails([str(results)], capsys)
    assert not (results / "index.html").exists()


@pytest.mark.slow
def test_a_claim_that_is_not_the_studys_is_an_error_that_names_it(results, toys, capsys):
    toys["one"].findings.found = {"small-batch-drop": Finding("x", "y", "reproduced")}
    error = fails([str(results)], capsys)
    assert (
        "one (3 runs in one.jsonl): claims: 'small-batch-drop' is not a claim of one; its claims are one-squares"
        in error
    )


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


@pytest.mark.slow
def test_what_cannot_be_written_is_named(results, capsys):
    (results / "index.html").mkdir()
    assert re.match(r"softnce report: cannot write .*index", fails([str(results)], capsys))


def test_an_empty_file_of_results_is_none(results):
    (results / "two.jsonl").write_text("")
    report([str(results)])
    page = (results / "index.html").read_text()
    assert "Squares of one" in page
    assert "Squares of two" not in page
