import math
import time

import pytest
import scipy.stats
import torch
from torch.distributions import ContinuousBernoulli, Dirichlet, kl_divergence
from torch.testing import assert_close

from softnce.distributions import ContinuousCategorical
from softnce.distributions.simplex import SimplexIntegral


def random_logits(*shape, scale=1.0, seed=0, dtype=torch.float64):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_two_classes_are_torchs_continuous_bernoulli():
    # Away from 0.5, where torch uses a Taylor expansion that is good to about 1e-9 only.
    p = torch.tensor([1e-4, 0.03, 0.2, 0.4, 0.6, 0.9, 0.9999], dtype=torch.float64)
    theirs = ContinuousBernoulli(probs=p)
    ours = ContinuousCategorical(probs=torch.stack([p, 1 - p], dim=-1))
    x = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
    close = {"rtol": 1e-10, "atol": 1e-11}
    assert_close(ours.log_prob(torch.stack([x, 1 - x], dim=-1)), theirs.log_prob(x), **close)
    assert_close(ours.mean[:, 0], theirs.mean, **close)
    assert_close(ours.variance[:, 0], theirs.variance, **close)
    assert_close(ours.entropy(), theirs.entropy(), **close)
    near = torch.tensor([0.4995, 0.5, 0.5005], dtype=torch.float64)
    ours = ContinuousCategorical(probs=torch.stack([near, 1 - near], dim=-1))
    assert_close(ours.mean[:, 0], ContinuousBernoulli(probs=near).mean, rtol=1e-9, atol=0)


def test_concentration_is_a_power_of_probs():
    probs = random_logits(5, 4).softmax(-1)
    kappa = torch.tensor([0.5, 1.0, 2.0, 7.0, 30.0], dtype=torch.float64)
    sharpened = ContinuousCategorical(probs=probs.pow(kappa.unsqueeze(-1)))
    ours = ContinuousCategorical(probs=probs, concentration=kappa)
    assert_close(ours.mean, sharpened.mean)
    assert_close(ours.log_prob(probs), sharpened.log_prob(probs))
    assert ContinuousCategorical(probs=probs[0], concentration=kappa).batch_shape == (5,)
    by_logits, by_probs = ContinuousCategorical(logits=probs.log() + 5), ContinuousCategorical(probs=3 * probs)
    for of in (lambda d: d.log_prob(probs), lambda d: d.probs, lambda d: d.logits):
        assert_close(of(by_logits), of(by_probs))


def test_density_integrates_to_one():
    """Mean of density over uniform points of the simplex is 1/volume; K = 4, false-alarm rate 1e-4."""
    torch.manual_seed(0)
    d = ContinuousCategorical(logits=torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64))
    density = d.log_prob(Dirichlet(torch.ones(4, dtype=torch.float64)).sample((200_000,))).exp()
    z = (density.mean() / math.factorial(3) - 1) / (density.std() / math.factorial(3) / math.sqrt(len(density)))
    assert abs(z.item()) < scipy.stats.norm.isf(0.5e-4)


def test_gradients_reach_every_parameter():
    x = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    logits = random_logits(2, 4).requires_grad_()
    kappa = torch.tensor([0.7, 9.0], dtype=torch.float64, requires_grad=True)

    def of_logits(logits, kappa):
        d = ContinuousCategorical(logits=logits, concentration=kappa)
        return d.log_prob(x), d.log_normalizer, d.mean, d.variance, d.entropy()

    def of_probs(probs, kappa):
        return ContinuousCategorical(probs=probs, concentration=kappa).log_prob(x)

    assert torch.autograd.gradcheck(of_logits, (logits, kappa))
    assert torch.autograd.gradgradcheck(lambda *a: of_logits(*a)[:2], (logits, kappa))
    assert torch.autograd.gradcheck(of_probs, (logits.softmax(-1).detach().requires_grad_(), kappa))


def test_zero_probability_fixes_a_component_at_zero():
    torch.manual_seed(0)
    probs = torch.tensor([0.2, 0.0, 0.5, 0.0, 0.3], dtype=torch.float64, requires_grad=True)
    kappa = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    d = ContinuousCategorical(probs=probs, concentration=kappa)
    face = ContinuousCategorical(probs=probs[[0, 2, 4]].detach(), concentration=3.0)
    kept = [0, 2, 4]
    draws = d.sample((1000,))
    assert (draws[:, [1, 3]] == 0).all()
    assert_close(d.log_prob(draws), face.log_prob(draws[:, kept]))
    assert_close(d.mean[kept], face.mean)
    assert (d.mean[[1, 3]] == 0).all()
    assert (d.variance[[1, 3]] == 0).all()
    assert_close(d.entropy(), face.entropy())
    off_face = torch.tensor([0.2, 0.2, 0.2, 0.2, 0.2], dtype=torch.float64)
    assert d.log_prob(off_face) == -torch.inf
    (d.log_prob(draws).sum() + d.entropy() + d.mean[0]).backward()
    assert probs.grad.isfinite().all()
    assert kappa.grad.isfinite()
    by_logits = ContinuousCategorical(logits=probs.detach().log(), concentration=3.0)
    assert_close(by_logits.log_prob(draws), d.log_prob(draws).detach())


