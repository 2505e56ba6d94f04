"""People disagree: which losses learn their votes, and how many votes does it take?

CIFAR-10H holds about 51 people's votes on each of CIFAR-10's test images. A head on fixed features is trained on half
of the images, with 1, 3, 10 or all votes of each, and judged on images it has not seen: accuracy, and cross-entropy and
KL to the distribution of all their votes. NLL takes the majority's label; soft target cross-entropy and soft target
InfoNCE take the shares of the votes as they are; soft distribution InfoNCE draws one label from them in every step, and
averaged draws the mean of n labels. With one vote all targets are labels; look where the curves part.

The paper preset needs cifar10h/cifar10h.npz in the folder that SOFTNCE_DATA names. The quick one uses scikit-learn's
digits with simulated votes: nobody was asked.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from softnce.lab.configuration import option
from softnce.lab.data import votes
from softnce.lab.data.votes import Source
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import Value, difference, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import signed
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.studies.human_labels import training
from softnce.lab.studies.human_labels.training import Method, Run

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding, Verdict
    from softnce.lab.experiment.statistics import Estimate
    from softnce.lab.report.charts import Line
    from softnce.lab.report.page import Section, Table

ORDER = 60
VERSION = 1


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(5, "number of seeds; a seed fixes which votes are drawn, initial weights, batches and draws")
    data: Source = option("cifar10h", "cifar10h, or simulated votes on digits")
    votes: tuple[int, ...] = option((1, 3, 10, 0), "votes an image, drawn without replacement; 0 for all")
    draws: tuple[int, ...] = option((2, 4), "n of averaged draws")
    epochs: int = option(15, "passes over the training part")
    batch: int = option(256, "rows in a batch, which are also the candidates")
    hidden: int = option(128, "width of the head's hidden layers")
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "learning rates tried for each setting")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("epochs", 1), ("batch", 2), ("hidden", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, need at least {least}")
        if not self.votes or min(self.votes) < 0:
            raise ValueError(f"votes: got {list(self.votes)}, need numbers of at least 0, which stands for all")
        if any(n < 1 for n in self.draws):
            raise ValueError(f"draws: got {list(self.draws)}, need numbers of at least 1")
        search.check_rates(self.rates)


PRESETS = {
    "quick": Config(
        seeds=3, data="simulated", votes=(1, 3, 0), draws=(2,), epochs=8, batch=64, hidden=64, rates=(3e-3,)
    ),
    "paper": Config(),
}


def settings(config: Config) -> list[Run]:
    methods: list[tuple[Method, int]] = [(method, 0) for method in get_args(Method) if method != "averaged"]
    methods += [("averaged", n) for n in config.draws]
    return [
        Run(config.data, method, n, number, config.hidden, config.batch, config.epochs)
        for number in config.votes
        for method, n in methods
    ]


def held_out(row: Row) -> float:
    """What a learning rate is chosen by: likelihood of the held-out votes; a run that diverged comes last."""
    value = row.result["held_out"]["cross_entropy"]
    return float("-inf") if value is None else -value


def runs(config: Config) -> list[Run]:
    return search.trials(settings(config), config.rates)


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    return search.tuned(settings(config), rows, config.rates, config.seeds, held_out)


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    for source in {run.data for run in todo}:
        votes.load(source)  # missing data is said once, before processes start
    yield from one_per_core(perform, todo)


def perform(run: Run) -> Outcome:
    started = time.perf_counter()
    return Outcome(run, training.train(run), time.perf_counter() - started)


# ------------------------------------------------------------------------------------------------------------- page

Way = tuple[str, int]  # the method, and n of averaged draws
CE, OURS, DRAWN, HARD = ("soft-ce", 0), ("soft-target-info-nce", 0), ("soft-dist-info-nce", 0), ("nll", 0)
VOTERS = 51  # votes an image, on average, where all are used
AVERAGED = ("#56B4E9", "#0B5A8A", "#9AD2F2", "#003B5C")


def nats(score: str, part: str = "test") -> Value:
    return lambda row: row.result[part][score]


@dataclass(frozen=True)
class Findings:
    """The runs at their chosen learning rates, by method and number of votes (0: all)."""

    config: dict[str, Any]
    rates: list[float]
    chosen: dict[tuple[Way, int], list[Row]]

    @property
    def ways(self) -> list[Way]:
        order = [HARD, CE, DRAWN, OURS]
        found = dict.fromkeys(way for way, _ in self.chosen)
        return [way for way in order if way in found] + sorted(way for way in found if way not in order)

    @property
    def numbers(self) -> list[int]:
        """Votes an image, ascending, all of them last."""
        return sorted({number for _, number in self.chosen}, key=lambda number: number or float("inf"))

    @property
    def seeds(self) -> int:
        return min(map(len, self.chosen.values()))

    def has(self, *ways: Way, number: int) -> bool:
        return all((way, number) in self.chosen for way in ways)

    def ahead(self, way: Way, other: Way, number: int, value: Value) -> "Estimate":
        return difference(self.chosen[way, number], self.chosen[other, number], value)


def findings(rows: Sequence[Row]) -> Findings | None:
    """The largest group of runs; people's votes before simulated ones."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row.config[name] for name in ("data", "hidden", "batch", "epochs"))].append(row)
    if not groups:
        return None
    group = max(groups.values(), key=lambda group: (group[0].config["data"] == "cifar10h", len(group)))
    rates = search.tried_rates(group)
    chosen = {}
    for runs in search.at_best_rate(group, rates, held_out).values():
        config = runs[0].config
        chosen[(config["method"], config["n"]), config["votes"]] = runs
    return Findings(group[0].config, rates, chosen) if chosen else None


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.report.charts import Figure, Panel
    from softnce.lab.report.page import Section, counted, prose

    title = "People's votes as soft targets"
    found = findings(rows)
    if found is None:
        return Section(title, "The runs of this study are not finished yet.", [])
    seeds = counted(found.seeds, "seed")
    shown: list[tuple[str, str, Value]] = [
        ("divergence", "KL to the votes (nats)", nats("kl")),
        ("after temperature scaling", "KL to the votes (nats)", nats("kl", "scaled")),
        ("the most disputed tenth of images", "KL to the votes (nats)", nats("kl_disputed")),
        ("accuracy", "top-1 (%)", percent("top1")),
    ]
    panels = [
        Panel(name, "votes an image in training", label, _lines(found, value), log_x=True, x_range=(0.8, 70))
        for name, label, value in shown
    ]
    figure = Figure(
        "votes",
        prose(f"""Test images, {_data(found)}: KL from all their votes to the prediction, as it is and after temperature
            scaling, and accuracy by the data set's label, against the votes an image that were trained on (all: at
            {VOTERS}). Mean and 95 % interval over {seeds}."""),
        panels,
        columns=2,
        panel_size=(4.6, 3.2),
    )
    text = [prose(paragraph) for paragraph in _reading(found)]
    blocks: list[Any] = [figure, *text, _gaps(found), _table(found)]
    return Section(title, prose(_summary(found)), blocks, [prose(_method(found))])


