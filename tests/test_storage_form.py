"""Equal targets give equal losses, whatever form they are stored in, for every loss, candidates and draw."""

import pytest
import torch
from batches import KINDS, assert_same, make_targets, queue_of, seeded, value_and_gradients
from torch import Tensor
from torch.testing import assert_close

from softnce import (
    NLL,
    BatchCandidates,
    ClassCandidates,
    ExpectedInfoNCE,
    NoiseCandidates,
    SampledCandidates,
    SoftTargetCrossEntropy,
    SoftTargetInfoNCE,
    SoftTargets,
)

N, K = 6, 5
NOISE = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1], dtype=torch.float64)


CANDIDATES = {
    "none": lambda: None,
    "batch": BatchCandidates,
    "vertices": ClassCandidates,
    "smoothed vertices": lambda: ClassCandidates(0.1),
    "vertices as the batch": lambda: ClassCandidates(None),
    "sampled": lambda: SampledCandidates(7),
    "queue": lambda: queue_of(9, make_targets("mixed", 9, K, seeded(3))),
    "sum": lambda: BatchCandidates() + ClassCandidates() + CANDIDATES["queue"](),
}
LOSSES = {
    "soft target": lambda c: SoftTargetInfoNCE(NOISE, candidates=c),
    "soft target, hits": lambda c: SoftTargetInfoNCE(NOISE, candidates=c, remove_accidental_hits=True),
    "expected": lambda c: ExpectedInfoNCE(NOISE, candidates=c),
    "expected, noise": lambda c: ExpectedInfoNCE(NOISE, candidates=(c or BatchCandidates()) + NoiseCandidates(2.5)),
    "expected, smoothed": lambda c: ExpectedInfoNCE(NOISE, candidates=c, label_smoothing=0.1),
    "cross-entropy": lambda c: SoftTargetCrossEntropy(),
}


def check(make, targets: SoftTargets, bound: float = 1e-12) -> None:
    logits = torch.randn(N, K, dtype=torch.float64, generator=seeded(1))

    def found(given: SoftTargets) -> list[Tensor]:
        loss = make().eval()
        return value_and_gradients(lambda x: loss(x, given, generator=seeded(0)), logits)

    wanted = found(targets)
    dense = SoftTargets(K, None, targets.unmasked_dense(torch.float64), mask=targets.mask)
    pairs = SoftTargets(K, torch.arange(K).expand(N, K), dense.weight, mask=targets.mask)
    for form in (dense, pairs):
        assert_same(found(form), wanted, bound)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidates", CANDIDATES)
def test_the_form_changes_nothing(candidates: str, kind: str) -> None:
    targets = make_targets(kind, N, K, seeded(2))
    if targets.weight is None and not targets.is_hard:  # weights implied by a number: keep them in float64
        dense = targets.unmasked_dense(torch.float64)
        targets = SoftTargets(K, torch.arange(K).expand(N, K), dense, mask=targets.mask)
    own_background = isinstance(targets.smoothing, Tensor) or kind in ("smoothed", "mixed")
    if candidates == "vertices as the batch" and own_background:
        return  # dense rows have no background that vertices could follow
    for name, make in LOSSES.items():
        if kind == "labels" or (name, candidates) != ("expected", "none"):  # whose draws differ
            check(lambda make=make: make(CANDIDATES[candidates]()), targets)


def test_vertices_leave_the_own_share_out() -> None:
    """R = Σ_k (1 − α_k) e^{s_k}: continuous in α, and NLL for labels."""
    logits, labels = torch.randn(4, K, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    loss = ExpectedInfoNCE("uniform", candidates=ClassCandidates())
    assert_close(loss(logits, labels), NLL()(logits, labels))
    soft = torch.softmax(torch.randn(4, K, dtype=torch.float64), 1)
    rest = ((1 - soft) * logits.exp()).sum(1, keepdim=True)
    assert_close(loss(logits, soft), (soft * torch.log1p(rest / logits.exp())).sum(1).mean())
