import random

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


def test_an_interval_over_samples_too_is_wider_than_one_over_seeds():
    numbers = random.Random(0)
    hard = [numbers.random() for _ in range(400)]  # some samples are harder than others, for every seed
    ours, theirs = ([[numbers.random() < p for p in hard] for _ in range(8)] for _ in range(2))
    e = over_samples(ours, theirs)
    gaps = [sum(a) / 4 - sum(b) / 4 for a, b in zip(ours, theirs, strict=True)]
    assert e.mean == pytest.approx(estimate(gaps).mean, abs=1e-4)
    assert e.low < e.mean < e.high
    # of the same predictions on all seeds the seeds say nothing, the samples do: √(p₀₁ + p₁₀ − (p₀₁ − p₁₀)²)/√n
    one, other = [ours[0]] * 8, [theirs[0]] * 8
    differences = [a - b for a, b in zip(ours[0], theirs[0], strict=True)]
    mean = sum(differences) / 400
    deviation = 100 * ((sum(d * d for d in differences) / 400 - mean**2) / 400) ** 0.5
    wide = over_samples(one, other)
    assert (wide.high - wide.low) / 2 == pytest.approx(1.96 * deviation, rel=0.1)
