"""Settings: rows grouped, at their chosen rates, compared by seed."""

import pytest

from softnce.lab.experiment.comparison import largest
from softnce.lab.experiment.results import Row
from softnce.lab.experiment.settings import TOP1, Setting, chosen, largest_by_data, tried


def row(loss, lr=1e-3, seed=0, held_out=0.5, test=0.5, **config):
    config = {"data": "digits", "head": {"hidden": 64}, **config, "loss": {"name": loss}, "lr": lr, "seed": seed}
    return Row("", config, {"held_out": {"top1": held_out}, "test": {"top1": test}}, 0.0, "", {})


def test_losses_come_in_the_order_of_the_registry_at_their_best_rates():
    rows = [
        row(loss, lr, held_out=0.6 if lr == best else 0.5)
        for loss, best in (("info-nce", 1e-3), ("nll", 3e-3))
        for lr in (3e-3, 1e-3)
    ]
    assert [(setting.loss, setting.lr) for setting in chosen(rows)] == [("nll", 3e-3), ("info-nce", 1e-3)]
    assert [*tried(rows)] == ["nll", "info-nce"]
    assert [*tried(rows)["nll"].items()] == [(1e-3, 50.0), (3e-3, 60.0)]
    assert [setting.loss for setting in chosen(rows[:3])] == ["info-nce"]  # the search of the other is not finished


def test_differences_are_paired_by_seed():
    one = Setting([row("nll", seed=seed, test=0.5 + 0.1 * seed) for seed in range(3)])
    other = Setting([row("info-nce", seed=seed, test=0.4 + 0.1 * seed) for seed in range(2)])
    gap = one.minus(other, TOP1)
    assert (gap.mean, gap.low, gap.high, gap.count) == pytest.approx((10.0, 10.0, 10.0, 2))
    assert one.mean(TOP1).mean == pytest.approx(60.0)
    assert len(one.of_seeds(lambda seed: seed > 0)) == 2
    assert one.of_seeds(lambda seed: seed > 5) is None


def test_the_largest_group_counts_fields_inside_others():
    small, large = [row("nll", head={"hidden": 8})], [row("nll", head={"hidden": 64, "kind": kind}) for kind in "ab"]
    assert largest(small + large, "head.hidden") == large
    images = [row("nll", data="cifar100")]
    assert largest_by_data(small + large + images, "head.hidden") == {"digits": large, "cifar100": images}
    assert largest([], "data") == []
