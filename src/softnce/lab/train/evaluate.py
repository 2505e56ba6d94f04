"""Load the network of a checkpoint, and measure it: accuracy, likelihood, calibration."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import track
from torch import Tensor, nn

from softnce.calibration import ReliabilityCurve, fit_temperature
from softnce.lab import recipes, stored
from softnce.lab.data.batches import Batch, EvaluationBatches, Loader
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe, Recipe, TextRecipe
from softnce.lab.scores import Scores
from softnce.lab.targets import IGNORED
from softnce.lab.train.build import build_network


@dataclass(frozen=True)
class Trained:
    """The network of a checkpoint, and what is needed to use it; ``features`` are of graphs, of nodes and of edges."""

    recipe: AnyRecipe
    classes: list[str]
    features: list[int]
    network: nn.Module
    device: torch.device

    @torch.inference_mode()
    def logits(self, inputs: Any) -> Tensor:
        """Class scores over temperature, (N, K), whose softmax are the probabilities."""
        return (self.network(inputs.to(self.device)).float() / self.recipe.loss.temperature).cpu()


@dataclass(frozen=True)
class Evaluation:
    """What was measured, and the scores it was measured on.

    Attributes:
        results: the metrics by name.
        curve: confidence against accuracy.
        classes: names of the K classes.
        logits: (N, K) class scores over temperature, of all rows that count, in order.
        labels: (N,)
        confusions: (graphs, K, K) nodes by true and predicted class, of graphs.
        names: of the rows, where they are files.
    """

    results: dict[str, float]
    curve: ReliabilityCurve
    classes: Sequence[str]
    logits: Tensor
    labels: Tensor
    confusions: Tensor | None = None
    names: Sequence[str] | None = None

    @property
    def right(self) -> Tensor:
        """(N,) whether the highest score is that of the label."""
        return self.logits.argmax(1) == self.labels

    def samples(self) -> list[dict[str, Any]]:
        """Per row: its label, the most probable class, both probabilities, and the negative log-likelihood."""
        log = self.logits.double().log_softmax(1)
        best, own = log.max(1), log.gather(1, self.labels[:, None])[:, 0]
        columns = zip(self.labels.tolist(), best.indices.tolist(), best.values.tolist(), own.tolist(), strict=True)
        return [
            {
                "row": row,
                **({} if self.names is None else {"name": self.names[row]}),
                "label": self.classes[label],
                "predicted": self.classes[predicted],
                "probability": math.exp(highest),
                "probability_of_label": math.exp(log_likelihood),
                "nll": -log_likelihood,
            }
            for row, (label, predicted, highest, log_likelihood) in enumerate(columns)
        ]


def load_trained(path: Path) -> Trained:
    """The network in a checkpoint of ``softnce train``, a file or a run's folder; nothing is downloaded or executed."""
    runs = sorted(path.glob("*/recipe.yaml")) if path.is_dir() else []
    path = path / "best.ckpt" if path.is_dir() else path
    if not path.is_file():
        last = path.with_name("last.ckpt")
        if runs and not last.is_file():
            raise ValueError(f"{path.parent} holds several runs: name one of them, such as {runs[0].parent}")
        raise ValueError(f"no checkpoint {path}" + (f"; there is {last}" if last.is_file() else ""))
    try:
        kept = stored.load(path)
        about, state = kept["about"], kept["state_dict"]
        classes, features = [str(name) for name in about["classes"]], list(about["features"])
        recipe = recipes.from_plain(about["recipe"], source=f"{path}, recipe")
        weights = {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")}
    except (stored.Unreadable, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not a checkpoint of softnce train: {reason}") from error
    # the recipe keeps the name of its weights, which says how images are normalised; they need not be read again
    bare = recipe
    if not isinstance(recipe, GraphRecipe):
        bare = replace(recipe, model=replace(recipe.model, weights="none"))  # type: ignore[arg-type]
    network = build_network(bare, len(classes), features)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{path}: its weights do not fit its recipe: {' '.join(str(error).split())}") from error
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trained(recipe, classes, features, network.eval().to(device), device)


def evaluate(
    checkpoint: Path,
    *,
    split: Literal["validation", "test"] = "test",
    data_dir: str = "",
    batch: int = 0,
    workers: int = 8,
    progress: bool = True,
) -> Evaluation:
    """Metrics of a checkpoint.

    Args:
        checkpoint: a file, or the folder of a run for its best.ckpt.
        split: the data set's evaluation split, or what chose the best epoch.
        data_dir: folder of the data, if it has moved since training.
        batch: images or graphs per step; 0: as in training.
        workers: loader processes for images.
        progress: show a progress bar.
    """
    trained = load_trained(checkpoint)
    recipe, folder = trained.recipe, Path(data_dir or trained.recipe.data.dir)
    recipe = replace(recipe, compute=replace(recipe.compute, eval_batch=batch or recipe.compute.eval_batch))
    names: Sequence[str] | None = None
    if isinstance(recipe, Recipe):
        (loader, classes, scores), names = _images(recipe, folder, split, workers)
    elif isinstance(recipe, TextRecipe):
        loader, classes, scores = _sentences(recipe, folder, split)
    else:
        loader, classes, scores = _graphs(recipe, folder, split)
    if list(classes) != trained.classes:
        raise ValueError(
            f"the {len(classes)} classes of the data in {folder} are not the {len(trained.classes)} that the "
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
    logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    results["best_temperature"] = fit_temperature(logits, labels)
    confusions = getattr(scores, "confusions", None)
    return Evaluation(results, scores.calibration.curve(), classes, logits, labels, confusions, names)


Part = tuple[Loader, Sequence[str], Scores]
"""Batches to evaluate, the names of the classes, and what is measured."""


def _images(recipe: Recipe, folder: Path, split: str, workers: int) -> tuple[Part, Sequence[str]]:
    from softnce.lab.data.image_module import evaluation_loader
    from softnce.lab.data.images import open_images

    data = replace(recipe.data, dir=folder, workers=workers)
    images = open_images(data, "test" if split == "test" else "evaluation")
    batches = EvaluationBatches(len(images.labels), recipe.compute.eval_batch)
    loader = evaluation_loader(replace(recipe, data=data), images, batches)
    names = [images.name(row) for row in range(len(images.labels))]
    return (loader, images.classes, Scores(len(images.classes))), names


def _sentences(recipe: TextRecipe, folder: Path, split: Literal["validation", "test"]) -> Part:
    from softnce.lab.data.sentences import open_sentences
    from softnce.lab.data.text_module import evaluation_loader

    sentences = open_sentences(replace(recipe.data, dir=folder), split)
    return evaluation_loader(recipe, sentences), sentences.classes, Scores(len(sentences.classes))


def _graphs(recipe: GraphRecipe, folder: Path, split: str) -> Part:
    from softnce.lab.data.graph_module import NodeData
    from softnce.lab.train.graph_scores import NodeScores

    data = NodeData(replace(recipe, data=replace(recipe.data, dir=folder)))
    task = data.task
    return data.evaluation_loader(split), task.class_names, NodeScores(task.num_classes, task.left_out)
