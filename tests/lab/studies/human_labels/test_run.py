"""People's votes: drawn without replacement, learned, and judged by votes nobody saw."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from softnce.lab.commands import study as study_command
from softnce.lab.data import votes
from softnce.lab.experiment.results import Row
from softnce.lab.studies.human_labels import page
from softnce.lab.studies.human_labels import run as human_labels
from softnce.lab.studies.human_labels.run import Run, agreement, perform

SMALL = Run("simulated", "soft-ce", 0, 1, hidden=32, batch=64, epochs=2, lr=3e-3)


HAS_DATA = os.path.isdir(os.path.join(os.environ.get("SOFTNCE_DATA", ""), "cifar10h"))


def test_agreement_by_hand():
    counts = torch.tensor([[3, 1], [0, 4]])
    labels = torch.tensor([1, 1])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / 2
    found = agreement(torch.tensor([[3.0, 1.0], [1e-30, 4.0]]).log(), labels, counts)
    assert found["kl"] == pytest.approx(0, abs=1e-6)
    assert found["cross_entropy"] == pytest.approx(entropy)
    assert found["top1"] == 0.5  # people chose another class than the label
    flat = agreement(torch.zeros(2, 2), labels, counts)
    assert flat["cross_entropy"] == pytest.approx(np.log(2))
    assert flat["kl"] == pytest.approx(np.log(2) - entropy)
    assert flat["kl_disputed"] == pytest.approx(np.log(2) - 2 * entropy)  # the one disputed image of two


def test_with_one_vote_cross_entropy_is_nll():
    assert perform(SMALL)["test"] == perform(replace(SMALL, method="nll"))["test"]


def test_a_seed_repeats_a_run_and_another_draws_other_votes():
    once = perform(replace(SMALL, votes=3))
    assert once == perform(replace(SMALL, votes=3))
    assert once["test"]["kl"] != perform(replace(SMALL, votes=3, seed=1))["test"]["kl"]


def test_missing_data_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    with pytest.raises(SystemExit) as error:
        study_command.main(["human-labels", "--preset", "paper", "--out", str(tmp_path / "out")])
    assert error.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_that_diverged_is_never_chosen():
    fine, lost = ({"held_out": {"cross_entropy": value}} for value in (0.4, None))
    rows = [Row("", {}, result, 0.0, "", {}) for result in (fine, lost)]
    assert human_labels.held_out(rows[0]) == -0.4
    assert human_labels.held_out(rows[1]) == float("-inf")


def test_bad_settings_are_named():
    for options, word in (({"votes": (-1,)}, "votes"), ({"draws": (0,)}, "draws"), ({"rates": ()}, "rates")):
        with pytest.raises(ValueError, match=word):
            human_labels.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(made):
    rows = made("human-labels", "--epochs", "1", "--seeds", "2")
    assert len(rows) == 7 * 3 * 2
    assert "simulated" in page.section(rows).summary


@pytest.mark.slow
@pytest.mark.skipif(not HAS_DATA, reason="needs cifar10h in the folder that SOFTNCE_DATA names")
def test_real_votes_are_learned_better_as_shares_than_as_their_majority():
    votes.load.cache_clear()
    parts = votes.load("cifar10h")
    assert [len(part) for part in (parts.train, parts.held_out, parts.test)] == [5000, 1000, 4000]
    run = Run("cifar10h", "soft-ce", 0, 0, hidden=128, batch=256, epochs=15, lr=1e-3)
    shares, label = (perform(replace(run, method=method))["test"]["kl"] for method in ("soft-ce", "nll"))
    assert shares < label - 0.005  # 0.214 and 0.232 were measured
