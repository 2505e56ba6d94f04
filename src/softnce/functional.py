"""The losses as functions of class scores and targets.

Every function takes ``logits`` (N, K) or (N, K, d₁, …), the ``linear_*`` ones ``features`` (N, d) or (N, L, d) and a
``table`` of label embeddings (K, d) instead, and ``targets``: labels (N,) or (N, d₁, …), probabilities of the logits'
shape, or :class:`~softnce.SoftTargets` of one row per sample. The score of class k is s_k = logit_k/τ − log η_k, with
τ the ``temperature`` and η the ``noise_probs`` (K,), None for uniform; it is float32 or better, also under autocast.

Functions keep no state and exchange nothing between ranks; the Modules in :mod:`softnce.losses` do both around the same
steps. All return a scalar, 0 if every sample is ignored, or with ``reduction="none"`` a tensor of the labels' shape.
"""

from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._core import autograd, options
from softnce._core.call import Call, Logits
from softnce._core.exact import exact_cross_entropy, group_cross_entropy
from softnce._core.options import DECLARED, checked, positive, takes
from softnce._core.table import Table, check_table
from softnce._inputs import as_whole, at_least_float32, check_flag, full_precision, values_are_checked
from softnce.candidates import ClassCandidates
from softnce.draws import Categorical
from softnce.targets import SoftTargets
from softnce.targets.soft_targets import DENSE

__all__ = [
    "expected_info_nce", "info_nce", "linear_expected_info_nce", "linear_info_nce", "linear_nll",
    "linear_soft_target_cross_entropy", "linear_soft_target_info_nce", "linear_topk", "nll", "probabilities",
    "soft_distribution_info_nce", "soft_target_cross_entropy", "soft_target_info_nce",
]  # fmt: skip

Targets = Tensor | SoftTargets
Eta = Tensor | None


@takes(options.OfSoftTarget)
def soft_target_info_nce(
    logits: Tensor, targets: Targets, noise_probs: Eta = None, **given: Unpack[options.OfSoftTarget]
) -> Tensor:
    """Pick each row's soft target out of the candidates.

        ℓ = −σ(α) + log Σ_{c ∈ C} exp σ(c),   σ(c) = Σ_k c_k s_k,   s_k = logit_k/τ − log η_k

    The row's own target is in C exactly once. By default C is the batch's targets. Time O(N·K) for labels, O(N·M·S) for
    M candidates of S pairs, one (N, K) × (K, M) product for dense targets; memory one block of rows. Targets carry no
    gradient. Smoothing that all targets share cancels: ``label_smoothing=ε`` is the temperature τ/(1 − ε) with noise
    η^(1−ε). Eq. (soft-target-infonce) of Hugger and Uhlmann, *Noise contrastive estimation with soft targets for
    conditional models* (2024).

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> soft_target_info_nce(logits, torch.tensor([0, 1]), label_smoothing=0.1)
    tensor(0.1530)
    """
    return soft_target(Call(Logits(logits), targets, checked(options.OfSoftTarget, given), noise_probs))


@takes(options.TableSoftTarget)
def linear_soft_target_info_nce(
    features: Tensor, table: Tensor, targets: Targets, noise_probs: Eta = None, **given: Unpack[options.TableSoftTarget]
) -> Tensor:
    """:func:`soft_target_info_nce` of the logits ``features @ table.T + bias``, from the columns that occur.

    With M candidates and targets of S pairs over U distinct classes O(N·U·d + N·M·S), whatever K. Dense targets and
    backgrounds that are not shared need all logits.

    >>> table = torch.randn(1_000_000, 16, requires_grad=True)
    >>> loss = linear_soft_target_info_nce(torch.randn(4, 16), table, torch.tensor([5, 6, 7, 8]), sparse=True)
    >>> loss.backward()
    >>> table.grad.coalesce().indices()
    tensor([[5, 6, 7, 8]])
    """
    chosen = checked(options.TableSoftTarget, given)
    return soft_target(Call(as_table(features, table, chosen), targets, chosen, noise_probs))


