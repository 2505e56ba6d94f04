"""One training of the experiment: its images, its two networks, and its scores."""

import base64
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.data.features import folder
from experiments.harness import Diverged, later
from experiments.losses import LOSSES, loss_with_noise
from experiments.training import WEIGHT_DECAY, decay_groups
from softnce import SoftTargets, calibration, mixing, noise

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
EVALUATIONS = 15  # of a run, at equal distances


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
    images: int = 5_000
    setting: str = "scratch"
    head: str = later("linear", "of the fine-tuned network")


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

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        self.network.eval()
        found = torch.cat([self.network(self.view(part, None)) for part in images.split(500)])
        self.network.train()
        return found


def build_model(run: Run, classes: int) -> Model:
    if run.setting == "fine-tuned":
        return efficientnet(run.head, classes)
    network = small_resnet(classes)

    mean, std = (torch.tensor(value).view(3, 1, 1) * 255 for value in (MEAN, STD))

    def view(images: Tensor, generator: torch.Generator | None) -> Tensor:
        seen = ((images - mean) / std).contiguous(memory_format=torch.channels_last)
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
    if LOSSES[run.loss].labels_only:
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
    model = build_model(run, classes)
    loss = loss_with_noise(run.loss, noise.uniform(classes))  # the classes are balanced
    optimiser = torch.optim.AdamW(model.groups, fused=True)
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
            inputs, targets = mix(model.view(training.images[rows], views), labels[rows], classes, run, mixes)
            value = loss(model.network(inputs), targets, generator=draws)
            if not math.isfinite(value.item()):
                raise Diverged(f"the loss is {value.item()} in epoch {epoch}")
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        if epoch in evaluated:
            course.append({"epoch": epoch, **fit(model.logits(held.images), held.labels)})
            if course[-1]["top1"] >= best:
                best, chosen = course[-1]["top1"], epoch
                weights = {name: value.clone() for name, value in model.network.state_dict().items()}
    result = {"course": course, "epoch": chosen, "train": fit(model.logits(training.images), labels)}
    result["last"], _ = evaluate(model, run.setting, held)
    model.network.load_state_dict(weights)
    result["test"], right = evaluate(model, run.setting, held)
    packed = base64.b64encode(np.packbits(right.numpy()).tobytes()).decode()
    return {**result, "right": packed, "cpu_seconds": round(time.process_time() - start, 1)}


def fit(logits: Tensor, labels: Tensor) -> dict[str, float]:
    top1 = (logits.argmax(1) == labels).float().mean().item()
    return {"top1": top1, "nll": F.cross_entropy(logits, labels).item()}


def evaluate(model: Model, setting: str, held: Part) -> tuple[dict[str, float], Tensor]:
    """Test scores before and after the temperature that fits the held-out images, and which images are right."""
    test = read(setting, "test")
    logits = model.logits(test.images)
    temperature = calibration.fit_temperature(model.logits(held.images), held.labels)
    top5 = (logits.topk(5).indices == test.labels[:, None]).any(1).float().mean().item()
    scores = {**fit(logits, test.labels), "top5": top5, "temperature": temperature}
    scores["nll_scaled"] = F.cross_entropy(logits / temperature, test.labels).item()
    for name, scale in (("ece", 1.0), ("ece_scaled", temperature)):
        probs = (logits / scale).softmax(1)
        scores[name] = calibration.expected_calibration_error(probs, test.labels).item()
    return scores, logits.argmax(1) == test.labels
