"""Entropies against their definitions, and bounds against the information they bound.

Expectations are taken by enumerating every outcome, so most of this is free of chance. What is sampled is seeded and
states its false-alarm rate.
"""

import itertools
import math

import pytest
import scipy.stats
import torch

from softnce.theory import information as info


def random_joint(classes_z=4, classes_y=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(classes_z, classes_y, generator=generator, dtype=torch.float64).pow(3)
    return table / table.sum()


TABLES = {
    **{f"random {seed}": random_joint(seed=seed) for seed in range(4)},
    "Y a function of Z": torch.tensor([[0.25, 0.0], [0.0, 0.5], [0.25, 0.0]], dtype=torch.float64),
    "independent": torch.tensor([[0.25], [0.75]], dtype=torch.float64) * torch.tensor([0.125, 0.25, 0.625]),
}
EPSILONS = [0.0, 0.1, 0.5, 0.9, 1.0]


def close(a, b, atol=1e-14):
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("name", TABLES)
def test_entropies_by_their_definitions(name):
    joint = TABLES[name]
    p = joint.tolist()
    p_z, p_y = [sum(row) for row in p], [sum(column) for column in zip(*p, strict=True)]
    cells = [(z, y) for z in range(len(p)) for y in range(len(p_y)) if p[z][y] > 0]
    close(info.entropy(joint.sum(0)), -sum(q * math.log(q) for q in p_y))
    close(info.conditional_entropy(joint), -sum(p[z][y] * math.log(p[z][y] / p_z[z]) for z, y in cells))
    close(info.mutual_information(joint), sum(p[z][y] * math.log(p[z][y] / p_z[z] / p_y[y]) for z, y in cells))
    close(info.mutual_information(joint), info.entropy(joint.sum(0)) - info.conditional_entropy(joint))
    close(info.mutual_information(joint), info.mutual_information(joint.mT))


def test_tables_in_a_batch():
    joint = torch.stack([random_joint(seed=seed) for seed in range(6)]).view(2, 3, 4, 3)
    for function in (info.mutual_information, info.conditional_entropy):
        close(function(joint), torch.stack([function(table) for table in joint.flatten(0, 1)]).view(2, 3))
    close(info.smoothed_joint(joint, 0.3)[1, 2], info.smoothed_joint(joint[1, 2], 0.3))


@pytest.mark.parametrize("name", TABLES)
def test_the_information_of_the_smoothed_channel(name):
    """supp:softMIbound's left-hand side, step by step: I(Z;Y) + H(Y|Z) − H_ε(Y|Z) = I_ε(Z;Y) ≥ 0."""
    joint = TABLES[name]
    p_z, p_y = joint.sum(1, keepdim=True), joint.sum(0)
    previous = math.inf
    for epsilon in EPSILONS:
        smoothed = info.smoothed_joint(joint, epsilon)
        close(smoothed.sum(1, keepdim=True), p_z)
        close(smoothed.sum(0), p_y)
        h_epsilon = info.conditional_entropy(smoothed)
        i_epsilon = info.mutual_information(smoothed)
        close(info.mutual_information(joint) + info.conditional_entropy(joint) - h_epsilon, i_epsilon)
        close(info.entropy(p_y) - h_epsilon, i_epsilon)
        # The expectation the derivation starts from (supp:prebound)
        close(torch.xlogy(smoothed, smoothed / p_z / p_y).sum(), i_epsilon)
        # H_ε(Y|Z) = H_ε(Y,Z) − H(Z) ≤ H(Y) (X is printed for Z)
        close(h_epsilon, info.entropy(smoothed.flatten()) - info.entropy(joint.sum(1)))
        assert -1e-14 <= i_epsilon.item() <= previous + 1e-14
        previous = i_epsilon.item()
    for information in (info.mutual_information, info.conditional_entropy):
        close(information(info.smoothed_joint(joint, 0.0)), information(joint))
    close(info.mutual_information(info.smoothed_joint(joint, 1.0)), 0.0)
    close(info.conditional_entropy(info.smoothed_joint(joint, 1.0)), info.entropy(p_y))


def test_other_smoothing_noise_breaks_the_papers_expression_not_the_information():
    """With ξ uniform and p_Y skewed, H(Y) − H_ε(Y|Z) is negative: it needs ξ = p_Y."""
    joint = torch.tensor([[0.45, 0.05], [0.46, 0.04]], dtype=torch.float64)
    smoothed = info.smoothed_joint(joint, 0.5, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert (info.entropy(joint.sum(0)) - info.conditional_entropy(smoothed)).item() < -0.1
    assert info.mutual_information(smoothed).item() >= 0


def expected_loss(critic, joint, marginal, num_negatives):
    """E[−s(z, y_0) + log Σ_k exp s(z, y_k)] over (z, y_0) from the table and y_1 … y_N from the marginal."""
    labels = torch.tensor(list(itertools.product(range(joint.shape[1]), repeat=num_negatives + 1)))  # every outcome
    chance = joint[:, labels[:, 0]] * marginal[labels[:, 1:]].prod(-1)
    loss = critic[:, labels].logsumexp(-1) - critic[:, labels[:, 0]]
    return (chance * loss).sum()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("num_negatives", [1, 2, 4])
def test_no_critic_goes_above_the_information(name, num_negatives):
    """eq:softMIbound for the best critic and for bad ones. log(N + 1) − ℓ is rigorous, log N − ℓ lower still."""
    joint = TABLES[name]
    p_y = joint.sum(0)
    for epsilon in EPSILONS:
        smoothed = info.smoothed_joint(joint, epsilon)
        truth = info.mutual_information(smoothed).item()
        best = (smoothed / smoothed.sum(1, keepdim=True) / p_y).clamp(min=1e-300).log()
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(best.shape, generator=generator, dtype=torch.float64)
        of_best = info.information_bound(expected_loss(best, smoothed, p_y, num_negatives), num_negatives).item()
        for critic in (best, best + noise, 3 * best, 5 * noise, 0 * best):
            loss = expected_loss(critic, smoothed, p_y, num_negatives)
            bound = info.information_bound(loss, num_negatives).item()
            assert bound <= truth + 1e-13
            assert bound <= of_best + 1e-13
            difference = bound - info.paper_information_bound(loss, num_negatives).item()
            assert difference == pytest.approx(math.log(1 + 1 / num_negatives), abs=1e-13)


def test_negatives_from_another_distribution_bound_more_than_the_information():
    """Negatives from η instead of the labels' marginal: log(N + 1) − ℓ is bounded by I + KL(p_Y ‖ η), and exceeds I."""
    joint = random_joint(seed=2)
    p_y, eta = joint.sum(0), torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)
    critic = (joint / joint.sum(1, keepdim=True) / eta).log()
    bound = info.information_bound(expected_loss(critic, joint, eta, 5), 5).item()
    information = info.mutual_information(joint).item()
    assert information + 0.05 < bound <= information + torch.xlogy(p_y, p_y / eta).sum().item()


def test_soft_targets_are_bounded_by_their_own_information():
    """Z with soft targets A: the loss with scores Σ_k a_k s_k(z) bounds I(Z;A), which exceeds the labels' I(Z;Y)."""
    targets = torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.5, 0.45, 0.05]], dtype=torch.float64)
    joint = random_joint(4, 3, seed=9)  # p(z, a)
    generator = torch.Generator().manual_seed(0)
    p_a = joint.sum(0)
    for scale in (0.5, 2.0, 8.0):
        class_scores = scale * torch.randn(4, 3, generator=generator, dtype=torch.float64)
        loss = expected_loss(class_scores @ targets.mT, joint, p_a, 3)
        assert info.information_bound(loss, 3).item() <= info.mutual_information(joint).item() + 1e-13
    assert info.mutual_information(joint).item() > info.mutual_information(joint @ targets).item()


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_a_good_critic_comes_within_a_twentieth_of_a_nat(epsilon):
    """log M = 6.9 against I ≤ 2.2: the sampled bound is close, and not above by more than chance (rate 1e-4)."""
    generator = torch.Generator().manual_seed(1)
    joint = 0.02 * random_joint(10, 10, seed=3) + 0.98 * torch.eye(10, dtype=torch.float64) / 10
    smoothed = info.smoothed_joint(joint, epsilon)
    critic = (smoothed / smoothed.sum(1, keepdim=True) / smoothed.sum(0)).log()
    meter, batches = info.InformationMeter(), []
    for _ in range(40):
        cells = torch.multinomial(smoothed.flatten(), 1024, replacement=True, generator=generator)
        samples = info.contrastive_information(critic[cells // 10][:, cells % 10])
        meter.update(samples)
        batches.append(samples.mean().item())
    truth = info.mutual_information(smoothed).item()
    found = meter.compute()["information"]
    error = torch.tensor(batches).std().item() / math.sqrt(len(batches))  # independent, but for the rows of a batch
    assert found <= truth + scipy.stats.t(len(batches) - 1).isf(1e-4) * error
    assert abs(found - truth) < 0.05


def test_contrastive_information_from_scores():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    positive = torch.tensor([3, 0, 6, 2, 2])
    loss = torch.nn.functional.cross_entropy(scores, positive, reduction="none")
    close(info.contrastive_information(scores, positive), math.log(7) - loss)
    square = scores[:, :5]
    close(info.contrastive_information(square), info.contrastive_information(square, torch.arange(5)))
    assert (info.contrastive_information(50 * torch.eye(6)) <= math.log(6)).all()


@pytest.mark.parametrize("name", TABLES)
def test_classifier_information_is_the_information_less_a_divergence(name):
    joint = TABLES[name]
    p_z, p_y = joint.sum(1), joint.sum(0)
    posterior = joint / p_z.unsqueeze(1)
    truth = info.mutual_information(joint)
    exact = info.classifier_information(posterior.clamp(min=1e-300).log(), posterior, p_y)
    close(p_z @ exact, truth)
    logits = torch.randn(joint.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    divergence = (torch.xlogy(joint, posterior) - joint * logits.log_softmax(1)).sum()
    close(p_z @ info.classifier_information(logits, posterior, p_y), truth - divergence)
    labels = torch.arange(joint.shape[1]).expand(joint.shape)  # hard labels, averaged by hand
    rows = logits.unsqueeze(1).expand(*joint.shape, -1).flatten(0, 1)
    by_label = info.classifier_information(rows, labels.flatten(), p_y)
    close(joint.flatten() @ by_label, truth - divergence)


def test_the_meter_is_the_mean_of_everything_it_saw():
    generator = torch.Generator().manual_seed(0)
    batches = [1e6 + torch.randn(n, generator=generator, dtype=torch.float64) for n in (5, 1, 0, 300, 7)]
    meter = info.InformationMeter()
    for batch in batches:
        meter.update(batch)
    everything = torch.cat(batches)
    found = meter.compute()
    assert found["information"] == pytest.approx(everything.mean().item(), rel=1e-14)
    assert found["standard_error"] == pytest.approx(everything.std().item() / math.sqrt(len(everything)), rel=1e-8)
    meter.reset()
    with pytest.raises(ValueError, match="nothing was measured"):
        meter.compute()
    meter.update(torch.tensor(2.0, requires_grad=True))
    assert meter.compute()["information"] == 2.0
    assert math.isnan(meter.compute()["standard_error"])


FLAT, FOUR, LABEL = torch.ones(2, 2) / 4, torch.zeros(2, 4), torch.tensor([0, 4])
P_4 = torch.ones(4) / 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: info.entropy(torch.tensor([0.5, 0.6])), "probs"),
        (lambda: info.entropy(torch.tensor([1, 0])), "probs must"),
        (lambda: info.mutual_information(torch.ones(2, 2)), "joint must hold probabilities"),
        (lambda: info.mutual_information(torch.tensor([[1.5, -0.5]])), "joint must hold probabilities"),
        (lambda: info.mutual_information(torch.tensor([[torch.nan, 1.0]])), "joint must hold probabilities"),
        (lambda: info.conditional_entropy(torch.ones(4) / 4), r"joint must be .*\(4,\)"),
        (lambda: info.smoothed_joint(FLAT, 1.5), "epsilon"),
        (lambda: info.smoothed_joint(FLAT, 0.5, torch.ones(3) / 3), "noise_probs"),
        (lambda: info.smoothed_joint(FLAT, 0.1, torch.ones(2)), "noise_probs"),
        (lambda: info.information_bound(torch.zeros(3), 0), "num_negatives"),
        (lambda: info.information_bound(torch.zeros(2), 1.5), "num_negatives must be a whole number"),
        (lambda: info.paper_information_bound(torch.zeros(3), 0), "num_negatives"),
        (lambda: info.contrastive_information(FOUR), "positive is needed"),
        (lambda: info.contrastive_information(FOUR, LABEL[:1]), "positive"),
        (lambda: info.contrastive_information(FOUR, LABEL), "positive must lie in 0 … 3"),
        (lambda: info.contrastive_information(FOUR, torch.zeros(2)), "positive must hold integers"),
        (lambda: info.contrastive_information(torch.zeros(3)), "scores"),
        (lambda: info.contrastive_information(torch.zeros(1, 1)), "at least 2 candidates"),
        (lambda: info.classifier_information(FOUR, torch.ones(2, 2), P_4), "targets"),
        (lambda: info.classifier_information(FOUR, torch.ones(3).long(), P_4), "targets"),
        (lambda: info.classifier_information(FOUR, LABEL, P_4), "targets"),
        (lambda: info.classifier_information(FOUR, torch.ones(2, 4), P_4), "targets"),
        (lambda: info.classifier_information(FOUR, LABEL - LABEL, 4 * P_4), "class_probs"),
        (lambda: info.classifier_information(FOUR, LABEL - LABEL, P_4[:2] * 2), "class_probs"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
