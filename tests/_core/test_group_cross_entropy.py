"""Targets known by their top k, against a loop over classes in Python numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softnce import SoftTargetCrossEntropy, SoftTargetInfoNCE, SoftTargets
from softnce._core.exact import group_cross_entropy


def slow(scores: list[float], top: dict[int, float], rest: float) -> float:
    total = sum(math.exp(s) for s in scores)
    loss = -sum(w * math.log(math.exp(scores[k]) / total) for k, w in top.items() if w)
    others = sum(math.exp(s) for k, s in enumerate(scores) if k not in top)
    return loss - rest * math.log(others / total) if rest else loss


@given(n=st.integers(1, 6), classes=st.integers(2, 9), k=st.integers(1, 9), seed=st.integers(0, 1000))
def test_it_equals_a_loop_over_classes(n: int, classes: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    teacher, scores = (3 * torch.randn(n, classes, dtype=torch.float64, generator=generator) for _ in range(2))
    log_probs, index = teacher.log_softmax(1).topk(min(k, classes))
    targets = SoftTargets.from_topk_log_probs(index, log_probs, classes)
    scores.requires_grad_()
    loss = group_cross_entropy(scores, targets)
    expected = [
        slow(row, dict(zip(named, weights, strict=True)), 0.0 if len(named) == classes else r)
        for row, named, weights, r in zip(
            scores.tolist(), index.tolist(), log_probs.exp().tolist(), targets.rest.tolist(), strict=True
        )
    ]
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-11)
    gradient = torch.autograd.grad(loss.sum(), scores)[0]
    p, named = scores.detach().softmax(1), torch.zeros(n, classes, dtype=torch.bool).scatter(1, index, True)
    others = torch.where(named, 0, p)
    share = others / others.sum(1, keepdim=True).clamp(min=1e-300) * targets.rest[:, None]
    alpha = torch.zeros_like(p).scatter(1, index, log_probs.exp()) + share
    torch.testing.assert_close(gradient, p - alpha, rtol=0, atol=1e-11)
    assert torch.autograd.gradcheck(lambda x: group_cross_entropy(x, targets), scores)


def test_masked_classes_and_ignored_rows() -> None:
    scores = torch.tensor([[0.0, 1.0, -torch.inf, 2.0], [1.0, 0.0, 0.0, 0.0]], requires_grad=True)
    targets = SoftTargets.from_topk_log_probs([[0, 2], [0, 1]], torch.tensor([[0.75, 0.0], [0.5, 0.25]]).log(), 4)
    targets.mask = torch.tensor([True, False])
    loss = group_cross_entropy(scores, targets)
    assert loss.tolist() == [pytest.approx(slow([0, 1, -math.inf, 2], {0: 0.75, 2: 0.0}, 0.25)), 0]
    gradient = torch.autograd.grad(loss.sum(), scores)[0]
    assert gradient.isfinite().all()
    assert not gradient[1].any()


def test_a_group_without_classes_is_an_error() -> None:
    log_probs = torch.tensor([[0.5, 0.25]]).log()
    targets = SoftTargets.from_topk_log_probs([[0, 1]], log_probs, 3)
    with pytest.raises(ValueError, match=r"targets leave 0\.25 to a group without classes in row 0"):
        group_cross_entropy(torch.tensor([[0.0, 0.0, -torch.inf]]), targets)
    with pytest.raises(ValueError, match="targets leave"):
        group_cross_entropy(torch.zeros(1, 2), SoftTargets.from_topk_log_probs([[0, 1]], log_probs, 2))
    with pytest.raises(ValueError, match="targets must hold"):
        group_cross_entropy(torch.zeros(1, 3), SoftTargets.from_labels([0], 3))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_loss_takes_groups_from_logits_and_from_a_table(reduction: str) -> None:
    generator = torch.Generator().manual_seed(0)
    z, y = (torch.randn(n, 3, dtype=torch.float64, generator=generator).requires_grad_() for n in (5, 9))
    log_probs, index = torch.randn(5, 9, dtype=torch.float64, generator=generator).log_softmax(1).topk(3)
    targets = SoftTargets.from_topk_log_probs(index, log_probs, 9)
    weight, loss = torch.rand(5, dtype=torch.float64), SoftTargetCrossEntropy(temperature=0.7, reduction=reduction)
    each = group_cross_entropy(z @ y.T / 0.7, targets) * weight
    found = []
    for value in (
        each if reduction == "none" else each.sum() / weight.sum(),
        loss(z @ y.T, targets, sample_weight=weight),
        loss.linear(z, y, targets, sample_weight=weight),
    ):
        found.append((value.detach(), *torch.autograd.grad(value.sum(), (z, y))))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=1e-12)


def test_other_options_and_losses_refuse_groups() -> None:
    targets, logits = SoftTargets.from_topk_log_probs([[0, 1]], torch.tensor([[0.5, 0.25]]).log(), 4), torch.zeros(1, 4)
    for refused in (SoftTargetCrossEntropy(label_smoothing=0.1), SoftTargetInfoNCE()):
        with pytest.raises(ValueError, match="hold the classes beyond the top k as one group"):
            refused(logits, targets)
    weighs = SoftTargetCrossEntropy(class_weight=torch.ones(4))
    for call in (lambda: weighs(logits, targets), lambda: weighs.linear(logits, torch.eye(4), targets)):
        with pytest.raises(ValueError, match=r"class_weight .* rest"):
            call()
