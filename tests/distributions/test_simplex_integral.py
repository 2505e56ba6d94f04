import math
from decimal import Decimal

import mpmath
import numpy as np
import pytest
import torch
from simplex_references import exact_moments, parameters, series_log_integral
from torch.testing import assert_close

from experiments.exact_loss.original import cancelling_log_integral, exact_log_integral
from softnce.distributions import simplex
from softnce.distributions.simplex import SimplexIntegral

SCALES = [0.0, 1e-6, 0.1, 1.0, 10.0, 100.0]


@pytest.mark.parametrize("classes", [2, 3, 5, 10, 30, 100, pytest.param(300, marks=pytest.mark.slow)])
def test_log_integral_mean_and_covariance_equal_high_precision(classes):
    for scale in SCALES:
        for name, omega in parameters(classes, scale, seed=classes).items():
            probe = [0, classes - 1]
            log_z, (mean, second) = exact_log_integral(omega.tolist()), exact_moments(omega.tolist(), probe)
            ours = SimplexIntegral(omega)
            where = f"K={classes} scale={scale} {name}"
            assert abs(Decimal(ours.log_value.item()) - log_z) <= 1e-11, where
            for a, i in enumerate(probe):
                assert abs(Decimal(ours.moment(1)[i].item()) / mean[a] - 1) <= 1e-11, where
                for b, j in enumerate(probe):
                    covariance = float(second[a][b] - mean[a] * mean[b])
                    # What fp64 leaves of a difference of two such moments.
                    rounding = 1e-13 * float(second[a][b]) + 1e-16
                    assert abs(ours.covariance()[i, j].item() - covariance) <= rounding, where


def spike_and_bulk(classes, spikes, rate):
    """m classes of the given rate over a bulk of rate K. Rates between K^(1/2) and K^(2/3) are where the saddle's width
    comes from the bulk and its skewness from the spikes: the hardest case for the contour."""
    omega = torch.zeros(classes, dtype=torch.float64)
    omega[:spikes] = classes - rate
    return omega


