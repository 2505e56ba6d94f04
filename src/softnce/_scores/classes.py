"""Scores of the classes themselves, and the cross-entropy of their softmax."""

from torch import Tensor

from softnce._precision import at_least_float32
from softnce.targets import SoftTargets


def class_scores(logits: Tensor, temperature: float | Tensor = 1.0, log_noise: Tensor | None = None) -> Tensor:
    """s = logits/τ − log η, (N, K), in float32 or better whatever autocast says.

    Without ``log_noise`` η is uniform; −log η is then one constant, which no loss here can see, and is left out.
    """
    scores = logits.to(at_least_float32(logits.dtype))
    if isinstance(temperature, Tensor) or temperature != 1.0:
        scores = scores / temperature
    return scores if log_noise is None else scores - log_noise.to(scores.dtype)


def cross_entropy(scores: Tensor, targets: SoftTargets, class_weight: Tensor | None = None) -> Tensor:
    """−Σ_k α_k·log softmax(s)_k of every row, (N,); with ``class_weight`` w, −Σ_k w_k·α_k·log softmax(s)_k. O(N·K)."""
    log_probs = scores.log_softmax(1)
    if class_weight is not None:
        log_probs = log_probs * class_weight.to(log_probs.dtype)
    return -targets.expectation(log_probs)
