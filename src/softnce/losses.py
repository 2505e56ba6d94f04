"""The losses as Modules: options and buffers around the steps of :mod:`softnce.functional`.

All are called as ``loss(logits, targets)``, with logits (N, K) or (N, K, d₁, …) and targets that are labels,
probabilities or :class:`~softnce.SoftTargets`; from a table of label embeddings as
``loss.linear(features, table, targets)``.

**Noise.** The contrastive losses learn p(k|x)/η_k, so they need η, the class frequencies of the targets, to learn
p(k|x). By default they estimate it from the targets they are trained on: ``noise_probs="running"``. Pass the
probabilities (K,) if you know them, or ``"uniform"`` for a class-balanced model.

**Several ranks.** In training under ``torch.distributed`` every loss returns the mean over the rows of all ranks,
however uneven the batches: the value shown is that mean, and the gradient is scaled so that DDP's average over ranks is
its gradient. Contrastive losses see the targets of all ranks. Ranks with an empty batch still participate.

**Training** means here: the module is in training mode *and* gradients are enabled. Only then do ranks exchange
anything, and only then does a queue or a running noise take in the batch.

**Gradient accumulation.** Pass ``batch`` and ``own``: the losses of the parts add up to the batch's. Accelerate and
Lightning divide by the number of micro-batches; multiply the loss to undo it. A queue or a running noise takes in the
batch by ``loss.remember(batch)``, once per batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from softnce import functional
from softnce._checks import check_flag
from softnce._core import options, ranks
from softnce._core.call import Call, Logits
from softnce._core.options import declared, resolve, takes
from softnce._core.table import Table
from softnce._precision import KeepsPrecision
from softnce.candidates import Candidates, GivenCandidates
from softnce.draws import Categorical
from softnce.noise import Noise, RunningNoise, as_noise
from softnce.targets import SoftTargets

if TYPE_CHECKING:
    from softnce._core.join import Joined


class ClassifierLoss(KeepsPrecision):
    """A loss on class scores: options, buffers, and the model p(k|x) ∝ exp(logit_k/τ) that it trains."""

    steps: ClassVar[Any]  # a function of functional.py: Call → Tensor
    call_options: ClassVar[type]
    hard_labels_only: ClassVar[bool] = False
    is_contrast: ClassVar[bool] = False
    temperature: float | Tensor
    reduction: options.Reduction
    ignore_index: int
    process_group: Any
    class_weight: Tensor | None
    distributed: options.Distributed
    noise: Noise | None
    __call__: Callable[..., Tensor]  # nn.Module's returns Any

    def __init__(self, kind: type, given: dict[str, Any]) -> None:
        super().__init__()
        chosen = resolve(kind, given)
        for name, value in chosen.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, GivenCandidates(value) if isinstance(value, SoftTargets) else value)
        self._names = [name for name in chosen if name not in ("distributed", "process_group")]
        self.noise = None
        self._joined: Joined | None = None

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in self._names if name not in ("class_weight", "candidates")}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    @property
    def label_smoothed(self) -> float:
        """ε of the option ``label_smoothing``; 0 for losses without it."""
        return float(getattr(self, "label_smoothing", 0.0))

    @takes(options.ExcludingCall)
    def forward(self, logits: Tensor, targets: Tensor | SoftTargets, **given: Unpack[options.ExcludingCall]) -> Tensor:
        """The loss of ``targets``: labels, probabilities or SoftTargets for ``logits`` (N, K) or (N, K, d₁, …).

        Only InfoNCE and expected InfoNCE take ``exclude``.
        """
        return self._loss(Logits(logits, self._exchanges()), targets, dict(given))

    def linear(
        self,
        features: Tensor,
        table: Tensor,
        targets: Tensor | SoftTargets,
        *,
        bias: Tensor | None = None,
        sparse: bool = False,
        cosine: bool = False,
        **given: Unpack[options.ExcludingCall],
    ) -> Tensor:
        """The same loss from ``features`` (N, d) or (N, L, d) and label embeddings ``table`` (K, d), without logits.

        See :func:`softnce.functional.linear_expected_info_nce` for ``bias``, ``sparse`` and ``cosine``.
        """
        sparse, cosine = check_flag(sparse, "sparse"), check_flag(cosine, "cosine")
        return self._loss(Table(features, table, bias, sparse, cosine, self._exchanges()), targets, dict(given))

    def probabilities(self, logits: Tensor) -> Tensor:
        """p(k|x) ∝ exp(logit_k/τ), (N, K): the prediction of the trained model."""
        return functional.probabilities(logits, temperature=self.temperature)

    def against_classes(
        self, logits: Tensor, targets: Tensor | SoftTargets, *, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The cross-entropy of :meth:`probabilities` and the targets as given: one scale for every loss and batch size.

        A contrastive loss grows with log M, the number of candidates; validate with this instead. The loss's own label
        smoothing is not applied.
        """
        return functional.soft_target_cross_entropy(
            logits, targets, temperature=self.temperature, reduction=self.reduction, sample_weight=sample_weight,
            class_weight=self.class_weight, ignore_index=self.ignore_index,
        )  # fmt: skip

    def _trains(self) -> bool:
        """The rule of the module docstring: the same on every rank, whatever its batch holds."""
        return self.training and torch.is_grad_enabled()

    def _exchanges(self) -> bool:
        return bool(self.distributed) and self._trains() and ranks.is_active(self.process_group)

    def _exchange(self, call: Callable[[], ranks.LossCall]) -> ranks.Exchange | None:
        """How ranks exchange in a call, or None."""
        if not self._exchanges():
            return None
        from softnce._core.join import check_no_other_join

        scaling: ranks.Scaling = "sum" if self.distributed == "sum" else "mean"
        shared = (("the loss", type(self).__name__), *((n, str(getattr(self, n))) for n in self._shared_names))
        if self._joined is not None:
            return self._joined.begin(call(), scaling)._replace(options=shared)
        check_no_other_join()
        return ranks.Exchange(self.process_group, scaling, options=shared)

    @property
    def _shared_names(self) -> list[str]:
        """Options that all ranks must have alike: numbers and words."""
        return [name for name in self._names if isinstance(getattr(self, name), (str, float, int, bool))]

    def _call(self, source: Logits | Table, targets: Tensor | SoftTargets, given: dict[str, Any]) -> Call:
        unknown = [name for name in given if name not in declared(self.call_options)]
        if unknown:
            raise TypeError(f"{type(self).__name__} was called with an unexpected argument {unknown[0]!r}")
        chosen = {name: getattr(self, name) for name in self._names} | resolve(self.call_options, given)
        exchange = self._exchange(
            lambda: ranks.LossCall(True, source.num_classes, isinstance(source, Table), chosen["batch"] is not None)
        )
        name = type(self).__name__ if self.hard_labels_only else ""
        return Call(source, targets, chosen, self.noise, exchange, name, self.is_contrast)

    def _loss(self, source: Logits | Table, targets: Tensor | SoftTargets, given: dict[str, Any]) -> Tensor:
        value: Tensor = type(self).steps(self._call(source, targets, given))
        return value


