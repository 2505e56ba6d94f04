import csv
import io
import json
from dataclasses import replace

import pytest

from softnce.lab import recipes
from softnce.lab.commands import report
from softnce.lab.sweeps.table import as_csv, left_out, read_runs, table

RECIPE = recipes.load("laptop/digits")


def write(out, recipe, top1):
    """The folder of a run; of one that is not finished without ``top1``."""
    out.mkdir(parents=True)
    (out / "recipe.yaml").write_text(recipes.to_yaml(recipe))
    if top1 is not None:
        (out / "results.json").write_text(json.dumps({"best": {"epoch": 3, "top1": top1}, "last": {"epoch": 9}}))
        facts = {"seconds": 10.0 * recipe.seed, "rows_per_second": 100.0, "starts": []}
        (out / "facts.json").write_text(json.dumps(facts))


@pytest.fixture
def folder(tmp_path):
    """Two learning rates with two seeds each, and a run that is not finished."""
    for rate, seed, top1 in ((1e-3, 0, 0.5), (1e-3, 1, 0.7), (4e-3, 0, 0.8), (4e-3, 1, 0.9), (4e-3, 2, None)):
        run = replace(RECIPE, seed=seed, optimiser=replace(RECIPE.optimiser, base_lr=rate))
        write(tmp_path / "sweep" / f"{rate},{seed}", run, top1)
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


def test_a_repeated_seed_counts_once_and_is_named(tmp_path):
    """As after a run and a sweep in one folder; the number of loader processes does not make another run."""
    other = replace(RECIPE, data=replace(RECIPE.data, workers=0), compute=replace(RECIPE.compute, progress=False))
    write(tmp_path / "a", RECIPE, 0.5)
    write(tmp_path / "b" / "seed=0", other, 0.6)
    write(tmp_path / "b" / "seed=1", replace(other, seed=1), 0.7)
    runs = read_runs(tmp_path)
    assert table(runs).title.startswith("2 runs")
    assert table(runs).rows[0][:2] == ["2", "0.6000 ± 1.2706"]  # of 0.5 and 0.7
    named = f"{tmp_path}/b/seed=0 (as {tmp_path}/a)"
    assert left_out(tmp_path, runs) == [f"not counted, same setting, seed and fold as another run: {named}"]
    assert len(as_csv(runs).splitlines()) == 4


def test_runs_on_different_data_are_not_pooled(tmp_path):
    for name, top1 in (("mine", 0.5), ("theirs", 0.7)):
        data = replace(RECIPE.data, kind="arrays", dir=tmp_path / name)
        write(tmp_path / "runs" / name, replace(RECIPE, data=data), top1)
    shown = table(read_runs(tmp_path / "runs"))
    assert list(shown.header[:2]) == ["dir", "runs"]
    assert [row[:2] for row in shown.rows] == [[str(tmp_path / name), "1"] for name in ("mine", "theirs")]


def test_another_precision_is_another_setting_and_another_micro_batch_is_not(tmp_path):
    for name, change in (("a", {"precision": "32"}), ("b", {"precision": "bf16"}), ("c", {"micro_batch": 2})):
        write(tmp_path / name, replace(RECIPE, compute=replace(RECIPE.compute, **change)), 0.5)
    runs = read_runs(tmp_path)
    assert [row[:2] for row in table(runs).rows] == [["32", "1"], ["bf16", "1"]]
    assert left_out(tmp_path, runs) == [
        f"not counted, same setting, seed and fold as another run: {tmp_path / 'c'} (as {tmp_path / 'a'})"
    ]


def test_unfinished_runs_are_counted(folder):
    assert left_out(folder, read_runs(folder)) == ["left out, not finished: 1 run"]


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
    assert "left out, not finished: 1 run" in printed
    assert "| 0.004 | 2 | 0.8500 ± 0.6353 |" in (folder / "runs.md").read_text()
    assert len((folder / "runs.csv").read_text().splitlines()) == 5


def test_a_closed_pipe_is_no_failed_write(folder, monkeypatch):
    """As after ``| head``; :func:`softnce.cli.main` ends quietly then."""

    def closed(text):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", closed)
    with pytest.raises(BrokenPipeError):
        report.main([str(folder)])


def test_runs_that_are_not_finished_make_no_table(folder, capsys):
    for path in folder.rglob("results.json"):
        path.unlink()
    with pytest.raises(SystemExit) as stop:
        report.main([str(folder)])
    assert stop.value.code == 2
    assert "no run in" in capsys.readouterr().err
