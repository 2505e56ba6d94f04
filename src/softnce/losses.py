"""The losses as Modules: options and buffers around the steps of :mod:`softnce.functional`.

All are called as ``loss(logits, targets)``, with logits (N, K) or (N, K, d₁, …) and targets that are labels,
probabilities or :class:`~softnce.SoftTargets`; from a table of label embeddings as
``loss.linear(features, table, targets)``.

**Noise.** Contrastive losses learn p(k|x)/η_k, so they need η, the class frequencies of the targets, to learn p(k|x).
By default they estimate it: ``noise_probs="running"``.

**Several ranks.** In training under ``torch.distributed`` the value is the mean over the rows of all ranks, however
uneven the batches, and DDP's average of the ranks' gradients is its gradient. Contrastive losses see the targets of all
ranks. Ranks with an empty batch still participate.

**Training** means here: the module is in training mode *and* gradients are enabled. Only then do ranks exchange
anything, and only then does a queue or a running noise take in the batch.

**Gradient accumulation.** Pass ``batch`` and ``own``: the losses of the parts add up to the batch's. Accelerate and
Lightning divide by the number of micro-batches; multiply the loss to undo it. A queue or a running noise takes in the
batch by ``loss.remember(batch)``, once per batch.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn

from softnce import functional
from softnce._core import options, ranks
from softnce._core.call import Call, Logits
from softnce._core.options import DECLARED, checked, takes
from softnce._core.table import Table
from softnce._inputs import KeepsPrecision, check_flag
from softnce.candidates import Candidates, GivenCandidates
from softnce.draws import Categorical
from softnce.functional import Targets
from softnce.noise import Noise, RunningNoise, as_noise
from softnce.targets import SoftTargets

if TYPE_CHECKING:
    from softnce._core.join import Joined

AVAILABLE = dist.is_available()
NoiseProbs = Tensor | RunningNoise | str | None


class ClassifierLoss(KeepsPrecision):
    """A loss on class scores: options, buffers, and the model p(k|x) ∝ exp(logit_k/τ) that it trains."""

    steps: ClassVar[Any]  # a function of functional.py: Call → Tensor
    call_options: ClassVar[type] = options.Call
    hard_labels_only: ClassVar[bool] = False
    is_contrast: ClassVar[bool] = False
    temperature: float | Tensor
    reduction: options.Reduction
    ignore_index: int
    process_group: Any
    class_weight: Tensor | None
    distributed: options.Distributed
    __call__: Callable[..., Tensor]  # nn.Module's returns Any

    def __init__(self, kind: type, given: dict[str, Any], noise_probs: NoiseProbs = None) -> None:
        super().__init__()
        chosen = {name: option.default for name, option in DECLARED[kind].items()} | checked(kind, given)
        for name, value in chosen.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, GivenCandidates(value) if isinstance(value, SoftTargets) else value)
        self._names = [name for name in chosen if name not in ("distributed", "process_group")]
        self.noise: Noise | None = as_noise(noise_probs)
        self._joined: Joined | None = None

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in self._names if name not in ("class_weight", "candidates")}
        if self.is_contrast and self.noise is None:
            shown["noise"] = "uniform"
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    @takes(options.ExcludingCall)
    def forward(self, logits: Tensor, targets: Targets, **given: Unpack[options.ExcludingCall]) -> Tensor:
        """The loss of ``targets``: labels, probabilities or SoftTargets for ``logits`` (N, K) or (N, K, d₁, …).

        Only InfoNCE and expected InfoNCE take ``exclude``.
        """
        return self._loss(Logits(logits), targets, dict(given))

    @takes(options.TableCall)
    def linear(self, features: Tensor, table: Tensor, targets: Targets, **given: Unpack[options.TableCall]) -> Tensor:
        """The same loss from ``features`` (N, d) or (N, L, d) and label embeddings ``table`` (K, d), without logits."""
        chosen = dict(given)
        return self._loss(functional.as_table(features, table, chosen), targets, chosen)

    def probabilities(self, logits: Tensor) -> Tensor:
        """p(k|x) ∝ exp(logit_k/τ), (N, K): the prediction of the trained model."""
        return functional.probabilities(logits, temperature=self.temperature)

    def against_classes(self, logits: Tensor, targets: Targets, *, sample_weight: Tensor | None = None) -> Tensor:
        """The cross-entropy of :meth:`probabilities` and the targets as given: one scale for every loss and batch size.

        A contrastive loss grows with log M, the number of candidates; validate with this instead. The loss's own label
        smoothing is not applied.
        """
        return functional.soft_target_cross_entropy(
            logits, targets, temperature=self.temperature, reduction=self.reduction, sample_weight=sample_weight,
            class_weight=self.class_weight, ignore_index=self.ignore_index,
        )  # fmt: skip

    def _loss(self, source: Logits | Table, targets: Targets, given: dict[str, Any]) -> Tensor:
        if given:
            given = checked(self.call_options, given, "argument")
        trains = self.training and torch.is_grad_enabled()
        exchange = self._exchange(source, given.get("batch") is not None) if trains else None
        chosen = {name: getattr(self, name) for name in self._names} | given
        call = Call(source, targets, chosen, self.noise, exchange, self.hard_labels_only, self.is_contrast)
        value: Tensor = type(self).steps(call)
        if trains and self.is_contrast:
            self._learn(call)
        return value

    def _learn(self, call: Call) -> None:
        """Take in the targets of a training step."""

    def _exchange(self, source: Logits | Table | SoftTargets, in_parts: bool = False) -> ranks.Exchange | None:
        """How ranks exchange in a training step, or None: in a call with scores, or of targets to :meth:`remember`."""
        if not (self.distributed and AVAILABLE and dist.is_initialized() and ranks.is_active(self.process_group)):
            return None
        from softnce._core.join import check_no_other_join

        scaling: ranks.Scaling = "sum" if self.distributed == "sum" else "mean"
        chosen = {"the loss": type(self).__name__, "noise_probs": self.noise or "uniform"}
        shared = ranks.in_words(chosen | {name: getattr(self, name) for name in self._names})
        if self._joined is None:
            check_no_other_join()
            return ranks.Exchange(self.process_group, scaling, options=shared)
        is_table, is_memory = isinstance(source, Table), isinstance(source, SoftTargets)
        call = ranks.LossCall(True, source.num_classes, is_table, in_parts, is_memory)
        return self._joined.begin(call, scaling, shared)


class SoftTargetCrossEntropy(ClassifierLoss):
    """−Σ_k α_k·log softmax(logits/τ)_k. As ``nn.CrossEntropyLoss``, and with SoftTargets, from logits or a table."""

    steps = staticmethod(functional.cross_entropy)

    @takes(options.ModuleCrossEntropy)
    def __init__(self, **given: Unpack[options.ModuleCrossEntropy]) -> None:
        super().__init__(options.ModuleCrossEntropy, dict(given))


class NLL(ClassifierLoss):
    """−log softmax(logits/τ)_y of hard labels y, from logits or a table."""

    steps = staticmethod(functional.cross_entropy)
    hard_labels_only = True

    @takes(options.ModuleNLL)
    def __init__(self, **given: Unpack[options.ModuleNLL]) -> None:
        super().__init__(options.ModuleNLL, dict(given))


class ContrastiveLoss(ClassifierLoss):
    """A loss that picks a row's target out of candidates: it has noise η, and may have a memory."""

    steps = staticmethod(functional.soft_target)
    is_contrast = True
    candidates: Candidates | None
    draw: Any = None
    label_smoothing: float = 0.0
    _last_batch: SoftTargets | None = None

    def remember(self, batch: SoftTargets, *, generator: torch.Generator | None = None) -> None:
        """Let the queue and the running noise take in a whole batch that was passed as ``batch`` with its parts.

        With ``draw``, pass a generator in the state that the parts got. A no-op without queue and running noise.
        """
        if not isinstance(batch, SoftTargets):
            raise TypeError(f"batch must be SoftTargets, got {type(batch).__name__}")
        self._last_batch = None
        whole = batch.smooth(self.label_smoothing).detach()
        whole = whole if self.draw is None else self.draw.alpha(whole, generator)
        uses_batch = isinstance(self.candidates, Candidates) and self.candidates.uses_batch
        if self.training and torch.is_grad_enabled() and (uses_batch or isinstance(self.noise, RunningNoise)):
            exchange = self._exchange(batch)
            whole = whole if exchange is None else exchange.gather(whole)[0]
        self._take_in(whole, None)

    def _learn(self, call: Call) -> None:
        batch: SoftTargets | None = call.options["batch"]
        if batch is None:
            self._take_in(call.batch, call.counts)
        elif isinstance(self.noise, RunningNoise):
            is_new = self._last_batch is not None and self._last_batch is not batch
            if is_new and not torch.compiler.is_compiling():
                warnings.warn(
                    "the running noise learns a batch that comes in parts by loss.remember(batch), once per batch; "
                    "so far it has not seen this one",
                    stacklevel=_level_of_user(),
                )
            self._last_batch = batch

    def _take_in(self, whole: SoftTargets, counts: Tensor | None) -> None:
        candidates, noise = self.candidates, self.noise
        if isinstance(candidates, Candidates):
            candidates.remember(whole)
        if isinstance(noise, RunningNoise):
            try:
                noise.update(whole) if counts is None else noise.add_counts(counts)
            except RuntimeError as error:
                if not torch._C._are_functorch_transforms_active():
                    raise
                raise RuntimeError(
                    "the running noise cannot take in a batch inside of torch.func: pass noise_probs, or call the loss "
                    "in eval mode and loss.noise.update(targets) outside"
                ) from error


