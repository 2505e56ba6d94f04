"""How the contrastive loss pulls and pushes: gradients in closed form, attraction and repulsion.

For one sample with class scores s, its target α and candidates c (the target among them, exactly once),

    ℓ = −Σ_k α_k s_k + log Σ_c exp Σ_k c_k s_k,        w = softmax over the candidates of Σ_k c_k s_k,

everything follows from ∂ℓ/∂s = Σ_c w_c c − α: a class attracts the sample where the candidates hold less of it than the
target, and repels it where they hold more.

Shapes: ``scores`` (N, K), ``candidates`` (M, K) shared by all samples, ``own`` (N,) the place of each sample's target
among them, embeddings z (N, d) and y (K, d). Everything is dense: O(N·M·K) time, O(N·M + N·K + M·K) memory.
"""

import torch
from torch import Tensor

from softnce import _inputs
from softnce._core.options import positive
from softnce.targets import SoftTargets

Candidates = Tensor | SoftTargets


def candidate_weights(scores: Tensor, candidates: Candidates) -> Tensor:
    """w_nc = exp σ_n(c) / Σ_c' exp σ_n(c'), the share of candidate c in the repulsion of sample n. Shape (N, M)."""
    rows = _checked(scores, candidates)
    return (scores @ rows.mT).softmax(-1)


def score_gradient(scores: Tensor, candidates: Candidates, own: Tensor) -> Tensor:
    """∂ℓ_n/∂s_n = Σ_c w_nc c − α_n, shape (N, K). Negative attracts, positive repels; each row sums to 0.

    Its absolute value is ``eq:gradient_magnitude``, α_k |−1 + Σ_c w_c c_k / α_k|, and is defined where α_k = 0 too.
    """
    rows = _checked(scores, candidates, own=own)
    return candidate_weights(scores, rows) @ rows - rows[own]


