"""The most probable classes of images or sentences, from a checkpoint of ``softnce train``."""

from pathlib import Path

import torch
from torch import Tensor

from softnce.lab.recipes.recipe import Recipe, TextRecipe
from softnce.lab.train.evaluate import Trained, load_trained


def predict(checkpoint: Path, inputs: list[str], top: int = 5) -> list[list[tuple[str, float]]]:
    """For each image file, or each sentence, its ``top`` classes and their probabilities, most probable first."""
    trained = load_trained(checkpoint)
    answers = []
    for item in inputs:
        probabilities = trained.logits(_prepared(trained, checkpoint, item))[0].softmax(0)
        best = torch.topk(probabilities, min(top, len(trained.classes)))
        answers.append(
            [(trained.classes[k], p) for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        )
    return answers


def _prepared(trained: Trained, checkpoint: Path, item: str) -> Tensor:
    """One row of what the network takes."""
    recipe = trained.recipe
    if isinstance(recipe, Recipe):
        from softnce.lab.data.images import read_image
        from softnce.lab.data.transforms import evaluation_transform

        try:
            image = read_image(item)
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"cannot read {item}: {error}") from error
        return evaluation_transform(recipe.data, recipe.model)(image)[None]
    if isinstance(recipe, TextRecipe):
        from softnce.lab.models.text import tokenise

        return tokenise(recipe.model, [item], recipe.data.max_tokens)
    raise ValueError(f"{checkpoint} classifies the nodes of graphs, not images or text; use `softnce evaluate`")
