"""Annotations, one entry per judgement, as shares of the annotators of each sample."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from softnce._checks import as_tensor, check_labels


def shares_of_annotators(
    sample: Tensor, who: Tensor | None, label: Tensor, size: int, num_classes: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Classes and shares (N, S) from numbered annotations (J,), and which samples were annotated. O(J log J)."""
    vote = torch.ones(len(sample), dtype=torch.float64)
    if who is not None:
        _, of, times = torch.unique(torch.stack([sample, who]), dim=1, return_inverse=True, return_counts=True)
        vote = 1 / times[of].double()
    # The distinct (sample, class) pairs in order of samples, and their places in the rows.
    pairs, of = torch.unique(sample * num_classes + label, return_inverse=True)
    votes = vote.new_zeros(len(pairs)).index_add(0, of, vote)
    row, chosen = pairs // num_classes, pairs % num_classes
    per_row = torch.bincount(row, minlength=size)
    place = torch.arange(len(pairs), device=row.device) - (per_row.cumsum(0) - per_row)[row]
    index = row.new_zeros(size, int(per_row.max()))
    weight = votes.new_zeros(index.shape)
    index[row, place] = chosen
    weight[row, place] = votes / votes.new_zeros(size).index_add(0, row, votes)[row]
    mask = per_row > 0
    weight[~mask, 0] = 1  # an ignored row is a row too
    return index, weight, None if bool(mask.all()) else mask


def numbered(given: Any, name: str, size: int | None, count: int | None = None) -> tuple[Tensor, list[Any]]:
    """Names (J,) as numbers (J,), and the names in that order: sorted, or as they come if they do not sort.

    With a ``count`` the names are the numbers 0 … count − 1 themselves.
    """
    needed = f"{name} must have one entry per annotation as sample has, ({size or 'J'},)"
    if isinstance(given, str) or not hasattr(given, "__len__") or (size is not None and len(given) != size):
        raise ValueError(f"{needed}, got {given!r:.60}")
    if count is not None:
        found = as_tensor(given, name)
        if found.dim() != 1:
            raise ValueError(f"{needed}, got shape {tuple(found.shape)}")
        check_labels(found, count, name)
        return found.long().cpu(), list(range(count))
    if hasattr(given, "__array__") and not isinstance(given, Tensor):
        given = given.__array__()
    names: list[Any] = given.tolist() if hasattr(given, "tolist") else list(given)
    try:
        order: list[Any] = list(dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(f"{name} must hold names (J,) that can be told apart: {error}") from None
    if any(value != value for value in order):
        raise ValueError(f"{name} holds NaN; every annotation needs a name")
    with suppress(TypeError):  # names of different kinds stay as they come
        order.sort()
    number = {value: i for i, value in enumerate(order)}
    return torch.tensor([number[value] for value in names], dtype=torch.long), order
