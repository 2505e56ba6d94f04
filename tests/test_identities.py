"""The identities the losses rest on, each exact to rounding.

What concerns the continuous categorical, information and the gradient's split stands in their own tests.
"""

import math
from functools import partial

import pytest
import torch
from reference import contrast as slow_contrast
from torch.nn import functional as F

from softnce import BatchCandidates, ClassCandidates, SoftTargetInfoNCE, SoftTargets, functional

N, K = 40, 7
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(N, K, dtype=torch.float64, generator=GENERATOR)
LABELS = torch.randint(K, (N,), generator=GENERATOR)
NOISE = torch.rand(K, dtype=torch.float64, generator=GENERATOR).add(0.1)
NOISE = NOISE / NOISE.sum()
LAM = torch.rand(N, dtype=torch.float64, generator=GENERATOR)
MIXED = SoftTargets.from_labels(LABELS, K, 0.1).mix(SoftTargets.from_labels(LABELS.flip(0), K, 0.1), LAM)
EXACT = {"rtol": 0.0, "atol": 1e-13}


def gradient(loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, logits)[0]


def test_1_labels_against_the_batch_need_only_its_class_counts() -> None:
    """ℓ = −s_y + log Σ_k n_k exp s_k, and the gradient is that of cross-entropy on s + log n."""
    logits = LOGITS.clone().requires_grad_()
    counts = torch.bincount(LABELS, minlength=K).double()
    scores = logits / 0.7 - NOISE.log()
    losses = functional.info_nce(logits, LABELS, NOISE, temperature=0.7, reduction="none")
    expected = -scores.gather(1, LABELS[:, None])[:, 0] + (scores + counts.log()).logsumexp(1)
    torch.testing.assert_close(losses, expected, **EXACT)
    shifted = F.cross_entropy(scores + counts.log(), LABELS, reduction="none")
    torch.testing.assert_close(losses, shifted + counts.log()[LABELS], **EXACT)
    torch.testing.assert_close(gradient(losses.sum(), logits), gradient(shifted.sum(), logits), **EXACT)


def test_2_class_vertices_are_cross_entropy() -> None:
    vertices = SoftTargetInfoNCE("uniform", candidates=ClassCandidates())
    torch.testing.assert_close(vertices(LOGITS, MIXED), F.cross_entropy(LOGITS, MIXED.dense()), **EXACT)
    torch.testing.assert_close(vertices(LOGITS, LABELS), functional.nll(LOGITS, LABELS), **EXACT)
    # The general machinery agrees where the row's own target is a vertex, hence in C once.
    classes = SoftTargets.from_labels(torch.arange(K), K)
    losses = functional.soft_target_info_nce(LOGITS, LABELS, candidates=classes, own=LABELS)
    torch.testing.assert_close(losses, functional.nll(LOGITS, LABELS), **EXACT)


@pytest.mark.parametrize("mixing", [False, True])
def test_3_shared_smoothing_is_a_temperature(mixing: bool) -> None:
    """Loss at (ε, τ, η) = loss at (0, τ/(1−ε), η^(1−ε)), whatever ξ is."""
    epsilon, temperature = 0.3, 0.8
    xi = torch.softmax(torch.randn(K, dtype=torch.float64, generator=GENERATOR), 0)

    def targets(smoothing: float) -> SoftTargets:
        t = SoftTargets.from_labels(LABELS, K, smoothing, xi if smoothing else None)
        return t.mix(t.flip(0), LAM) if mixing else t

    loss = partial(functional.soft_target_info_nce, reduction="none")
    scores = LOGITS / temperature - NOISE.log()
    plain = loss((1 - epsilon) * scores, targets(0.0))
    smoothed = loss(LOGITS, targets(epsilon), NOISE, temperature=temperature)
    torch.testing.assert_close(smoothed, plain, **EXACT)
    # And it really is the smoothed targets' loss, background included.
    rows = targets(epsilon).dense(torch.float64)
    slow = slow_contrast(scores, rows, rows, torch.arange(N))
    torch.testing.assert_close(smoothed, slow, **EXACT)


