import random
from base64 import b64encode

import numpy as np
import pytest

from experiments.harness import Estimate, Row
from experiments.harness.statistics import (
    alike,
    difference,
    difference_of_differences,
    estimate,
    for_other_samples,
    largest,
    over,
    over_samples,
    percent,
)


def row(seed, top1, **config):
    return Row(str(seed), {"seed": seed} | config, {"test": {"top1": top1}})


def test_interval_of_known_numbers():
    # t with 4 degrees of freedom at 97.5 % is 2.7764; the values have mean 3 and standard deviation √2.5.
    e = estimate([1, 2, 3, 4, 5])
    assert e.mean == 3
    assert e.high - e.mean == pytest.approx(2.7764451 * 2.5**0.5 / 5**0.5)
    assert estimate([2.0]).low == estimate([2.0]).high == 2.0
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_interval_holds_the_mean_95_times_in_100():
    # 4000 intervals from 5 normal numbers: the count of hits has a standard deviation of 13.8; 5 of them: 6e-7.
    numbers = random.Random(0)
    hits = sum(e.low <= 0 <= e.high for e in (estimate([numbers.gauss(0, 1) for _ in range(5)]) for _ in range(4000)))
    assert abs(hits - 3800) < 69


@pytest.mark.parametrize(("of_seeds", "of_samples"), [(3.0, 0.0), (1.0, 1.0), (0.1, 4.0), (0.0, 0.0)])
def test_an_interval_over_samples_too_holds_the_mean_95_times_in_100(of_seeds, of_samples):
    """Seeds move all samples, samples are hard for all seeds, and the rest is chance: deviations of the mean given."""
    numbers = np.random.default_rng(0)
    seeds, samples, repetitions = 3, 50, 800
    hits = 0
    for _ in range(repetitions):
        effects = of_seeds * numbers.normal(size=(seeds, 1)) + of_samples * numbers.normal(size=samples)
        gap = (effects + numbers.normal(size=(seeds, samples))) / 100
        e = over_samples(gap, np.zeros((seeds, samples)))
        hits += e.low <= 0 <= e.high
        alone = estimate((100 * gap.mean(1)).tolist())
        assert e.high - e.low >= (alone.high - alone.low) * (1 - 1e-9)
    assert hits / repetitions > 0.90  # 95 % less six standard deviations of 0.8 %


def test_differences_are_paired_by_seed():
    a, b = [row(0, 0.5), row(1, 0.7), row(2, 0.1)], [row(1, 0.6), row(0, 0.3)]
    assert difference(a, b, percent("top1")).mean == pytest.approx(15)
    assert difference(a, b, percent("top1")).count == 2
    assert difference_of_differences(a, b, b, a, percent("top1")).mean == pytest.approx(30)


def test_other_samples_are_those_of_the_bits():
    def of(seed, right):
        bits = b64encode(np.packbits(right).tobytes()).decode()
        return Row(str(seed), {"seed": seed}, {"right": bits, "test": {"top1": float(np.mean(right))}})

    ours, theirs = [of(0, [1, 1, 1, 0, 1]), of(1, [1, 1, 0, 1, 1])], [of(0, [1, 0, 1, 0, 0]), of(1, [0, 1, 0, 1, 0])]
    assert for_other_samples(ours, theirs).mean == pytest.approx(40)
    assert for_other_samples([row(0, 0.5)], theirs) is None


def test_groups_and_curves():
    rows = [row(s, 0.1 * s, lr=lr, head={"hidden": h}) for s in range(3) for lr, h in ((0.1, 4), (0.2, 4), (0.2, 8))]
    assert [len(group) for group in alike(rows, "lr", "head.hidden")] == [3, 3, 3]
    assert len(largest(rows, "lr")) == 6
    curve = over(rows, lambda r: r.config["lr"], lambda r: r.config["seed"])
    assert list(curve) == [0.1, 0.2]
    assert curve[0.2].mean == 1


def test_cells():
    assert Estimate(1.234, 1.134, 1.334, 5).spread(2) == "1.23 ± 0.10"
    assert Estimate(-0.5, -0.6, -0.4, 5).spread(1, sign=True) == "−0.5 ± 0.1"
    assert Estimate(0.5, 0.4, 0.6, 5).signed() == "+0.50 [+0.40, +0.60]"
    assert estimate([3.0]).spread(1) == "3.0"
    assert (Estimate(1, 0, 3, 2) * -2).low == -6
