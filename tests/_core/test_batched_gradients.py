"""``is_grads_batched``: many upstream gradients at once equal one after the other."""

import pytest
import torch

from softnce import NLL, ExpectedInfoNCE, InfoNCE, SoftTargetCrossEntropy, SoftTargetInfoNCE

LOGITS = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 2, 4, 1])
LOSSES = [InfoNCE, ExpectedInfoNCE, SoftTargetInfoNCE, NLL, SoftTargetCrossEntropy]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", LOSSES)
def test_many_upstream_gradients_at_once(kind: type[torch.nn.Module], reduction: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = kind(reduction=reduction).eval()
    value = loss(logits, LABELS)
    upstream = torch.randn(3, *value.shape, dtype=torch.float64)
    (together,) = torch.autograd.grad(value, logits, upstream, is_grads_batched=True)
    for found, one in zip(together, upstream, strict=True):
        torch.testing.assert_close(found, torch.autograd.grad(loss(logits, LABELS), logits, one)[0])


def test_a_table_says_that_it_has_none() -> None:
    features = torch.randn(6, 3, requires_grad=True)
    value = NLL().linear(features, torch.randn(5, 3), LABELS)
    with pytest.raises(RuntimeError, match="is_grads_batched needs the logits form"):
        torch.autograd.grad(value, features, torch.ones(2), is_grads_batched=True)
