"""The losses as modules: they hold options and buffers, and call the same pipeline as :mod:`softnce.functional`.

All are called as ``loss(logits, targets)``, with logits (N, K) or (N, K, d₁, …) and targets that are labels,
probabilities or :class:`~softnce.SoftTargets`. See :mod:`softnce.functional` for the arguments they share.

**Several ranks.** In training under ``torch.distributed`` every loss returns the mean over the rows of all ranks,
however uneven the batches: the value shown is that mean, and the gradient is scaled so that DDP's average over ranks is
its gradient. Contrastive losses see the targets of all ranks. Ranks with an empty batch still participate.

**Training** means here: the module is in training mode *and* gradients are enabled. Only then do ranks exchange
anything, and only then does a queue or a running noise take in the batch; so a validation under ``torch.no_grad()`` is
local, also where nobody called ``loss.eval()``.

Two options of every loss say how ranks work together:

- ``distributed``: who puts the gradients of the ranks together. ``"mean"``: they are averaged, as DDP, FSDP, Accelerate
  and Lightning do; the value shown is the mean over all ranks. ``"sum"``: they are added up, or averaged after the loss
  was multiplied by the number of ranks, as Hugging Face's ``Trainer`` does with a ``compute_loss_func``; the value is
  this rank's share. ``False``: every rank keeps to itself.
- ``process_group``: the ranks that exchange, None for all.

With gradient accumulation, pass ``batch`` and ``own`` (see :mod:`softnce.functional`): the losses of the parts add up
to the batch's. If a framework divides every loss by the number of parts (Accelerate, Lightning), multiply it by that
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable

from softnce import _ranks, functional
from softnce._checks import as_whole, check_flag
from softnce._pipeline import Contrast, compute
from softnce._precision import KeepsPrecision
from softnce._rows import (
    OthersForm,
    Reduction,
    check_chunk_size,
    check_class_weight,
    check_label_smoothing,
    check_others,
    check_reduction,
    check_temperature,
)
from softnce._scores.logits import Logits
from softnce._scores.table import Table
from softnce._uneven import Call, Event, Uneven, check_no_other_join
from softnce.candidates import Candidates
from softnce.draws import Categorical, Draw
from softnce.noise import RunningNoise, log_noise
from softnce.targets import SoftTargets

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Distributed = Literal["mean", "sum", False]
"""How the gradients of the ranks are put together; False: every rank keeps to itself."""


class ClassifierLoss(KeepsPrecision):
    """What all losses on class scores have: a temperature, weights, a reduction, and the model they train."""

    contrast: ClassVar[Contrast] = "classes"
    hard_labels_only: ClassVar[bool] = False
    class_weight: Tensor | None
    temperature: float | Tensor
    __call__: Callable[..., Tensor]  # nn.Module's returns Any

    def __init__(
        self,
        *,
        temperature: float | Tensor = 1.0,
        reduction: Reduction = "mean",
        class_weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        distributed: Distributed = "mean",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        check_class_weight(class_weight)
        temperature = check_temperature(temperature)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            self.register_buffer("temperature", temperature)
        else:
            self.temperature = temperature  # a Parameter registers itself and is learned
        self.register_buffer("class_weight", class_weight)
        self.reduction: Reduction = check_reduction(reduction)
        self.label_smoothing = check_label_smoothing(label_smoothing)
        self.ignore_index = as_whole(ignore_index, "ignore_index", None)
        self.distributed: Distributed = _check_distributed(distributed)
        self.process_group = process_group
        self._uneven: Uneven | None = None

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing:g}"

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | SoftTargets,
        *,
        sample_weight: Tensor | None = None,
        batch: SoftTargets | None = None,
        own: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss of ``targets``; arguments as in :mod:`softnce.functional`.

        With ``batch`` and ``own`` the rows are a part of a larger batch, and the losses of its parts add up to the loss
        of the batch. A queue or a running noise then takes in nothing by itself: call :meth:`ContrastiveLoss.remember`
        once per batch.
        """
        return self._loss(Logits(logits, self._exchanges()), targets, sample_weight, batch, own, generator)

    def probabilities(self, logits: Tensor) -> Tensor:
        """p(k|x) ∝ exp(logit_k/τ), (N, K): what the trained model predicts."""
        return functional.probabilities(logits, temperature=self.temperature)

    def against_classes(
        self, logits: Tensor, targets: Tensor | SoftTargets, *, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The cross-entropy of :meth:`probabilities` and the targets as given: one scale for every loss and batch size.

        A contrastive loss grows with log M, the number of candidates; validate with this instead. The loss's own label
        smoothing is not applied.
        """
        return functional.soft_target_cross_entropy(
            logits,
            targets,
            temperature=self.temperature,
            reduction=self.reduction,
            sample_weight=sample_weight,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
        )

    def _trains(self) -> bool:
        """The rule of the module docstring: the same on every rank, whatever its batch holds."""
        return self.training and torch.is_grad_enabled()

    def _exchanges(self) -> bool:
        return bool(self.distributed) and self._trains() and _ranks.is_active(self.process_group)

    def _exchange(self, call: Call) -> _ranks.Exchange | None:
        """How ranks exchange in this call, or None."""
        if not self._exchanges():
            return None
        scaling: _ranks.Scaling = "sum" if self.distributed == "sum" else "mean"
        if self._uneven is not None:
            return self._uneven.begin(call, scaling)
        check_no_other_join()
        return _ranks.Exchange(self.process_group, scaling)

    def _play(self, call: Call) -> None:
        """Take part in a call of other ranks without a batch of one's own."""
        device = next((x.device for x in (*self.parameters(), *self.buffers())), torch.device("cpu"))
        none = SoftTargets.from_labels(torch.zeros(0, dtype=torch.long, device=device), call.num_classes)
        generator = torch.Generator(device)
        if call.event == Event.MEMORY:
            self._remember(none, generator)
            return
        batch, own = (none, none.labels) if call.event == Event.PART else (None, None)
        source: Logits | Table
        if call.from_table:
            table = torch.zeros(call.num_classes, 1, device=device)
            source = Table(torch.zeros(0, 1, device=device), table, allow_empty=True)
        else:
            source = Logits(torch.zeros(0, call.num_classes, device=device), allow_empty=True)
        value = self._loss(source, none, None, batch, own, generator)
        if isinstance(self.temperature, Tensor) and self.temperature.requires_grad:  # its gradient is exchanged too
            torch.autograd.grad(value.sum(), self.temperature)

    def _remember(self, batch: SoftTargets, generator: torch.Generator | None) -> None:
        """See :meth:`ContrastiveLoss.remember`."""

    def _loss(
        self,
        source: Logits | Table,
        targets: Tensor | SoftTargets,
        sample_weight: Tensor | None,
        batch: SoftTargets | None,
        own: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        return compute(
            source, targets, contrast=self.contrast,
            hard_labels_of=type(self).__name__ if self.hard_labels_only else None,
            temperature=self.temperature, reduction=self.reduction, sample_weight=sample_weight,
            class_weight=self.class_weight, label_smoothing=self.label_smoothing, ignore_index=self.ignore_index,
            batch=batch, own=own, generator=generator, exchange=self._exchange(_call(source, batch)),
        )[0]  # fmt: skip


class SoftTargetCrossEntropy(ClassifierLoss):
    """−Σ_k α_k·log softmax(logits/τ)_k. As ``nn.CrossEntropyLoss``, and with SoftTargets.

    Args:
        temperature: τ, a positive number or an ``nn.Parameter`` to be learned.
        reduction, class_weight, label_smoothing, ignore_index: as in :mod:`softnce.functional`.
        distributed, process_group: as in :mod:`softnce.losses`.
    """


class NLL(ClassifierLoss):
    """−log softmax(logits/τ)_y of hard labels y. Arguments as :class:`SoftTargetCrossEntropy`'s, without smoothing."""

    hard_labels_only = True

    def __init__(
        self,
        *,
        temperature: float | Tensor = 1.0,
        reduction: Reduction = "mean",
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        distributed: Distributed = "mean",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            temperature=temperature,
            reduction=reduction,
            class_weight=class_weight,
            ignore_index=ignore_index,
            distributed=distributed,
            process_group=process_group,
        )


class ContrastiveLoss(ClassifierLoss):
    """What the contrastive losses have besides: noise, candidates, a draw, and a form from a table of embeddings."""

    contrast: ClassVar[Contrast] = "geometric"
    log_noise: Tensor | None

    def __init__(
        self,
        noise_probs: Tensor | RunningNoise | None = None,
        *,
        temperature: float | Tensor = 1.0,
        candidates: Candidates | SoftTargets | None = None,
        draw: Draw | None = None,
        remove_accidental_hits: bool = False,
        chunk_size: int | None = None,
        reduction: Reduction = "mean",
        class_weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        distributed: Distributed = "mean",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            temperature=temperature,
            reduction=reduction,
            class_weight=class_weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            distributed=distributed,
            process_group=process_group,
        )
        if candidates is not None and not isinstance(candidates, (Candidates, SoftTargets)):
            raise TypeError(
                "candidates must be a softnce.Candidates, such as NoiseCandidates(1024), or SoftTargets, "
                f"got {type(candidates).__name__}"
            )
        if draw is not None and not isinstance(draw, Draw):
            raise TypeError(f"draw must be one of softnce.draws, got {type(draw).__name__}")
        self.candidates = candidates
        self.draw = draw
        self.others: OthersForm | None = None
        self.remove_accidental_hits = remove_accidental_hits
        self.chunk_size = check_chunk_size(chunk_size)
        self.running_noise = noise_probs if isinstance(noise_probs, RunningNoise) else None
        self.register_buffer("log_noise", None if isinstance(noise_probs, RunningNoise) else log_noise(noise_probs))

    def extra_repr(self) -> str:
        noise = "uniform" if self.log_noise is None and self.running_noise is None else "given"
        drawn = "" if self.draw is None else f", draw={self.draw!r}"
        return f"{super().extra_repr()}, noise={noise}{drawn}"

    def linear(
        self,
        features: Tensor,
        table: Tensor,
        targets: Tensor | SoftTargets,
        *,
        bias: Tensor | None = None,
        sparse: bool = False,
        cosine: bool = False,
        sample_weight: Tensor | None = None,
        batch: SoftTargets | None = None,
        own: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The same loss from ``features`` (N, d) and label embeddings ``table`` (K, d), without logits.

        See :func:`softnce.functional.linear_soft_target_info_nce`.
        """
        source = Table(features, table, bias, sparse, cosine, self._exchanges())
        return self._loss(source, targets, sample_weight, batch, own, generator)

    def remember(self, batch: SoftTargets, *, generator: torch.Generator | None = None) -> None:
        """Let the queue and the running noise take in a whole batch that was passed as ``batch`` with its parts.

        With ``draw``, pass a generator in the state that the parts got. Does nothing without queue and running noise.
        """
        if not isinstance(batch, SoftTargets):
            raise TypeError(f"batch must be SoftTargets, got {type(batch).__name__}")
        self._remember(batch, generator)

    def _remember(self, batch: SoftTargets, generator: torch.Generator | None) -> None:
        whole = batch.smooth(self.label_smoothing).detach()
        if self.draw is not None:
            whole = self.draw.alpha(whole, generator)
        if self._remembers and (exchange := self._exchange(Call(Event.MEMORY, batch.num_classes))) is not None:
            whole, _ = exchange.gather(whole)
        self._take_in(whole)

    @property
    def _remembers(self) -> bool:
        return self.running_noise is not None or (
            isinstance(self.candidates, Candidates) and self.candidates.uses_batch
        )

    def _take_in(self, whole: SoftTargets) -> None:
        if isinstance(self.candidates, Candidates):
            self.candidates.remember(whole)
        if self.running_noise is not None:
            self.running_noise.update(whole)

    def _loss(
        self,
        source: Logits | Table,
        targets: Tensor | SoftTargets,
        sample_weight: Tensor | None,
        batch: SoftTargets | None,
        own: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        noise = self.log_noise if self.running_noise is None else self.running_noise.probs().log()
        value, whole = compute(
            source, targets, contrast=self.contrast,
            hard_labels_of=type(self).__name__ if self.hard_labels_only else None,
            log_noise=noise, temperature=self.temperature, candidates=self.candidates, draw=self.draw,
            others=self.others, remove_accidental_hits=self.remove_accidental_hits, chunk_size=self.chunk_size,
            reduction=self.reduction, sample_weight=sample_weight, class_weight=self.class_weight,
            label_smoothing=self.label_smoothing, ignore_index=self.ignore_index, batch=batch, own=own,
            generator=generator, exchange=self._exchange(_call(source, batch)),
            noise_is_running=self.running_noise is not None,
        )  # fmt: skip
        if batch is None and self._trains():
            self._take_in(whole)
        return value


class SoftTargetInfoNCE(ContrastiveLoss):
    """Pick each row's soft target out of the candidates; by default the batch's soft targets.

        ℓ = −σ(α) + log Σ_{c ∈ C} exp σ(c),   σ(c) = Σ_k c_k s_k,   s_k = logit_k/τ − log η_k

    Args:
        noise_probs: η, class probabilities (K,), None for uniform, or a :class:`~softnce.RunningNoise`.
        temperature: τ, a positive number or an ``nn.Parameter`` to be learned.
        candidates: what to contrast with, see :mod:`softnce.candidates`; None: the batch, or what ``draw`` supplies.
        draw: how a soft target becomes the α that is picked, see :mod:`softnce.draws`; None: as it is.
        remove_accidental_hits: leave out other candidates that equal the row's own target.
        chunk_size: rows worked on at a time; by default as many as the cache holds.
        reduction, class_weight, label_smoothing, ignore_index: as in :mod:`softnce.functional`. Smoothing that all
            targets share cancels: ``label_smoothing=ε`` is exactly the temperature τ/(1 − ε) with noise η^(1−ε).
        distributed, process_group: as in :mod:`softnce.losses`.

    >>> loss = SoftTargetInfoNCE(torch.tensor([0.5, 0.25, 0.25]), label_smoothing=0.1)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.1769)
    """


class InfoNCE(ContrastiveLoss):
    """Pick each row's hard label out of the batch's labels.

    Arguments as :class:`SoftTargetInfoNCE`'s, without smoothing and draw.
    """

    hard_labels_only = True

    def __init__(
        self,
        noise_probs: Tensor | RunningNoise | None = None,
        *,
        temperature: float | Tensor = 1.0,
        candidates: Candidates | SoftTargets | None = None,
        remove_accidental_hits: bool = False,
        chunk_size: int | None = None,
        reduction: Reduction = "mean",
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        distributed: Distributed = "mean",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            noise_probs,
            temperature=temperature,
            candidates=candidates,
            remove_accidental_hits=remove_accidental_hits,
            chunk_size=chunk_size,
            reduction=reduction,
            class_weight=class_weight,
            ignore_index=ignore_index,
            distributed=distributed,
            process_group=process_group,
        )


class SoftDistributionInfoNCE(ContrastiveLoss):
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels.

    Arguments as :class:`SoftTargetInfoNCE`'s, whose ``draw`` is ``draws.Categorical()`` here; pass ``generator`` to the
    call to draw reproducibly. ``noise_probs`` are the label frequencies before ``label_smoothing``, which smooths them
    together with the targets; a :class:`~softnce.RunningNoise` has seen smoothed targets and is used as it is.
    """

    def __init__(
        self,
        noise_probs: Tensor | RunningNoise | None = None,
        *,
        temperature: float | Tensor = 1.0,
        candidates: Candidates | SoftTargets | None = None,
        remove_accidental_hits: bool = False,
        chunk_size: int | None = None,
        reduction: Reduction = "mean",
        class_weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        distributed: Distributed = "mean",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            noise_probs,
            temperature=temperature,
            candidates=candidates,
            draw=Categorical(),
            remove_accidental_hits=remove_accidental_hits,
            chunk_size=chunk_size,
            reduction=reduction,
            class_weight=class_weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            distributed=distributed,
            process_group=process_group,
        )


class ExpectedInfoNCE(ContrastiveLoss):
    """InfoNCE summed over the label that each soft target could draw, instead of drawing it.

        ℓ = Σ_k α_k log(1 + R/exp(s_k)),   R = Σ_{c ∈ C, c ≠ own} Σ_j c_j exp(s_j)

    The loss to use when soft targets meet many classes, or differ from sample to sample (a teacher, votes); see
    :func:`softnce.functional.expected_info_nce`.

    Args:
        noise_probs: η, the marginal of the targets (K,), None for uniform, or a :class:`~softnce.RunningNoise`.
            ``label_smoothing`` smooths it with the targets, except for a running noise, which has seen smoothed ones.
        temperature: τ, a positive number or an ``nn.Parameter`` to be learned.
        candidates: what to contrast with, see :mod:`softnce.candidates`; None: the batch, and from logits K further
            draws from η in expectation, ``BatchCandidates() + NoiseCandidates(K)``.
        others: ``"mean"``: candidates count with all their classes; ``"drawn"``: one label is drawn from each; None:
            ``"mean"`` from logits, ``"drawn"`` from a table.
        chunk_size: rows worked on at a time; by default as many as the cache holds.
        reduction, class_weight, label_smoothing, ignore_index: as in :mod:`softnce.functional`. Smoothing does not
            cancel here: it smooths, as in cross-entropy.
        distributed, process_group: as in :mod:`softnce.losses`.

    >>> loss = ExpectedInfoNCE(torch.tensor([0.5, 0.25, 0.25]), label_smoothing=0.1)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    tensor(1.0327)
    """

    contrast: ClassVar[Contrast] = "arithmetic"

    def __init__(
        self,
        noise_probs: Tensor | RunningNoise | None = None,
        *,
        temperature: float | Tensor = 1.0,
        candidates: Candidates | SoftTargets | None = None,
        others: OthersForm | None = None,
        chunk_size: int | None = None,
        reduction: Reduction = "mean",
        class_weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        distributed: Distributed = "mean",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            noise_probs,
            temperature=temperature,
            candidates=candidates,
            chunk_size=chunk_size,
            reduction=reduction,
            class_weight=class_weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            distributed=distributed,
            process_group=process_group,
        )
        self.others = check_others(others)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, others={self.others!r}"


@contextmanager
def join(*joinables: Joinable | ClassifierLoss, divide_by_initial_world_size: bool = True) -> Iterator[None]:
    """Train on ranks that have different numbers of batches: ``with softnce.join(model, loss):``.

    Ranks that have run out of batches take part in what the others exchange, so nobody waits in vain, and every step is
    that of one process on the batches of all ranks that still have one. Use it in place of
    ``with model.join():``, which knows DDP's exchange alone; there a loss that exchanges raises an error.

    Args:
        joinables: models wrapped by ``DistributedDataParallel``, other ``Joinable`` objects such as
            ``ZeroRedundancyOptimizer``, and the losses.
        divide_by_initial_world_size: as in ``DistributedDataParallel.join``. The steps are exact either way.

    All ranks enter and leave the context. At its end the losses' parameters, as the models', are those of a rank that
    had the most batches; queues and running noises have followed all steps. What a loss exchanges travels through the
    host's memory (gloo).

    >>> model, loss = nn.Linear(2, 3), NLL()
    >>> with join(loss):  # on one process, or without DDP, nothing to do
    ...     loss(model(torch.ones(4, 2)), torch.arange(4) % 3).backward()
    """
    counts_all = check_flag(divide_by_initial_world_size, "divide_by_initial_world_size")
    if not joinables:
        raise ValueError("joinables must hold at least one loss or model, got none")
    losses = [found for found in joinables if isinstance(found, ClassifierLoss)]
    others = [found for found in joinables if not isinstance(found, ClassifierLoss)]
    for other in others:
        if not isinstance(other, Joinable):
            raise TypeError(
                "joinables must be models wrapped by DistributedDataParallel, other torch Joinables or losses of "
                f"softnce, got {type(other).__name__}"
            )
    exchanging = [loss for loss in losses if loss.distributed and _ranks.is_active(loss.process_group)]
    for loss in exchanging:
        if loss._uneven is not None:
            raise ValueError(f"{type(loss).__name__} is in a join context already")
        loss._uneven = Uneven(loss.process_group, counts_all)
    try:
        with Join(others, divide_by_initial_world_size=counts_all) if others else nullcontext():
            yield
            for loss in exchanging:
                if loss._uneven is not None:
                    loss._uneven.leave(loss._play, list(loss.parameters()))
        for loss in exchanging:
            if loss._uneven is not None:
                loss._uneven.close()
    finally:
        for loss in exchanging:
            loss._uneven = None


def _call(source: Logits | Table, batch: SoftTargets | None) -> Call:
    return Call(Event.BATCH if batch is None else Event.PART, source.num_classes, isinstance(source, Table))


def _check_distributed(distributed: object) -> Distributed:
    if distributed is True:
        return "mean"
    if distributed not in ("mean", "sum", False):
        raise ValueError(f"distributed must be 'mean', 'sum' or False, got {distributed!r}")
    return distributed
