"""Draws from soft targets, against the distributions they are said to follow and the ratio the loss makes of them.

Statistical tests are seeded; each holds its false-alarm rate, over the choice of the seed, to ALARM by dividing it
among its comparisons. Everything else is exact: expectations are sums over all outcomes, or Gauss-Legendre integrals.
"""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from batches import make_targets, seeded
from reference import contrast as slow_contrast
from torch import Tensor

from softnce import QueueCandidates, SoftTargetInfoNCE, SoftTargets, distributions, draws, functional
from softnce.noise import FixedNoise

ALARM = 1e-4
N, K = 9, 5
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(N, K, dtype=torch.float64, generator=GENERATOR)
LABELS = torch.randint(K, (N,), generator=GENERATOR)
NOISE = torch.rand(K, dtype=torch.float64, generator=GENERATOR) + 0.2
NOISE = NOISE / NOISE.sum()
SMOOTHED = SoftTargets.from_labels(LABELS, K, 0.2)
EXACT = {"rtol": 0.0, "atol": 1e-12}
DRAWS = {
    "label": draws.Categorical(),
    "mean of 1": draws.Averaged(1),
    "mean of 3": draws.Averaged(3),
    "mean of 3, many": draws.Averaged(3, candidates=40),
    "mean of 20": draws.Averaged(20),
    "CC": draws.ContinuousCategorical(),
    "CC, few": draws.ContinuousCategorical(candidates=2),
    "CC, κ = 7.5": draws.ContinuousCategorical(7.5),
}
NOISY = {name: draw for name, draw in DRAWS.items() if name != "label"}


def drawn(draw: draws.Draw, targets: SoftTargets, eta: Tensor | None = NOISE) -> tuple[SoftTargets, SoftTargets]:
    """α and noise of one call of the loss with ``seeded()``."""
    generator = seeded()
    alpha = draw.alpha(targets, generator)
    return alpha, draw.candidates_from(None if eta is None else FixedNoise(eta), len(targets), targets, generator)


@pytest.mark.parametrize("name", NOISY)
def test_what_is_drawn_lies_on_the_simplex(name: str) -> None:
    draw = NOISY[name]
    for eta in (None, NOISE):
        alpha, noise = drawn(draw, SMOOTHED, eta)
        assert len(alpha) == N
        assert len(noise) == (draw.candidates or N)
        for points in (alpha, noise):
            dense = points.dense(torch.float64)
            assert dense.shape == (len(points), K)
            assert (dense >= 0).all()
            torch.testing.assert_close(dense.sum(1), torch.ones(len(points), dtype=torch.float64), rtol=0, atol=1e-6)
            if isinstance(draw, draws.Averaged):  # pairs, unless the classes are fewer
                counts = draw.n * dense
                torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-5)
                assert points.form.name == ("LABELS" if draw.n == 1 else "PAIRS" if draw.n < K else "DENSE")
                assert points.index is None or points.index.shape[1] == draw.n


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_makes_the_loss_reproducible(name: str) -> None:
    loss = SoftTargetInfoNCE(NOISE, draw=DRAWS[name])
    first, again, other = (loss(LOGITS, SMOOTHED, generator=seeded(seed)) for seed in (1, 1, 2))
    assert first.item() == again.item()
    assert first.item() != other.item()
    # The generator alone decides: the global one is neither read nor moved.
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert loss(LOGITS, SMOOTHED, generator=seeded(1)).item() == first.item()
    assert torch.equal(torch.get_rng_state(), state)


# ------------------------------------------------------------------------------------------------ distributions


