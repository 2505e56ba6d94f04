"""Score a checkpoint: accuracy, likelihood, calibration, and the reliability diagram that shows it."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from softnce.calibration import ReliabilityCurve, fit_temperature
from softnce.lab.classifier import Batch
from softnce.lab.configuration import from_args, from_mapping, option
from softnce.lab.recipes.recipe import Recipe
from softnce.lab.scores import Scores
from softnce.lab.vision.data import open_images
from softnce.lab.vision.datamodule import evaluation_loader
from softnce.lab.batches import EvaluationBatches
from softnce.lab.vision.models import Network, build_network

HELP = """usage: softnce evaluate CKPT [--data.dir DIR] [--out DIR] [...]

Score a checkpoint of `softnce train` (a file, or the folder of a run for its best.ckpt) on its evaluation data: top-1,
top-5, class average, negative log-likelihood, Brier score and calibration errors, with a reliability diagram.
Writes evaluation.json and reliability.png to --out, by default the checkpoint's folder.
"""


@dataclass(frozen=True)
class Source:
    """Where the images come from."""

    dir: str = option("", "where the data set lies, if not where it was for training")
    workers: int = option(8, "loader processes")


@dataclass(frozen=True)
class Options:
    """What to evaluate on."""

    data: Source = field(default_factory=Source)

    split: Literal["validation", "test"] = option(
        "test", "test: the data set's evaluation split; validation: what chose the best epoch (data.holdout)"
    )
    batch: int = option(256, "rows at once")
    progress: bool = option(True, "show a progress bar")
    out: Path = field(default_factory=lambda: Path("."), metadata={"help": "folder for the results"})


@dataclass(frozen=True)
class Trained:
    """A network as a checkpoint left it, and what it takes to use it."""

    recipe: Recipe
    classes: list[str]
    network: Network
    device: torch.device

    @torch.inference_mode()
    def logits(self, inputs: Tensor) -> Tensor:
        """Class scores over temperature, (N, K), whose softmax are the probabilities."""
        return (self.network(inputs.to(self.device)).float() / self.recipe.loss.temperature).cpu()


@dataclass(frozen=True)
class Evaluation:
    results: dict[str, float]
    curve: ReliabilityCurve


def load_trained(path: Path) -> Trained:
    """The network in a checkpoint of ``softnce train``; nothing is downloaded or executed."""
    path = path / "best.ckpt" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"no checkpoint {path}")
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        about = stored["about"]
        recipe = from_mapping(Recipe, about["recipe"], source=f"{path}, recipe")
    except (KeyError, TypeError, RuntimeError, EOFError, OSError, UnpicklingError) as error:
        reason = " ".join(repr(error).split())[:120]
        raise ValueError(f"{path} is not a checkpoint of softnce train: {reason}") from error
    bare = replace(recipe.model, weights="none")
    network = build_network(bare, recipe.head, len(about["classes"]), recipe.data.image_size)
    weights = {k.removeprefix("model."): v for k, v in stored["state_dict"].items() if k.startswith("model.")}
    network.load_state_dict(weights)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trained(recipe, about["classes"], network.eval().to(device), device)


def evaluate(
    checkpoint: Path,
    *,
    split: Literal["validation", "test"] = "test",
    data_dir: str = "",
    batch: int = 256,
    workers: int = 8,
    progress: bool = True,
) -> Evaluation:
    """Metrics of a checkpoint on its evaluation split (or the held-out part that chose the best epoch)."""
    trained = load_trained(checkpoint)
    data = trained.recipe.data
    data = replace(data, dir=Path(data_dir) if data_dir else data.dir, workers=workers)
    if split == "test":
        data = replace(data, holdout=0.0)
    images = open_images(data, "evaluation")
    if images.classes != trained.classes:
        raise ValueError(
            f"the data in {data.dir} has {len(images.classes)} classes, which are not the {len(trained.classes)} the "
            "checkpoint was trained on"
        )
    recipe = replace(trained.recipe, data=data)
    loader = evaluation_loader(recipe, images, EvaluationBatches(len(images.labels), batch))
    scores = Scores(len(images.classes))
    rows: Iterator[Batch] = iter(track(loader, f"{len(images.labels):,} images", disable=not progress))
    kept = []
    for part in rows:
        logits = trained.logits(part.inputs)
        scores.update(logits, part.labels)
        kept.append((logits, part.labels))
    results = scores.compute()
    # what one number could still mend; fitted on the very data it is measured on, so a diagnosis, not a result
    results["best_temperature"] = fit_temperature(
        torch.cat([logits for logits, _ in kept]), torch.cat([labels for _, labels in kept])
    )
    return Evaluation(results, scores.calibration.curve())


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
    options.out.mkdir(parents=True, exist_ok=True)
    described: dict[str, Any] = {"checkpoint": str(checkpoint), "split": options.split, **evaluation.results}
    (options.out / "evaluation.json").write_text(json.dumps(described, indent=2))
    picture = options.out / "reliability.png"
    draw_reliability(evaluation.curve, evaluation.results, folder.name, picture)
    table = Table("metric", "value", title=f"{checkpoint}, {options.split}")
    for name, value in evaluation.results.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)
    print(f"{picture} shows the calibration")