@pytest.mark.parametrize("classes", [1_000, 10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_log_integral_at_large_k_equals_the_series(classes):
    tried = {f"{name} {s}": w for s in SCALES for name, w in parameters(classes, s, seed=classes).items()}
    smoothed = torch.full((classes,), 0.1 / classes, dtype=torch.float64)
    smoothed[0] += 0.9
    tried["smoothed label"] = smoothed.log()
    if classes <= 1_000:  # the series needs as many terms as ω is wide
        tried["sharpened"] = 200 * smoothed.log()
        for spikes in (1, 3):
            for power in (0.3, 0.55, 0.6, 0.7):
                tried[f"spikes {spikes} {power}"] = spike_and_bulk(classes, spikes, classes**power)
    for name, omega in tried.items():
        expected = series_log_integral(omega.numpy())
        assert abs(SimplexIntegral(omega).log_value.item() / expected - 1) <= 1e-14, name


@pytest.mark.parametrize("classes", [1, 2, 7, 1_000, 100_000])
def test_flat_is_the_volume_of_the_simplex(classes):
    integral = SimplexIntegral(torch.full((classes,), 3.0, dtype=torch.float64))
    assert integral.log_value.item() == pytest.approx(3.0 - math.lgamma(classes), rel=1e-14, abs=1e-13)
    assert_close(integral.moment(1), torch.full((classes,), 1 / classes, dtype=torch.float64), rtol=1e-11, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.3, 0.5, 0.55, 0.6, 0.65, 0.8, 0.95])
@pytest.mark.parametrize("spikes", [1, 10])
def test_spikes_over_a_bulk_of_a_hundred_thousand(power, spikes):
    classes = 100_000
    omega = spike_and_bulk(classes, spikes, classes**power / math.sqrt(spikes))
    with mpmath.mp.workdps(40):
        top = mpmath.mpf(omega[0].item())
        c = mpmath.findroot(lambda c: spikes / c + (classes - spikes) / (c + top) - 1, (1, classes), solver="anderson")

        # f(1) by the inversion integral along the vertical line through the saddle, which decays like a Gaussian here
        def integrand(y):
            w = 1j * y
            return mpmath.exp(w - spikes * mpmath.log1p(w / c) - (classes - spikes) * mpmath.log1p(w / (c + top))).real

        width = 1 / mpmath.sqrt(spikes / c**2 + (classes - spikes) / (c + top) ** 2)
        f = mpmath.quad(integrand, mpmath.linspace(0, 14 * width, 15)) / mpmath.pi
        expected = top + c - spikes * mpmath.log(c) - (classes - spikes) * mpmath.log(c + top) + mpmath.log(f)
        error = SimplexIntegral(omega).log_value.item() / expected - 1
    assert abs(error) <= 2e-15


def test_derivatives_of_every_order():
    omega = torch.tensor([[0.3, -2.0, 0.3, 1.5], [5.0, 0.0, -30.0, 4.99]], dtype=torch.float64, requires_grad=True)

    def log_value(w):
        return SimplexIntegral(w).log_value

    def second_moment(w):
        return SimplexIntegral(w).moment(2)

    for function in (log_value, second_moment):
        assert torch.autograd.gradcheck(function, omega)
        assert torch.autograd.gradgradcheck(function, omega)
    mean = SimplexIntegral(omega[0]).moment(1)
    assert_close(torch.func.grad(log_value)(omega[0].detach()), mean, rtol=1e-13, atol=0)
    hessian = torch.func.jacrev(torch.func.grad(log_value))(omega[0].detach())
    assert_close(hessian, SimplexIntegral(omega[0]).covariance(), rtol=1e-12, atol=1e-15)


def test_absent_classes_are_left_out():
    omega = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    sparse = torch.full((3, 7), -torch.inf, dtype=torch.float64)
    sparse[0, [1, 4, 6]] = omega
    sparse[1, 2:5] = omega
    sparse[2, 3] = 4.0
    sparse.requires_grad_()
    integral = SimplexIntegral(sparse)
    expected = SimplexIntegral(omega).log_value
    assert_close(integral.log_value[:2], expected.expand(2), rtol=1e-14, atol=0)
    assert integral.log_value[2].item() == pytest.approx(4.0, abs=1e-14)
    (gradient,) = torch.autograd.grad(integral.log_value.sum(), sparse)
    assert_close(gradient[0, [1, 4, 6]], SimplexIntegral(omega).moment(1), rtol=1e-13, atol=0)
    assert (gradient[sparse == -torch.inf] == 0).all()


def test_a_batch_larger_than_a_block_equals_its_rows(monkeypatch):
    omega = 3 * torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = SimplexIntegral(omega)
    monkeypatch.setattr(simplex, "NODES_BLOCK", 400)
    blocks = SimplexIntegral(omega)
    assert_close(blocks.log_value, whole.log_value, rtol=1e-14, atol=0)
    assert_close(blocks.moment(2), whole.moment(2), rtol=1e-13, atol=0)
    rows = torch.stack([SimplexIntegral(row).log_value for row in omega])
    assert_close(whole.log_value, rows, rtol=1e-14, atol=0)


def test_extreme_parameters_stay_finite():
    omega = torch.tensor([[1e6, -1e6, 0.0], [-1e300, 0.0, 1.0], [1e15, 1e15, 1e15 - 1]], dtype=torch.float64)
    integral = SimplexIntegral(omega)
    assert integral.log_value.isfinite().all()
    assert_close(integral.moment(1).sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-13, atol=0)


def test_the_cancelling_sum_fails_where_ours_does_not():
    """The comparison with the original authors' formula, ω of scale 1: exact at K = 3, no digits left at K = 20."""
    errors = {}
    for classes in (3, 10, 20, 30):
        omega = parameters(classes, 1.0, seed=0)["distinct"]
        exact = exact_log_integral(omega.tolist())
        theirs = abs(cancelling_log_integral(omega).nan_to_num(torch.inf).item() - float(exact))
        ours = abs(float(Decimal(SimplexIntegral(omega).log_value.item()) - exact))
        errors[classes] = (theirs, ours)
    assert errors[3][0] < 1e-12
    assert errors[20][0] > 1e-1
    assert errors[30][0] > 1e-1
    assert all(ours < 1e-12 for _, ours in errors.values())
    assert not np.isfinite(cancelling_log_integral(torch.zeros(3, dtype=torch.float64)).item())
