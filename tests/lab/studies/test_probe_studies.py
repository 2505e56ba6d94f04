"""The studies made of probes, from the command line to the page: accuracy, noise-samples, smoothing, calibration."""

import json

import numpy as np
import pytest
import torch

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.experiment.probe import reliability, scores
from softnce.lab.experiment.results import Row
from softnce.lab.report import charts
from softnce.lab.studies.accuracy import run as accuracy
from softnce.lab.studies.noise_samples import run as noise_samples
from softnce.lab.studies.smoothing import run as smoothing

ONE_RATE = ["--rates", "[0.003]", "--seeds", "2"]
OPTIONS = {
    "accuracy": ["--epochs", "1", *ONE_RATE],
    "noise-samples": [
        *("--batches", "[16, 64]", "--tested_batch", "16", "--tested_seeds", "3", "--numbers", "[8]"),
        *("--confirming_seeds", "2"),
        *ONE_RATE,
    ],
    "smoothing": ["--epochs", "2", "--smoothing", "[0.0, 0.2]", *ONE_RATE],
    "calibration": ["--epochs", "[1]", *ONE_RATE],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_from_command_to_page(name, tmp_path, capsys):
    for _ in range(2):
        study_command.main([name, "--out", str(tmp_path), *OPTIONS[name]])
    assert capsys.readouterr().out.count("0 runs to do") == 2  # both stages are finished the second time
    study = studies.load(name)
    rows = study.results(tmp_path).rows()
    section = study.page.section(rows)
    assert "nan" not in section.summary
    for figure in (block for block in section.blocks if isinstance(block, charts.Figure)):
        charts.draw(figure)
    for finding in study.judge(rows).values():
        assert finding.ours
    # an interrupted study has a page too
    assert study.page.section(rows[:1]).title
    study.judge(rows[:1])


@pytest.mark.slow
def test_smoothing_is_a_temperature(tmp_path):
    study_command.main(["smoothing", "--out", str(tmp_path), *OPTIONS["smoothing"]])
    found = smoothing.find(studies.load("smoothing").results(tmp_path).rows())
    assert max(found.identity) < 1e-12
    spreads = {
        name: [
            100 * abs(a.result["test"]["top1"] - b.result["test"]["top1"]) / 2**0.5
            for a, b in zip(*of.values(), strict=True)
        ]
        for name, of in found.rows.items()
        if name != "twin"
    }  # the standard deviation of two values, seed by seed
    expected = [ce - ours for ce, ours in zip(spreads["soft-ce"], spreads["soft-target-info-nce"], strict=True)]
    assert found.steadiness.mean == pytest.approx(sum(expected) / 2)
    for ours, twin in zip(found.rows["soft-target-info-nce"][0.2], found.rows["twin"][0.2], strict=True):
        assert abs(ours.result["test"]["nll"] - twin.result["test"]["nll"]) < 1e-3
        assert abs(ours.result["test"]["ece"] - twin.result["test"]["ece"]) < 0.01


@pytest.mark.slow
def test_candidates_nearer_to_the_classes_are_another_training(tmp_path):
    study_command.main(["noise-samples", "--out", str(tmp_path), *OPTIONS["noise-samples"]])
    found = noise_samples.find(studies.load("noise-samples").results(tmp_path).rows())
    assert len(found.of(noise_samples.SHARPER, 16)) == 3  # as many seeds as are tested
    assert not found.of(noise_samples.SHARPER, 64)
    as_targets, sharper = found.of("sampled", 16)[0], found.of(noise_samples.SHARPER, 16)[0]
    assert as_targets.result["test"]["nll"] != sharper.result["test"]["nll"]
    for method in ("soft-ce", "sampled", noise_samples.SHARPER):
        assert [row.config["seed"] for row in found.of(method, 16, further=True)] == [1000, 1001]
    assert not found.of("batch", 16, further=True)
    assert found.gap("sampled", 16).count == 3
    assert found.gap("sampled", 16, further=True).count == 2


def test_the_identity_holds_to_rounding_at_any_scale():
    logits, labels = torch.randn(32, 7), torch.arange(32) % 7
    for scale in (1.0, 1e3, 1e6):
        assert max(smoothing.identity_error(scale * logits, labels, 0.3).values()) < 1e-13 * scale
    assert smoothing.identity_error(logits, labels, 0.0)["value"] == 0.0


def test_equivalence_is_two_one_sided_tests():
    from scipy.stats import ttest_1samp

    from softnce.lab.experiment.statistics import estimate

    gaps = [0.3, -0.1, 0.2, 0.05, 0.12]
    below = ttest_1samp(gaps, 0.5, alternative="less").pvalue
    above = ttest_1samp(gaps, -0.5, alternative="greater").pvalue
    assert noise_samples.equivalence(estimate(gaps)) == pytest.approx(max(below, above))
    assert noise_samples.equivalence(estimate([0.2])) == 1.0
    assert noise_samples.equivalence(estimate([0.9, 0.9])) == 1.0


def test_calibration_equals_a_brute_force_count():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 6, generator=generator)
    logits[:5, 0] = 200.0  # a confidence of exactly 1
    labels = torch.randint(6, (500,), generator=generator)
    found, bins = scores(logits, labels), reliability(logits, labels)
    probs = torch.softmax(logits, 1).numpy().astype(np.float64)
    confidence, hits = probs.max(1), probs.argmax(1) == labels.numpy()

    def gap(p, outcome, edges):
        total = 0.0
        for b in range(len(edges) - 1):
            inside = [i for i in range(len(p)) if (edges[b] < p[i] <= edges[b + 1]) or (b == 0 and p[i] == edges[0])]
            if inside:
                total += len(inside) / len(p) * abs(np.mean(p[inside]) - np.mean(outcome[inside]))
        return total

    width = np.linspace(0, 1, 16)
    assert found["ece"] == pytest.approx(gap(confidence, hits, width), abs=1e-6)
    by_class = [gap(probs[:, k], labels.numpy() == k, width) for k in range(6)]
    assert found["classwise_ece"] == pytest.approx(np.mean(by_class), abs=1e-6)
    onehot = np.eye(6)[labels.numpy()]
    assert found["brier"] == pytest.approx(np.mean(((probs - onehot) ** 2).sum(1)), abs=1e-6)
    shifted = logits.numpy().astype(np.float64) - logits.numpy().max(1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    assert found["nll"] == pytest.approx(-np.mean(log_probs[np.arange(500), labels.numpy()]), rel=1e-6)
    assert sum(bins["count"]) == 500
    assert bins["count"][-1] >= 5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("accuracy", ["--rates", "[]"], "rates: got"),
        ("accuracy", ["--data", "mnist"], "data"),
        ("noise-samples", ["--batches", "[1]"], "batches: got"),
        ("noise-samples", ["--tested_batch", "5"], "tested_batch: got 5"),
        ("smoothing", ["--smoothing", "[1.0]"], "smoothing: got 1"),
        ("calibration", ["--epochs", "[1, 2]"], "epochs: got"),
    ],
)
def test_bad_settings_are_named(name, options, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        study_command.main([name, "--out", str(tmp_path), *options])
    assert message in capsys.readouterr().err


def test_missing_data_is_said_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SOFTNCE_DATA", raising=False)
    for name in OPTIONS:
        with pytest.raises(SystemExit):
            study_command.main([name, "--preset", "paper", "--out", str(tmp_path)])
        assert "SOFTNCE_DATA" in capsys.readouterr().err


@pytest.mark.slow
def test_the_small_network_is_trained_on_images(tmp_path, monkeypatch):
    """Twenty images a class in the form of CIFAR-100, told apart by their colour."""
    random = np.random.default_rng(0)
    (tmp_path / "cifar100").mkdir()
    y = np.arange(200) % 10
    for split in ("train", "test"):
        x = np.clip(25 * y[:, None, None, None] + random.integers(0, 20, (200, 32, 32, 3)), 0, 255).astype(np.uint8)
        np.savez(tmp_path / "cifar100" / f"{split}.npz", x=x, y=y)
    monkeypatch.setenv("SOFTNCE_DATA", str(tmp_path))
    (run, *_) = accuracy.search.trials(accuracy.networks(accuracy.Config(batch=20, image_epochs=1)), [1e-3])
    result = accuracy.perform(run).result
    assert 0 <= result["test"]["top1"] <= 1
    assert set(result["held_out"]) >= {"top1", "top5", "ece"}
    assert json.loads(json.dumps(result)) == result


def test_models_that_disagree_decide_nothing(monkeypatch):
    def part(title: str, gains: dict[str, float]) -> accuracy.Part:
        rows = {
            loss: [
                Row(
                    "",
                    {"seed": seed, "lr": 1e-3},
                    {"test": {"top1": 0.5 + gains.get(loss, 0.0), "top5": 0.9}},
                    1.0,
                    "",
                    {},
                )
                for seed in range(3)
            ]
            for loss in accuracy.LOSSES
        }
        return accuracy.Part(title, title, rows, {loss: {3e-4: 1.0, 1e-3: 2.0, 3e-3: 1.0} for loss in rows})

    ahead, behind = {"soft-target-info-nce": 0.02, "nll": 0.01}, {"soft-target-info-nce": -0.02}
    monkeypatch.setattr(accuracy, "parts", lambda rows: [part("a", ahead), part("b", behind)])
    found = accuracy.claims([])
    assert found["accuracy-nll"].verdict == "undecided"
    assert found["accuracy-nll"].on == "a; b"
    assert found["accuracy-soft-ce"].verdict == "not reproduced"  # both far from it, in either direction
    assert found["accuracy-rates"].verdict == "reproduced"
