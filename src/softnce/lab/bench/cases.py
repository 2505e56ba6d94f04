"""Every loss that is timed, on inputs they share: a batch after MixUp with label smoothing.

A case turns inputs into a step: forward and backward, and for label tables with a sparse optimiser its step too.
"""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce import ExpectedInfoNCE, SoftTargetInfoNCE, SoftTargets, functional
from softnce.lab.bench import baselines
from softnce.lab.bench.sampled_softmax import sampled_softmax

Step = Callable[[], object]
Family = Literal["soft", "labels", "table"]
FLOAT = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Size:
    """N rows, M candidates (the batch itself where None), K classes, d features for label tables, and their device."""

    rows: int
    classes: int
    candidates: int | None = None
    dim: int = 256
    device: str = "cpu"

    @property
    def m(self) -> int:
        return self.rows if self.candidates is None else self.candidates

    def __post_init__(self) -> None:
        if self.candidates is not None and self.candidates < self.rows:
            raise ValueError(f"candidates hold the batch, so {self.candidates} must be at least the {self.rows} rows")


class Inputs:
    """What a step is given. Each part is made when first asked for."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        self.size = size
        self._seed = seed

    def _generator(self, offset: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed + offset)

    def _normal(self, rows: int, columns: int, offset: int) -> Tensor:
        return torch.randn(rows, columns, generator=self._generator(offset)).to(self.size.device)

    @cached_property
    def logits(self) -> Tensor:
        return self._normal(self.size.rows, self.size.classes, 1).requires_grad_()

    @cached_property
    def all_labels(self) -> Tensor:
        """(M,), the batch's own first."""
        return torch.randint(self.size.classes, (self.size.m,), generator=self._generator(2)).to(self.size.device)

    @cached_property
    def labels(self) -> Tensor:
        return self.all_labels[: self.size.rows]

    @cached_property
    def all_targets(self) -> SoftTargets:
        """M mixed pairs, smoothed, the batch's own first."""
        plain = SoftTargets.from_labels(self.all_labels, self.size.classes, smoothing=0.1)
        return plain.mix(plain.flip(0), torch.rand(self.size.m, generator=self._generator(3)).to(self.size.device))

    @cached_property
    def targets(self) -> SoftTargets:
        return self.all_targets[: self.size.rows]

    @cached_property
    def one_rate(self) -> Tensor:
        """Probabilities of a batch mixed by one λ, as timm and torchvision return them."""
        plain = SoftTargets.from_labels(self.labels, self.size.classes, smoothing=0.1)
        return plain.mix(plain.flip(0), 0.3).dense()

    @cached_property
    def teacher(self) -> Tensor:
        """Probabilities that are no pairs."""
        return (3 * self._normal(self.size.rows, self.size.classes, 6)).softmax(1)

    @cached_property
    def all_probabilities(self) -> Tensor:
        return self.all_targets.dense()

    @cached_property
    def probabilities(self) -> Tensor:
        return self.all_probabilities[: self.size.rows]

    @cached_property
    def noise(self) -> Tensor:
        """η: class frequencies that fall by a factor of ten from the first class to the last."""
        falling = torch.logspace(0, -1, self.size.classes, device=self.size.device)
        return falling / falling.sum()

    @cached_property
    def features(self) -> Tensor:
        return self._normal(self.size.rows, self.size.dim, 4).requires_grad_()

    @cached_property
    def table(self) -> Tensor:
        """Label embeddings (K, d)."""
        rows = self._normal(self.size.classes, self.size.dim, 5)
        return rows.div_(math.sqrt(self.size.dim)).requires_grad_()

    @cached_property
    def optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam([self.table], lr=1e-4)


