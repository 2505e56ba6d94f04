"""A teacher, its students, and what the page makes of them."""

from dataclasses import replace

import pytest
import torch

from softnce.lab import studies
from softnce.lab.commands import study as study_command
from softnce.lab.configuration import to_mapping
from softnce.lab.data.features import load
from softnce.lab.experiment.results import Row
from softnce.lab.report import charts, drawing
from softnce.lab.studies.distillation import findings, page
from softnce.lab.studies.distillation import run as study
from softnce.lab.studies.distillation import training as distillation
from softnce.lab.studies.distillation.training import Student, Teacher

TEACHER = Teacher("digits", members=2, hidden=32, batch=64, epochs=4, lr=3e-3)
STUDENT = Student(TEACHER, "nll", None, features=24, batch=32, epochs=3, lr=3e-2)


@pytest.fixture(scope="module")
def taught():
    return distillation.teach(TEACHER)


def learn(student, logits):
    with distillation.taught([student], {TEACHER: logits}) as files:
        result = distillation.learn(student, files)
    assert not any(file.exists() for file in files.values())
    return result


def test_the_teacher_is_the_mean_of_its_members(taught):
    result, logits = taught
    alone = [distillation.teach(replace(TEACHER, members=1))]
    data = load("digits")
    assert logits.shape == (len(data.train), 10)
    assert logits.exp().sum(1) == pytest.approx(torch.ones(len(logits)), abs=1e-5)
    assert result["train"]["top1"] == pytest.approx((logits.argmax(1) == data.train.y).double().mean().item())
    assert result["test"]["top1"] > 0.85
    assert not torch.allclose(alone[0][1], logits)


def test_hard_losses_take_the_teachers_first_class(taught):
    """NLL on the first class is cross-entropy on k = 1 renormalised, to the last digit."""
    first = learn(replace(STUDENT, k=1), taught[1])
    same = learn(replace(STUDENT, method="soft-ce", k=1), taught[1])
    assert first["test"] == same["test"]
    assert first["test"] == learn(replace(STUDENT, k=0), taught[1])["test"]  # of any k it takes the first


def test_without_a_teacher_students_learn_labels(taught):
    result = learn(STUDENT, taught[1])
    # a teacher who repeats the labels teaches the same
    labels = torch.nn.functional.one_hot(load("digits").train.y, 10) * 50.0
    assert result["test"] == learn(replace(STUDENT, k=1), labels)["test"]


def test_lessons_differ(taught):
    soft = replace(STUDENT, method="soft-ce", k=2)
    found = [
        learn(student, taught[1])["test"]["nll"]
        for student in (soft, replace(soft, remainder="spread"), replace(soft, k=0), replace(soft, temperature=3.0))
    ]
    assert len(set(found)) == 4


def test_a_shared_background_is_the_mean_of_the_rows_own(taught):
    outputs = distillation.TeacherOutputs.from_logits(taught[1], 10, 2.0)
    student = replace(STUDENT, k=1, temperature=2.0)
    own, shared = (distillation.targets(outputs, replace(student, remainder=r)) for r in ("spread", "shared"))
    assert torch.equal(own.dense().argmax(1), shared.dense().argmax(1))
    assert isinstance(shared.smoothing, float)
    assert shared.smoothing == pytest.approx(own.background_mass().mean().item(), rel=1e-5)


def test_students_see_some_features_and_samples_of_every_class(monkeypatch, taught):
    seen = []
    monkeypatch.setattr(
        distillation, "fit", lambda head, loss, x, soft, *, after, **_: (seen.append((x, soft)), after(1))
    )
    learn(replace(STUDENT, method="soft-ce", k=0), taught[1])
    ((x, soft),) = seen
    data = load("digits")
    assert x.shape[1] == 24
    assert len(x) == len(soft) == pytest.approx(0.1 * len(data.train), abs=5)
    # the targets are the teacher's rows of those very samples
    rows = distillation.stratified(data.train.y, 0.1)[1]
    assert soft.dense() == pytest.approx(taught[1][rows].exp(), abs=1e-5)


@pytest.mark.parametrize(
    "method", ["info-nce", "soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce", "averaged"]
)
def test_every_loss_learns(method, taught):
    student = replace(STUDENT, method=method, k=1 if method == "info-nce" else 0, n=2, epochs=8)
    assert learn(student, taught[1])["test"]["top1"] > 0.5


