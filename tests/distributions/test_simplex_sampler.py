"""Exactness and economy of the sampler.

Statistical tests are seeded. Each test function holds its false-alarm rate, over the choice of the seed, to ALARM by
dividing it among its comparisons (Bonferroni). Where a normal limit is used for squares, the skewness of their mean (at
most 0.05 here) may raise the rate by up to 4.
"""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from simplex_references import ordered_rejection

from experiments.exact_loss.original import ordered_rejection_log_acceptance
from softnce.distributions import simplex
from softnce.distributions.simplex import SimplexIntegral, best_proposal, draw

ALARM = 1e-4

# name → (ω, the group size the sampler picks for it): every kind of proposal is exercised
SMALL = {
    "K=2 flat": ([0.0, 0.0], 2),
    "K=2 tilted": ([0.0, 3.0], 1),
    "K=2 peaked": ([0.0, -200.0], 1),
    "K=3 two tied": ([1.0, 1.0, -4.0], 2),
    "K=3 peaked": ([9.0, 1.0, 0.0], 1),
    "K=3 one absent": ([0.0, -math.inf, 1.0], 2),
    "K=10 flat": ([0.0] * 10, 10),
    "K=10 random": ([1.1, -0.3, 0.4, -2.0, 0.9, 0.0, 1.7, -1.2, 0.2, -0.6], 10),
    "K=10 three tied on top": ([30.0] * 3 + [0.0] * 7, 3),
    "K=10 three near the top": ([30.0, 29.0, 30.5] + [0.0] * 7, 2),
    "K=10 one on top": ([50.0] + [0.0] * 9, 1),
}


def marginal_cdf(omega, k):
    """P(x_k ≤ t) = 1 − exp(t ω_k) (1 − t)^(K−1) Z((1 − t) ω) / Z(ω): beyond t the simplex is a smaller simplex."""
    classes = int((omega > -torch.inf).sum())

    def cdf(t):
        t = torch.as_tensor(t, dtype=torch.float64).unsqueeze(-1).clamp(0, 1 - 1e-12)
        log_tail = SimplexIntegral((1 - t) * omega).log_value - SimplexIntegral(omega).log_value
        return (1 - (log_tail + (t * omega[k]).squeeze(-1)).exp() * (1 - t.squeeze(-1)) ** (classes - 1)).numpy()

    return cdf


def test_the_marginal_distribution_function_used_below():
    """Against the closed form for K = 2, and the Beta marginal of the flat case."""
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    tilted = marginal_cdf(torch.tensor([0.0, 3.0], dtype=torch.float64), 1)(t)
    torch.testing.assert_close(torch.from_numpy(tilted), torch.expm1(3 * t) / math.expm1(3), rtol=0, atol=1e-11)
    flat = marginal_cdf(torch.zeros(10, dtype=torch.float64), 4)(t)
    assert abs(flat - scipy.stats.beta(1, 9).cdf(t.numpy())).max() < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_marginals_follow_their_distribution_functions(dtype):
    torch.manual_seed(20240601)
    comparisons = [(name, k) for name, (omega, _) in SMALL.items() for k in range(min(len(omega), 4))]
    samples = {}
    for name, (values, size) in SMALL.items():
        proposal = best_proposal(torch.tensor([values], dtype=torch.float64))
        assert proposal.size.item() == size, name
        samples[name] = draw(proposal, 20_000, dtype)[:, 0]
    for name, k in comparisons:
        omega = torch.tensor(SMALL[name][0], dtype=torch.float64)
        if omega[k] == -torch.inf:
            assert (samples[name][:, k] == 0).all()
            continue
        x = np.sort(samples[name][:, k].double().numpy())
        # Exact at every twentieth draw; between, where it grows by about 0.001, a straight line.
        cdf = np.interp(x, x[::20], marginal_cdf(omega, k)(x[::20]))
        p_value = scipy.stats.kstest(x, lambda _, cdf=cdf: cdf).pvalue
        assert p_value > ALARM / len(comparisons), (name, k, p_value)


