"""The losses as functions of class scores and targets.

Every function takes ``logits`` (N, K) or (N, K, d₁, …), the ``linear_*`` ones ``features`` (N, d) or (N, L, d) and a
``table`` of label embeddings (K, d) instead, and ``targets``: labels (N,) or (N, d₁, …), probabilities of the logits'
shape, or :class:`~softnce.SoftTargets` of one row per sample. The score of class k is s_k = logit_k/τ − log η_k, with
τ the ``temperature`` and η the ``noise_probs`` (K,), None for uniform. Scores are computed in float32 or better, also
under autocast; the loss of half-precision logits is float32.

Functions keep no state and exchange nothing between ranks; the Modules in :mod:`softnce.losses` do both around the same
steps. All return a scalar, or with ``reduction="none"`` a tensor of the labels' shape. If every sample is ignored, the
loss is 0.
"""

from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._checks import as_whole, check_flag
from softnce._core import autograd, options
from softnce._core.call import Call, Logits
from softnce._core.exact import exact_cross_entropy, group_cross_entropy
from softnce._core.negatives import drawn_negatives, mean_negatives, refuse_empty, refuse_exclusion, refuse_expectation
from softnce._core.options import positive, resolve, takes
from softnce._core.table import Columns, Table, check_table, columns_that_score, without_background
from softnce._precision import at_least_float32
from softnce.candidates import ClassCandidates
from softnce.draws import Categorical
from softnce.noise import FixedNoise
from softnce.targets import SoftTargets
from softnce.targets.soft_targets import LABELS

__all__ = [
    "expected_info_nce",
    "info_nce",
    "linear_expected_info_nce",
    "linear_info_nce",
    "linear_nll",
    "linear_soft_target_cross_entropy",
    "linear_soft_target_info_nce",
    "linear_topk",
    "nll",
    "probabilities",
    "soft_distribution_info_nce",
    "soft_target_cross_entropy",
    "soft_target_info_nce",
]

# --------------------------------------------------------------------------------------------------- the losses


@takes(options.OfSoftTarget)
def soft_target_info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    **given: Unpack[options.OfSoftTarget],
) -> Tensor:
    """Pick each row's soft target out of the candidates.

        ℓ = −σ(α) + log Σ_{c ∈ C} exp σ(c),   σ(c) = Σ_k c_k s_k,   s_k = logit_k/τ − log η_k

    The row's own target is in C exactly once. By default C is the batch's targets. Time O(N·K) for labels, O(N·M·S) for
    M candidates of S pairs, one (N, K) × (K, M) product for dense targets; memory one block of rows. Targets carry no
    gradient. Smoothing that all targets share cancels: ``label_smoothing=ε`` is the temperature τ/(1 − ε) with noise
    η^(1−ε).

    References: eq. (soft-target-infonce) of Hugger and Uhlmann, *Noise contrastive estimation with soft targets for
    conditional models* (2024).

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> soft_target_info_nce(logits, torch.tensor([0, 1]), label_smoothing=0.1)
    tensor(0.1530)
    """
    chosen = resolve(options.OfSoftTarget, given)
    return contrast_targets(Call(Logits(logits), targets, chosen, fixed(noise_probs)))


@takes(options.TableSoftTarget)
def linear_soft_target_info_nce(
    features: Tensor,
    table: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    **given: Unpack[options.TableSoftTarget],
) -> Tensor:
    """:func:`soft_target_info_nce` of the logits ``features @ table.T + bias``, from the columns that occur.

    Value and gradients are the same. With M candidates and targets of S pairs over U distinct classes the cost is
    O(N·U·d + N·M·S), whatever K. Dense targets and backgrounds that are not shared need all logits.

    >>> table = torch.randn(1_000_000, 16, requires_grad=True)
    >>> loss = linear_soft_target_info_nce(torch.randn(4, 16), table, torch.tensor([5, 6, 7, 8]), sparse=True)
    >>> loss.backward()
    >>> table.grad.coalesce().indices()
    tensor([[5, 6, 7, 8]])
    """
    chosen = resolve(options.TableSoftTarget, given)
    return contrast_targets(Call(as_table(features, table, chosen), targets, chosen, fixed(noise_probs)))


