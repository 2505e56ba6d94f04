"""Hyper-parameters by Optuna: trials in one folder, shared by processes, continued after a stop."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock

from softnce.lab import recipes
from softnce.lab.configuration import field_types, to_mapping
from softnce.lab.experiment.reservations import Reservations
from softnce.lab.recipes.recipe import AnyRecipe
from softnce.lab.recipes.resuming import changes
from softnce.lab.sweeps.grid import Training, pairs
from softnce.lab.sweeps.many import Engine

if TYPE_CHECKING:
    import optuna

Metric = Literal["top1", "nll", "ece", "brier"]


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        return self.values

    def suggest(self, trial: "optuna.Trial", name: str) -> str:
        return str(trial.suggest_categorical(name, self.values))


@dataclass(frozen=True)
class Range:
    """A number between two; on a logarithmic scale if they are positive and at least a factor of ten apart."""

    low: float
    high: float
    whole: bool

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(f"{int(end) if self.whole else end}" for end in (self.low, self.high))

    @property
    def log(self) -> bool:
        return 0 < 10 * self.low <= self.high

    def suggest(self, trial: "optuna.Trial", name: str) -> str:
        if self.whole:
            return str(trial.suggest_int(name, int(self.low), int(self.high), log=self.log))
        return repr(trial.suggest_float(name, self.low, self.high, log=self.log))


def search_space(recipe: AnyRecipe, options: Sequence[str]) -> tuple[list[str], dict[str, Choice | Range]]:
    """Options with one value, and what is searched: ``--name LOW..HIGH`` or ``--name a,b,c``."""
    types = field_types(type(recipe))
    single: list[str] = []
    space: dict[str, Choice | Range] = {}
    for name, value in pairs(options):
        if value is not None and name in types and ".." in value and types[name] in (int, float):
            low, _, high = value.partition("..")
            try:
                space[name] = Range(float(low), float(high), types[name] is int)
            except ValueError:
                raise ValueError(f"--{name}: got {value!r}, need LOW..HIGH") from None
            if not -math.inf < float(low) < float(high) < math.inf:
                raise ValueError(f"--{name}: got {value!r}, need LOW..HIGH with LOW below HIGH, both finite")
        elif value is not None and name in types and "," in value and types[name] is not Path and value[0] not in "[{":
            space[name] = Choice(tuple(value.split(",")))
        else:
            single += [f"--{name}"] if value is None else [f"--{name}", value]
    if not space:
        raise ValueError("nothing to search: write a range, such as --optimiser.base_lr 1e-4..1e-2, or a,b,c")
    return single, space


@dataclass(frozen=True)
class Trial:
    """A finished trial: its values, and the metric on the validation data; None of a training that failed."""

    number: int
    values: Mapping[str, str]
    metric: float | None


class Search:
    """A search in a folder.

    Its journal ``optuna.log`` holds every trial; each trains in a folder of its own, ``trial-N``. A trial whose process
    was stopped is continued from its checkpoint.

    Args:
        out: the folder.
        space: what is searched, by dotted name.
        metric: on the validation data, at the best epoch; top1 is maximised, the others minimised.
        build: from values, as on the command line, to a recipe.
    """

    def __init__(
        self,
        out: Path,
        space: Mapping[str, Choice | Range],
        metric: Metric,
        build: Callable[[Mapping[str, str]], AnyRecipe],
    ) -> None:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ModuleNotFoundError:
            raise ValueError("softnce tune needs optuna: pip install 'softnce[tune]'") from None
        if (out / "recipe.yaml").is_file():
            raise ValueError(f"out: {out} holds a run: choose another --out")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.reservations = Reservations(out / ".running")
        self.out, self.space, self.metric, self.build = out, space, metric, build
        try:
            self.study = optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(str(out / "optuna.log"))),
                study_name="softnce",
                direction="maximize" if metric == "top1" else "minimize",
                load_if_exists=True,
            )
        except (ValueError, KeyError) as error:
            raise ValueError(f"out: {out / 'optuna.log'} is damaged ({error}): choose another --out") from error
        asked = {"metric": metric, "space": {name: str(searched) for name, searched in space.items()}}
        before = self.study.user_attrs.get("asked", asked)
        if before != asked:
            raise ValueError(f"out: {out} holds a search for {before}, not for {asked}: choose another --out")
        recipe = build({name: searched.ends[0] for name, searched in space.items()})
        if kept := self.study.user_attrs.get("recipe"):
            earlier = recipes.from_plain(kept, source=f"{out / 'optuna.log'}, recipe")
            changed = changes(earlier, recipe)
            if earlier.schedule != recipe.schedule and not changed:  # trials of different length cannot be compared
                changed = [f"schedule was {earlier.schedule}, is {recipe.schedule}"]
            if changed:
                raise ValueError(f"out: {out} holds a search in another recipe: {'; '.join(changed)}")
        self.study.set_user_attr("asked", asked)
        self.study.set_user_attr("recipe", to_mapping(recipe))
        # values of trials under way count as bad ones, so that processes do not try the same
        self.study.sampler = optuna.samplers.TPESampler(seed=len(self.study.trials), constant_liar=True)

    def run(self, trials: int, execute: Engine) -> Iterator[Trial]:
        """Do trials until the folder holds ``trials`` of them; yields each as it ends."""
        from optuna.trial import TrialState

        with self.reservations as reservations:
            for trained in execute(self._trainings(trials, reservations)):
                if trained.refused:
                    raise ValueError(f"{trained.run.out.name}: {trained.error}")
                number = int(trained.run.out.name.removeprefix("trial-"))
                value = None if trained.error else trained.results["best"][self.metric]
                self.study.tell(number, value, state=TrialState.FAIL if value is None else TrialState.COMPLETE)
                reservations.release(trained.run.out.name)
                yield Trial(number, self._values(number), value)

    def best_first(self) -> list[Trial]:
        """All trials that ended well."""
        done = [t for t in self.study.trials if t.value is not None and t.state.is_finished()]
        done.sort(key=lambda t: t.value or 0.0, reverse=self.metric == "top1")
        return [Trial(t.number, self._values(t.number), t.value) for t in done]

    def recipe(self, trial: Trial) -> AnyRecipe:
        return self.build(trial.values)

    def _trainings(self, trials: int, reservations: Reservations) -> Iterator[Training]:
        """Trials that a stopped process left, then new ones; each is asked for when there is room for it."""
        while (number := self._next(trials, reservations)) is not None:
            yield Training(self.build(self._values(number)), self.out / f"trial-{number}")

    def _next(self, trials: int, reservations: Reservations) -> int | None:
        from optuna.trial import TrialState

        with FileLock(self.out / ".ask.lock"):  # nobody takes a trial between its start and its reservation
            for left in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                if reservations.take(f"trial-{left.number}"):
                    return left.number
            if len(self.study.get_trials(deepcopy=False)) >= trials:
                return None
            trial = self.study.ask()
            for name, searched in self.space.items():
                trial.set_user_attr(name, searched.suggest(trial, name))
            reservations.take(f"trial-{trial.number}")
            return trial.number

    def _values(self, number: int) -> dict[str, str]:
        kept: dict[str, Any] = self.study.trials[number].user_attrs
        return {name: str(kept[name]) for name in self.space}