class SoftTargetCrossEntropy(ClassifierLoss):
    """−Σ_k α_k·log softmax(logits/τ)_k. As ``nn.CrossEntropyLoss``, and with SoftTargets, from logits or a table."""

    steps = staticmethod(functional.cross_entropy)
    call_options = options.ContrastCall  # a generator is accepted, so that every loss is called alike

    @takes(options.ModuleCrossEntropy)
    def __init__(self, **given: Unpack[options.ModuleCrossEntropy]) -> None:
        super().__init__(options.ModuleCrossEntropy, dict(given))


class NLL(ClassifierLoss):
    """−log softmax(logits/τ)_y of hard labels y, from logits or a table."""

    steps = staticmethod(functional.cross_entropy)
    call_options = options.ContrastCall  # a generator is accepted, so that every loss is called alike
    hard_labels_only = True

    @takes(options.ModuleNLL)
    def __init__(self, **given: Unpack[options.ModuleNLL]) -> None:
        super().__init__(options.ModuleNLL, dict(given))


class ContrastiveLoss(ClassifierLoss):
    """A loss that picks a row's target out of candidates: it has noise η, and may have a memory."""

    is_contrast = True
    candidates: Candidates | None
    steps = staticmethod(functional.contrast_targets)
    call_options = options.ContrastCall

    def __init__(self, kind: type, given: dict[str, Any], noise_probs: Any) -> None:
        super().__init__(kind, given)
        self.noise = as_noise(noise_probs)
        self._last_batch: SoftTargets | None = None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}{', noise=uniform' if self.noise is None else ''}"

    def remember(self, batch: SoftTargets, *, generator: torch.Generator | None = None) -> None:
        """Let the queue and the running noise take in a whole batch that was passed as ``batch`` with its parts.

        With ``draw``, pass a generator in the state that the parts got. A no-op without queue and running noise.
        """
        if not isinstance(batch, SoftTargets):
            raise TypeError(f"batch must be SoftTargets, got {type(batch).__name__}")
        self._last_batch = None
        whole = batch.smooth(self.label_smoothed).detach()
        draw = getattr(self, "draw", None)
        if draw is not None:
            whole = draw.alpha(whole, generator)
        call = partial(ranks.LossCall, True, batch.num_classes, is_memory=True)
        exchange = self._exchange(call) if self._remembers else None
        if exchange is not None:
            whole, _ = exchange.gather(whole)
        self._take_in(whole, None)

    @property
    def _remembers(self) -> bool:
        uses_batch = isinstance(self.candidates, Candidates) and self.candidates.uses_batch
        return isinstance(self.noise, RunningNoise) or uses_batch

    def _take_in(self, whole: SoftTargets, counts: Tensor | None) -> None:
        if isinstance(self.candidates, Candidates):
            self.candidates.remember(whole)
        if isinstance(self.noise, RunningNoise):
            try:
                self.noise.update(whole) if counts is None else self.noise.add_counts(counts)
            except RuntimeError as error:
                if not torch._C._are_functorch_transforms_active():
                    raise
                raise RuntimeError(
                    "the running noise cannot take in a batch inside of torch.func: pass noise_probs, or call the loss "
                    "in eval mode and loss.noise.update(targets) outside"
                ) from error

    def _loss(self, source: Logits | Table, targets: Tensor | SoftTargets, given: dict[str, Any]) -> Tensor:
        call = self._call(source, targets, given)
        value: Tensor = type(self).steps(call)
        if not self._trains():
            return value
        if call.options["batch"] is None:
            self._take_in(call.batch, call.counts)
        elif isinstance(self.noise, RunningNoise):
            self._expect_to_remember(call.options["batch"])
        return value

    def _expect_to_remember(self, batch: SoftTargets) -> None:
        if self._last_batch is not None and self._last_batch is not batch:
            warnings.warn(
                "the running noise learns a batch that comes in parts by loss.remember(batch), once per batch; "
                "so far it has not seen this one",
                stacklevel=4,
            )
        self._last_batch = batch


