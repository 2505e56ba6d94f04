"""The rows of small soft targets, written out."""

from torch import Tensor

from softnce._checks import values_are_readable

ROWS, PAIRS = 8, 10


def written_rows(index: Tensor | None, weight: Tensor | None, mask: Tensor | None) -> str | None:
    """Labels in one line, else a line per row; None where there are too many, or where they cannot be read now."""
    stored = weight if index is None else index
    if stored is None or not values_are_readable(index, weight, mask) or stored.is_sparse:
        return None
    if not 0 < len(stored) <= ROWS or stored.shape[1] > PAIRS:
        return None
    counts = [True] * len(stored) if mask is None else mask.tolist()
    if weight is None:
        labels = (str(row[0]) if kept else "ignored" for row, kept in zip(stored.tolist(), counts, strict=True))
        return f"  {', '.join(labels)}"
    classes = [range(weight.shape[1])] * len(weight) if index is None else index.tolist()
    rows = (
        ", ".join(f"{k}: {w:.4g}" for k, w in zip(named, weights, strict=True) if w) if kept else "ignored"
        for named, weights, kept in zip(classes, weight.tolist(), counts, strict=True)
    )
    return "\n".join(f"  {row}" for row in rows)
