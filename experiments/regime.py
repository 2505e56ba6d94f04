"""Accuracy and calibration against the length of training, for every loss of the paper.

The paper trains for 100 epochs with smoothing, MixUp and CutMix. Short trainings cannot show what soft targets are
for: no network overfits in them. This experiment trains a small residual network from scratch on 5,000 images of
CIFAR-100, 50 per class, for 8 to 120 epochs, with the paper's recipe scaled down. Every seed has its own training
images; the 5,000 held-out images choose rate and epoch, the 10,000 test images are looked at once per run.
"""

import base64
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from statistics import stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.data.features import folder
from experiments.features import CE, DRAWN, ECE, EXPECTED, OURS, TOP1
from experiments.harness import LOOKS, Diverged, Experiment, Figure, Row, Table, curve, label, later, option, percent
from experiments.harness.claims import ON_PAR, Finding, decided, needed, verdict
from experiments.harness.search import climb
from experiments.harness.statistics import (
    Value,
    by_seed,
    difference,
    difference_of_differences,
    estimate,
    for_other_samples,
    mean,
    nats,
)
from experiments.losses import LOSSES as KINDS
from experiments.losses import loss_with_noise
from experiments.training import WEIGHT_DECAY, decay_groups, scores
from softnce import SoftTargets, calibration, mixing, noise

IMAGES = 5_000
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
LOSSES = ("nll", CE, OURS, EXPECTED, "info-nce", DRAWN)
SETTINGS = {
    "scratch": "a small residual network on 5,000 images of CIFAR-100, 32 px",
    "fine-tuned": "EfficientNet-Lite0 with its ImageNet weights on 3,000 images of CIFAR-100, 64 px",
    "generated": "the small network on 500 easy images of 10 classes",
}
SOFT = (CE, OURS, EXPECTED)
LADDER = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
SEARCH_SEED, SEARCH_EPOCHS = 8, 30
EVALUATIONS = 15  # of a run, at equal distances

# ------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Options:
    setting: str = option("scratch", f"one of {', '.join(SETTINGS)}", of=SETTINGS)
    head: str = option("linear", "linear or, fine-tuned, mlp: three layers of 512", of=("linear", "mlp"))
    losses: tuple[str, ...] = option(LOSSES, f"some of {', '.join(LOSSES)}", of=LOSSES)
    epochs: int = option(60, "length of the main comparison", least=1)
    seeds: int = option(5, "seeds of the main comparison", least=1)
    other_epochs: tuple[int, ...] = option((30, 8, 120), "other lengths")
    other_seeds: int = option(3, "seeds of the other lengths", least=0)
    smoothings: tuple[float, ...] = option((), "other ε of the two soft target losses, at the main length")
    batches: tuple[int, ...] = option((), "other batches of the three soft target losses, for 30 epochs")
    rates: tuple[float, ...] = option(
        (0.003, 0.01, 0.03), "base rates every search begins with; one: no search", fewest=1, of=LADDER
    )

    def __post_init__(self) -> None:
        if self.head == "mlp" and self.setting != "fine-tuned":
            raise ValueError("head: got 'mlp', need linear, or the setting fine-tuned")


@dataclass(frozen=True)
class Run:
    """Everything that determines a run."""

    loss: str
    epochs: int
    lr: float
    seed: int
    smoothing: float = 0.1
    mixup: float = 0.8
    cutmix: float = 1.0
    batch: int = 256
    warmup_epochs: int = 3
    images: int = IMAGES
    setting: str = "scratch"
    head: str = later("linear", "of the fine-tuned network")


def run_of(options: Options, loss: str, epochs: int, lr: float, seed: int) -> Run:
    """A run of the sizes of its setting; losses of labels get neither smoothing nor mixing."""
    run = Run(loss, epochs, lr, seed, setting=options.setting, head=options.head)
    if options.setting == "fine-tuned":
        run = replace(run, images=3_000)
    if options.setting == "generated":
        run = replace(run, images=500, batch=50, warmup_epochs=1)
    return replace(run, smoothing=0.0, mixup=0.0, cutmix=0.0) if KINDS[loss].labels_only else run


