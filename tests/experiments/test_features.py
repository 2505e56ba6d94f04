"""The experiments on features: committed rows, findings on made-up rows, one small training each."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import accuracy, calibration, distillation, head, human_labels, long_tail, noise_samples, smoothing
from experiments.data import features
from experiments.features import CORRECTED, DRAWN
from experiments.harness import Row, mean, percent, to_mapping
from experiments.harness.experiment import load
from experiments.harness.rows import run_id
from experiments.harness.runs import missing
from experiments.losses import Loss, build_loss
from experiments.training import SMOOTH, fit
from softnce import SoftTargets

NAMES = ("accuracy", "calibration", "distillation", "head", "human-labels", "long-tail", "noise-samples", "noisy-steps",
         "smoothing")  # fmt: skip
PAPER = Path(__file__).parents[2] / "results" / "paper"


@pytest.fixture(scope="module", params=NAMES)
def committed(request):
    experiment = load(request.param)
    return experiment, experiment.results(PAPER)


def test_every_committed_row_is_a_run_of_the_paper_preset_or_its_follow_up(committed):
    experiment, results = committed
    rows, options = results.rows(), experiment.presets["paper"]
    wanted = [*experiment.runs(options), *(experiment.follow_up(options, rows) if experiment.follow_up else ())]
    assert missing(results, wanted) == []
    unused = {row.id for row in rows} - {results.id_of(to_mapping(run)) for run in wanted}
    assert len(unused) == (20 if experiment.name == "noise-samples" else 0)  # the first test, shown beside the second


@pytest.mark.slow
def test_figures_are_made_from_committed_rows(committed, tmp_path):
    experiment, results = committed
    for figure in experiment.figures(results.rows()):
        figure.save(tmp_path)
        assert (tmp_path / f"{figure.name}-dark.svg").is_file()


def verdicts(module, rows):
    return {key: finding.verdict for key, finding in module.findings(rows).items()}


def made_up(module, options, result):
    """The rows of an experiment whose runs give ``result(run)``, follow-ups included."""
    experiment, rows = module.EXPERIMENT, {}
    wanted = experiment.runs(options)
    while todo := {key: run for run in wanted if (key := id_of(experiment, run)) not in rows}:
        rows |= {key: Row(key, to_mapping(run), result(run)) for key, run in todo.items()}
        wanted = experiment.follow_up(options, list(rows.values()))
    return list(rows.values())


def id_of(experiment, run):
    return run_id(experiment.name, experiment.version, to_mapping(run))


def scores(top1, held_out=0.5, **more):
    """A result with the same scores before and after scaling."""
    test = {"top1": top1 / 100, "top5": 0.9, "ece": 0.1, "nll": 1.0} | more
    return {"held_out": {"top1": held_out, "nll": 1.0}, "test": test, "scaled": test, "temperature": 1.0}


def noisy(run, spread):
    return random.Random(repr(run)).uniform(-spread, spread)


TOP1 = {"nll": 68, "info-nce": 68, "soft-ce": 67, "soft-dist-info-nce": 65, "soft-target-info-nce": 67.1,
        "expected-info-nce": 67}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "spread", "wanted"),
    [
        ({}, 0.01, {"worst": "reproduced", "rates": "reproduced", "top-5": "not reproduced"}),
        ({}, 6.0, dict.fromkeys(("worst", "rates", "top-5"), "undecided")),
        ({"rate_seeds": 1}, 0.01, {"rates": "undecided"}),  # one seed chose the rate
        ({"image_epochs": 4}, 0.01, {"soft-ce": "not reproduced", "nll": "not reproduced"}),  # fails for one model
    ],
)
def test_claims_about_accuracy_are_decided_by_intervals_over_seeds(changes, spread, wanted):
    def result(run):
        is_behind = run.loss.name == "soft-target-info-nce" and isinstance(run, accuracy.EndToEnd)
        top1 = TOP1[run.loss.name] - 5 * is_behind + noisy(run, spread)
        held_out = (0.6 if run.lr == 1e-3 else 0.58) + noisy(run, spread / 100)
        return scores(top1, held_out, top5=top1 / 100)

    options = accuracy.Options(6, 6, 6, image_epochs=0, rates=(3e-4, 1e-3, 3e-3))
    found = accuracy.findings(made_up(accuracy, replace(options, **changes), result))
    assert {claim: found[f"accuracy-{claim}"].verdict for claim in wanted} == wanted
    assert "epochs 3, batch 256, rates 0.0003 to 0.003" in found["accuracy-rates"].on
    assert found["accuracy-soft-ce"].on.count(";") == ("image_epochs" in changes)


@pytest.mark.parametrize(
    ("gains", "lead", "spread", "gain", "linear"),
    [
        ((0.4, 0.9), -0.3, 0.01, "reproduced", "reproduced"),
        ((0.4, 0.1), 0.3, 0.01, "not reproduced", "not reproduced"),
        ((0.4, 0.9), -0.3, 3.0, "undecided", "undecided"),
    ],
)
def test_gains_of_a_head_are_paired_and_at_the_chosen_rate(gains, lead, spread, gain, linear):
    of_loss = dict(zip(("soft-ce", "soft-target-info-nce"), gains, strict=True))

    def result(run):
        top1 = 60 + 0.1 * run.seed + (run.head.kind == "mlp") * of_loss.get(run.loss.name, 0.5) + noisy(run, spread)
        return scores(top1 + lead * (run.loss.name == "soft-target-info-nce"), run.lr == 3e-3)

    rows = made_up(head, head.Options(6, 6, 6, ("cifar100",), rates=(1e-3, 3e-3)), result)
    assert verdicts(head, rows).items() >= {"head-gain": gain, "head-linear": linear}.items()
    (part,) = head.parts(rows)
    assert {setting.lr for setting in part.settings.values()} == {3e-3}
    if spread < 1:
        assert part.gap(("nll", head.LAYERS), ("nll", head.LINEAR)).mean == pytest.approx(0.5, abs=0.05)
        assert head.extra(part).mean == pytest.approx(gains[1] - gains[0], abs=0.05)


def test_where_one_image_chose_the_rate_the_mean_of_all_seeds_does():
    options = calibration.Options(6, 3, ("tiny-imagenet",), rates=(1e-3, 3e-3))

    def result(run):  # seed 0 alone prefers the other rate for soft target InfoNCE, by one image of 800
        is_lucky = run.seed == 0 and run.lr == 3e-3
        held_out = 0.4788 if is_lucky else 0.4775 if run.lr == 1e-3 else 0.47
        return scores(47, held_out, ece=0.1 if run.lr == 1e-3 else 0.25)

    rows = made_up(calibration, options, result)
    ours = {augmentation: case.settings["soft-target-info-nce"]
            for (_, augmentation), case in calibration.cases(rows).items()}  # fmt: skip
    assert (ours["smoothing and MixUp"].lr, len(ours["smoothing and MixUp"])) == (1e-3, 6)
    assert ours["smoothing"].lr == 3e-3  # seed 0 alone was tried at both


def test_smoothing_is_a_temperature():
    logits, labels = torch.randn(32, 7, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 7
    assert max(smoothing.identity_error(logits, labels, 0.3).values()) < smoothing.ROUNDING
    probe = smoothing.settings(smoothing.Options(smoothing=(0.2,)))[1]
    twin = smoothing.twin(replace(probe, lr=1e-3, seed=4))
    assert twin.probe.loss.temperature == pytest.approx(1 / 0.8)
    assert twin.probe.targets.hard
    assert (twin.seed, twin.probe.lr) == (4, 1e-3)


def test_the_steadier_loss_is_decided_by_seed():
    options = smoothing.Options(4, 2, smoothing=(0.0, 0.1), expected_smoothing=(0.0, 0.1), rates=(1e-3,))

    def result(run):
        if isinstance(run, smoothing.Twin):
            return scores(60)
        slope = {"soft-ce": 10, "soft-target-info-nce": 1}.get(run.loss.name, 9)
        top1 = 60 + slope * run.targets.smoothing + noisy(run, 0.01)
        return scores(top1) | {"identity": {"value": 1e-15, "gradient": 0}}

    found = verdicts(smoothing, made_up(smoothing, options, result))
    wanted = {"sensitivity": "reproduced", "temperature": "beyond", "expected": "beyond"}
    assert found == {f"smoothing-{claim}": verdict for claim, verdict in wanted.items()}


def test_further_seeds_are_kept_apart_and_the_first_test_is_shown():
    options = noise_samples.Options(3, 4, 4, batches=(8, 1024), numbers=(32,), rates=(1e-3, 3e-3))

    def result(run):
        is_expected = run.loss.name == "expected-info-nce"
        better = run.lr == 1e-3 if run.seed else run.lr == 3e-3  # seed 0 prefers the other rate
        return scores(60 - 0.3 * is_expected + 5 * (run.seed < 1000) + noisy(run, 0.01), 0.6 if better else 0.59)

    rows = made_up(noise_samples, options, result)
    tested = noise_samples.parts(rows)[8]
    assert tested.settings["expected", 4096, False].lr == 1e-3
    assert tested.settings["expected", 4096, True].mean(percent("top1")).mean == pytest.approx(59.7, abs=0.02)
    assert noise_samples.gap(tested, "expected", further=True).count == 4
    assert noise_samples.findings(rows)["small-batch-expected"].verdict == "beyond"
    assert noise_samples.parts(rows, searched=1)[1024].settings["batch", 4096, False].lr == 3e-3


PRIOR = torch.tensor([0.6, 0.25, 0.1, 0.05])
LABELS = torch.repeat_interleave(torch.arange(4), (PRIOR * 4000).long())


@pytest.mark.parametrize(
    ("name", "noise", "epsilon", "wanted", "within"),
    [  # without the correction the prior is gone; the authors' way does not learn p(y|x) smoothed
        ("nll", "labels", 0, PRIOR, 0.15), ("info-nce", "labels", 0, PRIOR, 0.15),
        ("info-nce", "uniform", 0, torch.full((4,), 0.25), 0.15),
        (CORRECTED, "labels", 0.4, 0.6 * PRIOR + 0.1, 0.2), (DRAWN, "labels", 0.4, PRIOR, 0.2),
    ],
)  # fmt: skip
def test_the_correction_is_the_prior_of_the_targets(name, noise, epsilon, wanted, within):
    """Class scores fitted to labels that no feature says anything about: p(y|x) = p(y)."""
    loss = build_loss(Loss(name, noise=noise), replace(SMOOTH, smoothing=epsilon), LABELS, 4)
    layer = torch.nn.Linear(1, 4, bias=False)
    torch.nn.init.zeros_(layer.weight)
    targets = SoftTargets.from_labels(LABELS, 4, epsilon)
    fit(layer, loss, torch.ones(4000, 1), targets, batch=100, lr=0.05, epochs=8, seed=0)
    found = layer.weight.detach()[:, 0] - layer.weight.detach().mean()
    assert found.tolist() == pytest.approx((wanted.log() - wanted.log().mean()).tolist(), abs=within)


def tail_rows(effect, after, spread=0.01):
    """Leaving the correction out moves scores by −0.8 log p(y) and accuracy by ``effect``; switching by ``after``."""
    counts = [round(500 * 100 ** (-k / 9)) for k in range(10)]
    surprise = [-torch.tensor(count / sum(counts)).log().item() for count in counts]

    def result(run):
        bare = run.loss.noise == "uniform"
        top1 = 50 + effect * bare + 0.3 * run.seed + noisy(run, spread)
        top1 += 2 * (run.loss.name == CORRECTED)
        return scores(top1, 0.5) | {
            "switched": {"top1": (top1 + after) / 100},
            "groups": dict.fromkeys(long_tail.GROUPS, top1 / 100),
            "class_counts": counts,
            "class_accuracy": [top1 / 100] * 10,
            "class_score": [0.8 * s if bare else 0.0 for s in surprise],
        }

    return made_up(long_tail, long_tail.Options(imbalance=(100.0,), rates=(1e-3,)), result)


@pytest.mark.parametrize(("effect", "after", "verdict"), [(3.0, 2.0, "beyond"), (-3.0, 2.0, "not reproduced")])
def test_what_the_correction_does_is_read_off_the_rows(effect, after, verdict):
    rows = tail_rows(effect, after)
    tail = long_tail.tails(rows)[-1]
    assert long_tail.slope(tail, "info-nce") == pytest.approx(0.8)
    assert long_tail.effect(tail, "info-nce").mean == pytest.approx(effect, abs=0.05)
    wanted = {"noise-correction": verdict, "long-tail-smoothed-noise": "beyond"}
    assert verdicts(long_tail, rows).items() >= wanted.items()
    assert verdicts(long_tail, tail_rows(effect, after, spread=30.0))["noise-correction"] == "undecided"


def test_agreement_with_votes_is_cross_entropy_minus_entropy():
    votes = torch.tensor([[3, 1, 0], [0, 0, 4]])
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 2.0]])
    found = human_labels.agreement(logits, torch.tensor([0, 2]), votes)
    p, q = torch.tensor([0.75, 0.25]).double(), logits.double().softmax(1)
    first = (p * (p / q[0, :2]).log()).sum()
    assert found["kl"] == pytest.approx(((first - q[1, 2].log()) / 2).item())
    assert found["cross_entropy"] - found["kl"] == pytest.approx(-(p * p.log()).sum().item() / 2)
    assert found["top1"] == 1.0
    assert found["kl_disputed"] == pytest.approx(first.item())


def test_votes_are_equivalent_only_within_both_margins():
    def result(run, kl):
        shift = kl if run.method == "expected-info-nce" else 0.01 * (run.method == "nll")
        test = {"top1": 0.9 + noisy(run, 1e-4), "kl": 0.2 + shift + noisy(run, 1e-5), "ece": 0.01, "kl_disputed": 0.6}
        return {"held_out": {"cross_entropy": 0.4}, "test": test, "scaled": test, "temperature": 1.0}

    options = human_labels.Options(3, votes=(1, 0), rates=(1e-3,))
    for kl, verdict in ((0.0, "beyond"), (0.01, "not reproduced")):
        rows = made_up(human_labels, options, lambda run, kl=kl: result(run, kl))
        assert verdicts(human_labels, rows) == {"expected-votes": verdict, "human-labels": "beyond"}


def test_a_lesson_keeps_k_classes_and_says_where_the_rest_goes():
    logits = torch.tensor([[4.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.5, 0.0]])
    p = logits.double().softmax(1)
    student = distillation.Student(distillation.Teacher("digits"), "soft-ce", 1)
    assert torch.equal(distillation.lesson(logits, student).dense(), torch.eye(4)[[0, 2]])
    spread = distillation.lesson(logits, replace(student, remainder="spread")).dense()
    first = p[0, 0].item()
    assert spread[0].tolist() == pytest.approx([first + (1 - first) / 4, *3 * [(1 - first) / 4]], abs=1e-6)
    shared = distillation.lesson(logits, replace(student, remainder="shared")).dense()
    rest = 1 - p.amax(1).mean().item()
    assert shared[0].tolist() == pytest.approx([1 - rest * 3 / 4, *3 * [rest / 4]], abs=1e-6)
    assert torch.allclose(distillation.lesson(logits, replace(student, k=0)).dense().double(), p, atol=1e-6)


SMALL = {  # a change of the quick preset that leaves a few trainings of a second
    "accuracy": {"rates": (3e-3,)},
    "calibration": {"rates": (3e-3,)},
    "distillation": {"teacher": distillation.Teacher("digits", 1, 16, 64, 1), "k": (0,)},
    "head": {"rates": (3e-3,)},
    "human-labels": {"epochs": 1, "votes": (0,)},
    "long-tail": {"epochs": 1, "rates": (3e-3,)},
    "noise-samples": {"batches": (64,), "rates": (3e-3,)},
    "noisy-steps": {"epochs": 1, "seeds": 1},
    "smoothing": {"epochs": 1, "rates": (3e-3,), "smoothing": (0.0, 0.1), "expected_smoothing": (0.1,)},
}


@pytest.mark.parametrize("name", NAMES)
def test_small_trainings_give_tables(name, tmp_path):
    experiment = load(name)
    options = replace(experiment.presets["quick"], **SMALL[name])
    runs = {id_of(experiment, run): run for run in experiment.runs(options)}
    experiment.prepare(list(runs.values()))
    rows = [Row(key, to_mapping(run), experiment.perform(run)) for key, run in runs.items()]
    json.dumps([row.result for row in rows], allow_nan=False)
    assert experiment.findings(rows).keys() <= {claim.key for claim in experiment.claims}
    for table in experiment.tables(rows):
        assert table.markdown()
    for figure in experiment.figures(rows):
        figure.save(tmp_path)


def test_a_long_tail_is_trained_on_less_and_measured_by_class():
    options = long_tail.Options(1, "digits", (10.0,), epochs=2)
    nll = next(run for run in long_tail.settings(options) if run.loss.name == "nll")
    result = long_tail.perform(replace(nll, lr=3e-3))
    counts, accuracy = result["class_counts"], torch.tensor(result["class_accuracy"])
    assert counts[0] / counts[-1] == pytest.approx(10, rel=0.05)
    labels = features.load("digits").test.y
    weights = torch.bincount(labels) / len(labels)
    assert (weights * accuracy).sum().item() == pytest.approx(result["test"]["top1"], abs=1e-3)
    assert result["switched"]["top1"] != result["test"]["top1"]


@pytest.mark.slow
def test_a_committed_row_is_trained_again(real_data):
    """Up to rounding of features computed anew."""
    from experiments.noisy_steps import EXPERIMENT, Run

    row = EXPERIMENT.results(PAPER).rows()[0]
    again = Row("", row.config, EXPERIMENT.perform(Run(**row.config)))
    assert mean([again], percent("top1")).mean == pytest.approx(100 * row.result["test"]["top1"], abs=0.3)


def test_the_network_from_scratch_is_the_recipe_with_the_loss_targets_rate_and_epochs_of_the_run(monkeypatch, tmp_path):
    from experiments.cells import train

    monkeypatch.setattr(train, "scored", lambda recipe: {"recipe": recipe})
    monkeypatch.setattr(accuracy.features, "folder", lambda name: tmp_path)
    run = accuracy.EndToEnd(Loss("soft-ce"), accuracy.IMAGE_TARGETS, batch=128, epochs=4, lr=3e-3, seed=2)
    recipe = accuracy.perform(run)["recipe"]
    assert (recipe.seed, recipe.loss, recipe.targets, recipe.schedule.epochs) == (2, run.loss, run.targets, 4)
    assert recipe.optimiser.base_lr * recipe.optimiser.batch / 256 == pytest.approx(3e-3)
    assert (recipe.data.holdout, recipe.data.dir) == (0.1, tmp_path)