def test_one_hot_is_a_point_mass():
    vertices, zeros = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    d = ContinuousCategorical(probs=vertices)
    assert_close(d.sample((5,)), vertices.expand(5, 3, 3))
    assert_close(d.mean, vertices)
    assert_close(d.log_prob(vertices), zeros, rtol=0, atol=1e-13)
    assert_close(d.entropy(), zeros, rtol=0, atol=1e-13)
    assert_close(d.variance, zeros.expand(3, 3), rtol=0, atol=1e-13)
    rounded = ContinuousCategorical(logits=1e8 * torch.tensor([1.0, 0.3, -1.0], dtype=torch.float64))
    for point in (d, ContinuousCategorical(probs=torch.tensor([1.0, 0.0, 0.0])), rounded):
        assert (point.variance >= 0).all()
        assert point.stddev.isfinite().all()
        assert point.stddev.max() < 1e-6


def test_entropy_and_divergence():
    torch.manual_seed(1)
    p = ContinuousCategorical(logits=random_logits(6, scale=3.0), concentration=2.0)
    q = ContinuousCategorical(logits=random_logits(6, scale=3.0, seed=1))
    x = p.sample((100_000,))
    limit = scipy.stats.norm.isf(0.5e-4 / 2)  # both comparisons together: a false-alarm rate of 1e-4
    for values, expected in [(-p.log_prob(x), p.entropy()), (p.log_prob(x) - q.log_prob(x), kl_divergence(p, q))]:
        z = (values.mean() - expected) / (values.std() / math.sqrt(len(values)))
        assert abs(z.item()) < limit
    assert kl_divergence(p, p).item() == pytest.approx(0.0, abs=1e-13)
    assert (kl_divergence(p, q.expand((3,))) > 0).all()
    face = ContinuousCategorical(probs=torch.tensor([0.5, 0.5, 0.0, 0, 0, 0], dtype=torch.float64))
    assert kl_divergence(p, face) == torch.inf
    assert kl_divergence(face, p) == torch.inf
    assert kl_divergence(face, face).item() == pytest.approx(0.0, abs=1e-13)
    # torch's generic formulas for exponential families, from the natural parameters and the normaliser alone
    generic = super(ContinuousCategorical, p).entropy()
    assert_close(generic, p.entropy())


def test_covariance_is_the_second_derivative_and_its_rows_sum_to_zero():
    logits = random_logits(7, scale=2.0)
    d = ContinuousCategorical(logits=logits, concentration=3.0)
    hessian = torch.autograd.functional.hessian(lambda w: SimplexIntegral(w).log_value, d.natural_parameters)
    assert_close(d.covariance_matrix, hessian, rtol=1e-11, atol=1e-15)
    assert_close(d.covariance_matrix.diagonal(), d.variance, rtol=1e-12, atol=1e-16)
    assert_close(d.covariance_matrix.sum(-1), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-15)


def test_a_draw_is_nearly_uniform_at_many_classes():
    probs = torch.full((1000,), 0.1 / 1000, dtype=torch.float64)
    probs[0] += 0.9
    mean = ContinuousCategorical(probs=probs).mean
    assert f"{mean[0]:.5f} {mean[1]:.5f}" == "0.00101 0.00100"
    assert ContinuousCategorical(probs=probs, concentration=1000.0).mean[0] > 0.8


def test_the_mode_is_the_likeliest_vertex():
    d = ContinuousCategorical(logits=random_logits(3, 1, 4), concentration=torch.tensor([1.0, 5.0]))
    assert d.batch_shape == (3, 2)
    assert d.mode.sum(-1).eq(1).all()
    assert (d.log_prob(d.mode) >= d.log_prob(d.sample((100,)))).all()
    x = d.sample()
    assert_close(d.expand((6, 3, 2)).log_prob(x), d.log_prob(x).expand(6, 3, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_rounds_once(dtype):
    """Results are those of fp64 on the same parameters, rounded: within one unit in the last place."""
    d = ContinuousCategorical(logits=random_logits(8, 50, dtype=torch.float32).to(dtype), concentration=4.0)
    exact = SimplexIntegral(d.natural_parameters)
    eps = torch.finfo(dtype).eps
    assert_close(d.log_normalizer.double(), exact.log_value, rtol=eps, atol=0)
    assert_close(d.mean.double(), exact.moment(1), rtol=eps, atol=torch.finfo(dtype).tiny)
    assert d.sample((10,)).dtype == dtype
    assert d.entropy().dtype == dtype


def test_a_hundred_thousand_classes_in_fp32():
    torch.manual_seed(0)
    d = ContinuousCategorical(logits=random_logits(100_000, dtype=torch.float32), concentration=1e5)
    x = d.sample((3,))
    assert d.support.check(x).all()
    assert d.log_prob(x).isfinite().all()
    assert d.expected_proposals.item() < 2.5


@pytest.mark.slow
def test_ten_thousand_draws_cost_less_than_dirichlets_times_five():
    classes, draws = 1000, 10_000
    probs = torch.full((classes,), 0.1 / classes)
    probs[0] += 0.9

    def seconds(distribution):
        start = time.perf_counter()
        distribution().sample((draws,))
        return time.perf_counter() - start

    ratios = [
        seconds(lambda: ContinuousCategorical(probs=probs)) / seconds(lambda: Dirichlet(torch.ones(classes)))
        for _ in range(3)
    ]
    assert sorted(ratios)[1] < 5, ratios
