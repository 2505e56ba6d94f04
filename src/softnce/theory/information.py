"""Mutual information between embeddings Z and labels Y, in nats: exact from tables, bounded from scores.

A contrastive loss bounds I_ε(Z;Y) = H(Y) − H_ε(Y|Z), the information of the smoothed channel: for a table p it is
``mutual_information(smoothed_joint(p, ε))``. A critic that finds the true label among itself and N drawn from p_Y at a
mean loss of ℓ shows I_ε ≥ log(N + 1) − ℓ. Soft targets A in the place of Y, with negatives from p_A, bound I(Z;A).

References: van den Oord et al. 2018 and Poole et al. 2019 (contrastive); Barber and Agakov 2003 (classifier).
"""

import math

import torch
from torch import Tensor

from softnce import _inputs
from softnce._core.ranks import gather_objects


def entropy(probs: Tensor) -> Tensor:
    """H = −Σ_y p(y) log p(y) over the last dimension."""
    _check_probs(probs, "probs")
    return -torch.xlogy(probs, probs).sum(-1)


def conditional_entropy(joint: Tensor) -> Tensor:
    """H(Y|Z) = −Σ p(z, y) log p(y|z) of a table p(z, y), shape (..., Z, Y)."""
    _check_joint(joint)
    return (torch.xlogy(joint.sum(-1), joint.sum(-1)) - torch.xlogy(joint, joint).sum(-1)).sum(-1)


def mutual_information(joint: Tensor) -> Tensor:
    """I(Z;Y) = Σ p(z, y) log p(z, y) / p(z) p(y) of a table p(z, y), shape (..., Z, Y)."""
    _check_joint(joint)
    independent = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
    return (torch.xlogy(joint, joint) - torch.xlogy(joint, independent)).sum((-1, -2))


def smoothed_joint(joint: Tensor, epsilon: float, noise_probs: Tensor | None = None) -> Tensor:
    """p_ε(z, y) = (1 − ε) p(z, y) + ε p(z) ξ(y): the joint distribution after label smoothing.

    ``noise_probs`` ξ (Y,) is the table's own p(y) if None, as I_ε requires.
    """
    _check_joint(joint)
    epsilon = _inputs.as_share(epsilon, "epsilon")
    if noise_probs is not None:
        _check_probs(noise_probs, "noise_probs", joint.shape[-1:])
    noise = joint.sum(-2, keepdim=True) if noise_probs is None else noise_probs
    return (1 - epsilon) * joint + epsilon * joint.sum(-1, keepdim=True) * noise


def information_bound(loss: Tensor, num_negatives: int) -> Tensor:
    """log(N + 1) − ℓ for losses of any shape and N negatives each; its expectation never exceeds the information."""
    return _bound(loss, _inputs.as_whole(num_negatives, "num_negatives") + 1)


def paper_information_bound(loss: Tensor, num_negatives: int) -> Tensor:
    """log N − ℓ (``eq:softMIbound``): valid too, and lower than ``information_bound`` by log(1 + 1/N)."""
    return _bound(loss, _inputs.as_whole(num_negatives, "num_negatives"))


def contrastive_information(scores: Tensor, positive: Tensor | None = None) -> Tensor:
    """One sample of the contrastive bound per row, shape (N,): log M + s_{i,positive} − log Σ_j exp s_{i,j}.

    ``scores`` (N, M) are a critic's; ``positive`` (N,) is the place of the true candidate, by default the diagonal. The
    others must be drawn from the marginal, independently of the sample.
    """
    _inputs.check_floating(scores, "scores", "(N, M)")
    rows, candidates = scores.shape
    if candidates < 2:
        raise ValueError(f"scores must have at least 2 candidates per row, got shape {tuple(scores.shape)}")
    if positive is None:
        if rows != candidates:
            raise ValueError(f"positive is needed unless scores is square, got scores of shape {tuple(scores.shape)}")
        positive = torch.arange(rows, device=scores.device)
    else:
        _inputs.check_places(positive, (rows,), candidates, "positive")
    loss = scores.logsumexp(-1) - scores.gather(-1, positive.unsqueeze(-1)).squeeze(-1)
    return information_bound(loss, candidates - 1)


def classifier_information(logits: Tensor, targets: Tensor, class_probs: Tensor) -> Tensor:
    """One sample of the classifier's bound per row, shape (N,): Σ_k α_ik log q_ik / p_k, q_i = softmax(logits_i).

    Its expectation is I(Z;Y) − KL(truth ‖ q), and does not saturate at log M. ``targets`` are labels (N,), or the
    distribution of each row's label (N, K); ``class_probs`` p (K,) is their marginal, after smoothing the smoothed one.
    """
    _inputs.check_floating(logits, "logits", "(N, K)")
    _inputs.check_tensor(targets, "targets")
    _check_probs(class_probs, "class_probs", logits.shape[-1:])
    log_ratio = logits.log_softmax(-1) - class_probs.log()
    if targets.is_floating_point():
        _check_probs(targets, "targets", logits.shape)
        return torch.where(targets > 0, targets * log_ratio, 0.0).sum(-1)
    _inputs.check_places(targets, logits.shape[:-1], logits.shape[-1], "targets")
    return log_ratio.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


class InformationMeter:
    """Running mean of samples of a bound, with its standard error; constant memory, no host synchronisation.

    The standard error assumes independent samples; rows of one batch that share negatives are only nearly so.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = 0
        self.mean: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0  # Σ (x − mean)²

    def update(self, samples: Tensor) -> None:
        """Add samples of a bound, of any shape."""
        _inputs.check_tensor(samples, "samples")
        samples = samples.detach().double()
        if samples.numel():
            mean = samples.mean()
            self._merge(samples.numel(), mean, (samples - mean).square().sum())

    def _merge(self, count: int, mean: Tensor | float, squares: Tensor | float) -> None:
        # Chan's update: the difference of large sums would lose the variance.
        total = max(self.count + count, 1)  # a rank may have seen nothing
        change = mean - self.mean
        self.mean = self.mean + change * (count / total)
        self.squares = self.squares + squares + change**2 * (self.count * count / total)
        self.count += count

    def gather(self) -> None:
        """Collect what every process accumulated, so that each holds the whole. Every rank must call it."""
        states = gather_objects((self.count, float(self.mean), float(self.squares)))
        self.reset()
        for state in states:
            self._merge(*state)

    def compute(self) -> dict[str, float]:
        """``information``, and its ``standard_error`` (NaN for a single sample)."""
        if self.count == 0:
            raise ValueError("nothing was measured: call update() before compute()")
        error = math.sqrt(float(self.squares) / (self.count - 1) / self.count) if self.count > 1 else math.nan
        return {"information": float(self.mean), "standard_error": error}


def _bound(loss: Tensor, candidates: int) -> Tensor:
    if not isinstance(loss, float) and not (isinstance(loss, Tensor) and loss.is_floating_point()):
        raise TypeError(f"loss must be floating point, got {getattr(loss, 'dtype', type(loss).__name__)}")
    return math.log(candidates) - loss


def _check_probs(probs: Tensor, name: str, shape: torch.Size | None = None) -> None:
    _inputs.check_floating(probs, name, "(..., K)")
    if shape is not None and probs.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(probs.shape)}")
    if _inputs.values_are_checked(probs):
        _inputs.check_rows_sum_to_one(probs, name)


def _check_joint(joint: Tensor) -> None:
    _inputs.check_floating(joint, "joint", "(..., Z, Y)")
    total = joint.detach().sum((-1, -2))
    if not ((joint >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-5)):
        raise ValueError("joint must hold probabilities: none negative, and a sum of 1 over its last two dimensions")
