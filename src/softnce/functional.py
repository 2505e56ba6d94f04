"""The losses as functions of class logits and targets.

Every one takes ``logits`` (N, K) or (N, K, d₁, …) and ``targets``: labels (N,) or (N, d₁, …), probabilities of the
logits' shape, or :class:`~softnce.SoftTargets` (of N·d₁·… rows, the class dimension moved last). Scores are computed in
float32 or better, also under autocast, and a loss of half-precision logits is float32.

Arguments they share:

- ``temperature`` τ: a positive number, or a tensor (a learnable parameter).
- ``noise_probs`` η: class probabilities (K,), None for uniform.
- ``reduction``: ``"mean"`` (weighted, over the rows that count), ``"sum"`` or ``"none"``.
- ``weight``: one weight a sample, of the labels' shape.
- ``class_weight`` (K,): in cross-entropy as in :func:`torch.nn.functional.cross_entropy`; in the contrastive losses it
  weighs a sample by Σ_k α_k·class_weight_k, which for a label is the same thing.
- ``label_smoothing`` ε in [0, 1]: moves the targets towards uniform.
- ``ignore_index``: samples with this label are neither positives nor candidates. A batch of nothing else has loss 0.
"""

import torch
from torch import Tensor

from softnce import draws
from softnce.arguments import (
    blank_ignored,
    check_candidates,
    check_chunk_size,
    check_class_weight,
    check_hard,
    check_own,
    check_temperature,
    reduce,
    row_weight,
    rows_of_features,
    rows_of_logits,
    rows_of_targets,
    times,
    total_weight,
)
from softnce.contrast import class_scores, contrast, cross_entropy
from softnce.linear import linear_contrast
from softnce.noise import log_noise
from softnce.targets import SoftTargets

__all__ = [
    "info_nce",
    "linear_soft_target_info_nce",
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
    temperature: float | Tensor = 1.0,
    candidates: SoftTargets | None = None,
    reduction: str = "mean",
    *,
    own: Tensor | None = None,
    weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    r"""Pick each row's soft target out of the candidates.

    .. math:: \ell = -\log \frac{e^{\sigma(\alpha)}}{\sum_{c \in C} e^{\sigma(c)}}, \qquad
              \sigma(c) = \sum_k c_k \left(\text{logit}_k / \tau - \log \eta_k\right)

    Args:
        candidates: every target to contrast with; None: the batch's own ``targets``.
        own: (N,) which of the candidates is each row's own; None: it is not among them, and is added.
        remove_accidental_hits: leave out other candidates that equal the row's own target.
        chunk_size: rows worked on at a time, to bound the memory for scores by chunk_size × M; by default as many as
            the cache holds.

    Time O(N·K) for labels, O(N·M·S) for S pairs, one (N, K) × (K, M) product for dense targets. Besides the gradient,
    memory is one chunk, and N × M where K > 2·M·S; never N × M × K. Removing accidental hits takes an N × M mask more.
    Targets carry no gradient.

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> soft_target_info_nce(logits, torch.tensor([0, 1]), label_smoothing=0.1)
    tensor(0.1530)
    """
    logits, shape = rows_of_logits(logits)
    soft = rows_of_targets(targets, logits, shape, label_smoothing, ignore_index).detach()
    logits = blank_ignored(logits, soft)
    if candidates is None:
        if own is not None:
            raise ValueError("own says which of candidates is each row's own, so it needs candidates")
        candidates, own = soft, torch.arange(len(soft), device=logits.device)
    else:
        check_candidates(candidates, own, *logits.shape)
        check_own(candidates, own, soft)
    eta, temperature = log_noise(noise_probs, logits.shape[1]), check_temperature(temperature)
    losses = contrast(
        logits, temperature, eta, soft, [candidates], own, remove_accidental_hits, check_chunk_size(chunk_size)
    )
    return reduce(losses, contrast_weight(soft, shape, weight, class_weight), reduction, shape)


def linear_soft_target_info_nce(
    input: Tensor,
    weight: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    candidates: SoftTargets | None = None,
    reduction: str = "mean",
    *,
    bias: Tensor | None = None,
    sparse: bool = False,
    cosine: bool = False,
    own: Tensor | None = None,
    sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    remove_accidental_hits: bool = False,
    chunk_size: int | None = None,
) -> Tensor:
    """:func:`soft_target_info_nce` of the logits ``input @ weight.T + bias``, without computing them.

    Value and gradients are the same, but no step depends on the number of classes: S rows of ``weight`` are mixed for
    each of the M candidates, then multiplied with the N inputs. O(N·M·d + M·S·d) time, O(N·M + M·S·d) memory.

    Args:
        input: features (N, d).
        weight: label embeddings (K, d).
        bias: (K,).
        sparse: make the gradient of ``weight`` a sparse tensor of the rows touched, for ``SparseAdam`` or ``SGD``.
        cosine: normalise features and label embeddings to unit length.
        sample_weight: one weight a sample, (N,).
        chunk_size: rows worked on at a time and recomputed in backward, to bound memory by chunk_size × M.

    >>> table = torch.randn(1_000_000, 16, requires_grad=True)
    >>> loss = linear_soft_target_info_nce(torch.randn(4, 16), table, torch.tensor([5, 6, 7, 8]), sparse=True)
    >>> loss.backward()
    >>> table.grad.coalesce().indices()
    tensor([[5, 6, 7, 8]])
    """
    features, soft, shape = rows_of_features(input, weight, bias, targets, label_smoothing, ignore_index)
    soft = soft.detach()
    if candidates is None:
        if own is not None:
            raise ValueError("own says which of candidates is each row's own, so it needs candidates")
        candidates, own = soft, torch.arange(len(soft), device=input.device)
    else:
        check_candidates(candidates, own, len(soft), soft.num_classes)
        check_own(candidates, own, soft)
    losses = linear_contrast(
        features,
        weight,
        bias,
        check_temperature(temperature),
        log_noise(noise_probs, len(weight)),
        soft,
        [candidates],
        own,
        remove_accidental_hits,
        check_chunk_size(chunk_size),
        sparse,
        cosine,
    )
    return reduce(losses, contrast_weight(soft, shape, sample_weight, class_weight), reduction, shape)


def info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    candidates: SoftTargets | None = None,
    reduction: str = "mean",
    *,
    own: Tensor | None = None,
    weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    remove_accidental_hits: bool = False,
) -> Tensor:
    """InfoNCE on class logits: pick each row's label out of the batch's labels. O(N·K).

    The same as :func:`soft_target_info_nce`, for hard labels only.
    """
    return soft_target_info_nce(
        logits,
        check_hard(targets, "info_nce"),
        noise_probs,
        temperature,
        candidates,
        reduction,
        own=own,
        weight=weight,
        class_weight=class_weight,
        ignore_index=ignore_index,
        remove_accidental_hits=remove_accidental_hits,
    )