def dot_gradients(
    z: Tensor,
    y: Tensor,
    candidates: Candidates,
    own: Tensor,
    temperature: float = 1.0,
    noise_probs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of Σ_n ℓ_n for scores s_nk = z_n·y_k/τ − log η_k, with respect to z and y; η is uniform if None."""
    _inputs.check_floating(z, "z", "(N, d)")
    _inputs.check_floating(y, "y", "(K, d)")
    if z.shape[-1] != y.shape[-1]:
        raise ValueError(f"z and y must have shapes (N, d) and (K, d), got {tuple(z.shape)} and {tuple(y.shape)}")
    positive(temperature, "temperature")
    scores = z @ y.mT / temperature
    if noise_probs is not None:
        _inputs.check_distribution(noise_probs, "noise_probs", len(y))
        if not bool((noise_probs > 0).all()):
            raise ValueError(f"noise_probs must hold {len(y)} positive numbers, got {noise_probs.tolist()}")
        scores = scores - noise_probs.log()
    gradient = score_gradient(scores, candidates, own) / temperature
    return gradient @ y, gradient.mT @ z


def cosine_gradients(
    z: Tensor,
    y: Tensor,
    candidates: Candidates,
    own: Tensor,
    temperature: float = 1.0,
    noise_probs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same for cosine scores s_nk = ẑ_n·ŷ_k/τ − log η_k, ẑ = z/‖z‖ and ŷ = y/‖y‖.

    ∂ℓ/∂z = (I − ẑẑᵀ)/‖z‖ · ∂ℓ/∂ẑ: only the part across the embedding survives, and a long embedding moves less.
    """
    for name, rows in (("z", z), ("y", y)):
        _inputs.check_floating(rows, name, "(N, d)")
        if not bool((rows.norm(dim=-1) > 0).all()):
            raise ValueError(f"{name} must have no zero rows: a cosine needs a direction")
    z_norm, y_norm = z.norm(dim=-1, keepdim=True), y.norm(dim=-1, keepdim=True)
    unit_z, unit_y = z / z_norm, y / y_norm
    along_z, along_y = dot_gradients(unit_z, unit_y, candidates, own, temperature, noise_probs)
    across_z = along_z - (along_z * unit_z).sum(-1, keepdim=True) * unit_z
    across_y = along_y - (along_y * unit_y).sum(-1, keepdim=True) * unit_y
    return across_z / z_norm, across_y / y_norm


def attraction_and_repulsion(scores: Tensor, candidates: Candidates, own: Tensor) -> tuple[Tensor, Tensor]:
    """The loss split into two sums over classes, each (N, K).

    With α the sample's target, c the candidates, and α̃_cj = c_j − α_j,

        attraction_i = −α_i log exp(s_i) / Σ_c exp(c_i s_i + Σ_{j≠i} α̃_cj s_j)      (``eq:attr_energyXent``)
        repulsion_j  = α_j (1 − α_j) s_j                                            (``eq:rep_energyXent``)
        ℓ            = Σ_i attraction_i + Σ_j repulsion_j.

    The paper prints other indices, with which the two do not add up to the loss (see docs/theory.md).
    """
    rows = _checked(scores, candidates, own=own)
    alpha = rows[own]
    total = (scores @ rows.mT).logsumexp(-1, keepdim=True)
    # Dividing each candidate's term by exp Σ_{j≠i} α_j s_j gives the denominator of class i: no N·M·K tensor is needed.
    others = (alpha * scores).sum(-1, keepdim=True) - alpha * scores
    return -alpha * (scores - (total - others)), alpha * (1 - alpha) * scores


def exponent_coefficients(target: Tensor, candidates: Candidates) -> Tensor:
    """The factor of s_j in the exponent of candidate c, in the attraction's denominator for class i: (K, M, K).

    For one target (K,), entry [i, c, j] is c_j for j = i and c_j − α_j for j ≠ i; positive repels the sample from label
    j, negative attracts it.
    """
    _inputs.check_floating(target, "target", "(K,)")
    rows = _checked(target, candidates, "target")
    itself = torch.eye(len(target), dtype=target.dtype, device=target.device).unsqueeze(1)
    return rows - target * (1 - itself)


def cosine_response(cosines: Tensor, candidates: Candidates, own: Tensor, temperature: float = 1.0) -> Tensor:
    """The pull of each label on a unit embedding, |∂ℓ_n/∂s_nk| √(1 − cos²)/τ, from cosines ẑ_n·ŷ_k. Shape (N, K).

    The root is ‖∂cos/∂z‖: it suppresses targets whose cosine is near ±1, also a true class at cosine −1.
    """
    _inputs.check_floating(cosines, "cosines", "(N, K)")
    if not bool((cosines.abs() <= 1).all()):
        raise ValueError(f"cosines must lie in [-1, 1], got {cosines.abs().max():.4g} in absolute value")
    positive(temperature, "temperature")
    across = (1 - cosines.square()).sqrt() / temperature
    return score_gradient(cosines / temperature, candidates, own).abs() * across


def _checked(scores: Tensor, candidates: Candidates, name: str = "scores", own: Tensor | None = None) -> Tensor:
    """The candidates as rows (M, K), checked against scores (..., K) and the places of targets among them."""
    _inputs.check_floating(scores, name, "(..., K)")
    if isinstance(candidates, SoftTargets):
        candidates = candidates.dense(scores.dtype)
    rows = _inputs.as_tensor(candidates, "candidates").to(scores.device)
    _inputs.check_floating(rows, "candidates", "(M, K)")
    if rows.shape[-1] != scores.shape[-1]:
        raise ValueError(f"candidates must have the {scores.shape[-1]} classes of {name}, got {tuple(rows.shape)}")
    if _inputs.values_are_checked(rows):
        _inputs.check_rows_sum_to_one(rows, "candidates")
    if own is not None:
        _inputs.check_places(own, scores.shape[:-1], len(rows), "own")
    return rows
