"""A teacher of several large heads on all features and data; a student with one small head, fewer of both."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from softnce import noise
from softnce.draws import Averaged
from softnce.lab.data.features import Features, Part, Source, load
from softnce.lab.data.images import stratified
from softnce.lab.experiment import probe as training
from softnce.lab.experiment.probe import BestEpoch, Probe, build_head, fit
from softnce.lab.recipes.recipe import Head, Loss
from softnce.lab.teacher import TeacherOutputs
from softnce.losses import (
    NLL,
    ClassifierLoss,
    InfoNCE,
    SoftDistributionInfoNCE,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
)
from softnce.targets import SoftTargets

Method = Literal["nll", "soft-ce", "info-nce", "soft-dist-info-nce", "soft-target-info-nce", "averaged"]
HARD: tuple[Method, ...] = ("nll", "info-nce")


@dataclass(frozen=True)
class Teacher:
    """An ensemble of three-layer heads trained by NLL on all features of the whole training part."""

    data: Source
    members: int = 3
    hidden: int = 512
    batch: int = 256
    epochs: int = 3
    lr: float = 1e-3


@dataclass(frozen=True)
class Student:
    """A linear head on some of the features, trained on a share of the samples.

    Attributes:
        teacher: whose outputs are learned; of the same data set.
        k: likeliest classes of the teacher to learn from, 0 for all; None: the samples' labels, no teacher.
        remainder: what becomes of the mass of the other classes: given to the k in proportion, spread over all classes,
            or "shared": spread likewise, but in every row the mean mass of all rows.
        temperature: of the teacher.
        smoothing: ε of the labels where there is no teacher.
        n: labels in an averaged draw.
        features: how many, the same for every student.
        share: of the training part.
    """

    teacher: Teacher
    method: Method
    k: int | None
    remainder: Literal["renormalise", "spread", "shared"] = "renormalise"
    temperature: float = 1.0
    smoothing: float = 0.0
    n: int = 0
    features: int = 320
    share: float = 0.1
    batch: int = 128
    epochs: int = 15
    lr: float = 3e-3
    seed: int = 0


@cache  # the second stage of a study has the same teacher
def teach(teacher: Teacher) -> tuple[dict[str, Any], Tensor]:
    """Train the teacher; its scores, and its logits (N, K) for the training part: logs of the mean probabilities."""
    data = load(teacher.data)
    means = [torch.zeros(len(part), data.num_classes) for part in _parts(data)]
    for seed in range(teacher.members):
        head = Head(hidden=teacher.hidden)
        probe = Probe(teacher.data, Loss("nll"), training.HARD, head, teacher.batch, teacher.lr, teacher.epochs, seed)
        watch = training.trained(probe, data)
        watch.head.load_state_dict(watch.weights)
        for mean, part in zip(means, _parts(data), strict=True):
            mean += watch.logits(part.x).softmax(1) / teacher.members
    train, test = (mean.clamp(min=1e-12).log() for mean in means)
    sure = train.exp().amax(1).mean().item()
    return {
        "train": training.scores(train, data.train.y),
        "test": training.scores(test, data.test.y),
        "confidence": sure,
    }, train


def _parts(data: Features) -> tuple[Part, Part]:
    return data.train, data.test


@contextmanager
def taught(students: Iterable[Student], logits: dict[Teacher, Tensor]) -> Iterator[dict[tuple[Teacher, float], Path]]:
    """Files of the teachers' outputs at every temperature the students need, for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        files: dict[tuple[Teacher, float], Path] = {}
        for student in students:
            key = student.teacher, student.temperature
            if student.k is not None and key not in files:
                labels, num_classes = load(student.teacher.data).train.y, load(student.teacher.data).num_classes
                files[key] = Path(folder) / f"{len(files)}.pt"
                TeacherOutputs.from_logits(logits[student.teacher], num_classes, key[1]).save(files[key], labels)
        yield files


def learn(student: Student, file: Path | None) -> dict[str, Any]:
    """Train the student, from the teacher's ``file`` where it has one; measurements of its best held-out epoch."""
    whole = load(student.teacher.data)
    columns = torch.randperm(whole.dim, generator=torch.Generator().manual_seed(0))[: student.features].sort().values
    rows = stratified(whole.train.y, student.share)[1]
    held_out, test = (Part(part.x[:, columns], part.y) for part in (whole.held_out, whole.test))
    data = replace(
        whole, train=Part(whole.train.x[rows][:, columns], whole.train.y[rows]), held_out=held_out, test=test
    )
    if student.k is None:
        soft = SoftTargets.from_labels(data.train.y, data.num_classes, student.smoothing)
    else:
        assert file is not None
        outputs = TeacherOutputs.load(file, whole.train.y, whole.num_classes)
        soft = targets(outputs, student)[rows]
    if student.method in HARD and not soft.is_hard:
        soft = SoftTargets.from_labels(soft.dense().argmax(1), data.num_classes)
    loss = build(student, noise.from_counts(soft.class_mass(), floor=1))
    head = build_head(Head("linear"), data.dim, data.num_classes, student.seed)
    watch = BestEpoch(head, data.held_out)
    fit(
        head, loss, data.train.x, soft,
        batch=student.batch, lr=student.lr, epochs=student.epochs, seed=student.seed, after=watch,
    )  # fmt: skip
    found = watch.measurements(data)
    del found["reliability"]
    return found


def targets(outputs: TeacherOutputs, student: Student) -> SoftTargets:
    """What the student is to learn of the teacher's outputs, for the whole training part."""
    k = student.k or outputs.num_classes
    if student.remainder != "shared":
        return outputs.targets(student.remainder, k)
    rest = 1 - outputs.probability[:, :k].sum(1).mean().item()
    return outputs.targets("renormalise", k).smooth(min(max(rest, 0.0), 1.0))


def build(student: Student, eta: Tensor) -> ClassifierLoss:
    match student.method:
        case "nll":
            return NLL()
        case "soft-ce":
            return SoftTargetCrossEntropy()
        case "info-nce":
            return InfoNCE(eta)
        case "soft-dist-info-nce":
            return SoftDistributionInfoNCE(eta)
        case "soft-target-info-nce":
            return SoftTargetInfoNCE(eta)
        case "averaged":
            return SoftTargetInfoNCE(eta, draw=Averaged(student.n))