class SoftTargetInfoNCE(ContrastiveLoss):
    """Pick each row's soft target out of the candidates; by default the batch's soft targets.

        ℓ = −σ(α) + log Σ_{c ∈ C} exp σ(c),   σ(c) = Σ_k c_k s_k,   s_k = logit_k/τ − log η_k

    Args:
        noise_probs: η: ``"running"`` estimates it from the targets seen, ``"uniform"`` or None, class probabilities
            (K,), or a :class:`~softnce.RunningNoise`.

    >>> loss = SoftTargetInfoNCE(torch.tensor([0.5, 0.25, 0.25]), label_smoothing=0.1)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.1769)
    """

    @takes(options.ModuleSoftTarget)
    def __init__(
        self, noise_probs: Tensor | RunningNoise | str | None = "running", **given: Unpack[options.ModuleSoftTarget]
    ) -> None:
        super().__init__(options.ModuleSoftTarget, dict(given), noise_probs)


class InfoNCE(ContrastiveLoss):
    """Pick each row's hard label out of the batch's labels: ℓ = −s_y + log Σ_{c ∈ C} exp s_{y_c}.

    Args:
        noise_probs: as :class:`SoftTargetInfoNCE`'s.
    """

    hard_labels_only = True
    call_options = options.ExcludingCall

    @takes(options.ModuleInfoNCE)
    def __init__(
        self, noise_probs: Tensor | RunningNoise | str | None = "running", **given: Unpack[options.ModuleInfoNCE]
    ) -> None:
        super().__init__(options.ModuleInfoNCE, dict(given), noise_probs)


