"""One training loop for small models on tensors, the scores of a classifier, and the probe: a head on features."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from experiments.data import features
from experiments.data.features import Features, Part, Source, load
from experiments.data.targets import IGNORED, Targets, draw_mix, mix_inputs
from experiments.harness.runs import Diverged
from experiments.losses import Loss, build_loss
from experiments.models.heads import Head, build_head
from softnce import SoftTargets, calibration

WEIGHT_DECAY = 0.05
HARD = Targets()
SMOOTH = Targets(smoothing=0.1)
MIXED = Targets(smoothing=0.1, mixup=0.8, mix_probability=1.0)
"""The augmentation of targets that features allow: label smoothing and MixUp. CutMix needs images."""
MLP = Head(hidden=256)
BATCH = {"digits": 64, "cifar100": 256, "tiny-imagenet": 256}
"""Rows per batch, unless an experiment varies them."""


@dataclass(frozen=True)
class Probe:
    """Everything that determines one training of a head and its scores."""

    data: Source = "digits"
    loss: Loss = field(default_factory=Loss)
    targets: Targets = MIXED
    head: Head = MLP
    batch: int = 256
    lr: float = 1e-3
    epochs: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss.kind.labels_only and not self.targets.hard:
            raise ValueError(f"{self.loss.name} takes hard labels, got {self.targets}")


def prepare(probes: Iterable[Probe]) -> None:
    """Computes missing features, before several processes ask for them."""
    features.prepare(probe.data for probe in probes)


def train(probe: Probe, candidates: Targets | None = None) -> dict[str, Any]:
    """The measurements of a head trained as :func:`trained`, at the epoch that is best on the held-out part."""
    data = load(probe.data)
    return trained(probe, data, candidates).measurements(data)


def trained(probe: Probe, data: Features, candidates: Targets | None = None) -> "BestEpoch":
    """The head that ``probe`` describes, trained on ``data``, which may be a part of the data set it names.

    ``candidates``: how sampled candidates are made, if not as the targets.
    """
    loss = build_loss(probe.loss, candidates or probe.targets, data.train.y, data.num_classes)
    targets = SoftTargets.from_labels(data.train.y, data.num_classes, probe.targets.smoothing)
    head = build_head(probe.head, data.dim, data.num_classes, probe.seed)
    watch = BestEpoch(head, data.held_out, loss.temperature)
    fit(head, loss, data.train.x, targets, batch=probe.batch, lr=probe.lr, epochs=probe.epochs, seed=probe.seed,
        mix=probe.targets, after=watch)  # fmt: skip
    return watch


def fit(
    head: nn.Module, loss: Callable[..., Tensor], x: Tensor, targets: SoftTargets, *,
    batch: int, lr: float, epochs: int, seed: int | torch.Generator, mix: Targets = HARD,
    weight_decay: float = WEIGHT_DECAY, cosine: bool = True, after: Callable[[int], None] = lambda epoch: None,
) -> None:  # fmt: skip
    """Minimises ``loss`` over features and their targets by AdamW, in place; leaves the head in evaluation mode.

    Args:
        head: maps features ``x`` (N, d) to class scores (N, K).
        targets: N rows, before mixing.
        batch: rows per step. Every batch is whole: rows after the last one of an epoch are left out.
        seed: determines the order of rows, mixing and draws; a generator is used as it is.
        mix: MixUp of features and targets; its smoothing has no effect here.
        weight_decay: of matrices; vectors are not decayed.
        cosine: the learning rate falls from ``lr`` to 0; otherwise it is constant.
        after: called with the number of each finished epoch, from 1, the head in evaluation mode.
    """
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(decay_groups(head.parameters(), weight_decay), lr=lr, fused=True)
    if (steps := len(x) // batch) == 0:
        raise ValueError(f"batch: got {batch}, but there are only {len(x)} rows to train on")
    for epoch in range(1, epochs + 1):
        head.train()
        order = torch.randperm(len(x), generator=generator)[: steps * batch].view(steps, batch)
        for step, rows in enumerate(order, (epoch - 1) * steps):
            if cosine:
                for group in optimiser.param_groups:
                    group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / (epochs * steps)))
            inputs, soft = x[rows], targets[rows]
            if mix.mixes and (mixed := draw_mix(mix, inputs.shape, generator.initial_seed(), step)):
                inputs, soft = mix_inputs(inputs, mixed), soft.mix(soft.flip(0), mixed.share)
            value = loss(head(inputs), soft, generator=generator)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        head.eval()
        after(epoch)


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices, and vectors and scalars, which are not decayed."""
    trainable = [p for p in parameters if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]


