"""One call of a loss: the arguments, validated once, and the steps that all losses share.

    targets → (draw) → candidates → columns → evaluate

``functional.py`` has the losses written in these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softnce._core.options import DEFAULTS
from softnce._core.table import Columns, Scores, Table
from softnce._inputs import (
    at_least_float32,
    check_places,
    check_tensor,
    check_weights,
    full_precision,
    values_are_checked,
)
from softnce.candidates import Candidates, GivenCandidates
from softnce.noise import FixedNoise, Noise, RunningNoise, draw_labels
from softnce.targets.soft_targets import LABELS, SoftTargets, as_soft_targets

if TYPE_CHECKING:
    from softnce._core.ranks import Exchange

OWN_TOLERANCE = 8 * torch.finfo(torch.bfloat16).eps
"""Relative tolerance when ``own`` is checked: dense rows may have been rounded to half precision before."""


class Logits:
    """Logits (N, K) or (N, K, d₁, …) as rows, (N·d₁·…, K). A logit of −∞ masks its class in its row.

    ``shape``, (N, d₁, …), is that of one number per sample.
    """

    name = "logits"

    def __init__(self, logits: Tensor) -> None:
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(f"logits must be a floating point tensor, got {got}")
        if logits.dim() < 2 or logits.shape[1] == 0:
            raise ValueError(f"logits must have shape (N, K) or (N, K, d1, ...), K ≥ 1, got {tuple(logits.shape)}")
        moved = logits if logits.dim() == 2 else logits.movedim(1, -1)
        self.shape, self.num_classes = moved.shape[:-1], logits.shape[1]
        self.rows = logits if logits.dim() == 2 else moved.reshape(-1, self.num_classes)

    def columns(self, named: Sequence[SoftTargets | None], *_: Any) -> Columns:
        """All of them, whatever the targets ``named`` need."""
        return None, None, named


class Call:
    """The validated arguments of one call.

    Attributes:
        options: every option and argument by name; those that the loss does not have are at their defaults.
        targets: α of the rows, N targets, smoothed and drawn.
        batch: the targets of the whole batch, of all ranks once :meth:`gather` has exchanged them.
        position: (N,) positions of the rows in ``batch``; None: row i is target i.
        place: (N,) positions of the rows' own targets among the candidates, −1: not among them; None: as in ``batch``.
        classes: the classes of the columns that are scored, (U,), sorted; None: all.
        counts: (K,) class counts of the batches of all ranks, for a running noise; None: it counts ``batch``.
    """

    def __init__(
        self,
        source: Logits | Table,
        targets: Tensor | SoftTargets,
        options: Mapping[str, Any],
        noise: Noise | Tensor | None = None,
        exchange: Exchange | None = None,
        hard: bool = False,
        is_contrast: bool = True,
    ) -> None:
        if source.rows.numel() == 0 and exchange is None:
            raise ValueError(f"the batch is empty: {source.name} have shape {tuple(source.rows.shape)}")
        self.source, self.exchange, self.is_contrast = source, exchange, is_contrast
        self.noise = FixedNoise(noise) if isinstance(noise, Tensor) else noise
        self.options = DEFAULTS | options  # type: ignore[operator]
        self.smoothing: float = self.options["label_smoothing"]
        self.generator: torch.Generator | None = self.options["generator"]
        given = self.options["candidates"]
        self.given: Candidates | SoftTargets | None = given.targets if isinstance(given, GivenCandidates) else given
        self.counts: Tensor | None = None
        self.classes: Tensor | None = None
        self.scores: Scores | None = None
        self.place: Tensor | None = None
        self.is_gathered = False
        self._check_classes()
        self.targets = self._targets(targets, hard)
        self.temperature: float | Tensor = self.options["temperature"]
        if isinstance(self.temperature, Tensor):
            self.temperature = self.temperature.reshape(())
            if exchange is not None and self.temperature.requires_grad:
                self.temperature = exchange.share_gradient(self.temperature)
        self.batch, self.position = self._batch()
        if self.options["draw"] is not None:
            self._draw()
        self._weigh()

    def _check_classes(self) -> None:
        classes, weight = self.source.num_classes, self.options["class_weight"]
        if weight is not None and len(weight) != classes:
            raise ValueError(f"class_weight must have shape ({classes},), got {tuple(weight.shape)}")
        if isinstance(self.noise, RunningNoise):
            self.noise.fit(classes, self.source.rows.device)
        elif self.noise is not None and self.noise.num_classes != classes:
            raise ValueError(f"noise_probs has {self.noise.num_classes} entries, but there are {classes} classes")

    def _targets(self, targets: Tensor | SoftTargets, hard: bool) -> SoftTargets:
        """Targets of the rows, smoothed; without a gradient in a contrast."""
        source, self.are_labels = self.source, hard
        if isinstance(targets, Tensor):
            is_soft, self.are_labels = targets.is_floating_point(), not targets.is_floating_point()
        else:
            is_soft = not getattr(targets, "is_hard", True)
        if hard and is_soft:
            raise ValueError(
                "this loss takes hard labels, got soft targets; use ExpectedInfoNCE, SoftTargetInfoNCE, "
                "SoftDistributionInfoNCE or SoftTargetCrossEntropy"
            )
        if isinstance(targets, Tensor):
            is_flat = targets.dim() == 1 and targets.shape == source.shape
            targets = targets if is_flat else rows_of(targets, source)
        elif isinstance(targets, SoftTargets) and len(targets) != len(source.rows):
            raise ValueError(f"targets have {len(targets)} rows, but {source.name} have {len(source.rows)}")
        ignore_index, allow_rest = self.options["ignore_index"], not self.is_contrast
        soft = as_soft_targets(targets, source.num_classes, self.smoothing, ignore_index, allow_rest)
        check_device(soft, source, "targets")
        return soft.detach() if self.is_contrast and not self.are_labels else soft

    def _batch(self) -> tuple[SoftTargets, Tensor | None]:
        """The targets that these rows are a part of, and their positions in them."""
        batch, own = self.options["batch"], self.options["own"]
        if batch is not None:
            if own is None:
                raise ValueError("batch needs own, the positions of the rows in it")
            return self._holder(batch, "batch", own)
        if own is not None and not isinstance(self.given, SoftTargets):
            raise ValueError("own gives positions in batch or in candidates, but neither is given as SoftTargets")
        return self.targets, None

    def _holder(self, group: object, name: str, own: Tensor | None) -> tuple[SoftTargets, Tensor | None]:
        """Targets passed as the argument ``name``, and the positions of the rows' targets in them."""
        classes = self.source.num_classes
        if not isinstance(group, SoftTargets):
            raise TypeError(f"{name} must be SoftTargets, got {type(group).__name__}")
        if group.num_classes != classes:
            raise ValueError(f"{name} has {group.num_classes} classes, but the scores have {classes}")
        check_device(group, self.source, name)
        if own is None:
            return group, None
        group = group.smooth(self.smoothing).detach()  # they hold the rows' targets, so they are smoothed alike
        check_own(group, own, self.targets, name)
        return group, own.long()

    def _draw(self) -> None:
        """Replace the targets by points drawn from them."""
        if self.position is not None and self.generator is None:
            raise ValueError("draw with batch needs a generator, in the same state for every micro-batch of the batch")
        self.batch = self.options["draw"].alpha(self.batch, self.generator)
        self.targets = self.batch if self.position is None else self.batch[self.position]

    def _weigh(self) -> None:
        """Fix the rows' weights and their total, before the targets of other ranks join the batch."""
        whole, part, class_weight = self.batch, self.position, self.options["class_weight"]
        weight: Tensor | None = self.options["sample_weight"]
        dtype = at_least_float32(self.source.rows.dtype)  # float64 logits: weights add up in float64
        if weight is not None:
            shape = self.source.shape if part is None else torch.Size([len(whole)])
            check_tensor(weight, "sample_weight")
            if weight.shape not in (shape, (len(whole),)):
                got = f"shape {tuple(shape)}, got {tuple(weight.shape)}"
                raise ValueError(f"sample_weight must have one entry per sample, {got}")
            check_weights(weight, "sample_weight")
            dtype = torch.promote_types(dtype, weight.dtype)
            weight = weight.reshape(-1).to(dtype)
        if whole.mask is not None:  # ignored rows weigh 0
            weight = whole.mask.to(dtype) if weight is None else weight * whole.mask
        counted = weight
        if class_weight is not None and (self.is_contrast or (self.are_labels and whole.form == LABELS)):
            class_weight = class_weight.to(torch.promote_types(dtype, class_weight.dtype))
            each = whole.expectation(class_weight) if self.is_contrast else class_weight[whole.labels]
            counted = each if weight is None else weight * each
            weight = counted if self.is_contrast else weight  # cross-entropy weighs the losses themselves
        self.weight = weight if weight is None or part is None else weight[part]
        self.total: float | Tensor = self.source.rows.shape[0] if part is None else len(whole)
        if counted is not None:
            self.total = counted.sum()

    def candidates(self) -> tuple[SoftTargets, bool]:
        """The candidates, M targets, and whether they can hold the rows' own targets, at :attr:`places`."""
        given, draw = self.given, self.options["draw"]
        self.gather_for_noise()
        if isinstance(given, SoftTargets):
            own = self.options["own"] if self.options["batch"] is None else None
            group, self.place = self._holder(given, "candidates", own)
            return group, self.place is not None
        if given is None and draw is not None:
            rows = len(self.batch)
            if self.exchange is not None and not self.is_gathered:
                rows = self.exchange.rows(self.batch)
            drawn = draw.candidates_from(self.noise, rows, self.targets, self.generator)
            if drawn is not None:
                return drawn, False
        if given is None or given.uses_batch:
            self.gather()
        if given is None:
            return self.batch, True
        groups, self.place = given(self.batch, self.positions(), self.generator, self.noise)
        return together(groups, self.targets), self.place is not None

    def places(self) -> Tensor:
        """:attr:`place`, (N,), also if it is that of the batch."""
        return self.positions() if self.place is None else self.place

    def positions(self) -> Tensor:
        """The positions of the rows in the batch, (N,)."""
        if self.position is not None:
            return self.position
        return torch.arange(len(self.targets), device=self.targets.device)

    def own_labels(self, labels: SoftTargets) -> SoftTargets:
        """The label of each row among label candidates, with weight 0 for rows that are not among them."""
        if not isinstance(self.given, Candidates) or self.given.holds_batch:
            return labels
        return SoftTargets(
            labels.num_classes, labels.index, (self.places() >= 0).to(torch.get_default_dtype())[:, None]
        )

    def gather(self) -> None:
        """Replace the batch by the batches of all ranks, in rank order; once per call."""
        if self.exchange is None or self.is_gathered:
            return
        mine, self.is_gathered = self.positions(), True
        self.batch, start = self.exchange.gather(self.batch)
        self.position = mine + start

    def gather_for_noise(self) -> None:
        """Gather where a running noise learns the targets of all ranks."""
        if isinstance(self.noise, RunningNoise):
            self.gather()

    def columns(self, *named: SoftTargets | None, reason: str = "", cancels: bool = False) -> Sequence[Any]:
        """The targets ``named`` over the columns that are scored: all of logits, of a table those that they need.

        With a ``reason`` all of a table too; backgrounds that all share are left out where they ``cancel``.
        """
        self.scores, self.classes, mapped = self.source.columns(named, reason, cancels)
        return mapped

    @property
    def exclude(self) -> Tensor | None:
        """The option ``exclude``, (N, E), as columns; −1 for classes that have none."""
        exclude, classes = self.options["exclude"], self.classes
        if exclude is None:
            return None
        check_tensor(exclude, "exclude")
        rows = len(self.targets)
        check_places(exclude, (rows, exclude.numel() // max(1, rows)), self.source.num_classes, "exclude", least=-1)
        exclude = exclude.long()
        if classes is None:
            return exclude
        place = torch.searchsorted(classes, exclude.contiguous()).clamp(max=len(classes) - 1)
        return torch.where(classes[place] == exclude, place, -1)

    @property
    def drops_hits(self) -> bool:
        """Whether candidates equal to the row's own target, or of its classes, are no negatives."""
        return bool(self.options["drop_own_classes"] or self.options["remove_accidental_hits"])

    def log_noise(self, smoothed: bool) -> Tensor | None:
        """log η of the columns, smoothed as the targets are if ``smoothed``; None: uniform."""
        if self.noise is None:
            return None
        dtype = at_least_float32(self.source.rows.dtype)
        return self.noise.log_probs(self.classes, self.smoothing if smoothed else 0.0, dtype)

    def draw_labels_from_eta(self, count: int) -> Tensor:
        """Labels drawn from η, (count,), smoothed as the targets are."""
        return draw_labels(self.noise, count, self.targets, self.generator, self.smoothing)

    def evaluate(
        self, losses: Callable[..., Tensor], targets: SoftTargets, by_row: Mapping[str, Any], **given: Any
    ) -> Tensor:
        """``losses(logits, targets, **by_row, **given)``, reduced as the options say; ``by_row`` has N rows or None.

        From a table with ``chunk_size``, logits are made again in backward: those of one chunk exist at a time. Inside
        of ``torch.func``, whose gradients refuse checkpoints, they are kept.
        """
        rows, chunk, scores = self.source.rows, self.options["chunk_size"], self.scores
        if scores is None:
            return self.finish(losses(rows, targets, **by_row, **given, **self.reduction(), chunk_size=chunk))

        def of_rows(part: slice) -> Tensor:
            mine = {name: value if value is None else value[part] for name, value in by_row.items()}
            return losses(scores(rows[part]), targets[part], **mine, **given)

        with full_precision(rows.device):
            if chunk is None:
                return self.finish(losses(scores(rows), targets, **by_row, **given, **self.reduction()))
            parts = [slice(start, start + chunk) for start in range(0, max(1, len(rows)), chunk)]
            keeps_logits = torch._C._are_functorch_transforms_active()
            run = of_rows if keeps_logits else partial(checkpoint, of_rows, use_reentrant=False)
            return self.finish(self.reduced(torch.cat([run(part) for part in parts])))

    def reduction(self) -> dict[str, Any]:
        """The weights of rows and the divisor of their sum, as the sums of ``autograd.py`` take them."""
        how = self.options["reduction"]
        if how == "none":
            return {"row_weight": self.weight}
        divisor = self.total if how == "mean" and self.exchange is None else None
        if isinstance(divisor, Tensor):  # if every sample is ignored the mean is 0, not NaN
            divisor = divisor.clamp(min=1e-30)
        return {"row_weight": self.weight, "divisor": divisor, "reduced": True}

    def reduced(self, losses: Tensor) -> Tensor:
        """Losses (N,) reduced by operations of torch."""
        how = self.reduction()
        losses = losses if self.weight is None else losses * self.weight.to(losses.dtype)
        if "reduced" not in how:
            return losses
        return losses.sum() if how["divisor"] is None else losses.sum() / how["divisor"]

    def finish(self, value: Tensor) -> Tensor:
        """The reduced loss over all ranks; losses (N,) in the shape of the labels."""
        if self.options["reduction"] == "none":
            value = value if self.exchange is None else value + 0.0 * self.temperature  # also without rows
            return value.reshape(self.source.shape)
        if self.exchange is None:
            return value
        # The empty sum connects a rank without rows to its model, whose gradients DDP waits for; 0·τ likewise.
        mine = value + self.source.rows[:0].sum() + 0.0 * self.temperature
        return self.exchange.reduce(mine, self.total, self.options["reduction"])


def rows_of(targets: Tensor, source: Logits | Table) -> Tensor:
    """Labels (N, d₁, …) or probabilities (N, K, d₁, …) as (N·d₁·…,) or (N·d₁·…, K)."""
    shape, classes = source.shape, source.num_classes
    if targets.shape == shape:
        return targets.reshape(-1)
    of_probabilities = shape[0], classes, *shape[1:]
    if targets.shape == of_probabilities:
        return targets if len(shape) == 1 else targets.movedim(1, -1).reshape(-1, classes)
    advice = "; classes are dimension 1, as for nn.CrossEntropyLoss" if len(shape) > 1 else ""
    raise ValueError(
        f"targets must be labels of shape {tuple(shape)} or probabilities of shape {of_probabilities} for these "
        f"{source.name}, got shape {tuple(targets.shape)} of {targets.dtype}{advice}"
    )


def together(groups: list[SoftTargets], targets: SoftTargets) -> SoftTargets:
    """Groups of candidates as one; dense where their backgrounds are spread differently."""
    groups = [group for group in groups if len(group)] or [targets[:0]]
    if len(groups) > 1 and not all(groups[0].shares_dist(group) for group in groups):
        groups = [SoftTargets(g.num_classes, None, g.unmasked_dense(torch.float64), mask=g.mask) for g in groups]
    return SoftTargets.cat(groups)


def check_device(targets: SoftTargets, source: Logits | Table, name: str) -> None:
    here, there = targets.device, source.rows.device
    if here != there:
        raise ValueError(f"{name} are on {here}, but {source.name} are on {there}; use {name}.to(device)")


def check_own(holder: SoftTargets, own: Tensor, targets: SoftTargets, name: str) -> None:
    """``own`` (N,) must give the position of each row's target in ``holder``, the argument called ``name``."""
    check_places(own, (len(targets),), len(holder), "own")
    if not values_are_checked(own) or len(own) == 0:
        return
    mine = holder[own.long()]
    mine.mask = targets.mask  # rows that are ignored need not agree
    is_own = mine.close(targets, OWN_TOLERANCE, 1e-5)
    if not bool(is_own.all()):
        row = int(is_own.int().argmin())
        raise ValueError(
            f"own says that row {int(own[row])} of {name} is the target of row {row}, but it is "
            f"{_described(mine, row)} and the target is {_described(targets, row)}"
        )


def _described(targets: SoftTargets, row: int) -> str:
    if targets.form == LABELS:
        return f"label {int(targets.labels[row])}"
    weight, label = targets[row].dense()[0].topk(1)
    return f"a row whose largest weight is {float(weight):.3g}, of class {int(label)}"
