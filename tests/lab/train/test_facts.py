import json
from types import SimpleNamespace

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import softnce
from softnce.lab.train.facts import Facts
from softnce.lab.train.machine import Machine


def test_a_run_says_what_it_took(run):
    root, results = run
    facts = json.loads((root / "out" / "facts.json").read_text())
    (start,) = facts["starts"]
    assert facts["updates"] == start["updates"] == results["last"]["step"] == 8
    trained = start["seconds"] - start["validation_seconds"]
    assert 0 < trained <= facts["seconds"]
    assert abs(facts["rows_per_second"] - 8 * 32 / trained) < 0.01 * facts["rows_per_second"]
    assert start["versions"]["softnce"] == softnce.__version__
    assert {"torch", "lightning", "python"} <= start["versions"].keys()
    assert start["machine"]["accelerator"] == "cpu"


def test_tensorboard_has_the_settings(run):
    root, _ = run
    logged = EventAccumulator(str(root / "out" / "tensorboard")).Reload().summary_metadata
    assert "_hparams_/session_start_info" in logged
    settings = logged["_hparams_/session_start_info"].plugin_data.content
    assert b"optimiser.base_lr" in settings


TRAINER = SimpleNamespace(ckpt_path="last.ckpt", global_step=4, is_global_zero=True)


def test_damaged_facts_do_not_keep_a_run_from_going_on(tmp_path, capsys):
    (tmp_path / "facts.json").write_text("{")
    facts = Facts(tmp_path, Machine("cpu", 1, 1), 8)
    facts.on_train_start(TRAINER, None)
    facts.on_train_end(TRAINER, None)
    assert len(json.loads((tmp_path / "facts.json").read_text())["starts"]) == 1
    assert "facts.json is damaged" in capsys.readouterr().err


def test_a_full_disk_is_reported_by_what_it_ended(tmp_path):
    facts = Facts(tmp_path, Machine("cpu", 1, 1), 8)
    facts.on_train_start(TRAINER, None)
    (tmp_path / "facts.json.partial").mkdir()  # nothing can be written
    facts.on_exception(TRAINER, None, OSError("the first one"))