@pytest.mark.parametrize("kind", ["labels", "smoothed", "mixed", "duplicates", "top-k", "spread", "votes", "dense"])
def test_averaged_labels_have_the_targets_distribution(kind: str) -> None:
    """Counts of 40,000 labels a row, n = 4 at a time, against the target: one χ² test a row."""
    targets = make_targets(kind, 4, 6, seeded(1))
    repeated = targets[torch.arange(4).repeat(10_000)]
    counts = 4 * draws.Averaged(4).alpha(repeated, seeded(2)).dense(torch.float64).view(10_000, 4, 6).sum(0)
    expected = 40_000 * targets.dense(torch.float64)
    for found, wanted in zip(counts, expected, strict=True):
        possible = wanted > 0
        assert (found[~possible] == 0).all()
        if possible.sum() > 1:
            assert scipy.stats.chisquare(found[possible], wanted[possible], sum_check=False).pvalue > ALARM / 4


@pytest.mark.parametrize("eta", [None, FixedNoise(NOISE)])
def test_averaged_noise_has_the_distribution_of_means_of_labels(eta: FixedNoise | None) -> None:
    """Every point of the lattice as often as AveragedCategorical says: independent labels, not only right marginals."""
    probs, size = torch.full((K,), 1 / K, dtype=torch.float64) if eta is None else NOISE, 100_000
    noise = draws.Averaged(2, candidates=size).candidates_from(eta, 1, SMOOTHED, seeded())
    found, counts = noise.dense(torch.float64).unique(dim=0, return_counts=True)
    expected = size * distributions.AveragedCategorical(2, probs).log_prob(found).exp()
    assert len(found) == K * (K + 1) // 2
    assert scipy.stats.chisquare(counts, expected, sum_check=False).pvalue > ALARM


@pytest.mark.parametrize("concentration", [1.0, 8.0])
def test_continuous_categorical_draws_have_its_moments(concentration: float) -> None:
    """First and second moments of α for each target, and of the noise, at 20,000 draws."""
    targets = SoftTargets.from_dense(torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64))
    eta = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    draw, size = draws.ContinuousCategorical(concentration, candidates=20_000), 20_000
    alpha = draw.alpha(targets[torch.arange(2).repeat(size)], seeded(3)).dense().view(size, 2, 3)
    noise = draw.candidates_from(FixedNoise(eta), 1, targets, seeded(4)).dense()
    uniform = draw.candidates_from(None, 1, targets, seeded(5)).dense().double()
    flat = torch.full((3,), 1 / 3, dtype=torch.float64)
    comparisons = [(alpha[:, 0], targets.dense()[0]), (alpha[:, 1], targets.dense()[1]), (noise, eta), (uniform, flat)]
    limit = scipy.stats.norm.isf(ALARM / 2 / (4 * 6))
    for points, probs in comparisons:
        expected = distributions.ContinuousCategorical(probs, concentration=concentration)
        second = expected.variance + expected.mean.square()
        for values, mean in ((points, expected.mean), (points.square(), second)):
            z = (values.mean(0) - mean) / (values.var(0) / size).sqrt()
            assert z.abs().max().item() < limit


def test_the_mean_of_one_label_is_soft_distribution_info_nce_with_noise_from_eta() -> None:
    """The same labels, the same candidates, the same loss; and α is distributed as the categorical draw's."""
    draw = draws.Averaged(1, candidates=7)
    alpha, noise = drawn(draw, SMOOTHED)
    ours = SoftTargetInfoNCE(NOISE, temperature=0.6, draw=draw)(LOGITS, SMOOTHED, generator=seeded())
    expected = functional.info_nce(LOGITS, alpha.index[:, 0], NOISE, temperature=0.6, candidates=noise)
    torch.testing.assert_close(ours, expected, **EXACT)
    # With the batch as candidates it is soft distribution InfoNCE to the letter: only the labels' draws differ.
    batch = functional.info_nce(LOGITS, alpha.index[:, 0], NOISE, temperature=0.6)
    drawn_again = SoftTargetInfoNCE(NOISE, temperature=0.6, draw=_Given(1.0, alpha, None))(LOGITS, SMOOTHED)
    torch.testing.assert_close(drawn_again, batch, **EXACT)
    rows = SMOOTHED[torch.zeros(20_000, dtype=torch.long)]
    samples = [d.alpha(rows, seeded(6)).index[:, 0].bincount(minlength=K) for d in (draw, draws.Categorical())]
    assert scipy.stats.chi2_contingency(torch.stack(samples).numpy()).pvalue > ALARM