def test_the_grid_has_every_lesson_once():
    config = study.PRESETS["paper"]
    settings = study.settings(config)
    assert len(set(settings)) == len(settings)
    for method in study.SOFT:
        found = {(s.k, s.remainder, s.temperature) for s in settings if s.method == method}
        control = method in (study.CE, study.OURS)
        assert len(found) == 1 + 4 + 3 + 4 + control  # labels; spread; renormalised; temperature 2; one shared
        assert {k for k, _, _ in found} == {None, 0, 1, 2, 5}
    for method in study.HARD:
        assert sorted(s.k or 0 for s in settings if s.method == method) == [0, 1]


def rows_with(top1, data="cifar100"):
    """Rows of three seeds with a top-1 for each method, from labels and from the teacher (at temperature 2, halved)."""
    config = study.Config(data=data, rates=(1e-3,))
    teacher = {"train": {"top1": 0.9}, "test": {"top1": 0.7}, "confidence": 0.8}
    found = [Row("0", to_mapping(study.teacher(config)), teacher, 1.0, "", {})]
    for setting in study.settings(config):
        for seed in range(3):
            value = top1[setting.method][setting.k is not None] + 0.1 * seed
            value = value / 2 if setting.temperature == 2 and setting.remainder == "spread" else value
            scores = {"top1": value / 100, "ece": 0.1, "nll": 1.0}
            run = replace(setting, lr=1e-3, seed=seed)
            result = {"held_out": scores, "test": scores, "scaled": scores}
            found.append(Row(str(len(found)), to_mapping(run), result, 1.0, "", {}))
    return found


TOP1 = dict.fromkeys(("nll", "info-nce", study.EXPECTED, *study.SOFT), (50.0, 55.0))
TOP1["soft-target-info-nce"] = (50.0, 52.0)


def test_the_page_says_the_numbers_of_the_rows():
    rows = rows_with(TOP1)
    section = page.section(rows)
    text = section.summary + " ".join(block for block in section.blocks if isinstance(block, str))
    for words in ("soft target cross-entropy +5.00 [+5.00, +5.00]", "soft target InfoNCE +2.00 [+2.00, +2.00]",
                  "+26.05 [+25.93, +26.17] points if all rows share", "70.0 % top-1"):  # fmt: skip
        assert words.replace(" %", "\N{NO-BREAK SPACE}%") in text
    chosen = findings.find(rows).chosen
    behind = chosen[study.OURS, findings.ALL].minus(chosen[study.CE, findings.ALL], findings.TOP1)
    assert (behind.low, behind.mean, behind.high) == pytest.approx((-3, -3, -3))
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)
    assert page.section(rows[:1]).title
    assert page.section(rows[1:2]).title
    assert findings.claims(rows[:2]) == {}


@pytest.mark.parametrize(("data", "verdict"), [("cifar100", "beyond"), ("digits", "undecided")])
def test_verdict(data, verdict):
    found = studies.load("distillation").judge(rows_with(TOP1, data))["distillation"]
    assert found.verdict == verdict
    assert found.ours.startswith("+2.00 [+2.00, +2.00] points over NLL on labels")


@pytest.mark.parametrize(
    ("top1", "data", "verdict"),
    [(55.2, "cifar100", "beyond"), (54.0, "cifar100", "not reproduced"), (55.2, "digits", "undecided")],
)
def test_verdict_on_expected_info_nce(top1, data, verdict):
    rows = rows_with(TOP1 | {"expected-info-nce": (50.0, top1)}, data)
    assert studies.load("distillation").judge(rows)["expected-teacher"].verdict == verdict


def test_bad_settings_are_named():
    for options, word in (({"share": 0.0}, "share"), ({"k": (-1,)}, "k"), ({"temperatures": ()}, "temperatures")):
        with pytest.raises(ValueError, match=word):
            study.Config(**options)


@pytest.mark.slow
def test_from_command_to_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(study, "one_per_core", map)
    command = [
        "distillation",
        "--out",
        str(tmp_path),
        "--epochs",
        "1",
        "--teacher_epochs",
        "1",
        "--seeds",
        "2",
        "--compared_seeds",
        "2",
    ]
    for _ in range(2):
        study_command.main(command)
    assert capsys.readouterr().out.count(": 0 runs to do") == 2
    rows = studies.load("distillation").results(tmp_path).rows()
    assert len(rows) == 1 + 2 * len(study.settings(study.PRESETS["quick"]))
    assert "nan" not in page.section(rows).summary
