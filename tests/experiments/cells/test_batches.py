"""Batches do not depend on the machine, and loaders continue with the next share."""

from functools import partial

import pytest
import torch

from experiments.cells.batches import TrainingBatches, TrainingLoader, deal, evaluation_shares
from experiments.cells.loading import Rows, select


@pytest.mark.parametrize("in_pairs", [False, True])
@pytest.mark.parametrize(("size", "shares"), [(12, 1), (12, 3), (13, 3), (5, 4), (1, 2), (286, 2)])
def test_deal_gives_every_position_once(size, shares, in_pairs):
    parts = deal(size, shares, in_pairs)
    assert len(parts) == shares
    assert sorted(torch.cat(parts).tolist()) == list(range(size))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= (1 if not in_pairs else 2 + size % 2)  # one pair, and the unpaired middle
    if in_pairs:  # reversing a share reverses the batch
        assert all(part.flip(0).tolist() == [size - 1 - i for i in part.tolist()] for part in parts)


def epoch_of(world, micro_batch, epoch=0, size=103, batch=24, drop_last=False, **options):
    """The shares of all devices, update by update: {step: [(device, samples, places, whole batch)]}."""
    seen: dict = {}
    lengths = set()
    for rank in range(world):
        batches = TrainingBatches(size, batch, micro_batch, rank, world, drop_last=drop_last, **options)
        batches.set_epoch(epoch)
        shares = list(batches)
        assert len(shares) == len(batches)
        lengths.add(len(shares))
        for share in shares:
            seen.setdefault(share.step, []).append((rank, share.rows, share.own, share.batch))
    assert len(lengths) == 1  # devices take equally many steps, or they would wait for each other forever
    return seen


@pytest.mark.parametrize("in_pairs", [False, True])
@pytest.mark.parametrize(("world", "micro_batch"), [(1, 24), (1, 6), (2, 12), (2, 4), (3, 2)])
def test_batches_do_not_depend_on_the_machine(world, micro_batch, in_pairs):
    one = epoch_of(1, 24, epoch=3, in_pairs=in_pairs)
    many = epoch_of(world, micro_batch, epoch=3, in_pairs=in_pairs)
    assert one.keys() == many.keys() == set(range(3 * 5, 4 * 5))
    for step, ((_, rows, _, whole),) in one.items():
        assert rows == whole.tolist()
        places = torch.cat([own for _, _, own, _ in many[step]])
        assert sorted(places.tolist()) == list(range(len(rows)))
        for _, mine, own, batch in many[step]:
            assert batch.tolist() == rows
            assert len(own) == 0 or mine == batch[own].tolist()
            assert len(own) <= micro_batch + 2 * in_pairs


def test_an_epoch_holds_every_sample_once_in_an_order_of_its_own():
    orders = []
    for epoch in (0, 1):
        order = [row for shares in epoch_of(2, 4, epoch).values() for _, rows, _, _ in shares for row in rows]
        assert sorted(order) == list(range(103))
        orders.append(order)
    assert orders[0] != orders[1]
    dropped = [row for shares in epoch_of(2, 4, drop_last=True).values() for _, rows, _, _ in shares for row in rows]
    assert len(dropped) == len(set(dropped)) == 96


def test_a_device_without_rows_still_takes_part():
    shares = epoch_of(4, 6, size=25)[1]  # the last batch has a single row
    assert [len(own) for _, _, own, _ in shares] == [1, 0, 0, 0]
    assert all(len(rows) == 1 for _, rows, _, _ in shares)


@pytest.mark.parametrize(("size", "world"), [(10, 1), (10, 3), (2, 3)])
def test_evaluation_sees_every_sample_once(size, world):
    batches = [evaluation_shares(size, 4, rank, world) for rank in range(world)]
    assert sorted(row for device in batches for share in device for row in share.rows) == list(range(size))


def loader(batch, micro_batch, rank=0, world=1, workers=0):
    rows = Rows(partial(select, torch.arange(50.0)[:, None]), torch.arange(50) % 3)
    return TrainingLoader(rows, TrainingBatches(50, batch, micro_batch, rank, world, drop_last=False), workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_with_the_next_share(workers):
    whole, first, second, third = (loader(10, 5, workers=workers) for _ in range(4))
    whole.batches.set_epoch(2)
    first.batches.set_epoch(2)
    expected, before = [batch.inputs for batch in whole], iter(first)
    seen = [next(before).inputs for _ in range(4)]
    assert first.state_dict() == {"epoch": 2, "updates": 2}
    second.load_state_dict(first.state_dict())
    seen += [batch.inputs for batch in second]
    assert len(seen) == len(expected) == 10
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
    # and at the end of an epoch with the next one
    third.load_state_dict(second.state_dict())
    assert (third.batches.epoch, third.batches.start) == (3, 0)


def test_a_loader_goes_on_after_the_same_updates_on_other_devices():
    """With a sixth of the micro-batch, on two devices: the state counts updates, not shares."""
    first = loader(12, 12)
    before = iter(first)
    for _ in range(2):
        next(before)
    expected = [batch.whole[batch.own] for batch in before]
    others = [loader(12, 2, rank, 2) for rank in range(2)]
    for other in others:
        other.load_state_dict(first.state_dict() | {"updates": 2})
    seen = [list(other) for other in others]
    assert len(seen[0]) == 2 * 3 + 1  # two whole batches, and one of two rows
    assert {batch.step for batch in seen[0]} == {2, 3, 4}
    assert sum(len(batch.own) for batches in seen for batch in batches) == sum(map(len, expected)) == 26