def searched(rows: Sequence[Row], loss: str, options: Options) -> dict[float, float]:
    """Best held-out top-1 of the search's runs, by rate; a diverged run has none."""
    wanted = (loss, SEARCH_EPOCHS, SEARCH_SEED, options.setting, options.head)
    names = ("loss", "epochs", "seed", "setting", "head")
    tried = [({"head": "linear"} | row.config, row) for row in rows]
    return {c["lr"]: held_out(row) for c, row in tried if tuple(map(c.get, names)) == wanted}


def wanted(options: Options, rows: Sequence[Row] = ()) -> list[Run]:
    """Search, then the main length with all losses seed by seed, then the other lengths, ε and batches."""
    o, found, runs = options, {}, []
    for loss in o.losses:
        rate, todo = climb(searched(rows, loss, o), o.rates, LADDER)
        runs += [run_of(o, loss, SEARCH_EPOCHS, lr, SEARCH_SEED) for lr in todo]
        if rate is not None:
            found[loss] = rate
    for epochs, seeds in ((o.epochs, o.seeds), *((n, o.other_seeds) for n in o.other_epochs)):
        runs += [run_of(o, loss, epochs, rate, seed) for seed in range(seeds) for loss, rate in found.items()]
    for seed in range(o.other_seeds):
        main, short = ([run_of(o, loss, n, found[loss], seed) for loss in SOFT if loss in found]
                       for n in (o.epochs, SEARCH_EPOCHS))  # fmt: skip
        runs += [replace(run, smoothing=ε) for run in main if run.loss in (CE, OURS) for ε in o.smoothings]
        runs += [replace(run, batch=batch) for run in short for batch in o.batches]
    return runs


# ------------------------------------------------------------------------------------------------------------ data


class Part(NamedTuple):
    """Images (N, 3, 32, 32) of bytes and labels (N,)."""

    images: Tensor
    labels: Tensor


@cache
def read(setting: str, part: str) -> Part:
    """Training or test images of a setting."""
    if setting == "generated":
        return generated(1_500 if part == "train" else 500, seed=len(part))
    path = folder("cifar100") / f"{part}.npz"
    if not path.is_file():
        raise ValueError(f"{path} is missing; it holds CIFAR-100 as arrays x (N, 32, 32, 3) of bytes and y (N,)")
    with np.load(path) as stored:
        return Part(torch.from_numpy(stored["x"]).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(stored["y"]))


