"""People's votes: drawn without replacement, learned, and judged by votes nobody saw."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.configuration import to_mapping
from softnce.lab.data import votes
from softnce.lab.experiment import study as experiment
from softnce.lab.experiment.results import Row
from softnce.lab.report import charts, drawing
from softnce.lab.studies.human_labels import findings, page
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


def rows_with(kl, data="cifar10h"):
    """Rows of three seeds with a given KL for each method at all votes, and 0.3 for all with one vote."""
    config = human_labels.Config(data=data, votes=(1, 0), draws=(2,), rates=(1e-3,))
    found = []
    for setting in human_labels.settings(config):
        for seed in range(3):
            value = (kl[setting.method] if setting.votes == 0 else 0.3) + 0.01 * seed
            scores = {"top1": 0.9, "cross_entropy": value + 0.16, "kl": value, "kl_disputed": 2 * value, "ece": 0.02}
            result = {"held_out": scores, "test": scores, "scaled": scores, "temperature": 1.0}
            run = replace(setting, lr=1e-3, seed=seed)
            found.append(Row(str(len(found)), to_mapping(run), result, 1.0, "", {}))
    return found


KL = {"nll": 0.24, "soft-ce": 0.21, "soft-dist-info-nce": 0.212, "soft-target-info-nce": 0.22, "averaged": 0.21}
KL["expected-info-nce"] = 0.211


@pytest.mark.parametrize(
    ("kl", "data", "verdict"),
    [
        (KL, "cifar10h", "beyond"),
        (KL, "simulated", "undecided"),
        (dict.fromkeys(KL, 0.24), "cifar10h", "not reproduced"),
    ],
)
def test_verdict(kl, data, verdict):
    found = studies.load("human-labels").judge(rows_with(kl, data))["human-labels"]
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("kl", "data", "verdict"),
    [(0.211, "cifar10h", "beyond"), (0.215, "cifar10h", "not reproduced"), (0.211, "simulated", "undecided")],
)
def test_verdict_on_expected_info_nce(kl, data, verdict):
    rows = rows_with(KL | {"expected-info-nce": kl}, data)
    assert studies.load("human-labels").judge(rows)["expected-votes"].verdict == verdict


def test_the_page_says_the_numbers_of_the_rows():
    rows = rows_with(KL)
    section = page.section(rows)
    text = section.summary + " ".join(block for block in section.blocks if isinstance(block, str))
    assert "−0.0300 [−0.0300, −0.0300]" in text  # soft target cross-entropy against NLL
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)
    assert page.section(rows[:1]).title
    assert findings.claims(rows[:1]) == {}


def test_bad_settings_are_named():
    for options, word in (({"votes": (-1,)}, "votes"), ({"draws": (0,)}, "draws"), ({"rates": ()}, "rates")):
        with pytest.raises(ValueError, match=word):
            human_labels.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "one_per_core", map)
    command = ["human-labels", "--out", str(tmp_path), "--epochs", "1", "--seeds", "2"]
    for _ in range(2):
        study_command.main(command)
    assert capsys.readouterr().out.count(": 0 runs to do") == 2
    rows = studies.load("human-labels").results(tmp_path).rows()
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
