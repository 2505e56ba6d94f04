"""The exact optimum, the statistical limit, and what gradient noise adds."""

import pytest
import torch

from experiments.density.fits import Gradient, Variant, fit, measure_noise
from experiments.density.mixture import (
    best_temperature,
    hessian,
    kl_divergence,
    maximum_likelihood,
    sample_mixtures,
    statistical_limit,
)


def noise_of(data, *variants, **sizes):
    return measure_noise(data, maximum_likelihood(data), variants or [Variant("nll")], seed=0, **sizes)


@pytest.fixture(scope="module")
def four():
    """Four modes in four dimensions."""
    return sample_mixtures([60], [0], num_points=100, num_samples=2048, num_modes=4, dimension=4)


def test_gradient_vanishes_at_the_maximum():
    data = sample_mixtures([20, 80], [0, 1])
    weights = maximum_likelihood(data)[:, None]
    gradient = Gradient(data, [Variant("nll")], torch.float64)
    point = data.index + torch.tensor([[0], [1600]])
    assert gradient(weights, point, data.labels[:, None]).abs().max() < 1e-6


def test_hessian_is_the_second_derivative():
    data = sample_mixtures([40], [0], num_points=30, num_samples=100, num_modes=3, dimension=4)
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def nll(flat):
        return -(data.label_share[0] * (data.points[0] @ flat.view(3, 4).T).log_softmax(1)).sum()

    expected = torch.autograd.functional.hessian(nll, weights.view(-1))
    q = (data.points[0] @ weights.T).softmax(1)
    torch.testing.assert_close(hessian(data.points[0], data.weight[0], q), expected, rtol=1e-9, atol=1e-12)


def test_separable_data_give_finite_weights():
    data = sample_mixtures([0], [0], num_points=40, num_samples=200)
    assert maximum_likelihood(data).isfinite().all()


def test_the_error_vanishes_at_the_truth_and_ignores_a_shift():
    data = sample_mixtures([30], [0], num_points=100, num_samples=500)
    shifted = data.modes[:, None] + torch.randn(1, 1, 1, 20, dtype=torch.float64)
    assert kl_divergence(data, shifted).abs().max() < 1e-12
    assert kl_divergence(data, shifted, smoothing=0.1).min() > 1e-3


def test_best_temperature_undoes_a_scale():
    data = sample_mixtures([30], [0], num_points=100, num_samples=500)
    temperature, kl = best_temperature(data, data.modes[:, None] * torch.tensor([7.0, 0.01]).view(1, 2, 1, 1))
    torch.testing.assert_close(temperature, torch.tensor([[7.0, 0.01]], dtype=torch.float64), rtol=1e-6, atol=0)
    assert kl.abs().max() < 1e-12


def test_kl_is_the_mean_over_samples():
    data = sample_mixtures([30], [0], num_points=50, num_samples=300)
    weights = torch.randn(1, 1, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, p = data.points[0][data.index[0]], data.conditional[0][data.index[0]]
    q = (x @ weights[0, 0].T).softmax(1)
    assert float(kl_divergence(data, weights)) == pytest.approx(float((p * (p / q).log()).sum(1).mean()), rel=1e-10)


def test_maximum_likelihood_reaches_the_statistical_limit():
    # 2n·KL is asymptotically chi-square with (K−1)d = 380 degrees of freedom: the mean over 8 seeds has a relative
    # standard error of √(2/380/8) = 2.6 %; 4 of them allow a false alarm of 6e-5.
    seeds = list(range(8))
    data = sample_mixtures([60] * 8, seeds)
    kl = kl_divergence(data, maximum_likelihood(data)[:, None]).mean()
    assert statistical_limit(20, 20, 32_000) == 0.0059375
    assert float(kl) == pytest.approx(0.0059375, rel=0.105)


@pytest.mark.slow
def test_noise_of_nll_is_the_variance_of_its_samples_gradients(four):
    noise = noise_of(four, batch_size=64, epochs=400)
    x = four.points[0][four.index[0]]
    residual = (x @ maximum_likelihood(four)[0].T).softmax(1) - torch.nn.functional.one_hot(four.labels[0], 4)
    per_sample = torch.einsum("nk,nj->nkj", residual, x).flatten(1).var(0).sum()
    without_replacement = per_sample / 64 * (1 - 64 / 2048)
    # Monte Carlo error of a variance over 12,800 batches: below 2 % for any one direction.
    assert float(noise.total) == pytest.approx(float(without_replacement), rel=0.03)


def test_limit_of_small_steps_is_a_quarter_of_lr_times_the_trace(four):
    # Many batches an epoch and a step small against 1/h but an epoch long against it.
    noise = noise_of(four, batch_size=256, epochs=20)
    seen = noise.curvature > 1e-9
    trace = (noise.variance * seen[:, None]).sum()
    assert float(noise.excess_kl(1e-3, 10_000_000 // 100)) == pytest.approx(float(1e-3 / 4 * trace), rel=0.02)


def test_unstable_steps_are_infinite(four):
    noise = noise_of(four, batch_size=256, epochs=1)
    assert noise.excess_kl(2.1 / float(noise.curvature.max()), 8).isinf().all()


@pytest.mark.slow
def test_noise_predicts_the_error_of_gradient_descent():
    # No free parameter: measured noise and curvature give the excess KL of SGD, for both losses.
    seeds = list(range(12))
    data = sample_mixtures([80] * 12, seeds, num_modes=8, dimension=8, num_points=400, num_samples=8192)
    optimum = maximum_likelihood(data)
    variants = [Variant("nll", "sgd", 0.1), Variant("info-nce", "sgd", 0.1)]
    predicted = noise_of(data, *variants, batch_size=256, epochs=20).excess_kl(0.1, 32).mean(0)
    tail = []

    def keep(epoch, weights):
        if epoch > 100:
            tail.append(kl_divergence(data, weights))

    fit(data, variants, seeds, batch_size=256, epochs=300, on_epoch=keep)
    measured = (torch.stack(tail).mean(0) - kl_divergence(data, optimum[:, None])).mean(0)
    assert float(measured[0]) == pytest.approx(float(predicted[0]), rel=0.25)
    assert measured[1] < 0.2 * measured[0]
    assert predicted[1] < 0.2 * predicted[0]
