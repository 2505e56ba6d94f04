"""Equations of the paper that are checked nowhere else, written out as printed (or as corrected, where said so).

docs/theory.md lists every equation with its test. Expectations are sums over all outcomes; nothing here is sampled but
the numbers put into the equations.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from softnce import SoftTargets, functional
from softnce.distributions import ContinuousCategorical
from softnce.theory.information import conditional_entropy, entropy, mutual_information, smoothed_joint

GENERATOR = torch.Generator().manual_seed(0)
EXACT = {"rtol": 0.0, "atol": 1e-12}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def positive_joint() -> Tensor:
    return normal(4, 3).flatten().softmax(0).view(4, 3)


def test_info_nce_as_printed() -> None:
    """eq:infonce for one tuple T, with the temperature once: s(z, y; τ, η) = z·y/τ − log η already holds it."""
    z, labels, eta, tau = normal(5), normal(7, 5), normal(7).softmax(0), 0.6
    tuple_ = [3, 0, 3, 6, 1]  # k_0 from p, k_1 … k_N from η
    score = [(z @ labels[k]) / tau - eta[k].log() for k in tuple_]
    printed = -(score[0].exp() / sum(s.exp() for s in score)).log()
    negatives = SoftTargets.from_labels(torch.tensor(tuple_[1:]), 7)
    logits, own = (labels @ z)[None], torch.tensor(tuple_[:1])
    found = functional.info_nce(logits, own, eta, temperature=tau, candidates=negatives)
    assert_close(found, printed, **EXACT)


def test_soft_target_info_nce_as_printed() -> None:
    """eq:soft-target-infonce for one sample, and eq:energyXent and eq:energyXent_, which are the same number."""
    z, labels, eta, tau = normal(5), normal(7, 5), normal(7).softmax(0), 0.6
    p, others = normal(7).softmax(0), normal(4, 7).softmax(1)
    s = labels @ z / tau - eta.log()
    own = (p * s).sum().exp()
    denominator = own + sum((other * s).sum().exp() for other in others)
    logits, candidates = (labels @ z)[None], SoftTargets.from_dense(others)
    found = functional.soft_target_info_nce(logits, p[None], eta, temperature=tau, candidates=candidates)
    assert_close(found, -(own / denominator).log(), **EXACT)
    energies = -sum(p[i] * (s[i].exp() / denominator).log() for i in range(7))
    assert_close(found, energies, **EXACT)
    # The footnote: what stands in the logarithm is no probability.
    assert abs((s.exp() / denominator).sum().item() - 1) > 0.1


def test_the_smoothed_weight_of_the_true_class() -> None:
    """1 − (K−1)ε/K, as the supplement has it; the main text prints 1 − (K−1/K)ε."""
    classes, epsilon = 10, 0.1
    weight = SoftTargets.from_labels(torch.tensor([4]), classes, epsilon).dense(torch.float64)[0]
    assert weight[4].item() == pytest.approx(1 - (classes - 1) * epsilon / classes, abs=1e-15)
    assert weight[0].item() == pytest.approx(epsilon / classes, abs=1e-15)
    assert abs(weight[4].item() - (1 - (classes - 1 / classes) * epsilon)) > 0.8


def test_the_posterior_of_continuous_categorical_draws() -> None:
    """eq:stnce_likelihood, eq:stnce_marginal, eq:stnce_posterior for tuples of four points, one from the target.

    "Converges to the density ratio" (below eq:theo-soft-target-infonce) is true up to a factor Z(η)/Z(p), which is the
    same for every α and so cancels in the posterior, but is not 1.
    """
    p, eta, places = normal(5).softmax(0), normal(5).softmax(0), range(4)
    target, noise = ContinuousCategorical(p), ContinuousCategorical(eta)
    for points in ContinuousCategorical(torch.full((5,), 0.2).double()).sample((20, 4)):
        f, g = target.log_prob(points).exp(), noise.log_prob(points).exp()
        likelihood = torch.stack([f[k] * math.prod(g[i] for i in places if i != k) for k in places])
        assert_close(likelihood, f / g * g.prod(), rtol=1e-12, atol=0)
        marginal = likelihood.mean()
        assert_close(marginal, g.prod() * (f / g).sum() / 4, rtol=1e-12, atol=0)
        posterior = likelihood / 4 / marginal
        assert_close(posterior, (f / g) / (f / g).sum(), **EXACT)
        ratios = ((p / eta) ** points).prod(1)
        assert_close(posterior, ratios / ratios.sum(), **EXACT)
        # eq:stnce_mle: with s = log p/η in the library's loss, the probability of the first place.
        candidates = SoftTargets.from_dense(points)
        own = torch.zeros(1).long()
        loss = functional.soft_target_info_nce(p.log()[None], points[:1], eta, candidates=candidates, own=own)
        assert_close(loss, -posterior[0].log(), **EXACT)
        factor = (noise.log_normalizer - target.log_normalizer).exp()
        assert_close(f / g, factor * ratios, rtol=1e-12, atol=0)
        assert abs(factor.item() - 1) > 0.01


def test_the_posterior_of_drawn_labels() -> None:
    """eq:sdinfonce_deriv1, eq:sdinfonce_deriv2, eq:sdinfonce_posterior, by every tuple of four labels out of three."""
    p_epsilon, eta = 0.9 * normal(3).softmax(0) + 0.1 / 3, normal(3).softmax(0)
    ratio = p_epsilon / eta
    total = 0.0
    for labels in itertools.product(range(3), repeat=4):
        t = list(labels)
        others = [math.prod(eta[t[i]] for i in range(4) if i != k) for k in range(4)]
        given = torch.stack([p_epsilon[t[k]] * others[k] for k in range(4)])  # P(T | S = k)
        assert_close(given[0], ratio[t[0]] * eta[t].prod(), **EXACT)
        marginal = given.mean()
        assert_close(marginal, eta[t].prod() * ratio[t].sum() / 4, **EXACT)
        posterior = given[0] / 4 / marginal
        assert_close(posterior, ratio[t[0]] / ratio[t].sum(), **EXACT)
        negatives = SoftTargets.from_labels(torch.tensor(t[1:]), 3)
        loss = functional.info_nce(p_epsilon.log()[None], torch.tensor(t[:1]), eta, candidates=negatives)
        assert_close(loss, -posterior.log(), **EXACT)
        total += marginal.item()
    assert total == pytest.approx(1, abs=1e-12)


def test_the_ratio_of_smoothed_labels_to_their_own_noise() -> None:
    """For η ≡ ξ the ratio is (1 − ε) p/ξ + ε, and times ξ it is the smoothed density; ε is its floor."""
    p, xi, epsilon = normal(6).softmax(0), normal(6).softmax(0), 0.3
    p_epsilon = (1 - epsilon) * p + epsilon * xi
    assert_close(p_epsilon / xi, (1 - epsilon) * p / xi + epsilon, **EXACT)
    assert (p_epsilon / xi > epsilon).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 0.9])
def test_every_line_of_the_rewritten_expectation(epsilon: float) -> None:
    """From supp:prebound to supp:mi_deriv_1, line by line, for a table without zeros."""
    joint = positive_joint()
    p_z, p_y = joint.sum(1, keepdim=True), joint.sum(0)
    conditional, independent = joint / p_z, p_z * p_y
    soft = smoothed_joint(joint, epsilon)
    soft_conditional = soft / p_z
    assert_close(soft_conditional, (1 - epsilon) * conditional + epsilon * p_y, **EXACT)
    assert_close(soft, (1 - epsilon) * joint + epsilon * independent, **EXACT)
    information, h_y, h_y_z = mutual_information(joint), entropy(p_y), conditional_entropy(joint)
    ratio, change = (conditional / p_y).log(), (soft_conditional / conditional).log()
    mean_log = (soft * soft_conditional.log()).sum()
    changed = (1 - epsilon) * (information + (joint * change).sum())
    lines = [
        (soft * (soft_conditional / p_y).log()).sum(),
        (soft * ratio).sum() + (soft * (1 - epsilon + epsilon * p_y / conditional).log()).sum(),
        (1 - epsilon) * (joint * ratio).sum() + epsilon * (independent * ratio).sum() + (soft * change).sum(),
        changed + epsilon * ((independent * ratio).sum() + (independent * change).sum()),
        changed + epsilon * (independent * (soft_conditional / p_y).log()).sum(),
        (1 - epsilon) * (information + h_y_z) + mean_log + epsilon * h_y,
        (1 - epsilon) * (information + h_y_z) + mean_log + epsilon * (information + h_y_z),
        information + h_y_z + mean_log,
    ]
    for line in lines:
        assert_close(line, mutual_information(soft), **EXACT)


def test_lines_between_are_not_numbers_when_a_label_cannot_occur() -> None:
    """log p(y|z)/p(y) is −∞ where p(y|z) = 0, and the printed lines subtract it from +∞; first and last line stand."""
    joint = torch.tensor([[0.5, 0.0], [0.2, 0.3]], dtype=torch.float64)
    p_z, p_y = joint.sum(1, keepdim=True), joint.sum(0)
    soft = smoothed_joint(joint, 0.1)
    between = (soft * (joint / p_z / p_y).log()).sum() + (soft * (0.9 + 0.1 * p_y / (joint / p_z)).log()).sum()
    assert between.isnan()
    first = (soft * (soft / p_z / p_y).log()).sum()
    last = mutual_information(joint) + conditional_entropy(joint) - conditional_entropy(soft)
    assert_close(first, last, **EXACT)


@pytest.mark.parametrize("negatives", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_the_approximation_in_the_bound_goes_the_wrong_way(negatives: int, epsilon: float) -> None:
    """The derivation of supp:prebound, by every outcome.

    E log(1 + r₀⁻¹ Σ r_k) ≈ E log(1 + r₀⁻¹ N): by Jensen the right is the larger, so the printed chain
    ℓ ≥ … ≈ … ≥ log N − I_ε does not prove its end. The end is true nevertheless.
    """
    soft = smoothed_joint(positive_joint(), epsilon)
    p_z, p_y = soft.sum(1, keepdim=True), soft.sum(0)
    ratio = soft / p_z / p_y
    labels = torch.tensor(list(itertools.product(range(3), repeat=negatives + 1)))
    chance = soft[:, labels[:, 0]] * p_y[labels[:, 1:]].prod(-1)  # (Z, outcomes)
    r = ratio[:, labels]  # (Z, outcomes, N + 1)
    posterior = -(chance * (r[..., 0] / r.sum(-1)).log()).sum()
    rewritten = (chance * (1 + r[..., 1:].sum(-1) / r[..., 0]).log()).sum()
    approximated = (soft * (1 + negatives / ratio).log()).sum()
    end = math.log(negatives) - mutual_information(soft)
    assert_close(posterior, rewritten, **EXACT)
    assert rewritten < approximated - 1e-6
    assert approximated >= end
    assert posterior >= end + math.log(1 + 1 / negatives) - 1e-12
