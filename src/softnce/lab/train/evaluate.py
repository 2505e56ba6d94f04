"""Score a checkpoint: accuracy, likelihood, calibration, and the reliability diagram that shows it."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from softnce.calibration import ReliabilityCurve, fit_temperature
from softnce.lab import recipes
from softnce.lab.configuration import from_args, option
from softnce.lab.data.batches import CorruptImage, EvaluationBatches, Loader
from softnce.lab.recipes.recipe import GraphRecipe, Recipe
from softnce.lab.targets import IGNORED
from softnce.lab.train.classifier import Batch
from softnce.lab.train.scores import Scores

HELP = """usage: softnce evaluate CKPT [--data.dir DIR] [--out DIR] [...]

Score a checkpoint of `softnce train` (a file, or the folder of a run for its best.ckpt) on its evaluation data: top-1,
top-5, class average, negative log-likelihood, Brier score and calibration errors, with a reliability diagram.
Writes evaluation.json and reliability.png, for graphs confusion.png too, to --out, by default the checkpoint's folder.
"""


@dataclass(frozen=True)
class Source:
    """Where the data come from."""

    dir: str = option("", "where the data set lies, if not where it was for training")
    workers: int = option(8, "loader processes (images)")


@dataclass(frozen=True)
class Options:
    """What to evaluate on."""

    data: Source = field(default_factory=Source)

    split: Literal["validation", "test"] = option(
        "test",
        "test: the data set's evaluation split; validation: what chose the best epoch where that is another",
    )
    batch: int = option(0, "images or graphs at once; 0 for what training used")
    progress: bool = option(True, "show a progress bar")
    out: Path = field(default_factory=lambda: Path("."), metadata={"help": "folder for the results"})


@dataclass(frozen=True)
class Trained:
    """A network as a checkpoint left it, and what it takes to use it."""

    recipe: Recipe | GraphRecipe
    classes: list[str]
    network: nn.Module
    device: torch.device

    @torch.inference_mode()
    def logits(self, inputs: Any) -> Tensor:
        """Class scores over temperature, (N, K), whose softmax are the probabilities."""
        return (self.network(inputs.to(self.device)).float() / self.recipe.loss.temperature).cpu()


@dataclass(frozen=True)
class Evaluation:
    results: dict[str, float]
    curve: ReliabilityCurve
    classes: Sequence[str]
    confusion: Tensor | None = None  # (K, K) nodes by true and predicted class, of graphs


def load_trained(path: Path, data_dir: str = "") -> Trained:
    """The network in a checkpoint of ``softnce train``; nothing is downloaded or executed.

    ``data_dir`` is where the data lie, if not where they were for training.
    """
    path = path / "best.ckpt" if path.is_dir() else path
    if not path.is_file():
        last = path.with_name("last.ckpt")
        raise ValueError(f"no checkpoint {path}" + (f"; there is {last}" if last.is_file() else ""))
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        about = stored["about"]
        classes = about["classes"]
        recipe = recipes.from_plain(about["recipe"], source=f"{path}, recipe")
    except (KeyError, TypeError, RuntimeError, EOFError, OSError, UnpicklingError) as error:
        reason = f"{type(error).__name__}: {str(error).partition('. ')[0]}".removesuffix(": ")
        raise ValueError(f"{path} is not a checkpoint of softnce train: {' '.join(reason.split())}") from error
    weights = {k.removeprefix("model."): v for k, v in stored["state_dict"].items() if k.startswith("model.")}
    network: nn.Module
    if isinstance(recipe, Recipe):
        from softnce.lab.models.images import build_network

        recipe = replace(recipe, data=replace(recipe.data, dir=Path(data_dir or recipe.data.dir)))
        bare = replace(recipe.model, weights="none")
        network = build_network(bare, recipe.head, len(classes), recipe.data.image_size)
    else:
        from softnce.lab.models.graphs import build_network as build_graph_network

        recipe = replace(recipe, data=replace(recipe.data, dir=Path(data_dir or recipe.data.dir)))
        node_features, edge_features = about["features"]
        network = build_graph_network(recipe.model, recipe.head, node_features, edge_features, len(classes))
    network.load_state_dict(weights)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trained(recipe, classes, network.eval().to(device), device)


def evaluate(
    checkpoint: Path,
    *,
    split: Literal["validation", "test"] = "test",
    data_dir: str = "",
    batch: int = 0,
    workers: int = 8,
    progress: bool = True,
) -> Evaluation:
    """Metrics of a checkpoint on its evaluation split (or on what chose the best epoch)."""
    trained = load_trained(checkpoint, data_dir)
    recipe = trained.recipe
    recipe = replace(recipe, compute=replace(recipe.compute, eval_batch=batch or recipe.compute.eval_batch))
    if isinstance(recipe, Recipe):
        loader, classes, scores = _images(recipe, split, workers)
    else:
        loader, classes, scores = _graphs(recipe, split)
    if list(classes) != trained.classes:
        raise ValueError(
            f"the data in {recipe.data.dir} has {len(classes)} classes, which are not the {len(trained.classes)} the "
            "checkpoint was trained on"
        )
    rows: Iterator[Batch] = iter(track(loader, f"evaluating on {split}", disable=not progress))
    kept = []
    for part in rows:
        logits = trained.logits(part.inputs)
        scores.update(logits, part.labels, part.inputs)
        counted = part.labels != IGNORED
        kept.append((logits[counted], part.labels[counted]))
    results = scores.compute()
    # what one number could still mend; fitted on the very data it is measured on, so a diagnosis, not a result
    results["best_temperature"] = fit_temperature(
        torch.cat([logits for logits, _ in kept]), torch.cat([labels for _, labels in kept])
    )
    confusions = getattr(scores, "confusions", None)
    confusion = None if confusions is None else confusions.sum(0)
    return Evaluation(results, scores.calibration.curve(), classes, confusion)


Part = tuple[Loader, Sequence[str], Scores]
"""Batches to evaluate, the names of the classes, and what is measured."""


def _images(recipe: Recipe, split: str, workers: int) -> Part:
    from softnce.lab.data.image_module import evaluation_loader
    from softnce.lab.data.images import open_images

    data = replace(recipe.data, workers=workers)
    if split == "test":
        data = replace(data, holdout=0.0)
    images = open_images(data, "evaluation")
    batches = EvaluationBatches(len(images.labels), recipe.compute.eval_batch)
    return evaluation_loader(replace(recipe, data=data), images, batches), images.classes, Scores(len(images.classes))


def _graphs(recipe: GraphRecipe, split: str) -> Part:
    from softnce.lab.data.graph_module import NodeData
    from softnce.lab.train.graph_scores import NodeScores

    data = NodeData(recipe)
    task = data.task
    return data.evaluation_loader(split), task.class_names, NodeScores(task.num_classes, task.left_out)


def draw_reliability(curve: ReliabilityCurve, results: dict[str, float], title: str, path: Path) -> None:
    """Accuracy against confidence, bin by bin, above how many predictions fall in each bin."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from softnce.lab.report.style import matplotlib_style

    filled = curve.count > 0
    left, right = curve.edges[:-1][filled].numpy(), curve.edges[1:][filled].numpy()
    accuracy, confidence = curve.accuracy[filled].numpy(), curve.confidence[filled].numpy()
    share = (curve.count[filled] / curve.count.sum()).numpy()
    bar: dict[str, Any] = {"align": "edge", "linewidth": 0.8, "edgecolor": "white"}
    with matplotlib_style():
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(4.8, 5.9), sharex=True, height_ratios=(3.6, 1))
        top.bar(left, np.minimum(accuracy, confidence), right - left, color="#0072B2", **bar)
        for over, colour, text in ((True, "#D55E00", "too confident"), (False, "#56B4E9", "too cautious")):
            some = (confidence > accuracy) == over
            if not some.any():
                continue
            low, high = np.minimum(accuracy, confidence)[some], np.maximum(accuracy, confidence)[some]
            top.bar(left[some], high - low, (right - left)[some], low, color=colour, alpha=0.75, label=text, **bar)
        top.plot([0, 1], [0, 1], color="#444444", linewidth=1, linestyle=(0, (4, 3)), label="calibrated")
        top.set(xlim=(0, 1), ylim=(0, 1.005), ylabel="accuracy")
        top.set_title(f"{title}\nECE {100 * results['ece']:.1f} %, top-1 {100 * results['top1']:.1f} %")
        top.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none")
        bottom.bar(left, share, right - left, color="#7A7A7A", **bar)
        bottom.set(xlabel="confidence", ylabel="share of\npredictions")
        figure.savefig(path, dpi=160)
        plt.close(figure)


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    if argv[0].startswith("-"):
        sys.exit("softnce evaluate: a checkpoint is needed first")
    checkpoint = Path(argv[0])
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    options = from_args(
        Options, argv[1:], prog="softnce evaluate", description=f"Score {checkpoint}.", defaults=Options(out=folder)
    )
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"softnce evaluate: out: cannot write in {options.out}: {error.strerror}")
    try:
        evaluation = evaluate(
            checkpoint,
            split=options.split,
            data_dir=options.data.dir,
            batch=options.batch,
            workers=options.data.workers,
            progress=options.progress,
        )
    except ValueError as error:
        sys.exit(f"softnce evaluate: {error}")
    except CorruptImage as error:
        sys.exit(f"softnce evaluate: {error.words}")
    described: dict[str, Any] = {"checkpoint": str(checkpoint), "split": options.split, **evaluation.results}
    (options.out / "evaluation.json").write_text(json.dumps(described, indent=2))
    picture = options.out / "reliability.png"
    draw_reliability(evaluation.curve, evaluation.results, folder.name, picture)
    if evaluation.confusion is not None:
        from softnce.lab.studies.nodes.figures import confusion_figure

        figure = confusion_figure(evaluation.confusion, evaluation.classes, f"{folder.name}, {options.split}")
        figure.savefig(options.out / "confusion.png", dpi=160)
    table = Table("metric", "value", title=f"{checkpoint}, {options.split}")
    for name, value in evaluation.results.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)
    print(f"{picture} shows the calibration")