def _lines(found: Findings, value: Value) -> "list[Line]":
    from softnce.lab.report.charts import Line

    lines = []
    for way in found.ways:
        numbers = [number for number in found.numbers if (way, number) in found.chosen]
        estimates = [mean(found.chosen[way, number], value) for number in numbers]
        x = [number or VOTERS for number in numbers]
        y, low, high = ([getattr(e, name) for e in estimates] for name in ("mean", "low", "high"))
        if way[0] == "averaged":
            colour = AVERAGED[[other for other in found.ways if other[0] == "averaged"].index(way) % len(AVERAGED)]
            lines.append(Line(_name(way), x, y, low, high, colour=colour, marker="x"))
        else:
            lines.append(Line.of_loss(way[0], x, y, low, high, dash="dot" if way == DRAWN else "solid"))
    return lines


def _table(found: Findings) -> "Table":
    from softnce.lab.report.page import Table, counted, prose

    return Table(
        ["loss", "votes", "top-1 (%)", "cross-entropy (nats)", "KL (nats)", "KL, scaled", "KL, most disputed tenth",
         "ECE by votes (%)", "best temperature", "learning rate"],
        [
            [
                _name(way),
                str(number or "all"),
                mean(runs, percent("top1")).spread(2),
                mean(runs, nats("cross_entropy")).spread(4),
                mean(runs, nats("kl")).spread(4),
                mean(runs, nats("kl", "scaled")).spread(4),
                mean(runs, nats("kl_disputed")).spread(3),
                mean(runs, percent("ece")).spread(2),
                f"{mean(runs, lambda row: row.result['temperature']).mean:.2f}",
                f"{runs[0].config['lr']:g}",
            ]
            for number in found.numbers
            for way in found.ways
            if (runs := found.chosen.get((way, number)))
        ],
        prose(f"Test images, {_data(found)}; mean ± half of the 95 % interval over {counted(found.seeds, 'seed')}."),
    )  # fmt: skip


def _name(way: Way) -> str:
    from softnce.lab.report.style import LOSSES

    return f"mean of {way[1]} draws" if way[0] == "averaged" else LOSSES[way[0]].name


def _data(found: Findings) -> str:
    return "CIFAR-10H" if found.config["data"] == "cifar10h" else "digits with simulated votes (nobody was asked)"


def _summary(found: Findings) -> str:
    most = found.numbers[-1]
    if not found.has(HARD, CE, OURS, DRAWN, number=most):
        return "The runs of this study are not finished yet."
    gaps = [
        f"{_name(way)} {signed(found.ahead(way, HARD, most, nats('kl')), 4)}"
        for way in found.ways
        if way != HARD and (way, most) in found.chosen
    ]
    return f"""On {_data(found)}, with {most or "all"} votes an image, the divergence from people's votes on images not
        seen is {mean(found.chosen[HARD, most], nats("kl")).mean:.3f} nats for NLL on the majority's label; the others,
        less that: {"; ".join(gaps)}."""