# ------------------------------------------------------------------------------------------- likelihood ratios


class _Given(draws.Draw):
    """What was drawn elsewhere, at the scale of the draw under test."""

    def __init__(self, scale: float, alpha: SoftTargets, noise: SoftTargets | None) -> None:
        self.scale, self.given, self.given_noise = scale, alpha, noise

    def alpha(self, *_: object) -> SoftTargets:
        return self.given

    def candidates_from(self, *_: object) -> SoftTargets | None:
        return self.given_noise


def law(draw: draws.Draw, probs: Tensor) -> torch.distributions.Distribution:
    """What a draw from soft targets ``probs`` follows."""
    if isinstance(draw, draws.Averaged):
        return distributions.AveragedCategorical(draw.n, probs)
    return distributions.ContinuousCategorical(probs, concentration=draw.concentration)


@pytest.mark.parametrize(
    "draw",
    [draws.Averaged(n, 6) for n in (1, 2, 3, 8)] + [draws.ContinuousCategorical(c, 6) for c in (0.5, 1.0, 5.0, 50.0)],
    ids=str,
)
def test_at_the_true_scores_the_loss_is_the_posterior(draw: draws.Draw) -> None:
    """exp(n·σ(α)) is the likelihood ratio of means of n labels (identity 7); with concentration κ up to a factor that
    does not depend on α (eq:stnce_posterior)."""
    targets = make_targets("dense", N, K, seeded(7))
    p, scores = targets.dense(), targets.dense().log() - NOISE.log()
    alpha, noise = (points.dense(torch.float64) for points in drawn(draw, targets))
    points = torch.cat([alpha[:, None], noise.expand(N, -1, -1)], 1)
    log_ratio = law(draw, p[:, None]).log_prob(points) - law(draw, NOISE).log_prob(points)
    factor = log_ratio - draw.scale * (points * scores[:, None]).sum(-1)
    is_mean = isinstance(draw, draws.Averaged)
    within = {"rtol": 0.0, "atol": 1e-12 if is_mean else 1e-10}
    torch.testing.assert_close(
        factor, torch.zeros_like(factor) if is_mean else factor[:, :1].expand_as(factor), **within
    )
    loss = SoftTargetInfoNCE(NOISE, draw=draw, reduction="none")(p.log(), targets, generator=seeded())
    torch.testing.assert_close(loss, log_ratio.logsumexp(1) - log_ratio[:, 0], **within)


def lattice(n: int, classes: int) -> Tensor:
    """All means of n labels, (P, K)."""
    counts = [c for c in itertools.product(range(n + 1), repeat=classes) if sum(c) == n]
    return torch.tensor(counts, dtype=torch.float64) / n


def expected_loss(
    logits: Tensor, scale: float, eta: Tensor, points: Tensor, p_target: Tensor, p_noise: Tensor, negatives: int
) -> Tensor:
    """E ℓ of one sample, over α (``points`` with probabilities p_target) and all tuples of noise (p_noise)."""
    total = torch.zeros((), dtype=torch.float64)
    for places in itertools.combinations_with_replacement(range(len(points)), negatives):
        orders = math.factorial(negatives) / math.prod(math.factorial(places.count(i)) for i in set(places))
        chance = orders * p_noise[list(places)].prod()
        given = _Given(scale, SoftTargets.from_dense(points), SoftTargets.from_dense(points[list(places)]))
        loss = SoftTargetInfoNCE(eta, draw=given, reduction="none")
        rows = logits.expand(len(points), -1)
        total = total + chance * (p_target * loss(rows, SoftTargets.from_dense(points))).sum()
    return total