class SoftDistributionInfoNCE(ContrastiveLoss):
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels.

    Pass ``generator`` to the call to draw reproducibly.

    Args:
        noise_probs: as :class:`SoftTargetInfoNCE`'s. Given probabilities are the label frequencies before
            ``label_smoothing``, which smooths them together with the targets; a running noise sees the labels drawn.
    """

    @takes(options.ModuleSoftDistribution)
    def __init__(
        self,
        noise_probs: Tensor | RunningNoise | str | None = "running",
        **given: Unpack[options.ModuleSoftDistribution],
    ) -> None:
        super().__init__(options.ModuleSoftDistribution, dict(given), noise_probs)
        self.draw = Categorical()
        self._names.append("draw")


class ExpectedInfoNCE(ContrastiveLoss):
    """InfoNCE summed over the label that each soft target could draw, instead of drawing it.

        ℓ = Σ_k α_k log(1 + R/exp(s_k)),   R = Σ_{c ∈ C, c ≠ own} Σ_j c_j exp(s_j)

    The loss to use when soft targets meet many classes, or differ from sample to sample (a teacher, votes); see
    :func:`softnce.functional.expected_info_nce`.

    Args:
        noise_probs: as :class:`SoftTargetInfoNCE`'s; given probabilities are the marginal of the targets before
            ``label_smoothing``.

    >>> loss = ExpectedInfoNCE(torch.tensor([0.5, 0.25, 0.25]), label_smoothing=0.1)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    tensor(1.0327)
    """

    steps = staticmethod(functional.contrast_expected)
    call_options = options.ExcludingCall

    @takes(options.ModuleExpected)
    def __init__(
        self, noise_probs: Tensor | RunningNoise | str | None = "running", **given: Unpack[options.ModuleExpected]
    ) -> None:
        super().__init__(options.ModuleExpected, dict(given), noise_probs)


@contextmanager
def join(*joinables: Any, divide_by_initial_world_size: bool = True) -> Iterator[None]:
    """Train on ranks that have different numbers of batches: ``with softnce.join(model, loss):``.

    Ranks that have run out of batches take part in the exchanges of the others, so nobody waits in vain, and every step
    is that of one process on the batches of all ranks that still have one. Use it in place of ``with model.join():``,
    which knows DDP's exchange alone; there a loss that exchanges raises an error.

    Args:
        joinables: models wrapped by ``DistributedDataParallel``, other ``Joinable`` objects such as
            ``ZeroRedundancyOptimizer``, and the losses.
        divide_by_initial_world_size: as in ``DistributedDataParallel.join``. The steps are exact either way.

    All ranks enter and leave the context. At its end the losses' parameters, as the models', are those of a rank that
    had the most batches; queues and running noises have followed all steps. Exchanges travel through the host's memory
    (gloo).

    >>> model, loss = nn.Linear(2, 3), NLL()
    >>> with join(loss):  # on one process, or without DDP, a no-op
    ...     loss(model(torch.ones(4, 2)), torch.arange(4) % 3).backward()
    """
    check_flag(divide_by_initial_world_size, "divide_by_initial_world_size")
    if not joinables:
        raise ValueError("joinables must hold at least one loss or model, got none")
    losses = [found for found in joinables if isinstance(found, ClassifierLoss)]
    others = [found for found in joinables if not isinstance(found, ClassifierLoss)]
    exchanging = [loss for loss in losses if loss.distributed and ranks.is_active(loss.process_group)]
    if not exchanging and not others:
        yield
        return
    from softnce._core.join import joined

    with joined(exchanging, others, divide_by_initial_world_size):
        yield
