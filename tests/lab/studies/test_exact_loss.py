import itertools
import math
from dataclasses import replace

import pytest
import torch

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.configuration import to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.report import charts, drawing
from softnce.lab.studies.exact_loss import distribution, findings, page, training
from softnce.lab.studies.exact_loss import run as exact_loss
from softnce.lab.studies.exact_loss.training import Method

LABEL = 0.91 * math.log(9.1) + 0.09 * math.log(0.1)  # KL of a label smoothed by 0.1 among 10 to the uniform


def test_the_strength_of_a_draw():
    found = distribution.shape(10)
    assert found["label_nats"] == pytest.approx(LABEL, rel=1e-12)
    nats = [found["strength"][name]["nats"] for name in ("1", "√K", "K")]
    assert nats == sorted(nats)
    assert found["strength"]["1"]["mean_of_true_class"] > 0.1
    assert 1 <= found["proposals"] < 1.2
    at_1000 = distribution.shape(1000)["strength"]["1"]
    assert f"{at_1000['mean_of_true_class']:.5f}" == "0.00101"
    assert at_1000["nats"] < 1e-4


def test_the_original_method_loses_its_digits_and_its_proposals():
    small, large = distribution.shape(3), distribution.shape(30)
    assert small["original_error"] < 1e-12
    assert large["original_error"] > 1e-3
    assert max(small["error"], large["error"]) < 1e-12
    assert small["log10_original_proposals"] < 1 < 10 < large["log10_original_proposals"]
    assert large["proposals"] < 1.2


def test_nats_are_those_of_the_draws_distribution():
    """Labels are equally frequent in η here only nearly, hence the tolerance against the closed form."""
    one = training.nats("digits", Method("soft-dist-info-nce"), 0)
    assert one == pytest.approx(LABEL, rel=0.05)
    assert training.nats("digits", Method("averaged", 4), 0) == pytest.approx(4 * one, rel=1e-12)
    assert training.nats("digits", Method("soft-ce"), 0) is None
    weak, strong = (training.nats("digits", Method("continuous", k), 0) for k in (1.0, 10.0))
    assert weak < one < strong


def test_gradient_noise_of_stronger_draws_is_less():
    weak, strong = (training.gradient_noise("digits", Method("continuous", k), 0, 40) for k in (1.0, 10.0))
    assert weak > 3 * strong > 0