class SoftTargetInfoNCE(ContrastiveLoss):
    """Pick each row's soft target out of the candidates; by default the batch's soft targets.

        ℓ = −σ(α) + log Σ_{c ∈ C} exp σ(c),   σ(c) = Σ_k c_k s_k,   s_k = logit_k/τ − log η_k

    Args:
        noise_probs: η: ``"running"`` estimates it from the targets seen, ``"uniform"`` or None, class probabilities
            (K,), or a :class:`~softnce.RunningNoise`. With ``label_smoothing`` a running noise estimates the smoothed
            targets' η, while given probabilities enter as they are: as in the paper, class frequencies not smoothed.

    >>> loss = SoftTargetInfoNCE(torch.tensor([0.5, 0.25, 0.25]), label_smoothing=0.1)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.1769)
    """

    @takes(options.ModuleSoftTarget)
    def __init__(self, noise_probs: NoiseProbs = "running", **given: Unpack[options.ModuleSoftTarget]) -> None:
        super().__init__(options.ModuleSoftTarget, dict(given), noise_probs)


class InfoNCE(ContrastiveLoss):
    """Pick each row's hard label out of the batch's labels: ℓ = −s_y + log Σ_{c ∈ C} exp s_{y_c}.

    Args:
        noise_probs: as :class:`SoftTargetInfoNCE`'s.
    """

    hard_labels_only = True
    call_options = options.ExcludingCall

    @takes(options.ModuleInfoNCE)
    def __init__(self, noise_probs: NoiseProbs = "running", **given: Unpack[options.ModuleInfoNCE]) -> None:
        super().__init__(options.ModuleInfoNCE, dict(given), noise_probs)


