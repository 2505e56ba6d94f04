"""Constructors of :class:`~softnce.SoftTargets` from what people have: probabilities, pairs, teachers, annotators."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from softnce import _inputs
from softnce._core import cpu

if TYPE_CHECKING:
    from softnce.targets.soft_targets import SoftTargets

ArrayLike = Any
"""A tensor, an array of numpy, pandas or others, or a list of numbers."""
Rest = Literal["group", "spread", "renormalise"]
FOR_COUNTS = "; for counts of votes: SoftTargets.from_votes(counts, num_classes)"
"""Advice in errors about probabilities: people most often pass counts in their place."""
PROBED = 64
"""Rows that bound the number of peaks; most dense rows are known not to be pairs after these."""


def _check_rows(fit: Tensor, wrong: str) -> None:
    """Every row must ``fit``, (N,); ``wrong`` says what those are that do not."""
    if not bool(fit.all()):
        raise ValueError(f"{wrong} in row {int(fit.int().argmin())}")


def from_dense(cls: type[SoftTargets], probs: ArrayLike) -> SoftTargets:
    """Probabilities (N, K), such as timm's or torchvision's MixUp returns.

    Rows that are a few peaks on one flat floor, as labels, MixUp and CutMix with or without smoothing are, become
    labels or pairs, equal to rounding; others stay dense. That reads the values: on an accelerator the host waits.
    """
    probs = _inputs.as_tensor(probs, "probs")
    _inputs.check_floating(probs, "probs", "(N, K)")
    if probs.shape[1] == 0:
        raise ValueError(f"probs must have at least one class, got shape {tuple(probs.shape)}")
    return of_probabilities(cls, probs, "probs", _inputs.values_are_readable(probs))


def of_probabilities(cls: type[SoftTargets], probs: Tensor, name: str, recognised: bool) -> SoftTargets:
    """Probabilities (N, K), checked; as labels or pairs if they may be ``recognised`` and are."""
    is_checked = _inputs.values_are_checked(probs)
    found = _recognise(probs) if recognised else None
    if found is not None and is_checked:  # peaks and floor are not negative: their sum is to be checked alone
        _, weight, floor = found
        is_checked = weight is not None and not (weight.sum(1) + (floor - 1)).abs().amax() <= _inputs.sum_slack(
            probs.dtype
        )
    if is_checked:
        _inputs.check_rows_sum_to_one(probs, name, FOR_COUNTS)
    return cls(probs.shape[1], None, probs) if found is None else cls(probs.shape[1], *found)


def _recognise(probs: Tensor) -> tuple[Tensor, Tensor | None, float] | None:
    """Probabilities (N, K) as classes (N, S), their weights (N, S) and a uniform background ε; None if they are dense.

    The floor is the smallest probability; a probability above it by more than rounding is a peak. No row may have more
    of them than the first rows, or than two; and at most a quarter of the classes may be peaks, or two if classes are
    few. The weights are None if every row is a label. Reads values, O(N·K).
    """
    n, classes = probs.shape
    most = min(max(2, classes // 4), classes - 1)
    if n == 0 or most == 0 or probs.requires_grad:
        return None
    is_fused = cpu.library is not None and probs.is_cpu and probs.dtype in (torch.float32, torch.float64)
    recognise = cpu.recognise if is_fused else _peaks
    found = recognise(probs[:PROBED], most)
    pairs = 2 if found is None else max(2, found[0].shape[1])
    if found is None or pairs > most:
        return None
    return found if n <= PROBED else recognise(probs, pairs)


def _peaks(probs: Tensor, most: int) -> tuple[Tensor, Tensor | None, float] | None:
    """As ``cpu.recognise``, of any dtype on any device."""
    # Mixing rounds each row's floor anew: it differs by an ulp or two between rows.
    floor, rounding = float(probs.amin()), 4 * torch.finfo(probs.dtype).eps
    highest, index = probs.topk(most + 1, 1)
    is_peak = highest > floor * (1 + rounding)
    pairs, mass = max(1, int(is_peak.sum(1).amax())), floor * probs.shape[1]
    if pairs > most or not 0 <= mass <= 1 + _inputs.sum_slack(probs.dtype):
        return None
    mass = min(1.0, mass)
    weight = ((highest.to(_inputs.at_least_float32(probs.dtype)) - floor) * is_peak)[:, :pairs]
    is_label = pairs == 1 and bool(((weight - (1 - mass)).abs() <= rounding).all())
    return index[:, :pairs].contiguous(), None if is_label else weight, mass


def from_pairs(cls: type[SoftTargets], index: ArrayLike, weight: ArrayLike, num_classes: int) -> SoftTargets:
    """S weighted classes per row: ``index`` (N, S) and ``weight`` (N, S), each row of which sums to 1.

    Both may be lists of rows of different lengths. In tensors, rows with fewer pairs are filled up with weight 0
    (the index is then ignored, but must be in range). A class named twice counts with the sum of its weights.
    """
    num_classes = _inputs.as_whole(num_classes, "num_classes")
    if _are_rows(index) and _are_rows(weight):
        lengths, its = ([len(row) for row in rows] for rows in (index, weight))
        if lengths != its or 0 in lengths:
            got = f"got {lengths!s:.50} and {its!s:.50}"
            raise ValueError(f"index and weight must have as many classes as weights in a row, at least one, {got}")
        index = pad_sequence([_inputs.as_tensor(row, "index") for row in index], batch_first=True)
        weights = [_inputs.as_tensor(row, "weight") for row in weight]
        dtype = torch.promote_types(torch.get_default_dtype(), weights[0].dtype)
        weight = pad_sequence([row.to(dtype) for row in weights], batch_first=True)
    index, weight = _pairs(index, weight, "weight", num_classes)
    if _inputs.values_are_checked(weight):
        _inputs.check_rows_sum_to_one(weight, "weight")
    return cls(num_classes, index, weight)


def _pairs(index: ArrayLike, values: ArrayLike, name: str, num_classes: int) -> tuple[Tensor, Tensor]:
    """Classes (N, S) and a floating point number of each."""
    index, values = _inputs.as_tensor(index, "index"), _inputs.as_tensor(values, name)
    if index.dim() != 2 or index.shape != values.shape or index.shape[1] == 0:
        raise ValueError(f"index and {name} must have one shape (N, S), got {[*index.shape]} and {[*values.shape]}")
    if index.device != values.device:
        raise ValueError(f"index and {name} must be on one device, got {index.device} and {values.device}")
    if not values.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {values.dtype}")
    _inputs.check_labels(index, num_classes, "index")
    return index.long(), values


def _are_rows(given: object) -> bool:
    """Whether ``given`` is a list of lists or arrays, which may differ in length."""
    return isinstance(given, (list, tuple)) and len(given) > 0 and all(hasattr(row, "__len__") for row in given)


def from_topk(
    cls: type[SoftTargets], logits: ArrayLike, k: int, temperature: float = 1.0, remainder: Rest = "renormalise"
) -> SoftTargets:
    """The k likeliest classes of a teacher with these ``logits`` (N, K), softened by ``temperature``.

    ``remainder`` is ``rest`` of :meth:`from_topk_log_probs`. For a teacher's probabilities pass their logarithm.
    """
    logits = _inputs.as_tensor(logits, "logits")
    _inputs.check_floating(logits, "logits", "(N, K)")
    num_classes, k = logits.shape[1], _inputs.as_whole(k, "k")
    if k > num_classes:
        raise ValueError(f"k must be between 1 and the {num_classes} classes, got {k}")
    temperature = _inputs.as_positive(temperature, "temperature")
    _inputs.one_of(*get_args(Rest))(remainder, "remainder")
    if _inputs.values_are_checked(logits):  # the greatest of a row with NaN is NaN
        _check_rows(logits.amax(1).isfinite(), "logits hold NaN, +inf or no finite logit")
    scaled = logits.to(_inputs.at_least_float32(logits.dtype)) / temperature
    top, index = scaled.topk(k, dim=1)
    return of_topk(cls, index, (top - scaled.logsumexp(1, keepdim=True)).exp(), num_classes, remainder)


def from_topk_log_probs(
    cls: type[SoftTargets], index: ArrayLike, log_probs: ArrayLike, num_classes: int, rest: Rest = "group"
) -> SoftTargets:
    """A teacher known by the log-probabilities of k classes per row, as language-model servers return them.

    ``index`` and ``log_probs`` are (N, k). The probability of the other classes is the ``rest``: ``"group"`` keeps it
    as one group, which is exact for what is known, and for cross-entropy alone; ``"spread"`` spreads it uniformly over
    all classes; ``"renormalise"`` gives it to the k in proportion.
    """
    num_classes = _inputs.as_whole(num_classes, "num_classes")
    _inputs.one_of(*get_args(Rest))(rest, "rest")
    index, log_probs = _pairs(index, log_probs, "log_probs", num_classes)
    weight = log_probs.to(_inputs.at_least_float32(log_probs.dtype)).exp()
    if _inputs.values_are_checked(log_probs):
        total = weight.sum(1)
        _check_rows(
            (total > 0) & (total <= 1 + 1e-3), "log_probs are not logarithms of probabilities of a sum in (0, 1]"
        )
    return of_topk(cls, index, weight, num_classes, rest)


def of_topk(cls: type[SoftTargets], index: Tensor, weight: Tensor, num_classes: int, rest: Rest) -> SoftTargets:
    """Pairs of probabilities (N, k) among all classes; the remaining mass as ``rest`` says."""
    total = weight.sum(1, dtype=_inputs.exact_dtype(weight.device))
    if rest == "renormalise":
        return cls(num_classes, index, (weight / total[:, None]).to(weight.dtype))
    mass = (1 - total).clamp(0, 1).to(weight.dtype)
    if rest == "spread":
        return cls(num_classes, index, weight, mass)
    rounding = 1e-3 if weight.shape[1] >= num_classes else 8 * torch.finfo(weight.dtype).eps
    return cls(num_classes, index, weight, rest=torch.where(mass <= rounding, 0, mass))


def from_votes(
    cls: type[SoftTargets],
    counts: ArrayLike,
    num_classes: int,
    smoothing: float = 0.0,
    smoothing_dist: ArrayLike | None = None,
) -> SoftTargets:
    """Annotators' votes (N, K): row i is the share of annotators of sample i that chose each class.

    Stored as pairs if few of the K classes were ever chosen for one sample, else as dense rows. For one label per
    annotator (N, A) see :meth:`from_annotations`; ``num_classes`` tells one from the other.
    """
    counts, num_classes = _inputs.as_tensor(counts, "counts"), _inputs.as_whole(num_classes, "num_classes")
    if counts.dim() != 2 or counts.is_complex() or counts.dtype == torch.bool:
        raise ValueError(f"counts must be numbers of shape (N, K), got {tuple(counts.shape)} of {counts.dtype}")
    if counts.shape[1] != num_classes:
        raise ValueError(
            f"counts must have a column per class, {num_classes}, got {counts.shape[1]}; for a column of labels per "
            "annotator use SoftTargets.from_annotations"
        )
    share = counts.to(_inputs.exact_dtype(counts.device))
    total = share.sum(1, keepdim=True)
    _check_rows((share.isfinite() & (share >= 0)).all(1), "counts are not finite or negative")
    _check_rows(total[:, 0] > 0, "counts has no vote, so leave it out,")
    share, dtype = share / total, _inputs.at_least_float32(torch.get_default_dtype())
    chosen = max(1, int((counts > 0).sum(1).amax())) if len(counts) else 1
    weight, index = (share, None) if 4 * chosen > num_classes else share.topk(chosen, dim=1)
    return cls(num_classes, index, weight, nominal_dtype=dtype).smooth(smoothing, smoothing_dist)


class Annotated(NamedTuple):
    """Targets of annotated samples, the id of each row and the name of each class."""

    targets: SoftTargets
    samples: Sequence[Any]
    classes: Sequence[Any]


def from_annotations(
    cls: type[SoftTargets],
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

    ``sample``, ``annotator`` and ``label`` (J,) are ids of any hashable kind; with ``num_samples`` samples are rows
    0 … N − 1, of which some may have no annotation and are ignored; with ``num_classes`` labels are classes 0 … K − 1.
    Without ``annotator`` every annotation is one vote.

    Returns:
        ``targets``; ``samples``, the id of each row; ``classes``, the name of each class. Both are sorted, or in
        order of appearance if they do not sort.

    >>> votes = SoftTargets.from_annotations(["b", "a", "b"], ["ann", "ann", "bob"], ["no", "yes", "yes"])
    >>> votes.samples, votes.classes, votes.targets.dense()
    (['a', 'b'], ['no', 'yes'], tensor([[0.0000, 1.0000],
            [0.5000, 0.5000]]))
    """
    num_samples = None if num_samples is None else _inputs.as_whole(num_samples, "num_samples")
    num_classes = None if num_classes is None else _inputs.as_whole(num_classes, "num_classes")
    rows, samples = _numbered(sample, "sample" if num_samples is None else "sample (below num_samples)", num_samples)
    chosen, classes = _numbered(label, "label", num_classes)
    who = None if annotator is None else _numbered(annotator, "annotator", None)[0]
    lengths = [len(each) for each in (rows, chosen, who) if each is not None]
    if lengths[0] == 0 or len(set(lengths)) > 1:
        raise ValueError(f"sample, label and annotator must have one entry per annotation, got {lengths}")
    index, weight, mask = _shares_of_annotators(rows, who, chosen, len(samples), len(classes))
    device = label.device if isinstance(label, Tensor) else "cpu"
    dtype = _inputs.at_least_float32(torch.get_default_dtype())
    targets = cls(len(classes), index, weight, mask=mask, nominal_dtype=dtype).smooth(smoothing, smoothing_dist)
    return Annotated(targets.to(device), samples, classes)


