import math

import numpy as np
import pytest
import torch

from softnce import Candidates, NoiseCandidates, SoftTargets, functional
from softnce.information import mutual_information, smoothed_joint
from softnce.lab.commands import study as study_command
from softnce.lab.commands.report import build_report
from softnce.lab.studies.information import run as information

TABLE = information.Table(states=6, classes=5)
SMALL = ["--table.states", "6", "--table.classes", "5", "--batch_size", "1024", "--steps", "40"]


def run(**changes):
    settings = {
        "table": TABLE,
        "loss": "soft-dist-info-nce",
        "critic": "free",
        "epsilon": 0.1,
        "candidates": 256,
        "seed": 0,
        "steps": 150,
        "batch_size": 1024,
        "lr": 0.1,
        "dimension": 0,
    }
    return information.Run(**settings | changes)


def test_losses_from_counts_are_the_librarys():
    """ℓ of each pair beside a set of negatives, against the loss function on those very labels."""
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    negatives = torch.tensor([0, 2, 2, 1, 2])
    found = information._losses(scores, torch.bincount(negatives, minlength=4).double()[None])[0]
    for y in range(4):
        labels = torch.full((3,), y)
        candidates = SoftTargets.from_labels(negatives, 4)
        expected = functional.info_nce(scores, labels, candidates=candidates, reduction="none")
        torch.testing.assert_close(found[:, y], expected, rtol=0, atol=1e-13)


def test_others_of_expected_info_nce_are_the_librarys():
    """ℓ averaged over the labels a soft target could draw, against the loss function on those very soft targets."""
    epsilon, m, size = 0.3, 7.0, 6
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p_y = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    its = run(loss="expected-info-nce", epsilon=epsilon, candidates=size, noise_count=m)
    counts = information._others(its, p_y, 1, np.random.default_rng(3))
    drawn = information._counts(p_y, 1, size - 1, np.random.default_rng(3))[0]
    others = SoftTargets.from_labels(torch.arange(4).repeat_interleave(drawn.long()), 4, epsilon, p_y)
    for y in range(4):
        target = SoftTargets.from_labels(torch.full((3,), y), 4, epsilon, p_y)
        candidates = _Given(others) + NoiseCandidates(m)
        expected = functional.expected_info_nce(
            scores + p_y.log(), target, p_y, candidates=candidates, reduction="none"
        )
        alpha = target.dense(torch.float64)
        found = (alpha * information._losses(scores, counts)[0]).sum(1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class _Given(Candidates):
    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, batch, own, generator=None):
        return [self.held], None


def test_expected_info_nce_bounds_with_the_marginal_and_not_with_another_noise():
    found = information.perform(run(loss="expected-info-nce", candidates=2, noise_count=1000.0))
    other = information.perform(run(loss="expected-info-nce", candidates=2, noise_count=1000.0, noise="uniform"))
    assert found["truth"] == other["truth"]
    assert found["bound"] <= found["truth"] + 5 * found["standard_error"]
    assert found["bound"] > found["truth"] - 0.05
    assert other["bound"] > other["truth"] + 0.05


def test_counts_are_multinomial():
    probs = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
    counts = information._counts(probs, 3000, 20, np.random.default_rng(0))
    assert (counts.sum(1) == 20).all()
    assert (counts[:, 1] == 0).all()
    deviation = (20 * probs * (1 - probs) / 3000).sqrt()
    assert ((counts.mean(0) - 20 * probs).abs() <= 5 * deviation).all()


def test_the_bounds_are_bounds_and_the_free_critic_is_close():
    """The bar of 0.05 nats where log M = 5.5 is far above the information; never above beyond chance (5 σ)."""
    joint = TABLE.joint()
    for loss, epsilon in [("soft-dist-info-nce", 0.0), ("soft-dist-info-nce", 0.3), ("soft-target-info-nce", 0.3)]:
        found = information.perform(run(loss=loss, epsilon=epsilon))
        truth = mutual_information(smoothed_joint(joint, epsilon if loss == "soft-dist-info-nce" else 0.0)).item()
        assert found["truth"] == pytest.approx(truth, rel=1e-12)
        assert found["bound"] <= truth + 5 * found["standard_error"]
        assert found["bound"] > truth - 0.05
        assert found["classifier_bound"] <= truth + 1e-12
        assert found["bound"] - found["paper_bound"] == pytest.approx(math.log(256 / 255), abs=1e-12)


def test_few_candidates_limit_the_bound_and_not_the_critic():
    found = information.perform(run(table=information.Table(), candidates=2, steps=300, batch_size=4096))
    assert found["bound"] < math.log(2) < found["truth"]
    assert found["truth"] - found["classifier_bound"] < 0.05


def test_soft_targets_keep_the_labels_information_whatever_epsilon():
    """Shared smoothing cancels: the same training, step by step, in the scores (but for Adam's own 1e-8)."""
    found = [information.perform(run(loss="soft-target-info-nce", epsilon=e, steps=30)) for e in (0.0, 0.5)]
    assert found[0]["bound"] == pytest.approx(found[1]["bound"], rel=1e-5)


def test_a_run_is_determined_by_its_settings():
    assert information.perform(run(steps=5)) == information.perform(run(steps=5))
    assert information.perform(run(steps=5)) != information.perform(run(steps=5, seed=1))


@pytest.mark.slow
def test_the_study_from_the_command_line(tmp_path, capsys):
    options = ["information", "--out", str(tmp_path), *SMALL]
    study_command.main(options)
    study_command.main(options)
    assert "0 runs to do" in capsys.readouterr().out
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert "What the losses bound" in page
    assert (tmp_path / "figures" / "information-bounds.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilons", "[1.0]"], "epsilons: got 1"),
        (["--candidates", "[1]"], "candidates: got 1"),
        (["--steps", "0"], "steps: got 0"),
        (["--table.states", "1"], "table.states"),
        (["--stepz", "3"], "did you mean --steps"),
    ],
)
def test_misuse_is_one_line(options, message, capsys):
    with pytest.raises(SystemExit) as exit:
        study_command.main(["information", *options])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
