import json

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import softnce


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
