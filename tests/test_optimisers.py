"""Row-wise Adagrad: its update, its state, and what it refuses."""

import pytest
import torch

from softnce import SoftTargetInfoNCE
from softnce.heads import LabelEmbeddingHead
from softnce.optimisers import RowAdagrad


def test_row_adagrad_is_adagrad_with_one_number_per_row():
    table = torch.nn.Parameter(torch.ones(4, 2))
    optimiser = RowAdagrad([table], lr=0.5)
    for gradient in (torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0]])):
        place = torch.tensor([[2]])
        table.grad = torch.sparse_coo_tensor(place, gradient, (4, 2), check_invariants=True)
        optimiser.step()
    first = torch.tensor([3.0, 4.0]) / 12.5**0.5
    second = torch.tensor([0.0, 1.0]) / 13.0**0.5
    torch.testing.assert_close(table.detach()[2], 1 - 0.5 * (first + second))
    torch.testing.assert_close(table.detach()[[0, 1, 3]], torch.ones(3, 2))
    assert optimiser.state[table]["sum"].shape == (4,)


def test_rows_that_no_target_touches_stay():
    head = LabelEmbeddingHead(4, 50)
    before = head.weight.detach().clone()
    optimiser = RowAdagrad([head.weight], lr=1.0)
    head.loss(torch.randn(3, 4), torch.tensor([1, 7, 7]), SoftTargetInfoNCE()).backward()
    optimiser.step()
    moved = (head.weight.detach() != before).any(1).nonzero()[:, 0]
    assert moved.tolist() == [1, 7]


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"lr": -1.0}, {"lr": float("nan")}, {"lr": 1.0, "eps": 0.0}])
def test_rates_must_be_positive(options):
    with pytest.raises(ValueError, match="must be a positive number"):
        RowAdagrad([torch.nn.Parameter(torch.ones(2, 2))], **options)


def test_dense_gradients_are_refused():
    table = torch.nn.Parameter(torch.ones(2, 2))
    table.sum().backward()
    with pytest.raises(TypeError, match="needs sparse gradients"):
        RowAdagrad([table], lr=1.0).step()