def test_3_does_not_hold_when_the_smoothing_is_not_shared() -> None:
    """Plain vertices beside smoothed targets need the background's score; leaving it out would be wrong."""
    smoothed = SoftTargets.from_labels(LABELS, K, 0.3)
    loss = SoftTargetInfoNCE("uniform", candidates=BatchCandidates() + ClassCandidates(), reduction="none")
    vertices = torch.eye(K, dtype=torch.float64)
    rows = smoothed.dense(torch.float64)
    slow = slow_contrast(LOGITS, rows, torch.cat([rows, vertices]), torch.arange(N))
    torch.testing.assert_close(loss(LOGITS, smoothed), slow, **EXACT)


def test_4_info_nce_is_nll_when_the_counts_follow_the_noise() -> None:
    labels = torch.arange(K).repeat_interleave(torch.tensor([1, 2, 3, 4, 5, 6, 7]))
    counts = torch.bincount(labels).double()
    noise, n = counts / counts.sum(), len(labels)
    logits = torch.randn(n, K, dtype=torch.float64, requires_grad=True)
    ours = functional.info_nce(logits, labels, noise, reduction="none")
    nll = functional.nll(logits, labels, reduction="none")
    torch.testing.assert_close(ours, nll + (n * noise[labels]).log(), **EXACT)
    torch.testing.assert_close(gradient(ours.sum(), logits), gradient(nll.sum(), logits), **EXACT)


def test_4_tends_to_nll_for_large_batches() -> None:
    """The gap is the relative error of the counts, 1/√n: 25 times the batch, a fifth of the gap (25 repetitions)."""
    generator = torch.Generator().manual_seed(0)
    probe = LOGITS[:1]

    def gap(n: int) -> float:
        labels = torch.multinomial(NOISE, n, replacement=True, generator=generator)
        batch = SoftTargets.from_labels(labels, K)
        ours = functional.info_nce(probe, labels[:1], NOISE, candidates=batch, own=torch.zeros(1, dtype=torch.long))
        return float(ours - (n * NOISE[labels[0]]).log() - functional.nll(probe, labels[:1]))

    small, middle, large = (math.fsum(abs(gap(n)) for _ in range(25)) for n in (400, 10_000, 250_000))
    assert 3 < small / middle < 8
    assert 3 < middle / large < 8


@pytest.mark.parametrize("kind", ["labels", "mixed", "dense"])
def test_5_the_gradient_is_the_candidates_mean_less_the_target(kind: str) -> None:
    logits, temperature = LOGITS.clone().requires_grad_(), 0.6
    t = SoftTargets.from_labels(LABELS, K, 0.1)
    if kind != "labels":
        t = t.mix(t.flip(0), LAM)
    if kind == "dense":
        t = t.to_dense()
    losses = functional.soft_target_info_nce(logits, t, NOISE, temperature=temperature, reduction="sum")
    rows = t.dense(torch.float64)
    scores = LOGITS / temperature - NOISE.log()
    weights = (scores @ rows.t()).softmax(1)
    torch.testing.assert_close(gradient(losses, logits), (weights @ rows - rows) / temperature, **EXACT)


def test_6_accumulation_against_the_whole_batch_is_exact() -> None:
    whole = LOGITS.clone().requires_grad_()
    loss = SoftTargetInfoNCE(NOISE)
    expected = loss(whole, MIXED)
    parts = LOGITS.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(N).split(13):
        part = loss(parts[rows], MIXED[rows], batch=MIXED, own=rows)
        part.backward()
        total += part.detach()
    torch.testing.assert_close(total, expected.detach(), **EXACT)
    torch.testing.assert_close(parts.grad, gradient(expected, whole), **EXACT)
    # The same through the function, divided by hand.
    rows = torch.arange(13, 26)
    summed = functional.soft_target_info_nce(
        LOGITS[rows], MIXED[rows], NOISE, candidates=MIXED, own=rows, reduction="sum"
    )
    torch.testing.assert_close(summed / N, loss(LOGITS[rows], MIXED[rows], batch=MIXED, own=rows), **EXACT)


def test_the_own_target_counts_once_whatever_the_candidates() -> None:
    """With candidates that never hold it, the loss is still bounded below by 0."""
    logits = torch.zeros(1, K, dtype=torch.float64)
    logits[0, 0] = 1e4
    others = SoftTargets.from_labels(torch.tensor([3, 4]), K)
    loss = functional.soft_target_info_nce(logits, torch.tensor([0]), candidates=others)
    assert loss.item() == 0
    even = functional.soft_target_info_nce(torch.zeros(1, K), torch.tensor([0]), candidates=others)
    assert even.item() == pytest.approx(math.log(3))
