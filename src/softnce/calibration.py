"""Calibration: errors of predicted probabilities, proper scores, temperature; for labels and soft targets.

Scores are (N, K), or (N, K, d₁, …) as in segmentation; targets are labels (N,) or (N, d₁, …), probabilities of the
scores' shape, or ``SoftTargets``, with which every quantity is its expectation over a label drawn from the target.

References: Guo et al. 2017 (expected calibration error, temperature); Nixon et al. 2019 (equal mass); Brier 1950.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from softnce import _inputs
from softnce._core.call import Logits, rows_of
from softnce._core.ranks import gather_objects
from softnce.targets import SoftTargets
from softnce.targets.soft_targets import ArrayLike, as_soft_targets

Targets = ArrayLike | SoftTargets
Binning = Literal["width", "mass"]


@dataclass(frozen=True)
class ReliabilityCurve:
    """Observed against predicted frequency in B bins. Empty bins have NaN confidence and accuracy."""

    edges: Tensor  # (B + 1,) bin b holds edges[b] < confidence <= edges[b + 1], and bin 0 also confidence 0
    count: Tensor  # (B,)
    confidence: Tensor  # (B,) mean predicted probability
    accuracy: Tensor  # (B,) mean outcome

    @property
    def gap(self) -> Tensor:
        """|accuracy − confidence| of each bin, 0 if it is empty."""
        return (self.accuracy - self.confidence).abs().nan_to_num(0.0)

    @property
    def expected_error(self) -> Tensor:
        """Σ_b (n_b / N) |accuracy_b − confidence_b|."""
        return (self.count * self.gap).sum() / self.count.sum()

    @property
    def maximum_error(self) -> Tensor:
        """The largest gap of a bin that holds anything."""
        return self.gap.max()


def reliability_curve(
    confidence: ArrayLike, outcome: ArrayLike, *, bins: int = 15, binning: Binning = "width"
) -> ReliabilityCurve:
    """Mean of the predicted probabilities ``confidence`` (N,) against the mean ``outcome`` (N,) in [0, 1], bin by bin.

    ``binning`` is ``"width"`` for equal intervals of [0, 1], ``"mass"`` for equally many samples, ties in one bin.
    """
    bins = _inputs.as_whole(bins, "bins")
    _inputs.one_of("width", "mass")(binning, "binning")
    confidence, outcome = _inputs.as_tensor(confidence, "confidence"), _inputs.as_tensor(outcome, "outcome")
    _inputs.check_floating(confidence, "confidence", "(N,)")
    if outcome.shape != confidence.shape or outcome.is_complex() or len(outcome) == 0:
        shapes = f"{tuple(confidence.shape)} and {tuple(outcome.shape)} of {outcome.dtype}"
        raise ValueError(f"confidence and outcome must be vectors of one length, at least 1, got {shapes}")
    _inputs.check_unit_interval(confidence, "confidence")
    _inputs.check_unit_interval(outcome, "outcome")
    edges = _edges(confidence, bins, binning)
    count, predicted, observed = _bin_totals(confidence[:, None], outcome[:, None], edges)[0].unbind(-1)
    return ReliabilityCurve(edges, count.long(), predicted / count, observed / count)


def expected_calibration_error(
    probs: ArrayLike, targets: Targets, *, bins: int = 15, binning: Binning = "width", ignore_index: int = -100
) -> Tensor:
    """Mean |accuracy − confidence| over the bins of :func:`reliability_curve`, weighted by their counts."""
    confidence, outcome = top_label(probs, targets, ignore_index=ignore_index)
    return reliability_curve(confidence, outcome, bins=bins, binning=binning).expected_error


def brier_score(probs: ArrayLike, targets: Targets, *, ignore_index: int = -100) -> Tensor:
    """Mean of Σ_k (p_k − 1[label = k])², in [0, 2]; its expectation Σ_k (p_k − y_k)² + 1 − Σ_k y_k² for soft y."""
    probs, frequency = _rows_and_frequency(probs, targets, ignore_index, "probs")
    p = probs.double()
    return torch.add(1, (p.square() - 2 * p * frequency).sum(1).mean())


def negative_log_likelihood(logits: ArrayLike, targets: Targets, *, ignore_index: int = -100) -> Tensor:
    """Mean of −Σ_k y_k log softmax(logits)_k. For probabilities pass their logarithm."""
    logits, frequency = _rows_and_frequency(logits, targets, ignore_index, "logits")
    # a class that cannot happen costs nothing, even if its log-probability is −inf
    return -torch.where(frequency > 0, frequency * logits.double().log_softmax(1), 0.0).sum(1).mean()


def fit_temperature(
    logits: ArrayLike, targets: Targets, *, limits: tuple[float, float] = (1e-3, 1e3), ignore_index: int = -100
) -> float:
    """The temperature T that minimises the negative log-likelihood of softmax(logits / T), on held-out data.

    The likelihood is convex in 1/T: about ten Newton steps of O(N·K), kept in a bracket by bisection. If it falls all
    the way to one of the ``limits``, returns that limit; if all temperatures are equal, 1 or the limit nearest.
    """
    is_pair = isinstance(limits, (tuple, list)) and len(limits) == 2
    lowest, highest = (_inputs.as_positive(limit, "limits") for limit in limits) if is_pair else (1, 0)
    if lowest >= highest:
        raise ValueError(f"limits must be the lowest and the highest temperature, got {limits!r}")
    z, frequency = _rows_and_frequency(logits, targets, ignore_index, "logits")
    if not bool(z.isfinite().all()):
        raise ValueError("logits must be finite to fit a temperature")
    z = z.double() - z.double().amax(1, keepdim=True)
    observed = (frequency * z).sum(1).mean()

    def slope_and_curvature(beta: float) -> tuple[float, float]:
        p = (beta * z).softmax(1)
        mean = (p * z).sum(1)
        return (mean.mean() - observed).item(), ((p * z.square()).sum(1) - mean.square()).mean().item()

    low, high = 1 / highest, 1 / lowest
    falls, rises = slope_and_curvature(high)[0] <= 0, slope_and_curvature(low)[0] >= 0  # from one limit to the other
    if falls or rises:
        nearest = min(max(1.0, lowest), highest)
        return nearest if falls and rises else lowest if falls else highest
    beta = min(max(1.0, low), high)
    for _ in range(200):
        slope, curvature = slope_and_curvature(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else low
        # the bracket spans orders of magnitude: bisect its logarithm
        following = step if low < step < high else (low * high) ** 0.5
        if abs(following - beta) <= 1e-12 * beta:
            break
        beta = following
    return 1 / beta


class CalibrationMeter:
    """Calibration over an evaluation set, batch by batch; also each class's error, averaged over classes.

    Keeps two numbers per sample and a (K, B) table instead of the probabilities: 8·N + 24·K·B bytes.
    """

    def __init__(self, bins: int = 15) -> None:
        self.bins = _inputs.as_whole(bins, "bins")
        self.reset()

    def reset(self) -> None:
        self.samples: list[Tensor] = []  # (n, 2): confidence and outcome
        self.scores: Tensor | float = 0.0  # (2,): sums of brier and nll
        self.class_totals: Tensor | float = 0.0  # (K, B, 3)

    def update(self, logits: ArrayLike, targets: Targets, *, ignore_index: int = -100) -> None:
        """Add a batch: logits (N, K) or (N, K, d₁, …), targets as everywhere here."""
        logits, frequency = _rows_and_frequency(logits, targets, ignore_index, "logits", may_be_empty=True)
        logits = logits.detach().float()
        if len(logits) == 0:
            return
        probs = logits.softmax(1)
        confidence, outcome = top_label(probs, frequency)
        self.samples.append(torch.stack([confidence, outcome.float()], 1).cpu())
        scores = torch.stack([brier_score(probs, frequency), negative_log_likelihood(logits, frequency)])
        self.scores = self.scores + len(logits) * scores.cpu()
        self.class_totals = self.class_totals + _bin_totals(probs, frequency, _edges(probs, self.bins)).cpu()

    def gather(self) -> None:
        """Collect what every process accumulated, so that each holds the whole. Every rank must call it."""
        states = gather_objects((self.samples, self.scores, self.class_totals))
        samples, scores, class_totals = zip(*states, strict=True)
        self.samples = [batch for each in samples for batch in each]
        self.scores, self.class_totals = sum(scores), sum(class_totals)

    def curve(self, binning: Binning = "width") -> ReliabilityCurve:
        """The reliability curve of the predicted class's probability."""
        if not self.samples:
            raise ValueError("nothing was measured: update() needs at least one batch with rows that count")
        confidence, outcome = torch.cat(self.samples).unbind(1)
        return reliability_curve(confidence, outcome, bins=self.bins, binning=binning)

    def compute(self) -> dict[str, float]:
        """ece and mce (equal width), ece_mass (equal mass), classwise_ece, brier, nll."""
        curve = self.curve()
        assert isinstance(self.scores, Tensor)
        assert isinstance(self.class_totals, Tensor)
        brier, nll = (self.scores / sum(map(len, self.samples))).tolist()
        # n_b |outcome_b / n_b − probability_b / n_b| needs no division, so empty bins need no care
        count, probability, outcome = self.class_totals.unbind(-1)
        return {
            "ece": curve.expected_error.item(),
            "ece_mass": self.curve("mass").expected_error.item(),
            "mce": curve.maximum_error.item(),
            "classwise_ece": ((probability - outcome).abs().sum(1) / count.sum(1)).mean().item(),
            "brier": brier,
            "nll": nll,
        }


