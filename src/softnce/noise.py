"""The noise η: how often each class occurs among the candidates.

Functions return probabilities (K,). The Modules :class:`FixedNoise` and :class:`RunningNoise` hold η for a loss: its
logarithm at some classes, and labels drawn from it, at a cost that does not depend on K.
"""

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from softnce._inputs import (
    KeepsPrecision,
    as_not_negative,
    as_positive,
    as_tensor,
    as_whole,
    at_least_float32,
    check_distribution,
    check_floating,
    check_weights,
    values_are_checked,
    values_are_readable,
)
from softnce.targets._sampling import class_edges, draw_by_edges, draw_uniform, drawn_by
from softnce.targets.soft_targets import SoftTargets, as_soft_targets


def uniform(num_classes: int) -> Tensor:
    """η_k = 1/K."""
    num_classes = as_whole(num_classes, "num_classes")
    return torch.full((num_classes,), 1 / num_classes)


def from_counts(counts: Tensor, floor: float | None = None, exponent: float = 1.0) -> Tensor:
    """η from class counts (K,).

    A class that never occurs has no finite log η. It is an error, unless ``floor`` is given: every class then has at
    least that many counts (1 is a common choice). ``exponent`` flattens the counts: η ∝ counts^exponent, with 0.75 as
    in word2vec and 0 for uniform. With an exponent other than 1, scores learn log p(k|x)/η_k for that η.
    """
    counts = as_tensor(counts, "counts").double()
    check_floating(counts, "counts", "(K,)")
    check_weights(counts, "counts")
    if floor is not None:
        counts = counts.clamp(min=as_positive(floor, "floor"))
    empty = (counts == 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(
            f"counts: {len(empty)} of {len(counts)} classes have no count ({str(empty[:5])[1:-1]}), so −log η is "
            "infinite; pass floor=1 to give every class at least one count"
        )
    powers = counts ** as_not_negative(exponent, "exponent")
    return (powers / powers.sum()).to(torch.get_default_dtype())


def from_labels(labels: Tensor, num_classes: int, floor: float | None = None, ignore_index: int = -100) -> Tensor:
    """η from the training labels, of any shape. See :func:`from_counts` for ``floor``."""
    labels = as_tensor(labels, "labels").flatten()
    return from_counts(SoftTargets.from_labels(labels, num_classes, ignore_index=ignore_index).class_mass(), floor)


def from_loader(
    loader: Iterable[Any], num_classes: int, floor: float | None = None, ignore_index: int = -100
) -> Tensor:
    """η from one pass over a loader whose batches end in their targets: labels, (N, K) probabilities or SoftTargets.

    If you have the labels, :func:`from_labels` is faster.
    """
    counts = torch.zeros(as_whole(num_classes, "num_classes"), dtype=torch.float64)
    for batch in loader:
        targets = batch[-1] if isinstance(batch, (tuple, list)) else batch
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            targets = targets.flatten()
        try:
            counts += as_soft_targets(targets, num_classes, ignore_index=ignore_index).class_mass(torch.float64).cpu()
        except (ValueError, TypeError) as error:
            raise ValueError(f"a batch of loader must end in targets of {num_classes} classes: {error}") from None
    if not bool(counts.any()):
        raise ValueError("loader gave no targets")
    return from_counts(counts, floor)


class FixedNoise(KeepsPrecision):
    """Given class probabilities (K,), none of them zero."""

    log_eta: Tensor
    edges: Tensor | None

    def __init__(self, probs: Tensor) -> None:
        super().__init__()
        try:
            check_distribution(probs, "noise_probs")
        except ValueError as error:
            raise ValueError(f"{error}; if these are class weights, write class_weight=...") from None
        if values_are_checked(probs) and bool((probs == 0).any()):
            raise ValueError(
                f"noise_probs is zero for class {int((probs == 0).nonzero()[0])}, so −log η is infinite; floor it, for "
                "example with noise.from_counts(counts, floor=1)"
            )
        self.register_buffer("log_eta", probs.detach().to(at_least_float32(probs.dtype)).log())
        self.register_buffer("edges", None, persistent=False)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.edges = None  # those of the η before

    @property
    def num_classes(self) -> int:
        return len(self.log_eta)

    def extra_repr(self) -> str:
        return f"{self.num_classes} classes"

    def log_probs(
        self, classes: Tensor | None = None, smoothing: float = 0.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        """log η of ``classes``; of all classes, (K,), if None; ``smoothing`` ε: of (1 − ε)·η + ε/K."""
        logs = self.log_eta if classes is None else self.log_eta[classes]
        logs = logs if smoothing == 0 else ((1 - smoothing) * logs.exp() + smoothing / self.num_classes).log()
        return logs.to(dtype or logs.dtype)

    def sample(self, n: int, generator: torch.Generator | None = None, smoothing: float = 0.0) -> Tensor:
        """n labels drawn from η, each replaced by a uniform one with probability ``smoothing``.

        O(n·log K); the first call takes O(K) for the cumulative sums that are kept.
        """
        if self.edges is None:
            self.edges = class_edges(self.log_eta.exp())
        labels = draw_by_edges(self.edges, n, generator)
        if smoothing == 0:
            return labels
        replaced = torch.rand(labels.shape, device=labels.device, **drawn_by(generator)) < smoothing
        return torch.where(replaced, draw_uniform(self.num_classes, labels.shape, labels.device, generator), labels)


class RunningNoise(KeepsPrecision):
    """η estimated from the targets that a loss is trained on.

    ``noise_probs="running"``, the default of the contrastive losses, makes one for each loss. Pass one object to
    several losses to share the estimate, or one with ``decay`` below 1 for a stream whose class frequencies drift.
    Targets are counted as they are contrasted, smoothed and drawn. The estimate of a step uses the batches before it;
    before the first batch it is uniform. An update costs O(N·S) for N targets of S pairs, whatever K; a draw O(log K).

    Args:
        num_classes: K; None: that of the first batch.
        decay: factor on the weight of earlier batches at each new batch; 1 never forgets.
        prior: pseudo-count of every class, which keeps unseen classes above zero.

    >>> running = RunningNoise(4, prior=1.0)
    >>> running.update(SoftTargets.from_labels(torch.tensor([0, 0, 0, 1]), 4))
    >>> running.probs()
    tensor([0.5000, 0.2500, 0.1250, 0.1250], dtype=torch.float64)
    """

    counts: Tensor | None  # (K,) float64
    more: Tensor  # (2,): the count of uniform backgrounds, and of everything
    tree: Tensor | None  # sums of counts over halves of the classes, for draws

    def __init__(self, num_classes: int | None = None, decay: float = 1.0, prior: float = 0.1) -> None:
        super().__init__()
        self.decay, self.prior = as_positive(decay, "decay"), as_positive(prior, "prior")
        if self.decay > 1:
            raise ValueError(f"decay must be in (0, 1], got {decay}")
        self.given = None if num_classes is None else as_whole(num_classes, "num_classes")
        # No buffers: averages of models, DDP and meta devices would mix, send or lose them before the first batch.
        self._start(self.given, torch.device("cpu"))

    def _start(self, num_classes: int | None, device: torch.device, sums: Tensor | None = None) -> None:
        self.counts = self.tree = None
        self.unit = 1.0  # of a count in ``counts``: grows instead of all counts shrinking
        if sums is None and num_classes is not None:
            sums = torch.zeros(num_classes + 2, dtype=torch.float64, device=device)
        if sums is not None:
            self.counts, self.more = sums[:-2].clone(), sums[-2:].clone()

    def extra_repr(self) -> str:
        classes = self.num_classes or "not seen yet"
        return f"num_classes={classes}, decay={self.decay:g}, prior={self.prior:g}"

    @property
    def num_classes(self) -> int | None:
        """K, None before the first batch of an estimate made without it."""
        return None if self.counts is None else len(self.counts)

    def fit(self, num_classes: int, device: torch.device) -> None:
        """Take the number of classes and the device of a first batch; later, check them."""
        counts = self.counts
        if counts is not None and counts.shape[0] != num_classes:
            raise ValueError(
                f"the running noise has {self.num_classes} classes, but there are {num_classes} classes; "
                "losses of different classes need a noise each"
            )
        if counts is not None and counts.device == device:
            return
        with _normal_tensors():
            if counts is None or counts.is_meta:
                self._start(num_classes, device)
            else:
                self.counts, self.more, self.tree = counts.to(device), self.more.to(device), None

    @torch.no_grad()
    def update(self, targets: SoftTargets) -> None:
        """Take in a batch of targets. O(N·S); O(K) more for dense rows or a background that is not uniform."""
        if not isinstance(targets, SoftTargets):
            raise TypeError(f"targets must be SoftTargets, got {type(targets).__name__}")
        self.fit(targets.num_classes, targets.device)
        if targets.index is None or targets.smoothing_dist is not None:
            self.add_counts(targets.class_mass(torch.float64))
            return
        self._age()
        assert self.counts is not None
        weight = targets.counted(targets.pair_weight(torch.float64)).flatten() * self.unit
        classes, total = targets.index.flatten(), weight.sum()
        self.counts.index_add_(0, classes, weight)
        if targets.has_background:
            spread = targets.counted(targets.background_mass(torch.float64)).sum() * self.unit
            self.more[0].add_(spread)
            total = total + spread
        self.more[1].add_(total)
        if self.tree is not None:
            node = classes + len(self.tree) // 2
            for _ in range((len(self.tree) // 2).bit_length()):
                self.tree.index_add_(0, node, weight)
                node = node // 2

    def add_counts(self, counts: Tensor) -> None:
        """Take in a batch of which only the class counts (K,) are known. O(K)."""
        self.fit(counts.shape[0], counts.device)
        self._age()
        assert self.counts is not None
        counts = counts.detach() if self.unit == 1 else counts.detach() * self.unit
        self.counts.add_(counts)
        self.more[1].add_(counts.sum())
        if self.tree is not None:
            self.tree = None

    def _age(self) -> None:
        """Let earlier batches lose weight: new counts gain it instead, and rarely all are scaled down."""
        if self.decay < 1:  # an assignment to a Module's attribute takes as long as a sum
            self.unit /= self.decay
        if self.unit > 1e100:
            self.set_extra_state(self.get_extra_state())

    def log_probs(
        self, classes: Tensor | None = None, smoothing: float = 0.0, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """log η of ``classes``; of all classes, (K,), if None. ``smoothing`` changes nothing: targets seen have it."""
        counts, even, total = self._estimate(classes)
        return (counts + even).to(dtype).log_().sub_(total.log() if isinstance(total, Tensor) else math.log(total))

    def probs(self) -> Tensor:
        """The current estimate of η, (K,), in float64."""
        counts, even, total = self._estimate(None)
        return (counts + even) / total

    def _estimate(self, classes: Tensor | None) -> tuple[Tensor, float | Tensor, float | Tensor]:
        """Counts of ``classes``, what each class has besides, and the sum over all classes."""
        counts = self.counts
        if counts is None:
            raise ValueError("the running noise has seen no targets and was made without num_classes")
        more = self.more  # numbers of Python are added faster than tensors
        spread, total = more.tolist() if more.is_cpu and values_are_readable(more) else more
        prior, size = self.prior * self.unit, counts.shape[0]
        return counts if classes is None else counts[classes], spread / size + prior, total + prior * size

    def sample(self, n: int, generator: torch.Generator | None = None, smoothing: float = 0.0) -> Tensor:
        """n labels drawn from the estimate. O(n·log K) by a tree of sums, which the first call builds."""
        counts, _, total = self._estimate(None)
        if self.tree is None:
            with _normal_tensors():
                self.tree = _sums_over_halves(counts)
        leaves = len(self.tree) // 2
        u = torch.rand(n, dtype=torch.float64, device=counts.device, **drawn_by(generator)) * total
        node = torch.ones(n, dtype=torch.long, device=counts.device)
        is_uniform = u >= self.tree[1]
        for _ in range(leaves.bit_length() - 1):
            node = 2 * node
            right = u >= self.tree[node]
            u = torch.where(right, u - self.tree[node], u)
            node = node + right
        labels = (node - leaves).clamp_(max=len(counts) - 1)
        return torch.where(is_uniform, draw_uniform(len(counts), labels.shape, counts.device, generator), labels)

    def get_extra_state(self) -> Tensor:
        """One tensor (K + 2,), so that files of tensors alone can hold it; empty before the first batch."""
        if self.counts is None:
            return torch.zeros(0, dtype=torch.float64, device="cpu")
        return torch.cat([self.counts, self.more]) / self.unit

    def set_extra_state(self, state: Tensor) -> None:
        device = state.device if self.counts is None or self.counts.is_meta else self.counts.device
        if len(state) == 0:
            self._start(self.given, device)
            return
        if self.given is not None and len(state) != self.given + 2:
            raise ValueError(f"the saved noise has {len(state) - 2} classes, this one is for {self.given} classes")
        self._start(None, device, state.detach().to(device, torch.float64))


def _normal_tensors() -> AbstractContextManager[object]:
    """Tensors that are kept are no inference tensors, which training could not change."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():  # the compiler cannot ask
        return nullcontext()
    return torch.inference_mode(False)


def _sums_over_halves(counts: Tensor) -> Tensor:
    """A binary tree as an array: node i has the sum of nodes 2i and 2i + 1, the last half are the counts."""
    leaves = 1 << max(0, len(counts) - 1).bit_length()
    levels = [pad(counts, (0, leaves - len(counts)))]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0].view(-1, 2).sum(1))
    return torch.cat([counts.new_zeros(1), *levels])


Noise = FixedNoise | RunningNoise
"""η as a loss uses it: its logarithm at some classes, and labels drawn from it."""


def draw_labels(
    noise: Noise | None, n: int, like: SoftTargets, generator: torch.Generator | None, smoothing: float = 0.0
) -> Tensor:
    """n labels drawn from η, uniform if None, for targets such as ``like``."""
    if noise is None:
        return draw_uniform(like.num_classes, (n,), like.device, generator)
    return noise.sample(n, generator, smoothing)


def as_noise(noise_probs: Any) -> Noise | None:
    """``noise_probs`` of a loss as :class:`Noise`; None for uniform, which every contrast drops."""
    if isinstance(noise_probs, Noise):
        return noise_probs
    if isinstance(noise_probs, str):
        if noise_probs not in ("running", "uniform"):
            raise ValueError(f'noise_probs must be "running", "uniform" or a tensor (K,), got {noise_probs!r}')
        return RunningNoise() if noise_probs == "running" else None
    return None if noise_probs is None else FixedNoise(noise_probs)
