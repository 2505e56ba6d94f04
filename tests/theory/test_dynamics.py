import math

import pytest
import torch
from torch.nn.functional import normalize, one_hot
from torch.testing import assert_close

from softnce import functional
from softnce.theory import dynamics


def smoothed(labels, classes, epsilon):
    return (1 - epsilon) * one_hot(torch.as_tensor(labels), classes).double() + epsilon / classes


def loss(scores, candidates, own):
    """The definition: pick the own target out of the candidates."""
    sigma = scores @ candidates.mT
    return sigma.logsumexp(-1) - sigma.gather(-1, own.unsqueeze(-1)).squeeze(-1)


def problem(seed, samples=5, candidates=9, classes=6, d=4):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    targets = (3 * normal(candidates, classes)).softmax(-1)
    targets[1::3] = one_hot(targets[1::3].argmax(-1), classes).double()  # hard ones among the soft
    own = torch.randint(candidates, (samples,), generator=generator)
    noise = normal(classes).softmax(-1)
    return 3 * normal(samples, d), 2 * normal(classes, d), targets, own, noise


SCORES = {
    "dot": (lambda z, y: z @ y.mT, dynamics.dot_gradients),
    "cosine": (lambda z, y: normalize(z, dim=-1) @ normalize(y, dim=-1).mT, dynamics.cosine_gradients),
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("seed", range(4))
def test_closed_form_gradients_equal_autograd(kind, temperature, seed):
    z, y, targets, own, noise = problem(seed)
    score, closed_form = SCORES[kind]
    for eta in (None, noise):
        leaves = z.clone().requires_grad_(), y.clone().requires_grad_()
        scores = score(*leaves) / temperature - (0 if eta is None else eta.log())
        expected = torch.autograd.grad(loss(scores, targets, own).sum(), leaves)
        found = closed_form(z, y, targets, own, temperature, eta)
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_score_gradient_and_weights(seed):
    z, y, targets, own, _ = problem(seed)
    scores = (z @ y.mT).requires_grad_()
    (expected,) = torch.autograd.grad(loss(scores, targets, own).sum(), scores)
    found = dynamics.score_gradient(scores.detach(), targets, own)
    assert_close(found, expected, rtol=0, atol=1e-14)
    assert_close(found.sum(-1), torch.zeros(len(z)).double(), rtol=0, atol=1e-14)
    weights = dynamics.candidate_weights(scores.detach(), targets)
    assert_close(weights.sum(-1), torch.ones(len(z)).double(), rtol=0, atol=1e-14)
    (of_library,) = torch.autograd.grad(functional.soft_target_info_nce(scores, targets[own], reduction="sum"), scores)
    found = dynamics.score_gradient(scores.detach(), targets[own], torch.arange(len(own)))
    assert_close(found, of_library, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_split_adds_up_to_the_loss(seed):
    """Identity 8."""
    z, y, targets, own, _ = problem(seed)
    scores = z @ y.mT
    attraction, repulsion = dynamics.attraction_and_repulsion(scores, targets, own)
    assert_close((attraction + repulsion).sum(-1), loss(scores, targets, own), rtol=0, atol=1e-12)
    for n in range(len(z)):
        alpha, s = targets[own[n]], scores[n]
        # eq:attr_energyXent class by class, from the coefficients in its denominator
        denominator = (dynamics.exponent_coefficients(alpha, targets) @ s).logsumexp(-1)
        assert_close(attraction[n], -alpha * (s - denominator), rtol=0, atol=1e-12)
        # eq:rep_energyXent as the double sum, Σ_i α_i Σ_{j≠i} α_j s_j
        double_sum = sum(alpha[i] * alpha[j] * s[j] for i in range(6) for j in range(6) if i != j)
        assert_close(repulsion[n].sum(), double_sum, rtol=0, atol=1e-12)


def test_the_split_as_printed_does_not_add_up():
    """α̃_lj = α_lj − α_ki as printed, instead of α_lj − α_kj; everything else corrected."""
    classes = 4
    targets = smoothed([0, 1, 2], classes, 0.1)
    alpha, s = targets[0], torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64)
    itself = torch.eye(classes, dtype=torch.float64).unsqueeze(1)
    printed = targets - alpha.view(classes, 1, 1) * (1 - itself)
    printed[:, 0] = itself[:, 0] * alpha  # the target's own term, exp(α_ki s_i)
    attraction = -alpha * (s - (printed @ s).logsumexp(-1))
    total = attraction.sum() + (alpha * (1 - alpha) * s).sum()
    assert abs(total.item() - loss(s, targets, torch.tensor(0)).item()) > 0.1


def test_the_penalty_is_larger_for_the_true_class():
    """Against the supplement's text ("penalizing the true class less … in case of ε < 1/2")."""
    alpha = smoothed([0], 10, 0.1)
    _, repulsion = dynamics.attraction_and_repulsion(torch.ones(1, 10, dtype=torch.float64), alpha, torch.tensor([0]))
    assert f"{repulsion[0, 0]:.3f} {repulsion[0, 1]:.4f}" == "0.082 0.0099"
    for classes in (3, 10, 1000):
        for epsilon in (0.01, 0.3, 0.5, 0.9, 0.99):
            alpha = smoothed([0], classes, epsilon)[0]
            penalty = alpha * (1 - alpha)
            # (K − 2)(1 − ε) ε/K, which is positive for every ε < 1
            expected = (classes - 2) * (1 - epsilon) * epsilon / classes
            assert (penalty[0] - penalty[1]).item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("i", "label", "expected"),
    [
        (0, 3, {0: 0.2 / 5, 3: 1 - 0.2}),  # 1, i = i₀ ≠ i_l: repulsion from i₀ and i_l
        (0, 0, {0: 1 - 4 * 0.2 / 5}),  # 2, i = i₀ = i_l: repulsion from i₀ alone
        (2, 2, {0: 0.2 - 1, 2: 1 - 4 * 0.2 / 5}),  # 3, i ≠ i₀ ≠ i_l: attraction to i₀ (printed without its
        (2, 3, {0: 0.2 - 1, 2: 0.2 / 5, 3: 1 - 0.2}),  # tilde), repulsion from i and, if it is another, i_l
        (2, 0, {2: 0.2 / 5}),  # 4, i ≠ i₀ = i_l: repulsion from i alone
    ],
)
def test_the_four_cases_of_label_smoothing(i, label, expected):
    """The supplement's list: the factor of s_j in the term of class i, for a sample of class i₀ = 0 and a candidate of
    label i_l. K = 5, ε = 0.2."""
    found = dynamics.exponent_coefficients(smoothed([0], 5, 0.2)[0], smoothed([label], 5, 0.2))[i, 0]
    wanted = torch.tensor([expected.get(j, 0.0) for j in range(5)], dtype=torch.float64)
    assert_close(found, wanted, rtol=0, atol=1e-15)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.49, 0.51, 0.99])