def assert_moments(omega, x, alarm):
    """First and second moments, all classes, and products of neighbouring classes, against their exact values."""
    integral = SimplexIntegral(omega)
    n, e = len(x), [None] + [math.factorial(p) * integral.moment(p) for p in range(1, 5)]
    following = torch.arange(len(omega)).roll(-1)
    covariance = integral.covariance() if len(omega) <= 1000 else None
    products = None if covariance is None else covariance[torch.arange(len(omega)), following] + e[1] * e[1][following]
    for values, mean, variance in [
        (x, e[1], e[2] - e[1] ** 2),
        (x.square(), e[2], e[4] - e[2] ** 2),
        (x.square().sum(-1, keepdim=True), e[2].sum(-1, keepdim=True), None),
        *([] if products is None else [(x * x[:, following], products, None)]),
    ]:
        variance = values.var(0) if variance is None else variance
        z = (values.mean(0) - mean) / (variance / n).sqrt()
        limit = scipy.stats.norm.isf(alarm / 8 / z.numel())
        assert z.abs().max().item() < limit, (z.abs().max().item(), limit)


def smoothed_label(classes, epsilon=0.1):
    p = torch.full((classes,), epsilon / classes, dtype=torch.float64)
    p[0] += 1 - epsilon
    return p.log()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "classes"),
    [("flat", 100), ("smoothed", 1000), ("sharpened", 1000), ("normal", 300), ("clusters", 1000), ("decay", 100)],
)
def test_moments_at_larger_k(name, classes):
    torch.manual_seed(7)
    omega = {
        "flat": torch.zeros(classes, dtype=torch.float64),
        "smoothed": smoothed_label(classes),
        "sharpened": classes * smoothed_label(classes, 0.5),
        "normal": 30 * torch.randn(classes, dtype=torch.float64),
        "clusters": torch.cat([torch.zeros(20), torch.full((classes - 20,), -900.0)]).double(),
        "decay": -40.0 * torch.arange(classes, dtype=torch.float64).sqrt(),
    }[name]
    x = draw(best_proposal(omega.unsqueeze(0)), 20_000, torch.float64)[:, 0]
    assert_moments(omega, x, ALARM)


def test_rows_with_different_groups_do_not_mix():
    torch.manual_seed(3)
    omega = torch.tensor([SMALL[name][0] for name in SMALL if name.startswith("K=10")], dtype=torch.float64)
    x = draw(best_proposal(omega), 20_000, torch.float64)
    for row in range(len(omega)):
        assert_moments(omega[row], x[:, row], ALARM / len(omega))


def test_many_rows_are_planned_as_each_alone(monkeypatch):
    omega = 20 * torch.randn(7, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = best_proposal(omega)
    monkeypatch.setattr(simplex, "ROWS_BLOCK", 70)
    for together, apart in zip(whole, best_proposal(omega), strict=True):
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)