@takes(options.OfExpected)
def expected_info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    **given: Unpack[options.OfExpected],
) -> Tensor:
    """InfoNCE summed over the label that each soft target could draw, instead of drawing it.

        ℓ = Σ_k α_k log(1 + R/exp(s_k)),   R = Σ_{c ∈ C, c ≠ own} Σ_j c_j exp(s_j),   s_k = logit_k/τ − log η_k

    R sums over the negatives in the mean (``negatives="mean"``), or over one label drawn from each (``"drawn"``). The
    loss is at least the expectation of soft distribution InfoNCE, has no noise from its draw, and equals
    :func:`info_nce` for labels against labels. O(N·K) for labels, pairs and dense rows alike.

    e^{s_k} learns p(k|x)/η_k up to a constant: exactly if the negatives are drawn, and in the mean as long as
    (M + m)·η_k ≫ α_k for M candidates and m more from η (:class:`~softnce.NoiseCandidates`). With fewer it is flatter,
    with the classes in the same order. Hence the defaults: from logits the mean and m = K, from a table drawn negatives
    and m = 0. η must be the marginal of the targets; ``label_smoothing`` smooths it with them. If the targets are
    smoothed already, pass a smoothed η.

    ``drop_own_classes`` leaves every class with α_k > 0 out of R: the decoupled softmax, for several right answers per
    row. It needs targets with zeros.

    References: for hard labels this is the log-Q corrected in-batch or sampled softmax (Bengio and Senécal, 2008), and
    with m alone the balanced softmax or logit adjustment (Ren et al., 2020; Menon et al., 2021); derived here from the
    bound of section 3.3 of Hugger and Uhlmann (2024). Own classes out: DEXML (Gupta et al., 2024).

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> expected_info_nce(logits, torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]))
    tensor(1.1673)
    """
    chosen = resolve(options.OfExpected, given)
    return contrast_expected(Call(Logits(logits), targets, chosen, fixed(noise_probs)))


@takes(options.TableExpected)
def linear_expected_info_nce(
    features: Tensor,
    table: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    **given: Unpack[options.TableExpected],
) -> Tensor:
    """:func:`expected_info_nce` of the logits ``features @ table.T + bias``, from the columns that occur.

    By default the negatives are drawn: with U distinct classes among targets and negatives O(N·U·d) time and O(N·U)
    memory, whatever K. Smoothed and dense targets touch every class, and so does noise in the mean: they need all
    logits, O(N·K·d), and raise an error if ``sparse``.

    >>> table = torch.randn(1_000_000, 16, requires_grad=True)
    >>> loss = linear_expected_info_nce(torch.randn(4, 16), table, torch.tensor([5, 6, 7, 8]), sparse=True)
    >>> loss.backward()
    >>> table.grad.coalesce().indices()
    tensor([[5, 6, 7, 8]])
    """
    chosen = resolve(options.TableExpected, given)
    return contrast_expected(Call(as_table(features, table, chosen), targets, chosen, fixed(noise_probs)))


@takes(options.OfInfoNCE)
def info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    **given: Unpack[options.OfInfoNCE],
) -> Tensor:
    """Pick each row's label out of the batch's labels: ℓ = −s_y + log Σ_{c ∈ C} exp s_{y_c}. O(N·K).

    :func:`soft_target_info_nce` for hard labels.
    """
    chosen = resolve(options.OfInfoNCE, given)
    return contrast_targets(Call(Logits(logits), targets, chosen, fixed(noise_probs), hard_labels_of="info_nce"))


@takes(options.TableInfoNCE)
def linear_info_nce(
    features: Tensor,
    table: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    **given: Unpack[options.TableInfoNCE],
) -> Tensor:
    """:func:`info_nce` of the logits ``features @ table.T + bias``, from the columns that occur. O(N·U·d)."""
    chosen = resolve(options.TableInfoNCE, given)
    source = as_table(features, table, chosen)
    return contrast_targets(Call(source, targets, chosen, fixed(noise_probs), hard_labels_of="linear_info_nce"))


