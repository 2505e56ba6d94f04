"""MixUp and CutMix: what is done to the inputs is what the targets say."""

import numpy as np
import pytest
import torch
from batches import make_targets, seeded
from torch.testing import assert_close

from softnce import SoftTargetInfoNCE, SoftTargets, mixing
from softnce.targets import Form


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("kind", ["labels", "probabilities", "smoothed", "numpy", "top-k", "spread", "dense", "votes"])
def test_inputs_and_targets_are_mixed_alike(per_row: bool, kind: str) -> None:
    """Dense rows as inputs: what comes out must equal the targets."""
    labels = torch.randint(5, (12,), generator=seeded())
    hard, smoothed = torch.eye(5, dtype=torch.float64)[labels], SoftTargets.from_labels(labels, 5, 0.2)
    given = {"labels": labels, "probabilities": hard, "numpy": labels.numpy(), "smoothed": smoothed}
    targets = given[kind] if kind in given else make_targets(kind, 12, 5, seeded())
    rows = targets.dense(torch.float64) if isinstance(targets, SoftTargets) else hard
    mixed, soft = mixing.mixup(rows, targets, num_classes=5, alpha=0.7, per_row=per_row, generator=seeded(1))
    assert (mixed.dtype, mixed.shape) == (rows.dtype, rows.shape)
    assert_close(soft.dense(torch.float64), mixed, rtol=0, atol=1e-6)
    assert soft.form == (Form.DENSE if kind in ("dense", "votes") else Form.PAIRS)
    assert not torch.equal(mixed, rows)


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("shape", [(3, 9, 7), (9, 7), (2, 3, 9, 7)])
def test_pixels_are_pasted_in_the_share_that_targets_say(per_row: bool, shape: tuple[int, ...]) -> None:
    """Images filled with their own number: the share of each number is its target's weight."""
    n = 10
    images = torch.arange(n, dtype=torch.float64).view(n, *[1] * len(shape)).expand(n, *shape)
    mixed, soft = mixing.cutmix(images, torch.arange(n), num_classes=n, per_row=per_row, generator=seeded(3))
    share = (mixed.reshape(n, 1, -1) == torch.arange(n)[:, None]).double().mean(2)
    assert_close(soft.dense(torch.float64), share, rtol=0, atol=1e-6)
    boxes = (mixed != images).flatten(1, -3).any(1) if len(shape) > 2 else mixed != images
    for box in boxes:  # what was pasted is a rectangle
        rows, columns = box.any(1), box.any(0)
        assert torch.equal(box, rows[:, None] & columns)
    distinct = {tuple(map(tuple, box.tolist())) for box in boxes if box.any()}
    assert len(distinct) > 1 if per_row else len(distinct) == 1


def test_lambda_follows_its_distribution() -> None:
    """Mean and variance of 20,000 λ ~ Beta(α, α) within 5 standard errors, also where gamma variates underflow."""
    n = 20_000
    for alpha in (0.001, 0.3, 1.0, 4.0):
        lam = mixing.draw_lam(alpha, None, True, n, seeded(2))
        assert bool(lam.isfinite().all())
        variance = 1 / (4 * (2 * alpha + 1))
        # The underflow for tiny α puts λ at 1 with the partner chosen at random; only its distance from ½ is Beta's.
        assert abs(float((lam - 0.5).square().mean()) - variance) < 5 * 0.125 / n**0.5
        if alpha > 0.1:
            assert abs(float(lam.mean()) - 0.5) < 5 * (variance / n) ** 0.5


@pytest.mark.parametrize("mix", [mixing.mixup, mixing.cutmix])
def test_a_generator_repeats_and_lambda_can_be_given(mix) -> None:
    images, labels = torch.rand(6, 3, 8, 8, generator=seeded()), torch.arange(6)
    first, second = (mix(images, labels, num_classes=6, per_row=True, generator=seeded(4)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert bool((first[1] == second[1]).all())
    same, soft = mix(images, labels, num_classes=6, lam=1.0)
    assert torch.equal(same, images)
    assert soft.allclose(SoftTargets.from_labels(labels, 6))
    lam = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    _, soft = mix(images, labels, num_classes=6, lam=lam, generator=seeded(5))
    assert soft.argmax()[[0, 2, 3, 5]].tolist() == [0, 2, 3, 5]
    half, _ = mix(images.bfloat16(), labels, num_classes=6)
    assert half.dtype == torch.bfloat16


def test_a_row_mixed_with_an_ignored_one_is_ignored() -> None:
    labels = torch.tensor([0, 1, -100, 2])
    _, soft = mixing.mixup(torch.rand(4, 2), labels, num_classes=3, generator=seeded(0))
    assert soft.mask is not None
    generator = seeded()
    mixing.draw_lam(1.0, None, False, 4, generator)
    partner = torch.randperm(4, generator=generator)
    assert soft.mask.tolist() == ((labels != -100) & (labels[partner] != -100)).tolist()


def test_mixed_targets_go_into_a_loss() -> None:
    images, soft = mixing.cutmix(torch.rand(8, 3, 6, 6), torch.arange(8) % 5, num_classes=5, per_row=True)
    logits = images.mean((2, 3)) @ torch.randn(3, 5)
    assert SoftTargetInfoNCE("uniform")(logits.requires_grad_(), soft).isfinite()
    again, twice = mixing.mixup(images, soft)
    assert twice.classes.shape[1] == 4
    assert again.shape == images.shape