@takes(options.OfExpected)
def expected_info_nce(
    logits: Tensor, targets: Targets, noise_probs: Eta = None, **given: Unpack[options.OfExpected]
) -> Tensor:
    """InfoNCE summed over the label that each soft target could draw, instead of drawing it.

        ℓ = Σ_k α_k log(1 + R/exp(s_k)),   R = Σ_{c ∈ C, c ≠ own} Σ_j c_j exp(s_j),   s_k = logit_k/τ − log η_k

    R sums over the negatives in the mean (``negatives="mean"``), or over one label drawn from each (``"drawn"``). The
    loss is at least the expectation of soft distribution InfoNCE, has no noise from its draw, and equals
    :func:`info_nce` for labels against labels. O(N·K) for labels, pairs and dense rows alike.

    e^{s_k} learns p(k|x)/η_k up to a constant: exactly if the negatives are drawn, and in the mean as long as
    (M + m)·η_k ≫ α_k for M candidates and m more from η (:class:`~softnce.NoiseCandidates`). Hence the defaults: from
    logits the mean and m = K, from a table drawn negatives and m = 0. η must be the marginal of the targets;
    ``label_smoothing`` smooths it with them. If the targets are smoothed already, pass a smoothed η.

    ``drop_own_classes`` leaves every class with α_k > 0 out of R: the decoupled softmax, for several right answers per
    row (DEXML, Gupta et al., 2024). It needs targets with zeros. For hard labels the loss is the log-Q corrected
    in-batch or sampled softmax (Bengio and Senécal, 2008), and with m alone the balanced softmax or logit adjustment
    (Ren et al., 2020; Menon et al., 2021); derived here from the bound of section 3.3 of Hugger and Uhlmann (2024).

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> expected_info_nce(logits, torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]))
    tensor(1.1673)
    """
    return expected(Call(Logits(logits), targets, checked(options.OfExpected, given), noise_probs))


@takes(options.TableExpected)
def linear_expected_info_nce(
    features: Tensor, table: Tensor, targets: Targets, noise_probs: Eta = None, **given: Unpack[options.TableExpected]
) -> Tensor:
    """:func:`expected_info_nce` of the logits ``features @ table.T + bias``, from the columns that occur.

    By default the negatives are drawn: with U distinct classes among targets and negatives O(N·U·d) time and O(N·U)
    memory, whatever K. Smoothed and dense targets touch every class, and so does noise in the mean: they need all
    logits, O(N·K·d), and raise an error if ``sparse``.
    """
    chosen = checked(options.TableExpected, given)
    return expected(Call(as_table(features, table, chosen), targets, chosen, noise_probs))


@takes(options.OfInfoNCE)
def info_nce(logits: Tensor, targets: Targets, noise_probs: Eta = None, **given: Unpack[options.OfInfoNCE]) -> Tensor:
    """Pick each row's label y out of the batch's labels: −s_y + log Σ_{c ∈ C} exp s_{y_c}. O(N·K)."""
    return soft_target(Call(Logits(logits), targets, checked(options.OfInfoNCE, given), noise_probs, hard=True))


@takes(options.TableInfoNCE)
def linear_info_nce(
    features: Tensor, table: Tensor, targets: Targets, noise_probs: Eta = None, **given: Unpack[options.TableInfoNCE]
) -> Tensor:
    """:func:`info_nce` of the logits ``features @ table.T + bias``, from the columns that occur. O(N·U·d)."""
    chosen = checked(options.TableInfoNCE, given)
    return soft_target(Call(as_table(features, table, chosen), targets, chosen, noise_probs, hard=True))


