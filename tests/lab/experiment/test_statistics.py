import random

import pytest

from softnce.lab.experiment.statistics import estimate


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
