"""Rounding: the error against float64 is at most twice that of cross-entropy, plus one unit in the last place."""

import pytest
import torch
from torch.nn import functional as F

from softnce import (
    NLL,
    ExpectedInfoNCE,
    InfoNCE,
    SoftDistributionInfoNCE,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
    SoftTargets,
    noise,
)

N, K = 2048, 200
CONTRASTS = (SoftTargetInfoNCE, InfoNCE, SoftDistributionInfoNCE, ExpectedInfoNCE)
CASES = ("labels", "smoothed", "mixed", "top-k", "dense")


def make(kind: str) -> SoftTargets:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(K, (N,), generator=generator)
    t = SoftTargets.from_labels(labels, K, smoothing=0.0 if kind == "labels" else 0.1)
    if kind in ("mixed", "dense"):
        t = t.mix(t.flip(0), torch.rand(N, generator=generator))
    if kind == "top-k":
        return SoftTargets.from_topk(3 * torch.randn(N, K, generator=generator), 5)
    return t.to_dense() if kind == "dense" else t


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("loss", [SoftTargetInfoNCE, ExpectedInfoNCE])
def test_error_is_within_twice_cross_entropys(
    kind: str, scale: float, dtype: torch.dtype, loss: type[torch.nn.Module]
) -> None:
    targets = make(kind)
    logits = (scale * torch.randn(N, K, generator=torch.Generator().manual_seed(1))).to(dtype)
    eta = noise.from_counts(torch.arange(1, K + 1))
    ours, theirs = loss(eta, reduction="none"), F.cross_entropy
    with torch.autocast(
        "cpu", dtype=dtype if dtype != torch.float32 else torch.bfloat16, enabled=dtype != torch.float32
    ):
        our_loss = ours(logits, targets)
        their_loss = theirs(logits, targets.dense(), reduction="none")
    exact = loss(eta.double(), reduction="none")(logits.double(), targets)
    their_exact = theirs(logits.double(), targets.dense(torch.float64), reduction="none")
    our_error = (our_loss.double() - exact).abs().max()
    their_error = (their_loss.double() - their_exact).abs().max()
    ulp = torch.finfo(torch.float32).eps * exact.abs().max()
    assert our_loss.dtype == torch.float32
    assert our_error <= 2 * their_error + ulp, f"{our_error:.2e} against {their_error:.2e} of cross-entropy"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", [*(contrast("uniform") for contrast in CONTRASTS), SoftTargetCrossEntropy(), NLL()])
def test_finite_at_the_ends_of_the_range(loss: torch.nn.Module, dtype: torch.dtype) -> None:
    for large in (1e4, min(torch.finfo(dtype).max, 1e30)):
        logits = torch.tensor([[large, -large, 0.0], [-large, large, large], [-large] * 3, [large] * 3], dtype=dtype)
        logits = logits.requires_grad_()
        value = loss(logits, torch.tensor([1, 0, 2, 2]))
        value.backward()
        assert value.isfinite()
        assert logits.grad.isfinite().all()
