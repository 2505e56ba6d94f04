"""A teacher of several large heads on all features and data; a student with one small head, fewer of both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from softnce import noise
from softnce.lab.configuration import later
from softnce.lab.data.features import Part, Source, load
from softnce.lab.data.images import stratified
from softnce.lab.experiment import probe
from softnce.lab.experiment.probe import BestEpoch, Probe, fit
from softnce.lab.heads import Head, build_head
from softnce.lab.losses import Loss, loss_with_noise
from softnce.targets import SoftTargets
from softnce.teacher import TeacherOutputs

Method = Literal[
    "nll", "soft-ce", "info-nce", "soft-dist-info-nce", "soft-target-info-nce", "expected-info-nce", "averaged"
]
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
        noise_count: m of expected InfoNCE; None for its default, as many as classes.
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
    noise_count: float | None = later(None, "m of expected InfoNCE")


@cache  # the second stage of a study has the same teacher
def teach(teacher: Teacher) -> tuple[dict[str, Any], Tensor]:
    """Train the teacher; its scores, and its logits (N, K) for the training part: logs of the mean probabilities."""
    data = load(teacher.data)
    means = [torch.zeros(len(part), data.num_classes) for part in (data.train, data.test)]
    for seed in range(teacher.members):
        head = Head(hidden=teacher.hidden)
        member = Probe(teacher.data, Loss("nll"), probe.HARD, head, teacher.batch, teacher.lr, teacher.epochs, seed)
        watch = probe.trained(member, data)
        watch.head.load_state_dict(watch.weights)
        for mean, part in zip(means, (data.train, data.test), strict=True):
            mean += watch.logits(part.x).softmax(1) / teacher.members
    train, test = (mean.clamp(min=1e-12).log() for mean in means)
    return {
        "train": probe.scores(train, data.train.y),
        "test": probe.scores(test, data.test.y),
        "confidence": train.exp().amax(1).mean().item(),
    }, train


Files = Mapping[tuple[Teacher, float], Path]
"""Files of teachers' outputs, by teacher and temperature."""


def write_outputs(students: Iterable[Student], folder: Path) -> Files:
    """The teachers' outputs at every temperature the students need."""
    files: dict[tuple[Teacher, float], Path] = {}
    for student in students:
        key = student.teacher, student.temperature
        if student.k is not None and key not in files:
            data = load(student.teacher.data)
            files[key] = folder / f"{len(files)}.pt"
            outputs = TeacherOutputs.from_logits(teach(student.teacher)[1], data.num_classes, student.temperature)
            outputs.save(files[key], data.train.y)
    return files


def learn(student: Student, files: Files) -> dict[str, Any]:
    """Train the student, from its teacher's file where it has one; measurements of its best held-out epoch."""
    whole = load(student.teacher.data)
    columns = torch.randperm(whole.dim, generator=torch.Generator().manual_seed(0))[: student.features].sort().values
    rows = stratified(whole.train.y, student.share)[1]
    train, held_out, test = (
        Part(part.x[:, columns], part.y) for part in (whole.train[rows], whole.held_out, whole.test)
    )
    data = replace(whole, train=train, held_out=held_out, test=test)
    if student.k is None:
        soft = SoftTargets.from_labels(data.train.y, data.num_classes, student.smoothing)
    else:
        outputs = TeacherOutputs.load(
            files[student.teacher, student.temperature], whole.train.y, num_classes=whole.num_classes
        )
        soft = targets(outputs, student)[rows]
    if student.method in HARD and not soft.is_hard:
        soft = SoftTargets.from_labels(soft.dense().argmax(1), data.num_classes)
    eta = noise.from_counts(soft.class_mass(), floor=1)
    loss = loss_with_noise(student.method, eta, student.n, student.noise_count)
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