def top_label(probs: ArrayLike, targets: Targets, *, ignore_index: int = -100) -> tuple[Tensor, Tensor]:
    """Of each sample that counts, the predicted class's probability and how far the target agrees with that class."""
    probs, frequency = _rows_and_frequency(probs, targets, ignore_index, "probs")
    confidence, predicted = probs.max(1)
    return confidence.clamp(max=1), frequency.gather(1, predicted[:, None])[:, 0].clamp(max=1)


def _bin_totals(probability: Tensor, outcome: Tensor, edges: Tensor) -> Tensor:
    """Count, summed probability and summed outcome, by column and bin: (N, C) twice, (B + 1,) → (C, B, 3)."""
    columns, bins = probability.shape[1], len(edges) - 1
    probability, outcome = probability.detach().double(), outcome.detach().double()
    # bins are closed on the right: 1.0 falls in the last bin, 0.0 in the first
    index = torch.bucketize(probability.contiguous(), edges[1:-1])
    index += torch.arange(columns, device=index.device) * bins
    values = torch.stack([torch.ones_like(probability), probability, outcome], -1).flatten(0, 1)
    totals = values.new_zeros(columns * bins, 3).index_add_(0, index.flatten(), values)
    return totals.view(columns, bins, 3)


def _edges(probability: Tensor, bins: int, binning: str = "width") -> Tensor:
    """(B + 1,) edges; of equal mass: the last value of each of B equal runs of the sorted sample, between 0 and 1."""
    b = torch.arange(bins + 1, device=probability.device)
    if binning == "width":  # rounded like the probabilities: a single-precision 0.2 lies on the edge 0.2
        return (b.double() / bins).to(probability.dtype).double()
    last = (b[1:-1] * len(probability) + bins - 1) // bins - 1  # ceil(b·N / B) − 1
    inner = probability.detach().double().sort().values[last]
    return torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])


