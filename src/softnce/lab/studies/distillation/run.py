"""The grid of students, and how they are taught."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from softnce.lab.configuration import option
from softnce.lab.data import features
from softnce.lab.data.features import Source
from softnce.lab.experiment import search
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.study import StudyConfig
from softnce.lab.studies.distillation import training
from softnce.lab.studies.distillation.training import HARD, Files, Method, Student, Teacher

VERSION = 1
provide = training.write_outputs
SOFT: tuple[Method, ...] = ("soft-ce", "soft-dist-info-nce", "soft-target-info-nce", "averaged")
SMOOTHING = 0.1
CE: Method = "soft-ce"
OURS: Method = "soft-target-info-nce"
EXPECTED: Method = "expected-info-nce"


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(3, "seeds of the student: initial weights, batches and draws; the teacher is one", least=1)
    compared_seeds: int = option(
        12, "seeds of expected InfoNCE and soft target cross-entropy that see the whole output", least=1
    )
    data: Source = option("cifar100", "data set")
    teacher_hidden: int = option(512, "width of the teacher's hidden layers", least=1)
    teacher_epochs: int = option(3, "passes of the teacher over the training part", least=1)
    teacher_batch: int = option(256, "rows in a batch of the teacher", least=1)
    members: int = option(3, "heads in the teacher's ensemble", least=1)
    features: int = option(320, "features the student sees", least=1)
    share: float = option(0.1, "share of the training part the student is trained on", above=0, most=1)
    batch: int = option(128, "rows in a batch of the student, which are also the candidates", least=1)
    epochs: int = option(15, "passes of the student over its samples", least=1)
    k: tuple[int, ...] = option(
        (1, 2, 5, 0), "likeliest classes of the teacher that the student sees; 0 for all", least=0, fewest=1
    )
    temperatures: tuple[float, ...] = option(
        (1.0, 2.0), "of the teacher; both remainders are tried for the first", above=0, fewest=1
    )
    draws: int = option(2, "n of averaged draws", least=1)
    rates: tuple[float, ...] = option((1e-3, 3e-3, 1e-2), "learning rates tried for each setting", above=0, fewest=1)


PRESETS = {
    "quick": Config(
        data="digits", teacher_hidden=64, teacher_epochs=8, teacher_batch=64, members=2, features=24, share=0.1,
        batch=32, epochs=15, k=(1, 2, 0), temperatures=(1.0,), rates=(3e-2,), compared_seeds=3,
    ),
    "paper": Config(),
}  # fmt: skip
Run = Teacher | Student


def teacher(config: Config) -> Teacher:
    return Teacher(config.data, config.members, config.teacher_hidden, config.teacher_batch, config.teacher_epochs)


def settings(config: Config) -> list[Student]:
    plain = Student(
        teacher(config), "nll", None,
        features=config.features, share=config.share, batch=config.batch, epochs=config.epochs,
    )  # fmt: skip
    n = {method: config.draws if method == "averaged" else 0 for method in SOFT}
    found = [replace(plain, method=method) for method in HARD]
    found += [replace(plain, method=method, smoothing=SMOOTHING, n=n[method]) for method in SOFT]
    found += [replace(plain, method=method, k=1) for method in HARD]
    spreading: tuple[Literal["spread"], Literal["renormalise"]] = ("spread", "renormalise")
    for method in SOFT:
        for temperature in config.temperatures:
            for remainder in spreading[: 2 if temperature == config.temperatures[0] else 1]:
                for k in config.k:
                    if k or remainder == "spread":  # of all classes nothing remains
                        soft = replace(plain, method=method, k=k, remainder=remainder, temperature=temperature)
                        found.append(replace(soft, n=n[method]))
    for temperature in config.temperatures[1:]:  # a control: as soft as the first class spread, but all rows alike
        soft = replace(plain, k=1, remainder="shared", temperature=temperature)
        found += [replace(soft, method=CE), replace(soft, method=OURS)]
    # Expected InfoNCE, with its default m and with 0, where soft target cross-entropy learns labels or whole outputs.
    whole = [replace(run, method=EXPECTED) for run in found if run.method == CE and run.k in (None, 0)]
    return [*found, *whole, *(replace(run, noise_count=0.0) for run in whole)]


def runs(config: Config) -> list[Run]:
    return [teacher(config), *search.trials(settings(config), config.rates)]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Student]:
    wanted = settings(config)
    whole = [run for run in wanted if run.method in (CE, EXPECTED) and run.k == 0 and run.noise_count is None]
    return [
        *search.tuned(wanted, students(rows), config.rates, config.seeds),
        *search.tuned(whole, students(rows), config.rates, config.compared_seeds),
    ]


def students(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "method" in row.config]


def prepare(todo: Sequence[Run]) -> None:
    features.prepare((run if isinstance(run, Teacher) else run.teacher).data for run in todo)


def alone(run: Run) -> bool:
    """The teacher comes first, here; a resumed study trains the same teacher again."""
    return isinstance(run, Teacher)


def perform(run: Run, provided: Files | None = None) -> dict[str, Any]:
    return training.teach(run)[0] if isinstance(run, Teacher) else training.learn(run, provided or {})