@takes(options.OfSoftDistribution)
def soft_distribution_info_nce(
    logits: Tensor, targets: Targets, noise_probs: Eta = None, **given: Unpack[options.OfSoftDistribution]
) -> Tensor:
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels. O(N·K).

    ``noise_probs`` are the label frequencies before ``label_smoothing``, which smooths them together with the targets.
    """
    chosen = {**checked(options.OfSoftDistribution, given), "draw": Categorical()}
    return soft_target(Call(Logits(logits), targets, chosen, noise_probs))


@takes(options.OfCrossEntropy)
def soft_target_cross_entropy(logits: Tensor, targets: Targets, **given: Unpack[options.OfCrossEntropy]) -> Tensor:
    """−Σ_k α_k·log softmax(logits/τ)_k. O(N·K).

    As :func:`torch.nn.functional.cross_entropy`: with ``class_weight``, the mean of integer labels divides by the sum
    of their weights, that of probabilities and of SoftTargets by the number of samples. Targets may carry a gradient.
    """
    return cross_entropy(Call(Logits(logits), targets, checked(options.OfCrossEntropy, given), is_contrast=False))


@takes(options.TableCrossEntropy)
def linear_soft_target_cross_entropy(
    features: Tensor, table: Tensor, targets: Targets, **given: Unpack[options.TableCrossEntropy]
) -> Tensor:
    """:func:`soft_target_cross_entropy` of the logits ``features @ table.T + bias``, exactly, by blocks. O(N·K·d)."""
    chosen = checked(options.TableCrossEntropy, given)
    return cross_entropy(Call(as_table(features, table, chosen), targets, chosen, is_contrast=False))


@takes(options.OfNLL)
def nll(logits: Tensor, targets: Targets, **given: Unpack[options.OfNLL]) -> Tensor:
    """−log softmax(logits/τ)_y of hard labels y. O(N·K).

    With ``class_weight`` the mean divides by the sum of the labels' weights, also for SoftTargets.
    """
    chosen = checked(options.OfNLL, given)
    return cross_entropy(Call(Logits(logits), targets, chosen, hard=True, is_contrast=False))


@takes(options.TableNLL)
def linear_nll(features: Tensor, table: Tensor, targets: Targets, **given: Unpack[options.TableNLL]) -> Tensor:
    """:func:`nll` of the logits ``features @ table.T + bias``, exactly, by blocks. O(N·K·d)."""
    chosen = checked(options.TableNLL, given)
    return cross_entropy(Call(as_table(features, table, chosen), targets, chosen, hard=True, is_contrast=False))


def soft_target(call: Call) -> Tensor:
    """−σ(α) + log Σ_{c ∈ C} exp σ(c), σ(c) = Σ_k c_k s_k: whole targets are scored."""
    given, draw = call.given, call.options["draw"]
    if m := noise_count(given):
        raise ValueError(
            "NoiseCandidates are candidates in expectation, which only ExpectedInfoNCE can count; for this loss draw "
            f"them: SampledCandidates({m:g})"
        )
    if isinstance(given, ClassCandidates) and given.smoothing == 0:
        call.gather_for_noise()
        return cross_entropy(call)
    candidates, hold_own = call.candidates()
    are_labels = call.targets.weight is None and candidates.weight is None
    if are_labels and call.targets.shares_background(candidates):
        return of_labels(call, candidates, hold_own)
    if call.options["exclude"] is not None:
        raise ValueError("exclude needs candidates that are labels, or ExpectedInfoNCE: soft targets are no classes")
    alpha, candidates = call.columns(call.targets, candidates, cancels=True)
    n = 1.0 if draw is None else draw.scale  # the likelihood ratio is exp(n·σ)
    return call.evaluate(
        autograd.soft_target, alpha, {"own": call.places() if hold_own else None}, candidates=candidates,
        temperature=call.temperature / n, log_noise=log_eta_power(call, hold_own, n), remove_hits=call.drops_hits,
    )  # fmt: skip


def of_labels(call: Call, candidates: SoftTargets, hold_own: bool) -> Tensor:
    """The same for labels: only the class counts n of the candidates matter, log(1 + Σ_k n_k e^{s_k − s_y}).

    Smoothing ε that all share cancels but for the temperature τ/(1 − ε) and the noise η^(1 − ε).
    """
    alpha, negatives, kept = call.targets, candidates, 1 - call.targets.smoothing
    if kept != 1:
        alpha, negatives = (SoftTargets(t.num_classes, t.index, None, mask=t.mask) for t in (alpha, negatives))
    alpha, negatives, own = call.columns(alpha, negatives, call.own_labels(alpha) if hold_own else None)
    counts = negatives.class_mass(torch.float64)
    call.counts = counts if negatives is call.batch else None
    return by_class(call, alpha, counts, own, call.temperature / kept, log_eta_power(call, hold_own, kept))


def expected(call: Call) -> Tensor:
    """Σ_k α_k log(1 + R/e^{s_k}), R = Σ_k (n_k − own_k) e^{s_k}: every label a target could draw, weighed."""
    is_mean = (call.options["negatives"] or ("mean" if isinstance(call.source, Logits) else "drawn")) == "mean"
    if call.options["drop_own_classes"]:
        check_zeros(call.targets)
    negatives, own, m = mean_negatives(call) if is_mean else drawn_negatives(call)
    alpha, negatives, own = call.columns(call.targets, negatives, own, reason="noise in expectation" if m else "")
    log_noise = call.log_noise(smoothed=True)
    counts: Any = call.counts if negatives is None else negatives.class_mass(torch.float64)
    if m:  # draws from η, in expectation
        counts = counts + (m / call.source.num_classes if log_noise is None else m * log_noise.double().exp())
    return by_class(call, alpha, counts, own, call.temperature, log_noise)


def by_class(
    call: Call, alpha: SoftTargets, counts: Tensor, own: SoftTargets | None, temperature: Any, log_noise: Tensor | None
) -> Tensor:
    """Negatives that matter through their class counts n alone, of which each row takes out its ``own``."""
    return call.evaluate(
        autograd.expected, alpha, {"own": own, "exclude": call.exclude}, counts=counts, temperature=temperature,
        log_noise=log_noise, drop_own_classes=call.drops_hits,
    )  # fmt: skip


def cross_entropy(call: Call) -> Tensor:
    """−Σ_k α_k·log softmax(s)_k, from logits by rows, from a table by blocks."""
    source, alpha, log_noise = call.source, call.targets, call.log_noise(smoothed=False)
    class_weight = None if call.is_contrast else call.options["class_weight"]
    given: dict[str, Any] = {"temperature": call.temperature, "class_weight": class_weight}
    if isinstance(source, Table):
        if log_noise is None:
            given |= {"bias": source.bias, "cosine": source.cosine, **call.reduction()}
            return call.finish(exact_cross_entropy(source.rows, source.table, alpha, **given))
        call.scores = source.logits(None)
    elif alpha.rest is not None:
        if class_weight is not None:
            raise ValueError("class_weight cannot weigh a group of classes: the targets hold a rest beyond their top k")
        with full_precision(source.rows.device):
            scores = source.rows.to(at_least_float32(source.rows.dtype)) / call.temperature
            return call.finish(call.reduced(group_cross_entropy(scores, alpha)))
    return call.evaluate(autograd.counted, alpha, {}, log_noise=log_noise, **given)


def mean_negatives(call: Call) -> tuple[SoftTargets | None, SoftTargets | None, float]:
    """Candidates with all their classes, each row's own among them, and m draws from η in expectation."""
    given, classes = call.given, call.source.num_classes
    if given is None and isinstance(call.source, Logits):
        batch, exchange = call.batch, call.exchange  # ranks send their counts instead of targets
        call.counts = batch.class_mass(torch.float64) if exchange is None else exchange.class_counts(batch)
        return None, call.targets, classes
    candidates, hold_own = call.candidates()
    return candidates, call.targets if hold_own else None, classes if given is None else noise_count(given)


