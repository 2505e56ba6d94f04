"""Class probabilities that may be exactly zero, and the mean of n labels drawn from them."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Binomial, Distribution, Multinomial, constraints, register_kl
from torch.distributions.utils import lazy_property
from torch.types import _size

from softnce._inputs import as_whole, check_floating, check_generator
from softnce.targets._sampling import class_edges, draw_by_edges


class _LogWeights(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value < torch.inf).all(-1) & (value > -torch.inf).any(-1)

    def __repr__(self) -> str:
        return "no +inf, no NaN, at least one class above -inf"


log_weights = _LogWeights()


class ClassWeights(Distribution):
    """A distribution with ``probs`` λ or ``logits`` log λ up to a constant, (..., K); the other is made when needed."""

    def __init__(
        self, probs: Tensor | None, logits: Tensor | None, batch_shape: torch.Size, validate_args: bool | None
    ) -> None:
        given = checked_parameter(probs, logits)
        given = given.expand(batch_shape + given.shape[-1:])
        if probs is None:
            self.logits = given
        else:
            self.probs = given / given.sum(-1, keepdim=True)
        super().__init__(batch_shape, given.shape[-1:], validate_args=validate_args)
        if probs is None:  # after validation: a row without a finite logit has no normaliser
            self.logits = given - given.logsumexp(-1, keepdim=True)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Any:
        new, shape = self._get_checked_instance(type(self), _instance), torch.Size(batch_shape)
        given = vars(self)  # what is made when needed is made anew
        for name in self.arg_constraints.keys() & given.keys():
            own = self.event_shape if name in ("probs", "logits") else torch.Size()
            setattr(new, name, given[name].expand(shape + own))
        Distribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @lazy_property
    def probs(self) -> Tensor:
        return self.logits.exp()

    @lazy_property
    def logits(self) -> Tensor:
        """Exactly −inf at 0, where torch's own distributions clamp it, with gradient 0 there instead of NaN."""
        positive = self.probs > 0
        return torch.where(positive, torch.where(positive, self.probs, 1.0).log(), -torch.inf)


def checked_parameter(probs: Tensor | None, logits: Tensor | None) -> Tensor:
    """The one of the two that was given, a floating-point tensor of shape (..., K)."""
    if (probs is None) == (logits is None):
        raise ValueError("pass either probs or logits, not both")
    name, given = ("probs", probs) if logits is None else ("logits", logits)
    check_floating(given, name, "(..., K)")
    assert given is not None
    return given


def finite_difference(a: Tensor, b: Tensor) -> Tensor:
    """a − b, and 0 with gradient 0 where one of them is −inf."""
    both = (a > -torch.inf) & (b > -torch.inf)
    return torch.where(both, a, 0.0) - torch.where(both, b, 0.0)


class _Lattice(constraints.Constraint):
    """Points of the simplex whose coordinates are multiples of 1/n."""

    is_discrete = True
    event_dim = 1

    def __init__(self, total_count: int):
        self.total_count = total_count

    def check(self, value: Tensor) -> Tensor:
        counts = self.total_count * value
        # 1/n is seldom a floating-point number: a count may be off by the rounding of n · (c/n), and of a sum.
        tolerance = min(0.25, 8 * self.total_count * torch.finfo(value.dtype).eps)
        whole = ((counts - counts.round()).abs() <= tolerance).all(-1)
        return whole & (value >= 0).all(-1) & (counts.double().round().sum(-1) == self.total_count)


class AveragedCategorical(ClassWeights):
    """The mean of n one-hot labels drawn from a categorical distribution: Multinomial(n, λ) / n.

    The likelihood ratio of two of them is Π_k (λ_k/η_k)^{n x_k}: n acts as the concentration of a continuous
    categorical distribution, without a normaliser. Draws cost O(n log K) each, after O(K) per row of parameters.

    Args:
        total_count: n, the number of labels averaged.
        probs, logits: λ, normalised to sum to 1, or log λ up to a constant, (..., K); one of the two. λ may be zero.

    >>> AveragedCategorical(2, probs=torch.tensor([0.0, 1.0, 0.0])).sample()
    tensor([0., 1., 0.])
    """

    arg_constraints = {"probs": constraints.simplex, "logits": log_weights}  # noqa: RUF012

    def __init__(
        self,
        total_count: int,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ):
        self.total_count = as_whole(total_count, "total_count")
        super().__init__(probs, logits, checked_parameter(probs, logits).shape[:-1], validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Any:
        new = super().expand(batch_shape, _instance)
        new.total_count = self.total_count
        return new

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        return _Lattice(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs) / self.total_count

    @property
    def covariance_matrix(self) -> Tensor:
        """Shape (..., K, K); its rows sum to 0."""
        p = self.probs
        return (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)) / self.total_count

    def sample_labels(self, sample_shape: _size = (), generator: torch.Generator | None = None) -> Tensor:
        """The labels before averaging, int64, shape (*sample_shape, *batch_shape, n)."""
        check_generator(generator)
        shape = torch.Size(sample_shape)
        labels = draw_by_edges(class_edges(self.probs.detach()), shape.numel() * self.total_count, generator)
        labels = labels.view(*self.batch_shape, shape.numel(), self.total_count).movedim(-2, 0)
        return labels.reshape(*shape, *self.batch_shape, self.total_count)

    def sample(self, sample_shape: _size = (), generator: torch.Generator | None = None) -> Tensor:
        labels = self.sample_labels(sample_shape, generator)
        counts = self.probs.new_zeros(self._extended_shape(sample_shape))
        return counts.scatter_add_(-1, labels, counts.new_ones(()).expand_as(labels)).div_(self.total_count)

    def log_prob(self, value: Tensor) -> Tensor:
        """log of the multinomial probability of the counts n · value, computed in fp64."""
        if self._validate_args:
            self._validate_sample(value)
        of_counts = Multinomial(self.total_count, logits=self.logits.double(), validate_args=False)
        log_prob: Tensor = of_counts.log_prob((self.total_count * value.double()).round())
        return log_prob.to(self.probs.dtype)

    def entropy(self) -> Tensor:
        """In nats. O(n·K) time and memory per row: it sums over the binomial distribution of every class's count."""
        probs = self.probs.double()
        counts = torch.arange(2, self.total_count + 1, dtype=probs.dtype, device=probs.device)
        counts = counts.view(-1, *([1] * probs.dim()))
        binomial: Tensor = Binomial(self.total_count, probs=probs, validate_args=False).log_prob(counts).exp()
        repeated = (binomial * torch.lgamma(counts + 1)).sum((0, -1))
        arrangements = torch.lgamma(counts.new_tensor(self.total_count + 1.0))
        of_labels = -torch.xlogy(probs, probs).sum(-1)
        return (self.total_count * of_labels - arrangements + repeated).to(self.probs.dtype)


def _kl(p: AveragedCategorical, q: AveragedCategorical) -> Tensor:
    """n · KL of the labels; inf where q never draws a label that p does."""
    if p.total_count != q.total_count:
        raise NotImplementedError(
            f"kl_divergence between means of {p.total_count} and of {q.total_count} draws: their supports differ"
        )
    never = ((p.probs > 0) & (q.logits == -torch.inf)).any(-1)
    return torch.where(never, torch.inf, p.total_count * (p.probs * finite_difference(p.logits, q.logits)).sum(-1))


register_kl(AveragedCategorical, AveragedCategorical)(_kl)
