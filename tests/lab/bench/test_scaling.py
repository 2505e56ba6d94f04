"""Exponents of laws that are known, and sweeps that change one size."""

import pytest

from softnce.lab.bench.cases import CASES, Size
from softnce.lab.bench.measurement import Measurement
from softnce.lab.bench.scaling import Sweeps, exponent, exponents, position


def test_exponent_of_a_power_law() -> None:
    x = [1, 3, 10, 40]
    fitted = exponent(x, [5 * value**1.7 for value in x])
    assert fitted.value == pytest.approx(1.7)
    assert fitted.error == pytest.approx(0, abs=1e-12)


def test_error_is_that_of_the_regression() -> None:
    from scipy.stats import linregress

    u, v = [0.0, 1.0, 2.0, 4.0], [0.1, 0.9, 2.3, 3.8]
    expected = linregress(u, v)
    fitted = exponent([2.718281828459045**a for a in u], [2.718281828459045**b for b in v])
    assert (fitted.value, fitted.error) == pytest.approx((expected.slope, expected.stderr))


def test_exponent_needs_two_points() -> None:
    with pytest.raises(ValueError, match="two points"):
        exponent([1], [1])


def test_zero_has_no_sign() -> None:
    assert str(exponent([1, 10], [1, 0.999])) == "0.00 ± 0.00"


def test_a_sweep_changes_one_size() -> None:
    sweeps = Sweeps(rows=(2, 4), candidates=(2, 4, 8), classes=(10, 20), table_classes=(10, 30), batch=4)
    for axis, plan in sweeps.plans().items():
        for name in {case.name for case, _ in plan}:
            sizes = [size for case, size in plan if case.name == name]
            others = {tuple(position(other, size) for other in "NMK" if other != axis) for size in sizes}
            assert len(others) == 1
            assert len({position(axis, size) for size in sizes}) == len(sizes) >= 2


def test_exponents_leave_out_what_was_not_measured() -> None:
    case = CASES["softnce, MixUp pairs"]
    points = [Measurement(case, Size(n, 10), times=(n / 10,), bytes=n * n) for n in (2, 4, 8)]
    found = exponents("N", [*points, Measurement(case, Size(16, 10), needs=1e12)])
    assert found[case.name]["time"].value == pytest.approx(1)
    assert found[case.name]["memory"].value == pytest.approx(2)
