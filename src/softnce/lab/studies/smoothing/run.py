import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from softnce import SoftTargets, functional
from softnce.lab.configuration import option
from softnce.lab.data import features as data
from softnce.lab.data.features import NAMES, Source
from softnce.lab.experiment import probe as training
from softnce.lab.experiment import search
from softnce.lab.experiment.comparison import by_seed, mean, percent
from softnce.lab.experiment.parallel import one_per_core
from softnce.lab.experiment.probe import HARD, Probe
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.statistics import Estimate, estimate, signed
from softnce.lab.experiment.study import Outcome, StudyConfig
from softnce.lab.recipes.recipe import Head, Loss, LossName, Targets

if TYPE_CHECKING:
    from rich.progress import Progress

    from softnce.lab.experiment.claims import Finding
    from softnce.lab.report.page import Section

ORDER = 60
VERSION = 1
CE: LossName = "soft-ce"
OURS: LossName = "soft-target-info-nce"
TOP1, ECE = percent("top1"), percent("ece")


@dataclass(frozen=True)
class Config(StudyConfig):
    seeds: int = option(6, "number of seeds; a seed fixes initial weights and batches")
    data: Source = option("cifar100", "data set")
    smoothing: tuple[float, ...] = option((0.0, 0.05, 0.1, 0.2, 0.3, 0.5), "ε")
    epochs: int = option(3, "passes over the training set")
    batch: int = option(256, "rows in a batch")
    hidden: int = option(256, "width of the head's hidden layers")
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "learning rates tried for each loss and ε")

    def __post_init__(self) -> None:
        super().__post_init__()
        for epsilon in self.smoothing:
            if not 0 <= epsilon < 1:
                raise ValueError(f"smoothing: got {epsilon:g}, need values in [0, 1)")
        for name, least in (("epochs", 1), ("batch", 2), ("hidden", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, need at least {least}")
        search.check_rates(self.rates)


PRESETS = {
    "quick": Config(
        seeds=2, data="digits", smoothing=(0.0, 0.1, 0.3), epochs=4, batch=64, hidden=64, rates=(1e-3, 3e-3)
    ),
    "paper": Config(),
}


@dataclass(frozen=True)
class Twin:
    """A training without smoothing that the identity says is the same as one with ``smoothing``."""

    probe: Probe
    smoothing: float
    seed: int


Run = Probe | Twin


def settings(config: Config) -> list[Probe]:
    return [
        Probe(
            config.data,
            Loss(name),
            Targets(smoothing=epsilon),
            Head(hidden=config.hidden),
            config.batch,
            epochs=config.epochs,
        )
        for epsilon in config.smoothing
        for name in (CE, OURS)
    ]


def twin(probe: Probe) -> Twin:
    epsilon = probe.targets.smoothing
    loss = replace(probe.loss, temperature=probe.loss.temperature / (1 - epsilon))
    return Twin(replace(probe, loss=loss, targets=HARD), epsilon, probe.seed)


def runs(config: Config) -> list[Run]:
    return [*search.trials(settings(config), config.rates)]


def follow_up(config: Config, rows: Sequence[Row]) -> list[Run]:
    probes = search.tuned(settings(config), _probes(rows), config.rates, config.seeds)
    return [*probes, *(twin(probe) for probe in probes if probe.loss.name == OURS and probe.targets.smoothing > 0)]


def execute(todo: Sequence[Run], progress: "Progress") -> Iterator[Outcome]:
    data.prepare((run.probe if isinstance(run, Twin) else run).data for run in todo)
    yield from one_per_core(perform, todo)


def perform(run: Run) -> Outcome:
    started = time.perf_counter()
    probe = run.probe if isinstance(run, Twin) else run
    features = data.load(probe.data)
    watch = training.trained(probe, features)
    watch.temperature = 1.0  # of the smoothed training: its twin is scored as it is
    result = watch.measurements(features)
    if isinstance(run, Probe) and probe.loss.name == OURS and probe.targets.smoothing > 0:
        rows = slice(probe.batch)
        result["identity"] = identity_error(
            watch.logits(features.held_out.x[rows]), features.held_out.y[rows], probe.targets.smoothing
        )
    return Outcome(run, result, time.perf_counter() - started)


def identity_error(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> dict[str, float]:
    """Largest difference of the loss at (ε, 1, η) and (0, 1/(1−ε), η^(1−ε)), in values and gradients, fp64.

    η falls like 1/k, so that the noise has a part in it.
    """
    num_classes = logits.shape[1]
    eta = 1 / torch.arange(1, num_classes + 1, dtype=torch.float64)
    found = []
    for smoothing, temperature, noise in ((epsilon, 1.0, eta), (0.0, 1 / (1 - epsilon), eta ** (1 - epsilon))):
        scores = logits.detach().double().requires_grad_()
        targets = SoftTargets.from_labels(labels, num_classes, smoothing)
        loss = functional.soft_target_info_nce(
            scores, targets, noise / noise.sum(), temperature=temperature, reduction="none"
        )
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        found.append((loss.detach(), gradient))
    (one, grad_one), (other, grad_other) = found
    return {"value": (one - other).abs().max().item(), "gradient": (grad_one - grad_other).abs().max().item()}


# ------------------------------------------------------------------------------------------------------------- page


def _probes(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "probe" not in row.config]


@dataclass(frozen=True)
class Found:
    """Trainings at their chosen rates over ε, of the data set and head with the most of them."""

    data: str
    rows: dict[str, dict[float, list[Row]]]  # by loss, "twin" for what the identity predicts, then by ε

    def values(self, loss: str, value: Any) -> list[float]:
        return [mean(rows, value).mean for rows in self.rows[loss].values()]

    def deviation(self, loss: str) -> tuple[float, float]:
        """Largest difference and standard deviation of the mean accuracies over ε, in points."""
        values = self.values(loss, TOP1)
        return max(values) - min(values), statistics.pstdev(values)

    @property
    def steadiness(self) -> Estimate:
        """Standard deviation over ε of soft target cross-entropy's accuracy minus soft target InfoNCE's, by seed."""
        ce, ours = ([by_seed(rows, TOP1) for rows in self.rows[loss].values()] for loss in (CE, OURS))
        seeds = set.intersection(*map(set, [*ce, *ours]))
        return estimate([
            statistics.stdev(of[seed] for of in ce) - statistics.stdev(of[seed] for of in ours)
            for seed in sorted(seeds)
        ])  # fmt: skip

    @property
    def identity(self) -> tuple[float, float]:
        """Largest error of the identity on trained scores: value, gradient."""
        errors = [
            row.result["identity"] for rows in self.rows[OURS].values() for row in rows if "identity" in row.result
        ]
        return max(e["value"] for e in errors), max(e["gradient"] for e in errors)

    @property
    def is_complete(self) -> bool:
        return len(self.rows[CE]) > 1 and self.rows[CE].keys() == self.rows[OURS].keys() and bool(self.rows["twin"])


def find(rows: Sequence[Row]) -> Found:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in _probes(rows):
        shared = {name: row.config[name] for name in ("data", "head", "epochs", "batch")}
        groups[search.setting_key(shared)].append(row)
    group = max(groups.values(), key=len, default=[])
    rates = search.tried_rates(group)
    found: dict[str, dict[float, list[Row]]] = {CE: {}, OURS: {}, "twin": defaultdict(list)}
    same = set()
    for setting in search.at_best_rate(group, rates).values():
        config = setting[0].config
        found[config["loss"]["name"]][config["targets"]["smoothing"]] = setting
        same |= {(_key(row.config), row.config["targets"]["smoothing"]) for row in setting}
    twins = [row for row in rows if "probe" in row.config]
    for row in sorted(twins, key=lambda row: row.config["probe"]["seed"]):  # as the runs they are compared with
        if (_key(row.config["probe"]), row.config["smoothing"]) in same:
            found["twin"][row.config["smoothing"]].append(row)
    return Found(
        group[0].config["data"] if group else "", {name: dict(sorted(of.items())) for name, of in found.items()}
    )


def _key(config: Any) -> Any:
    return tuple(repr(config[name]) for name in ("data", "head", "batch", "epochs", "lr", "seed"))


def section(rows: Sequence[Row]) -> "Section":
    from softnce.lab.experiment.claims import ahead
    from softnce.lab.report.charts import Figure, Line, Panel
    from softnce.lab.report.page import Section, Table, prose
    from softnce.lab.report.style import LOSSES

    found = find(rows)
    panels = []
    for title, label, value in (
        ("accuracy", "top-1 (%)", TOP1),
        ("calibration", "expected calibration error (%)", ECE),
        ("calibration, temperature scaled", "expected calibration error (%)", percent("ece", "scaled")),
    ):
        marks = []
        for name in (CE, OURS, "twin"):
            estimates = {epsilon: mean(of, value) for epsilon, of in found.rows[name].items()}
            if not estimates:
                continue
            curve = [e.mean for e in estimates.values()]
            if name == "twin":
                marks.append(Line("predicted by the identity", list(estimates), curve, marker="x", dash="dot"))
            else:
                bands = [e.low for e in estimates.values()], [e.high for e in estimates.values()]
                marks.append(Line.of_loss(name, list(estimates), curve, *bands))
        panels.append(Panel(title, "smoothing ε", label, marks))
    blocks: list[Any] = []
    if found.is_complete:
        (most, deviation), (most_ce, deviation_ce) = found.deviation(OURS), found.deviation(CE)
        in_value, in_gradient = found.identity
        gap = max(
            abs(mean(of, TOP1).mean - mean(found.rows["twin"][epsilon], TOP1).mean)
            for epsilon, of in found.rows[OURS].items()
            if epsilon in found.rows["twin"]
        )
        varies: dict[str, str] = {
            "reproduced": "less than", "not reproduced": "more than", "undecided": "no less for sure than",
        }  # fmt: skip
        less = varies[ahead(found.steadiness)]
        summary = f"""Over ε, the accuracy of soft target InfoNCE varies {less} that of soft target cross-entropy
            (standard deviation of the means {deviation:.2f} against {deviation_ce:.2f} points; seed by seed the
            difference is {signed(found.steadiness)}). To soft target InfoNCE, ε is a temperature and nothing else."""
        blocks.append(
            prose(f"""Smoothing by ε at temperature τ with noise η is the same loss as no smoothing at τ/(1−ε) with
                noise η^(1−ε). On the trained scores the two differ by at most {in_value:.1e} (value) and
                {in_gradient:.1e} (gradient), which is rounding. Heads trained without smoothing at that temperature
                differ in accuracy by at most {gap:.2f} points from those trained with smoothing: rounding, grown over
                the training. So the flat curve is no robustness to noisy targets; it says how little a change of
                temperature from 1 to 1/(1−ε) matters.""")
        )
        table = Table(
            ["", "largest deviation (points)", "standard deviation", "paper, largest", "paper, standard deviation"],
            [
                [LOSSES[OURS].name, f"{most:.2f}", f"{deviation:.2f}", "0.37", "0.12"],
                [LOSSES[CE].name, f"{most_ce:.2f}", f"{deviation_ce:.2f}", "0.96", "0.34"],
            ],
            prose(f"""Mean test accuracy over ε from {min(found.rows[CE]):g} to {max(found.rows[CE]):g}. The paper's
                figures are ViT-B/16 on Tiny ImageNet, one run each."""),
        )
        blocks.append(table)
    else:
        summary = "The runs are not complete."
    figure = Figure(
        "smoothing",
        prose(f"""A head on {NAMES.get(found.data, found.data)} features, trained with label smoothing. Mean and 95 %
            interval over seeds; dotted: soft target InfoNCE without smoothing at temperature 1/(1−ε)."""),
        panels,
    )
    return Section(
        "How much smoothing",
        prose(summary),
        [figure, *blocks],
        [
            prose("""Labels are smoothed, not mixed. Each loss and ε has its own learning rate, chosen for seed 0 on a
                tenth of the training set; the twin takes that of the training it must equal. All probabilities are
                the softmax of the scores at temperature 1; the scaled ones at the temperature fitted on the held-out
                part.""")
        ],
    )


def claims(rows: Sequence[Row]) -> "dict[str, Finding]":
    from softnce.lab.experiment.claims import Finding, ahead
    from softnce.lab.report.page import counted

    found = find(rows)
    if not found.is_complete:
        return {}
    seeds = counted(max(len(of) for of in found.rows[OURS].values()), "seed")
    on = f"{NAMES[found.data]} features, {seeds}"
    (most, deviation), (most_ce, deviation_ce) = found.deviation(OURS), found.deviation(CE)
    value, gradient = found.identity
    answers = {
        "smoothing-temperature": Finding(
            f"values differ by {value:.1e}, gradients by {gradient:.1e} on trained scores", on, "beyond"
        )
    }
    if found.data != "digits":
        verdict = ahead(found.steadiness)
        answers["smoothing-sensitivity"] = Finding(
            f"largest deviation {most:.2f} against {most_ce:.2f}, standard deviation {deviation:.2f} against "
            f"{deviation_ce:.2f}; by seed the second is larger by {signed(found.steadiness)}",
            on,
            "explained" if verdict == "reproduced" else verdict,
        )
    return answers
