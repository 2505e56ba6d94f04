"""Where time and memory of a training update go: the network, the loss, the optimiser, reading images.

The parts of a recipe are run at their real size on random weights and made-up samples: no data set is needed.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from softnce.lab.bench.cases import Step
from softnce.lab.bench.tables import memory
from softnce.lab.bench.timing import Clock, Spread, interleaved
from softnce.lab.configuration import option
from softnce.lab.data.batches import Batch
from softnce.lab.experiment.memory import peak_of
from softnce.lab.experiment.table import Table
from softnce.lab.losses import build_loss
from softnce.lab.malloc import keep_freed_memory
from softnce.lab.optimiser import build_optimiser, parameter_groups
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe, Recipe, TextRecipe
from softnce.lab.seeds import borrowed_generators, start_generators
from softnce.lab.train.build import build_network
from softnce.lab.train.classifier import Classifier

CLASSES = {"imagenet": 1000, "tiny-imagenet": 200, "cifar100": 100, "banking77": 77, "clinc150": 150, "requests": 8}
SIDES = {"imagenet": (500, 375), "tiny-imagenet": (64, 64), "cifar100": (32, 32)}


@dataclass(frozen=True)
class Config:
    """What to measure of a recipe's update."""

    samples: int = option(8, "images, sentences or graphs per forward pass", least=1)
    cells: int = option(1200, "nodes per graph; mature ovules have about 1900", least=50)
    rounds: int = option(3, "rounds; the median is reported", least=1)
    clock: Clock = option("wall", "wall time, or cpu: processor time, for a shared machine")
    threads: int | None = option(None, "number of torch threads; null: torch's default", least=1)


@dataclass(frozen=True)
class Part:
    """One part of an update."""

    step: Step
    samples: int  # that one call serves
    counts: bool = True  # towards the update's time


