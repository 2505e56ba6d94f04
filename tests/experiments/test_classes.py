"""Many classes: the problem, each loss, the search, accuracies after equal time, and the verdicts."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from experiments import classes
from experiments.classes import Options, accuracy_at, findings, lead, trials, wanted
from experiments.classes.training import METHODS, Model, Problem, Run, criterion, mixed, perform
from experiments.harness import Row, to_mapping
from softnce import BatchCandidates, ExpectedInfoNCE, NoiseCandidates, SoftTargetInfoNCE, noise

TINY = Options(
    classes=(200,), seeds=1, steps=150, views=1, batch=64, searched=(300,), enlarged=(400,), skewed=(300,),
    searched_seeds=2, searched_steps=40, searched_batch=32, adam_rates=(0.1, 0.3), adagrad_rates=(1.0,),
    softmax_steps=(40, 20),
)  # fmt: skip


def a_run(method: str, **changes) -> Run:
    run = next(run for run in wanted(replace(TINY, methods=METHODS)) if run.method == method)
    return replace(run, dim=16, hidden=32, tests=300, **changes)


def test_the_image_of_a_sample_can_be_inverted():
    problem = Problem(50, 6, 0.5, seed=3)
    places = torch.randn(20, 6, dtype=torch.float64)
    problem.rotations, problem.shifts = problem.rotations.double(), problem.shifts.double()
    back = problem.seen(places)
    for rotation, shift in zip(reversed(problem.rotations), reversed(problem.shifts), strict=True):
        back = (torch.where(back > 0, back, back / 0.3) - shift) @ rotation.t()
    torch.testing.assert_close(back, places, rtol=0, atol=1e-5)  # the rotations were orthogonal in float32


def test_best_possible_accuracy_of_two_classes_is_known():
    problem = Problem(2, 3, 0.8, seed=0)
    count = 20_000
    _, _, accuracy = problem.test(count)
    apart = (problem.points[0] - problem.points[1]).norm().item()
    expected = 0.5 * (1 + math.erf(apart / (2 * 0.8) / math.sqrt(2)))
    assert abs(accuracy - expected) < 4 * math.sqrt(expected * (1 - expected) / count)  # false alarm: 1 in 15,000


def test_skewed_classes_are_as_frequent_as_said():
    problem = Problem(50, 3, 0.8, seed=0, zipf=1.0)
    assert problem.marginal[0] / problem.marginal[9] == pytest.approx(10)
    _, labels = problem.batch(20_000)
    share = torch.bincount(labels, minlength=50) / 20_000
    deviation = (problem.marginal * (1 - problem.marginal) / 20_000).sqrt()
    assert ((share - problem.marginal).abs() < 5 * deviation).all()


def test_every_class_comes_once_before_any_comes_again():
    problem = Problem(40, 4, 0.1, seed=0)
    seen = torch.cat([problem.batch(10)[1] for _ in range(4)])
    assert sorted(seen.tolist()) == list(range(40))


def test_mixed_rows_and_targets_agree():
    torch.manual_seed(0)
    rows, targets = mixed(torch.eye(12), torch.arange(12), 12, 0.5)
    torch.testing.assert_close(rows, targets.dense())  # x is one-hot, so a mixed sample is its own target


@pytest.mark.parametrize("method", ["softmax", "info-nce", "expected-info-nce"])
def test_each_method_is_its_loss(method: str):
    torch.manual_seed(0)
    run = a_run(method)
    z, labels = torch.randn(run.batch, run.dim), torch.randint(run.classes, (run.batch,))
    _, targets = mixed(torch.randn(run.batch, run.latent), labels, run.classes, 0.5)
    eta, model = noise.uniform(run.classes), Model(run)
    drawn = ExpectedInfoNCE(eta, candidates=BatchCandidates() + NoiseCandidates(2 * run.batch))
    expected = {
        "softmax": lambda logits: F.cross_entropy(logits, targets.dense()),
        "info-nce": lambda logits: SoftTargetInfoNCE(eta)(logits, targets),
        "expected-info-nce": lambda _: model.head.loss(z, targets, drawn),
    }[method]
    torch.manual_seed(1)
    found = criterion(run, model)(z, targets)
    torch.manual_seed(1)
    torch.testing.assert_close(found, expected(z @ model.head.weight.t()), rtol=1e-5, atol=1e-5)


def test_further_seeds_have_the_rate_of_the_best_trial_and_the_softmax_its_schedules():
    tried = [trial for group in trials(TINY, 300) for trial in group]
    assert {run.steps for run in tried if run.method == "softmax"} == {40, 20}
    best = {"softmax": 0.1}
    rows = [Row("", to_mapping(run), {"accuracy": float(run.lr == best.get(run.method, 1.0))}) for run in tried]
    further = [run for run in wanted(TINY, rows) if run.seed]
    assert {(run.method, run.lr) for run in further} == {(method, best.get(method, 1.0)) for method in METHODS}
    assert {run.seed for run in further} == {1, 2}
    assert {run.classes for run in further if run.method == "softmax"} == {300}
    assert {run.classes for run in further if run.method == "info-nce"} == {300, 400}


def row(method: str, seed: int, accuracies: list[float], times: list[float], k: int = 100_000, steps: int = 9) -> Row:
    run = Run(method, k, 1.0, seed, steps, None, 32, 0, 1e-3, 0.2, 0.5, 8, 8, 8, 300, part="searched")
    course = {"cpu_seconds": times, "accuracy": accuracies, "step": [1, steps]}
    result = {"accuracy": accuracies[-1], "best_possible": 1.0, "steps": steps, "course": course, "peak_bytes": 9}
    return Row(f"{method}{seed}{steps}", to_mapping(run), result)


def test_accuracy_after_a_time_lies_between_two_measurements():
    """Sampled softmax of seed 0 had 44.2 % after 46.6 s and 67.2 % after 70.2 s."""
    seen = row("sampled-softmax", 0, [0.442, 0.672], [46.6, 70.2])
    assert accuracy_at(seen, 65.7) == pytest.approx(44.2 + 23.0 * 19.1 / 23.6)
    assert accuracy_at(seen, 46.6) == pytest.approx(44.2)
    assert accuracy_at(seen, 1000) == pytest.approx(67.2)
    # the shorter run of the two decides the time: 50 s are half-way of the longer one
    short = row("info-nce", 0, [0.1, 0.2], [10, 50])
    assert lead([row("expected-info-nce", 0, [0.0, 0.6], [0, 100])], [short]).mean == pytest.approx(30 - 20)


def test_a_lead_whose_interval_holds_0_is_undecided():
    def verdict(*gaps: float) -> str:
        rows = [row("expected-info-nce", seed, [0.1, 0.5], [1, 2]) for seed in (1, 2, 3)]
        rows += [row("info-nce", seed, [0.1, 0.5 - gap], [1, 2]) for seed, gap in zip((1, 2, 3), gaps, strict=True)]
        return findings(rows)["expected-classes"].verdict

    assert verdict(0.05, 0.06, 0.07) == "beyond"
    assert verdict(0.01, 0.05, 0.10) == "undecided"
    assert verdict(-0.05, -0.06, -0.07) == "not reproduced"


def test_the_full_softmax_is_compared_only_with_a_schedule_that_it_finishes_in_the_time():
    rows = [row("expected-info-nce", seed, [0.1, 0.5], [1, 2], k=10_000) for seed in (1, 2)]
    rows += [row("softmax", seed, [0.0, 0.9], [4, 8], k=10_000, steps=40) for seed in (1, 2)]
    rows += [row("softmax", seed, [0.0, 0.2], [1, 2], k=10_000, steps=20) for seed in (1, 2)]
    found = findings(rows)["many-classes"]
    assert found.ours.startswith("+30.0")
    stopped = Row("", {**rows[2].config, "part": "", "seconds": 1.0}, rows[2].result)
    del stopped.config["part"]
    assert findings([stopped]) == {}


def test_tables_and_figures_of_few_rows():
    rows = [row("expected-info-nce", seed, [0.1, 0.5], [1, 2]) for seed in (0, 1, 2)]
    assert [len(table.rows) for table in classes.tables(rows)] == [1, 1, 0]
    assert len(classes.figures(rows)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_training_learns(method: str):
    run = a_run(method, noise=0.2, latent=8)
    result = perform(run)
    assert result["accuracy"] > 0.1  # guessing: 0.005
    assert result["course"]["step"][-1] == result["steps"] == 150
    assert result["peak_bytes"] > Model(run).held_bytes() > 0
