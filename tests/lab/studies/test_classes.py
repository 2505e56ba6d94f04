import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from softnce import BatchCandidates, ExpectedInfoNCE, SoftTargetInfoNCE, functional
from softnce.lab import studies
from softnce.lab.configuration import from_args, to_mapping
from softnce.lab.experiment.results import Row
from softnce.lab.report import drawing
from softnce.lab.report.charts import Figure
from softnce.lab.report.page import Table
from softnce.lab.studies.classes import findings, page, training
from softnce.lab.studies.classes import run as classes
from softnce.lab.studies.classes.problem import Problem, mixed

TINY = [
    *("--classes", "[200, 300]", "--steps", "150", "--batch", "64", "--candidates", "128", "--negatives", "64"),
    *("--softmax_classes", "200", "--lrs", "[0.1, 0.3]", "--latent", "8", "--dim", "16", "--hidden", "32"),
    *("--noise", "0.2", "--tests", "300", "--skewed", "[200]", "--skewed_steps", "150", "--expected", "[200, 300]"),
    *("--searched", "[200]", "--searched_largest", "[300]", "--searched_skewed", "[200]", "--searched_seeds", "2"),
    *("--searched_batch", "32", "--searched_steps", "40", "--searched_dim", "8", "--searched_hidden", "16"),
    *("--adam_lrs", "[0.1, 0.3]", "--adagrad_lrs", "[1.0]"),
]


def configuration(*more: str) -> classes.Config:
    return from_args(classes.Config, [*TINY, *more], prog="p", description="", presets=classes.PRESETS)


def tiny_run(method: training.Method, **changes) -> training.Run:
    run = next(run for run in classes.runs(configuration()) if run.method == method)
    return replace(run, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("classes")
    studies.load("classes").make(configuration("--out", str(out)))
    return out


# --- the problem


def test_what_the_model_sees_can_be_undone():
    problem = Problem(50, 6, 0.5, seed=3)
    places = torch.randn(20, 6, dtype=torch.float64)
    problem._rotations, problem._shifts = problem._rotations.double(), problem._shifts.double()
    back = problem.seen(places)
    for rotation, shift in zip(reversed(problem._rotations), reversed(problem._shifts), strict=True):
        back = (torch.where(back > 0, back, back / 0.3) - shift) @ rotation.t()
    torch.testing.assert_close(back, places, rtol=0, atol=1e-5)  # the rotations were orthogonal in float32


def test_best_possible_accuracy_of_two_classes_is_known():
    problem = Problem(2, 3, 0.8, seed=0)
    count = 20_000
    _, _, accuracy = problem.test(count)
    apart = (problem.points[0] - problem.points[1]).norm().item()
    expected = 0.5 * (1 + math.erf(apart / (2 * 0.8) / math.sqrt(2)))
    assert abs(accuracy - expected) < 4 * math.sqrt(expected * (1 - expected) / count)  # false alarm: 1 in 15,000


def test_skewed_classes_are_as_frequent_as_said_and_the_best_guess_knows_it():
    problem = Problem(50, 3, 0.8, seed=0, zipf=1.0)
    assert problem.marginal.sum().item() == pytest.approx(1)
    assert problem.marginal[0] / problem.marginal[9] == pytest.approx(10)
    _, labels = problem.batch(20_000)
    share = torch.bincount(labels, minlength=50) / 20_000
    deviation = (problem.marginal * (1 - problem.marginal) / 20_000).sqrt()
    assert ((share - problem.marginal).abs() < 5 * deviation).all()
    skewed, even = problem.test(20_000)[2], Problem(50, 3, 0.8, seed=0).test(20_000)[2]
    assert skewed > even + 0.02
    problem.marginal, marginal = None, problem.marginal
    places = problem.points[labels] + 0.8 * torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0))
    nearest = torch.cdist(places, problem.points).argmin(1)
    likeliest = (torch.cdist(places, problem.points).square() / (-2 * 0.64) + marginal.log()).argmax(1)
    assert (likeliest == labels).float().mean() > (nearest == labels).float().mean()


