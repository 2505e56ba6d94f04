"""Sampled softmax is exact when every class is sampled, and unbiased otherwise."""

import pytest
import torch
from torch.nn import functional as F

from experiments.sampled_softmax import sampled_softmax

N, K, D = 7, 11, 5


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    features = torch.randn(N, D, dtype=torch.float64, requires_grad=True)
    table = torch.randn(K, D, dtype=torch.float64, requires_grad=True)
    index = torch.randint(K, (N, 2))
    index[0] = 3  # the same class twice
    weight = torch.rand(N, 1, dtype=torch.float64)
    return features, table, index, torch.cat([weight, 1 - weight], 1)


OFTEN = torch.arange(1, K + 1)


@pytest.mark.parametrize(
    ("negatives", "probs", "within"),
    [  # every class alike, and as often as Q says: the estimate of the normaliser is exact
        (torch.arange(K), None, 1e-13), (torch.arange(K).repeat(3), None, 1e-13),
        (torch.arange(K).repeat_interleave(OFTEN), OFTEN / OFTEN.sum(), 1e-6),
    ],
)  # fmt: skip
def test_sampling_every_class_as_often_as_expected_is_full_softmax(problem, negatives, probs, within) -> None:
    features, table, index, weight = problem
    sampled = sampled_softmax(features, table, index, weight, negatives, probs).mean()
    dense = torch.zeros(N, K, dtype=torch.float64).scatter_add(1, index, weight)
    full = F.cross_entropy(features @ table.t(), dense)
    torch.testing.assert_close(sampled, full, rtol=0, atol=within)
    for mine, its in zip(*(torch.autograd.grad(loss, (features, table)) for loss in (sampled, full)), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=within)


def test_normaliser_is_estimated_without_bias(problem) -> None:
    """The mean over all K² pairs of negatives of exp(−log-likelihood), that is of Z up to a factor, is the true one."""
    features, table, index, _ = problem
    label, first = index[:1, :1], features[:1]
    one = torch.ones(1, 1, dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(K), torch.arange(K))
    sampled = torch.stack([sampled_softmax(first, table, label, one, pair).exp().mean() for pair in pairs])
    full = F.cross_entropy(first @ table.t(), label[:, 0]).exp()
    torch.testing.assert_close(sampled.mean(), full, rtol=1e-12, atol=0)


def test_sparse_gradients_are_the_dense_ones(problem) -> None:
    features, table, index, weight = problem
    negatives = torch.tensor([0, 3, 3, 9])
    losses = (sampled_softmax(features, table, index, weight, negatives, sparse=sparse) for sparse in (False, True))
    dense, sparse = (torch.autograd.grad(loss.mean(), table)[0] for loss in losses)
    assert sparse.is_sparse
    torch.testing.assert_close(sparse.to_dense(), dense)
