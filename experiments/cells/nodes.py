"""Train a node classifier and record its accuracies after every epoch.

The same classifier, data, random numbers and final weights as ``train``, without its checkpoints, logs and Lightning's
loop, which on a citation graph would take most of the time.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.cells.classifier import Classifier
from experiments.cells.recipes import GraphRecipe
from experiments.cells.train import build
from experiments.data.graph_metrics import class_average, specimen_confusions, top1


@dataclass(frozen=True)
class Course:
    """The record of a training.

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

        At the epoch of the honest rule also the confusion matrix of every test specimen. Of equal epochs the earliest.
        """
        scored, chosen = (top1(part).double().mean(1) for part in (self.test, self.selection))
        best = int((chosen == chosen.max()).nonzero()[0])
        course = {"loss": self.loss, "selection_top1": chosen, "test_top1": scored}
        return {name: [round(value, 5) for value in values.tolist()] for name, values in course.items()} | {
            "published": self._at(int((scored == scored.max()).nonzero()[0])),
            "honest": self._at(best) | {"confusions": self.test[best].tolist()},
            "last": self._at(len(scored) - 1),
        }

    def _at(self, epoch: int) -> dict[str, Any]:
        confusions = self.test[epoch]
        average = class_average(confusions, self.left_out).double().nanmean().item()
        return {"epoch": epoch, "top1": top1(confusions).double().mean().item(), "class_average": average}


def follow(recipe: GraphRecipe) -> tuple[Classifier, Course]:
    """Trains on one device, batches whole."""
    if recipe.compute.micro_batch or recipe.optimiser.ema:
        raise ValueError("compute.micro_batch and optimiser.ema: need 0, only whole batches and last weights are here")
    classifier, data, _ = build(recipe)
    configured = classifier.configure_optimizers()
    optimiser, rate = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    loader: Any = data.train_dataloader()
    watched = [list(data.evaluation_loader(split)) for split in ("validation", "test")]
    losses: list[float] = []
    confusions: list[list[Tensor]] = [[], []]
    step = 0
    for epoch in range(recipe.schedule.epochs):
        loader.batches.set_epoch(epoch)
        classifier.train()
        values = []
        for place, batch in enumerate(loader):
            optimiser.zero_grad()
            value, soft = classifier.step_loss(batch, step, place)
            value.backward()
            classifier.remember(soft, step)
            if recipe.optimiser.clip:
                torch.nn.utils.clip_grad_norm_(parameters, recipe.optimiser.clip)
            optimiser.step()
            rate.step()
            values.append(value.item())
            step += 1
        losses.append(sum(values) / len(values))
        for kept, batches in zip(confusions, watched, strict=True):
            kept.append(_confusions(classifier.eval(), batches))
    task: Any = data
    return classifier, Course(torch.tensor(losses), *map(torch.stack, confusions), task.task.left_out)


@torch.no_grad()
def _confusions(classifier: Classifier, batches: list[Any]) -> Tensor:
    """(specimens, K, K)"""
    return torch.cat(
        [
            specimen_confusions(classifier(b.inputs).argmax(1), b.labels, b.inputs.batch, classifier.num_classes)
            for b in batches
        ]
    )