def generated(count: int, seed: int, classes: int = 10) -> Part:
    """A coarse pattern per class under noise, equally many images of each."""
    patterns = torch.rand(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    noise = 0.5 * torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % classes
    images = F.interpolate(patterns, size=32, mode="bilinear")[labels] + noise
    return Part((255 * images.clamp(0, 1)).byte(), labels)


def split(labels: Tensor, seed: int, images: int) -> tuple[Tensor, Tensor]:
    """Positions of a seed's training images and of as many held-out ones, equally many per class.

    The held-out images are the same for every seed. The training images of consecutive seeds are disjoint.
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)].view(int(labels.max()) + 1, -1)
    block = images // len(by_class)
    blocks = by_class.shape[1] // block
    start = block * (1 + seed % (blocks - 1))
    return by_class[:, start : start + block].flatten(), by_class[:, :block].flatten()


def standardise(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(value).view(3, 1, 1) * 255 for value in (MEAN, STD))
    return ((images - mean) / std).contiguous(memory_format=torch.channels_last)


def crop_and_flip(images: Tensor, generator: torch.Generator, smallest: float = 0.08) -> Tensor:
    """A crop per image of 8 to 100 % of its area and aspect ratio 3/4 to 4/3, resized to the whole, flipped or not."""
    area, ratio, x, y, flip = torch.rand(5, len(images), generator=generator)
    area = smallest + (1 - smallest) * area
    ratio = (math.log(4 / 3) * (2 * ratio - 1)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    theta = torch.zeros(len(images), 2, 3)
    theta[:, 0, 0] = torch.where(flip < 0.5, -width, width)
    theta[:, 1, 1] = height
    theta[:, 0, 2], theta[:, 1, 2] = (1 - width) * (2 * x - 1), (1 - height) * (2 * y - 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


# --------------------------------------------------------------------------------------------------------- network


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """Two 3×3 convolutions, or with ``inner`` a bottleneck, added to the input."""

    def __init__(self, inputs: int, outputs: int, stride: int, inner: int = 0) -> None:
        super().__init__()
        if inner:
            layers = [*convolution(inputs, inner, 1), nn.ReLU(True), *convolution(inner, inner, 3, stride)]
            layers += [nn.ReLU(True), *convolution(inner, outputs, 1)]
        else:
            layers = [*convolution(inputs, outputs, 3, stride), nn.ReLU(True), *convolution(outputs, outputs)]
        nn.init.zeros_(layers[-1].weight)  # type: ignore[arg-type]  # every block starts as the identity
        self.change = nn.Sequential(*layers)
        self.skip = nn.Identity() if stride == 1 else nn.Sequential(nn.AvgPool2d(2), *convolution(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.change(x) + self.skip(x))


def small_resnet(classes: int) -> nn.Module:
    """timm's ``test_resnet``, 0.38 million parameters, without timm."""
    stem = [*convolution(3, 16, 3, 2), nn.ReLU(True), *convolution(16, 16), nn.ReLU(True), *convolution(16, 32)]
    blocks = [Residual(32, 32, 1), Residual(32, 48, 2), Residual(48, 192, 2, inner=48), Residual(192, 96, 2)]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes)]
    network = nn.Sequential(*stem, nn.ReLU(True), nn.MaxPool2d(3, 2, 1), *blocks, *pooled)
    return network.to(memory_format=torch.channels_last)


View = Callable[[Tensor, torch.Generator | None], Tensor]


class Model(NamedTuple):
    """A network, its parameters in groups for AdamW, and how it sees images of bytes: at random, or without a source
    of randomness as they are."""

    network: nn.Module
    groups: list[dict[str, Any]]
    view: View


def build_model(run: Run, classes: int) -> Model:
    if run.setting == "fine-tuned":
        return efficientnet(run.head, classes)
    network = small_resnet(classes)

    def view(images: Tensor, generator: torch.Generator | None) -> Tensor:
        seen = standardise(images)
        return seen if generator is None else crop_and_flip(seen, generator)

    return Model(network, decay_groups(network.parameters(), WEIGHT_DECAY), view)


def efficientnet(head: str, classes: int, size: int = 64) -> Model:
    """EfficientNet-Lite0 with its ImageNet weights; the paper's augmentation, layer-wise rates with a decay of 0.85."""
    from experiments.data.transforms import View as Seen
    from experiments.data.transforms import training_transform
    from experiments.models.heads import Head
    from experiments.models.images import build_network
    from experiments.models.options import ImageModel

    from timm.optim import param_groups_layer_decay  # isort: skip
    from torchvision.transforms.functional import to_pil_image  # isort: skip

    model = ImageModel("tf_efficientnet_lite0", "packaged", drop_path=0.1)
    network = build_network(model, Head(head, hidden=512), classes, size).to(memory_format=torch.channels_last)
    groups = param_groups_layer_decay(network.backbone, weight_decay=WEIGHT_DECAY, layer_decay=0.85)
    groups.append({"params": list(network.head.parameters()), "weight_decay": WEIGHT_DECAY})
    seen = Seen(size, 1.0, [127 / 255] * 3, [128 / 255] * 3)  # as its ImageNet weights were trained
    plain, random_view = seen.transform(), training_transform(seen, "rand-m9-mstd0.5-inc1", 0.5, 0.25)

    def view(images: Tensor, generator: torch.Generator | None) -> Tensor:
        look = plain if generator is None else random_view
        parts = torch.stack([look(to_pil_image(image)) for image in images])
        return parts.contiguous(memory_format=torch.channels_last)

    return Model(network, groups, view)


# -------------------------------------------------------------------------------------------------------- training


