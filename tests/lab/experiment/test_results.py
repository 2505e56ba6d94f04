import json
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest

from softnce.lab.experiment.results import Results, run_id


def config(seed: int) -> dict:
    return {"loss": "nll", "seed": seed, "lr": 0.1}


def test_a_run_is_named_by_its_configuration():
    assert run_id("s", 1, {"a": 1, "b": [1.0, 2]}) == run_id("s", 1, {"b": [1, 2.0], "a": 1.0})
    names = {
        run_id("s", 1, {"a": 1}),
        run_id("s", 1, {"a": 2}),
        run_id("s", 1, {"b": 1}),
        run_id("s", 2, {"a": 1}),
        run_id("t", 1, {"a": 1}),
    }
    assert len(names) == 5


def test_rows_come_back_with_everything(tmp_path):
    Results(tmp_path, "toy").append(config(3), {"kl": 0.25, "curve": [1.0, 0.5]}, seconds=1.5)
    [row] = Results(tmp_path, "toy").rows()
    assert row.config == config(3)
    assert row.result == {"kl": 0.25, "curve": [1.0, 0.5]}
    assert row.seconds == 1.5
    assert {"softnce", "torch", "python"} <= set(row.versions)
    assert row.time.endswith("+00:00")


def test_a_finished_run_is_known_by_study_version_and_configuration(tmp_path):
    results = Results(tmp_path, "toy")
    results.append(config(0), {"kl": 1.0}, 0.0)
    assert results.finished(config(0))
    assert not results.finished(config(1))
    assert not Results(tmp_path, "other").finished(config(0))
    assert not Results(tmp_path, "toy", version=2).finished(config(0))


def test_the_first_result_of_a_run_counts(tmp_path):
    first, second = Results(tmp_path, "toy"), Results(tmp_path, "toy")
    first.append(config(0), {"kl": 1.0}, 0.0)
    assert second.append(config(0), {"kl": 2.0}, 0.0).result == {"kl": 1.0}
    assert len((tmp_path / "toy.jsonl").read_text().splitlines()) == 1


def test_other_processes_rows_are_seen(tmp_path):
    mine, theirs = Results(tmp_path, "toy"), Results(tmp_path, "toy")
    assert mine.rows() == []
    theirs.append(config(1), {"kl": 1.0}, 0.0)
    assert [row.config for row in mine.rows()] == [config(1)]


@pytest.mark.parametrize("damage", [b'{"id": "ab', b"not json at all", b'{"study": "toy"}', b"[1, 2]", b"\xff\xfe"])
def test_a_damaged_line_is_reported_skipped_and_kept(tmp_path, damage):
    results = Results(tmp_path, "toy")
    results.append(config(0), {"kl": 1.0}, 0.0)
    path = tmp_path / "toy.jsonl"
    with path.open("ab") as file:
        file.write(damage + b"\n")
    with pytest.warns(UserWarning, match=r"toy\.jsonl:2: damaged line"):
        results.append(config(1), {"kl": 2.0}, 0.0)
    with pytest.warns(UserWarning, match=r"toy\.jsonl:2: damaged line"):
        rows = Results(tmp_path, "toy").rows()
    assert [row.config["seed"] for row in rows] == [0, 1]
    assert damage in path.read_bytes().split(b"\n")


def test_a_line_torn_by_a_kill_does_not_swallow_the_next(tmp_path):
    results = Results(tmp_path, "toy")
    results.append(config(0), {"kl": 1.0}, 0.0)
    path = tmp_path / "toy.jsonl"
    with path.open("ab") as file:
        file.write(b'{"id": "abc", "resu')
    with pytest.warns(UserWarning, match=r"toy\.jsonl:2: damaged line"):
        assert len(Results(tmp_path, "toy").rows()) == 1
    with pytest.warns(UserWarning, match=r"toy\.jsonl:2: damaged line"):
        results.append(config(1), {"kl": 2.0}, 0.0)
    assert len(results.rows()) == 2
    assert path.read_bytes().split(b"\n")[1] == b'{"id": "abc", "resu'


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path):
    Results(tmp_path, "toy").append(config(0), {"kl": float("nan"), "curve": [float("inf"), 1.0]}, 0.0)
    text = (tmp_path / "toy.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["result"] == {"kl": None, "curve": [None, 1.0]}


def append_many(directory: Path, first: int, count: int) -> None:
    warnings.simplefilter("error")
    results = Results(directory, "toy")
    for seed in range(first, first + count):
        results.append(config(seed), {"kl": seed, "padding": "x" * 5000}, 0.0)


@pytest.mark.slow
def test_processes_share_a_directory(tmp_path):
    # Ranges overlap by half: every run once, no line torn.
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=append_many, args=(tmp_path, first, 40)) for first in (0, 20, 40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    rows = Results(tmp_path, "toy").rows()
    assert sorted(row.config["seed"] for row in rows) == list(range(80))
    assert len((tmp_path / "toy.jsonl").read_text().splitlines()) == 80


def test_unwritable_directory_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^out: cannot write .*toy\.jsonl: "):
        Results(tmp_path / "file", "toy")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_directory_is_one_clear_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"^out: cannot write .*toy\.jsonl: Permission denied"):
        Results(tmp_path, "toy")


def test_a_study_without_runs_leaves_no_file(tmp_path):
    results = Results(tmp_path / "out", "squares")
    assert results.rows() == []
    assert not results.finished({"seed": 0})
    assert not results.path.exists()
    results.append({"seed": 0}, {"value": 1}, 0.1)
    assert results.finished({"seed": 0})
