"""Load the network of a checkpoint, and measure it: accuracy, likelihood, calibration."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from experiments.cells import recipes
from experiments.cells.loading import open_data
from experiments.cells.recipes import GraphRecipe, Recipe
from experiments.data import stored
from experiments.data.targets import IGNORED
from softnce.calibration import ReliabilityCurve, fit_temperature


@dataclass(frozen=True)
class Trained:
    """The network of a checkpoint, and everything needed to use it."""

    recipe: Recipe
    classes: list[str]
    network: nn.Module
    device: torch.device

    @torch.inference_mode()
    def logits(self, inputs: Any) -> Tensor:
        """Class scores over temperature, (N, K), whose softmax are the probabilities."""
        return (self.network(inputs.to(self.device)).float() / self.recipe.loss.temperature).cpu()


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a checkpoint, and the scores behind them.

    Attributes:
        results: the metrics by name.
        curve: confidence against accuracy.
        classes: names of the K classes.
        logits: (N, K) class scores over temperature, of all rows that count, in order.
        labels: (N,)
        confusions: (graphs, K, K) nodes by true and predicted class, of graphs.
    """

    results: dict[str, float]
    curve: ReliabilityCurve
    classes: list[str]
    logits: Tensor
    labels: Tensor
    confusions: Tensor | None = None

    @property
    def right(self) -> Tensor:
        """(N,) True if the highest score is that of the label."""
        return self.logits.argmax(1) == self.labels


def load_trained(path: Path) -> Trained:
    """The network in a checkpoint, a file or a run's folder; nothing is downloaded or executed."""
    from experiments.cells.train import build_network

    folder = path if path.is_dir() else path.parent
    path = path / "best.ckpt" if path.is_dir() else path
    if not path.is_file():
        last = folder / "last.ckpt"
        raise ValueError(f"no checkpoint {path}" + (f"; there is {last}" if last.is_file() else ""))
    try:
        kept = stored.load(path)
        about, state = kept["about"], kept["state_dict"]
        classes, features = [str(name) for name in about["classes"]], tuple(about["features"])
        recipe = recipes.from_mapping(about["recipe"], source=f"{path}, recipe")
        weights = {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")}
    except (stored.Unreadable, KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not a checkpoint of a training: {why}") from error
    # the recipe keeps the name of its weights, which says how images are normalised; they need not be read again
    bare = recipe
    if not isinstance(recipe, GraphRecipe):
        bare = replace(recipe, model=replace(recipe.model, weights="none"))
    network = build_network(bare, len(classes), features)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{path}: its weights do not fit its recipe: {' '.join(str(error).split())}") from error
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trained(recipe, classes, network.eval().to(device), device)


def evaluate(
    checkpoint: Path,
    *,
    split: Literal["validation", "test"] = "test",
    data_dir: str = "",
    progress: bool = True,
) -> Evaluation:
    """Metrics of a checkpoint.

    Args:
        checkpoint: a file, or the folder of a run for its best.ckpt.
        split: the data set's evaluation split, or the data that chose the best epoch.
        data_dir: folder of the data, if it has moved since training.
        progress: show a progress bar.
    """
    from rich.progress import track

    trained = load_trained(checkpoint)
    recipe: Any = trained.recipe
    data = replace(recipe.data, dir=Path(data_dir or recipe.data.dir))
    source = open_data(replace(recipe, data=data))
    if list(source.classes) != trained.classes:
        raise ValueError(
            f"the {len(source.classes)} classes of the data in {data.dir} are not the {len(trained.classes)} that the "
            "checkpoint was trained on"
        )
    scores, kept = source.scores(), []
    for part in track(source.evaluation_loader(split), f"evaluating on {split}", disable=not progress):
        logits = trained.logits(part.inputs)
        scores.update(logits, part.labels, part.inputs)
        kept.append((logits[part.labels != IGNORED], part.labels[part.labels != IGNORED]))
    logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    # fitted on the very data it is measured on, so a diagnosis, not a result
    results = scores.compute() | {"best_temperature": fit_temperature(logits, labels)}
    curve, confusions = scores.calibration.curve(), getattr(scores, "confusions", None)
    return Evaluation(results, curve, trained.classes, logits, labels, confusions)
