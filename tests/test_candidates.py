import pytest
import torch
from batches import KINDS, make_targets, queue_of, seeded
from reference import contrast as slow_contrast

from softnce import (
    BatchCandidates,
    ClassCandidates,
    QueueCandidates,
    SampledCandidates,
    SoftTargetInfoNCE,
    SoftTargets,
    noise,
)

K = 6


def batch(seed: int, n: int = 5, kind: str = "mixed") -> SoftTargets:
    return make_targets(kind, n, K, seeded(seed))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "ignored"])
def test_a_queue_contrasts_with_the_last_targets_of_earlier_batches(kind: str) -> None:
    loss = SoftTargetInfoNCE("uniform", candidates=QueueCandidates(12), reduction="none")
    logits = torch.randn(5, K, dtype=torch.float64)
    batches = [batch(0 if kind == "smoothed" else seed, kind=kind) for seed in range(4)]  # a queue needs one ξ
    assert loss(logits, batches[0]).eq(0).all(), "an empty queue leaves only the own target"
    loss(logits, batches[1])
    loss(logits, batches[2])
    assert len(loss.candidates) == 12
    held = SoftTargets.cat(batches[:3])[-12:]
    torch.testing.assert_close(loss.candidates.held.dense(torch.float64), held.dense(torch.float64))
    expected = slow_contrast(logits, batches[3].dense(torch.float64), held.dense(torch.float64), None)
    torch.testing.assert_close(loss(logits, batches[3]), expected, rtol=0, atol=1e-12)


def test_a_queue_takes_batches_of_any_form_and_smoothing() -> None:
    loss = SoftTargetInfoNCE("uniform", candidates=QueueCandidates(20))
    batches = [batch(seed, kind=kind) for seed, kind in enumerate(("labels", "mixed", "spread", "dense"))]
    for targets in batches:
        loss(torch.randn(5, K, dtype=torch.float64), targets)
    expected = torch.cat([targets.dense(torch.float64) for targets in batches])
    torch.testing.assert_close(loss.candidates.held.dense(torch.float64), expected)


def test_targets_cannot_be_added_to_candidates() -> None:
    for add in (lambda a, b: a + b, lambda a, b: b + a):
        with pytest.raises(TypeError, match="SoftTargets cannot be added to other candidates: pass candidates="):
            add(BatchCandidates(), batch(0))
    with pytest.raises(TypeError, match="unsupported operand"):
        BatchCandidates() + 3


@pytest.mark.parametrize("kind", ["labels", "mixed", "spread", "dense"])
def test_a_saved_queue_goes_on_exactly(kind: str, tmp_path) -> None:
    def new() -> SoftTargetInfoNCE:
        return SoftTargetInfoNCE("uniform", candidates=BatchCandidates() + QueueCandidates(7))

    loss, logits = new(), torch.randn(5, K, dtype=torch.float64)
    for seed in range(3):
        loss(logits, batch(seed, kind=kind))
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    resumed = new()
    resumed.load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))
    for seed in range(3, 6):
        assert torch.equal(loss(logits, batch(seed, kind=kind)), resumed(logits, batch(seed, kind=kind)))
    empty = new()
    empty.load_state_dict(new().state_dict())
    assert len(empty.candidates.terms[1]) == 0


@pytest.mark.parametrize("train", [False, True])
def test_a_validation_is_not_remembered(train: bool) -> None:
    """In eval mode, or without gradients in training mode, as a criterion outside of the model is left."""
    running = noise.RunningNoise(K)
    loss = SoftTargetInfoNCE(running, candidates=BatchCandidates() + QueueCandidates(9)).train(train)
    with torch.set_grad_enabled(not train):
        loss(torch.randn(2, K), torch.tensor([0, 1]))
    assert len(loss.candidates.terms[1]) == 0
    torch.testing.assert_close(running.probs(), noise.uniform(K).double())


def test_a_queue_keeps_its_own_copy() -> None:
    loss, labels = SoftTargetInfoNCE("uniform", candidates=QueueCandidates(4)), torch.tensor([0, 1])
    loss(torch.randn(2, K), labels)
    labels.fill_(5)
    assert loss.candidates.held.index.flatten().tolist() == [0, 1]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 0, 3, 1, 2, 4]])
