"""CellTypeGraph's accuracies: counted per specimen, then pooled over the specimens of all folds.

The class average leaves out absent classes. By its definition these are classes that no cell has; by the published
code, with the torchmetrics of its time, only if none was predicted either. Compare the leaderboard with the latter.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def specimen_confusions(prediction: Tensor, label: Tensor, specimen: Tensor | None, num_classes: int) -> Tensor:
    """(B, K, K) counts of cells by specimen, true class and predicted class; label −100 is not counted.

    ``specimen`` numbers the graph of each node, as PyG's ``batch.batch``; None for a single graph.
    """
    specimen = torch.zeros_like(label) if specimen is None else specimen
    graphs = int(specimen.max()) + 1 if len(specimen) else 1
    cell = (specimen * num_classes + label) * num_classes + prediction
    counts = torch.bincount(cell[label >= 0], minlength=graphs * num_classes**2)
    return counts.view(graphs, num_classes, num_classes)


def top1(confusion: Tensor) -> Tensor:
    """(…, K, K) -> (…) share of cells classified correctly; NaN without cells."""
    return confusion.diagonal(dim1=-2, dim2=-1).sum(-1) / confusion.sum((-2, -1))


def class_average(confusion: Tensor, left_out: Sequence[int] = (), *, published: bool = False) -> Tensor:
    """(…, K, K) -> (…) mean accuracy of the classes that are neither absent nor left out.

    With ``published``, a class that is absent but was predicted counts as 0, as in the benchmark's code.
    """
    accuracy = confusion.diagonal(dim1=-2, dim2=-1) / confusion.sum(-1)
    if published:
        accuracy = accuracy.masked_fill((confusion.sum(-1) == 0) & (confusion.sum(-2) > 0), 0.0)
    return accuracy[..., [k for k in range(accuracy.shape[-1]) if k not in left_out]].nanmean(-1)


def pooled(confusions: Tensor, left_out: Sequence[int] = ()) -> dict[str, float]:
    """Mean and (population) deviation over specimens (S, K, K), of all folds or of one, as on the leaderboard.

    Specimens without labels are left out, and ``left_out`` classes from the class average.
    """
    confusions = confusions[confusions.sum((-2, -1)) > 0]
    if len(confusions) == 0:
        raise ValueError("confusions: no specimen holds a labelled node")
    result: dict[str, float] = {"specimens": len(confusions)}
    for name, values in (
        ("top1", top1(confusions)),
        ("class_average", class_average(confusions, left_out)),
        ("class_average_published", class_average(confusions, left_out, published=True)),
    ):
        values = values[~values.isnan()].double()  # a specimen of left-out classes alone has no class average
        result |= {name: values.mean().item(), f"{name}_deviation": values.std(correction=0).item()}
    return result
