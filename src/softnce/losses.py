"""The losses as modules: they hold options and buffers, and leave the mathematics to functions.

All are called as ``loss(logits, targets)``, with logits (N, K) or (N, K, d₁, …) and targets that are labels,
probabilities or :class:`~softnce.SoftTargets`. See :mod:`softnce.functional` for the arguments they share.

**Several ranks.** In training under ``torch.distributed`` every loss returns the mean over the rows of all ranks,
however uneven the batches: the value shown is that mean, and the gradient is scaled so that DDP's average over ranks is
its gradient. Contrastive losses see the targets of all ranks. A rank without rows joins in. In ``eval()`` no rank waits
for another. ``distributed=False`` keeps a rank to itself always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softnce import distributed as ranks
from softnce import draws, functional
from softnce.arguments import (
    blank_ignored,
    check_candidates,
    check_chunk_size,
    check_class_weight,
    check_hard,
    check_own,
    check_reduction,
    check_temperature,
    divide,
    reduce,
    row_weight,
    rows_of_features,
    rows_of_logits,
    rows_of_targets,
    total_weight,
)
from softnce.candidates import BatchCandidates, Candidates, ClassCandidates
from softnce.contrast import class_scores, contrast, cross_entropy
from softnce.linear import linear_contrast, linear_cross_entropy
from softnce.noise import RunningNoise, log_noise
from softnce.targets import SoftTargets
from softnce.validation import KeepsPrecision, as_number

Picked = tuple[list[SoftTargets], Tensor | None]
"""Groups of candidates, and the positions of the rows' own targets among them."""


class ClassifierLoss(KeepsPrecision):
    """What all losses on class logits have: a temperature, weights, a reduction, and the model they train."""

    class_weight: Tensor | None
    temperature: float | Tensor
    hard_labels_only = False

    def __init__(
        self,
        temperature: float | Tensor = 1.0,
        *,
        reduction: str = "mean",
        class_weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        distributed: bool = True,
    ) -> None:
        super().__init__()
        label_smoothing = as_number(label_smoothing, "label_smoothing", "a number in [0, 1]")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
        if label_smoothing and self.hard_labels_only:
            raise ValueError(f"{type(self).__name__} takes hard labels and no label_smoothing, got {label_smoothing}")
        check_class_weight(class_weight)
        temperature = check_temperature(temperature)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            self.register_buffer("temperature", temperature)
        else:
            self.temperature = temperature  # a Parameter registers itself and is learned
        self.register_buffer("class_weight", class_weight)
        self.reduction = check_reduction(reduction)
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        self.distributed = distributed

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing:g}"

    def probabilities(self, logits: Tensor) -> Tensor:
        """p(k|x) ∝ exp(logit_k/τ), (N, K): what the trained model predicts."""
        return functional.probabilities(logits, self.temperature)

    def against_classes(self, logits: Tensor, targets: Tensor | SoftTargets, weight: Tensor | None = None) -> Tensor:
        """The cross-entropy of :meth:`probabilities` and the targets as given: one scale for every loss and batch size.

        A contrastive loss grows with log M, the number of candidates; validate with this instead. The loss's own label
        smoothing has no part in it.
        """
        return functional.soft_target_cross_entropy(
            logits,
            targets,
            self.temperature,
            self.reduction,
            weight=weight,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
        )

    def _talks(self) -> bool:
        return self.training and self.distributed and ranks.is_active()

    def _rows(self, logits: Tensor, targets: Tensor | SoftTargets) -> tuple[Tensor, SoftTargets, torch.Size]:
        targets = self._accept(targets)
        logits, shape = rows_of_logits(logits, allow_empty=self._talks())
        soft = rows_of_targets(targets, logits, shape, self.label_smoothing, self.ignore_index)
        return blank_ignored(logits, soft), soft, shape

    def _temperature(self) -> float | Tensor:
        """τ, whose gradient is averaged over the ranks that talk, as DDP averages the model's."""
        temperature = check_temperature(self.temperature)
        if isinstance(temperature, Tensor) and temperature.requires_grad and self._talks():
            return ranks.average_gradient(temperature)
        return temperature

    def _accept(self, targets: Tensor | SoftTargets) -> Tensor | SoftTargets:
        return check_hard(targets, type(self).__name__) if self.hard_labels_only else targets

    def _reduce(
        self,
        inputs: Tensor,
        temperature: float | Tensor,
        losses: Tensor,
        weight: Tensor | None,
        shape: torch.Size,
        total: Tensor | None,
    ) -> Tensor:
        """The reduction over the rows of this rank or, when ranks talk, of all of them."""
        if self.reduction == "none" or not self._talks():
            return reduce(losses, weight, self.reduction, shape, total)
        world = torch.distributed.get_world_size()
        total = total_weight(len(losses), weight, inputs) if total is None else total
        # The sum of nothing ties a rank without rows to its model, whose gradients DDP waits for; 0·τ likewise.
        mine = reduce(losses, weight, "sum", shape) + inputs[:0].sum() + 0.0 * temperature
        everyone = ranks.all_sum(torch.stack([mine.detach(), total.to(mine.dtype)]))
        if self.reduction == "mean":
            mine, shown = divide(mine, everyone[1]), divide(everyone[0], everyone[1])
        else:
            shown = everyone[0]
        mine = world * mine
        return mine + (shown - mine).detach()


