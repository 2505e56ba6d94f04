"""One call of a loss: what a caller passes, validated once, and the steps that all losses share.

    rows → (draw) → candidates → columns → contrast → reduce

``functional.py`` has the losses written in these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softnce._checks import check_tensor, values_are_checked
from softnce._core import table as tables
from softnce._precision import at_least_float32, full_precision
from softnce.candidates import Candidates, GivenCandidates
from softnce.noise import Noise, RunningNoise
from softnce.targets._sampling import drawn_by
from softnce.targets.soft_targets import LABELS, SoftTargets, as_soft_targets

if TYPE_CHECKING:
    from softnce._core.ranks import Exchange

OWN_TOLERANCE = 8 * torch.finfo(torch.bfloat16).eps
"""Relative tolerance when ``own`` is checked: dense rows may have been rounded to half precision before."""


class Logits:
    """Logits (N, K) or (N, K, d₁, …) as rows. A logit of −∞ masks its class in its row.

    Attributes:
        rows: (N·d₁·…, K).
        shape: (N, d₁, …), of one number per sample.
        num_classes: K.
        name: of the argument, for errors.
    """

    name = "logits"

    def __init__(self, logits: Tensor, allow_empty: bool = False) -> None:
        if not isinstance(logits, Tensor):
            raise TypeError(f"logits must be a tensor, got {type(logits).__name__}")
        if not logits.is_floating_point():
            raise TypeError(f"logits must be a floating point tensor, got {logits.dtype}")
        if logits.dim() < 2:
            raise ValueError(f"logits must have shape (N, K) or (N, K, d1, ...), got {tuple(logits.shape)}")
        if logits.shape[1] == 0:
            raise ValueError("logits have no classes: shape (N, K) with K ≥ 1 is needed")
        if logits.numel() == 0 and not allow_empty:
            raise ValueError(f"the batch is empty: logits have shape {tuple(logits.shape)}")
        self.num_classes = logits.shape[1]
        moved = logits if logits.dim() == 2 else logits.movedim(1, -1)
        self.rows, self.shape = moved.reshape(-1, self.num_classes) if logits.dim() > 2 else logits, moved.shape[:-1]


class Call:
    """The validated arguments of one call.

    Attributes:
        source: the scores, :class:`Logits` or a :class:`~softnce._core.table.Table`.
        options: every option of the loss, by name.
        targets: α of the rows, N targets, smoothed and drawn.
        batch: the targets of the whole batch, of all ranks once :meth:`candidates` has exchanged them.
        position: (N,) positions of the rows in ``batch``; None: row i is target i.
        noise: η; None: uniform.
        exchange: the ranks that exchange; None: nothing is exchanged.
        counts: (K,) class counts of the batches of all ranks, where those were exchanged instead of targets.
    """

    def __init__(
        self,
        source: Logits | tables.Table,
        targets: Tensor | SoftTargets,
        options: Mapping[str, Any],
        noise: Noise | None = None,
        exchange: Exchange | None = None,
        hard_labels_of: str = "",
        is_contrast: bool = True,
    ) -> None:
        if hard_labels_of:
            _check_hard(targets, hard_labels_of)
        self.source, self.options, self.noise, self.exchange = source, options, noise, exchange
        self.smoothing: float = options.get("label_smoothing", 0.0)
        self.generator: torch.Generator | None = options.get("generator")
        self.are_labels = bool(hard_labels_of) or (isinstance(targets, Tensor) and not targets.is_floating_point())
        self.is_contrast = is_contrast
        self._check_classes()
        self.targets = targets_of_rows(targets, source, self.smoothing, options["ignore_index"], not is_contrast)
        if is_contrast:
            self.targets = self.targets.detach()
            self.targets.check_no_rest("a contrastive loss")
        self.own: Tensor | None = options["own"]
        self.position: Tensor | None = None
        self.batch = self.targets
        self.is_gathered = False
        self.counts: Tensor | None = None
        self.temperature: float | Tensor = options["temperature"]
        if isinstance(self.temperature, Tensor):
            self.temperature = self.temperature.reshape(())
            if exchange is not None and self.temperature.requires_grad:
                self.temperature = exchange.share_gradient(self.temperature)
        if options["batch"] is not None:
            self._take_batch(options["batch"])
        elif self.own is not None and not isinstance(options.get("candidates"), (SoftTargets, GivenCandidates)):
            raise ValueError("own gives positions in batch or in candidates, but neither is given as SoftTargets")
        self._weigh()

    def _check_classes(self) -> None:
        classes, weight = self.source.num_classes, self.options["class_weight"]
        if weight is not None and len(weight) != classes:
            raise ValueError(f"class_weight must have shape ({classes},), got {tuple(weight.shape)}")
        if isinstance(self.noise, RunningNoise):
            self.noise.fit(classes, self.source.rows.device)
        elif self.noise is not None and self.noise.num_classes != classes:
            raise ValueError(f"noise_probs has {self.noise.num_classes} entries, but there are {classes} classes")

    def _take_batch(self, batch: SoftTargets) -> None:
        check_group(batch, self.source.num_classes, self.source.rows.device, "batch")
        if self.own is None:
            raise ValueError("batch needs own, the positions of the rows in it")
        self.batch = batch.smooth(self.smoothing).detach()
        check_own(self.batch, self.own, self.targets, "batch")
        self.position, self.own = self.own, None

    # ------------------------------------------------------------------------------------------------- steps

    def draw(self) -> None:
        """Replace the targets by points drawn from them, where the option ``draw`` asks for it."""
        draw = self.options.get("draw")
        if draw is None:
            return
        if self.position is not None and self.generator is None:
            raise ValueError("draw with batch needs a generator, in the same state for every micro-batch of the batch")
        self.batch = draw.alpha(self.batch, self.generator)
        self.targets = self.batch if self.position is None else self.batch[self.position]
        self._weigh()

    def candidates(self) -> tuple[SoftTargets, Tensor | None]:
        """The candidates, M targets, and where among them each row's own target is, (N,), −1: not among them.

        No positions if the candidates hold no row's own target by construction.
        """
        given, draw = self.options["candidates"], self.options.get("draw")
        self.gather_for_noise()
        if isinstance(given, (SoftTargets, GivenCandidates)):
            return self._given(given.targets if isinstance(given, GivenCandidates) else given)
        if given is None and draw is not None:
            rows = len(self.batch)
            if self.exchange is not None and not self.is_gathered:
                rows = int(self.exchange.all_sum(torch.tensor(rows, device=self.batch.device)))
            drawn = draw.candidates_from(self.noise, rows, self.targets, self.generator)
            if drawn is not None:
                return drawn, None
        if given is None or given.uses_batch:
            self.gather()
        if given is None:
            return self.batch, self.positions()
        groups, place = given(self.batch, self.positions(), self.generator, self.noise)
        return together(groups, self.targets), place

    def gather(self) -> None:
        """Replace the batch by the batches of all ranks, in rank order; once per call."""
        if self.exchange is None or self.is_gathered:
            return
        self.is_gathered = True
        rows = len(self.batch)
        self.batch, start = self.exchange.gather(self.batch)
        mine = self.position
        if mine is None:
            mine = torch.arange(rows, device=self.batch.device)
        self.position = mine + start

    def gather_for_noise(self) -> None:
        """Gather where a running noise learns the targets of all ranks."""
        if isinstance(self.noise, RunningNoise):
            self.gather()

    def batch_counts(self) -> Tensor:
        """The class counts of the batch, (K,), float64; of all ranks' batches, whose targets then need not be sent."""
        if self.counts is None:
            exchange = self.exchange
            self.counts = (
                self.batch.class_mass(torch.float64) if exchange is None else exchange.class_counts(self.batch)
            )
        return self.counts

    def positions(self) -> Tensor:
        """The positions of the rows in the batch, (N,)."""
        if self.position is not None:
            return self.position
        return torch.arange(len(self.targets), device=self.targets.device)

    def _given(self, given: SoftTargets) -> tuple[SoftTargets, Tensor | None]:
        check_group(given, self.source.num_classes, self.source.rows.device, "candidates")
        if self.own is None:
            return given, None
        holder = given.smooth(self.smoothing).detach()  # they hold the rows' targets, so they are smoothed alike
        check_own(holder, self.own, self.targets, "candidates")
        return holder, self.own

    def own_labels(self, labels: SoftTargets, place: Tensor | None) -> SoftTargets | None:
        """What each row has among label candidates: its label, with weight 0 where ``place`` is −1."""
        given = self.options["candidates"]
        if place is None or not isinstance(given, Candidates) or given.holds_batch:
            return None if place is None else labels
        return SoftTargets(labels.num_classes, labels.index, (place >= 0).to(torch.get_default_dtype())[:, None])

    # ------------------------------------------------------------------------------------------------- noise

    def log_noise(self, classes: Tensor | None, smoothed: bool) -> Tensor | None:
        """log η of ``classes``, or of all, (K,), smoothed as the targets are if ``smoothed``; None: uniform."""
        return None if self.noise is None else self.noise.log_probs(classes, self._noise_smoothing(smoothed))

    def noise_mass(self, count: float) -> Tensor:
        """The class counts of ``count`` draws from η in expectation, (K,), float64."""
        logs = self.log_noise(None, smoothed=True)
        if logs is None:
            each = count / self.source.num_classes
            return torch.full((self.source.num_classes,), each, dtype=torch.float64, device=self.source.rows.device)
        return count * logs.double().exp()

    def draw_noise(self, count: int) -> SoftTargets:
        """Labels drawn from η."""
        classes, device = self.source.num_classes, self.source.rows.device
        if self.noise is None:
            labels = torch.randint(classes, (count,), device=device, **drawn_by(self.generator))
        else:
            labels = self.noise.sample(count, self.generator, self._noise_smoothing(True))
        return SoftTargets(classes, labels[:, None], None)

    def _noise_smoothing(self, smoothed: bool) -> float:
        """ε by which η is smoothed: a running η has seen smoothed targets already."""
        return self.smoothing if smoothed and not isinstance(self.noise, RunningNoise) else 0.0

    @property
    def drops_hits(self) -> bool:
        """Whether candidates equal to the row's own target, or of its classes, are no negatives."""
        return bool(self.options.get("drop_own_classes") or self.options.get("remove_accidental_hits"))

    # ------------------------------------------------------------------------------------------------ reduce

    def evaluate(self, losses: Callable[..., Tensor], scores: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """``losses(logits, rows, **reduction)`` of the rows, reduced as the options say.

        ``scores`` makes logits from features; with ``chunk_size`` they are made again in backward, so that those of
        one chunk exist at a time.
        """
        rows, chunk = self.source.rows, self.options.get("chunk_size")
        with full_precision(rows.device):
            if scores is None:
                blocks = {} if chunk is None else {"chunk_size": chunk}
                return self._finish(losses(rows, slice(None), **self._reduction(), **blocks))
            if chunk is None:
                return self._finish(losses(scores(rows), slice(None), **self._reduction()))
            each = tables.in_chunks(lambda z, part: losses(scores(z), part), rows, chunk)
            return self._finish(self._reduce_losses(each))

    def evaluate_plainly(self, losses: Callable[[Tensor, SoftTargets], Tensor]) -> Tensor:
        """``losses`` of the scores and the targets, reduced as the options say by operations of torch."""
        if self.options["class_weight"] is not None:
            raise ValueError("class_weight cannot weigh a group of classes: the targets hold a rest beyond their top k")
        with full_precision(self.source.rows.device):
            scores = self.source.rows.to(at_least_float32(self.source.rows.dtype)) / self.temperature
            return self._finish(self._reduce_losses(losses(scores, self.targets)))

    def evaluate_table(self, losses: Callable[..., Tensor], class_weight: Tensor | None) -> Tensor:
        """``losses`` of features and the whole table, reduced as the options say."""
        source = self.source
        assert isinstance(source, tables.Table)
        return self._finish(losses(
            source.rows, source.table, self.targets, bias=source.bias, cosine=source.cosine,
            temperature=self.temperature, class_weight=class_weight, **self._reduction(),
        ))  # fmt: skip

    def _weigh(self) -> None:
        """Fix the rows' weights and their total, before the targets of other ranks join the batch."""
        whole, part = self.batch, self.position
        shape = self.source.shape if part is None else torch.Size([len(whole)])
        weight = divisor = row_weight(whole, shape, self.options["sample_weight"])
        class_weight = self.options["class_weight"]
        if class_weight is not None and self.is_contrast:
            weight = divisor = times(weight, whole.expectation(class_weight))
        elif class_weight is not None and self.are_labels and whole.form == LABELS:
            divisor = times(weight, class_weight[whole.labels])  # cross-entropy weighs the losses themselves
        self.weight = weight if weight is None or part is None else weight[part]
        self.total: Tensor | float = len(whole)
        if divisor is not None:
            self.total = divisor.to(at_least_float32(divisor.dtype)).sum()

    def _reduction(self) -> dict[str, Any]:
        reduction = self.options["reduction"]
        if reduction == "none":
            return {"row_weight": self.weight}
        divisor: Tensor | float | None = None
        if reduction == "mean" and self.exchange is None:
            divisor = self.total
            if isinstance(divisor, Tensor):
                divisor = divisor.masked_fill(divisor <= 0, 1)  # every sample is ignored: 0, not NaN
        return {"row_weight": self.weight, "divisor": divisor, "reduced": True}

    def _reduce_losses(self, losses: Tensor) -> Tensor:
        """Losses (N,) reduced by operations of torch, as the kernels do."""
        how = self._reduction()
        weighted = losses if how["row_weight"] is None else losses * how["row_weight"].to(losses.dtype)
        if "reduced" not in how:
            return weighted
        return weighted.sum() if how["divisor"] is None else weighted.sum() / how["divisor"]

    def _finish(self, value: Tensor) -> Tensor:
        if self.options["reduction"] == "none":
            value = value if self.exchange is None else value + 0.0 * self.temperature  # also without rows
            return value.reshape(self.source.shape)
        if self.exchange is None:
            return value
        # The empty sum connects a rank without rows to its model, whose gradients DDP waits for; 0·τ likewise.
        mine = value + self.source.rows[:0].sum() + 0.0 * self.temperature
        return self.exchange.reduce(mine, self.total, self.options["reduction"])


def targets_of_rows(
    targets: Tensor | SoftTargets,
    source: Logits | tables.Table,
    label_smoothing: float,
    ignore_index: int,
    allow_rest: bool = False,
) -> SoftTargets:
    """Targets for the rows of ``source`` as SoftTargets, smoothed."""
    shape, classes, name = source.shape, source.num_classes, source.name
    if isinstance(targets, Tensor):
        spatial = tuple(shape[1:])
        if targets.shape == shape and (spatial or not targets.is_floating_point()):
            targets = targets.reshape(-1) if spatial else targets
        elif targets.shape == (shape[0], classes, *spatial):
            targets = targets.movedim(1, -1).reshape(-1, classes) if spatial else targets
        elif targets.shape == shape:
            raise TypeError(f"targets of shape {tuple(shape)} must hold integer labels, got {targets.dtype}")
        else:
            raise ValueError(
                f"targets must be labels of shape {tuple(shape)} or probabilities of shape "
                f"{(shape[0], classes, *spatial)} for these {name}, got shape {tuple(targets.shape)} "
                f"of {targets.dtype}{'; classes are dimension 1, as for nn.CrossEntropyLoss' if spatial else ''}"
            )
    soft = as_soft_targets(targets, classes, label_smoothing, ignore_index, allow_rest)
    if len(soft) != source.rows.shape[0]:
        raise ValueError(f"targets have {len(soft)} rows, but {name} have {source.rows.shape[0]}")
    if soft.device != source.rows.device:
        raise ValueError(
            f"targets are on {soft.device}, but {name} are on {source.rows.device}; use targets.to(device)"
        )
    return soft


def together(groups: list[SoftTargets], targets: SoftTargets) -> SoftTargets:
    """Groups of candidates as one; dense where their backgrounds are spread differently."""
    groups = [group for group in groups if len(group)] or [targets[:0]]
    if len(groups) == 1:
        return groups[0]
    if not all(groups[0].shares_dist(group) for group in groups):
        groups = [SoftTargets(g.num_classes, None, g.unmasked_dense(torch.float64), mask=g.mask) for g in groups]
    else:
        shared = all(groups[0].shares_background(group) for group in groups)
        groups = [in_float64(group, shared) for group in groups]
    return SoftTargets.cat(groups)


def in_float64(targets: SoftTargets, shared: bool) -> SoftTargets:
    """Weights, and masses of backgrounds that are not shared, as float64: those implied by numbers are not rounded."""
    weight = targets.pair_weight(torch.float64) if targets.has_background else targets.weight
    mass = targets.smoothing if shared else targets.background_mass(torch.float64)
    dist = targets.smoothing_dist
    return SoftTargets(targets.num_classes, targets.index, weight, mass, dist, targets.mask)


def check_group(group: object, num_classes: int, device: torch.device, name: str) -> None:
    """Further targets, passed as the argument ``name``, must be of the same classes and on the same device."""
    if not isinstance(group, SoftTargets):
        raise TypeError(f"{name} must be SoftTargets, got {type(group).__name__}")
    if group.num_classes != num_classes:
        raise ValueError(f"{name} has {group.num_classes} classes, but the scores have {num_classes}")
    if group.device != device:
        raise ValueError(f"{name} is on {group.device}, but the scores are on {device}; use {name}.to(device)")


def check_own(holder: SoftTargets, own: Tensor, targets: SoftTargets, name: str) -> None:
    """``own`` (N,) must give the position of each row's target in ``holder``, the argument called ``name``."""
    check_tensor(own, "own")
    if own.dtype in (torch.bool, torch.uint8):
        raise ValueError(f"own must hold positions as int64, got {own.dtype}")
    if own.shape != (len(targets),) or own.is_floating_point():
        raise ValueError(f"own must hold {len(targets)} positions (N,), got shape {tuple(own.shape)} of {own.dtype}")
    if not values_are_checked(own) or len(own) == 0:
        return
    low, high = (int(v) for v in torch.aminmax(own))
    if low < 0 or high >= len(holder):
        raise ValueError(f"own contains {low if low < 0 else high}, but {name} has only {len(holder)} rows")
    mine = holder[own]
    mine.mask = targets.mask  # rows that are ignored need not agree
    wrong = mine.close(targets, OWN_TOLERANCE, 1e-5).logical_not()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"own says that row {int(own[row])} of {name} is the target of row {row}, but it is "
            f"{_described(mine, row)} and the target is {_described(targets, row)}"
        )