def _shares_of_annotators(
    sample: Tensor, who: Tensor | None, label: Tensor, size: int, num_classes: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Classes and shares (N, S) from numbered annotations (J,), and which samples were annotated. O(J log J)."""
    vote = torch.ones(len(sample), dtype=torch.float64)
    if who is not None:
        _, of, times = torch.unique(torch.stack([sample, who]), dim=1, return_inverse=True, return_counts=True)
        vote = 1 / times[of].double()
    # The distinct (sample, class) pairs in order of samples, and their places in the rows.
    votes = torch.sparse_coo_tensor(torch.stack([sample, label]), vote, (size, num_classes), check_invariants=True)
    votes = votes.coalesce()
    row, chosen = votes.indices()
    per_row = torch.bincount(row, minlength=size)
    place = torch.arange(len(row)) - (per_row.cumsum(0) - per_row)[row]
    index = row.new_zeros(size, int(per_row.max()))
    weight = vote.new_zeros(index.shape)
    index[row, place], weight[row, place] = chosen, votes.values()
    mask = per_row > 0
    weight[~mask, 0] = 1  # an ignored row is a row too
    return index, weight / weight.sum(1, keepdim=True), None if bool(mask.all()) else mask


def _numbered(given: Any, name: str, count: int | None) -> tuple[Tensor, list[Any]]:
    """Names (J,) as numbers (J,), and the names in that order: sorted, or as they come if they do not sort.

    With a ``count`` the names are the numbers 0 … count − 1 themselves.
    """
    if count is not None:
        found = _inputs.as_tensor(given, name)
        _inputs.check_labels(found, count, name)
        return found.flatten().long().cpu(), list(range(count))
    if isinstance(given, str):
        raise TypeError(f"{name} must have one entry per annotation, got {given!r:.60}")
    if hasattr(given, "__array__") and not isinstance(given, Tensor):
        given = given.__array__()
    try:
        names: list[Any] = given.tolist() if hasattr(given, "tolist") else list(given)
        order: list[Any] = list(dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(f"{name} must hold names (J,) that can be told apart: {error}") from None
    if any(value != value for value in order):
        raise ValueError(f"{name} holds NaN; every annotation needs a name")
    with suppress(TypeError):  # names of different kinds stay as they come
        order.sort()
    number = {value: i for i, value in enumerate(order)}
    return torch.tensor([number[value] for value in names], dtype=torch.long), order