def test_a_queue_remembers_an_accumulated_batch_once_and_last(order: list[int]) -> None:
    loss, whole = SoftTargetInfoNCE("uniform", candidates=BatchCandidates() + QueueCandidates(20)), batch(0, n=6)
    for rows in torch.tensor(order).split(2):
        assert len(loss.candidates.terms[1]) == 0
        loss(torch.randn(2, K), whole[rows], batch=whole, own=rows)
    loss.remember(whole)
    assert len(loss.candidates.terms[1]) == 6


def test_a_smaller_queue_keeps_the_latest_of_a_saved_one() -> None:
    small = QueueCandidates(3)
    small.load_state_dict(queue_of(20, batch(0, n=5)).state_dict())
    torch.testing.assert_close(small.held.dense(), batch(0, n=5).dense()[-3:])
    assert QueueCandidates(3)
    with pytest.raises(ValueError, match="the queue holds targets of 6 classes, the batch has 7"):
        small(SoftTargets.from_labels(torch.tensor([0]), K + 1), torch.tensor([0]))


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_vertices_smoothed_as_the_labels_hold_the_own_target_once(smoothing: float | None) -> None:
    """Then they are cross-entropy at the temperature that smoothing is."""
    logits, labels = torch.randn(5, K, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 5])
    loss = SoftTargetInfoNCE("uniform", candidates=ClassCandidates(smoothing), label_smoothing=0.1)
    expected = torch.nn.functional.cross_entropy(0.9 * logits, labels)
    torch.testing.assert_close(loss(logits, labels), expected, rtol=0, atol=1e-12)
    loss = SoftTargetInfoNCE("uniform", candidates=ClassCandidates(0.1))
    dense = SoftTargets.from_labels(labels, K).smooth(0.1).to_dense()
    torch.testing.assert_close(loss(logits, dense), expected, rtol=1e-6, atol=0)


def test_mixing_a_target_with_itself_is_still_a_hit() -> None:
    t = SoftTargets.from_labels(torch.tensor([2, 2, 2, 2, 0, 1, 3, 4]), K, 0.1)
    mixed = t.mix(t[torch.tensor([1, 2, 3, 0, 5, 4, 7, 6])], torch.rand(8, generator=seeded()))
    logits = torch.randn(8, K)
    loss = SoftTargetInfoNCE("uniform", remove_accidental_hits=True, reduction="none")
    torch.testing.assert_close(loss(logits, mixed), loss(logits, mixed.dense()))
    queue = queue_of(4, SoftTargets.from_labels(torch.tensor([2]), K, 0.1, torch.softmax(torch.randn(K), 0)))
    SoftTargetInfoNCE("uniform", candidates=queue, remove_accidental_hits=True).eval()(logits, mixed)


def test_sampled_candidates_look_like_the_policy() -> None:
    marginal = torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0, 0.0])
    sampled = SampledCandidates(20_000, marginal, mix_alpha=0.8, smoothing=0.1)
    ([group], own) = sampled(batch(0), torch.arange(5), seeded())
    assert own is None
    assert group.smoothing == 0.1
    rows = group.dense()
    torch.testing.assert_close(rows.sum(1), torch.ones(20_000))
    # Five standard errors of a mean of 20,000: one false alarm in a million.
    assert ((rows.mean(0) - (0.9 * marginal + 0.1 / K)).abs() < 5 * rows.std(0) / 20_000**0.5 + 1e-6).all()
    lam = group.weight[:, 0] / 0.9
    beta = torch.distributions.Beta(0.8, 0.8)
    assert abs(lam.mean() - 0.5) < 5 * beta.stddev / 20_000**0.5
    assert abs(lam.var() - beta.variance) < 0.003
    ([again], _) = sampled(batch(0), torch.arange(5), seeded())
    assert torch.equal(again.dense(), rows)
    ([plain], _) = SampledCandidates(8)(batch(0), torch.arange(5))
    assert plain.is_hard


