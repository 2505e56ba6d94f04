"""Soft targets from what people have: labels, probabilities, pairs, a teacher's scores, votes, annotations.

Every constructor takes tensors, numpy or pandas arrays and lists, and checks them.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from softnce._checks import (
    as_number,
    as_tensor,
    as_whole,
    check_choice,
    check_distribution,
    check_labels,
    check_rows_sum_to_one,
    values_are_checked,
    values_are_readable,
)
from softnce.targets._recognition import peaks

ArrayLike = Any
"""A tensor, an array of numpy, pandas or others, or a list of numbers."""
FOR_COUNTS = "; for counts of votes: SoftTargets.from_votes(counts, num_classes)"
"""What an error about probabilities advises: counts are what people most often pass in their place."""


class Constructors:
    """The ``from_*`` methods of :class:`~softnce.SoftTargets`."""

    def __init__(
        self,
        num_classes: int,
        index: Tensor | None,
        weight: Tensor | None,
        smoothing: float | Tensor = 0.0,
        smoothing_dist: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        raise NotImplementedError

    @classmethod
    def from_labels(
        cls,
        labels: ArrayLike,
        num_classes: int,
        smoothing: float = 0.0,
        smoothing_dist: ArrayLike | None = None,
        ignore_index: int = -100,
    ) -> Self:
        """Labels (N,), smoothed by ``smoothing`` towards ``smoothing_dist`` (ξ, None = uniform).

        Rows with the label ``ignore_index`` are ignored: neither positives nor candidates.
        """
        num_classes = as_whole(num_classes, "num_classes")
        dist = None if smoothing_dist is None else as_tensor(smoothing_dist, "smoothing_dist")
        return cls._from_labels(as_tensor(labels, "labels"), num_classes, smoothing, dist, ignore_index, "labels")

    @classmethod
    def _from_labels(
        cls, labels: Tensor, num_classes: int, smoothing: float, dist: Tensor | None, ignore_index: int, name: str
    ) -> Self:
        if labels.dim() != 1:
            raise ValueError(f"{name} must have shape (N,), got {tuple(labels.shape)}")
        if labels.numel() == 0 and labels.dtype == torch.get_default_dtype():
            labels = labels.long()  # an empty list has no dtype of its own
        ignore_index = as_whole(ignore_index, "ignore_index", None)
        may_ignore = check_labels(labels, num_classes, name, ignore_index)
        smoothing = check_smoothing(smoothing, dist, num_classes)
        index, mask = labels.long(), None
        if may_ignore:
            mask = index != ignore_index
            index = torch.where(mask, index, 0)
        return cls(num_classes, index[:, None], None, smoothing, dist, mask)

    @classmethod
    def from_dense(cls, probs: ArrayLike) -> Self:
        """Probabilities (N, K), such as timm's or torchvision's MixUp returns.

        Rows that are a few peaks on one flat floor, as labels, MixUp and CutMix with or without smoothing are, become
        labels or pairs, equal to rounding; others stay dense. That reads the values: on an accelerator the host waits.
        """
        probs = as_tensor(probs, "probs")
        if probs.dim() != 2 or probs.shape[1] == 0 or not probs.is_floating_point():
            raise ValueError(f"probs must be floating point (N, K), got shape {tuple(probs.shape)} of {probs.dtype}")
        return cls._from_dense(probs, "probs", values_are_readable(probs))

    @classmethod
    def _from_dense(cls, probs: Tensor, name: str, recognise: bool) -> Self:
        is_checked = values_are_checked(probs)
        found = peaks(probs) if recognise else None
        # What was recognised is not negative, and it is enough to add up its peaks.
        if is_checked and not (found is not None and found.sums_to_one(probs.dtype)):
            check_rows_sum_to_one(probs, name, FOR_COUNTS)
        return cls(probs.shape[1], None, probs) if found is None else cls(probs.shape[1], *found)

    @classmethod
    def from_pairs(cls, index: ArrayLike, weight: ArrayLike, num_classes: int) -> Self:
        """S weighted classes per row: ``index`` (N, S) and ``weight`` (N, S), each row of which sums to 1.

        Both may be lists of rows of different lengths. In tensors, rows with fewer pairs are filled up with weight 0
        (the index is then ignored, but must be in range). A class named twice counts with the sum of its weights.
        """
        num_classes = as_whole(num_classes, "num_classes")
        if _are_rows(index) and _are_rows(weight):
            index, weight = _filled_rows(index, weight)
        index, weight = as_tensor(index, "index"), as_tensor(weight, "weight")
        if index.dim() != 2 or index.shape != weight.shape or index.shape[1] == 0:
            raise ValueError(
                "index and weight must have one shape (N, S) with S ≥ 1, "
                f"got {tuple(index.shape)} and {tuple(weight.shape)}"
            )
        if index.device != weight.device:
            raise ValueError(f"index and weight must be on one device, got {index.device} and {weight.device}")
        if not weight.is_floating_point():
            raise TypeError(f"weight must be floating point, got {weight.dtype}")
        check_labels(index, num_classes, "index")
        if values_are_checked(weight):
            check_rows_sum_to_one(weight, "weight")
        return cls(num_classes, index.long(), weight)

    @classmethod
    def from_topk(
        cls,
        logits: ArrayLike,
        k: int,
        temperature: float = 1.0,
        remainder: Literal["renormalise", "spread"] = "renormalise",
    ) -> Self:
        """The k likeliest classes of a teacher with these ``logits`` (N, K), softened by ``temperature``.

        What the other classes had is given to the k in proportion (``"renormalise"``) or spread uniformly over all
        classes (``"spread"``; then the background's mass differs from row to row). For a teacher's probabilities pass
        their logarithm.
        """
        logits = as_tensor(logits, "logits")
        if logits.dim() != 2 or not logits.is_floating_point():
            raise ValueError(f"logits must be floating point (N, K), got {tuple(logits.shape)} of {logits.dtype}")
        num_classes, k = logits.shape[1], as_whole(k, "k")
        if k > num_classes:
            raise ValueError(f"k must be between 1 and the {num_classes} classes, got {k}")
        temperature = as_number(temperature, "temperature", "a positive number")
        if not 0 < temperature < torch.inf:
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        check_choice(remainder, "remainder", ("renormalise", "spread"))
        if values_are_checked(logits) and logits.numel():
            if not bool((logits < torch.inf).all()):
                raise ValueError("logits hold NaN or +inf")
            best = logits.amax(1)
            if bool((best == -torch.inf).any()):
                row = int((best == -torch.inf).nonzero()[0])
                raise ValueError(f"logits of row {row} are all −inf: at least one class needs a finite logit")
        scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        top, index = scaled.topk(k, dim=1)
        if remainder == "renormalise":
            return cls(num_classes, index, top.softmax(1))
        weight = (top - scaled.logsumexp(1, keepdim=True)).exp()
        return cls(num_classes, index, weight, (1 - weight.sum(1)).clamp(0, 1))

    @classmethod
    def from_votes(
        cls,
        counts: ArrayLike,
        num_classes: int,
        smoothing: float = 0.0,
        smoothing_dist: ArrayLike | None = None,
    ) -> Self:
        """Annotators' votes (N, K): row i is the share of annotators of sample i that chose each class.

        Stored as pairs when few of the K classes were ever chosen for one sample, else as dense rows.

        Args:
            counts: how many annotators chose each class, (N, K). For one label per annotator (N, A) see
                :meth:`from_annotations`.
            num_classes: K, which tells counts per class from a column per annotator.
            smoothing, smoothing_dist: ε and ξ, as in :meth:`from_labels`.
        """
        counts, num_classes = as_tensor(counts, "counts"), as_whole(num_classes, "num_classes")
        if counts.dim() != 2 or counts.is_complex() or counts.dtype == torch.bool:
            raise ValueError(f"counts must be numbers of shape (N, K), got {tuple(counts.shape)} of {counts.dtype}")
        if counts.shape[1] != num_classes:
            raise ValueError(
                f"counts must have a column per class, {num_classes}, got {counts.shape[1]}; where a column is an "
                "annotator and holds labels, use SoftTargets.from_annotations"
            )
        dist = None if smoothing_dist is None else as_tensor(smoothing_dist, "smoothing_dist")
        smoothing = check_smoothing(smoothing, dist, num_classes)
        share = counts.to(torch.promote_types(torch.get_default_dtype(), torch.float32))
        total = share.sum(1, keepdim=True)
        if not bool(share.isfinite().all()) or bool((share < 0).any()):
            raise ValueError("counts must be finite and not negative")
        if bool((total == 0).any()):
            row = int((total[:, 0] == 0).nonzero()[0])
            raise ValueError(f"counts has no vote in row {row}; leave such rows out")
        share = share / total * (1 - smoothing)
        chosen = max(1, int((counts > 0).sum(1).amax())) if len(counts) else 1
        if 4 * chosen > num_classes:
            return cls(num_classes, None, share, smoothing, dist)
        weight, index = share.topk(chosen, dim=1)
        return cls(num_classes, index, weight, smoothing, dist)

    @classmethod
    def from_annotations(
        cls,
        sample: ArrayLike,
        annotator: ArrayLike | None,
        label: ArrayLike,
        num_classes: int,
        *,
        num_samples: int | None = None,
        smoothing: float = 0.0,
        smoothing_dist: ArrayLike | None = None,
    ) -> Self:
        """One entry per annotation, as crowd data come: ``annotator[j]`` called ``sample[j]`` a ``label[j]``.

        Row i is the share of the annotators of sample i that chose each class. An annotator who labelled a sample
        several times has one vote, divided among those labels. O(J log J) for J annotations, whatever K.

        Args:
            sample: (J,) rows, 0 … N − 1.
            annotator: (J,) who labelled, integers or strings; None: every annotation is one vote.
            label: (J,) classes.
            num_classes: K.
            num_samples: N; None: as many as ``sample`` names. Samples without annotation are ignored rows.
            smoothing, smoothing_dist: ε and ξ, as in :meth:`from_labels`.
        """
        num_classes = as_whole(num_classes, "num_classes")
        sample, label = as_tensor(sample, "sample"), as_tensor(label, "label")
        if sample.dim() != 1 or sample.shape != label.shape:
            raise ValueError(
                "sample and label must have one entry per annotation (J,), "
                f"got shapes {tuple(sample.shape)} and {tuple(label.shape)}"
            )
        if len(sample) == 0:
            raise ValueError("sample is empty: at least one annotation is needed")
        check_labels(label, num_classes, "label")
        check_labels(sample, torch.iinfo(torch.int64).max, "sample")
        size = int(sample.max()) + 1
        if num_samples is not None and size > as_whole(num_samples, "num_samples"):
            raise ValueError(f"num_samples must be above every sample, at least {size}, got {num_samples}")
        size = size if num_samples is None else int(num_samples)
        dist = None if smoothing_dist is None else as_tensor(smoothing_dist, "smoothing_dist")
        smoothing = check_smoothing(smoothing, dist, num_classes)
        sample, label = sample.long(), label.long().to(sample.device)

        vote = torch.ones(len(sample), dtype=torch.float64, device=sample.device)
        if annotator is not None:
            who = _numbered(annotator, len(sample)).to(sample.device)
            _, of, times = torch.unique(torch.stack([sample, who]), dim=1, return_inverse=True, return_counts=True)
            vote = 1 / times[of].double()
        # The distinct (sample, class) pairs in order of samples, and where each stands in its row.
        pairs, of = torch.unique(sample * num_classes + label, return_inverse=True)
        votes = vote.new_zeros(len(pairs)).index_add(0, of, vote)
        row, chosen = pairs // num_classes, pairs % num_classes
        per_row = torch.bincount(row, minlength=size)
        place = torch.arange(len(pairs), device=row.device) - (per_row.cumsum(0) - per_row)[row]
        total = votes.new_zeros(size).index_add(0, row, votes)
        index = row.new_zeros(size, int(per_row.max()))
        weight = votes.new_zeros(index.shape)
        index[row, place] = chosen
        weight[row, place] = votes / total[row] * (1 - smoothing)
        mask = per_row > 0
        weight[~mask, 0] = 1 - smoothing  # an ignored row is a row too
        weight = weight.to(torch.promote_types(torch.get_default_dtype(), torch.float32))
        return cls(num_classes, index, weight, smoothing, dist, None if bool(mask.all()) else mask)


def check_smoothing(smoothing: float, dist: Tensor | None, num_classes: int) -> float:
    smoothing = as_number(smoothing, "smoothing", "a number in [0, 1]")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must be a number in [0, 1], got {smoothing!r}")
    if dist is not None:
        check_distribution(dist, "smoothing_dist", num_classes)
    return smoothing


def _are_rows(given: object) -> bool:
    """Whether ``given`` is a list of lists or arrays, which may differ in length."""
    return isinstance(given, (list, tuple)) and len(given) > 0 and all(hasattr(row, "__len__") for row in given)


def _filled_rows(index: Sequence[Any], weight: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Rows of pairs of different lengths as two tensors (N, S), filled up with weight 0."""
    if len(index) != len(weight):
        raise ValueError(f"index and weight must have as many rows, got {len(index)} and {len(weight)}")
    classes, weights = ([as_tensor(row, name) for row in rows] for name, rows in (("index", index), ("weight", weight)))
    for i, (mine, its) in enumerate(zip(classes, weights, strict=True)):
        if mine.dim() != 1 or mine.shape != its.shape or len(mine) == 0:
            raise ValueError(
                "index and weight must name one weight per class and at least one class in every row, "
                f"got shapes {tuple(mine.shape)} and {tuple(its.shape)} in row {i}"
            )
    dtype = torch.promote_types(torch.get_default_dtype(), weights[0].dtype)
    width = max(map(len, classes))
    return (
        torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in classes]),
        torch.stack([torch.nn.functional.pad(row.to(dtype), (0, width - len(row))) for row in weights]),
    )


def _numbered(annotator: ArrayLike, size: int) -> Tensor:
    """Annotators, integers or strings, as integers (J,)."""
    if not isinstance(annotator, Tensor):
        names = annotator.__array__().tolist() if hasattr(annotator, "__array__") else annotator
        if not isinstance(names, (list, tuple, range)) or not all(isinstance(name, (int, str)) for name in names):
            raise TypeError(f"annotator must hold integers or strings (J,), got {type(annotator).__name__}")
        known: dict[int | str, int] = {}
        annotator = torch.tensor([known.setdefault(name, len(known)) for name in names], dtype=torch.long)
    if annotator.shape != (size,) or annotator.is_floating_point() or annotator.is_complex():
        raise ValueError(
            f"annotator must hold {size} integers or strings, one per annotation, "
            f"got {annotator.dtype} of shape {tuple(annotator.shape)}"
        )
    numbers: Tensor = annotator.long()
    return numbers