def measure(recipe: AnyRecipe, config: Config) -> Table:
    """Milliseconds per sample, share of an update and peak memory of every part."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    keep_freed_memory()  # as in training
    if isinstance(recipe, Recipe):
        sample, parts = "image", _image_parts(recipe, config)
    elif isinstance(recipe, TextRecipe):
        sample, parts = "sentence", _text_parts(recipe, config)
    else:
        sample, parts = "graph", _graph_parts(recipe, config)
    steps = {name: part.step for name, part in parts.items()}
    times = interleaved(steps, config.rounds, float("inf"), clock=config.clock)
    spent = {name: 1e3 * Spread.of(times[name]).median / part.samples for name, part in parts.items()}
    update = sum(spent[name] for name, part in parts.items() if part.counts)
    rows = []
    for name, part in parts.items():
        share = f"{100 * spent[name] / update:.2f} %" if part.counts else ""
        rows.append([name, f"{spent[name]:.3f}", share, memory(peak_of(part.step))])
    title = (
        f"{config.samples} {sample}s at once, updates of {recipe.optimiser.batch}; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {config.clock} time"
    )
    return Table(title, ["part", f"ms per {sample}", "share of an update", "peak memory"], rows)


def _image_parts(recipe: Recipe, config: Config) -> dict[str, Part]:
    recipe = replace(recipe, model=replace(recipe.model, weights="none"))
    classes, side = CLASSES.get(recipe.data.kind, 10), recipe.data.image_size
    network = build_network(recipe, classes, ())
    inputs = torch.randn(config.samples, 3, side, side)
    last = recipe.compute.channels_last
    other = build_network(replace(recipe, compute=replace(recipe.compute, channels_last=not last)), classes, ())
    return {
        "network": Part(lambda: network(inputs).square().mean().backward(), config.samples),
        f"network, channels {'first' if last else 'last'}": Part(
            lambda: other(inputs).square().mean().backward(), config.samples, counts=False
        ),
        **_loss_and_optimiser(recipe, network, classes, config.samples, config.samples),
        "reading, one process": Part(_reading(recipe), 1, counts=False),
    }


def _text_parts(recipe: TextRecipe, config: Config) -> dict[str, Part]:
    """Sentences of random tokens; their lengths are distributed like those of Banking77 (median 13)."""
    from softnce.lab.models import text

    recipe = replace(recipe, model=replace(recipe.model, weights="none"))
    classes = CLASSES[recipe.data.kind]
    network: Any = build_network(recipe, classes, ())
    lengths = torch.from_numpy(np.random.default_rng(0).lognormal(np.log(13), 0.55, config.samples)).long()
    places = torch.arange(recipe.data.max_tokens)
    tokens = torch.where(places < lengths.clamp(4, len(places))[:, None], 1000 + places, text.PADDING)

    def mixed() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            scores = network(tokens)
        scores.square().mean().backward()

    def padded() -> None:
        network.head(network.backbone.padded(tokens)).square().mean().backward()

    return {
        "network": Part(lambda: network(tokens).square().mean().backward(), config.samples),
        "network, mixed precision (bf16)": Part(mixed, config.samples, counts=False),
        "network, padded to the longest": Part(padded, config.samples, counts=False),
        **_loss_and_optimiser(recipe, network, classes, config.samples, config.samples),
    }


def _graph_parts(recipe: GraphRecipe, config: Config) -> dict[str, Part]:
    from torch_geometric.data import Batch as GraphBatch

    graphs = GraphBatch.from_data_list([_graph(config.cells, seed) for seed in range(config.samples)])
    classes = graphs.votes.shape[1]
    network: Any = build_network(recipe, classes, (graphs.num_node_features, graphs.num_edge_features))

    def step(checkpointing: bool) -> None:
        network.checkpointing = checkpointing
        network(graphs).square().mean().backward()

    own = getattr(network, "checkpointing", False)
    parts = {"network": Part(lambda: step(own), config.samples)}
    if hasattr(network, "checkpointing"):
        name = "network, without checkpointing" if own else "network, with checkpointing"
        parts[name] = Part(lambda: step(not own), config.samples, counts=False)
    return parts | _loss_and_optimiser(recipe, network, classes, config.samples, graphs.num_nodes)


def _loss_and_optimiser(
    recipe: AnyRecipe, network: nn.Module, classes: int, samples: int, rows: int
) -> dict[str, Part]:
    """The loss of ``rows`` rows against the targets of the whole batch, as training takes it; the optimiser's step."""
    loss = build_loss(recipe.loss, recipe.targets, torch.arange(classes), classes)
    targets = replace(recipe.targets, cutmix=0.0)  # mixed targets are alike, and scores have no box to cut
    contrast = Classifier(nn.Identity(), loss, classes, targets=targets)
    scores = torch.randn(rows, classes, requires_grad=True)
    whole = torch.arange(max(rows, rows * recipe.optimiser.batch // samples)) % classes
    share = Batch(scores, whole[:rows], whole, torch.arange(rows), step=0)
    update = build_optimiser(recipe.optimiser, parameter_groups(network, recipe.optimiser))
    for group in update.param_groups:
        group["lr"] = 0.0  # the weights stay where they are however often this is run
    return {
        "loss": Part(lambda: contrast.step_loss(share, 0)[0].backward(), samples),
        "optimiser": Part(update.step, recipe.optimiser.batch),
    }


def _reading(recipe: Recipe) -> Callable[[], None]:
    """Decode and augment one image."""
    from PIL import Image

    from softnce.lab.data.transforms import training_transform

    encoded = BytesIO()
    Image.effect_noise(SIDES.get(recipe.data.kind, (64, 64)), 60).convert("RGB").save(encoded, "JPEG", quality=90)
    transform = training_transform(recipe.data, recipe.model)

    def read() -> None:
        with borrowed_generators(), Image.open(encoded) as file:
            start_generators(0)
            transform(file.convert("RGB"))

    return read


def _graph(cells: int, seed: int) -> Any:
    from softnce.lab.data.celltypegraph import read_specimen
    from softnce.lab.data.tissue import grow, write_specimen

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stage" / "specimen.h5"
        write_specimen(path, grow(cells, 1.0, np.random.default_rng(seed)))
        return read_specimen(path)
