"""Every path of the contrast against the slow reference, in value and gradient, float64."""

import pytest
import torch
from batches import KINDS, Batch, batches, contrast, make_targets
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import contrast as slow_contrast
from reference import published_loss

import softnce
from softnce import functional


@settings(max_examples=600)
@given(batches(), st.lists(st.sampled_from(KINDS), max_size=3), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_candidates_in_groups_equal_the_reference(
    batch: Batch, kinds: list[str], seed: int, hold_own: bool, remove_hits: bool
) -> None:
    generator, classes = torch.Generator().manual_seed(seed), batch.targets.num_classes
    groups, own = [make_targets(kind, 1 + seed % 5, classes, generator) for kind in kinds], None
    if hold_own or not groups:
        own = sum(map(len, groups)) + torch.arange(len(batch.targets))
        groups.append(batch.targets)
    logits = batch.logits.requires_grad_()
    fast = contrast(logits, batch.temperature, batch.noise.log(), batch.targets, groups, own, remove_hits)

    rows = torch.cat([c.dense(torch.float64) for c in groups])
    mask = torch.cat([torch.ones(len(c), dtype=torch.bool) if c.mask is None else c.mask for c in groups])
    slow = slow_contrast(batch.scores, batch.targets.dense(torch.float64), rows, own, mask, remove_hits)

    counted = slice(None) if batch.targets.mask is None else batch.targets.mask
    bound = 1e-12 * (1 + float(batch.scores.detach().abs().max()))
    gradients = (torch.autograd.grad(value.sum(), logits)[0] for value in (fast, slow))
    # A gradient is a difference of two points on the simplex over τ; its error scales with the weights' error.
    for (ours, theirs), most in (((fast, slow), bound), (gradients, bound / batch.temperature)):
        assert ours.isfinite().all()
        assert ((ours - theirs)[counted].abs() <= most).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_candidates_but_the_own_is_zero(kind: str) -> None:
    targets = make_targets(kind, 1, 5, torch.Generator().manual_seed(0))
    logits = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)
    loss = contrast(logits, 1.0, None, targets, [targets], torch.tensor([0]))
    loss.sum().backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()


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


def test_every_loss_is_finite_at_extreme_logits() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4]], requires_grad=True)
    labels = torch.tensor([1, 0, 2])
    contrasts = softnce.SoftTargetInfoNCE, softnce.InfoNCE, softnce.SoftDistributionInfoNCE, softnce.ExpectedInfoNCE
    for loss in (softnce.SoftTargetCrossEntropy(), softnce.NLL(), *(kind("uniform") for kind in contrasts)):
        value = loss(logits, labels)
        (gradient,) = torch.autograd.grad(value, logits)
        assert value.isfinite()
        assert gradient.isfinite().all()
