"""Abilities and errors that both distributions share."""

import pytest
import torch
from torch.distributions import Independent

from softnce.distributions import AveragedCategorical, ContinuousCategorical


def averaged(**given):
    return AveragedCategorical(3, **given)


def continuous(**given):
    return ContinuousCategorical(**{"concentration": torch.tensor([5.0])} | given)


@pytest.mark.parametrize("make", [averaged, continuous])
def test_a_citizen_of_torch_distributions(make):
    torch.manual_seed(0)
    d = make(logits=torch.randn(2, 1, 5))
    assert (d.batch_shape, d.event_shape) == ((2, 1), (5,))
    assert type(d).__name__ in repr(d)
    x = d.sample((4,))
    assert x.dtype == torch.float32
    assert d.support.check(x).all()
    for shape in ((4,), (7, 5), (), (0,)):
        assert d.sample(shape).shape == (*shape, 2, 1, 5)
    assert d.sample().shape == d.stddev.shape == (2, 1, 5)
    assert d.covariance_matrix.shape == (2, 1, 5, 5)
    assert d.log_prob(x).shape == (4, 2, 1)
    wide = d.expand((7, 2, 3))
    torch.testing.assert_close(wide.log_prob(x[0]), d.log_prob(x[0]).expand(7, 2, 3))
    torch.testing.assert_close(wide.mean, d.mean.expand(7, 2, 3, 5))
    assert wide.sample((2,)).shape == (2, 7, 2, 3, 5)
    assert Independent(d, 2).log_prob(x).shape == (4,)
    seeded = [d.sample((3,), generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*seeded)
    assert not d.has_rsample
    if make is averaged:
        assert make(probs=torch.ones(0, 5)).sample((2,)).shape == (2, 0, 5)


WRONG = [  # arguments of both
    ({}, "probs or logits"),
    ({"probs": torch.ones(3), "logits": torch.ones(3)}, "probs or logits"),
    ({"probs": [0.5, 0.5]}, "probs must be "),
    ({"probs": torch.tensor([1, 2])}, "probs must be "),
    ({"logits": torch.tensor(1.0)}, r"logits must be .* shape \(\)"),
    ({"probs": torch.tensor([0.5, -0.1])}, "probs"),
    ({"probs": torch.tensor([0.0, 0.0])}, "probs"),
    ({"probs": torch.tensor([0.5, torch.nan])}, "probs"),
    ({"logits": torch.tensor([torch.nan, 0.0])}, "logits"),
    ({"logits": torch.tensor([0.5, torch.inf])}, "logits"),
    ({"logits": torch.tensor([-torch.inf, -torch.inf])}, r"logits.*at least one class above -inf"),
]
WRONG_NUMBERS = [
    (continuous, {"probs": torch.ones(2), "concentration": 0.0}, "concentration"),
    (continuous, {"probs": torch.ones(2), "concentration": torch.tensor(-1.0)}, "concentration"),
    (continuous, {"probs": torch.ones(4, 2), "concentration": torch.ones(3)}, "concentration"),
    (AveragedCategorical, {"probs": torch.ones(2), "total_count": 0}, "total_count"),
    (AveragedCategorical, {"probs": torch.ones(2), "total_count": 2.5}, "total_count"),
]


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [(make, *case) for make in (averaged, continuous) for case in WRONG] + WRONG_NUMBERS,
)
def test_wrong_arguments_are_named(make, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (continuous, [0.5, 0.6, 0.5]),
        (averaged, [0.5, 0.5, 0.0]),
        (averaged, [1 / 3, 1 / 3, 0.0]),
        (averaged, [2 / 3, 2 / 3, -1 / 3]),
    ],
)
def test_a_value_off_the_support_is_refused(make, value):
    with pytest.raises(ValueError, match="support"):
        make(probs=torch.ones(3, dtype=torch.float64)).log_prob(torch.tensor(value, dtype=torch.float64))