@takes(options.OfSoftDistribution)
def soft_distribution_info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    **given: Unpack[options.OfSoftDistribution],
) -> Tensor:
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels. O(N·K).

    ``noise_probs`` are the label frequencies before ``label_smoothing``, which smooths them together with the targets.
    """
    chosen = {**resolve(options.OfSoftDistribution, given), "draw": Categorical()}
    return contrast_targets(Call(Logits(logits), targets, chosen, fixed(noise_probs)))


@takes(options.OfCrossEntropy)
def soft_target_cross_entropy(
    logits: Tensor, targets: Tensor | SoftTargets, **given: Unpack[options.OfCrossEntropy]
) -> Tensor:
    """−Σ_k α_k·log softmax(logits/τ)_k. O(N·K).

    As :func:`torch.nn.functional.cross_entropy`: with ``class_weight``, the mean of integer labels divides by the sum
    of their weights, that of probabilities and of SoftTargets by the number of samples. Targets may carry a gradient.
    """
    return cross_entropy(Call(Logits(logits), targets, resolve(options.OfCrossEntropy, given), is_contrast=False))


@takes(options.TableCrossEntropy)
def linear_soft_target_cross_entropy(
    features: Tensor,
    table: Tensor,
    targets: Tensor | SoftTargets,
    **given: Unpack[options.TableCrossEntropy],
) -> Tensor:
    """:func:`soft_target_cross_entropy` of the logits ``features @ table.T + bias``, exactly, without an N × K matrix.

    O(N·K·d) time; blocks of rows and classes, whose gradients are computed on the way.
    """
    chosen = resolve(options.TableCrossEntropy, given)
    return cross_entropy(Call(as_table(features, table, chosen), targets, chosen, is_contrast=False))


@takes(options.OfNLL)
def nll(logits: Tensor, targets: Tensor | SoftTargets, **given: Unpack[options.OfNLL]) -> Tensor:
    """−log softmax(logits/τ)_y of hard labels y. O(N·K).

    With ``class_weight`` the mean divides by the sum of the labels' weights, also for SoftTargets.
    """
    chosen = resolve(options.OfNLL, given)
    return cross_entropy(Call(Logits(logits), targets, chosen, hard_labels_of="nll", is_contrast=False))


@takes(options.TableNLL)
def linear_nll(
    features: Tensor, table: Tensor, targets: Tensor | SoftTargets, **given: Unpack[options.TableNLL]
) -> Tensor:
    """:func:`nll` of the logits ``features @ table.T + bias``, exactly, without an N × K matrix."""
    chosen = resolve(options.TableNLL, given)
    source = as_table(features, table, chosen)
    return cross_entropy(Call(source, targets, chosen, hard_labels_of="linear_nll", is_contrast=False))


# ---------------------------------------------------------------------------------------------------- their steps


def contrast_targets(call: Call) -> Tensor:
    """Score whole targets, σ(c) = Σ_k c_k s_k, and pick the row's own out of the candidates."""
    given, draw = call.options["candidates"], call.options.get("draw")
    refuse_expectation(given)
    call.draw()
    if isinstance(given, ClassCandidates) and given.smoothing == 0:
        call.gather_for_noise()
        return cross_entropy(call)
    candidates, place = call.candidates()
    if call.targets.form == LABELS == candidates.form and call.targets.shares_background(candidates):
        return contrast_labels(call, candidates, place)
    refuse_exclusion(call)
    columns = columns_that_score(call, [call.targets, candidates], cancels=True)
    targets, candidates = columns.of(call.targets), columns.of(candidates)
    scale = 1.0 if draw is None else draw.scale
    log_noise = times(call.log_noise(columns.classes, smoothed=draw is not None and place is not None), scale)

    def losses(logits: Tensor, rows: slice, **reduction: Any) -> Tensor:
        return autograd.soft_target(
            logits, part(targets, rows), candidates, temperature=call.temperature / scale, log_noise=log_noise,
            own=part(place, rows), remove_hits=call.drops_hits, **reduction,
        )  # fmt: skip

    return call.evaluate(losses, columns.scores)


def contrast_labels(call: Call, candidates: SoftTargets, place: Tensor | None) -> Tensor:
    """Labels y against labels: only the class counts n of the candidates matter, ℓ = log(1 + Σ_k n_k e^{s_k − s_y}).

    Smoothing that all share cancels but for a temperature and the exponent of the noise.
    """
    smoothing = call.targets.smoothing
    assert isinstance(smoothing, float)
    targets, candidates = without_background(call.targets), without_background(candidates)
    own = call.own_labels(targets, place)
    columns = columns_that_score(call, [targets, candidates, own])
    drawn = call.options.get("draw") is not None and place is not None
    log_noise = times(call.log_noise(columns.classes, smoothed=drawn), 1 - smoothing)
    counts = columns.of(candidates).class_mass(torch.float64)
    return class_contrast(call, columns, targets, counts, own, call.temperature / (1 - smoothing), log_noise)


def contrast_expected(call: Call) -> Tensor:
    """Sum over the label that each target could draw; the negatives count by class, in the mean or drawn."""
    form = call.options["negatives"] or ("drawn" if isinstance(call.source, Table) else "mean")
    refuse_empty(call)
    candidates, own, mass = drawn_negatives(call) if form == "drawn" else mean_negatives(call)
    columns = columns_that_score(call, [call.targets, candidates, own], "" if mass is None else "noise in expectation")
    if mass is not None and len(candidates) == 0:
        counts = mass
    else:
        counts = columns.of(candidates).class_mass(torch.float64)
        counts = counts if mass is None else counts + mass
    log_noise = call.log_noise(columns.classes, smoothed=True)
    return class_contrast(call, columns, call.targets, counts, own, call.temperature, log_noise)


