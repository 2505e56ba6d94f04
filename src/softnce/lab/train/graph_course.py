"""Train a node classifier and watch it: accuracies after every epoch, on what chooses the epoch and on what is scored.

The same classifier, data and random numbers as ``softnce train``, without its checkpoints, logs and Lightning's loop,
which on a citation graph would take most of the time. It ends with the same weights as ``softnce train``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softnce.lab.data.batches import Batch
from softnce.lab.data.graph_metrics import class_average, first_best, specimen_confusions, top1
from softnce.lab.data.graph_module import NodeData
from softnce.lab.recipes.recipe import GraphRecipe
from softnce.lab.train.build import build
from softnce.lab.train.classifier import Classifier


@dataclass(frozen=True)
class Course:
    """What was recorded of a training.

    Attributes:
        loss: (epochs,) mean training loss.
        selection, test: (epochs, specimens, K, K) confusion matrices after each epoch.
        left_out: classes excluded from the class average.
    """

    loss: Tensor
    selection: Tensor
    test: Tensor
    left_out: tuple[int, ...]

    def summary(self) -> dict[str, Any]:
        """Plain numbers: the course, and the test accuracy at the epoch that each rule chooses and at the last.

        At the epoch of the honest rule also the confusion matrix of every test specimen.
        """
        scored = top1(self.test).double().mean(1)
        chosen = top1(self.selection).double().mean(1)
        return {
            "loss": _rounded(self.loss),
            "selection_top1": _rounded(chosen),
            "test_top1": _rounded(scored),
            "published": self._at(first_best(scored)),
            "honest": self._at(first_best(chosen)) | {"confusions": self.test[first_best(chosen)].tolist()},
            "last": self._at(len(scored) - 1),
        }

    def _at(self, epoch: int) -> dict[str, Any]:
        confusions = self.test[epoch]
        return {
            "epoch": epoch,
            "top1": top1(confusions).double().mean().item(),
            "class_average": class_average(confusions, self.left_out).double().nanmean().item(),
        }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def follow(recipe: GraphRecipe) -> tuple[Classifier, Course]:
    """Train on one device, batches whole."""
    if recipe.compute.micro_batch:
        raise ValueError(
            f"compute.micro_batch: got {recipe.compute.micro_batch}, need 0: only whole batches are supported here"
        )
    if recipe.optimiser.ema:
        raise ValueError(
            f"optimiser.ema: got {recipe.optimiser.ema:g}, need 0: averaged weights are not supported here"
        )
    classifier, data, _ = build(recipe, world=1)
    assert isinstance(data, NodeData)
    configured = classifier.configure_optimizers()
    optimiser, rate = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    loader = data.train_dataloader()
    watched = _Watched(data)
    losses: list[float] = []
    selected: list[Tensor] = []
    scored: list[Tensor] = []
    step = 0
    for epoch in range(recipe.schedule.epochs):
        loader.batches.set_epoch(epoch)  # type: ignore[union-attr]
        classifier.train()
        values = []
        for place, batch in enumerate(loader):
            optimiser.zero_grad()
            value, _ = classifier.step_loss(batch, step, place)
            value.backward()
            if recipe.optimiser.clip:
                torch.nn.utils.clip_grad_norm_(parameters, recipe.optimiser.clip)
            optimiser.step()
            rate.step()
            values.append(value.item())
            step += 1
        classifier.eval()
        losses.append(sum(values) / len(values))
        for seen, confusions in zip((selected, scored), watched.confusions(classifier), strict=True):
            seen.append(confusions)
    left_out = data.task.left_out
    return classifier, Course(torch.tensor(losses), torch.stack(selected), torch.stack(scored), left_out)


class _Watched:
    """The nodes that choose the epoch and those that are scored."""

    def __init__(self, data: NodeData) -> None:
        self.selection, self.test = (list(data.evaluation_loader(split)) for split in ("validation", "test"))
        # the same graphs with other labels, as a citation graph has: one pass serves both
        graphs = data.task.selection.graphs, data.task.test.graphs
        self.is_one = len(graphs[0]) == len(graphs[1]) and all(a.x is b.x for a, b in zip(*graphs, strict=True))

    @torch.no_grad()
    def confusions(self, classifier: Classifier) -> tuple[Tensor, Tensor]:
        """(specimens, K, K) each."""
        selection = [classifier(batch.inputs).argmax(1) for batch in self.selection]
        test = selection if self.is_one else [classifier(batch.inputs).argmax(1) for batch in self.test]
        k = classifier.num_classes
        return _compare(selection, self.selection, k), _compare(test, self.test, k)


def _compare(predictions: list[Tensor], batches: list[Batch], num_classes: int) -> Tensor:
    pairs = zip(predictions, batches, strict=True)
    return torch.cat([specimen_confusions(p, b.labels, b.inputs.batch, num_classes) for p, b in pairs])