def test_smoothed_targets_attract_to_the_true_class_and_repel_from_all_others(epsilon):
    """What eq:gradient_magnitude is used for: its bracket never vanishes, for every ε < 1 and not only ε < 1/2."""
    labels = torch.tensor([0, 1, 2, 2, 3])
    candidates = smoothed(labels, 5, epsilon)  # class 4 is nobody's label
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient = dynamics.score_gradient(scores, candidates, torch.arange(5))
    own = one_hot(labels, 5).bool()
    assert (gradient[own] < 0).all()
    assert (gradient[:, :4][~own[:, :4]] > 0).all()
    # A class no candidate is labelled with has ε/K in all of them: no force at all.
    assert_close(gradient[:, 4], torch.zeros(5).double(), rtol=0, atol=1e-15)
    if epsilon > 0:
        held = dynamics.candidate_weights(scores, candidates) @ candidates
        printed = candidates * (-1 + held / candidates).abs()
        assert_close(gradient.abs(), printed, rtol=0, atol=1e-14)


def responses(positive, negative, negatives=4, classes=8, epsilon=0.1):
    """Responses (T, K) of a sample of class 0, from its cosine to class 0 and to the classes 1 … n of its negatives."""
    positive, negative = torch.broadcast_tensors(
        torch.as_tensor(positive, dtype=torch.float64), torch.as_tensor(negative, dtype=torch.float64)
    )
    cosines = torch.zeros(positive.numel(), classes, dtype=torch.float64)
    cosines[:, 0] = positive.flatten()
    cosines[:, 1 : negatives + 1] = negative.flatten().unsqueeze(1)
    candidates = smoothed(range(negatives + 1), classes, epsilon)
    return dynamics.cosine_response(cosines, candidates, torch.zeros(len(cosines), dtype=torch.long), temperature=0.2)


