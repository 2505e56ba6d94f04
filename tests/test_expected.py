"""Expected InfoNCE: identities 10 to 16, what it learns, and its edges; ``test_contrast`` has the slow reference."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from batches import KINDS, Given, make_targets, seeded
from reference import expected as slow_expected
from torch import Tensor

import softnce
from softnce import (
    BatchCandidates,
    ExpectedInfoNCE,
    NoiseCandidates,
    SampledCandidates,
    SoftTargets,
    draws,
    functional,
)

EXACT = {"rtol": 0.0, "atol": 1e-12}


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind: str) -> None:
    targets = make_targets(kind, 5, 4, seeded(1))
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True, generator=seeded(2))
    temperature = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return functional.expected_info_nce(x, targets, temperature=t, label_smoothing=0.1 * (kind != "smoothed"))

    assert torch.autograd.gradcheck(loss, (logits, temperature))
    assert torch.autograd.gradgradcheck(loss, (logits, temperature))


FEW = {  # own pairs of all classes
    "two classes": SoftTargets.from_pairs([[0, 1]], [[0.3, 0.7]], 2).smooth(0.1),
    "one class": SoftTargets.from_labels([0], 1, smoothing=0.1),
    "one class, others ignored": SoftTargets.from_labels([-100, 0, -100], 1, smoothing=0.1),
    "two classes, others ignored": SoftTargets(
        2, torch.tensor([[0, 1]] * 3), torch.full((3, 2), 0.45), 0.1, None, torch.arange(3) == 1
    ),
}
ALONE = FEW | {kind: make_targets(kind, 1, 5, seeded()) for kind in KINDS}


@pytest.mark.parametrize(("name", "dtype"), [*((n, torch.float64) for n in ALONE), *((n, torch.float32) for n in FEW)])
@pytest.mark.parametrize("loss", [functional.expected_info_nce, functional.soft_target_info_nce])
def test_alone_without_others_it_is_zero(loss: Callable[..., Tensor], name: str, dtype: torch.dtype) -> None:
    targets = ALONE[name]
    logits = torch.randn(targets.shape, dtype=dtype, requires_grad=True)
    value = loss(logits, targets, candidates=BatchCandidates())
    value.backward()
    assert value.item() == 0
    assert (logits.grad == 0).all()


def test_confident_rows_on_a_background_are_finite_in_float32() -> None:
    """The own class, that no other row draws, is e²⁰⁰ times likelier than the others: more than float32 holds."""
    logits = torch.zeros(4, 4).fill_diagonal_(200.0).requires_grad_()
    double = logits.detach().double().requires_grad_()
    targets = SoftTargets.from_labels(torch.arange(4), 4, smoothing=0.1)
    seed = next(s for s in range(1000) if targets.sample(seeded(s)).equal(torch.arange(4)))
    loss = partial(functional.expected_info_nce, candidates=BatchCandidates(), negatives="drawn")
    values = [loss(x, targets, generator=seeded(seed)) for x in (logits, double)]
    torch.testing.assert_close(values[0].double(), values[1], rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(*pair)[0].double() for pair in zip(values, (logits, double), strict=True)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------------------------------------------- identities


def small(seed: int = 0, n: int = 3, k: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = seeded(seed)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)
    soft = (2 * torch.randn(n, k, dtype=torch.float64, generator=generator)).softmax(1)
    noise = (torch.randn(k, dtype=torch.float64, generator=generator)).softmax(0)
    return logits, soft, noise


def collapsed(logits: Tensor, soft: Tensor, noise: Tensor) -> Tensor:
    """ℓ₁ = −Σ_k α_k s_k + log Σ_k n_k e^{s_k}."""
    scores = logits - noise.log()
    return -(soft * scores).sum(1) + (scores + soft.sum(0).log()).logsumexp(1)


def drawn_info_nce(logits: Tensor, soft: Tensor, noise: Tensor) -> Tensor:
    """E[soft distribution InfoNCE] of every row, (N,), by enumeration of every draw."""
    mean = torch.zeros(len(soft), dtype=torch.float64)
    for labels in itertools.product(range(soft.shape[1]), repeat=len(soft)):
        drawn = torch.tensor(labels)
        probability = soft.gather(1, drawn[:, None]).prod()
        mean += probability * functional.info_nce(logits, drawn, noise, reduction="none")
    return mean


@pytest.mark.parametrize("seed", range(5))
def test_10_order_against_all_draws(seed: int) -> None:
    """E[soft distribution InfoNCE] ≤ ℓ ≤ ℓ₁, and soft target InfoNCE ≤ ℓ₁."""
    logits, soft, noise = small(seed)
    mean = drawn_info_nce(logits, soft, noise)
    options = {"reduction": "none", "candidates": BatchCandidates()}
    ours = functional.expected_info_nce(logits, soft, noise, negatives="mean", **options)
    geometric = functional.soft_target_info_nce(logits, soft, noise, reduction="none")
    upper = collapsed(logits, soft, noise)
    assert (mean <= ours + 1e-12).all()
    assert (ours <= upper + 1e-12).all()
    assert (geometric <= upper + 1e-12).all()
    assert (ours >= 0).all()
    assert (ours - mean).max() > 1e-3  # the inequality is strict here


def test_10_drawing_the_others_lies_between() -> None:
    """With the others drawn, the mean over draws of ℓ is E[soft distribution InfoNCE]."""
    logits, soft, noise = small(1)
    n, k = soft.shape
    by_enumeration = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        for labels in itertools.product(range(k), repeat=n - 1):
            probability = math.prod(float(soft[j, y]) for j, y in zip(rest, labels, strict=True))
            others = SoftTargets.from_labels(torch.tensor(labels), k)
            value = functional.expected_info_nce(logits[i : i + 1], soft[i : i + 1], noise, candidates=others)
            by_enumeration[i] += probability * value
    torch.testing.assert_close(by_enumeration, drawn_info_nce(logits, soft, noise), **EXACT)


@pytest.mark.parametrize("candidates", [None, BatchCandidates()])
def test_10_label_smoothing_keeps_the_order(candidates) -> None:
    """It smooths the noise with the targets wherever their draws are the candidates: E[soft distribution] ≤ ℓ."""
    generator = seeded(8)
    logits = 2 * torch.randn(3, 4, dtype=torch.float64, generator=generator)
    labels, noise = torch.tensor([0, 0, 1]), torch.tensor([0.9, 0.06, 0.03, 0.01], dtype=torch.float64)
    smoothed = 0.7 * noise + 0.3 / 4
    options = {"candidates": candidates, "reduction": "none"}
    rows, loss = SoftTargets.from_labels(labels, 4, smoothing=0.3), functional.soft_distribution_info_nce
    ours = loss(logits, labels, noise, label_smoothing=0.3, generator=seeded(), **options)
    direct = loss(logits, rows, smoothed, generator=seeded(), **options)
    torch.testing.assert_close(ours, direct, **EXACT)
    options |= {"candidates": BatchCandidates(), "negatives": "mean", "label_smoothing": 0.3}
    upper = functional.expected_info_nce(logits, labels, noise, **options)
    assert (drawn_info_nce(logits, rows.dense(torch.float64), smoothed) <= upper + 1e-12).all()


@pytest.mark.parametrize(
    ("draw", "candidates"),
    [
        (None, None),
        (draws.Averaged(3), None),
        (draws.ContinuousCategorical(4.0), None),
        (draws.Categorical(), SampledCandidates(6, torch.tensor([0.9, 0.06, 0.03, 0.01]))),
        (draws.Categorical(), SoftTargets.from_labels(torch.tensor([0, 1, 2]), 4)),
    ],
    ids=str,
)
def test_label_smoothing_leaves_the_noise_of_other_candidates_alone(draw, candidates) -> None:
    """Candidates from η itself, and the temperature that smoothing is without a draw (identity 3)."""
    logits, _, _ = small(9)
    labels, noise = torch.tensor([0, 0, 1]), torch.tensor([0.9, 0.06, 0.03, 0.01], dtype=torch.float64)
    options = {"candidates": candidates, "draw": draw}
    ours = functional.soft_target_info_nce(logits, labels, noise, label_smoothing=0.3, generator=seeded(), **options)
    rows = SoftTargets.from_labels(labels, 4, smoothing=0.3)
    direct = functional.soft_target_info_nce(logits, rows, noise, generator=seeded(), **options)
    torch.testing.assert_close(ours, direct, **EXACT)


@pytest.mark.parametrize("others", ["mean", "drawn"])
def test_10_labels_against_labels_are_info_nce(others: str) -> None:
    logits, _, noise = small(2, n=9)
    labels = torch.randint(4, (9,), generator=seeded())
    options = {"candidates": BatchCandidates(), "negatives": others, "reduction": "none"}
    ours = functional.expected_info_nce(logits, labels, noise, **options)
    torch.testing.assert_close(ours, functional.info_nce(logits, labels, noise, reduction="none"), **EXACT)


def test_11_gradients_in_closed_form() -> None:
    logits, soft, noise = small(3, n=6)
    logits.requires_grad_()
    value = functional.expected_info_nce(logits, soft, noise, candidates=BatchCandidates(), reduction="none")
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    scores = (logits - noise.log()).detach()
    counts = soft.sum(0) - soft
    rest = (counts * scores.exp()).sum(1, keepdim=True)
    share, pi = counts * scores.exp() / rest, rest / (rest + scores.exp())
    torch.testing.assert_close(gradient, share * (soft * pi).sum(1, keepdim=True) - soft * pi, **EXACT)
    # The collapsed form is the cross-entropy of s + log n, up to a constant.
    (of_collapsed,) = torch.autograd.grad(collapsed(logits, soft, noise).sum(), logits)
    adjusted = (scores + soft.sum(0).log()).softmax(1)
    torch.testing.assert_close(of_collapsed, adjusted - soft, **EXACT)


def test_12_the_bound_holds_in_expectation() -> None:
    """Z and Ỹ discrete: log M − E[ℓ] ≤ I(Z;Ỹ) for any scores, by enumeration of all batches of size 2."""
    generator = seeded(4)
    joint = torch.rand(3, 3, dtype=torch.float64, generator=generator)
    joint = joint / joint.sum()
    conditional, marginal = joint / joint.sum(1, keepdim=True), joint.sum(0)
    information = (joint * (joint / (joint.sum(1, keepdim=True) * marginal)).log()).sum()
    best = conditional.log() - marginal.log()
    for scores in (best, 2 * best, torch.randn(3, 3, dtype=torch.float64, generator=generator)):
        value = torch.zeros((), dtype=torch.float64)
        for i, j in itertools.product(range(3), repeat=2):
            pair = torch.tensor([i, j])
            losses = functional.expected_info_nce(scores[pair], conditional[pair], candidates=BatchCandidates())
            value += joint.sum(1)[i] * joint.sum(1)[j] * losses
        assert math.log(2) - value <= information + 1e-12
    # With m more from η the bound is log(M + m) − ℓ, for η the marginal.
    for count in (1.0, 10.0, 1e4):
        loss = partial(functional.expected_info_nce, candidates=NoiseCandidates(count), reduction="none")
        alone, shifted = loss(best, conditional, marginal), loss(best + marginal.log(), conditional, marginal)
        for losses in (alone, shifted):
            assert math.log(1 + count) - (joint.sum(1) * losses).sum() <= information + 1e-12


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_13_noise_in_expectation_leads_to_cross_entropy(smoothing: float) -> None:
    logits, soft, _ = small(5, n=6)
    logits.requires_grad_()
    cross_entropy = functional.soft_target_cross_entropy(logits, soft, label_smoothing=smoothing)
    (target,) = torch.autograd.grad(cross_entropy, logits)
    errors = []
    for count in (1e2, 1e4, 1e6):
        candidates = BatchCandidates() + NoiseCandidates(count)
        value = functional.expected_info_nce(logits, soft, candidates=candidates, label_smoothing=smoothing)
        (gradient,) = torch.autograd.grad(value, logits)
        errors.append(float((gradient - target).abs().max()))
    assert errors[0] > 50 * errors[1] > 2500 * errors[2]
    assert errors[2] < 1e-5


def fitted(classes: int, loss: Callable[[Tensor], Tensor], lr: float, steps: int) -> Tensor:
    """The class probabilities (K,) that minimise ``loss(logits)`` of one input's logits (1, K)."""
    logits = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(logits).backward()
        optimiser.step()
        schedule.step()
    return logits.detach().softmax(1)[0]


