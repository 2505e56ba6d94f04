"""The losses as functions of class scores and targets.

Every function takes ``logits`` (N, K) or (N, K, d₁, …), the ``linear_*`` ones ``features`` (N, d) and a ``table`` of
label embeddings (K, d) instead, and ``targets``: labels (N,) or (N, d₁, …), probabilities of the logits' shape, or
:class:`~softnce.SoftTargets` (of N·d₁·… rows, the class dimension moved last). Scores are computed in float32 or
better, also under autocast, and the loss of half-precision logits is float32. Functions keep no state and exchange
nothing between ranks; the Modules in :mod:`softnce.losses` call the same pipeline and do both.

Arguments they share:

- ``noise_probs`` η: class probabilities (K,), None for uniform. The score of class k is logit_k/τ − log η_k.
- ``temperature`` τ: a positive number, or a tensor (a learnable parameter).
- ``candidates``: what each target is contrasted with. None: the batch's targets (or what ``draw`` supplies); a
  :class:`~softnce.Candidates`; or :class:`~softnce.SoftTargets`, used as they are.
- ``batch``, ``own``: for a part of a larger batch (gradient accumulation). ``batch`` holds the targets of the whole
  batch, ``own`` (N,) the positions of these rows in it. The rows are contrasted with the whole batch and the mean is
  over the whole batch, so that the losses of all parts add up to the loss of the batch. Without ``batch``, ``own``
  gives positions in ``candidates`` passed as SoftTargets, for candidates that hold the rows' own targets.
- ``draw``: how a soft target becomes the α that is contrasted, see :mod:`softnce.draws`; None: it stays as it is.
- ``generator``: source of randomness of ``draw`` and ``candidates``. With ``draw`` and ``batch``, pass a generator in
  the same state for every part of the batch.
- ``remove_accidental_hits``: leave out other candidates that equal the row's own target. Costs an (N, M) mask.
- ``chunk_size``: rows processed at a time, which limits the memory for scores to chunk_size × M; by default as many as
  fit the cache.
- ``reduction``: ``"mean"`` (weighted, over the samples that are not ignored), ``"sum"`` or ``"none"``.
- ``sample_weight``: one weight per sample, of the labels' shape; with ``batch``, one per row of the whole batch.
- ``class_weight`` (K,): in cross-entropy as in :func:`torch.nn.functional.cross_entropy`; in the contrastive losses it
  weighs a sample by Σ_k α_k·class_weight_k, which is the same for a label.
- ``label_smoothing`` ε in [0, 1]: moves the targets towards uniform, and with them ``batch`` and the ``candidates``
  that ``own`` points into. Where candidates are labels that the batch's targets draw or could draw (soft distribution
  and expected InfoNCE) it smooths η too: ``noise_probs`` are the label frequencies before ``label_smoothing``.
- ``ignore_index``: samples with this label are neither positives nor candidates. If every sample is ignored, the loss
  is 0.

All functions return a scalar, or with ``reduction="none"`` a tensor of the labels' shape.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from softnce._checks import as_whole, check_flag
from softnce._pipeline import compute
from softnce._rows import OthersForm, Reduction, check_table, check_temperature
from softnce._scores.classes import class_scores
from softnce._scores.logits import Logits
from softnce._scores.table import Table
from softnce.candidates import Candidates
from softnce.draws import Categorical, Draw
from softnce.noise import log_noise
from softnce.targets import SoftTargets

__all__ = [
    "expected_info_nce",
    "info_nce",
    "linear_expected_info_nce",
    "linear_soft_target_info_nce",
    "linear_topk",
    "nll",
    "probabilities",
    "ranking",
    "soft_distribution_info_nce",
    "soft_target_cross_entropy",
    "soft_target_info_nce",
]


def soft_target_info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    candidates: Candidates | SoftTargets | None = None,
    draw: Draw | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Pick each row's soft target out of the candidates.

        ℓ = −σ(α) + log Σ_{c ∈ C} exp σ(c),   σ(c) = Σ_k c_k s_k,   s_k = logit_k/τ − log η_k

    The row's own target is in C exactly once. Time O(N·K) for labels, O(N·M·S) for S pairs, one (N, K) × (K, M) product
    for dense targets. Besides the gradient, memory is one chunk, and N × M where K > 2·M·S; never N × M × K. Targets
    carry no gradient.

    Args: see :mod:`softnce.functional`.

    Returns:
        the loss, () or of the labels' shape.

    References: eq. (soft-target-infonce) of Hugger and Uhlmann, *Noise contrastive estimation with soft targets for
    conditional models* (2024).

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> soft_target_info_nce(logits, torch.tensor([0, 1]), label_smoothing=0.1)
    tensor(0.1530)
    """
    source = Logits(logits)
    return compute(
        source, targets, contrast="geometric", log_noise=log_noise(noise_probs, source.num_classes),
        temperature=temperature, candidates=candidates, draw=draw, remove_accidental_hits=remove_accidental_hits,
        chunk_size=chunk_size, reduction=reduction, sample_weight=sample_weight, class_weight=class_weight,
        label_smoothing=label_smoothing, ignore_index=ignore_index, batch=batch, own=own, generator=generator,
    )[0]  # fmt: skip