def test_cosine_response_is_the_norm_of_a_labels_part_of_the_gradient():
    z, y, targets, own, _ = problem(2)
    z, y = normalize(z, dim=-1), normalize(y, dim=-1)
    response = dynamics.cosine_response(z @ y.mT, targets, own, temperature=0.5)
    for k in range(len(y)):
        leaf = z.clone().requires_grad_()
        cosine = normalize(leaf, dim=-1) @ y[k]
        scores = z @ y.mT / 0.5
        scores[:, k] = cosine / 0.5  # only class k's score may move
        (part,) = torch.autograd.grad(loss(scores, targets, own).sum(), leaf)
        assert_close(part.norm(dim=-1), response[:, k], rtol=0, atol=1e-12)


def test_weak_targets_are_silent_and_strong_ones_are_not():
    weak_positive = responses([0.9, 0.99, 0.9999], 0.0)[:, 0]
    weak_negative = responses(0.0, [-0.9, -0.99, -0.9999])[:, 1]
    strong = responses(0.0, 0.0)[0]
    assert (weak_positive.diff() < 0).all()
    assert (weak_negative.diff() < 0).all()
    assert weak_positive[-1] < 1e-2 * strong[0]
    assert weak_negative[-1] < 1e-2 * strong[1]
    # Not in the paper: a positive as wrong as can be is silent too.
    assert responses(-1.0, 0.0)[0, 0] == 0


def test_a_hard_target_speaks_louder_with_more_and_harder_ones_of_the_other_kind():
    numbers = (1, 2, 4, 7)
    by_number = [responses(0.0, 0.0, negatives=n)[0] for n in numbers]
    louder = [
        torch.stack([found[0] for found in by_number]),  # a positive, by the number of negatives
        responses(0.0, [-0.8, -0.4, 0.0, 0.4])[:, 0],  # and by their strength
        responses([0.8, 0.4, 0.0, -0.4], 0.0)[:, 1],  # a negative, by the positive
        responses(0.0, [-0.8, -0.4, -0.2, 0.0])[:, 1],  # and by its own strength
        torch.stack(
            [found[1 : n + 1].sum() for n, found in zip(numbers, by_number, strict=True)]
        ),  # all negatives together, by their number
    ]
    for loudness in louder:
        assert (loudness.diff() > 0).all()
    # "… and the number of the negative pairs" holds for all together only; a single one shares with the others.
    assert (torch.stack([found[1] for found in by_number]).diff() < 0).all()


def test_a_perfect_batch_has_no_gradient_left():
    candidates = one_hot(torch.arange(4), 4).double()
    scores = 800 * candidates
    assert dynamics.score_gradient(scores, candidates, torch.arange(4)).abs().max() < 1e-300
    assert math.isclose(loss(scores, candidates, torch.arange(4)).sum().item(), 0.0)


LABELS, OWN, Z, Y = torch.eye(3), torch.tensor([0, 1]), torch.ones(2, 4), torch.ones(3, 4)
SCORES_OF_2 = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dynamics.candidate_weights(SCORES_OF_2, torch.zeros(5, 4)), r"candidates.*\(5, 4\)"),
        (lambda: dynamics.score_gradient(SCORES_OF_2, LABELS, torch.zeros(3).long()), "own"),
        (lambda: dynamics.score_gradient(SCORES_OF_2, LABELS, torch.zeros(2)), "own"),
        (lambda: dynamics.score_gradient(SCORES_OF_2, LABELS, torch.tensor([0, -1])), "own must lie in 0 … 2"),
        (lambda: dynamics.score_gradient(SCORES_OF_2, 3 * LABELS, OWN), "candidates"),
        (lambda: dynamics.cosine_response(torch.full((1, 2), 1.5), torch.ones(1, 2) / 2, OWN[:1]), "cosines"),
        (lambda: dynamics.cosine_gradients(Z, Y, LABELS, OWN, temperature=0.0), "temperature must be"),
        (lambda: dynamics.cosine_gradients(0 * Z, Y, LABELS, OWN), "z must have no zero rows"),
        (lambda: dynamics.dot_gradients(Z, Y[:, :2], LABELS, OWN), "z and y"),
        (lambda: dynamics.dot_gradients(Z, Y, LABELS, OWN, noise_probs=torch.tensor([1.0, 0.0, 0.0])), "noise_probs"),
        (lambda: dynamics.dot_gradients(Z, Y, LABELS, OWN, noise_probs=torch.ones(2)), "noise_probs"),
        (lambda: dynamics.exponent_coefficients(LABELS, LABELS), r"target must be floating point \(K,\)"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
