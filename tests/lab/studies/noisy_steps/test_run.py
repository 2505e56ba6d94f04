"""What is trained."""

import pytest

from softnce.lab import studies
from softnce.lab.studies.noisy_steps import run as steps


@pytest.mark.slow
def test_features_are_as_they_are(tmp_path):
    study = studies.load("noisy-steps")
    study.make(steps.Config(seeds=1, data="digits", batch=64, epochs=1, rates=(3.0, 10.0), out=str(tmp_path)))
    rows = study.results(tmp_path).rows()
    assert len(rows) == 6
    assert len({row.result["test"]["nll"] for row in rows}) == 6
    assert all(row.result["test"]["top1"] > 0.5 for row in rows)