def _gaps(found: Findings) -> "Table":
    """KL of every loss minus that of soft target cross-entropy, paired by seed."""
    from softnce.lab.report.page import Table, prose

    return Table(
        ["KL minus that of soft target cross-entropy (nats)", *map(_votes, found.numbers)],
        [
            [
                _name(way),
                *(
                    signed(found.ahead(way, CE, number, nats("kl")), 4) if found.has(way, CE, number=number) else ""
                    for number in found.numbers
                ),
            ]
            for way in found.ways
            if way != CE
        ],
        prose("Paired by seed, with 95 % intervals. Below 0 is nearer to people than soft target cross-entropy is."),
    )


def _votes(number: int) -> str:
    return {0: "all votes", 1: "1 vote"}.get(number, f"{number} votes")


def _reading(found: Findings) -> list[str]:
    most = found.numbers[-1]
    if not found.has(HARD, CE, OURS, DRAWN, number=most):
        return []
    parted = [
        _votes(number)
        for number in found.numbers
        if found.has(HARD, CE, number=number) and found.ahead(CE, HARD, number, nats("kl")).high < 0
    ]
    where = f"with {', '.join(parted)} an image" if parted else "at no number of votes"
    text = [
        f"""Shares against the majority. With one vote both are that vote's label and the two losses are one. Soft
        target cross-entropy is nearer to people than NLL on the majority's label {where} (the interval of the paired
        difference excludes 0); with {_votes(most)} the difference is
        {signed(found.ahead(CE, HARD, most, nats("kl")), 4)} nats, on the most disputed tenth of the images
        {signed(found.ahead(CE, HARD, most, nats("kl_disputed")), 3)}. Accuracy by the data set's label differs by
        {signed(found.ahead(CE, HARD, most, percent("top1")))} points."""
    ]
    drawn = "; ".join(
        f"""{_name(way)} {signed(found.ahead(way, CE, most, nats("kl")), 4)} (best temperature
        {_heat(found, way, most):.2f})"""
        for way in found.ways
        if way == DRAWN or (way[0] == "averaged" and (way, most) in found.chosen)
    )
    text.append(f"""Draws. Labels drawn from the votes have the same optimum as cross-entropy, with noise from the
        drawing. With {_votes(most)}, minus soft target cross-entropy: {drawn} nats. A mean of n draws says n times as
        much as one label; where that is more than the logarithm of the number of candidates (the batch), every
        candidate is told apart and little is left to learn: predictions are then not sure enough.""")
    raw, scaled = (found.ahead(OURS, CE, most, nats("kl", part)) for part in ("test", "scaled"))
    text.append(f"""Soft target InfoNCE as it is. With {_votes(most)} it is {signed(raw, 4)} nats from soft target
        cross-entropy, after temperature scaling {signed(scaled, 4)}; its best temperature is
        {_heat(found, OURS, most):.2f}. How that depends on the number of votes is in the table: the fewer there are,
        the nearer the targets are to labels, for which the loss is exact.""")
    return text


def _heat(found: Findings, way: Way, number: int) -> float:
    """The temperature that fits the held-out votes best, mean over seeds; above 1 means too sure."""
    return mean(found.chosen[way, number], lambda row: row.result["temperature"]).mean


def _method(found: Findings) -> str:
    config = found.config
    what = (
        """The features are those of a ResNet-56 trained on CIFAR-10's training images; the voted images are its test
        images: half of them to train on, a tenth to choose by, the others to test, the same for all seeds."""
        if config["data"] == "cifar10h"
        else """The votes are simulated: 51 a digit, confusing digits whose mean images are near."""
    )
    return f"""{what} Three layers of {config["hidden"]}, {config["epochs"]} epochs of batches of {config["batch"]}; the
        learning rate of each setting ({", ".join(f"{lr:g}" for lr in found.rates)}) by the likelihood of held-out
        votes, of which there are as many an image as in training; no choice of epoch. A seed draws the votes, without
        replacement; NLL breaks ties of its majority at random. KL and cross-entropy differ by the entropy of the votes
        alone. Because the test votes are a sample too (about 51 an image), even the true distribution would not reach
        KL 0. Theory: with η the votes' marginal, cross-entropy, one drawn label and means of n drawn labels all have
        people's distribution as their optimum, at any number of votes (means of n > 1 only if the votes of one image
        are many: drawing n times from one vote repeats it); the majority's label and soft target InfoNCE do not."""


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import counted, prose

    found = findings(rows)
    if found is None or not found.has(HARD, CE, OURS, DRAWN, number=found.numbers[-1]):
        return {}
    most = found.numbers[-1]
    gains = {way: found.ahead(way, HARD, most, nats("kl")) for way in (CE, DRAWN, OURS)}
    verdict: Verdict = "undecided"
    if found.config["data"] == "cifar10h" and found.seeds >= 3:
        better = [gain.high < 0 for gain in gains.values()]
        verdict = "beyond" if any(better) else "not reproduced"
    text = "; ".join(f"{_name(way)} {signed(gain, 3)}" for way, gain in gains.items())
    on = f"{_data(found)}, {most or 'all'} votes an image, {counted(found.seeds, 'seed')}"
    return {"human-labels": Finding(prose(f"KL to people's votes minus NLL's, in nats: {text}"), on, verdict)}
