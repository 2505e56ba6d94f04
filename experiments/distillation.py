"""Teacher and student: which losses learn from a teacher's outputs, and how many of its classes do they need?

The teacher is an ensemble of three-layer heads, trained by NLL on all features of the whole training part. The student
is a linear head on some of the features and a tenth of the samples. It learns from labels, or from the teacher's k most
probable classes; the mass of the others goes to the k ("renormalise"), over all classes ("spread"), or over all classes
with the same mass in every row ("shared"). Losses on labels take the teacher's first class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from experiments import training
from experiments.data import features
from experiments.data.features import Features, Part, Source
from experiments.data.samples import stratified
from experiments.features import ALONE, CE, DRAWN, ECE, EXPECTED, NAMES, NLL, OURS, TOP1, Compared, scores_table, spread
from experiments.harness import SERIES, Experiment, Figure, Row, Table, curve, label, later, level, option
from experiments.harness.claims import ON_PAR, Finding
from experiments.harness.search import at_best_rate, trials, tuned
from experiments.harness.statistics import largest, percent
from experiments.losses import Loss, loss_with_noise
from experiments.models.heads import Head, build_head
from experiments.training import BestEpoch, Probe, fit
from softnce import SoftTargets, noise
from softnce.teacher import TeacherOutputs

HARD, SOFT = ("nll", "info-nce"), (CE, DRAWN, OURS, "averaged")
METHODS = [*HARD, *SOFT, EXPECTED, ALONE]
NAMED = NAMES | {"averaged": "mean of 2 draws"}
Lesson = tuple[int | None, str, float]
"""k (None: labels, 0: all classes), remainder and temperature."""
LABELS: Lesson = (None, "renormalise", 1.0)
ALL: Lesson = (0, "spread", 1.0)


@dataclass(frozen=True)
class Teacher:
    """An ensemble of three-layer heads trained by NLL."""

    data: Source = option("cifar100", "data set")
    members: int = option(3, "heads in the ensemble", least=1)
    hidden: int = option(512, "width of their hidden layers", least=1)
    batch: int = option(256, "rows in a batch", least=1)
    epochs: int = option(3, "passes over the training part", least=1)
    lr: float = option(1e-3, "learning rate", above=0)


@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "seeds of the student; there is one teacher", least=1)
    compared_seeds: int = option(12, "those of expected InfoNCE and soft target cross-entropy, whole outputs", least=1)
    teacher: Teacher = Teacher()
    features: int = option(320, "features the student sees", least=1)
    batch: int = option(128, "rows in a batch of the student, which are also the candidates", least=1)
    k: tuple[int, ...] = option((1, 2, 5, 0), "likeliest classes the student sees; 0 for all", least=0, fewest=1)
    temperatures: tuple[float, ...] = option((1.0, 2.0), "of the teacher", above=0, fewest=1)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "rates tried for each setting", above=0, fewest=1)


@dataclass(frozen=True)
class Student:
    """A linear head; ``k``, ``remainder`` and ``temperature`` say what it learns, ``n`` is of averaged draws."""

    teacher: Teacher
    method: str
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
    noise_count: float | None = later(None, "m of expected InfoNCE; None: as many as classes")


def settings(options: Options) -> list[Student]:
    plain = Student(options.teacher, "nll", None, features=options.features, batch=options.batch)
    first, *hotter = options.temperatures
    found = [replace(plain, method=method, k=k) for k in (None, 1) for method in HARD]
    for method in SOFT:
        soft = replace(plain, method=method, n=2 if method == "averaged" else 0)
        found.append(replace(soft, smoothing=0.1))
        found += [replace(soft, k=k, remainder="spread", temperature=t) for t in (first, *hotter) for k in options.k]
        found += [replace(soft, k=k, temperature=first) for k in options.k if k]  # of all classes nothing remains
    for t in hotter:  # a control: as soft as the first class spread, but all rows alike
        found += [replace(plain, method=method, k=1, remainder="shared", temperature=t) for method in (CE, OURS)]
    whole = [replace(run, method=EXPECTED) for run in found if run.method == CE and run.k in (None, 0)]
    return [*found, *whole, *(replace(run, noise_count=0.0) for run in whole)]


def runs(options: Options) -> list[Teacher | Student]:
    return [options.teacher, *trials(settings(options), options.rates)]


def follow_up(options: Options, rows: Sequence[Row]) -> list[Student]:
    wanted = settings(options)
    compared = [run for run in wanted if run.method in (CE, EXPECTED) and run.k == 0 and run.noise_count is None]
    seeds = (wanted, options.seeds), (compared, options.compared_seeds)
    return [run for of, number in seeds for run in tuned(of, pupils(rows), options.rates, number)]


def pupils(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "method" in row.config]


@cache  # once per process
def taught(teacher: Teacher) -> tuple[Tensor, dict[str, Any]]:
    """The ensemble's logits (N, K) of the training part, logarithms of mean probabilities, and its scores."""
    data = features.load(teacher.data)
    means = [torch.zeros(len(part), data.num_classes) for part in (data.train, data.test)]
    for seed in range(teacher.members):
        head = Head(hidden=teacher.hidden)
        member = Probe(teacher.data, Loss("nll"), training.HARD, head, teacher.batch, teacher.lr, teacher.epochs, seed)
        watch = training.trained(member, data)
        watch.head.load_state_dict(watch.weights)
        for mean, part in zip(means, (data.train, data.test), strict=True):
            mean += watch.logits(part.x).softmax(1) / teacher.members
    train, test = (mean.clamp(min=1e-12).log() for mean in means)
    scores = {"train": training.scores(train, data.train.y), "test": training.scores(test, data.test.y)}
    return train, scores | {"confidence": train.exp().amax(1).mean().item()}


