"""The exact loss: one tiny training of each kind, gradient noise, the distribution of a draw, and the verdicts."""

import pytest
import torch

from experiments.exact_loss import CE, CLOSE, DRAWN, EXPECTED, PRESETS, findings, runs
from experiments.exact_loss.original import cancelling_log_integral, exact_log_integral
from experiments.exact_loss.training import Cost, Method, Noise, Shape, Training, data, loss_of, nats, perform
from experiments.harness import Row, to_mapping
from softnce import ExpectedInfoNCE


@pytest.mark.parametrize("kind", ["soft-ce", "averaged"])
def test_a_training_learns_and_measures(kind: str) -> None:
    result = perform(Training("conditional", Method(kind, 2.0 if kind == "averaged" else 0.0), 0, 2, 0))
    assert result["accuracy"] > 0.03  # guessing: 0.01
    assert 0 < result["divergence_at_temperature"] <= result["divergence"] + 1e-6


def test_a_stronger_draw_says_more_about_its_target() -> None:
    found = [nats("labels", method, 0) for method in (DRAWN, Method("averaged", 2.0), Method("averaged", 4.0))]
    assert found == sorted(found)
    assert nats("labels", Method("continuous", 1.0), 0) < nats("labels", Method("continuous", 10.0), 0)
    assert nats("labels", CE, 0) is None


def test_the_noise_of_expected_info_nce_is_the_marginal_of_its_targets() -> None:
    here = data("labels", 0)
    logits, targets = torch.randn(20, 100, generator=torch.Generator().manual_seed(0)), here.targets[:20]
    marginals = {"targets": here.targets.class_mass(torch.float64) / len(here.inputs), "labels": here.noise}
    for eta, marginal in marginals.items():
        expected = ExpectedInfoNCE(marginal)(logits, targets)
        torch.testing.assert_close(loss_of(EXPECTED, here, eta)(logits, targets), expected)


def test_gradient_noise_is_the_ratio_of_variance_to_squared_mean() -> None:
    found = perform(Noise("digits", CE, 0, 10))["gradient_noise"]
    assert 0.05 < found < 5
    assert perform(Noise("digits", CE, 0, 10))["gradient_noise"] == found


def test_the_distribution_of_a_draw_and_the_cost_of_a_step() -> None:
    shape = perform(Shape(10))
    assert shape["strength"]["1"]["nats"] < shape["strength"]["K"]["nats"]
    assert shape["error"] < 1e-12 < shape["original_error"]
    cost = perform(Cost(5, (CE, Method("continuous", 1.0)), rows=8))
    assert len(cost["milliseconds"]) == 2
    assert min(cost["milliseconds"]) > 0


def test_the_original_sum_agrees_with_exact_arithmetic_for_few_classes() -> None:
    omega = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    assert cancelling_log_integral(omega).item() == pytest.approx(float(exact_log_integral(omega.tolist())), abs=1e-12)


def rows(ours: float, exact: float) -> list[Row]:
    """Errors of soft target InfoNCE and of exact draws on both problems, three seeds."""
    found = []
    for problem in ("conditional", "labels"):
        for kind, value in (("soft-target-info-nce", ours), ("continuous", exact)):
            for seed in range(3):
                run = Training(problem, Method(kind, 3.0 if kind == "continuous" else 0.0), seed, 40, 0)
                score = value + 0.01 * seed
                result = {"divergence": score, "divergence_at_temperature": score, "accuracy": 0.5}
                found.append(Row(f"{problem}{kind}{seed}", to_mapping(run), result))
    return found


def test_the_substitute_needs_an_interval_below_the_limit_on_both_problems() -> None:
    good, bad = rows(0.5, 1.0), rows(2.0, 1.0)
    mixed = [
        row for of, part in ((good, "labels"), (bad, "conditional")) for row in of if row.config["problem"] == part
    ]
    for of, verdict in (
        (good, "reproduced"),
        (bad, "not reproduced"),
        ([row for row in good if row.config["seed"] == 0], "undecided"),
        (mixed, "explained"),
    ):
        assert findings(of)["exact-substitute"].verdict == verdict


def test_expected_info_nce_is_judged_by_paired_seeds() -> None:
    def verdict(ce: float, ours: float) -> str:
        found = []
        for seed in range(3):
            for method, value in ((CE, ce), (DRAWN, 1.0), (EXPECTED, ours)):
                result = {"divergence": value + 0.001 * seed, "divergence_at_temperature": value, "accuracy": 0.5}
                found.append(Row(f"{method}{seed}", to_mapping(Training("conditional", method, seed, 40, 0)), result))
                noise = {"gradient_noise": value + 0.001 * seed}
                found.append(Row(f"{method}{seed}n", to_mapping(Noise("conditional", method, seed, 9)), noise))
        return findings(found)["expected-conditional"].verdict

    assert verdict(0.10, 0.105) == "beyond"
    assert verdict(0.10, 0.2) == "not reproduced"


def test_all_parts_are_in_the_paper_preset() -> None:
    wanted = runs(PRESETS["paper"])
    assert len(wanted) == len(set(wanted))
    assert {type(run) for run in wanted} == {Training, Noise, Shape, Cost}
    assert {run.method for run in wanted if isinstance(run, Noise)} >= set(CLOSE)
