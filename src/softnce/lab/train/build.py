"""Build what a recipe describes: data, network, loss and the classifier that trains it."""

from collections.abc import Sequence

import torch
from torch import nn

from softnce.lab.configuration import to_mapping
from softnce.lab.data.module import TrainingData
from softnce.lab.losses import build_loss
from softnce.lab.optimiser import parameter_groups
from softnce.lab.recipes.recipe import AnyRecipe, Recipe, TextRecipe
from softnce.lab.scores import Scores
from softnce.lab.train.classifier import Classifier

import lightning as L  # isort: skip


def build_network(recipe: AnyRecipe, num_classes: int, features: Sequence[int]) -> nn.Module:
    """The network a recipe describes.

    Args:
        recipe: of images, text or graphs.
        num_classes: K.
        features: of graphs, the numbers of node and of edge features.
    """
    if isinstance(recipe, Recipe):
        from softnce.lab.models import images

        network = images.build_network(recipe.model, recipe.head, num_classes, recipe.data.image_size)
        if recipe.compute.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network
    if isinstance(recipe, TextRecipe):
        from softnce.lab.models import text

        return text.build_network(recipe.model, recipe.head, num_classes)
    from softnce.lab.models import graphs

    nodes, edges = features
    return graphs.build_network(recipe.model, recipe.head, nodes, edges, num_classes)


def build(recipe: AnyRecipe, world: int) -> tuple[Classifier, TrainingData, int]:
    """The classifier a recipe describes, its data on ``world`` devices, and how many micro-batches make a batch."""
    data, scores = _open(recipe, world)
    num_classes, batches = len(data.classes), data.batches(rank=0)
    L.seed_everything(recipe.seed, verbose=False)  # the network's initial weights
    network = build_network(recipe, num_classes, data.features)
    data.network = network
    loss = build_loss(recipe.loss, recipe.targets, data.labels, num_classes)
    classifier = Classifier(
        network,
        loss,
        num_classes,
        targets=recipe.targets,
        optimiser=recipe.optimiser,
        schedule=recipe.schedule,
        steps_per_epoch=batches.steps,
        parameter_groups=parameter_groups(network, recipe.optimiser),
        scores=scores,
        seed=recipe.seed,
        about={"recipe": to_mapping(recipe), "classes": list(data.classes), "features": list(data.features)},
    )
    return classifier, data, batches.accumulate


def _open(recipe: AnyRecipe, world: int) -> tuple[TrainingData, Scores]:
    """The data of a recipe, and what is measured on them."""
    if isinstance(recipe, Recipe):
        from softnce.lab.data.image_module import ImageData

        images = ImageData(recipe, world)
        return images, Scores(len(images.classes))
    if isinstance(recipe, TextRecipe):
        try:
            from softnce.lab.data.text_module import SentenceData
        except ModuleNotFoundError as error:
            raise ValueError(f"text needs {error.name}: pip install 'softnce[text]'") from None
        sentences = SentenceData(recipe, world)
        return sentences, Scores(len(sentences.classes))
    try:
        from softnce.lab.data.graph_module import NodeData
    except ModuleNotFoundError as error:
        raise ValueError(f"graphs need {error.name}: pip install 'softnce[graph]'") from None
    from softnce.lab.train.graph_scores import NodeScores

    nodes = NodeData(recipe, world)
    return nodes, NodeScores(nodes.task.num_classes, nodes.task.left_out)
