"""Both models train; bad settings are named."""

import json

import pytest

from softnce.lab.commands import study as study_command
from softnce.lab.experiment import search
from softnce.lab.losses import LOSSES
from softnce.lab.studies.accuracy import findings
from softnce.lab.studies.accuracy.run import Config, networks, perform


@pytest.mark.slow
def test_from_command_to_page(made):
    rows = made("accuracy", "--epochs", "1", "--rates", "[0.003]", "--seeds", "2")
    (part,) = findings.parts(rows)
    assert tuple(part.losses) == tuple(LOSSES)
    assert findings.claims(rows) == {}  # digits decide nothing


@pytest.mark.slow
def test_the_small_network_is_trained_on_images(coloured_images):
    coloured_images(200, classes=10)
    (run, *_) = search.trials(networks(Config(batch=20, image_epochs=1)), [1e-3])
    result = perform(run)
    assert 0 <= result["test"]["top1"] <= 1
    assert set(result["held_out"]) >= {"top1", "top5", "ece"}
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize(("options", "message"), [({"rates": ()}, "rates: got"), ({"batch": 1}, "batch: got 1")])
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_an_unknown_data_set_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        study_command.main(["accuracy", "--out", str(tmp_path), "--data", "mnist"])
    assert "data: got 'mnist', need one of digits" in capsys.readouterr().err
