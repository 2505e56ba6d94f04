"""Soft targets, stored as what people really have: a few (class, weight) pairs per row and one shared background."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data._utils.collate import default_collate_fn_map

from softnce._checks import (
    as_positive,
    as_tensor,
    as_whole,
    check_choice,
    check_floating,
    check_labels,
    check_rows_sum_to_one,
    sum_slack,
    values_are_checked,
    values_are_readable,
)
from softnce._precision import at_least_float32
from softnce.targets._algebra import Algebra, check_smoothing
from softnce.targets._annotations import numbered, shares_of_annotators
from softnce.targets._recognition import recognise
from softnce.targets._storage import DENSE, LABELS, PAIRS, ArrayLike, Form, exact_dtype

__all__ = ["DENSE", "LABELS", "PAIRS", "Annotated", "Form", "SoftTargets", "as_soft_targets"]

FOR_COUNTS = "; for counts of votes: SoftTargets.from_votes(counts, num_classes)"
"""Advice in errors about probabilities: people most often pass counts in their place."""
Rest = Literal["group", "spread", "renormalise"]


class SoftTargets(Algebra):
    """N points on the simplex of K classes.

    Row i is α_i = Σ_j w_ij e(index_ij) + ε_i ξ, where e(k) is class k: S weighted classes, and a background of mass ε
    spread over all classes as ξ. Memory is O(N·S + K), whatever K.

    | made by              | form   | index  | weight      | S                           |
    |----------------------|--------|--------|-------------|-----------------------------|
    | `from_labels`        | LABELS | (N, 1) | None: 1 − ε | 1                           |
    | `mix`                | PAIRS  | (N, S) | (N, S)      | 2 after MixUp or CutMix     |
    | `from_topk`          | PAIRS  | (N, k) | (N, k)      | k                           |
    | `from_topk_log_probs`| PAIRS  | (N, k) | (N, k)      | k                           |
    | `from_pairs`         | PAIRS  | (N, S) | (N, S)      | given                       |
    | `from_annotations`   | PAIRS  | (N, S) | (N, S)      | classes chosen for a sample |
    | `from_dense`         | DENSE  | None   | (N, K)      | K                           |

    ``from_votes`` makes pairs if few classes were chosen, else dense rows; ``from_dense`` recognises rows that are
    labels or pairs. The form decides the cost of a loss, never its value; ``repr`` names it.

    Attributes:
        index: class of each pair, int64, or None when ``weight`` runs over all classes.
        weight: weight of each pair. Pairs that fill up a row have weight 0. With the background they sum to 1.
        smoothing: ε, one number for all rows or a tensor (N,).
        smoothing_dist: ξ, a tensor (K,), or None for uniform.
        mask: (N,) rows that count, or None when all do. A masked row is neither a positive nor a candidate.
        rest: (N,) mass of all classes that a row does not name, as one group, or None. Cross-entropy alone takes it.

    Build it with the ``from_*`` methods; they take tensors, arrays and lists, and check them. Otherwise use it like a
    tensor (N, K): ``len``, ``shape``, ``dtype``, ``to``, ``argmax``, ``numpy``, indexing by rows; ``a == b`` compares
    row by row and gives (N,). A ``DataLoader`` collates rows ``t[i]``, also of a ``TensorDataset``; for Hugging Face's
    Trainer pass ``data_collator=torch.utils.data.default_collate``.

    >>> t = SoftTargets.from_labels(torch.tensor([0, 2]), num_classes=4, smoothing=0.1)
    >>> t.mix(t.flip(0), 0.7).dense()
    tensor([[0.6550, 0.0250, 0.2950, 0.0250],
            [0.2950, 0.0250, 0.6550, 0.0250]])
    """

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
        smoothing, dist = _background(smoothing, smoothing_dist, num_classes)
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
        index, mask = labels.long(), None
        if may_ignore:
            mask = index != ignore_index
            index = index * mask
        return cls(num_classes, index[:, None], None, smoothing, dist, mask)

    @classmethod
    def from_dense(cls, probs: ArrayLike) -> Self:
        """Probabilities (N, K), such as timm's or torchvision's MixUp returns.

        Rows that are a few peaks on one flat floor, as labels, MixUp and CutMix with or without smoothing are, become
        labels or pairs, equal to rounding; others stay dense. That reads the values: on an accelerator the host waits.
        """
        probs = as_tensor(probs, "probs")
        check_floating(probs, "probs", "(N, K)")
        if probs.shape[1] == 0:
            raise ValueError(f"probs must have at least one class, got shape {tuple(probs.shape)}")
        return cls._from_dense(probs, "probs", values_are_readable(probs))

    @classmethod
    def _from_dense(cls, probs: Tensor, name: str, recognised: bool) -> Self:
        is_checked = values_are_checked(probs)
        found = recognise(probs) if recognised else None
        if found is None:
            if is_checked:
                check_rows_sum_to_one(probs, name, FOR_COUNTS)
            return cls(probs.shape[1], None, probs)
        classes, weight, smoothing = found
        if is_checked and weight is not None:  # not negative, and it is enough to add up the peaks
            off = (weight.sum(1) + (smoothing - 1)).abs().amax()
            if not bool(off <= sum_slack(probs.dtype)):
                check_rows_sum_to_one(probs, name, FOR_COUNTS)
        return cls(probs.shape[1], classes, weight, smoothing)

    @classmethod
    def from_pairs(cls, index: ArrayLike, weight: ArrayLike, num_classes: int) -> Self:
        """S weighted classes per row: ``index`` (N, S) and ``weight`` (N, S), each row of which sums to 1.

        Both may be lists of rows of different lengths. In tensors, rows with fewer pairs are filled up with weight 0
        (the index is then ignored, but must be in range). A class named twice counts with the sum of its weights.
        """
        num_classes = as_whole(num_classes, "num_classes")
        if _are_rows(index) and _are_rows(weight):
            index, weight = _filled_rows(index, weight)
        index, weight = _pairs(index, weight, "weight", num_classes)
        if values_are_checked(weight):
            check_rows_sum_to_one(weight, "weight")
        return cls(num_classes, index, weight)

    @classmethod
    def from_topk(cls, logits: ArrayLike, k: int, temperature: float = 1.0, remainder: Rest = "renormalise") -> Self:
        """The k likeliest classes of a teacher with these ``logits`` (N, K), softened by ``temperature``.

        ``remainder`` is ``rest`` of :meth:`from_topk_log_probs`. For a teacher's probabilities pass their logarithm.
        """
        logits = as_tensor(logits, "logits")
        check_floating(logits, "logits", "(N, K)")
        num_classes, k = logits.shape[1], as_whole(k, "k")
        if k > num_classes:
            raise ValueError(f"k must be between 1 and the {num_classes} classes, got {k}")
        temperature = as_positive(temperature, "temperature")
        check_choice(remainder, "remainder", get_args(Rest))
        if values_are_checked(logits) and not bool(logits.amax(1).isfinite().all()):
            row = int(logits.amax(1).isfinite().int().argmin())  # the greatest of a row with NaN is NaN
            raise ValueError(f"logits hold NaN, +inf or no finite logit in row {row}")
        scaled = logits.to(at_least_float32(logits.dtype)) / temperature
        top, index = scaled.topk(k, dim=1)
        return cls._of_topk(index, (top - scaled.logsumexp(1, keepdim=True)).exp(), num_classes, remainder)

    @classmethod
    def from_topk_log_probs(
        cls, index: ArrayLike, log_probs: ArrayLike, num_classes: int, rest: Rest = "group"
    ) -> Self:
        """A teacher known by the log-probabilities of k classes per row, as language-model servers return them.

        ``index`` (N, k) names the classes, ``log_probs`` (N, k) holds their log-probabilities among all K. ``rest`` is
        the use of the other classes' probability: ``"group"`` keeps it as one group, which is exact for what is known,
        and for cross-entropy alone; ``"spread"`` spreads it uniformly over all classes; ``"renormalise"`` gives it to
        the k in proportion.
        """
        num_classes = as_whole(num_classes, "num_classes")
        check_choice(rest, "rest", get_args(Rest))
        index, log_probs = _pairs(index, log_probs, "log_probs", num_classes)
        weight = log_probs.to(at_least_float32(log_probs.dtype)).exp()
        if values_are_checked(log_probs):
            total = weight.sum(1)
            fits = (total > 0) & (total <= 1 + 1e-3)  # NaN fails both
            if not bool(fits.all()):
                row = int(fits.int().argmin())
                raise ValueError(
                    "log_probs must be logarithms of probabilities whose sum is in (0, 1], got a sum of "
                    f"{float(total[row]):.6g} in row {row}"
                )
        return cls._of_topk(index, weight, num_classes, rest)

    @classmethod
    def _of_topk(cls, index: Tensor, weight: Tensor, num_classes: int, rest: Rest) -> Self:
        """Pairs of probabilities (N, k) among all classes; the remaining mass as ``rest`` says."""
        total = weight.sum(1, dtype=exact_dtype(weight.device))
        if rest == "renormalise":
            return cls(num_classes, index, (weight / total[:, None]).to(weight.dtype))
        mass = (1 - total).clamp(0, 1).to(weight.dtype)
        if rest == "spread":
            return cls(num_classes, index, weight, mass)
        rounding = 1e-3 if weight.shape[1] >= num_classes else 8 * torch.finfo(weight.dtype).eps
        return cls(num_classes, index, weight, rest=torch.where(mass <= rounding, 0, mass))

    @classmethod
    def from_votes(
        cls, counts: ArrayLike, num_classes: int, smoothing: float = 0.0, smoothing_dist: ArrayLike | None = None
    ) -> Self:
        """Annotators' votes (N, K): row i is the share of annotators of sample i that chose each class.

        Stored as pairs if few of the K classes were ever chosen for one sample, else as dense rows. For one label per
        annotator (N, A) see :meth:`from_annotations`; ``num_classes`` tells one from the other.
        """
        counts, num_classes = as_tensor(counts, "counts"), as_whole(num_classes, "num_classes")
        if counts.dim() != 2 or counts.is_complex() or counts.dtype == torch.bool:
            raise ValueError(f"counts must be numbers of shape (N, K), got {tuple(counts.shape)} of {counts.dtype}")
        if counts.shape[1] != num_classes:
            raise ValueError(
                f"counts must have a column per class, {num_classes}, got {counts.shape[1]}; if a column is an "
                "annotator and holds labels, use SoftTargets.from_annotations"
            )
        smoothing, dist = _background(smoothing, smoothing_dist, num_classes)
        share = counts.to(exact_dtype(counts.device))
        total = share.sum(1, keepdim=True)
        if not bool((share.isfinite() & (share >= 0)).all()):
            raise ValueError("counts must be finite and not negative")
        if bool((total == 0).any()):
            raise ValueError(f"counts has no vote in row {int((total == 0).int().argmax())}; leave such rows out")
        share, dtype = share / total * (1 - smoothing), torch.promote_types(torch.get_default_dtype(), torch.float32)
        chosen = max(1, int((counts > 0).sum(1).amax())) if len(counts) else 1
        weight, index = (share, None) if 4 * chosen > num_classes else share.topk(chosen, dim=1)
        return cls(num_classes, index, weight, smoothing, dist, nominal_dtype=dtype)

    @classmethod
    def from_annotations(
        cls,
        sample: ArrayLike | Sequence[Hashable],
        annotator: ArrayLike | Sequence[Hashable] | None,
        label: ArrayLike | Sequence[Hashable],
        num_classes: int | None = None,
        *,
        num_samples: int | None = None,
        smoothing: float = 0.0,
        smoothing_dist: ArrayLike | None = None,
    ) -> Annotated:
        """One entry per annotation, as crowd data come: ``annotator[j]`` called ``sample[j]`` a ``label[j]``.

        Row i is the share of the annotators of sample i that chose each class. An annotator who labelled a sample
        several times has one vote, divided among those labels. O(J log J) for J annotations, whatever K.

        Args:
            sample: (J,) ids of samples, of any hashable kind; or rows 0 … N − 1 if ``num_samples`` is given.
            annotator: (J,) ids of annotators, of any hashable kind; None: every annotation is one vote.
            label: (J,) names of classes, of any hashable kind; or classes 0 … K − 1 if ``num_classes`` is given.
            num_classes: K; None: as many as ``label`` names.
            num_samples: N; None: as many as ``sample`` names. Samples without annotation are ignored rows.

        Returns:
            ``targets``; ``samples``, the id of each row; ``classes``, the name of each class. Both are sorted, or in
            order of appearance if they do not sort.

        >>> votes = SoftTargets.from_annotations(["b", "a", "b"], ["ann", "ann", "bob"], ["no", "yes", "yes"])
        >>> votes.samples, votes.classes, votes.targets.dense()
        (['a', 'b'], ['no', 'yes'], tensor([[0.0000, 1.0000],
                [0.5000, 0.5000]]))
        """
        num_samples = None if num_samples is None else as_whole(num_samples, "num_samples")
        num_classes = None if num_classes is None else as_whole(num_classes, "num_classes")
        name = "sample" if num_samples is None else "sample (below num_samples)"
        rows, samples = numbered(sample, name, None, num_samples)
        if len(rows) == 0:
            raise ValueError("sample is empty: at least one annotation is needed")
        chosen, classes = numbered(label, "label", len(rows), num_classes)
        who = None if annotator is None else numbered(annotator, "annotator", len(rows))[0]
        smoothing, dist = _background(smoothing, smoothing_dist, len(classes))
        index, weight, mask = shares_of_annotators(rows, who, chosen, len(samples), len(classes))
        device = label.device if isinstance(label, Tensor) else "cpu"
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        targets = cls(len(classes), index, weight * (1 - smoothing), smoothing, dist, mask, nominal_dtype=dtype)
        return Annotated(targets.to(device), samples, classes)


class Annotated(NamedTuple):
    """Targets of annotated samples, the id of each row and the name of each class."""

    targets: SoftTargets
    samples: Sequence[Any]
    classes: Sequence[Any]


def as_soft_targets(
    targets: Tensor | SoftTargets,
    num_classes: int,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    allow_rest: bool = False,
) -> SoftTargets:
    """The targets of a loss, labels (N,), probabilities (N, K) or SoftTargets, as SoftTargets."""
    if isinstance(targets, SoftTargets):
        if targets.num_classes != num_classes:
            raise ValueError(f"targets have {targets.num_classes} classes, logits have {num_classes}")
        if not allow_rest:
            targets.check_no_rest("this loss")
        return targets.smooth(label_smoothing)
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor or SoftTargets, got {type(targets).__name__}")
    if targets.dim() == 1:
        label_smoothing = check_smoothing(label_smoothing, None, num_classes)
        return SoftTargets._from_labels(targets, num_classes, label_smoothing, None, ignore_index, "targets")
    if targets.dim() != 2 or targets.shape[1] != num_classes:
        raise ValueError(
            f"targets must be (N,) labels or (N, {num_classes}) probabilities, got shape {tuple(targets.shape)}"
        )
    if not targets.is_floating_point():
        raise TypeError(f"targets (N, K) must be floating point probabilities, got {targets.dtype}{FOR_COUNTS}")
    recognised = targets.device.type == "cpu" and values_are_readable(targets)  # an accelerator would have to wait
    return SoftTargets._from_dense(targets, "targets", recognised).smooth(label_smoothing)


def _background(smoothing: float, dist: ArrayLike | None, num_classes: int) -> tuple[float, Tensor | None]:
    """ε and ξ, checked."""
    found = None if dist is None else as_tensor(dist, "smoothing_dist")
    return check_smoothing(smoothing, found, num_classes), found


def _pairs(index: ArrayLike, values: ArrayLike, name: str, num_classes: int) -> tuple[Tensor, Tensor]:
    """Classes (N, S) and a floating point number of each."""
    index, values = as_tensor(index, "index"), as_tensor(values, name)
    if index.dim() != 2 or index.shape != values.shape or index.shape[1] == 0:
        raise ValueError(
            f"index and {name} must have one shape (N, S) with S ≥ 1, "
            f"got {tuple(index.shape)} and {tuple(values.shape)}"
        )
    if index.device != values.device:
        raise ValueError(f"index and {name} must be on one device, got {index.device} and {values.device}")
    if not values.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {values.dtype}")
    check_labels(index, num_classes, "index")
    return index.long(), values


def _are_rows(given: object) -> bool:
    """Whether ``given`` is a list of lists or arrays, which may differ in length."""
    return isinstance(given, (list, tuple)) and len(given) > 0 and all(hasattr(row, "__len__") for row in given)


def _filled_rows(index: Sequence[Any], weight: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Rows of pairs of different lengths as two tensors (N, S), filled up with weight 0."""
    classes, weights = [as_tensor(row, "index") for row in index], [as_tensor(row, "weight") for row in weight]
    if len(classes) != len(weights):
        raise ValueError(f"index and weight must have as many rows, got {len(classes)} and {len(weights)}")
    for i, (mine, its) in enumerate(zip(classes, weights, strict=True)):
        if mine.dim() != 1 or mine.shape != its.shape or len(mine) == 0:
            raise ValueError(
                "index and weight must name one weight per class and at least one class in every row, "
                f"got shapes {tuple(mine.shape)} and {tuple(its.shape)} in row {i}"
            )
    dtype = torch.promote_types(torch.get_default_dtype(), weights[0].dtype)
    return pad_sequence(classes, batch_first=True), pad_sequence([w.to(dtype) for w in weights], batch_first=True)


# Soft targets saved with torch.save load with weights_only=True, as a file of a teacher's outputs should.
torch.serialization.add_safe_globals([SoftTargets])


def _collated(batch: Sequence[SoftTargets], *, collate_fn_map: object = None) -> SoftTargets:
    """A batch of rows; of a single one a copy, because ``t[i]`` is a view that would keep the whole data set."""
    return SoftTargets.cat(batch) if len(batch) > 1 else batch[0].clone()


default_collate_fn_map[SoftTargets] = _collated