class SoftDistributionInfoNCE(ContrastiveLoss):
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels.

    Pass ``generator`` to the call to draw reproducibly.

    Args:
        noise_probs: as :class:`SoftTargetInfoNCE`'s. Given probabilities are the label frequencies before
            ``label_smoothing``, which smooths them together with the targets; a running noise sees the labels drawn.
    """

    @takes(options.ModuleSoftDistribution)
    def __init__(self, noise_probs: NoiseProbs = "running", **given: Unpack[options.ModuleSoftDistribution]) -> None:
        super().__init__(options.ModuleSoftDistribution, dict(given), noise_probs)
        self.draw = Categorical()
        self._names.append("draw")


class ExpectedInfoNCE(ContrastiveLoss):
    """InfoNCE summed over the label that each soft target could draw; see :func:`softnce.functional.expected_info_nce`.

        ℓ = Σ_k α_k log(1 + R/exp(s_k)),   R = Σ_{c ∈ C, c ≠ own} Σ_j c_j exp(s_j)

    The loss to use when soft targets meet many classes, or differ from sample to sample (a teacher, votes).

    Args:
        noise_probs: as :class:`SoftTargetInfoNCE`'s; given probabilities are the marginal of the targets before
            ``label_smoothing``.

    >>> loss = ExpectedInfoNCE(torch.tensor([0.5, 0.25, 0.25]), label_smoothing=0.1)
    >>> loss(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    tensor(1.0327)
    """

    steps = staticmethod(functional.expected)
    call_options = options.ExcludingCall

    @takes(options.ModuleExpected)
    def __init__(self, noise_probs: NoiseProbs = "running", **given: Unpack[options.ModuleExpected]) -> None:
        super().__init__(options.ModuleExpected, dict(given), noise_probs)


def _level_of_user() -> int:
    """The ``stacklevel`` at which a warning of the calling function names the user's line, not softnce's or torch's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("softnce", "torch"):
        frame, level = frame.f_back, level + 1
    return level


@contextmanager
def join(*joinables: Any, divide_by_initial_world_size: bool = True) -> Iterator[None]:
    """Train on ranks that have different numbers of batches: ``with softnce.join(model, loss):``.

    Ranks that have run out of batches take part in the exchanges of the others, so every step is that of one process on
    the batches of all ranks that still have one. Replaces ``with model.join():``, in which a loss that exchanges raises
    an error. All ranks enter and leave the context; at its end the losses' parameters, as the models', are those of a
    rank that had the most batches. Exchanges travel through the host's memory (gloo).

    Args:
        joinables: models wrapped by ``DistributedDataParallel``, other ``Joinable`` objects such as
            ``ZeroRedundancyOptimizer``, and the losses.
        divide_by_initial_world_size: as in ``DistributedDataParallel.join``. The steps are exact either way.

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