def perform(run: Teacher | Student) -> dict[str, Any]:
    """The teacher's scores; or trains a student, measurements of its best held-out epoch."""
    if isinstance(run, Teacher):
        return taught(run)[1]
    whole = features.load(run.teacher.data)
    columns = torch.randperm(whole.dim, generator=torch.Generator().manual_seed(0))[: run.features].sort().values
    rows = stratified(whole.train.y, run.share)[1]
    parts = (Part(part.x[:, columns], part.y) for part in (whole.train[rows], whole.held_out, whole.test))
    data = Features(*parts, whole.num_classes)
    if run.k is None:
        soft = SoftTargets.from_labels(data.train.y, data.num_classes, run.smoothing)
    else:
        soft = lesson(taught(run.teacher)[0], run)[rows]
    if run.method in HARD and not soft.is_hard:
        soft = SoftTargets.from_labels(soft.dense().argmax(1), data.num_classes)
    loss = loss_with_noise(run.method, noise.from_counts(soft.class_mass(), floor=1), run.n, run.noise_count)
    head = build_head(Head("linear"), data.dim, data.num_classes, run.seed)
    watch = BestEpoch(head, data.held_out)
    fit(head, loss, data.train.x, soft, batch=run.batch, lr=run.lr, epochs=run.epochs, seed=run.seed, after=watch)
    return watch.measurements(data)


def lesson(logits: Tensor, student: Student) -> SoftTargets:
    """The targets of the whole training part."""
    outputs = TeacherOutputs.from_logits(logits, logits.shape[1], student.temperature)
    k = student.k or outputs.num_classes
    if student.remainder != "shared":
        return outputs.targets(student.remainder, k)
    rest = 1 - outputs.probability[:, :k].sum(1).mean().item()
    return outputs.targets("renormalise", k).smooth(min(max(rest, 0.0), 1.0))