@pytest.mark.slow
def test_14_in_the_mean_the_minimiser_is_what_identity_14_says() -> None:
    """e^{s_k}(R + e^{s_k}) ∝ α_k/η_k at the optimum, with R of M candidates from η in the mean."""
    alpha = torch.tensor([0.7, 0.2, 0.05, 0.05], dtype=torch.float64)
    noise = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    options = {"candidates": NoiseCandidates(3.0), "negatives": "mean"}
    learnt = fitted(4, lambda x: functional.expected_info_nce(x, alpha[None], noise, **options), lr=0.05, steps=4000)
    scores = (learnt.log() - noise.log()).exp()
    rest = 3 * (noise * scores).sum()
    ratio = scores * (rest + scores) / (alpha / noise)
    torch.testing.assert_close(ratio / ratio[0], torch.ones(4, dtype=torch.float64), rtol=1e-4, atol=0)
    assert (learnt[0] - alpha[0]).abs() > 0.02  # flattened: M·η is not ≫ α


@pytest.mark.parametrize("count", [0.5, 4.0, 100.0])
def test_14_few_candidates_flatten_but_keep_the_order(count: float) -> None:
    """Scores s are optimal, in the mean, for α_k ∝ η_k e^{s_k}(R + e^{s_k}): α/η is spread wider, in the same order."""
    noise = torch.tensor([0.4, 0.1, 0.2, 0.3], dtype=torch.float64)
    ratio = torch.tensor([1.5, 3.0, 0.3, 0.2], dtype=torch.float64)  # e^s
    alpha = noise * ratio * (count * (noise * ratio).sum() + ratio)
    alpha = alpha / alpha.sum()
    logits = (noise * ratio).log()[None].requires_grad_()
    functional.expected_info_nce(logits, alpha[None], noise, candidates=NoiseCandidates(count)).backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), rtol=0, atol=1e-15)
    wanted = alpha / noise
    assert wanted.argsort().tolist() == ratio.argsort().tolist()
    assert wanted.max() / wanted.min() > ratio.max() / ratio.min()