def soft_distribution_info_nce(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    noise_probs: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    remove_accidental_hits: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """InfoNCE with one label drawn from each soft target, against the batch's drawn labels. O(N·K)."""
    logits, shape = rows_of_logits(logits)
    soft = rows_of_targets(targets, logits, shape, label_smoothing, ignore_index)
    drawn = draws.Categorical().alpha(soft, generator)
    losses = soft_target_info_nce(
        logits,
        drawn,
        noise_probs,
        temperature,
        reduction="none",
        remove_accidental_hits=remove_accidental_hits,
    )
    return reduce(losses, contrast_weight(drawn, shape, weight, class_weight), reduction, shape)


def soft_target_cross_entropy(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    temperature: float | Tensor = 1.0,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Tensor:
    """−Σ_k α_k·log softmax(logits/τ)_k. O(N·K).

    As :func:`torch.nn.functional.cross_entropy`, class weights and their part in the mean included; SoftTargets are
    treated as probabilities are there.
    """
    logits, shape = rows_of_logits(logits)
    soft = rows_of_targets(targets, logits, shape, label_smoothing, ignore_index)
    logits = blank_ignored(logits, soft)
    check_class_weight(class_weight, logits.shape[1])
    losses = cross_entropy(class_scores(logits, check_temperature(temperature)), soft, class_weight)
    rows = row_weight(soft, shape, weight)
    return reduce(losses, rows, reduction, shape, cross_entropy_total(losses, soft, rows, class_weight))


def nll(
    logits: Tensor,
    targets: Tensor | SoftTargets,
    temperature: float | Tensor = 1.0,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """−log softmax(logits/τ)_y of hard labels y. O(N·K)."""
    return soft_target_cross_entropy(
        logits,
        check_hard(targets, "nll"),
        temperature,
        reduction,
        weight=weight,
        class_weight=class_weight,
        ignore_index=ignore_index,
    )


def probabilities(logits: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """p(k|x) ∝ exp(logit_k/τ), (N, K): the model all these losses train, normalised over the classes."""
    return class_scores(logits, check_temperature(temperature)).softmax(1)


def ranking(logits: Tensor, k: int = 1) -> Tensor:
    """The k best classes of each row, best first, (N, k). The noise has no part in it, nor has the temperature."""
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must be between 1 and the {logits.shape[1]} classes, got {k}")
    return logits.topk(k, dim=1).indices


def contrast_weight(
    targets: SoftTargets, shape: torch.Size, weight: Tensor | None, class_weight: Tensor | None
) -> Tensor | None:
    """The weight of every row in a contrastive loss, (N,), or None where all weigh 1."""
    check_class_weight(class_weight, targets.num_classes)
    rows = row_weight(targets, shape, weight)
    return rows if class_weight is None else times(rows, targets.expectation(class_weight))


def cross_entropy_total(
    losses: Tensor, targets: SoftTargets, rows: Tensor | None, class_weight: Tensor | None
) -> Tensor:
    """What the mean of a cross-entropy divides by: the weights of the labels' classes, or of the rows if soft."""
    if class_weight is not None and targets.index is not None and targets.weight is None:
        rows = times(rows, class_weight[targets.index[:, 0]])
    return total_weight(len(losses), rows, losses)