class BestEpoch:
    """Watches a head while it is trained and keeps the weights of the epoch that is best on the held-out part."""

    def __init__(self, head: nn.Module, held_out: Part, temperature: float | Tensor = 1.0) -> None:
        self.head, self.held_out, self.temperature = head, held_out, temperature
        self.course: list[float] = []  # held-out top-1 after each epoch
        self.weights: dict[str, Tensor] = {}

    def __call__(self, epoch: int) -> None:
        logits = self.logits(self.held_out.x)
        if logits.isnan().any():
            raise Diverged(f"the class scores are NaN after epoch {epoch}")
        top1 = (logits.argmax(1) == self.held_out.y).double().mean().item()
        if not self.course or top1 > max(self.course):
            self.weights = copy.deepcopy(self.head.state_dict())
        self.course.append(top1)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        return self.head(x) / self.temperature

    def measurements(self, data: Features) -> dict[str, Any]:
        """Scores of the best epoch on both parts, and on the test part after temperature scaling.

        The temperature is fitted on the held-out part. ``reliability`` are the bins of a reliability diagram of the
        test part: number of samples, mean confidence, accuracy.
        """
        self.head.load_state_dict(self.weights)
        held, test = self.logits(data.held_out.x), self.logits(data.test.x)
        temperature = calibration.fit_temperature(held, data.held_out.y)
        return {
            "course": self.course,
            "epoch": 1 + self.course.index(max(self.course)),
            "held_out": scores(held, data.held_out.y),
            "test": scores(test, data.test.y),
            "temperature": temperature,
            "scaled": scores(test / temperature, data.test.y),
            "reliability": reliability(test, data.test.y),
        }


class Scores:
    """Top-1, top-5, mean over classes, likelihood and calibration over an evaluation set, batch by batch."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.reset()

    def reset(self) -> None:
        self.calibration = calibration.CalibrationMeter()
        # by class: rows, rows ranked first, rows ranked among the first five
        self.counts = torch.zeros(3, self.num_classes, dtype=torch.double)

    def update(self, logits: Tensor, labels: Tensor, inputs: Any = None) -> None:
        """Adds rows: logits (n, K), labels (n,); rows labelled IGNORED are left out. ``inputs`` are not used here."""
        kept = labels != IGNORED
        logits, labels = logits[kept], labels[kept]
        if len(labels) == 0:
            return
        ranked = logits.topk(min(5, self.num_classes), dim=1).indices == labels[:, None]
        hits = torch.stack([torch.ones_like(labels, dtype=torch.bool), ranked[:, 0], ranked.any(1)]).double()
        self.counts += torch.zeros_like(self.counts).index_add_(1, labels.cpu(), hits.cpu())
        self.calibration.update(logits, labels)

    def gather(self) -> None:
        """Sums over all processes; every process must call it."""
        self.calibration.gather()
        if dist.is_available() and dist.is_initialized():
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, self.counts)
            self.counts = torch.stack(everyone).sum(0)

    def compute(self) -> dict[str, float]:
        """Shares in [0, 1]. Classes without rows are left out of the class average."""
        rows, first, five = self.counts
        shares = {"top1": first.sum() / rows.sum(), "top5": five.sum() / rows.sum(),
                  "class_average": (first / rows)[rows > 0].mean()}  # fmt: skip
        return {name: share.item() for name, share in shares.items()} | self.calibration.compute()


def scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The metrics of :class:`Scores` for logits (N, K)."""
    meter = Scores(logits.shape[1])
    meter.update(logits, labels)
    return meter.compute()


def reliability(logits: Tensor, labels: Tensor, bins: int = 15) -> dict[str, list[float | None]]:
    """Bins of equal width: count, mean confidence and accuracy, None for an empty bin."""
    curve = calibration.reliability_curve(*calibration.top_label(logits.softmax(1), labels), bins=bins)
    return {name: [None if math.isnan(value) else value for value in getattr(curve, name).tolist()]
            for name in ("count", "confidence", "accuracy")}  # fmt: skip
