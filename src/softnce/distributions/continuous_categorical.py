"""The continuous categorical distribution, exact at any number of classes."""

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl
from torch.distributions.exp_family import ExponentialFamily
from torch.distributions.utils import lazy_property
from torch.nn.functional import one_hot
from torch.types import _size

from softnce._inputs import as_positive, check_generator
from softnce.distributions.categorical import ClassWeights, checked_parameter, finite_difference, log_weights
from softnce.distributions.simplex import Proposal, SimplexIntegral, best_proposal, draw


class ContinuousCategorical(ClassWeights, ExponentialFamily):
    """The density ∝ Π_k λ_k^{κ x_k} on the probability simplex, λ = ``probs`` and κ = ``concentration``.

    With ω = κ log λ the density is exp(ω·x − log Z(ω)) with respect to Lebesgue measure on all coordinates but one. A
    class of probability zero has its component fixed at 0, and the density is with respect to the measure of the face
    that remains; a one-hot ``probs`` is the point mass at the vertex. At large K a draw is nearly uniform: for a label
    smoothed by 0.1 among 1000 classes, the true class has mean 0.00101. ``concentration`` restores the contrast.

    Args:
        probs, logits: λ, normalised to sum to 1, or log λ up to a constant, (..., K); one of the two. λ may be zero.
        concentration: κ > 0, a number, or a tensor that broadcasts against the batch shape.

    All but the draws is computed in fp64 and returned in the dtype of the parameters, in O(33·K) time and O(K) memory
    per row (``covariance_matrix``: K²). ``sample`` takes O(K log K) once and O(K) per proposal. No ``rsample``.

    >>> d = ContinuousCategorical(torch.tensor([0.2, 0.3, 0.5]), concentration=10.0)
    >>> d.log_prob(d.sample((4,))).shape
    torch.Size([4])

    Reference: Gordon-Rodriguez, Loaiza-Ganem, Cunningham, "The continuous categorical: a novel simplex-valued
    exponential family", ICML 2020.
    """

    arg_constraints = {  # noqa: RUF012
        "probs": constraints.simplex,
        "logits": log_weights,
        "concentration": constraints.positive,
    }
    support = constraints.simplex
    has_rsample = False
    _mean_carrier_measure = 0

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        concentration: float | Tensor = 1.0,
        validate_args: bool | None = None,
    ):
        given = checked_parameter(probs, logits)
        if not isinstance(concentration, Tensor):
            concentration = as_positive(concentration, "concentration")
        concentration = torch.as_tensor(concentration, dtype=given.dtype, device=given.device)
        try:
            batch_shape = torch.broadcast_shapes(given.shape[:-1], concentration.shape)
        except RuntimeError as error:
            raise ValueError(f"concentration does not broadcast against the batch shape: {error}") from None
        self.concentration = concentration.expand(batch_shape)
        super().__init__(probs, logits, batch_shape, validate_args)

    @lazy_property
    def natural_parameters(self) -> Tensor:
        """ω = κ log λ, shape (..., K), fp64; −inf where a component is fixed at 0."""
        # κ meets no −inf: its gradient would be 0 · inf.
        finite = self.logits > -torch.inf
        scaled = self.concentration.double().unsqueeze(-1) * torch.where(finite, self.logits, 0.0)
        return torch.where(finite, scaled, -torch.inf)

    @lazy_property
    def _integral(self) -> SimplexIntegral:
        return SimplexIntegral(self.natural_parameters)

    @lazy_property
    def _proposal(self) -> Proposal:
        with torch.no_grad():
            return best_proposal(self.natural_parameters.reshape(-1, *self.event_shape))

    def _dot_natural(self, value: Tensor) -> Tensor:
        """ω·value in fp64, with −inf · 0 = 0."""
        omega = self.natural_parameters
        finite = omega > -torch.inf
        inside = (torch.where(finite, omega, 0.0) * value).sum(-1)
        return torch.where(((value > 0) & ~finite).any(-1), -torch.inf, inside)

    def _result(self, value: Tensor) -> Tensor:
        return value.to(self.concentration.dtype)

    @property
    def log_normalizer(self) -> Tensor:
        """log Z(ω), shape of the batch."""
        return self._result(self._integral.log_value)

    @property
    def mean(self) -> Tensor:
        return self._result(self._integral.moment(1))

    @property
    def variance(self) -> Tensor:
        # on a vertex, or so near that it rounds to one, the difference may fall below 0
        return self._result((2 * self._integral.moment(2) - self._integral.moment(1).square()).clamp(min=0))

    @property
    def covariance_matrix(self) -> Tensor:
        """Shape (..., K, K); its rows sum to 0."""
        return self._result(self._integral.covariance())

    @property
    def mode(self) -> Tensor:
        """The vertex of the most probable class (one of them, if tied)."""
        return one_hot(self.natural_parameters.argmax(-1), self.event_shape[0]).to(self.concentration.dtype)

    @property
    def expected_proposals(self) -> Tensor:
        """Mean number of proposals per draw, shape of the batch."""
        log_acceptance = self._proposal.log_acceptance(self._integral.log_value.detach().reshape(-1))
        return self._result(log_acceptance.neg().exp().view(self.batch_shape))

    def sample(self, sample_shape: _size = (), generator: torch.Generator | None = None) -> Tensor:
        check_generator(generator)
        sample_shape, dtype = torch.Size(sample_shape), self.concentration.dtype
        with torch.no_grad():
            proposed = torch.promote_types(dtype, torch.float32)
            draws = draw(self._proposal, sample_shape.numel(), proposed, generator)
        return draws.view(self._extended_shape(sample_shape)).to(dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """log density at value (..., K); −inf if a component fixed at 0 is not."""
        if self._validate_args:
            self._validate_sample(value)
        return self._result(self._dot_natural(value) - self._integral.log_value)

    def entropy(self) -> Tensor:
        return self._result(self._integral.log_value - self._dot_natural(self._integral.moment(1)))

    @property
    def _natural_params(self) -> tuple[Tensor]:
        return (self.natural_parameters,)

    def _log_normalizer(self, omega: Tensor) -> Tensor:
        return SimplexIntegral(omega).log_value


def _kl(p: ContinuousCategorical, q: ContinuousCategorical) -> Tensor:
    """KL(p ‖ q); inf unless both live on the same face."""
    omega_p, omega_q = p.natural_parameters, q.natural_parameters
    same_face = ((omega_p > -torch.inf) == (omega_q > -torch.inf)).all(-1)
    inside = (finite_difference(omega_p, omega_q) * p._integral.moment(1)).sum(-1)
    divergence = inside - p._integral.log_value + q._integral.log_value
    return p._result(torch.where(same_face, divergence, torch.inf))


register_kl(ContinuousCategorical, ContinuousCategorical)(_kl)