@pytest.mark.slow
def test_14_drawn_others_recover_the_target_with_few_candidates() -> None:
    """A target of 0.7/0.3 at M = K/50: drawn others find it, the collapsed form does not."""
    classes, count = 500, 10
    alpha = torch.zeros(classes, dtype=torch.float64)
    alpha[:2] = torch.tensor([0.7, 0.3], dtype=torch.float64)
    generator, rows = seeded(), 400
    own = SoftTargets.from_pairs(torch.tensor([[0, 1]]), torch.tensor([[0.7, 0.3]], dtype=torch.float64), classes)
    soft = SoftTargets.cat([own] * rows)

    def drawn(x: Tensor) -> Tensor:
        """The same input in many batches at once, each with its own M draws from η."""
        labels = torch.randint(classes, (rows, count), generator=generator)
        rest = x.expand(rows, -1).gather(1, labels).logsumexp(1)
        gap = rest[:, None] - x[:, :2]
        return (alpha[:2] * torch.nn.functional.softplus(gap)).sum(1).mean()

    # The library's own path, on one batch of draws, is that sum.
    x = torch.randn(1, classes, dtype=torch.float64)
    labels = torch.randint(classes, (count,), generator=seeded(7))
    ours = functional.expected_info_nce(
        x.expand(rows, -1), soft, candidates=SoftTargets.from_labels(labels, classes), negatives="drawn"
    )
    gap = x[0, labels].logsumexp(0) - x[0, :2]
    torch.testing.assert_close(ours, (alpha[:2] * torch.nn.functional.softplus(gap)).sum(), **EXACT)

    learnt = fitted(classes, drawn, lr=0.1, steps=1500)
    assert learnt[2:].max() < 1e-3
    assert (learnt[:2] / learnt[:2].sum()).tolist() == pytest.approx([0.7, 0.3], abs=0.02)
    # ℓ₁ at its optimum: e^{s} ∝ α/(α + M·η).
    flattened = alpha / (alpha + count / classes)
    flattened = flattened / flattened.sum()
    assert flattened[:2].tolist() == pytest.approx([0.51, 0.49], abs=0.01)


