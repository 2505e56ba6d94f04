"""A teacher and its students."""

from dataclasses import replace

import pytest
import torch

from softnce.lab.data.features import load
from softnce.lab.studies.distillation import training as distillation
from softnce.lab.studies.distillation.training import Student, Teacher

TEACHER = Teacher("digits", members=2, hidden=32, batch=64, epochs=4, lr=3e-3)


STUDENT = Student(TEACHER, "nll", None, features=24, batch=32, epochs=3, lr=3e-2)


@pytest.fixture(scope="module")
def taught():
    return distillation.teach(TEACHER)


@pytest.fixture
def learn(tmp_path):
    """``learn(student)`` of its teacher."""
    return lambda student: distillation.learn(student, distillation.write_outputs([student], tmp_path))


def test_the_teacher_is_the_mean_of_its_members(taught):
    result, logits = taught
    alone = [distillation.teach(replace(TEACHER, members=1))]
    data = load("digits")
    assert logits.shape == (len(data.train), 10)
    assert logits.exp().sum(1) == pytest.approx(torch.ones(len(logits)), abs=1e-5)
    assert result["train"]["top1"] == pytest.approx((logits.argmax(1) == data.train.y).double().mean().item())
    assert result["test"]["top1"] > 0.85
    assert not torch.allclose(alone[0][1], logits)


def test_hard_losses_take_the_teachers_first_class(learn):
    """NLL on the first class is cross-entropy on k = 1 renormalised, to the last digit."""
    first = learn(replace(STUDENT, k=1))
    same = learn(replace(STUDENT, method="soft-ce", k=1))
    assert first["test"] == same["test"]
    assert first["test"] == learn(replace(STUDENT, k=0))["test"]  # of any k it takes the first


def test_without_a_teacher_students_learn_labels(learn, monkeypatch):
    result = learn(STUDENT)
    # a teacher who repeats the labels teaches the same
    labels = torch.nn.functional.one_hot(load("digits").train.y, 10) * 50.0
    monkeypatch.setattr(distillation, "teach", lambda teacher: ({}, labels))
    assert result["test"] == learn(replace(STUDENT, k=1))["test"]


def test_lessons_differ(learn):
    soft = replace(STUDENT, method="soft-ce", k=2)
    found = [
        learn(student)["test"]["nll"]
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


def test_students_see_some_features_and_samples_of_every_class(monkeypatch, taught, learn):
    seen = []
    monkeypatch.setattr(
        distillation, "fit", lambda head, loss, x, soft, *, after, **_: (seen.append((x, soft)), after(1))
    )
    learn(replace(STUDENT, method="soft-ce", k=0))
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
def test_every_loss_learns(method, learn):
    student = replace(STUDENT, method=method, k=1 if method == "info-nce" else 0, n=2, epochs=8)
    assert learn(student)["test"]["top1"] > 0.5