def drawn_negatives(call: Call) -> tuple[SoftTargets, SoftTargets | None, float]:
    """One label drawn from each candidate, the one drawn from each row's own, and m labels drawn from η."""
    candidates, hold_own = call.candidates()
    if call.options["batch"] is not None and call.generator is None and not candidates.is_hard:
        raise ValueError("negatives='drawn' with batch needs a generator, in the same state for every micro-batch")
    labels = candidates.labels if candidates.is_hard else candidates.sample(call.generator)
    drawn, own = SoftTargets(candidates.num_classes, labels[:, None], None, mask=candidates.mask), None
    if isinstance(call.given, ClassCandidates):
        own = call.targets
    elif hold_own:
        is_known = candidates.is_hard and call.targets.is_hard
        own = call.own_labels(call.targets if is_known else drawn[call.places()])
    if m := round(noise_count(call.given)):
        drawn = SoftTargets.cat([drawn, SoftTargets(drawn.num_classes, call.draw_labels_from_eta(m)[:, None], None)])
    return drawn, own, 0.0


def log_eta_power(call: Call, hold_own: bool, exponent: float | Tensor) -> Tensor | None:
    """log η^exponent; η is smoothed as the targets are if labels are drawn from them."""
    log_noise = call.log_noise(smoothed=call.options["draw"] is not None and hold_own)
    return log_noise if log_noise is None or exponent == 1 else log_noise * exponent


