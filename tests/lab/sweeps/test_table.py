import csv
import io
import json
from dataclasses import replace

import pytest

from softnce.lab import recipes
from softnce.lab.commands import report
from softnce.lab.sweeps.table import as_csv, read_runs, table


@pytest.fixture
def folder(tmp_path):
    """Two learning rates with two seeds each, and a run that is not finished."""
    recipe = recipes.load("laptop/digits")
    for rate, seed, top1 in ((1e-3, 0, 0.5), (1e-3, 1, 0.7), (4e-3, 0, 0.8), (4e-3, 1, 0.9), (4e-3, 2, None)):
        out = tmp_path / "sweep" / f"{rate},{seed}"
        out.mkdir(parents=True)
        run = replace(recipe, seed=seed, optimiser=replace(recipe.optimiser, base_lr=rate))
        (out / "recipe.yaml").write_text(recipes.to_yaml(run))
        if top1 is None:
            continue
        (out / "results.json").write_text(json.dumps({"best": {"epoch": 3, "top1": top1}, "last": {"epoch": 9}}))
        (out / "facts.json").write_text(json.dumps({"seconds": 10.0 * seed, "rows_per_second": 100.0, "starts": []}))
    return tmp_path


def test_seeds_are_averaged(folder):
    shown = table(read_runs(folder))
    assert list(shown.header) == ["base_lr", "runs", "top1", "seconds", "rows/s"]
    # Student's t of one degree of freedom is 12.706; the standard errors are 0.1, 0.05 and 5
    assert shown.rows == [
        ["0.001", "2", "0.6000 ± 1.2706", "5.0 ± 63.5", "100 ± 0"],
        ["0.004", "2", "0.8500 ± 0.6353", "5.0 ± 63.5", "100 ± 0"],
    ]
    assert shown.title.startswith("4 runs, best epoch")


def test_the_test_split_counts_where_it_was_kept_apart(folder):
    path = next(folder.rglob("results.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"test": {"top1": 0.1}}))
    assert 0.1 in [run.measured["top1"] for run in read_runs(folder)]


def test_every_run_is_a_line(folder):
    lines = list(csv.DictReader(io.StringIO(as_csv(read_runs(folder)))))
    assert [line["best.top1"] for line in lines] == ["0.5", "0.7", "0.8", "0.9"]
    assert lines[1]["seed"] == "1"
    assert lines[1]["folder"] == "sweep/0.001,1"
    assert lines[1]["seconds"] == "10.0"


def test_the_command_prints_and_writes_the_table(folder, capsys):
    report.main([str(folder)])
    printed = capsys.readouterr().out
    assert "0.6000" in printed
    assert "| 0.004 | 2 | 0.8500 ± 0.6353 |" in (folder / "runs.md").read_text()
    assert len((folder / "runs.csv").read_text().splitlines()) == 5


def test_runs_that_are_not_finished_make_no_table(folder, capsys):
    for path in folder.rglob("results.json"):
        path.unlink()
    with pytest.raises(SystemExit) as stop:
        report.main([str(folder)])
    assert stop.value.code == 2
    assert "no run in" in capsys.readouterr().err
