"""CellTypeGraph's accuracies: counted per specimen, then pooled over the folds.

Everything follows from one confusion matrix per specimen, rows true and columns predicted classes:

    confusions = specimen_confusions(logits.argmax(1), batch.y, batch.batch, num_classes=9)      # (B, 9, 9)
    score(torch.cat(confusions_of_all_folds), left_out=(7,))                                     # mean ± deviation

*Top-1* of a specimen is its share of cells classified correctly. Its *class average* is the mean accuracy of its
classes, without the embryo sac and without absent classes. Both are averaged over the specimens of all folds.

"Absent" has two readings. The definition: no cell of the specimen has the class. The published code, as we read it with
the torchmetrics of its time: no cell has the class *and none was predicted to*; a class that was only predicted counts
with accuracy 0. The second is lower or equal. Both are computed; compare the leaderboard with
``class_average_published``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softnce.lab.data.layout import UNLABELLED


def specimen_confusions(prediction: Tensor, label: Tensor, specimen: Tensor | None, num_classes: int) -> Tensor:
    """(B, K, K) counts of cells by specimen, true class and predicted class; label −100 is not counted.

    Args:
        prediction: (n,) predicted classes.
        label: (n,) true classes or −100.
        specimen: (n,) number of the graph of each node, PyG's ``batch.batch``; None for a single graph.
        num_classes: K.
    """
    if prediction.shape != label.shape or prediction.dim() != 1 or prediction.is_floating_point():
        got = f"{prediction.dtype} {tuple(prediction.shape)}"
        raise ValueError(f"prediction: got {got}, need classes of shape {tuple(label.shape)}, as label")
    if specimen is None:
        specimen = torch.zeros_like(label)
    graphs = int(specimen.max()) + 1 if len(specimen) else 1
    counted = label != UNLABELLED
    for name, classes in (("prediction", prediction), ("label", label)):
        if bool(((classes < 0) | (classes >= num_classes))[counted].any()):
            raise ValueError(f"{name}: holds classes outside 0 to {num_classes - 1}")
    cell = (specimen * num_classes + label) * num_classes + prediction
    counts = torch.bincount(cell[counted], minlength=graphs * num_classes**2)
    return counts.view(graphs, num_classes, num_classes)


def top1(confusion: Tensor) -> Tensor:
    """(…, K, K) -> (…) share of cells classified correctly; NaN without cells."""
    return confusion.diagonal(dim1=-2, dim2=-1).sum(-1) / confusion.sum((-2, -1))


def class_accuracy(confusion: Tensor) -> Tensor:
    """(…, K, K) -> (…, K) share of each class's cells classified correctly; NaN for absent classes."""
    return confusion.diagonal(dim1=-2, dim2=-1) / confusion.sum(-1)


def class_average(confusion: Tensor, left_out: Sequence[int] = (), *, published: bool = False) -> Tensor:
    """(…, K, K) -> (…) mean accuracy of the classes that are neither absent nor left out.

    With ``published``, a class that is absent but was predicted counts as 0, as in the benchmark's code.
    """
    accuracy = class_accuracy(confusion)
    if published:
        accuracy = accuracy.masked_fill((confusion.sum(-1) == 0) & (confusion.sum(-2) > 0), 0.0)
    kept = torch.ones(accuracy.shape[-1], dtype=torch.bool)
    kept[list(left_out)] = False
    return accuracy[..., kept].nanmean(-1)


@dataclass(frozen=True)
class Score:
    """Mean and (population) deviation over specimens, as the leaderboard reports them."""

    specimens: int
    top1: float
    top1_deviation: float
    class_average: float
    class_average_deviation: float
    class_average_published: float
    class_average_published_deviation: float

    def __str__(self) -> str:
        return (
            f"top-1 {self.top1:.3f} ± {self.top1_deviation:.3f}, "
            f"class average {self.class_average:.3f} ± {self.class_average_deviation:.3f} "
            f"(as published {self.class_average_published:.3f} ± {self.class_average_published_deviation:.3f}), "
            f"{self.specimens} specimens"
        )


def score(confusions: Tensor, left_out: Sequence[int] = ()) -> Score:
    """Pool specimens, of all folds or of one: (S, K, K) -> :class:`Score`. Specimens without labels are left out."""
    confusions = confusions[confusions.sum((-2, -1)) > 0]
    if len(confusions) == 0:
        raise ValueError("confusions: no specimen holds a labelled node")
    result: dict[str, Any] = {"specimens": len(confusions)}
    for name, values in (
        ("top1", top1(confusions)),
        ("class_average", class_average(confusions, left_out)),
        ("class_average_published", class_average(confusions, left_out, published=True)),
    ):
        values = values[~values.isnan()].double()  # a specimen of left-out classes alone has no class average
        result[name] = values.mean().item()
        result[f"{name}_deviation"] = (values - values.mean()).square().mean().sqrt().item()
    return Score(**result)


def per_class(confusions: Tensor, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per class, over all cells of all specimens: cells, specimens that hold it, accuracy, precision, and
    the class it is most often taken for."""
    total = confusions.sum(0)
    rows = []
    for k, name in enumerate(class_names):
        cells, predicted, correct = int(total[k].sum()), int(total[:, k].sum()), int(total[k, k])
        mistaken = total[k].clone()
        mistaken[k] = 0
        rows.append(
            {
                "class": name,
                "cells": cells,
                "specimens": int((confusions[:, k].sum(-1) > 0).sum()),
                "accuracy": correct / cells if cells else float("nan"),
                "precision": correct / predicted if predicted else float("nan"),
                "taken for": class_names[int(mistaken.argmax())] if int(mistaken.sum()) else "",
            }
        )
    return rows


def first_best(accuracy: Tensor) -> int:
    """The epoch with the highest accuracy; of equals the earliest."""
    if accuracy.dim() != 1 or len(accuracy) == 0 or bool(accuracy.isnan().any()):
        raise ValueError(f"accuracy: got {accuracy}, need one number per epoch")
    return int((accuracy == accuracy.max()).nonzero()[0])
