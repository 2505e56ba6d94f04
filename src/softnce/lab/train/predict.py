"""The most probable classes of images, from a checkpoint of ``softnce train``."""

from pathlib import Path

import torch

from softnce.lab.data.images import read_image
from softnce.lab.data.transforms import evaluation_transform
from softnce.lab.recipes.recipe import Recipe
from softnce.lab.train.evaluate import load_trained


def predict(checkpoint: Path, images: list[Path], top: int = 5) -> list[list[tuple[str, float]]]:
    """For each image its ``top`` classes and their probabilities, most probable first."""
    trained = load_trained(checkpoint)
    if not isinstance(trained.recipe, Recipe):
        raise ValueError(f"{checkpoint} classifies the nodes of graphs, not images; use `softnce evaluate`")
    transform = evaluation_transform(trained.recipe.data, trained.recipe.model)
    answers = []
    for path in images:
        try:
            image = read_image(path)
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
        probabilities = trained.logits(transform(image)[None])[0].softmax(0)
        best = torch.topk(probabilities, min(top, len(trained.classes)))
        answers.append(
            [(trained.classes[k], p) for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        )
    return answers
