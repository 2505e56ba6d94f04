"""Dense rows that are labels or pairs are recognised, equal candidates counted; neither changes more than rounding."""

import pytest
import torch
from batches import seeded
from torch import Tensor
from torch.testing import assert_close

from softnce import ExpectedInfoNCE, SoftTargetInfoNCE, SoftTargets, functional
from softnce.targets import Form

N, K = 64, 40
RATES = torch.rand(N, generator=seeded(1))


def mixed(k: int, lam: Tensor, smoothing: float = 0.1) -> SoftTargets:
    soft = SoftTargets.from_labels(torch.randint(k, (N,), generator=seeded()), k, smoothing=smoothing)
    return soft.mix(soft.flip(0), lam)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_mixed_rows_become_pairs_and_labels_labels(smoothing: float, dtype: torch.dtype) -> None:
    rows = mixed(K, RATES, smoothing).dense(dtype)
    found = SoftTargets.from_dense(rows)
    assert found.form == Form.PAIRS
    assert "2 pairs per row" in repr(found)
    assert found.smoothing == pytest.approx(smoothing, rel=4 * torch.finfo(dtype).eps)
    assert_close(found.dense(torch.float64), rows.double(), rtol=0, atol=torch.finfo(dtype).eps)
    labels = torch.arange(K)
    found = SoftTargets.from_dense(SoftTargets.from_labels(labels, K, smoothing=smoothing).dense())
    assert found.form == Form.LABELS
    assert torch.equal(found.labels, labels)


def test_floors_an_ulp_apart_are_one_floor() -> None:
    """As timm's element-wise mode makes them: each row λ·off + (1 − λ)·off."""
    rows = mixed(K, RATES).dense()
    rows[::2] = torch.where(rows[::2] == rows.amin(), torch.nextafter(rows.amin(), torch.tensor(1.0)), rows[::2])
    assert len(rows.amin(1).unique()) > 1
    assert SoftTargets.from_dense(rows).form == Form.PAIRS


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_rows_of_timm_are_recognised(mode: str) -> None:
    pytest.importorskip("experiments.models.torchvision_operators", exc_type=ImportError)
    mixup = pytest.importorskip("timm.data").Mixup(0.8, 1.0, mode=mode, num_classes=K, label_smoothing=0.1)
    _, rows = mixup(torch.rand(N, 3, 8, 8), torch.randint(K, (N,)))
    found = SoftTargets.from_dense(rows)
    assert found.form == Form.PAIRS
    assert_close(found.dense(), rows, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "rows",
    [
        torch.randn(N, K, generator=seeded()).softmax(1),
        torch.tensor([[0.5, 0.3, 0.2, 0.0, 0.0, 0.0]]),
        torch.tensor([[0.7, 0.3], [0.3, 0.7]]),
        torch.cat([torch.eye(8).repeat(20, 1), torch.full((1, 8), 1 / 8)]),  # all floor in a row whose floor is higher
        mixed(K, RATES).dense().requires_grad_(),
    ],
    ids=["teacher", "too many peaks", "two classes", "another floor", "gradient"],
)
def test_other_rows_stay_dense(rows: Tensor) -> None:
    found = SoftTargets.from_dense(rows)
    assert found.form == Form.DENSE
    assert found.weight is rows


@pytest.mark.parametrize("loss", [SoftTargetInfoNCE, ExpectedInfoNCE])
@pytest.mark.parametrize("classes", [5, K, 300])
def test_probabilities_and_pairs_have_one_loss(loss: type[torch.nn.Module], classes: int) -> None:
    targets = mixed(classes, RATES.double())
    logits = torch.randn(N, classes, dtype=torch.float64, requires_grad=True)
    first, *found = [
        (value := loss(label_smoothing=0.05)(logits, given), *torch.autograd.grad(value, logits))
        for given in (targets, targets.dense(), targets.to_dense())
    ]
    for ours in found:
        assert_close(ours, first, rtol=1e-12, atol=1e-14)


def test_ignored_candidates_that_are_counted_add_nothing_to_half_precision_scores() -> None:
    """Scores of float16 reach 65,504, and differ by twice that."""
    n, classes = 300, 5
    labels = torch.randint(classes - 1, (n,), generator=seeded())
    labels[: n // 2] = classes - 1  # these are ignored …
    targets = SoftTargets.from_labels(labels, classes).mix(SoftTargets.from_labels(labels, classes), 0.5)
    targets.mask = torch.arange(n) >= n // 2
    logits = torch.zeros(n, classes, dtype=torch.float16)
    logits[:, -1] = 60_000  # … and would win by far
    half, exact = (functional.soft_target_info_nce(x, targets) for x in (logits, logits.double()))
    assert_close(half.double(), exact, rtol=1e-6, atol=0)
