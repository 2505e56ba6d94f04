"""How much does label smoothing matter? Accuracy and calibration against ε.

For soft target InfoNCE, smoothing by ε at temperature τ with noise η is the same loss as none at temperature τ/(1−ε)
with noise η^(1−ε). A head is trained over ε with both soft target losses, and once more without smoothing at that
temperature: the curves must coincide. The identity is also checked on the trained scores, with skewed noise.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from experiments import training
from experiments.data import features
from experiments.data.features import NAMES, Source
from experiments.data.targets import Targets
from experiments.features import CE, ECE, EXPECTED, OURS, SCALED_ECE, TOP1, Compared, spread
from experiments.harness import Experiment, Figure, Row, Table, curve, label, option
from experiments.harness.claims import ON_PAR, Finding, needed, verdict
from experiments.harness.search import Setting, chosen, trials, tuned
from experiments.harness.statistics import Estimate, alike, by_seed, estimate, exactly, largest
from experiments.losses import TITLES, Loss
from experiments.training import BATCH, HARD, Probe
from softnce import SoftTargets, functional

ROUNDING = 1e-12
LOSSES = (CE, OURS, EXPECTED)


@dataclass(frozen=True)
class Options:
    seeds: int = option(6, "number of seeds", least=1)
    expected_seeds: int = option(3, "those of expected InfoNCE", least=1)
    data: Source = option("cifar100", "data set")
    smoothing: tuple[float, ...] = option((0.0, 0.05, 0.1, 0.2, 0.3, 0.5), "ε", least=0, below=1)
    expected_smoothing: tuple[float, ...] = option((0.0, 0.1, 0.3), "ε of expected InfoNCE; also among those above")
    epochs: int = option(3, "passes over the training set", least=1)
    rates: tuple[float, ...] = option((3e-4, 1e-3, 3e-3), "rates tried for each loss and ε", above=0, fewest=1)


@dataclass(frozen=True)
class Twin:
    """A training without smoothing that the identity says is the same as one with ``smoothing``."""

    probe: Probe
    smoothing: float
    seed: int


def settings(options: Options) -> list[Probe]:
    probe = Probe(options.data, batch=BATCH[options.data], epochs=options.epochs)
    return [
        replace(probe, loss=Loss(name), targets=Targets(smoothing=epsilon))
        for epsilon in options.smoothing
        for name in LOSSES
        if name != EXPECTED or epsilon in options.expected_smoothing
    ]


def twin(probe: Probe) -> Twin:
    epsilon = probe.targets.smoothing
    loss = replace(probe.loss, temperature=probe.loss.temperature / (1 - epsilon))
    return Twin(replace(probe, loss=loss, targets=HARD), epsilon, probe.seed)


def has_twin(run: Probe | Twin) -> bool:
    return isinstance(run, Probe) and run.loss.name == OURS and run.targets.smoothing > 0


def follow_up(options: Options, rows: Sequence[Row]) -> list[Probe | Twin]:
    smoothed = [row for row in rows if "probe" not in row.config]
    found = tuned(settings(options), smoothed, options.rates, options.seeds)
    kept = [run for run in found if run.loss.name != EXPECTED or run.seed < options.expected_seeds]
    return [*kept, *(twin(run) for run in kept if has_twin(run))]


def perform(run: Probe | Twin) -> dict[str, Any]:
    probe = run.probe if isinstance(run, Twin) else run
    data = features.load(probe.data)
    watch = training.trained(probe, data)
    watch.temperature = 1.0  # of the smoothed training: its twin is scored as it is
    result = watch.measurements(data)
    if has_twin(run):
        x, labels = data.held_out.x[: probe.batch], data.held_out.y[: probe.batch]
        result["identity"] = identity_error(watch.logits(x), labels, probe.targets.smoothing)
    return result


def identity_error(logits: Tensor, labels: Tensor, epsilon: float) -> dict[str, float]:
    """Largest difference of the loss at (ε, 1, η) and (0, 1/(1−ε), η^(1−ε)), value and gradient, fp64, η ∝ 1/k."""
    num_classes = logits.shape[1]
    eta = 1 / torch.arange(1, num_classes + 1, dtype=torch.float64)
    found = []
    for smoothing, temperature, noise in ((epsilon, 1.0, eta), (0.0, 1 / (1 - epsilon), eta ** (1 - epsilon))):
        scores = logits.detach().double().requires_grad_()
        targets = SoftTargets.from_labels(labels, num_classes, smoothing)
        probs = noise / noise.sum()
        loss = functional.soft_target_info_nce(scores, targets, probs, temperature=temperature, reduction="none")
        found.append((loss.detach(), torch.autograd.grad(loss.sum(), scores)[0]))
    return {name: (a - b).abs().max().item() for name, a, b in zip(("value", "gradient"), *found, strict=True)}


def find(rows: Sequence[Row]) -> Compared:
    """The largest group of trainings, by loss and ε; the twins of those of soft target InfoNCE by "twin" and ε."""
    group = largest([row for row in rows if "probe" not in row.config], "data", "epochs", "batch")
    twins = largest([row for row in rows if "probe" in row.config], "probe.data", "probe.epochs", "probe.batch")
    found = {(setting.loss, setting.config["targets"]["smoothing"]): setting for setting in chosen(group)}
    found |= {("twin", of[0].config["smoothing"]): Setting(of) for of in alike(twins, "smoothing")}
    settings = dict(sorted(found.items(), key=lambda item: item[0][1]))
    return Compared("smoothing", f"{NAMES[group[0].config['data']]} features", group, settings)


def by_epsilon(found: Compared, loss: str) -> dict[float, Setting]:
    return {epsilon: setting for (name, epsilon), setting in found.settings.items() if name == loss}


def steadiness(found: Compared) -> Estimate:
    """Standard deviation over ε of soft target cross-entropy's top-1 minus soft target InfoNCE's, by seed."""
    ce, ours = ([by_seed(of.rows, TOP1) for of in by_epsilon(found, loss).values()] for loss in (CE, OURS))
    seeds = sorted(set.intersection(*map(set, [*ce, *ours])))
    return estimate([statistics.stdev(of[s] for of in ce) - statistics.stdev(of[s] for of in ours) for s in seeds])


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    found = find(rows)
    ce, ours, expected = (by_epsilon(found, loss) for loss in LOSSES)
    if len(ce) < 2 or ce.keys() != ours.keys():
        return {}
    on = found.on(*((loss, epsilon) for loss in (CE, OURS) for epsilon in ce))
    error = max(max(row.result["identity"].values()) for epsilon, of in ours.items() for row in of.rows if epsilon > 0)
    text = f"values and gradients differ by at most {error:.1e}"
    answers = {"smoothing-temperature": Finding(text, on, verdict(exactly(error), below=ROUNDING, new=True))}
    if found.is_quick:
        return answers
    steadier = steadiness(found)
    text = f"standard deviation over ε larger by {steadier.signed()}{needed(steadier, above=0)}"
    answers["smoothing-sensitivity"] = Finding(text, on, verdict(steadier, above=0))
    if expected:
        gaps = [of.minus(ce[epsilon], TOP1) for epsilon, of in expected.items()]
        text = "; ".join(f"{gap.signed()} at ε = {epsilon:g}" for epsilon, gap in zip(expected, gaps, strict=True))
        on = found.on(*((EXPECTED, epsilon) for epsilon in expected))
        answers["smoothing-expected"] = Finding(text, on, verdict(*gaps, **ON_PAR, new=True))
    return answers


def tables(rows: Sequence[Row]) -> list[Table]:
    found, body = find(rows), []
    for loss in LOSSES:
        for epsilon, setting in by_epsilon(found, loss).items():
            twin = found.settings.get(("twin", epsilon)) if loss == OURS else None
            own = [setting.mean(value).spread(2) for value in (TOP1, ECE, SCALED_ECE)]
            body.append([TITLES[loss], f"{epsilon:g}", *own, spread(twin and twin.mean(TOP1)), f"{setting.lr:g}"])
    header = ("loss", "ε", "top-1 (%)", "ECE (%)", "ECE, scaled (%)", "top-1 at temperature 1/(1−ε)", "learning rate")
    return [Table("smoothing", header, body)]


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = find(rows)
    shown = {"accuracy": (TOP1, "top-1 (%)"), "calibration": (ECE, "ECE (%)"),
             "after temperature scaling": (SCALED_ECE, "ECE (%)")}  # fmt: skip
    looks = {loss: {"loss": loss} for loss in LOSSES}
    looks[EXPECTED] |= {"name": "expected InfoNCE, no band", "band": False}  # of three seeds: wider than the axis
    looks["twin"] = {"name": "predicted by the identity", "dash": ":", "marker": "x", "band": False}

    def draw(axes) -> None:
        for ax, (title, (value, unit)) in zip(axes, shown.items(), strict=True):
            for loss, look in looks.items():
                curve(ax, {epsilon: of.mean(value) for epsilon, of in by_epsilon(found, loss).items()}, **look)
            label(ax, "smoothing ε", unit, title=title)

    return [Figure("smoothing", draw, panels=3)]


EXPERIMENT = Experiment(
    name="smoothing", question="How much does label smoothing matter, and why?", minutes=10,
    presets={"quick": Options(2, 2, "digits", (0.0, 0.1, 0.3), epochs=4, rates=(1e-3, 3e-3)),
             "paper": Options()},
    runs=lambda options: trials(settings(options), options.rates), follow_up=follow_up, perform=perform,
    prepare=lambda todo: training.prepare(run.probe if isinstance(run, Twin) else run for run in todo),
    findings=findings, tables=tables, figures=figures,
)  # fmt: skip