def test_without_noise_everything_can_be_known():
    assert Problem(500, 8, 1e-3, seed=0).test(300)[2] == 1


def test_every_class_comes_once_before_any_comes_again():
    problem = Problem(40, 4, 0.1, seed=0)
    seen = torch.cat([problem.batch(10)[1] for _ in range(4)])
    assert sorted(seen.tolist()) == list(range(40))
    assert len(problem.batch(15)[1]) == 15


def test_mixed_rows_and_targets_agree():
    torch.manual_seed(0)
    x, labels = torch.eye(12), torch.arange(12)
    rows, targets = mixed(x, labels, 12, 0.5)
    torch.testing.assert_close(rows, targets.dense())  # x is one-hot, so a mixed sample is its own target
    assert targets.index.shape == (12, 2)


# --- the training


def test_losses_are_those_that_are_named():
    torch.manual_seed(0)
    run = tiny_run("softmax")
    z, labels = torch.randn(run.batch, run.dim), torch.randint(run.classes, (run.batch,))
    _, targets = mixed(torch.randn(run.batch, run.latent), labels, run.classes, 0.5)
    for method in training.METHODS:
        model = training.Model(replace(run, method=method))
        logits = z @ model.head.weight.t()
        match method:
            case "softmax":
                expected = F.cross_entropy(logits, targets.dense())
            case "info-nce":
                expected = SoftTargetInfoNCE()(logits, targets)
            case "expected-info-nce":
                torch.manual_seed(1)
                expected = ExpectedInfoNCE(candidates=BatchCandidates(), others="drawn")(logits, targets)
                torch.manual_seed(1)
            case _:
                continue
        loss = training.criterion(replace(run, method=method), model)(z, targets)
        torch.testing.assert_close(loss, expected)

    # All classes as negatives, each as often: sampled softmax approaches the full one.
    many = replace(run, method="sampled-softmax", others=200_000)
    model = training.Model(many)
    full = functional.soft_target_cross_entropy(z @ model.head.weight.t(), targets)
    assert training.criterion(many, model)(z, targets).item() == pytest.approx(full.item(), rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("method", training.METHODS)
def test_every_loss_learns_and_repeats_itself(method):
    run = tiny_run(method, lr=0.3)
    first, second = training.train(run), training.train(run)
    assert first["accuracy"] > 0.2  # chance: 0.005
    assert first["accuracy"] <= first["best_possible"] + 4 * math.sqrt(0.25 / run.tests)
    assert first["course"]["accuracy"] == second["course"]["accuracy"]
    assert first["course"]["seconds"] == sorted(first["course"]["seconds"])
    assert first["steps"] == run.steps == first["course"]["step"][-1]


def test_memory_is_table_optimiser_and_step():
    run = tiny_run("info-nce", steps=2)
    result = training.train(run)
    table = 4 * run.classes * run.dim
    assert result["held_bytes"] > 3 * table  # and Adam's two moments
    assert result["held_bytes"] < result["peak_bytes"] < result["held_bytes"] + 40 * 4 * run.batch * run.batch
    # A step from the table does not grow with the classes, the full softmax does.
    more = {method: training.train(tiny_run(method, steps=2, classes=2000)) for method in ("info-nce", "softmax")}
    step = {method: r["peak_bytes"] - r["held_bytes"] for method, r in more.items()}
    assert step["info-nce"] == result["peak_bytes"] - result["held_bytes"]
    assert step["softmax"] > 2 * 4 * run.batch * 2000


def test_a_run_stops_when_its_time_is_up():
    result = training.train(tiny_run("info-nce", seconds=1e-9))
    assert result["steps"] == 1
    assert len(result["course"]["accuracy"]) == 1


def test_evaluations_end_with_the_last_step():
    assert training.evaluation_steps(2000)[-1] == 2000
    assert training.evaluation_steps(1) == [1]


# --- the study


def test_full_softmax_only_where_it_can_be_afforded():
    wanted = [run for run in classes.runs(classes.PRESETS["paper"]) if not run.part]
    assert {run.classes for run in wanted if run.method == "softmax"} == {10_000, 100_000}
    assert {run.classes for run in wanted if run.method == "info-nce"} == {10_000, 100_000, 1_000_000}
    seen = {run.classes: run.steps * run.batch / run.classes for run in wanted}
    assert all(views >= classes.PRESETS["paper"].views for views in seen.values())


@pytest.mark.slow
def test_none_is_done_twice_and_the_section_has_the_measured_numbers(finished):
    study = studies.load("classes")
    rows = study.results(finished).rows()
    first = classes.runs(configuration())
    assert len(first) == 2 * (5 + 4 + 4) + 4 * 3
    assert len(rows) == len(first) + 3 * 4 * 2  # further seeds, skewed, a larger K
    before = (finished / "classes.jsonl").read_bytes()
    study.make(configuration("--out", str(finished)))
    assert (finished / "classes.jsonl").read_bytes() == before

    section = page.section(rows)
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    assert [figure.name for figure in figures] == ["time", "processor", "memory"]
    for figure in figures:
        assert drawing.png(figure, dpi=40).startswith(b"\x89PNG")
    table, beside, skewed, searched, search = (block for block in section.blocks if isinstance(block, Table))
    assert [row[-1] for row in searched.rows] == ["2"] * 12
    assert len(search.rows) == 4
    for one in findings.searched(rows):  # each with what its search, or that at fewer classes, found best
        of_search = next(other for other in findings.searched(rows) if other.trials)
        for method, further in one.rows.items():
            tried = {key[1:]: value for key, value in of_search.trials.items() if key[0] == method}
            used = {(row.config.get("table_optimiser", "sparse-adam"), row.config["lr"]) for row in further}
            assert max(tried.values()) == tried[used.pop()]
            assert not used
    assert len(beside.rows) == 2 * 4
    assert len(skewed.rows) == 4
    best = max(
        row.result["accuracy"]
        for row in rows
        if (row.config["method"], row.config["classes"]) == ("sampled-softmax", 300)
    )
    cells = dict(zip(table.header, next(row for row in table.rows if row[0].endswith("log Q, K = 300")), strict=True))
    assert cells["accuracy (%)"] == f"{100 * best:.1f}"


@pytest.mark.slow
def test_runs_of_other_lengths_are_no_further_seeds(finished):
    rows = studies.load("classes").results(finished).rows()
    shorter = [replace(row, config=row.config | {"steps": 10}, result=row.result | {"accuracy": 0.0}) for row in rows]
    assert page.section(rows + shorter).blocks[3] == page.section(rows).blocks[3]


@pytest.mark.slow
def test_the_claim_has_the_numbers_at_one_time(finished):
    def row(method, accuracy, seconds):
        config = next(r.config for r in rows if (r.config["method"], r.config["classes"]) == (method, 200))
        course = {"step": [1, 2, 3], "seconds": seconds, "accuracy": accuracy}
        result = rows[0].result | {"accuracy": accuracy[-1], "course": course}
        return replace(rows[0], config=config | {"classes": 100_000}, result=result)

    rows = studies.load("classes").results(finished).rows()
    found = findings.claims([
        row("info-nce", [0.1, 0.2, 0.3], [1, 2, 3]),
        row("info-nce-more", [0.1, 0.2, 0.4], [10, 20, 30]),
        row("sampled-softmax", [0.11, 0.35, 0.5], [10, 29, 45]),
        row("softmax", [0.01, 0.02, 0.9], [20, 31, 400]),
    ])["many-classes"]  # fmt: skip
    assert found.ours.replace("\N{NO-BREAK SPACE}", " ") == (
        "40.0 % at the end of training, after 30 s; by then full softmax cross-entropy, on its way, has 1.0 %, sampled "
        "softmax 35.0 % (50.0 % at its end after 45 s)"
    )
    assert found.verdict == "beyond"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accuracy", "seconds", "verdict"),
    [([0.35, 0.45, 0.5], [10, 20, 30], "beyond"), ([0.1, 0.2, 0.25], [10, 20, 30], "not reproduced")],
)
def test_the_claim_about_expected_info_nce(finished, accuracy, seconds, verdict):
    rows = studies.load("classes").results(finished).rows()

    def row(method, accuracy, seconds):
        config = next(r.config for r in rows if (r.config["method"], r.config["classes"]) == (method, 300))
        course = {"step": [1, 2, 3], "seconds": seconds, "cpu_seconds": seconds, "accuracy": accuracy}
        result = rows[0].result | {"accuracy": accuracy[-1], "course": course}
        return replace(rows[0], config=config | {"classes": 100_000}, result=result)

    found = findings.claims([
        row("info-nce", [0.1, 0.2, 0.3], [5, 10, 15]),
        row("info-nce-more", [0.1, 0.2, 0.4], [10, 20, 30]),
        row("expected-info-nce", accuracy, seconds),
        row("sampled-softmax", [0.11, 0.45, 0.9], [10, 29, 45]),
    ])["expected-classes"]  # fmt: skip
    assert found.verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "verdict"), [(0.6, "beyond"), (0.2, "not reproduced")])