def linear_soft_target_info_nce(
    features: Tensor,
    table: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    sparse: bool = False,
    cosine: bool = False,
    temperature: float | Tensor = 1.0,
    candidates: Candidates | SoftTargets | None = None,
    draw: Draw | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """:func:`soft_target_info_nce` of the logits ``features @ table.T + bias``, without computing them.

    Value and gradients are the same, but the cost does not depend on the number of classes: S rows of ``table`` are
    mixed for each of the M candidates, then multiplied with the N features. O(N·M·d + M·S·d) time, O(N·M + M·S·d)
    memory.

    Args:
        features: (N, d).
        table: label embeddings (K, d).
        bias: (K,).
        sparse: make the gradient of ``table`` a sparse tensor of the rows touched, for ``SparseAdam`` or ``SGD``.
        cosine: normalise features and label embeddings to unit length.
        chunk_size: rows processed at a time and recomputed in backward, which limits memory to chunk_size × M.

    The other arguments are those of :mod:`softnce.functional`.

    Returns:
        the loss, () or (N,).

    >>> table = torch.randn(1_000_000, 16, requires_grad=True)
    >>> loss = linear_soft_target_info_nce(torch.randn(4, 16), table, torch.tensor([5, 6, 7, 8]), sparse=True)
    >>> loss.backward()
    >>> table.grad.coalesce().indices()
    tensor([[5, 6, 7, 8]])
    """
    source = Table(features, table, bias, sparse, cosine)
    return compute(
        source, targets, contrast="geometric", log_noise=log_noise(noise_probs, source.num_classes),
        temperature=temperature, candidates=candidates, draw=draw, remove_accidental_hits=remove_accidental_hits,
        chunk_size=chunk_size, reduction=reduction, sample_weight=sample_weight, class_weight=class_weight,
        label_smoothing=label_smoothing, ignore_index=ignore_index, batch=batch, own=own, generator=generator,
    )[0]  # fmt: skip


def expected_info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    candidates: Candidates | SoftTargets | None = None,
    others: OthersForm | None = None,
    chunk_size: int | None = None,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """InfoNCE summed over the label that each soft target could draw, instead of drawing it.

        ℓ = Σ_k α_k log(1 + R/exp(s_k)),   R = Σ_{c ∈ C, c ≠ own} Σ_j c_j exp(s_j),   s_k = logit_k/τ − log η_k

    R sums over the other candidates in the mean (``others="mean"``), or over one label drawn from each
    (``others="drawn"``). The loss is at least the expectation of soft distribution InfoNCE, has no noise from its draw,
    and equals :func:`info_nce` for labels against labels. O(N·K) for labels, pairs and dense rows alike.

    e^{s_k} learns p(k|x)/η_k up to a constant: exactly if the others are drawn, and in the mean as long as
    (M + m)·η_k ≫ α_k for M candidates and m more from η (:class:`~softnce.NoiseCandidates`); with fewer it is flatter,
    with the classes in the same order. Hence the defaults:
    from logits the others are counted in the mean and m = K, so that every class is expected among them
    (``candidates=BatchCandidates()`` is m = 0, ``BatchCandidates() + NoiseCandidates(m)`` any other m); from a table
    they are drawn, and m = 0.

    Args:
        noise_probs: η must be the marginal of the targets. ``label_smoothing`` smooths it together with them; if the
            targets are already smoothed, pass a smoothed η.
        others: ``"mean"``, ``"drawn"``, or None for ``"mean"`` from logits and ``"drawn"`` from a table.

    The other arguments are those of :mod:`softnce.functional`.

    Returns:
        the loss, () or of the labels' shape.

    References: for hard labels this is the log-Q corrected in-batch or sampled softmax (Bengio and Senécal, 2008), and
    with m alone the balanced softmax or logit adjustment (Ren et al., 2020; Menon et al., 2021); derived here from the
    bound of section 3.3 of Hugger and Uhlmann (2024).

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> expected_info_nce(logits, torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]))
    tensor(1.1673)
    """
    source = Logits(logits)
    return compute(
        source, targets, contrast="arithmetic", log_noise=log_noise(noise_probs, source.num_classes),
        temperature=temperature, candidates=candidates, others=others, chunk_size=chunk_size, reduction=reduction,
        sample_weight=sample_weight, class_weight=class_weight, label_smoothing=label_smoothing,
        ignore_index=ignore_index, batch=batch, own=own, generator=generator,
    )[0]  # fmt: skip


def linear_expected_info_nce(
    features: Tensor,
    table: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    sparse: bool = False,
    cosine: bool = False,
    temperature: float | Tensor = 1.0,
    candidates: Candidates | SoftTargets | None = None,
    others: OthersForm | None = None,
    chunk_size: int | None = None,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """:func:`expected_info_nce` of the logits ``features @ table.T + bias``, from the classes that occur.

    By default the others are drawn: with M candidates and targets of S pairs O(N·(M + S)·d) time and O(N·M) memory,
    whatever K. Smoothed and dense targets touch every class, and so does noise in the mean: they need all logits,
    O(N·K·d), and raise an error if ``sparse``.

    Args:
        features: (N, d).
        table: label embeddings (K, d).
        bias: (K,).
        sparse: make the gradient of ``table`` a sparse tensor of the rows touched, for ``SparseAdam`` or ``SGD``.
        cosine: normalise features and label embeddings to unit length.

    The other arguments are those of :func:`expected_info_nce`.

    Returns:
        the loss, () or (N,).

    >>> table = torch.randn(1_000_000, 16, requires_grad=True)
    >>> loss = linear_expected_info_nce(torch.randn(4, 16), table, torch.tensor([5, 6, 7, 8]), sparse=True)
    >>> loss.backward()
    >>> table.grad.coalesce().indices()
    tensor([[5, 6, 7, 8]])
    """
    source = Table(features, table, bias, sparse, cosine)
    return compute(
        source, targets, contrast="arithmetic", log_noise=log_noise(noise_probs, source.num_classes),
        temperature=temperature, candidates=candidates, others=others, chunk_size=chunk_size, reduction=reduction,
        sample_weight=sample_weight, class_weight=class_weight, label_smoothing=label_smoothing,
        ignore_index=ignore_index, batch=batch, own=own, generator=generator,
    )[0]  # fmt: skip


def info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    candidates: Candidates | SoftTargets | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """InfoNCE on class logits: pick each row's label out of the batch's labels. O(N·K).

    The same as :func:`soft_target_info_nce`, for hard labels only.
    """
    source = Logits(logits)
    return compute(
        source, targets, contrast="geometric", hard_labels_of="info_nce",
        log_noise=log_noise(noise_probs, source.num_classes), temperature=temperature, candidates=candidates,
        remove_accidental_hits=remove_accidental_hits, chunk_size=chunk_size, reduction=reduction,
        sample_weight=sample_weight, class_weight=class_weight, ignore_index=ignore_index, batch=batch, own=own,
        generator=generator,
    )[0]  # fmt: skip


def soft_distribution_info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    candidates: Candidates | SoftTargets | None = None,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels. O(N·K).

    ``noise_probs`` are the label frequencies before ``label_smoothing``, which smooths them together with the targets.
    """
    return soft_target_info_nce(
        logits, targets, noise_probs,
        temperature=temperature, candidates=candidates, draw=Categorical(),
        remove_accidental_hits=remove_accidental_hits, chunk_size=chunk_size, reduction=reduction,
        sample_weight=sample_weight, class_weight=class_weight, label_smoothing=label_smoothing,
        ignore_index=ignore_index, batch=batch, own=own, generator=generator,
    )  # fmt: skip


def soft_target_cross_entropy(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    *,
    temperature: float | Tensor = 1.0,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """−Σ_k α_k·log softmax(logits/τ)_k. O(N·K).

    As :func:`torch.nn.functional.cross_entropy`: with ``class_weight``, the mean of integer labels divides by the sum
    of their weights, that of probabilities and of SoftTargets by the number of samples. Targets may carry a gradient.
    """
    return compute(
        Logits(logits), targets, contrast="classes", temperature=temperature, reduction=reduction,
        sample_weight=sample_weight, class_weight=class_weight, label_smoothing=label_smoothing,
        ignore_index=ignore_index, batch=batch, own=own,
    )[0]  # fmt: skip


def nll(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    *,
    temperature: float | Tensor = 1.0,
    reduction: Reduction = "mean",
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    batch: SoftTargets | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """−log softmax(logits/τ)_y of hard labels y. O(N·K).

    With ``class_weight`` the mean divides by the sum of the labels' weights, also for SoftTargets.
    """
    return compute(
        Logits(logits), targets, contrast="classes", hard_labels_of="nll", temperature=temperature,
        reduction=reduction, sample_weight=sample_weight, class_weight=class_weight, ignore_index=ignore_index,
        batch=batch, own=own,
    )[0]  # fmt: skip


def probabilities(logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
    """p(k|x) ∝ exp(logit_k/τ), (N, K): the model that all these losses train, normalised over the classes."""
    _check_logits(logits)
    return class_scores(logits, check_temperature(temperature)).softmax(1)


def ranking(logits: Tensor, k: int = 1) -> Tensor:
    """The k best classes of each row, best first, (N, k). Independent of noise and temperature."""
    _check_logits(logits)
    k = as_whole(k, "k")
    if k > logits.shape[1]:
        raise ValueError(f"k must be between 1 and the {logits.shape[1]} classes, got {k}")
    return logits.topk(k, dim=1).indices


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