def test_sampled_candidates_get_the_own_target_added() -> None:
    loss = SoftTargetInfoNCE("uniform", candidates=SampledCandidates(30, mix_alpha=0.8, smoothing=0.1))
    logits, targets = torch.randn(5, K, dtype=torch.float64), batch(1)
    value = loss(logits, targets, generator=seeded(3))
    ([group], _) = loss.candidates(targets, torch.arange(5), seeded(3))
    expected = slow_contrast(logits, targets.dense(torch.float64), group.dense(torch.float64), None).mean()
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("smoothing", "by_row", "atol"), [(0.1, False, 1e-12), (None, False, 1e-12), (0.1, True, 1e-7)]
)
def test_smoothed_class_candidates(smoothing: float | None, by_row: bool, atol: float) -> None:
    """Also beside labels smoothed row by row, in float32."""
    logits, targets = torch.randn(5, K, dtype=torch.float64), batch(1)
    if by_row:
        targets = SoftTargets.cat([SoftTargets.from_labels(torch.arange(n), K, n / 10 - 0.1) for n in (2, 3)])
    vertices = 0.9 * torch.eye(K, dtype=torch.float64) + 0.1 / K
    expected = slow_contrast(logits, targets.dense(torch.float64), vertices, None, remove_hits=True).mean()
    loss = SoftTargetInfoNCE("uniform", candidates=ClassCandidates(smoothing))
    torch.testing.assert_close(loss(logits, targets), expected, rtol=0, atol=atol)
    with pytest.raises(ValueError, match="one smoothing"):
        SoftTargetInfoNCE("uniform", candidates=ClassCandidates(None))(logits, batch(1, kind="spread"))


def test_candidates_add_up_and_keep_the_own_in_place() -> None:
    total = ClassCandidates() + (queue_of(8, batch(9, n=4)) + BatchCandidates())
    loss = SoftTargetInfoNCE("uniform", candidates=total, reduction="none")
    logits, targets = torch.randn(5, K, dtype=torch.float64), batch(1)
    rows = torch.cat([torch.eye(K, dtype=torch.float64), batch(9, n=4).dense(), targets.dense()])
    expected = slow_contrast(logits, targets.dense(), rows, K + 4 + torch.arange(5))
    torch.testing.assert_close(loss(logits, targets), expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="own target twice"):
        BatchCandidates() + ClassCandidates() + BatchCandidates()


def test_accidental_hits_are_left_out_and_the_own_never() -> None:
    logits, targets = torch.randn(5, K, dtype=torch.float64), SoftTargets.from_labels(torch.tensor([0, 0, 1, 2, 2]), K)
    pairs = targets.mix(targets, 0.5)  # the same targets, as pairs that name a class twice
    rows = targets.dense(torch.float64)
    expected = slow_contrast(logits, rows, rows, torch.arange(5), remove_hits=True)
    loss = SoftTargetInfoNCE("uniform", remove_accidental_hits=True, reduction="none")
    for form in (targets, pairs, SoftTargets.from_dense(rows)):
        torch.testing.assert_close(loss(logits, form), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SampledCandidates(0), "size must be a whole number of at least 1"),
        (lambda: SampledCandidates(4, mix_alpha=-1.0), "mix_alpha must be a finite number of at least 0"),
        (lambda: SampledCandidates(4, smoothing=2.0), "smoothing must be a number in"),
        (lambda: SampledCandidates(4, torch.tensor([0.5, 0.2])), "marginal must sum to 1"),
        (lambda: QueueCandidates(0), "size must be a whole number of at least 1"),
        (lambda: ClassCandidates(smoothing=1.0), "smoothing must be in"),
    ],
)
def test_misuse(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_given_candidates_keep_their_precision_and_refuse_groups() -> None:
    mixed = SoftTargets.from_labels(torch.tensor([0, 1]), 4).mix(SoftTargets.from_labels(torch.tensor([2, 3]), 4), 0.3)
    assert torch.equal(SoftTargetInfoNCE(candidates=mixed).half().candidates.targets.weight, mixed.weight)
    group = SoftTargets.from_topk_log_probs([[0, 1]], torch.tensor([[0.5, 0.25]]).log(), 4)
    with pytest.raises(ValueError, match="hold the classes beyond the top k as one group"):
        SoftTargetInfoNCE(candidates=group)