def test_15_smoothing_smooths() -> None:
    """It does not cancel: the smoothed loss is that of the smoothed rows, with the smoothed noise."""
    logits, _, noise = small(6, n=8)
    labels = torch.randint(4, (8,), generator=seeded())
    rows = SoftTargets.from_labels(labels, 4, smoothing=0.2).dense(torch.float64)
    ours = functional.expected_info_nce(logits, labels, noise, label_smoothing=0.2)
    direct = functional.expected_info_nce(logits, rows, 0.8 * noise + 0.2 / 4)
    torch.testing.assert_close(ours, direct, **EXACT)
    geometric = functional.soft_target_info_nce(logits, labels, label_smoothing=0.2)
    torch.testing.assert_close(geometric, functional.soft_target_info_nce(logits, labels, temperature=1 / 0.8), **EXACT)
    sharp = functional.expected_info_nce(logits, labels, noise, temperature=1 / 0.8)
    assert (ours - sharp).abs() > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_16_others_matter_through_their_counts(kind: str) -> None:
    """Candidates in another order, in other groups, or as one row that is their sum have the same loss."""
    targets = make_targets(kind, 9, 5, seeded(3))
    logits = torch.randn(4, 5, dtype=torch.float64, generator=seeded(4))
    mine = make_targets("mixed", 4, 5, seeded(5))

    def loss(candidates: softnce.Candidates | SoftTargets) -> Tensor:
        return functional.expected_info_nce(logits, mine, candidates=candidates, reduction="none", negatives="mean")

    whole = loss(targets)
    torch.testing.assert_close(loss(targets.flip(0)), whole, **EXACT)
    torch.testing.assert_close(loss(Given([targets[:3], targets[3:]])), whole, **EXACT)
    total = targets.class_mass(torch.float64)
    slow = slow_expected(logits, mine.dense(torch.float64), torch.zeros(0, 5), None, None, total.clamp(min=1e-300))
    torch.testing.assert_close(whole, slow, **EXACT)


