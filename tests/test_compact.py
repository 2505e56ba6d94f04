"""Targets over the classes that occur: the loss of those rows of the table is the loss of the whole table."""

import pytest
import torch
from batches import seeded
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from softnce import BatchCandidates, SoftTargets, functional, noise

N, K, DIM = 6, 40, 5
GENERATOR = seeded()
FEATURES = torch.randn(N, DIM, dtype=torch.float64, generator=GENERATOR)
TABLE = torch.randn(K, DIM, dtype=torch.float64, generator=GENERATOR)
NOISE = noise.from_counts(torch.arange(1, K + 1)).double()


def targets(kind: str, rows: int = N, seed: int = 1) -> SoftTargets:
    generator = seeded(seed)
    labels = torch.randint(1, K, (rows,), generator=generator)
    weight = torch.rand(rows, 3, dtype=torch.float64, generator=generator)
    weight /= weight.sum(1, keepdim=True)
    if kind == "ignored":
        labels[::2] = -100
    if kind == "pairs":
        return SoftTargets.from_pairs(torch.randint(1, K, (rows, 3), generator=generator), weight, K)
    if kind == "padded":
        return SoftTargets.from_pairs([[3, 7], [9]] * (rows // 2), [[0.25, 0.75], [1.0]] * (rows // 2), K)
    if kind == "dense":
        first = int(labels[0]) % 30
        return SoftTargets.from_dense(torch.nn.functional.pad(weight, (first, K - 3 - first)))
    return SoftTargets.from_labels(labels, K)


KINDS = ("labels", "ignored", "pairs", "padded", "dense")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [None, "labels", "pairs", "dense"])
@pytest.mark.parametrize(("loss", "more"), [("soft_target_info_nce", {}), ("expected_info_nce", {"negatives": "mean"})])
def test_rows_of_the_classes_that_occur_give_the_loss_of_the_whole_table(
    kind: str, other: str | None, loss: str, more: dict[str, str]
) -> None:
    linear, of_logits = getattr(functional, f"linear_{loss}"), getattr(functional, loss)
    given, extra = targets(kind), [] if other is None else [targets(other, 4, seed=2)]
    z, y = leaves = [x.clone().requires_grad_() for x in (FEATURES, TABLE)]
    whole = linear(z, y, given, NOISE, candidates=(*extra, BatchCandidates())[0], temperature=0.7, **more)
    classes, small, *kept = given.compact(*extra)
    assert len(classes) < K
    eta, logits = NOISE[classes] / NOISE[classes].sum(), z @ y[classes].t()
    part = of_logits(logits, small, eta, candidates=(*kept, BatchCandidates())[0], temperature=0.7, **more)
    assert_close(part, whole, rtol=0, atol=1e-12)
    for ours, table in zip(torch.autograd.grad(part, leaves), torch.autograd.grad(whole, leaves), strict=True):
        assert_close(ours, table, rtol=0, atol=1e-12)


@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_the_targets_are_the_same_over_exactly_the_classes_that_occur(kinds: list[str], seed: int) -> None:
    members = [targets(kind, 4, seed + i) for i, kind in enumerate(kinds)]
    classes, *small = members[0].compact(*members[1:])
    dense = torch.cat([member.dense(torch.float64) for member in members])
    occurs = dense.nan_to_num().any(0).nonzero()[:, 0]
    assert classes.equal(occurs)
    for before, after in zip(members, small, strict=True):
        assert after.num_classes == len(classes)
        assert after.form == before.form
        assert_close(after.dense(), before.dense()[:, classes], equal_nan=True, rtol=0, atol=0)


def test_ignored_rows_are_rows_too() -> None:
    for labels in (torch.full((3,), -100), torch.zeros(0, dtype=torch.long)):  # one class is left
        classes, small = SoftTargets.from_labels(labels, K).compact()
        assert classes.tolist() == [0]
        assert (len(small), small.num_classes) == (len(labels), 1)
    classes, small = SoftTargets.from_labels([3, -100, 5], K).to_dense().compact()
    assert classes.tolist() == [3, 5]
    assert small.unmasked_dense().sum(1).tolist() == [1, 1, 1]
    assert functional.soft_distribution_info_nce(torch.randn(3, 2), small).isfinite()
    with pytest.raises(ValueError, match="these rows must have no background, got smoothing"):
        SoftTargets.from_labels([1], K, smoothing=0.1).compact()