def noise_count(given: Any) -> float:
    """How many further draws from η the option ``candidates`` asks for in expectation."""
    return getattr(given, "noise_count", 0)


def check_zeros(targets: SoftTargets) -> None:
    """With ``drop_own_classes``, targets with weight on every class leave no negatives."""
    full = targets.has_background
    if targets.form == DENSE and not full and values_are_checked(targets.weight):
        full = bool((targets.pair_weight() > 0).all(1).any())
    if full:
        raise ValueError(
            "drop_own_classes needs targets with zeros, got rows with weight on every class (a background or a dense "
            "row): use labels or pairs without label_smoothing"
        )


def as_table(features: Tensor, table: Tensor, given: dict[str, Any]) -> Table:
    """The scores of a table, whose options are taken out of ``given``."""
    return Table(features, table, **{name: given.pop(name) for name in DECLARED[options.OfTable] if name in given})


def probabilities(logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
    """p(k|x) ∝ exp(logit_k/τ), (N, K): the model that all these losses train, normalised over the classes."""
    Logits(logits)  # checks them
    return (logits.to(at_least_float32(logits.dtype)) / positive(temperature, "temperature")).softmax(1)


def linear_topk(
    features: Tensor,
    table: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    cosine: bool = False,
    chunk_size: int = 65536,
) -> tuple[Tensor, Tensor]:
    """The k best logits of ``features @ table.T + bias`` and their classes, (N, k) each, best first.

    Features (N, L, d) give (N, L, k). Goes through the whole table, ``chunk_size`` classes at a time.
    O(N·K·d) time, O(N·chunk_size) memory.
    """
    check_table(features, table, bias)
    k, chunk_size = as_whole(k, "k"), as_whole(chunk_size, "chunk_size")
    if k > len(table):
        raise ValueError(f"k must be between 1 and the {len(table)} classes, got {k}")
    dtype = torch.promote_types(features.dtype, table.dtype)
    z = F.normalize(features.to(dtype), dim=-1) if check_flag(cosine, "cosine") else features.to(dtype)
    best = z.new_empty(*z.shape[:-1], 0)
    classes = torch.empty_like(best, dtype=torch.long)
    for start in range(0, len(table), chunk_size):
        part = slice(start, start + chunk_size)
        rows, shift = table[part].to(dtype), None if bias is None else bias[part].to(dtype)
        logits = F.linear(z, F.normalize(rows, dim=1) if cosine else rows, shift)
        values, index = logits.topk(min(k, len(rows)))
        best, order = torch.cat([best, values], -1).topk(min(k, best.shape[-1] + values.shape[-1]))
        classes = torch.cat([classes, index + start], -1).gather(-1, order)
    return best, classes