def _described(targets: SoftTargets, row: int) -> str:
    if targets.form == LABELS:
        return f"label {int(targets.labels[row])}"
    weight, label = targets[row].dense()[0].topk(1)
    return f"a row whose largest weight is {float(weight):.3g}, of class {int(label)}"


def _check_hard(targets: Tensor | SoftTargets, name: str) -> None:
    is_soft = isinstance(targets, SoftTargets) and not targets.is_hard
    if is_soft or (isinstance(targets, Tensor) and targets.is_floating_point()):
        raise ValueError(
            f"{name} takes hard labels, got soft targets; use ExpectedInfoNCE, SoftTargetInfoNCE, "
            "SoftDistributionInfoNCE or SoftTargetCrossEntropy"
        )


def row_weight(targets: SoftTargets, shape: torch.Size, sample_weight: Tensor | None) -> Tensor | None:
    """The weight of every row, (N,), 0 for ignored ones; None where all weigh 1."""
    if sample_weight is not None:
        check_tensor(sample_weight, "sample_weight")
        if sample_weight.shape != shape and sample_weight.shape != (len(targets),):
            raise ValueError(
                f"sample_weight must have one entry per sample, shape {tuple(shape)}, got {tuple(sample_weight.shape)}"
            )
        sample_weight = sample_weight.reshape(-1)
        if values_are_checked(sample_weight) and not bool(((sample_weight >= 0) & (sample_weight < torch.inf)).all()):
            raise ValueError("sample_weight must hold finite numbers that are not negative")
    if targets.mask is None:
        return sample_weight
    counts = targets.mask.to(torch.get_default_dtype() if sample_weight is None else sample_weight.dtype)
    return counts if sample_weight is None else counts * sample_weight


def times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a·b, where None is 1."""
    return b if a is None else a if b is None else a * b
