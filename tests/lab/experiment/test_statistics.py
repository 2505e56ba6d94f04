import random

import numpy as np
import pytest

from softnce.lab.experiment.statistics import estimate, over_samples, seeds_needed


def test_interval_of_known_numbers():
    # t with 4 degrees of freedom at 97.5 % is 2.7764; the values have mean 3 and standard deviation √2.5.
    e = estimate([1, 2, 3, 4, 5])
    assert e.mean == 3
    assert e.high - e.mean == pytest.approx(2.7764451 * 2.5**0.5 / 5**0.5)
    assert e.mean - e.low == pytest.approx(e.high - e.mean)


def test_one_value_and_none():
    assert estimate([2.0]).low == estimate([2.0]).high == 2.0
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_interval_holds_the_mean_95_times_in_100():
    # 4000 intervals from 5 normal numbers: the count of hits has a standard deviation of 13.8; 5 of them: 6e-7.
    numbers = random.Random(0)
    hits = sum(e.low <= 0 <= e.high for e in (estimate([numbers.gauss(0, 1) for _ in range(5)]) for _ in range(4000)))
    assert abs(hits - 3800) < 69


def test_seeds_needed_have_the_power_that_is_asked_for():
    # Known: a t test at 5 % (two-sided) of a mean of half a standard deviation needs 34 values for a power of 80 %.
    gap = estimate([0.5 + x for x in (-1.0, 1.0, -1.0, 1.0, 0.0)])  # mean 0.5, standard deviation 1
    assert seeds_needed(gap, 0.5) == 34
    assert seeds_needed(gap, 0.0) is None
    assert seeds_needed(estimate([0.5]), 0.5) is None
    assert seeds_needed(estimate([0.5, 0.5]), 0.5) == 2


def test_equivalence_takes_more_seeds_than_either_of_its_sides():
    gap = estimate([-1.0, 1.0, -1.0, 1.0, 0.0])  # mean 0, standard deviation 1
    count = seeds_needed(gap, 0.5, 0.5)
    assert count > seeds_needed(gap, 0.5) == 34
    # Simulated: so often both ends are within ±0.5; of 4000 repetitions the share has a deviation of 0.006.
    numbers = random.Random(0)
    tests = [estimate([numbers.gauss(0, 1) for _ in range(count)]) for _ in range(4000)]
    share = sum(e.low > -0.5 and e.high < 0.5 for e in tests) / 4000
    assert 0.78 < share < 0.84
    assert seeds_needed(gap, 0.5, 5.0) == 34, "a side that is far away costs nothing"


@pytest.mark.parametrize(("of_seeds", "of_samples"), [(3.0, 0.0), (1.0, 1.0), (0.1, 4.0), (0.0, 0.0)])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_an_interval_over_samples_too_holds_the_mean_95_times_in_100(seeds, of_seeds, of_samples):
    """Seeds move all samples, samples are hard for all seeds, and the rest is chance: deviations of the mean given."""
    random = np.random.default_rng(0)
    samples, repetitions = 50, 800
    hits = 0
    for _ in range(repetitions):
        effects = of_seeds * random.normal(size=(seeds, 1)) + of_samples * random.normal(size=samples)
        difference = (effects + random.normal(size=(seeds, samples))) / 100
        e = over_samples(difference, np.zeros((seeds, samples)))
        hits += e.low <= 0 <= e.high
        alone = estimate((100 * difference.mean(1)).tolist())
        assert e.high - e.low >= (alone.high - alone.low) * (1 - 1e-9)
    assert hits / repetitions > 0.90  # 95 % less six standard deviations of 0.8 %


def test_an_interval_over_samples_has_that_of_samples_where_seeds_agree():
    numbers = random.Random(0)
    one, other = ([[numbers.random() < 0.5 for _ in range(400)]] * 8 for _ in range(2))
    # the seeds say nothing, the samples do: √(p₀₁ + p₁₀ − (p₀₁ − p₁₀)²)/√n
    differences = [a - b for a, b in zip(one[0], other[0], strict=True)]
    mean = sum(differences) / 400
    deviation = 100 * ((sum(d * d for d in differences) / 400 - mean**2) / 400) ** 0.5
    for seeds in (8, 1):
        e = over_samples(one[:seeds], other[:seeds])
        assert e.mean == pytest.approx(100 * mean)
        assert (e.high - e.low) / 2 == pytest.approx(1.966 * deviation, rel=0.01)
        assert e.count == seeds
    same = over_samples(one, one)
    assert (same.low, same.high) == (0, 0)
