"""Figures of node classification."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def confusion_figure(confusion: Tensor, class_names: Sequence[str], title: str = "") -> "Figure":
    """Draw a confusion matrix (K, K): each row is shown as shares of its true class, with the number of its cells.

    Returns a matplotlib figure that belongs to no window; ``figure.savefig(path)`` writes it.
    """
    from matplotlib.figure import Figure

    k = len(class_names)
    if tuple(confusion.shape) != (k, k):
        raise ValueError(f"confusion: got shape {tuple(confusion.shape)}, need {(k, k)} for the class names")
    cells = confusion.sum(1)
    share = (confusion / cells.clamp(min=1)[:, None]).numpy()

    size = 2.2 + 0.55 * k
    figure = Figure(figsize=(size + 0.6, 0.9 * size), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for i in range(k):
        for j in range(k):
            if cells[i] and share[i, j] >= 0.005:
                colour = "white" if share[i, j] > 0.55 else "#222222"
                axes.text(j, i, f"{100 * share[i, j]:.0f}", ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(k), class_names, rotation=45, ha="right")
    axes.set_yticks(range(k), [f"{name}  ({int(n):,})" for name, n in zip(class_names, cells, strict=True)])
    axes.set_xlabel("predicted")
    axes.set_ylabel("true class (cells)")
    axes.set_title(title)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of the true class", format="{x:.0%}")
    return figure