def assert_minimal_at(truth: Tensor, loss) -> None:  # type: ignore[no-untyped-def]
    """Gradient zero at the truth, and higher values all around it."""
    logits = truth.clone().requires_grad_()
    at_truth = loss(logits)
    (gradient,) = torch.autograd.grad(at_truth, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)
    for seed in range(5):
        away = truth + 0.5 * torch.randn(truth.shape, dtype=torch.float64, generator=seeded(seed))
        assert loss(away).item() > at_truth.item() + 1e-6


@pytest.mark.parametrize(
    ("draw", "negatives"),
    [(draws.Averaged(n), negatives) for n, negatives in ((1, 1), (1, 3), (2, 2), (4, 1))]
    + [(draws.ContinuousCategorical(concentration), 1) for concentration in (1.0, 6.0)],
    ids=str,
)
def test_the_loss_is_minimal_at_the_true_conditional(draw: draws.Draw, negatives: int) -> None:
    """Over every outcome of α and of the noise, K = 3; of the exact loss (eq:theo-soft-target-infonce) K = 2 and
    Gauss-Legendre quadrature."""
    if isinstance(draw, draws.Averaged):
        p, eta = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]], dtype=torch.float64)
        points, weights = lattice(draw.n, 3), torch.ones(())
    else:
        p, eta = torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64)
        nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(24))
        points, weights = torch.stack([(1 + nodes) / 2, (1 - nodes) / 2], 1), weights / 2
    p_target, p_noise = (weights * law(draw, q).log_prob(points).exp() for q in (p, eta))
    torch.testing.assert_close(p_target.sum(), torch.tensor(1.0, dtype=torch.float64), rtol=0, atol=1e-12)

    def loss(logits: Tensor, scale: float = draw.scale) -> Tensor:
        return expected_loss(logits, scale, eta, points, p_target, p_noise, negatives)

    assert_minimal_at(p.log(), loss)
    if draw.scale != 1:  # without the factor it is minimal elsewhere
        logits = p.log().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(logits, scale=1.0), logits)
        assert gradient.abs().max() > 1e-3


def test_a_smoothed_label_is_not_the_conditional() -> None:
    """Two samples of one x with different labels: for n > 1 the means follow a mixture, and the optimum moves.

    The mean of 4 labels from each smoothed label is nearly that label four times over, so the loss is minimal at scores
    nearer to those of p^(1/4) than of p.
    """
    p, eta, epsilon, n = torch.tensor([0.7, 0.3]).double(), torch.tensor([0.5, 0.5]).double(), 0.1, 4
    points = lattice(n, 2)
    smoothed = (1 - epsilon) * torch.eye(2, dtype=torch.float64) + epsilon / 2
    mixture = p @ distributions.AveragedCategorical(n, smoothed[:, None]).log_prob(points).exp()
    p_noise = distributions.AveragedCategorical(n, eta).log_prob(points).exp()

    def loss(margin: Tensor) -> float:
        return float(expected_loss(torch.stack([margin, 0 * margin]), float(n), eta, points, mixture, p_noise, 1))

    best, p_smoothed = min(torch.linspace(0, 1.2, 25, dtype=torch.float64), key=loss), (1 - epsilon) * p + epsilon / 2
    assert best < 0.6 * (p_smoothed[0] / p_smoothed[1]).log()