def mix(
    images: Tensor, labels: Tensor, classes: int, run: Run, generator: torch.Generator
) -> tuple[Tensor, Tensor | SoftTargets]:
    """Four batches in five get CutMix or MixUp, each as often, as in the paper's recipe."""
    if KINDS[run.loss].labels_only:
        return images, labels
    targets = SoftTargets.from_labels(labels, classes, run.smoothing)
    coin, kind = torch.rand(2, generator=generator).tolist()
    if coin >= 0.8:
        return images, targets
    way, alpha = (mixing.cutmix, run.cutmix) if kind < 0.5 else (mixing.mixup, run.mixup)
    return way(images, targets, alpha=alpha, generator=generator)


def learning_rate(step: int, steps: int, warmup: float, peak: float, least: float = 1e-6) -> float:
    """Linear warm-up from zero, then a cosine."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return least + (peak - least) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


@torch.no_grad()
def logits_of(network: nn.Module, view: View, images: Tensor) -> Tensor:
    network.eval()
    scores = torch.cat([network(view(part, None)) for part in images.split(500)])
    network.train()
    return scores


def perform(run: Run) -> dict[str, Any]:
    """One run: the course on held-out images, test scores of the epoch chosen there and of the last one."""
    torch.manual_seed(run.seed)
    random.seed(run.seed)  # timm's augmentation draws from here
    np.random.seed(run.seed)  # noqa: NPY002 (and from here)
    views, mixes, draws = (torch.Generator().manual_seed(10 * run.seed + k) for k in range(3))
    whole = read(run.setting, "train")
    classes = int(whole.labels.max()) + 1
    training, held = (Part(*(x[rows] for x in whole)) for rows in split(whole.labels, run.seed, run.images))
    labels = training.labels
    network, groups, view = build_model(run, classes)
    loss = loss_with_noise(run.loss, noise.uniform(classes))  # the classes are balanced
    optimiser = torch.optim.AdamW(groups, fused=True)
    batches = len(labels) // run.batch
    steps, warmup = run.epochs * batches, run.warmup_epochs * batches
    evaluated = {math.ceil(run.epochs * k / EVALUATIONS) for k in range(1, EVALUATIONS + 1)}
    start, course, best, weights = time.process_time(), [], -1.0, {}
    for epoch in range(1, run.epochs + 1):
        order = torch.randperm(len(labels), generator=views)[: batches * run.batch]
        for i, rows in enumerate(order.split(run.batch)):
            for group in optimiser.param_groups:
                rate = learning_rate((epoch - 1) * batches + i, steps, warmup, run.lr * run.batch / 256)
                group["lr"] = rate * group.get("lr_scale", 1.0)
            inputs, targets = mix(view(training.images[rows], views), labels[rows], classes, run, mixes)
            value = loss(network(inputs), targets, generator=draws)
            if not math.isfinite(value.item()):
                raise Diverged(f"the loss is {value.item()} in epoch {epoch}")
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        if epoch in evaluated:
            course.append({"epoch": epoch, **fit(logits_of(network, view, held.images), held.labels)})
            if course[-1]["top1"] >= best:
                best, chosen = course[-1]["top1"], epoch
                weights = {name: value.clone() for name, value in network.state_dict().items()}
    result = {"course": course, "epoch": chosen, "train": fit(logits_of(network, view, training.images), labels)}
    result["last"], _ = evaluate(network, view, run.setting, held)
    network.load_state_dict(weights)
    result["test"], right = evaluate(network, view, run.setting, held)
    packed = base64.b64encode(np.packbits(right.numpy()).tobytes()).decode()
    return {**result, "right": packed, "cpu_seconds": round(time.process_time() - start, 1)}


def fit(logits: Tensor, labels: Tensor) -> dict[str, float]:
    top1 = (logits.argmax(1) == labels).float().mean().item()
    return {"top1": top1, "nll": F.cross_entropy(logits, labels).item()}


def evaluate(network: nn.Module, view: View, setting: str, held: Part) -> tuple[dict[str, float], Tensor]:
    """Test scores before and after the temperature that fits the held-out images, and which images are right."""
    test = read(setting, "test")
    logits = logits_of(network, view, test.images)
    temperature = calibration.fit_temperature(logits_of(network, view, held.images), held.labels)
    plain, scaled = (scores(logits / scale, test.labels) for scale in (1.0, temperature))
    found = {name: plain[name] for name in ("top1", "top5", "nll", "ece")} | {"temperature": temperature}
    found |= {f"{name}_scaled": scaled[name] for name in ("nll", "ece")}
    return found, logits.argmax(1) == test.labels


# --------------------------------------------------------------------------------------------------------- numbers

DIFFERENCES = ((OURS, CE), (OURS, "nll"), (OURS, "info-nce"), (OURS, DRAWN), (CE, "nll"), (EXPECTED, CE),
               (EXPECTED, OURS))  # fmt: skip
SCALED_ECE = percent("ece_scaled")


def held_out(row: Row) -> float:
    """Top-1 in per cent on held-out images, at the epoch chosen there."""
    return 100 * max(point["top1"] for point in row.result["course"])


def shared(*groups: Sequence[Row]) -> set[int]:
    """The seeds that all groups of rows have."""
    return set.intersection(*({row.config["seed"] for row in rows} for rows in groups)) if groups else set()


@dataclass(frozen=True)
class Lead:
    """A comparison: which loss is ahead of which, after how many epochs, in what score.

    ``changed`` replaces the usual smoothing or batch.
    """

    ours: str
    theirs: str
    epochs: int = 60
    value: Value = TOP1
    changed: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trainings:
    """The rows of one setting; ``name`` begins the names of its tables and figures."""

    name: str
    rows: Sequence[Row]

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({row.config["epochs"] for row in self.rows if row.config["seed"] != SEARCH_SEED})

    @cached_property
    def search(self) -> list[Row]:
        """The search of the rates; the longest length may be searched as well, which chooses nothing."""
        found = [row for row in self.rows if row.config["seed"] == SEARCH_SEED]
        epochs = min((row.config["epochs"] for row in found), default=0)
        return [row for row in found if row.config["epochs"] == epochs]

    @cached_property
    def rates(self) -> dict[str, float]:
        """The searched rate of each loss; without a search that of most runs."""
        used = {loss: Counter(r.config["lr"] for r in self.rows if r.config["loss"] == loss) for loss in LOSSES}
        found = {loss: rates.most_common(1)[0][0] for loss, rates in used.items() if rates}
        for loss in {row.config["loss"] for row in self.search}:
            tried = [row for row in self.search if row.config["loss"] == loss]
            found[loss] = max(tried, key=held_out).config["lr"]
        return found

    def usual(self, loss: str) -> Run:
        c = self.rows[0].config
        return run_of(Options(c["setting"], c.get("head", "linear")), loss, 0, self.rates.get(loss, 0.0), 0)

    def at(self, loss: str, epochs: int, **changed: float) -> list[Row]:
        """The rows of one loss and length, without the search; ``changed`` replaces the usual smoothing or batch."""
        usual = self.usual(loss)
        wanted = {name: getattr(usual, name) for name in ("loss", "lr", "smoothing", "batch")}
        wanted |= {"epochs": epochs} | changed
        return [row for row in self.rows if wanted.items() <= row.config.items() and row.config["seed"] != SEARCH_SEED]

    def of(self, q: Lead) -> tuple[list[Row], list[Row]]:
        """The rows of both losses of a comparison."""
        return self.at(q.ours, q.epochs, **q.changed), self.at(q.theirs, q.epochs, **q.changed)

    def varied(self, name: str) -> tuple[int, dict[str, dict[float, list[Row]]]]:
        """The runs for another ``smoothing`` or ``batch``: their length, and rows by loss and value at common seeds."""
        usual = getattr(self.usual(OURS), name)
        others = [row for row in self.rows if row.config["loss"] in SOFT and row.config[name] != usual]
        epochs = max((row.config["epochs"] for row in others), default=0)
        values = sorted({row.config[name] for row in others} | {usual})
        found = {loss: {v: of for v in values if (of := self.at(loss, epochs, **{name: v}))} for loss in SOFT}
        found = {loss: by_value for loss, by_value in found.items() if len(by_value) > 1}
        seeds = shared(*(of for by_value in found.values() for of in by_value.values()))
        for by_value in found.values():
            by_value |= {value: [row for row in of if row.config["seed"] in seeds] for value, of in by_value.items()}
        return epochs, found if seeds else {}


def by_setting(rows: Sequence[Row]) -> list[Trainings]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        setting = "-fine-tuned-" + row.config.get("head", "linear") if row.config["setting"] == "fine-tuned" else ""
        found.setdefault(f"regime{setting}", []).append(row)
    return [Trainings(name, of) for name, of in found.items()]


# ---------------------------------------------------------------------------------------------------------- tables

Column = tuple[Callable[[str], Sequence[Row]], Value, int]
"""Rows of a loss, a score of theirs, and its digits."""
SYMBOLS = {"smoothing": "ε", "batch": "batch"}


def cell(rows: Sequence[Row], value: Value, digits: int = 1) -> str:
    return mean(rows, value).spread(digits) if rows else "–"


def gap(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """A difference of top-1, paired by seed."""
    return difference(ours, theirs, TOP1).signed() if shared(ours, theirs) else "–"


def by_loss(name: str, title: str, columns: Mapping[str, Column]) -> Table:
    """A row per loss that has any of the columns."""
    cells = {loss: [cell(rows(loss), *how) for rows, *how in columns.values()] for loss in LOSSES}
    body = [[LOOKS[loss].name, *of] for loss, of in cells.items() if any(one != "–" for one in of)]
    return Table(name, ["loss", *columns], body, title=title)


def tables(rows: Sequence[Row]) -> list[Table]:
    return [table for found in by_setting(rows) for table in tables_of(found)]


def tables_of(found: Trainings) -> list[Table]:
    name, header = found.name, [f"{n} epochs" for n in found.lengths]
    lengths = {f"{n} epochs": (partial(found.at, epochs=n), TOP1, 2) for n in found.lengths}
    top1 = by_loss(f"{name}-top1", "Test top-1 (%) by length of training", lengths)
    counts = [str(max(len(found.at(loss, n)) for loss in LOSSES)) for n in found.lengths]
    gaps = [
        [f"{LOOKS[a].name} − {LOOKS[b].name}", *(gap(*found.of(Lead(a, b, n))) for n in found.lengths)]
        for a, b in DIFFERENCES
    ]
    gaps = [row for row in gaps if any(one != "–" for one in row[1:])]
    made = [
        replace(top1, rows=[*top1.rows, ["seeds", *counts]]),
        Table(f"{name}-differences", ["difference", *header], gaps, title="Differences of top-1 (points), paired"),
    ]
    scores: dict[str, tuple[Value, int]] = {
        "top-1 (%)": (TOP1, 2),
        "last epoch": (percent("top1", "last"), 2),
        "top-5 (%)": (percent("top5"), 1),
        "ECE (%)": (ECE, 1),
        "ECE, scaled": (SCALED_ECE, 1),
        "NLL, scaled": (nats("nll_scaled"), 3),
        "training top-1": (percent("top1", "train"), 1),
    }
    for n in found.lengths:
        rows = partial(found.at, epochs=n)
        made.append(by_loss(f"{name}-{n}", f"{n} epochs", {title: (rows, *how) for title, how in scores.items()}))
    made += [effect(found, option, symbol) for option, symbol in SYMBOLS.items() if found.varied(option)[1]]
    if found.search:
        title = "The search: held-out top-1 (%) by base rate, one seed"
        rates = sorted({row.config["lr"] for row in found.search})
        columns = {f"{rate:g}": (partial(searched_at, found, rate), held_out, 1) for rate in rates}
        made.append(by_loss(f"{name}-rates", title, columns))
    return made


def searched_at(found: Trainings, rate: float, loss: str) -> list[Row]:
    return [row for row in found.search if (row.config["loss"], row.config["lr"]) == (loss, rate)]


def effect(found: Trainings, name: str, symbol: str) -> Table:
    """Accuracy and calibration by ε or batch, at the seeds that all values have."""
    epochs, varied = found.varied(name)
    usual = getattr(found.usual(OURS), name)
    body = []
    for loss, by_value in varied.items():
        for value, of in by_value.items():
            change = gap(of, by_value.get(usual, [])) if value != usual else ""
            lead = gap(of, varied.get(CE, {}).get(value, [])) if loss != CE else ""
            scores = cell(of, ECE), cell(of, SCALED_ECE), str(len(of))
            body.append([LOOKS[loss].name, f"{value:g}", cell(of, TOP1, 2), change, lead, *scores])
    header = ["loss", symbol, "top-1 (%)", f"minus {symbol} {usual:g}", "minus soft target cross-entropy", "ECE (%)"]
    title = f"{symbol.capitalize()} in trainings of {epochs} epochs"
    return Table(f"{found.name}-{name}", [*header, "ECE, scaled", "seeds"], body, title=title)


# -------------------------------------------------------------------------------------------------------- findings

COMPARED: dict[str, tuple[Lead, dict[str, Any]]] = {
    "regime-soft-ce": (Lead(OURS, CE), ON_PAR),
    "regime-nll": (Lead(OURS, "nll"), {"above": 0}),
    "regime-soft-distribution": (Lead(OURS, DRAWN), {"above": 0}),
    "regime-calibration": (Lead(OURS, CE, value=ECE), {"below": 0}),
    "regime-expected": (Lead(EXPECTED, OURS), {"above": 0, "new": True}),
    "regime-short-nll": (Lead(OURS, "nll", epochs=8), {"below": 0, "new": True}),
    "regime-longest-soft-ce": (Lead(OURS, CE, epochs=120), ON_PAR),
    "regime-longest-nll": (Lead(OURS, "nll", epochs=120), {"above": 0}),
    "regime-small-batch": (Lead(OURS, CE, epochs=30, changed={"batch": 8}), {"below": 0}),
    "regime-small-batch-expected": (Lead(EXPECTED, CE, epochs=30, changed={"batch": 8}), ON_PAR | {"new": True}),
}


def findings(rows: Sequence[Row]) -> dict[str, Finding]:
    """Of the network from scratch; a claim without its rows has none."""
    rows = [row for row in rows if row.config["setting"] == "scratch"]
    if not rows:
        return {}
    (found,) = by_setting(rows)
    answers = {key: compared(found, *how) for key, how in COMPARED.items()}
    answers |= {"regime-overfits": overfits(found), "regime-length": lengthened(found),
                "regime-smoothing": steadied(found)}  # fmt: skip
    return {key: answer for key, answer in answers.items() if answer}


def where(found: Trainings, epochs: Any, count: int, batch: float = 256) -> str:
    tried = sorted({row.config["lr"] for row in found.search})
    rates = f"rates {tried[0]:g} to {tried[-1]:g}, " if tried else ""
    return f"CIFAR-100, 5,000 images, {epochs} epochs, batch {batch:g}, {rates}{count} seed{'s' * (count > 1)}"


def compared(found: Trainings, q: Lead, bounds: dict[str, Any]) -> Finding | None:
    ours, theirs = found.of(q)
    if not shared(ours, theirs):
        return None
    gap = difference(ours, theirs, q.value)
    text = f"{'ECE ' if q.value is ECE else ''}{gap.signed()} points"
    other = for_other_samples(ours, theirs) if q.value is TOP1 and gap.count > 1 else None
    if other is not None:
        text += f", for other test images too [{other.low:+.2f}, {other.high:+.2f}]".replace("-", "−")
    text += needed(gap, **{name: bound for name, bound in bounds.items() if name != "new"})
    return Finding(text, where(found, q.epochs, gap.count, **q.changed), verdict(gap, **bounds))


def overfits(found: Trainings) -> Finding | None:
    """The rise of the held-out NLL after its minimum, in the longest training on labels."""
    of = found.at("nll", max(found.lengths, default=0))
    if not of:
        return None
    rise = estimate([row.result["course"][-1]["nll"] - min(p["nll"] for p in row.result["course"]) for row in of])
    fitted = mean(of, percent("top1", "train"))
    text = f"{rise.signed()} nats above its minimum, {fitted.spread(1)} % of the training images right"
    return Finding(text, where(found, of[0].config["epochs"], len(of)), verdict(rise, above=0.02, new=True))


def lengthened(found: Trainings) -> Finding | None:
    """The lead over NLL in the longest training minus that after 8 epochs."""
    last = max(found.lengths, default=0)
    groups = [found.at(loss, epochs) for epochs in (last, 8) for loss in (OURS, "nll")]
    if last == 8 or not shared(*groups):
        return None
    gain = difference_of_differences(*groups, TOP1)
    return decided(gain, on=where(found, f"8 and {last}", gain.count), above=0, new=True)


def steadied(found: Trainings) -> Finding | None:
    """Standard deviation over ε of soft target cross-entropy's top-1 minus that of soft target InfoNCE's."""
    epochs, varied = found.varied("smoothing")
    if epochs != 60 or not {CE, OURS} <= varied.keys() or varied[CE].keys() != varied[OURS].keys():
        return None
    theirs, ours = ([by_seed(rows, TOP1) for rows in varied[loss].values()] for loss in (CE, OURS))
    steadier = estimate([stdev(of[seed] for of in theirs) - stdev(of[seed] for of in ours) for seed in theirs[0]])
    text = f"standard deviation over ε larger by {steadier.signed()} points{needed(steadier, above=0)}"
    on = f"{where(found, epochs, steadier.count)}, ε {', '.join(f'{value:g}' for value in varied[CE])}"
    return Finding(text, on, verdict(steadier, above=0))


# --------------------------------------------------------------------------------------------------------- figures

PANELS = {"test top-1 (%)": TOP1, "ECE (%)": ECE, "ECE at the fitted temperature (%)": SCALED_ECE}


def figures(rows: Sequence[Row]) -> list[Figure]:
    built = []
    for found in by_setting(rows):
        if found.lengths:
            course = partial(draw_course, found)
            built.append(Figure(f"{found.name}-course", course, panels=2, columns=1, size=(6, 2.6)))
        if len(found.lengths) > 1:
            lengths = partial(draw_lengths, found)
            built.append(Figure(f"{found.name}-lengths", lengths, panels=3, columns=1, size=(6, 2.6)))
    return built


def draw_lengths(found: Trainings, axes: Any) -> None:
    """Scores of finished trainings by their length."""
    for ax, (name, value) in zip(axes, PANELS.items(), strict=True):
        for loss in LOSSES:
            if of := {n: mean(rows, value) for n in found.lengths if (rows := found.at(loss, n))}:
                curve(ax, of, loss=loss)
        label(ax, "epochs", name, log="x")
        ax.set_xticks(found.lengths, [str(n) for n in found.lengths])
        ax.minorticks_off()


def draw_course(found: Trainings, axes: Any) -> None:
    """Held-out scores in the course of the longest trainings."""
    for ax, (name, score, scale) in zip(axes, (("top-1 (%)", "top1", 100), ("NLL (nats)", "nll", 1)), strict=True):
        for loss in LOSSES:
            if of := found.at(loss, found.lengths[-1]):
                points = zip(*(row.result["course"] for row in of), strict=True)
                curve(ax, {p[0]["epoch"]: estimate([scale * one[score] for one in p]) for p in points}, loss=loss)
        label(ax, "epoch", f"held-out {name}")


EXPERIMENT = Experiment(
    name="regime", question="After how many epochs do soft targets pay, and which loss uses them best?", minutes=240,
    presets={
        "quick": Options("generated", epochs=4, seeds=2, other_epochs=(2,), other_seeds=2, rates=(0.01,)),
        "paper": Options(),
    },
    runs=wanted, follow_up=wanted, perform=perform, findings=findings, tables=tables, figures=figures,
)  # fmt: skip
