"""Class probabilities that may be exactly zero, given by themselves or by their logarithms."""

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import lazy_property

from softnce._checks import check_floating


class _LogWeights(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value < torch.inf).all(-1) & (value > -torch.inf).any(-1)

    def __repr__(self) -> str:
        return "no +inf, no NaN, at least one class above -inf"


log_weights = _LogWeights()


class ClassWeights(Distribution):
    """A distribution with ``probs`` λ or ``logits`` log λ up to a constant, (..., K); the other is made when needed."""

    def _set_weights(
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

    def _expand_weights(self, new: "ClassWeights", batch_shape: torch.Size) -> None:
        for name in {"probs", "logits"} & vars(self).keys():
            setattr(new, name, getattr(self, name).expand(batch_shape + self.event_shape))
        super(ClassWeights, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args

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