def test_the_claim_with_a_search_is_by_seed_and_at_equal_time(finished, ours, verdict):
    rows = studies.load("classes").results(finished).rows()

    def row(method, seed, accuracy, seconds):
        config = next(r.config for r in rows if r.config["method"] == method and "part" in r.config)
        course = {"step": [1, 2], "seconds": seconds, "cpu_seconds": seconds, "accuracy": [0.0, accuracy]}
        result = rows[0].result | {"accuracy": accuracy, "course": course}
        return replace(rows[0], config=config | {"classes": 100_000, "seed": seed}, result=result)

    made = [
        one
        for seed in (1, 2)
        for one in (
            row("info-nce", seed, 0.3, [0, 10]),
            row("info-nce-more", seed, 0.4, [0, 10]),
            row("sampled-softmax", seed, 0.8, [0, 20]),  # 0.4 after 10 s
            row("expected-info-nce", seed, ours + 0.01 * seed, [0, 10]),
        )
    ]
    (found,) = findings.searched(made)
    assert found.lead("sampled-softmax").mean == pytest.approx(100 * (ours + 0.015 - 0.4))
    assert findings.claims(made)["expected-classes"].verdict == verdict


def test_a_skewed_problem_takes_what_was_best_at_its_size_and_a_larger_one_what_was_best_at_the_largest():
    config = configuration("--searched", "[200, 300]", "--searched_largest", "[400]")
    best = {200: ("sparse-adam", 0.3), 300: ("row-adagrad", 1.0)}
    rows = [
        Row("", to_mapping(run), {"accuracy": float((run.table_optimiser, run.lr) == best[size])}, 0.0, "", {})
        for size in best
        for run in classes.trials(config, size)
    ]
    found = {(run.classes, run.zipf): (run.table_optimiser, run.lr) for run in classes.follow_up(config, rows)}
    assert found == {
        (200, 0.0): best[200],
        (300, 0.0): best[300],
        (200, config.zipf): best[200],
        (400, 0.0): best[300],
    }


@pytest.mark.slow
def test_a_page_of_what_there_is_while_the_rest_still_runs(finished):
    rows = studies.load("classes").results(finished).rows()
    for some in (rows[:1], rows[:3], rows[-1:]):
        assert "best possible" in page.section(some).summary


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--classes", "[10]", "need at least the 64 rows"),
        ("--candidates", "10", "need more than the 64 of the batch"),
        ("--lrs", "[0.1, -1]", "need more than 0"),
        ("--noise", "0", "need more than 0"),
        ("--dim", "0", "need at least 1"),
    ],
)
def test_bad_settings_name_the_option(option, value, message, capsys):
    with pytest.raises(SystemExit):
        configuration(option, value)
    error = capsys.readouterr().err
    assert option.removeprefix("--") in error
    assert message in error