def test_gradient_noise_is_the_ratio_it_says(monkeypatch):
    """Gradients that are ±1 around a mean of 2, in one parameter: variance over squared mean is 1/4."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    signs = iter(torch.tensor([1.0, -1.0]).repeat(500))

    def loss(logits, targets, generator):
        return model[0].weight.sum() * (2 + next(signs))

    monkeypatch.setattr(training, "_model", lambda problem, generator: model)
    monkeypatch.setattr(training, "_fit", lambda *_: None)
    monkeypatch.setattr(training, "_loss", lambda *_: loss)
    monkeypatch.setattr(
        training, "data", lambda problem, seed: training.Data(*[torch.zeros(4, 1)] * 4, torch.ones(2) / 2, 2, 0.1)
    )
    assert training.gradient_noise("digits", Method("soft-ce"), 0, 1000) == pytest.approx(0.25, rel=0.01)


@pytest.mark.slow
def test_soft_target_info_nce_goes_astray_on_conditionals_and_draws_do_not():
    soft, label, exact = (
        training.train("conditional", method, seed=0, epochs=12)
        for method in (Method("soft-target-info-nce"), Method("soft-dist-info-nce"), Method("continuous", 10.0))
    )
    assert soft["accuracy"] < 0.7 * max(soft["course"])  # it had been better
    assert soft["accuracy"] < 0.4 * label["accuracy"]
    assert label["accuracy"] > 0.9 * label["best_accuracy"]
    assert exact["accuracy"] > 2 * soft["accuracy"]
    assert soft["divergence_at_temperature"] > 3 * label["divergence_at_temperature"]  # 5.3 times was measured


def test_a_run_is_determined_by_its_settings():
    run = exact_loss.Training("digits", Method("continuous", 5.0), seed=1, epochs=2, gradients=3)
    assert exact_loss.perform(run) == exact_loss.perform(run)


@pytest.mark.slow
def test_the_study_from_the_command_line(tmp_path, capsys):
    options = ["--epochs", "1", "--digits_epochs", "1", "--gradients", "3"]
    options += ["--labels", "[2]", "--concentrations", "[3]", "--classes", "[2, 30]", "--cost_classes", "[5]"]
    name = "exact-loss"
    for _ in range(2):
        study_command.main([name, "--out", str(tmp_path), *options])
    assert "0 runs to do" in capsys.readouterr().out
    section = page.section(studies.load(name).results(tmp_path).rows())
    figures = [block for block in section.blocks if isinstance(block, charts.Figure)]
    assert [figure.name for figure in figures] == ["training", "course", "strength", "original"]
    for figure in figures:
        drawing.draw(figure)


def test_the_page_needs_no_part_in_particular():
    """A study interrupted early has only some of its rows."""
    config = exact_loss.Config(seeds=1, epochs=1, digits_epochs=1, gradients=2, classes=(3,), cost_classes=(3,))
    shape = next(run for run in exact_loss.runs(config) if isinstance(run, exact_loss.Shape))
    runs = [exact_loss.Training("labels", Method("soft-ce"), 0, 1, 2), shape]
    rows = [Row("", to_mapping(run), exact_loss.perform(run), 0.0, "", {}) for run in runs]
    for some in (rows[:1], rows[1:], rows):
        assert page.section(some).blocks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs: got 0"),
        ({"labels": (0,)}, "labels: got 0"),
        ({"concentrations": (0.0,)}, "concentrations: got 0"),
        ({"classes": (1,)}, "classes: got 1"),
    ],
)
def test_misuse_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        exact_loss.Config(**options)


def trainings(seeds, *, soft_on_labels, soft_on_conditional):
    rows = []
    errors = {
        ("labels", "soft-target-info-nce", 0.0): soft_on_labels,
        ("labels", "averaged", 1.0): 0.2,
        ("labels", "continuous", 10.0): 1.0,
        ("conditional", "soft-target-info-nce", 0.0): soft_on_conditional,
        ("conditional", "averaged", 1.0): 0.04,
        ("conditional", "continuous", 10.0): 0.06,
    }
    for (problem, kind, strength), error in errors.items():
        for seed in range(seeds):
            method = {"kind": kind, "strength": strength}
            config = {"part": "training", "problem": problem, "method": method, "seed": seed, "epochs": 40}
            result = {"divergence_at_temperature": error + 0.001 * seed}
            rows.append(Row(str(len(rows)), config, result, 1.0, "2026-01-01", {}))
    return rows


def closely(seeds, *, kl, noise, noise_of_labels):
    """Runs of soft target cross-entropy at 1, soft distribution InfoNCE at 3, and expected InfoNCE as given."""
    rows = []
    values = {"soft-ce": (1.0, 1.0, 1.0), "soft-dist-info-nce": (3.0, 3.0, 3.0)}
    values["expected-info-nce"] = (kl, noise, noise_of_labels)
    for (kind, (its_kl, *noises)), seed in itertools.product(values.items(), range(seeds)):
        shared = {"method": {"kind": kind, "strength": 0.0}, "seed": seed}
        config = {"part": "training", "problem": "conditional", "epochs": 40} | shared
        rows.append(Row("", config, {"divergence": its_kl, "divergence_at_temperature": its_kl}, 1.0, "", {}))
        for problem, value in zip(("conditional", "labels", "digits"), (*noises, noises[1]), strict=True):
            config = {"part": "noise", "problem": problem, "batches": 9} | shared
            rows.append(Row("", config, {"gradient_noise": value + 0.01 * seed}, 1.0, "", {}))
    return rows


@pytest.mark.parametrize(
    ("rows", "conditional", "noise"),
    [
        (closely(5, kl=1.2, noise=1.0, noise_of_labels=0.9), "beyond", "beyond"),
        (closely(5, kl=1.4, noise=1.0, noise_of_labels=1.1), "not reproduced", "not reproduced"),
        (closely(5, kl=1.2, noise=1.2, noise_of_labels=1.1), "not reproduced", "not reproduced"),
        (closely(2, kl=1.2, noise=1.0, noise_of_labels=0.9), "undecided", "undecided"),
    ],
)
def test_verdicts_of_expected_info_nce(rows, conditional, noise):
    found = studies.load("exact-loss").judge(rows)
    assert (found["expected-conditional"].verdict, found["expected-noise"].verdict) == (conditional, noise)


def test_seeds_that_only_some_methods_have_are_left_out_where_all_are_compared():
    rows = trainings(3, soft_on_labels=0.2, soft_on_conditional=2.0)
    more = [replace(row, config=row.config | {"seed": 7}) for row in rows if row.config["method"]["kind"] == "averaged"]
    assert findings.trainings([*rows, *more]) == findings.trainings(rows)


@pytest.mark.parametrize(
    ("rows", "substitute", "alternative"),
    [
        (trainings(3, soft_on_labels=0.2, soft_on_conditional=2.0), "explained", "beyond"),
        (trainings(3, soft_on_labels=0.2, soft_on_conditional=0.05), "reproduced", "beyond"),
        (trainings(3, soft_on_labels=3.0, soft_on_conditional=2.0), "not reproduced", "beyond"),
        (trainings(1, soft_on_labels=0.2, soft_on_conditional=2.0), "undecided", "undecided"),
    ],
)
def test_verdicts(rows, substitute, alternative):
    found = studies.load("exact-loss").judge(rows)
    assert (found["exact-substitute"].verdict, found["exact-alternative"].verdict) == (substitute, alternative)
    assert "exact-sampling" not in found
