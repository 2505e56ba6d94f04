"""The contrasts against the slow references, in value and gradient, float64."""

from functools import partial

import pytest
import torch
from batches import KINDS, Batch, Given, batches, make_targets, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import contrast as slow_contrast
from reference import expected as slow_expected
from reference import published_loss

from softnce import functional


@pytest.mark.parametrize("name", ["soft target", pytest.param("expected", marks=pytest.mark.slow)])
@settings(max_examples=600)
@given(
    batch=batches(), kinds=st.lists(st.sampled_from(KINDS), max_size=3), seed=st.integers(0, 10**6),
    hold_own=st.booleans(), remove_hits=st.booleans(), count=st.sampled_from([0.0, 0.5, 20.0]),
    chunk_size=st.sampled_from([None, 1, 3]),
)  # fmt: skip
def test_candidates_in_groups_equal_the_reference(
    name: str, batch: Batch, kinds: list[str], seed: int, hold_own: bool, remove_hits: bool, count: float,
    chunk_size: int | None,
) -> None:  # fmt: skip
    targets, own = batch.targets, None
    groups = [make_targets(kind, 1 + seed % 5, targets.num_classes, seeded(seed)) for kind in kinds]
    if hold_own or not groups:
        own = sum(map(len, groups)) + torch.arange(len(targets))
        groups.append(targets)
    rows = torch.cat([group.dense(torch.float64) for group in groups])
    mask = torch.cat([torch.ones(len(group)) > 0 if group.mask is None else group.mask for group in groups])
    if name == "expected":
        candidates, mass = Given(groups, own, count), count * batch.noise if count else None
        loss = partial(functional.expected_info_nce, candidates=candidates, negatives="mean")
        slow_loss = partial(slow_expected, noise_mass=mass)
    else:
        options = {"candidates": Given(groups, own), "remove_accidental_hits": remove_hits}
        loss = partial(functional.soft_target_info_nce, **options)
        slow_loss = partial(slow_contrast, remove_hits=remove_hits)

    logits = batch.logits.requires_grad_()
    options = {"temperature": batch.temperature, "reduction": "none", "chunk_size": chunk_size}
    fast = loss(logits, targets, batch.noise, **options)
    slow = slow_loss(batch.scores, targets.dense(torch.float64), rows, own, mask)

    counted = slice(None) if targets.mask is None else targets.mask
    bound = 1e-12 * (1 + float(batch.scores.detach().abs().max()))
    gradients = (torch.autograd.grad(value.sum(), logits)[0] for value in (fast, slow))
    # A gradient is a difference of two points on the simplex over τ; its error scales with the weights' error.
    for (ours, theirs), most in (((fast, slow), bound), (gradients, bound / batch.temperature)):
        assert ours.isfinite().all()
        assert ((ours - theirs)[counted].abs() <= most).all()


def test_equals_the_published_formulation() -> None:
    logits, noise = torch.randn(12, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64) + 0.1
    noise = noise / noise.sum()
    targets = torch.randn(12, 6, dtype=torch.float64).softmax(1)
    ours = functional.soft_target_info_nce(logits, targets, noise, temperature=0.7)
    torch.testing.assert_close(ours, published_loss(logits, targets, noise, 0.7), rtol=0, atol=1e-13)


@settings(max_examples=60)
@given(batches(), st.randoms(use_true_random=False))
def test_permuting_the_batch_permutes_the_losses(batch: Batch, random) -> None:
    order = list(range(len(batch.targets)))
    random.shuffle(order)
    given = {"noise_probs": batch.noise, "temperature": batch.temperature, "reduction": "none"}
    expected = functional.soft_target_info_nce(batch.logits, batch.targets, **given)[order]
    found = functional.soft_target_info_nce(batch.logits[order], batch.targets[torch.tensor(order)], **given)
    bound = 1e-12 * (1 + float(batch.scores.detach().abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)
