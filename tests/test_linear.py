"""The label-embedding form: the same value and gradients as through the logits, at a cost that does not know K."""

import pytest
import torch
from batches import KINDS, make_targets
from torch.nn import functional as F

from softnce import (
    ClassCandidates,
    QueueCandidates,
    SoftTargetInfoNCE,
    SoftTargets,
    functional,
    heads,
    noise,
)

N, K, DIM = 7, 9, 4
GENERATOR = torch.Generator().manual_seed(0)
FEATURES, TABLE, BIAS = (
    torch.randn(*shape, dtype=torch.float64, generator=GENERATOR) for shape in ((N, DIM), (K, DIM), (K,))
)
NOISE = noise.from_counts(torch.arange(1, K + 1)).double()
SMOOTHED = SoftTargets.from_labels(torch.tensor([1]), K, smoothing=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [None, "labels", "mixed", "dense"])
@pytest.mark.parametrize("cosine", [False, True])
def test_equals_the_loss_of_the_logits(kind: str, other: str | None, cosine: bool) -> None:
    targets = make_targets(kind, N, K, torch.Generator().manual_seed(1))
    candidates = None if other is None else make_targets(other, 5, K, torch.Generator().manual_seed(2))
    leaves = [x.clone().requires_grad_() for x in (FEATURES, TABLE, BIAS, torch.tensor(0.6, dtype=torch.float64))]
    z, y, b, temperature = leaves
    options = {"noise_probs": NOISE, "candidates": candidates, "temperature": temperature}
    options |= {"remove_accidental_hits": not cosine, "chunk_size": 3 if cosine else None}
    bias = None if cosine else b
    logits = F.linear(F.normalize(z, dim=1), F.normalize(y, dim=1)) if cosine else F.linear(z, y, b)
    direct = functional.linear_soft_target_info_nce(z, y, targets, bias=bias, cosine=cosine, **options)
    through = functional.soft_target_info_nce(logits, targets, **options)
    torch.testing.assert_close(direct, through, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(value, leaves, allow_unused=True) for value in (direct, through))
    for mine, its in zip(ours, theirs, strict=True):
        if its is not None:
            torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)


def test_chunks_take_functional_transforms() -> None:
    def total(table: torch.Tensor, chunk_size: int | None) -> torch.Tensor:
        return functional.linear_info_nce(FEATURES, table, torch.arange(N) % K, NOISE, chunk_size=chunk_size)

    whole, chunked = (torch.func.grad(total)(TABLE, chunk_size) for chunk_size in (None, 3))
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-12)


def test_an_empty_queue_trains_nothing_and_breaks_nothing() -> None:
    """It is filled all the same."""
    head, loss = heads.LabelEmbeddingHead(DIM, K), SoftTargetInfoNCE("uniform", candidates=QueueCandidates(8))
    value = head.loss(torch.randn(3, DIM), torch.tensor([0, 1, 2]), loss)
    value.backward()
    assert value.item() == 0
    assert head.weight.grad.to_dense().eq(0).all()
    assert loss.candidates.held.labels.tolist() == [0, 1, 2]


def test_class_vertices_under_autocast_and_with_half_features() -> None:
    loss = SoftTargetInfoNCE("uniform", candidates=ClassCandidates())
    labels, z, y = torch.tensor([0, 1, 2]), torch.randn(3, DIM), torch.randn(K, DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss.linear(z, y, labels)
        assert value == loss.linear(z, y, labels)
        torch.testing.assert_close(value, F.cross_entropy((z.double() @ y.double().t()), labels).float())
    assert loss.linear(z.half(), y, labels).dtype == torch.float32


def test_sparse_gradients_touch_only_the_targets_classes_and_equal_the_dense_ones() -> None:
    t = SoftTargets.from_labels(torch.tensor([0, 2, 2, 4, 4, 4, 7]), K, smoothing=0.1)
    targets = t.mix(t.flip(0), 0.3)
    dense, sparse = TABLE.clone().requires_grad_(), TABLE.clone().requires_grad_()
    functional.linear_soft_target_info_nce(FEATURES, dense, targets).backward()
    functional.linear_soft_target_info_nce(FEATURES, sparse, targets, sparse=True).backward()
    assert sparse.grad.is_sparse
    assert sparse.grad.coalesce().indices().flatten().tolist() == [0, 2, 4, 7]
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("optimiser", "lr"), [(torch.optim.SparseAdam, 0.1), (torch.optim.SGD, 30.0)])
@pytest.mark.parametrize("cosine", [False, True])
def test_a_label_embedding_head_learns(optimiser, lr: float, cosine: bool) -> None:
    torch.manual_seed(0)
    classes, dim = 500, 16
    prototypes = torch.randn(classes, dim)
    head = heads.LabelEmbeddingHead(dim, classes, cosine=cosine)
    criterion = SoftTargetInfoNCE("uniform", temperature=0.1 if cosine else 1.0, label_smoothing=0.1)
    steps = optimiser(list(head.parameters()), lr=lr)
    for _ in range(100):
        labels = torch.randint(classes, (256,))
        steps.zero_grad()
        head.loss(prototypes[labels] + 0.1 * torch.randn(256, dim), labels, criterion).backward()
        steps.step()
    predicted = head.topk(prototypes, 1)[1][:, 0]
    assert (predicted == torch.arange(classes)).float().mean() > 0.9


@pytest.mark.parametrize(
    ("features", "targets", "more", "message"),
    [
        (FEATURES[:2, 1:], torch.tensor([0, 1]), {}, "features have 3 columns"),
        (FEATURES[:2], torch.tensor([0]), {}, r"labels of shape \(2,\)"),
        (FEATURES[0], torch.tensor([0]), {}, "matrix"),
        (FEATURES[:2], torch.randn(2, K).softmax(1), {}, "a dense row touches every class"),
        (FEATURES[:2], torch.tensor([0, 1]), {"candidates": SMOOTHED}, "smoothing touches every class"),
    ],
)
def test_misuse(features, targets, more, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        functional.linear_soft_target_info_nce(features, TABLE, targets, sparse=True, **more)