class SoftTargetInfoNCE(ClassifierLoss):
    r"""Pick each row's soft target out of the candidates; by default the batch's soft targets.

    .. math:: \ell = -\log \frac{e^{\sigma(\alpha)}}{\sum_{c \in C} e^{\sigma(c)}}, \qquad
              \sigma(c) = \sum_k c_k \left(\text{logit}_k / \tau - \log \eta_k\right)

    Args:
        noise_probs: η, class probabilities (K,), None for uniform, or a :class:`~softnce.noise.RunningNoise`.
        temperature: τ, a positive number or an ``nn.Parameter`` to be learned.
        candidates: what to contrast with, see :mod:`softnce.candidates`; None: the batch, or what ``draw`` supplies.
        draw: how a soft target becomes the α that is picked, see :mod:`softnce.draws`; None: as it is.
        remove_accidental_hits: leave out other candidates that equal the row's own target.
        chunk_size: rows worked on at a time; by default as many as the cache holds.
        reduction, class_weight, label_smoothing, ignore_index: as in :mod:`softnce.functional`.
        distributed: whether ranks exchange targets and means in training.

    >>> loss = SoftTargetInfoNCE(torch.tensor([0.5, 0.25, 0.25]), label_smoothing=0.1)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.1769)
    """

    log_noise: Tensor | None

    def __init__(
        self,
        noise_probs: Tensor | RunningNoise | None = None,
        temperature: float | Tensor = 1.0,
        candidates: Candidates | None = None,
        *,
        draw: draws.Draw | None = None,
        remove_accidental_hits: bool = False,
        chunk_size: int | None = None,
        reduction: str = "mean",
        class_weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        distributed: bool = True,
    ) -> None:
        super().__init__(
            temperature,
            reduction=reduction,
            class_weight=class_weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            distributed=distributed,
        )
        if candidates is not None and not isinstance(candidates, Candidates):
            raise TypeError(f"candidates must be a softnce.Candidates, got {type(candidates).__name__}")
        if draw is not None and not isinstance(draw, draws.Draw):
            raise TypeError(f"draw must be one of softnce.draws, got {type(draw).__name__}")
        self.candidates = BatchCandidates() if candidates is None else candidates
        self.uses_drawn_noise = candidates is None  # where a draw supplies it
        self.draw = draw
        self.remove_accidental_hits = remove_accidental_hits
        self.rows_seen = 0  # of a batch that comes in micro-batches
        self.chunk_size = check_chunk_size(chunk_size)
        self.running_noise = noise_probs if isinstance(noise_probs, RunningNoise) else None
        self.register_buffer("log_noise", None if isinstance(noise_probs, RunningNoise) else log_noise(noise_probs))

    def extra_repr(self) -> str:
        noise = "uniform" if self.log_noise is None and self.running_noise is None else "given"
        drawn = "" if self.draw is None else f", draw={self.draw!r}"
        return f"{super().extra_repr()}, noise={noise}{drawn}"

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | SoftTargets,
        weight: Tensor | None = None,
        *,
        batch: SoftTargets | None = None,
        own: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss of ``targets``; ``weight`` (N,) weighs the samples.

        Gradient accumulation is exact when each micro-batch is contrasted with the whole batch: pass the whole batch's
        targets as ``batch`` and the positions of this micro-batch's rows in it as ``own``. The mean is then over the
        whole batch, and the micro-batches' losses add up to it. A queue takes the batch in when all of its rows have
        come. Draws and sample weights do not go with it.
        """
        logits, soft, shape = self._rows(logits, targets)

        def losses(
            temperature: float | Tensor, noise: Tensor | None, alpha: SoftTargets, pick: Picked | None
        ) -> Tensor:
            if pick is None:
                return cross_entropy(class_scores(logits, temperature, noise), alpha)
            return contrast(logits, temperature, noise, alpha, *pick, self.remove_accidental_hits, self.chunk_size)

        return self._loss(losses, logits, soft, shape, weight, batch, own, generator)

    def linear(
        self,
        features: Tensor,
        table: Tensor,
        targets: Tensor | SoftTargets,
        weight: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        sparse: bool = False,
        cosine: bool = False,
        batch: SoftTargets | None = None,
        own: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The same loss from ``features`` (N, d) and label embeddings ``table`` (K, d), without logits.

        See :func:`softnce.functional.linear_soft_target_info_nce`.
        """
        features, soft, shape = rows_of_features(
            features, table, bias, self._accept(targets), self.label_smoothing, self.ignore_index, self._talks()
        )

        def losses(
            temperature: float | Tensor, noise: Tensor | None, alpha: SoftTargets, pick: Picked | None
        ) -> Tensor:
            if pick is None:  # class vertices: all logits are needed
                return linear_cross_entropy(features, table, bias, temperature, noise, alpha, sparse, cosine)
            return linear_contrast(
                features, table, bias, temperature, noise, alpha, *pick, self.remove_accidental_hits, self.chunk_size,
                sparse, cosine,
            )  # fmt: skip

        return self._loss(losses, features, soft, shape, weight, batch, own, generator)

    def _loss(
        self,
        losses: Callable[[float | Tensor, Tensor | None, SoftTargets, Picked | None], Tensor],
        inputs: Tensor,
        soft: SoftTargets,
        shape: torch.Size,
        weight: Tensor | None,
        batch: SoftTargets | None,
        own: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw, find candidates, score by ``losses``, reduce."""
        temperature, noise, soft = self._temperature(), self._noise(soft.num_classes), soft.detach()
        alpha, drawn_noise = soft, None
        if self.draw is not None:
            alpha = self.draw.alpha(soft, generator)
            drawn_noise = self.draw.noise(len(soft), noise, soft.num_classes, soft.device, generator)
            temperature, noise = temperature / self.draw.scale, None if noise is None else noise * self.draw.scale
        weights = functional.contrast_weight(alpha, shape, weight, self.class_weight)
        if batch is None:
            if own is not None:
                raise ValueError("own names rows of batch, so it needs batch")
            whole, position, is_last = alpha, torch.arange(len(alpha), device=alpha.device), True
            total = None if weights is None else total_weight(len(alpha), weights, inputs)
        else:
            if own is None or self.draw is not None or weight is not None:
                raise ValueError("batch needs own, the positions of the rows in it, and allows neither draw nor weight")
            check_candidates(batch, own, len(soft), soft.num_classes)
            whole, position = batch.smooth(self.label_smoothing).detach(), own
            check_own(whole, own, soft)
            self.rows_seen += len(own)
            is_last = self.rows_seen >= len(batch)
            self.rows_seen = 0 if is_last else self.rows_seen
            rows = functional.contrast_weight(whole, torch.Size([len(whole)]), None, self.class_weight)
            total = total_weight(len(whole), rows, inputs)

        if self._talks() and (self.candidates.uses_batch or self.running_noise is not None):
            whole, offset = ranks.gather_targets(whole)
            position = position + offset
        pick: Picked | None
        if isinstance(self.candidates, ClassCandidates) and self.candidates.are_plain_vertices:
            pick = None
        elif self.uses_drawn_noise and drawn_noise is not None:
            pick = [drawn_noise], None
        else:
            pick = self.candidates(whole, position, generator)
        each = losses(temperature, noise, alpha, pick)
        if self.training and is_last:
            self.candidates.remember(whole)
            if self.running_noise is not None:
                self.running_noise.update(whole)
        return self._reduce(inputs, temperature, each, weights, shape, total)

    def _noise(self, num_classes: int) -> Tensor | None:
        noise = self.log_noise if self.running_noise is None else self.running_noise.probs().log()
        if noise is not None and len(noise) != num_classes:
            raise ValueError(f"noise_probs has {len(noise)} entries, but logits have {num_classes} classes")
        return noise


class InfoNCE(SoftTargetInfoNCE):
    """Pick each row's hard label out of the batch's labels. Arguments as :class:`SoftTargetInfoNCE`'s."""

    hard_labels_only = True


class SoftDistributionInfoNCE(SoftTargetInfoNCE):
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels.

    Arguments as :class:`SoftTargetInfoNCE`'s; pass ``generator`` to the call to draw reproducibly.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, draw=draws.Categorical(), **kwargs)


class SoftTargetCrossEntropy(ClassifierLoss):
    """−Σ_k α_k·log softmax(logits/τ)_k. As ``nn.CrossEntropyLoss``, and with SoftTargets.

    Args:
        temperature: τ, a positive number or an ``nn.Parameter`` to be learned.
        reduction, class_weight, label_smoothing, ignore_index: as in :mod:`softnce.functional`.
        distributed: whether ranks exchange means in training.
    """

    def forward(self, logits: Tensor, targets: Tensor | SoftTargets, weight: Tensor | None = None) -> Tensor:
        logits, soft, shape = self._rows(logits, targets)
        check_class_weight(self.class_weight, soft.num_classes)
        temperature = self._temperature()
        losses = cross_entropy(class_scores(logits, temperature), soft, self.class_weight)
        weights = row_weight(soft, shape, weight)
        total = functional.cross_entropy_total(losses, soft, weights, self.class_weight)
        return self._reduce(logits, temperature, losses, weights, shape, total)


class NLL(SoftTargetCrossEntropy):
    """−log softmax(logits/τ)_y of hard labels y. Arguments as :class:`SoftTargetCrossEntropy`'s."""

    hard_labels_only = True
