"""Train a node classifier and record its accuracies after every epoch.

The same classifier, data, random numbers and final weights as ``train``, without its checkpoints, logs and Lightning's
loop, which on a citation graph would take most of the time.
"""

from typing import Any

import torch
from torch import Tensor

from experiments.cells.classifier import Classifier
from experiments.cells.recipes import GraphRecipe
from experiments.cells.train import build
from experiments.data.graph_metrics import class_average, specimen_confusions, top1


def follow(recipe: GraphRecipe) -> tuple[Classifier, dict[str, Any]]:
    """Trains on one device, batches whole.

    Returns the course in plain numbers: training loss and accuracies after each epoch; and the test accuracies at the
    epoch that each rule chooses, of equal epochs the earliest, and at the last. At the epoch of the honest rule also
    the confusion matrix of every test specimen.
    """
    if recipe.compute.micro_batch:
        raise ValueError(f"compute.micro_batch: got {recipe.compute.micro_batch}, need 0: only whole batches are here")
    classifier, opened, _ = build(recipe)
    data: Any = opened
    configured = classifier.configure_optimizers()
    optimiser, rate = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    loader: Any = data.train_dataloader()
    watched = [list(data.evaluation_loader(split)) for split in ("validation", "test")]
    losses: list[float] = []
    confusions: list[list[Tensor]] = [[], []]
    for epoch in range(recipe.schedule.epochs):
        loader.batches.set_epoch(epoch)
        classifier.train()
        values = []
        for place, batch in enumerate(loader):
            optimiser.zero_grad()
            value, soft = classifier.step_loss(batch, place)
            value.backward()
            classifier.remember(soft, batch.step)
            optimiser.step()
            rate.step()
            values.append(value.item())
        losses.append(sum(values) / len(values))
        for kept, batches in zip(confusions, watched, strict=True):
            kept.append(_confusions(classifier.eval(), batches))
    selection, test = map(torch.stack, confusions)  # (epochs, specimens, K, K)
    chosen, scored = (top1(part).double().mean(1) for part in (selection, test))

    def at(epoch: int) -> dict[str, Any]:
        average = class_average(test[epoch], data.left_out).double().nanmean().item()
        return {"epoch": epoch, "top1": top1(test[epoch]).double().mean().item(), "class_average": average}

    best = int((chosen == chosen.max()).nonzero()[0])
    course = {"loss": torch.tensor(losses), "selection_top1": chosen, "test_top1": scored}
    return classifier, {name: [round(value, 5) for value in values.tolist()] for name, values in course.items()} | {
        "published": at(int((scored == scored.max()).nonzero()[0])),
        "honest": at(best) | {"confusions": test[best].tolist()},
        "last": at(len(scored) - 1),
    }


@torch.no_grad()
def _confusions(classifier: Classifier, batches: list[Any]) -> Tensor:
    """(specimens, K, K)"""
    k = classifier.num_classes
    found = [specimen_confusions(classifier(b.inputs).argmax(1), b.labels, b.inputs.batch, k) for b in batches]
    return torch.cat(found)