# ------------------------------------------------------------------------------------------------- candidates, misuse


def test_the_default_counts_every_class() -> None:
    logits, soft, noise = small(7, n=5)
    ours = functional.expected_info_nce(logits, soft, noise)
    candidates = BatchCandidates() + NoiseCandidates(4)
    by_hand = functional.expected_info_nce(logits, soft, noise, candidates=candidates, negatives="mean")
    assert ours == by_hand


def test_noise_in_expectation_is_for_this_loss_alone() -> None:
    for loss in (softnce.SoftTargetInfoNCE, softnce.SoftDistributionInfoNCE):
        with pytest.raises(ValueError, match=r"only ExpectedInfoNCE can count.*SampledCandidates\(9\)"):
            loss(candidates=BatchCandidates() + NoiseCandidates(9))(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="count must be a finite number of at least 0, got -1"):
        NoiseCandidates(-1)
    with pytest.raises(ValueError, match="negatives must be one of mean, drawn or None, got 'all'"):
        ExpectedInfoNCE("uniform", negatives="all")


def test_what_touches_every_class_cannot_be_sparse() -> None:
    z, table = torch.randn(3, 4), torch.randn(10, 4, requires_grad=True)
    labels = torch.tensor([1, 2, 3])
    functional.linear_expected_info_nce(z, table, labels, sparse=True).backward()
    assert table.grad.is_sparse
    for options in ({"label_smoothing": 0.1}, {"candidates": NoiseCandidates(5), "negatives": "mean"}):
        with pytest.raises(ValueError, match="touches every class; use pairs without label_smoothing"):
            functional.linear_expected_info_nce(z, table, labels, sparse=True, **options)
    head = softnce.heads.LabelEmbeddingHead(4, 10)
    head.loss(z, labels, ExpectedInfoNCE("uniform", candidates=BatchCandidates() + NoiseCandidates(6))).backward()
    assert head.weight.grad.is_sparse