def test_targets_that_tell_their_samples_apart_leave_soft_targets_without_an_optimum() -> None:
    """Three samples of class 0, each with its conditional as soft target, contrasted with one another.

    No target is a mixture of the others, so some scores single it out, the better the larger they are: the loss goes to
    0 while two of three classes are wrong. Labels drawn from the same targets have their optimum at the conditional.
    """
    p = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.1, 0.3], [0.55, 0.35, 0.1]], dtype=torch.float64)
    vertices, eta = torch.eye(3, dtype=torch.float64), p.mean(0)
    # Scores that give a sample's own target 1, and 0 to the other two.
    astray = torch.linalg.solve(p, vertices).T
    losses = [functional.soft_target_info_nce(scale * astray, p).item() for scale in (1.0, 10.0, 100.0)]
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 1e-9 < functional.soft_target_info_nce(p.log(), p).item()
    assert (astray.argmax(1) != p.argmax(1)).sum() == 2
    for conditional in p:
        assert_minimal_at(conditional.log(), lambda s, p=conditional: expected_loss(s, 1.0, eta, vertices, p, eta, 2))


# --------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize(("eta", "temperature"), [(NOISE, 1.0), (NOISE, 0.4), (None, 1.0)])
@pytest.mark.parametrize("name", NOISY)
def test_the_loss_scales_scores_and_keeps_the_own_target_once(
    name: str, eta: Tensor | None, temperature: float
) -> None:
    draw = NOISY[name]
    alpha, noise = (points.dense(torch.float64) for points in drawn(draw, SMOOTHED, eta))
    scores = draw.scale * (LOGITS / temperature - (0 if eta is None else eta.log()))
    loss = SoftTargetInfoNCE(eta, temperature=temperature, draw=draw, reduction="none")
    expected = slow_contrast(scores, alpha, noise, own=None)
    torch.testing.assert_close(loss(LOGITS, SMOOTHED, generator=seeded()), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", DRAWS)
def test_the_gradient_is_the_candidates_mean_less_alpha_times_the_scale(name: str) -> None:
    """Identity 5 with its factor n."""
    draw, temperature = DRAWS[name], 0.7
    alpha, noise = drawn(draw, SMOOTHED)
    own = alpha.dense(torch.float64)
    if noise is None:  # the batch, without the row itself
        others = torch.stack([own[row] for row in ~torch.eye(N, dtype=torch.bool)])
    else:
        others = noise.dense(torch.float64).expand(N, -1, -1)
    pool = torch.cat([own[:, None], others], 1)  # (N, M + 1, K)
    scores = draw.scale * (LOGITS / temperature - NOISE.log())
    weights = torch.einsum("nmk,nk->nm", pool, scores).softmax(1)
    expected = draw.scale / temperature * (torch.einsum("nm,nmk->nk", weights, pool) - pool[:, 0])
    logits = LOGITS.clone().requires_grad_()
    loss = SoftTargetInfoNCE(NOISE, temperature=temperature, draw=draw, reduction="sum")
    loss(logits, SMOOTHED, generator=seeded()).backward()
    torch.testing.assert_close(logits.grad, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DRAWS)
def test_from_label_embeddings_it_is_the_same_loss(name: str) -> None:
    pair = [torch.randn(n, 4, dtype=torch.float64, generator=GENERATOR, requires_grad=True) for n in (N, K)]
    loss = SoftTargetInfoNCE(NOISE, temperature=0.8, draw=DRAWS[name])
    direct = loss(pair[0] @ pair[1].T, SMOOTHED, generator=seeded())
    linear = loss.linear(*pair, SMOOTHED, generator=seeded())
    torch.testing.assert_close(linear, direct, **EXACT)
    torch.testing.assert_close(torch.autograd.grad(linear, pair), torch.autograd.grad(direct, pair), **EXACT)


def test_averaged_draws_keep_the_gradient_of_a_table_sparse() -> None:
    table, targets = torch.randn(1000, 4, requires_grad=True), SoftTargets.from_labels(torch.arange(6), 1000, 0.1)
    loss = SoftTargetInfoNCE("uniform", draw=draws.Averaged(3))
    loss.linear(torch.randn(6, 4), table, targets, sparse=True, generator=seeded()).backward()
    assert table.grad.is_sparse
    assert len(table.grad.coalesce().indices()[0]) <= 2 * 6 * 3


@pytest.mark.parametrize("name", DRAWS)
def test_ignored_rows_have_no_part(name: str) -> None:
    draw, kept = DRAWS[name], torch.ones(N, dtype=torch.bool).index_fill(0, torch.tensor([2, 5]), False)
    targets = SoftTargets.from_labels(LABELS.where(kept, -100), K, 0.2)
    logits, loss = LOGITS.clone().requires_grad_(), SoftTargetInfoNCE(NOISE, draw=draw)
    value = loss(logits, targets, generator=seeded())
    value.backward()
    assert (logits.grad[~kept] == 0).all()
    assert (logits.grad[[0, 1, 3, 4]].abs().sum(1) > 0).all()
    alpha, noise = drawn(draw, targets)
    if noise is not None:
        given = _Given(draw.scale, alpha[kept], noise)
        alone = SoftTargetInfoNCE(NOISE, draw=given)(LOGITS[kept], targets[kept])
        torch.testing.assert_close(value, alone, **EXACT)
    assert loss(LOGITS, torch.full((N,), -100)).item() == 0


def test_given_candidates_take_the_place_of_the_draws_noise() -> None:
    loss = SoftTargetInfoNCE(NOISE, candidates=QueueCandidates(4), draw=draws.Averaged(2))
    assert loss(LOGITS, SMOOTHED, generator=seeded()).item() == 0  # an empty queue leaves nothing to confuse
    assert loss(LOGITS, SMOOTHED, generator=seeded()).item() > 0


def test_averaged_tends_to_the_soft_target_at_temperature_over_n() -> None:
    """Identity 7: with means from the batch's own soft targets as candidates, at n = 10⁶."""
    n = 1_000_000
    targets = make_targets("dense", 4, 3, seeded(9))
    alpha = draws.Averaged(n).alpha(targets, seeded())
    torch.testing.assert_close(alpha.dense(), targets.dense(), rtol=0, atol=5 * 0.5 / math.sqrt(n))
    logits = LOGITS[:4, :3] / n
    averaged = SoftTargetInfoNCE("uniform", draw=_Given(float(n), alpha, None))(logits, targets)
    plain = functional.soft_target_info_nce(logits, targets, None, temperature=1 / n)
    torch.testing.assert_close(averaged, plain, rtol=0, atol=1e-2)


@pytest.mark.parametrize("draw", [draws.Averaged(3), draws.ContinuousCategorical(2.0)])
def test_an_empty_batch_and_a_single_class(draw: draws.Draw) -> None:
    empty = SoftTargets.from_labels(torch.empty(0, dtype=torch.long), K, 0.1)
    alpha, noise = drawn(draw, empty)
    assert len(alpha) == len(noise) == 0
    one = SoftTargets.from_labels(torch.zeros(3, dtype=torch.long), 1)
    loss = SoftTargetInfoNCE("uniform", draw=draw)(torch.randn(3, 1), one)
    assert loss.item() == pytest.approx(math.log(4))


def test_misuse_is_named() -> None:
    for n in (0, -1, 2.0, True, None):
        with pytest.raises((ValueError, TypeError), match="n must be a whole number of at least 1"):
            draws.Averaged(n)
    for draw in (lambda c: draws.Averaged(2, c), lambda c: draws.ContinuousCategorical(1.0, c)):
        with pytest.raises(ValueError, match="candidates must be a whole number of at least 1, got 0"):
            draw(0)
    for concentration in (0, -1.0, math.inf, math.nan, "1", True):
        with pytest.raises(ValueError, match="concentration must be a positive number"):
            draws.ContinuousCategorical(concentration)
    with pytest.raises(TypeError, match=r"draw must be one of softnce\.draws"):
        SoftTargetInfoNCE("uniform", draw=draws.Averaged)
    with pytest.raises(ValueError, match=r"mass on every class .* row 0 .*label_smoothing"):
        SoftTargetInfoNCE("uniform", draw=draws.ContinuousCategorical())(LOGITS, LABELS)