@dataclass(frozen=True)
class Case:
    """One loss.

    Attributes:
        name: shown in tables.
        family: what its ratio is taken against (:data:`REFERENCE`).
        loss: from the inputs, a function of the leaves that returns a scalar.
        bytes: least memory a step needs beside its inputs; steps that need too much are not tried.
        is_ours: whether the loss is the library's.
        is_compiled: through ``torch.compile``.
        takes_step: with the sparse optimiser's step.
        needs: a module that must be installed.
    """

    name: str
    family: Family
    loss: Callable[[Inputs], Callable[..., Tensor]]
    bytes: Callable[[Size], float]
    is_ours: bool = False
    is_compiled: bool = False
    takes_step: bool = False
    needs: str | None = None

    def step(self, inputs: Inputs) -> Step:
        """Forward and backward of one batch; nothing stays but what an optimiser keeps."""
        loss = self.loss(inputs)
        if self.is_compiled:
            loss = torch.compile(_with_own_code(loss), dynamic=False, fullgraph=True)
        leaves = (inputs.features, inputs.table) if self.family == "table" else (inputs.logits,)
        optimiser = inputs.optimiser if self.takes_step else None
        on_host = inputs.size.device == "cpu"

        def step() -> None:
            loss(*leaves).backward()
            if optimiser is not None:
                optimiser.step()
            for leaf in leaves:
                leaf.grad = None
            if not on_host:
                torch.accelerator.synchronize()

        return step

    @property
    def is_installed(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def _with_own_code(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A copy with a code object of its own: torch.compile keeps what it compiled by code object, searches through all
    of it at every call, and gives up after eight."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


CHUNK = 64
"""Rows of a chunk in the case that bounds its memory."""
REFERENCE: dict[Family, str] = {
    "soft": "F.cross_entropy, probabilities",
    "labels": "F.cross_entropy, labels",
    "table": "F.linear + F.cross_entropy, labels",
}


def _timm(inputs: Inputs) -> Callable[[Tensor], Tensor]:
    from softnce.lab.models import torchvision_operators  # noqa: F401
    from timm.loss import SoftTargetCrossEntropy  # isort: skip

    loss = SoftTargetCrossEntropy()
    return lambda x: loss(x, inputs.probabilities)


def _published(inputs: Inputs) -> Callable[[Tensor], Tensor]:
    candidates = None if inputs.size.candidates is None else inputs.all_probabilities
    return lambda x: baselines.published_soft_target_info_nce(
        x, inputs.probabilities, inputs.noise, candidates=candidates
    )


def _unchecked(inputs: Inputs) -> Callable[[Tensor], Tensor]:
    return lambda x: baselines.unchecked_info_nce(x, inputs.labels, inputs.noise)


def _cross_entropy(targets: Callable[[Inputs], Tensor]) -> Callable[[Inputs], Callable[[Tensor], Tensor]]:
    def loss(inputs: Inputs) -> Callable[[Tensor], Tensor]:
        given = targets(inputs)  # made here: the compiler cannot enter a cached property
        return lambda x: F.cross_entropy(x, given)

    return loss


def _ours(targets: Callable[[Inputs], Tensor | SoftTargets], **options: Any) -> Callable[[Inputs], Callable]:
    """The library's loss on these targets, against the batch or against M candidates that begin with it."""

    def loss(inputs: Inputs) -> Callable[[Tensor], Tensor]:
        given = targets(inputs)
        if inputs.size.candidates is None:
            criterion = SoftTargetInfoNCE(inputs.noise, **options)
            return lambda x: criterion(x, given)
        dense = isinstance(given, Tensor) and given.is_floating_point()
        candidates = SoftTargets.from_dense(inputs.all_probabilities) if dense else inputs.all_targets
        own = torch.arange(inputs.size.rows, device=inputs.size.device)
        return lambda x: functional.soft_target_info_nce(
            x, given, inputs.noise, candidates=candidates, own=own, **options
        )

    return loss


def _expected(targets: Callable[[Inputs], Tensor | SoftTargets]) -> Callable[[Inputs], Callable]:
    def loss(inputs: Inputs) -> Callable[[Tensor], Tensor]:
        given, criterion = targets(inputs), ExpectedInfoNCE(inputs.noise)
        return lambda x: criterion(x, given)

    return loss


def _ours_from_table(inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
    if inputs.size.candidates is None:
        criterion = SoftTargetInfoNCE(inputs.noise)
        return lambda z, y: criterion.linear(z, y, inputs.targets, sparse=True)
    candidates, own = inputs.all_targets, torch.arange(inputs.size.rows, device=inputs.size.device)
    return lambda z, y: functional.linear_soft_target_info_nce(
        z, y, inputs.targets, inputs.noise, candidates=candidates, own=own, sparse=True
    )


def _sampled(inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
    negatives = torch.randint(inputs.size.classes, (inputs.size.m,), generator=torch.Generator().manual_seed(6))
    negatives = negatives.to(inputs.size.device)
    index, weight = inputs.targets.index, inputs.targets.pair_weight() / 0.9  # its normaliser takes no smoothing
    assert index is not None
    return lambda z, y: sampled_softmax(z, y, index, weight, negatives, sparse=True)


def _logits(size: Size, copies: float) -> float:
    return copies * FLOAT * size.rows * size.classes


def _linear_cross_entropy() -> list[Case]:
    """torch's own loss from embeddings and a table; new in torch 2.13."""
    if not hasattr(F, "linear_cross_entropy"):
        return []
    return [
        Case(
            "F.linear_cross_entropy, labels",
            "table",
            lambda i: lambda z, y: F.linear_cross_entropy(z, y, i.labels),
            lambda s: _logits(s, 3),
        ),
        Case(
            "F.linear_cross_entropy by 256 rows, labels",
            "table",
            # Chunks of 256 rows: the fastest setting found, and twice as fast as torch's automatic choice.
            lambda i: (
                lambda z, y: F.linear_cross_entropy(
                    z, y, i.labels, options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=256)
                )
            ),
            lambda s: 1.0 * FLOAT * s.classes * (s.dim + 256),
        ),
    ]


_EAGER = [
    Case(REFERENCE["soft"], "soft", _cross_entropy(lambda i: i.probabilities), lambda s: _logits(s, 3)),
    Case("timm SoftTargetCrossEntropy", "soft", _timm, lambda s: _logits(s, 3), needs="timm"),
    Case(
        "NT-Xent of logits and probabilities",
        "soft",
        lambda i: lambda x: baselines.nt_xent(x, i.probabilities),
        lambda s: _logits(s, 3),
    ),
    Case("published N×M×K formulation", "soft", _published, lambda s: 2.0 * FLOAT * s.rows * s.m * s.classes),
    Case("softnce, probabilities", "soft", _ours(lambda i: i.probabilities), lambda s: _logits(s, 2), is_ours=True),
    Case("softnce, MixUp pairs", "soft", _ours(lambda i: i.targets), lambda s: _logits(s, 1), is_ours=True),
    Case(
        f"softnce, MixUp pairs, chunk_size={CHUNK}",
        "soft",
        _ours(lambda i: i.targets, chunk_size=CHUNK),
        lambda s: _logits(s, 1),
        is_ours=True,
    ),
    *(
        Case(name, "soft", loss, lambda s: _logits(s, 2), is_ours=True)
        for name, loss in {
            "softnce, probabilities of one λ": _ours(lambda i: i.one_rate),
            "softnce, a teacher's rows": _ours(lambda i: i.teacher),
            "softnce expected, probabilities": _expected(lambda i: i.probabilities),
            "softnce expected, MixUp pairs": _expected(lambda i: i.targets),
            "softnce expected, a teacher's rows": _expected(lambda i: i.teacher),
        }.items()
    ),
    Case(REFERENCE["labels"], "labels", _cross_entropy(lambda i: i.labels), lambda s: _logits(s, 2)),
    Case("InfoNCE, fewest operations", "labels", _unchecked, lambda s: 2.0 * FLOAT * s.rows * (s.classes + s.m)),
    Case("softnce, labels", "labels", _ours(lambda i: i.labels), lambda s: _logits(s, 2), is_ours=True),
    Case(
        "softnce, smoothed labels",
        "labels",
        _ours(lambda i: i.labels, label_smoothing=0.1),
        lambda s: _logits(s, 2),
        is_ours=True,
    ),
    Case("softnce expected, labels", "labels", _expected(lambda i: i.labels), lambda s: _logits(s, 2), is_ours=True),
    Case(
        REFERENCE["table"],
        "table",
        lambda i: lambda z, y: F.cross_entropy(F.linear(z, y), i.labels),
        lambda s: _logits(s, 3),
    ),
    Case(
        "F.linear + F.cross_entropy, probabilities",
        "table",
        lambda i: lambda z, y: F.cross_entropy(F.linear(z, y), i.probabilities),
        lambda s: _logits(s, 5),
    ),
    *_linear_cross_entropy(),
    Case("sampled softmax with log Q, pairs, SparseAdam", "table", _sampled, lambda s: 0.0, takes_step=True),
    Case("softnce.linear, pairs", "table", _ours_from_table, lambda s: 0.0, is_ours=True),
    Case("softnce.linear, pairs, SparseAdam", "table", _ours_from_table, lambda s: 0.0, is_ours=True, takes_step=True),
]
_COMPILED = (
    REFERENCE["soft"],
    "softnce, probabilities",
    "softnce, MixUp pairs",
    REFERENCE["labels"],
    "softnce, labels",
)
CASES: dict[str, Case] = {case.name: case for case in _EAGER}
CASES |= {f"{name}, compiled": replace(CASES[name], name=f"{name}, compiled", is_compiled=True) for name in _COMPILED}