def count_proposals(monkeypatch, omega, draws):
    """How many proposals ``draws`` accepted draws took: one uniform number decides on each."""
    proposed, rand = 0, torch.rand

    def counting(rows, **options):
        nonlocal proposed
        proposed += rows
        return rand(rows, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", counting)
        draw(best_proposal(omega.unsqueeze(0)), draws, torch.float64)
    return proposed


def test_the_acceptance_is_the_one_predicted(monkeypatch):
    torch.manual_seed(11)
    draws = 20_000
    tried = {name: torch.tensor(omega, dtype=torch.float64) for name, (omega, _) in SMALL.items()}
    tried["decay"] = -8.0 * torch.arange(60, dtype=torch.float64).sqrt()
    for name, omega in tried.items():
        log_acceptance = best_proposal(omega.unsqueeze(0)).log_acceptance(SimplexIntegral(omega).log_value).item()
        acceptance = min(math.exp(log_acceptance), 1.0)
        proposed = count_proposals(monkeypatch, omega, draws)
        deviation = math.sqrt(draws * (1 - acceptance) / acceptance**2)
        limit = scipy.stats.norm.isf(ALARM / 2 / len(tried))
        assert abs(proposed - draws / acceptance) <= limit * deviation + 1, (name, proposed, draws / acceptance)


def tried_parameters(classes, generator):
    def normal(scale):
        return scale * torch.randn(classes, generator=generator, dtype=torch.float64)

    yield "flat", torch.zeros(classes, dtype=torch.float64)
    for epsilon in (0.01, 0.1, 0.5):
        for concentration in (1, math.sqrt(classes), classes):
            yield f"smoothed {epsilon} κ={concentration:.0f}", concentration * smoothed_label(classes, epsilon)
    mixed = torch.full((classes,), 0.1 / classes, dtype=torch.float64)
    mixed[0] += 0.6
    mixed[1] += 0.3
    for concentration in (1, math.sqrt(classes), classes):
        yield f"mixed κ={concentration:.0f}", concentration * mixed.log()
        yield f"normal κ={concentration:.0f}", concentration * normal(1).log_softmax(-1)
    for scale in (0.1, 1, 10, 30, 100):
        yield f"normal {scale}", normal(scale)
    # What is hardest for two proposals (a few classes take all) and for the groups (every √k / r_(k) alike).
    for top in (2, 10, int(math.sqrt(classes / 6)) + 1):
        clusters = torch.full((classes,), -10.0 * classes, dtype=torch.float64)
        clusters[:top] = 0
        yield f"{top} on top", clusters
    for power, slope in [(1.5, 1.78), (1.0, 4.64), (0.8, 14.7), (0.8, 26.1), (0.5, 30.0)]:
        yield f"decay {slope} k^{power}", -slope * torch.arange(classes, dtype=torch.float64) ** power


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1_000, 10_000])
def test_few_proposals_whatever_the_parameters(classes):
    generator = torch.Generator().manual_seed(classes)
    for name, omega in tried_parameters(classes, generator):
        integral = SimplexIntegral(omega).log_value
        expected = best_proposal(omega.unsqueeze(0)).log_acceptance(integral).neg().exp().item()
        assert 1 - 1e-9 <= expected <= 2.5, (name, expected)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [10, 1_000, 10_000])
def test_groups_against_the_two_extreme_proposals(classes):
    """Never far from the better of "solve for the largest" and "normalise all", and far better between them."""

    def extremes(omega):
        integral, ordered = SimplexIntegral(omega).log_value, omega.sort(descending=True).values
        log_all = log_one = -math.inf
        for c in torch.logspace(-6, math.log10(2 * classes), 4000, dtype=torch.float64):  # best tilt by search
            tilted = integral - ordered[0] - c + (c + ordered[0] - ordered).log().sum()
            log_one = max(log_one, (tilted - c.log()).item())
            log_all = max(log_all, (tilted + math.lgamma(classes) + classes - classes * math.log(classes)).item())
        return max(log_one, log_all), best_proposal(omega.unsqueeze(0)).log_acceptance(integral).item()

    flat, smoothed = torch.zeros(classes, dtype=torch.float64), smoothed_label(classes)
    few = torch.full((classes,), -10.0 * classes, dtype=torch.float64)
    few[: int(math.sqrt(classes / 6)) + 1] = 0
    for omega in (flat, smoothed, classes * smoothed):
        two, ours = extremes(omega)
        assert ours >= two - 0.02
    two, ours = extremes(few)
    assert ours > -0.05
    if classes == 10_000:
        assert two < math.log(1 / 8)  # more than 8 proposals a draw, against one


def test_ordered_rejection_dies_where_ours_does_not():
    """The comparison with the original authors' sampler: the same distribution at K = 4, no use at K = 20."""
    torch.manual_seed(5)
    omega = torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=torch.float64)
    theirs = ordered_rejection(omega, 100_000)
    assert_moments(omega, theirs, ALARM)
    predicted = ordered_rejection_log_acceptance(omega, SimplexIntegral(omega).log_value).exp().item()
    deviation = math.sqrt(predicted * (1 - predicted) / 100_000)
    assert abs(len(theirs) / 100_000 - predicted) < scipy.stats.norm.isf(ALARM / 2) * deviation
    for classes, hopeless in [(20, 1e-5), (1000, 1e-300)]:
        omega = smoothed_label(classes)
        integral = SimplexIntegral(omega).log_value
        assert ordered_rejection_log_acceptance(omega, integral).item() < math.log(hopeless)
        assert best_proposal(omega.unsqueeze(0)).log_acceptance(integral).exp().item() > 0.6
