"""What a caller passes for rows: own positions are checked row against row, to within the rounding of the targets."""

import pytest
import torch

from softnce import SoftTargets
from softnce._core.call import check_own

N, K = 64, 10


def mixed_as_timm_does(dtype: torch.dtype, seed: int, smoothing: float = 0.1) -> torch.Tensor:
    """Smoothed labels (N, K), each mixed with the one at its place in the reversed batch by its own λ."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(K, (N,), generator=generator)
    rows = SoftTargets.from_labels(labels, K, smoothing).dense().to(dtype)
    lam = torch.rand(N, 1, generator=generator).to(dtype)
    return rows * lam + rows.flip(0) * (1 - lam)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 16])
def test_own_takes_parts_of_a_mixed_batch(dtype: torch.dtype, size: int) -> None:
    """Batch and part recognise floors that differ by rounding."""
    for seed in range(10):
        rows = mixed_as_timm_does(dtype, seed)
        batch = SoftTargets.from_dense(rows)
        for own in torch.arange(N).split(size):
            check_own(batch, own, SoftTargets.from_dense(rows[own]), "batch")
            check_own(batch, own, SoftTargets(K, None, rows[own]), "batch")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_own_of_another_row_is_refused(dtype: torch.dtype) -> None:
    rows = mixed_as_timm_does(dtype, 0)
    batch, own = SoftTargets.from_dense(rows), torch.arange(N)
    for soft in (batch, SoftTargets(K, None, rows)):
        with pytest.raises(ValueError, match="own says that row 1 of batch is the target of row 0"):
            check_own(batch, own.roll(-1), soft, "batch")


def test_own_of_a_row_smoothed_otherwise_is_refused() -> None:
    a, b = (SoftTargets.from_labels([1, 2], K, smoothing) for smoothing in (0.1, 0.11))
    with pytest.raises(ValueError, match="it is label 1 and the target is label 1"):
        check_own(a, torch.arange(2), b, "batch")


def test_own_of_ignored_rows_is_not_looked_at() -> None:
    batch = SoftTargets.from_labels([1, 2], K)
    check_own(batch, torch.tensor([0, 0]), SoftTargets.from_labels([1, -100], K), "batch")


def test_weights_on_either_side_of_a_rounding_edge_are_one_target() -> None:
    weight = torch.tensor([[0.123455, 1 - 0.123455]], dtype=torch.float64)
    less, more = (SoftTargets.from_pairs([[0, 1]], weight + torch.tensor([[d, -d]]), K) for d in (-1e-12, 1e-12))
    check_own(less, torch.tensor([0]), more, "batch")
