"""Own answers out of the negatives, and classes excluded per row: against the formula, from logits and from a table."""

import pytest
import torch
from batches import make_targets
from core_cases import expected as slow_expected
from torch import Tensor

from softnce import BatchCandidates, ExpectedInfoNCE, InfoNCE, NoiseCandidates, SoftTargets, functional

N, K, DIM = 6, 9, 4
GENERATOR = torch.Generator().manual_seed(0)
FEATURES = torch.randn(N, DIM, dtype=torch.float64, generator=GENERATOR)
TABLE = torch.randn(K, DIM, dtype=torch.float64, generator=GENERATOR)
EXCLUDE = torch.tensor([[3, -1], [4, 4], [-1, -1], [0, 8], [1, 2], [5, -1]])


@pytest.mark.parametrize("exclude", [None, EXCLUDE], ids=["all", "excluded"])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("kind", ["labels", "votes", "top-k"])
def test_equals_the_formula(kind: str, drop: bool, exclude: Tensor | None) -> None:
    targets = make_targets(kind, N, K, torch.Generator().manual_seed(1))
    alpha = targets.dense(torch.float64)
    drop = drop and bool((alpha == 0).any(1).all())
    table = TABLE.clone().requires_grad_()
    expected = slow_expected(FEATURES @ table.T, alpha, alpha.sum(0), alpha, drop, exclude).mean()
    given = {"candidates": BatchCandidates(), "negatives": "mean", "drop_own_classes": drop, "exclude": exclude}
    values = [
        functional.expected_info_nce(FEATURES @ table.T, targets, **given),
        functional.linear_expected_info_nce(FEATURES, table, targets, **given),
    ]
    (wanted,) = torch.autograd.grad(expected, table)
    for value in values:
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(torch.autograd.grad(value, table)[0], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("from_table", [False, True])
def test_info_nce_of_labels_is_expected_info_nce(from_table: bool) -> None:
    labels = torch.tensor([0, 0, 1, 2, 3, 0])
    given = {"candidates": BatchCandidates(), "reduction": "none"}
    for drop in (True, False):
        losses = [kind("uniform", drop_own_classes=drop, **given) for kind in (InfoNCE, ExpectedInfoNCE)]
        if from_table:
            values = [loss.linear(FEATURES, TABLE, labels, exclude=EXCLUDE) for loss in losses]
        else:
            values = [loss(FEATURES @ TABLE.T, labels, exclude=EXCLUDE) for loss in losses]
        torch.testing.assert_close(*values, rtol=1e-12, atol=1e-14)


def test_dropping_own_answers_of_labels() -> None:
    """Without accidental hits nothing changes; where nothing is left, nothing is learned."""
    scores = (FEATURES @ TABLE.T).requires_grad_()
    plain, dropped = (InfoNCE("uniform", drop_own_classes=drop)(scores, torch.arange(N)) for drop in (False, True))
    torch.testing.assert_close(plain, dropped, rtol=1e-12, atol=0)
    loss = ExpectedInfoNCE("uniform", candidates=BatchCandidates(), drop_own_classes=True)
    value = loss(scores, torch.zeros(N, dtype=torch.long))
    assert value.item() == 0
    assert not torch.autograd.grad(value, scores)[0].any()


def test_drawn_negatives_leave_out_too() -> None:
    """Every drawn negative is of an excluded class but one."""
    labels = torch.tensor([0])
    exclude = torch.tensor([[2, 3, 4, 5, 6, 7, 8]])
    loss = ExpectedInfoNCE("uniform", candidates=NoiseCandidates(200), negatives="drawn", reduction="none")
    value = loss(torch.zeros(1, K), labels, exclude=exclude, generator=torch.Generator().manual_seed(0))
    drawn = torch.randint(K, (200,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(value[0], torch.log1p(((drawn == 1) | (drawn == 0)).sum().float()))


def test_soft_candidates_have_no_classes_to_exclude() -> None:
    soft = SoftTargets.from_pairs([[0, 1]], [[0.5, 0.5]], K)
    with pytest.raises(ValueError, match="exclude needs candidates that are labels"):
        InfoNCE("uniform", candidates=soft)(FEATURES @ TABLE.T, torch.arange(N), exclude=EXCLUDE)