def find(rows: Sequence[Row]) -> Compared:
    """The largest group of students with one teacher, by method and lesson."""
    group = largest(pupils(rows), "teacher", "features", "share", "batch", "epochs")
    settings = {}
    for setting in at_best_rate(group).values():
        c = setting.config
        method = ALONE if c.get("noise_count") == 0 else c["method"]
        settings[method, (c["k"], c["remainder"], c["temperature"])] = setting
    data = f"{features.NAMES[group[0].config['teacher']['data']]} features" if group else ""
    order = sorted(settings, key=lambda key: (METHODS.index(key[0]), str(key)))
    return Compared("distillation", data, group, {key: settings[key] for key in order})


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found, labels = find(rows), ("nll", LABELS)
    if found.is_quick or not {labels, (OURS, ALL), (EXPECTED, ALL), (CE, ALL)} <= found.settings.keys():
        return {}
    lessons = [key for key in found.settings if key[0] == OURS and key[1] != LABELS]
    best = max(lessons, key=lambda key: found.settings[key].mean(percent("top1", "held_out")).mean)
    return {
        "distillation": found.decided(best, labels, above=0, new=True),
        "expected-teacher": found.decided((EXPECTED, ALL), (CE, ALL), new=True, **ON_PAR),
    }


def tables(rows: Sequence[Row]) -> list[Table]:
    found, body, names = find(rows), [], {}
    for name in METHODS:
        over_ce = [found.gap((name, of), (CE, of)) if name != CE else None for of in (LABELS, ALL, (0, "spread", 2.0))]
        body.append([NAMED[name], *map(spread, [found.gap((name, ALL), ("nll", LABELS)), *over_ce])])
    header = ("points of top-1", "whole output, over NLL on labels", "labels, minus soft target cross-entropy",
              "whole output, minus it", "temperature 2, minus it")  # fmt: skip
    for (name, (k, remainder, t)), setting in found.settings.items():
        names[NAMED[name], "labels" if k is None else f"{k or 'all'}, {remainder}, {t:g}"] = setting
    columns = {"top-1 (%)": (TOP1, 2), "ECE (%)": (ECE, 1), "NLL (nats)": (NLL, 3)}
    return [Table("distillation-gaps", header, body),
            scores_table("distillation", ["loss", "k, remainder, temperature"], names, columns)]  # fmt: skip


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = find(rows).settings
    kinds = sorted({(r, t) for _, (k, r, t) in found if k is not None and (k > 1 or r == "spread")})

    def draw(axes) -> None:
        for ax, (remainder, temperature) in zip(axes, kinds, strict=True):
            for name in (*SOFT, EXPECTED):
                points = {k or 100: s.mean(TOP1) for (of, (k, r, t)), s in found.items()
                          if of == name and t == temperature and (k == 0 or (k and r == remainder))}  # fmt: skip
                look = {"name": NAMED[name], "colour": SERIES[4]} if name == "averaged" else {"loss": name}
                curve(ax, dict(sorted(points.items())), **look)
            if ("nll", LABELS) in found:
                level(ax, found["nll", LABELS].mean(TOP1).mean, "labels, NLL")
            title = f"{remainder}, temperature {temperature:g}"
            kept = sorted({k or 100 for _, (k, _, _) in found if k is not None})
            label(ax, "teacher's classes that are kept", "top-1 (%)", title=title, log="x", xticks=kept)

    return [Figure("distillation", draw, panels=len(kinds))] if kinds else []


SMALL = Teacher("digits", members=2, hidden=64, batch=64, epochs=8)
EXPERIMENT = Experiment(
    name="distillation", question="Which losses learn from a teacher, and how many of its classes do they need?",
    minutes=22, runs=runs, follow_up=follow_up, perform=perform,
    presets={"quick": Options(3, 3, SMALL, 24, 32, (1, 2, 0), (1.0,), (3e-2,)), "paper": Options()},
    prepare=lambda todo: features.prepare(run.data if isinstance(run, Teacher) else run.teacher.data for run in todo),
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
