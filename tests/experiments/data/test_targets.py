import math

import pytest
import torch
from timm.data.mixup import Mixup

from experiments.cells.batches import deal
from experiments.data.targets import Targets, draw_batch, draw_mix, hard_labels, mix_inputs, soft_targets
from softnce import SoftTargets

K = 4


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0)])
def test_mixing_is_timms(seed, mixup, cutmix, monkeypatch):
    images, labels = torch.rand(8, 3, 16, 20), torch.arange(8) % K
    targets = Targets(smoothing=0.1, mixup=mixup, cutmix=cutmix, mix_probability=1.0)
    mix = draw_mix(targets, images.shape, seed, 3)
    mixed = mix_inputs(images, mix)
    soft = SoftTargets.from_labels(labels, K, 0.1)
    soft = soft.mix(soft.flip(0), mix.share)

    theirs = Mixup(mixup, cutmix, prob=1.0, label_smoothing=0.1, num_classes=K)
    monkeypatch.setattr(theirs, "_params_per_batch", lambda: (mix.share, mix.box is not None))
    monkeypatch.setattr("timm.data.mixup.cutmix_bbox_and_lam", lambda *a, **k: (mix.box, mix.share))
    their_images, their_targets = theirs(images.clone(), labels)
    torch.testing.assert_close(mixed, their_images)
    torch.testing.assert_close(soft.dense(), their_targets)


def test_mix_depends_on_seed_and_step_alone_and_has_the_right_shares():
    targets = Targets(mixup=0.8, cutmix=1.0, mix_probability=0.8, switch_probability=0.5)
    draws = [draw_mix(targets, (4, 3, 32, 32), 0, step) for step in range(4000)]
    assert draws[:50] == [draw_batch(targets, 8, (8, 3, 32, 32), 0, step).mixes[0] for step in range(50)]
    assert draws[:50] == [draw_mix(targets, (9, 3, 32, 32), 0, step) for step in range(50)]
    assert draws[:50] != [draw_mix(targets, (4, 3, 32, 32), 1, step) for step in range(50)]
    mixed = [mix for mix in draws if mix is not None]
    # 5 standard deviations of a binomial: a false alarm in 1.7 million
    assert abs(len(mixed) / 4000 - 0.8) < 5 * math.sqrt(0.8 * 0.2 / 4000)
    cut = sum(mix.box is not None for mix in mixed) / len(mixed)
    assert abs(cut - 0.5) < 5 * math.sqrt(0.25 / len(mixed))
    for mix in mixed:
        if mix.box is not None:
            top, bottom, left, right = mix.box
            assert 0 <= top <= bottom <= 32
            assert 0 <= left <= right <= 32
            assert mix.share == pytest.approx(1 - (bottom - top) * (right - left) / 32**2)


def test_cutmix_of_vectors_is_refused():
    with pytest.raises(ValueError, match="cutmix needs images"):
        draw_mix(Targets(cutmix=1.0, mix_probability=1.0), (4, 10), 0, 0)


def test_groups_are_mixed_as_devices_mix_their_own_rows():
    """Ten rows in groups of four: the last has two. Every group is a batch of its own with its own draw."""
    targets = Targets(smoothing=0.1, mixup=0.8, cutmix=1.0, mix_group=4)
    images, labels = torch.rand(10, 3, 8, 8), torch.arange(10) % K
    soft, kinds = SoftTargets.from_labels(labels, K, 0.1), set()
    for step in range(30):
        mix = draw_batch(targets, 10, images.shape, 7, step)
        shares = [m.share for m in mix.mixes if m and m.box is None]
        assert len(set(shares)) == len(shares)
        mixed, dense = mix.inputs(images), mix.targets(soft).dense()
        for number, rows in enumerate(torch.arange(10).split(4)):
            drawn = draw_mix(targets, images.shape, 7, step, number)
            kinds.add(drawn and drawn.box is None)
            one = images[rows] if drawn is None else mix_inputs(images[rows], drawn)
            part = soft[rows] if drawn is None else soft[rows].mix(soft[rows].flip(0), drawn.share)
            torch.testing.assert_close(mixed[rows], one)
            torch.testing.assert_close(dense[rows], part.dense())
    assert kinds == {None, True, False}


@pytest.mark.parametrize(("group", "shares"), [(0, 1), (0, 3), (4, 1), (4, 2), (4, 3), (5, 4), (16, 2)])
def test_shares_mix_as_the_whole_batch_does(group, shares):
    targets = Targets(mixup=0.8, mix_probability=1.0, mix_group=group)
    inputs = torch.rand(13, 6)
    mix = draw_batch(targets, 13, inputs.shape, 1, 2)
    assert len(mix.mixes) == {0: 1, 4: 4, 5: 3, 16: 1}[group]
    whole, parts = mix.inputs(inputs), deal(13, shares, in_pairs=True, group=group)
    assert torch.cat(parts).sort().values.tolist() == list(range(13))
    for own in parts:
        torch.testing.assert_close(mix.inputs(inputs[own], own), whole[own])


def test_votes_become_targets_and_rows_without_votes_do_not_count():
    votes = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    soft = soft_targets(votes, 3, 0.1)
    expected = 0.9 * votes / votes.sum(1, keepdim=True).clamp(min=1) + 0.1 / 3
    torch.testing.assert_close(soft.dense()[[0, 2]], expected[[0, 2]])
    assert soft.mask.tolist() == [True, False, True]
    assert hard_labels(votes).tolist() == [0, -100, 2]
    labels = torch.tensor([1, -100, 0])
    torch.testing.assert_close(
        soft_targets(torch.tensor([[0, 1], [0, 0], [1, 0]]), 2, 0.1).dense()[[0, 2]],
        soft_targets(labels, 2, 0.1).dense()[[0, 2]],
    )