def _rows_and_frequency(
    scores: ArrayLike, targets: Targets, ignore_index: int, name: str, may_be_empty: bool = False
) -> tuple[Tensor, Tensor]:
    """The samples that count, (N, K), checked as "probs" or "logits", and each class's frequency in them, in double."""
    scores, ignore_index = _inputs.as_tensor(scores, name), _inputs.as_whole(ignore_index, "ignore_index", None)
    _inputs.check_floating(scores, name, "(N, K, ...)")
    if 0 in scores.shape[1:]:
        raise ValueError(f"{name} must have at least one class, got shape {tuple(scores.shape)}")
    source = Logits(scores)
    source.name, rows = name, source.rows
    if not isinstance(targets, SoftTargets):
        targets = rows_of(_inputs.as_tensor(targets, "targets"), source)
    elif len(targets) != len(rows):
        raise ValueError(f"targets have {len(targets)} rows, but {name} have {len(rows)}")
    soft = as_soft_targets(targets.to(rows.device), source.num_classes, ignore_index=ignore_index)
    frequency = soft.unmasked_dense(torch.float64)
    if soft.mask is not None:
        rows, frequency = rows[soft.mask], frequency[soft.mask]
    if len(rows) == 0 and not may_be_empty:
        raise ValueError(f"{name} have no row that counts: calibration needs at least one sample")
    if _inputs.values_are_checked(rows):
        if bool(rows.isnan().any()):
            raise ValueError(f"{name} hold NaN in {int(rows.isnan().any(1).sum())} of {len(rows)} rows")
        if name == "probs":
            _inputs.check_rows_sum_to_one(rows, "probs")
        elif rows.numel() and rows.shape[1] > 1 and bool((rows >= 0).all()):
            slack = 1e-4 if rows.dtype in (torch.float32, torch.float64) else 1e-2
            if bool(((rows.double().sum(1) - 1).abs() <= slack).all()):
                raise ValueError("logits must be unnormalised scores, got probabilities: pass their logarithm")
    return rows, frequency