def class_contrast(
    call: Call,
    columns: Columns,
    targets: SoftTargets,
    counts: Tensor,
    own: SoftTargets | None,
    temperature: float | Tensor,
    log_noise: Tensor | None,
) -> Tensor:
    """Σ_k α_k log(1 + R/e^{s_k}),  R = Σ_k (n_k − own_k) e^{s_k}."""
    alpha, mine, exclude = columns.of(targets), None if own is None else columns.of(own), columns.exclude(call)

    def losses(logits: Tensor, rows: slice, **reduction: Any) -> Tensor:
        return autograd.expected(
            logits, part(alpha, rows), temperature=temperature, log_noise=log_noise, counts=counts,
            own=part(mine, rows), drop_own_classes=call.drops_hits, exclude=part(exclude, rows), **reduction,
        )  # fmt: skip

    return call.evaluate(losses, columns.scores)


def cross_entropy(call: Call) -> Tensor:
    """−Σ_k α_k·log softmax(s)_k, from logits by rows, from a table by blocks."""
    source, targets, log_noise = call.source, call.targets, call.log_noise(None, smoothed=False)
    class_weight = None if call.is_contrast else call.options["class_weight"]
    if isinstance(source, Table) and log_noise is None:
        return call.evaluate_table(exact_cross_entropy, class_weight)

    if targets.rest is not None:
        return call.evaluate_plainly(group_cross_entropy)

    def losses(logits: Tensor, rows: slice, **reduction: Any) -> Tensor:
        return autograd.counted(
            logits, part(targets, rows), temperature=call.temperature, log_noise=log_noise, class_weight=class_weight,
            **reduction,
        )  # fmt: skip

    return call.evaluate(losses, None if isinstance(source, Logits) else source.logits(None))


def part(given: Any, rows: slice) -> Any:
    """Some rows of targets or of a tensor; of all of them the object itself, so that the kernel sees what is shared."""
    return given if given is None or rows == slice(None) else given[rows]


def fixed(noise_probs: Tensor | None) -> FixedNoise | None:
    """η given to a function: probabilities (K,), or None for uniform."""
    return None if noise_probs is None else FixedNoise(noise_probs)


def as_table(features: Tensor, table: Tensor, given: dict[str, Any]) -> Table:
    return Table(features, table, given["bias"], given["sparse"], given["cosine"])


def times(log_noise: Tensor | None, power: float) -> Tensor | None:
    """log η^power."""
    return log_noise if log_noise is None or power == 1 else log_noise * power


# ------------------------------------------------------------------------------------------------- predictions


def probabilities(logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
    """p(k|x) ∝ exp(logit_k/τ), (N, K): the model that all these losses train, normalised over the classes."""
    _check_logits(logits)
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
    """The k best classes of each row of ``features @ table.T + bias`` and their logits.

    Goes through the whole table, ``chunk_size`` classes at a time. O(N·K·d) time, O(N·chunk_size) memory.

    Returns:
        logits and classes, (N, k) each, best first.
    """
    check_table(features, table, bias, allow_empty=True)
    k, chunk_size = as_whole(k, "k"), as_whole(chunk_size, "chunk_size")
    if k > len(table):
        raise ValueError(f"k must be between 1 and the {len(table)} classes, got {k}")
    dtype = torch.promote_types(features.dtype, table.dtype)
    z = F.normalize(features.to(dtype), dim=1) if check_flag(cosine, "cosine") else features.to(dtype)
    best = z.new_empty(len(features), 0)
    classes = torch.empty(len(features), 0, dtype=torch.long, device=features.device)
    for start in range(0, len(table), chunk_size):
        part = table[start : start + chunk_size].to(dtype)
        logits = F.linear(z, F.normalize(part, dim=1) if cosine else part)
        if bias is not None:
            logits = logits + bias[start : start + chunk_size]
        values, index = logits.topk(min(k, len(part)), dim=1)
        best, order = torch.cat([best, values], 1).topk(min(k, best.shape[1] + values.shape[1]), dim=1)
        classes = torch.cat([classes, index + start], 1).gather(1, order)
    return best, classes


def _check_logits(logits: Tensor) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() < 2:
        got = f"{tuple(logits.shape)} of {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"logits must be floating point (N, K) or (N, K, d1, ...), got {got}")
