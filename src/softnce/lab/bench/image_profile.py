"""Where the time of an update goes: reading images, the network, the loss, the optimiser.

    python -m softnce.lab.bench.image_profile imagenet/soft-target-info-nce --rows 8

Runs the parts of a recipe one by one at their real size, on random weights and images: no data set is needed. The loss
is timed against the whole batch's targets, as training uses it.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from softnce.lab import recipes
from softnce.lab.configuration import from_args, option
from softnce.lab.data.batches import borrowed_generators, start_generators
from softnce.lab.data.transforms import training_transform
from softnce.lab.losses import build_loss
from softnce.lab.models.images import build_network
from softnce.lab.recipes.recipe import Recipe
from softnce.lab.train.classifier import trainable
from softnce.targets import SoftTargets

CLASSES = {"imagenet": 1000, "tiny-imagenet": 200, "cifar100": 100}
SIDES = {"imagenet": (500, 375), "tiny-imagenet": (64, 64), "cifar100": (32, 32)}


@dataclass(frozen=True)
class Options:
    """What to time."""

    rows: int = option(8, "rows the network sees at once")
    repeats: int = option(3, "times each part is run; the median counts")
    images: int = option(50, "images read and augmented")


@dataclass(frozen=True)
class Costs:
    """Seconds for each row of an update."""

    reading: float  # by one process
    network: float
    loss: float
    optimiser: float

    @property
    def update(self) -> float:
        return self.network + self.loss + self.optimiser


def measure(recipe: Recipe, options: Options) -> Costs:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes, rows, batch = CLASSES.get(recipe.data.kind, 10), options.rows, recipe.optimiser.batch
    model = replace(recipe.model, weights="none")
    network = build_network(model, recipe.head, classes, recipe.data.image_size).to(device)
    labels = torch.arange(batch, device=device) % classes
    loss = build_loss(recipe.loss, recipe.targets, torch.arange(classes), classes)
    loss = loss.to(device).eval()
    whole = SoftTargets.from_labels(labels, classes, recipe.targets.smoothing)
    if recipe.targets.mixes:
        whole = whole.mix(whole.flip(0), 0.7)
    own = torch.arange(rows, device=device) % batch
    inputs = torch.randn(rows, 3, recipe.data.image_size, recipe.data.image_size, device=device)
    scores = torch.randn(rows, classes, device=device, requires_grad=True)

    def contrast() -> None:
        generator = torch.Generator(device).manual_seed(0)
        loss(scores, whole[own], batch=whole, own=own, generator=generator).backward()

    update = torch.optim.AdamW(trainable(network), lr=1e-6)
    network_time = _time(lambda: network(inputs).square().mean().backward(), options.repeats, device)
    loss_time = _time(contrast, 10 * options.repeats, device)
    optimiser_time = _time(update.step, options.repeats, device)
    # JPEG decoding is part of reading
    picture = Image.effect_noise(SIDES.get(recipe.data.kind, (64, 64)), 60).convert("RGB")
    transform = training_transform(recipe.data, recipe.model)
    encoded = _jpeg(picture)

    def read() -> None:
        with borrowed_generators():
            for i in range(options.images):
                start_generators(0, 0, i)
                transform(_decode(encoded))

    reading_time = _time(read, options.repeats, torch.device("cpu")) / options.images
    return Costs(reading_time, network_time / rows, loss_time / rows, optimiser_time / batch)


def _time(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median seconds, the first run not counted."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def _jpeg(picture: Image.Image) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _decode(encoded: bytes) -> Image.Image:
    from io import BytesIO

    with Image.open(BytesIO(encoded)) as file:
        return file.convert("RGB")


def main(argv: list[str]) -> None:
    if not argv or argv[0].startswith("-"):
        print(__doc__)
        return
    options = from_args(Options, argv[1:], prog="profile", description=__doc__)
    recipe = recipes.load(argv[0])
    if not isinstance(recipe, Recipe):
        sys.exit(f"profile: {argv[0]} is a recipe of graphs; python -m softnce.lab.bench.graph_cost times those")
    costs = measure(recipe, options)
    table = Table("part", "ms a row", "share of an update", title=f"{argv[0]}, {options.rows} rows at once")
    for name in ("network", "loss", "optimiser"):
        value = getattr(costs, name)
        table.add_row(name, f"{1e3 * value:.3f}", f"{100 * value / costs.update:.2f} %")
    table.add_row("reading, one process", f"{1e3 * costs.reading:.3f}", "beside it")
    Console().print(table)
    needed = costs.reading / costs.update
    print(f"{needed:.2g} loader processes a device keep the network busy; the recipe has {recipe.data.workers}")


if __name__ == "__main__":
    main(sys.argv[1:])
