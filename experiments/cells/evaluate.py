"""Load the network of a checkpoint, and measure it: accuracy, likelihood, calibration."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.cells import recipes
from experiments.cells.loading import open_data
from experiments.cells.recipes import GraphRecipe, Recipe, TextRecipe
from experiments.data import stored
from experiments.data.targets import IGNORED
from softnce.calibration import fit_temperature


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a checkpoint by name, and the scores of all rows that count, in order."""

    results: dict[str, float]
    logits: Tensor  # (N, K) class scores over temperature
    labels: Tensor  # (N,)
    confusions: Tensor | None = None  # (graphs, K, K) nodes by true and predicted class, of graphs

    @property
    def right(self) -> Tensor:
        """(N,) True if the highest score is that of the label."""
        return self.logits.argmax(1) == self.labels


def build_network(recipe: Recipe, num_classes: int, features: tuple[int, ...] = ()) -> nn.Module:
    """The network of a recipe; ``features`` are of graphs, the numbers of node and of edge features."""
    if isinstance(recipe, GraphRecipe):
        from experiments.models import graphs

        return graphs.build_network(recipe.model, recipe.head, *features, num_classes)
    if isinstance(recipe, TextRecipe):
        from experiments.models import text

        return text.build_network(recipe.model, recipe.head, num_classes)
    from experiments.models import images

    network = images.build_network(recipe.model, recipe.head, num_classes, recipe.data.image_size)
    if recipe.compute.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def load_trained(path: Path) -> tuple[Recipe, list[str], nn.Module]:
    """Recipe, classes and network of a checkpoint, a file or a run's folder; nothing is downloaded or executed."""
    path = path / "best.ckpt" if path.is_dir() else path
    if not path.is_file():
        last = path.with_name("last.ckpt")
        raise ValueError(f"no checkpoint {path}" + (f"; there is {last}" if last.is_file() else ""))
    try:
        kept = stored.load(path)
        about, state = kept["about"], kept["state_dict"]
        classes, features = [str(name) for name in about["classes"]], tuple(about["features"])
        recipe = recipes.from_mapping(about["recipe"], source=f"{path}, recipe")
        # the recipe keeps the name of its weights, which says how images are normalised; they need not be read again
        has_weights = not isinstance(recipe, GraphRecipe)
        bare = replace(recipe, model=replace(recipe.model, weights="none")) if has_weights else recipe
        network = build_network(bare, len(classes), features)
        network.load_state_dict({k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")})
    except (stored.Unreadable, KeyError, TypeError, AttributeError, RuntimeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(f"{path} is not a checkpoint of a training: {why}") from error
    return recipe, classes, network.eval()


def evaluate(checkpoint: Path, *, split: str = "test", data_dir: str = "", progress: bool = True) -> Evaluation:
    """Metrics of a checkpoint, a file or a run's folder, on ``test`` or ``validation``: the data that chose the epoch.

    ``data_dir`` is the folder of the data, if it has moved since training.
    """
    from rich.progress import track

    recipe, classes, network = load_trained(checkpoint)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network.to(device)
    data = replace(recipe.data, dir=Path(data_dir or recipe.data.dir))
    source = open_data(replace(recipe, data=data))
    if list(source.classes) != classes:
        there = f"the {len(source.classes)} classes of the data in {data.dir}"
        raise ValueError(f"{there} are not the {len(classes)} that the checkpoint was trained on")
    scores, kept = source.scores(), []
    for part in track(source.evaluation_loader(split), f"evaluating on {split}", disable=not progress):
        with torch.inference_mode():
            logits = (network(part.inputs.to(device)).float() / recipe.loss.temperature).cpu()
        scores.update(logits, part.labels, part.inputs)
        kept.append((logits[part.labels != IGNORED], part.labels[part.labels != IGNORED]))
    logits, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    # fitted on the very data it is measured on, so a diagnosis, not a result
    results = scores.compute() | {"best_temperature": fit_temperature(logits, labels)}
    return Evaluation(results, logits, labels, getattr(scores, "confusions", None))
