from collections.abc import Callable

import pytest
import torch
from allocations import peak
from torch import nn
from torch.testing import assert_close

import softnce
from softnce import heads
from softnce.optimisers import RowAdagrad


def test_the_papers_head() -> None:
    head = heads.MLPHead(768, 200)
    linear = [m for m in head if isinstance(m, nn.Linear)]
    assert [tuple(m.weight.shape) for m in linear] == [(4096, 768), (4096, 4096), (200, 4096)]
    assert all(m.bias is None for m in linear)
    assert [type(m).__name__ for m in head] == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"]


def test_cosine_head_sees_directions_only() -> None:
    head = heads.CosineHead(8, 5, temperature=0.1)
    z = torch.randn(3, 8)
    assert_close(head(z), head(7 * z))
    assert head(z).abs().max() <= 10.001
    assert_close(head(z), nn.functional.cosine_similarity(z[:, None], head.weight[None], dim=-1) / 0.1)
    assert "log_temperature" in dict(head.named_parameters())


@pytest.mark.parametrize("cosine", [False, True])
def test_a_head_uses_its_bias_wherever_it_scores(cosine: bool) -> None:
    torch.manual_seed(0)
    head = heads.LabelEmbeddingHead(6, 40, cosine=cosine, bias=True).double()
    nn.init.normal_(head.bias, std=3)
    z, labels = torch.randn(9, 6, dtype=torch.float64), torch.arange(9)
    unit = nn.functional.normalize if cosine else lambda x, dim: x
    logits = unit(z, dim=1) @ unit(head.weight, dim=1).T + head.bias
    assert_close(head(z), logits)
    for chunk_size in (3, 7, 100):
        values, classes = head.topk(z, 5, chunk_size=chunk_size)
        assert_close(values, logits.topk(5).values)
        assert torch.equal(classes, logits.topk(5).indices)
    for criterion in (softnce.SoftTargetInfoNCE("uniform"), softnce.NLL(), softnce.SoftTargetCrossEntropy()):
        values = head.loss(z, labels, criterion), criterion(head(z), labels)
        assert_close(*values, rtol=0, atol=1e-13)
        found, expected = (torch.autograd.grad(value, [head.weight, head.bias]) for value in values)
        assert_close([found[0].to_dense(), found[1]], list(expected), rtol=0, atol=1e-13)
    with pytest.raises(TypeError, match="bias"):
        head.loss(z, labels, criterion, bias=head.bias)  # type: ignore[call-arg]


@pytest.mark.parametrize("cosine", [False, True])
def test_an_index_uses_the_heads_bias(cosine: bool) -> None:
    pytest.importorskip("faiss")
    torch.manual_seed(0)
    head, z = heads.LabelEmbeddingHead(8, 500, cosine=cosine, bias=True), torch.randn(20, 8)
    nn.init.normal_(head.bias, std=3)
    index = heads.LabelIndex(head, cells=5, probes=5)
    assert_close(index.topk(z, 7)[0], head.topk(z, 7)[0])
    assert index.recall(z, 7) == 1
    few = heads.LabelIndex(head, cells=20, probes=2)
    found, true = few.topk(z, 7)[1], head.topk(z, 7)[1]
    share = (found[:, :, None] == true[:, None]).any(1).double().mean().item()
    assert few.recall(z, 7) == pytest.approx(share)
    assert share < 1


def table_of(kind: str, num_classes: int = 10_000, dim: int = 32) -> heads.LabelEmbeddingHead:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(num_classes, dim, generator=generator)
    if kind == "clustered":
        centre = torch.randn(100, dim, generator=generator)
        rows = centre[torch.randint(100, (num_classes,), generator=generator)] + 0.3 * rows
    head = heads.LabelEmbeddingHead(dim, num_classes)
    head.weight.data.copy_(rows)
    return head


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [("clustered", 0.1), ("random", 1.0)])
def test_an_index_finds_as_many_of_the_best_as_asked_for(kind: str, most: float) -> None:
    pytest.importorskip("faiss")
    head, generator = table_of(kind), torch.Generator().manual_seed(2)
    z = torch.randn(1000, 32, generator=generator)  # not those that the index chose its probes with
    index = heads.LabelIndex(head)
    assert index.recall(z, 10) >= 0.95
    assert index.index.nprobe <= most * index.index.nlist
    fewer = heads.LabelIndex(head, recall=0.5)
    assert fewer.index.nprobe < index.index.nprobe
    assert fewer.recall(z, 10) >= 0.5
    if kind == "clustered":  # an index may be told what features will come
        near = head.weight.detach()[torch.randint(10_000, (1000,), generator=generator)]
        near = near + 0.3 * torch.randn(1000, 32, generator=generator)
        told = heads.LabelIndex(head, features=near[:300])
        assert told.index.nprobe < index.index.nprobe
        assert told.recall(near[300:], 10) >= 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recall": 1.0}, r"recall must be a number in \(0, 1\), got 1.0"),
        ({"recall": "high"}, "recall must be a number in"),
        ({"probes": 0}, "probes must be"),
        ({"cells": 51}, "cells must be at most the 50 classes, got 51"),
        ({"features": torch.randn(5, 3)}, "features have 3 columns"),
    ],
)
def test_misuse_of_an_index_gets_one_clear_error(options: dict, message: str) -> None:
    pytest.importorskip("faiss")
    with pytest.raises((TypeError, ValueError), match=message):
        heads.LabelIndex(heads.LabelEmbeddingHead(4, 50), **options)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_linear_layer_becomes_a_head(bias: bool, dtype: torch.dtype) -> None:
    linear = nn.Linear(6, 40, bias=bias, dtype=dtype)
    head = heads.LabelEmbeddingHead.from_linear(linear)
    z = torch.randn(9, 6, dtype=dtype)
    assert torch.equal(head(z), linear(z))
    assert head.weight.data_ptr() != linear.weight.data_ptr()
    assert (head.bias is None) != bias
    assert set(head.state_dict()) == ({"table.weight", "bias"} if bias else {"table.weight"})


def test_the_best_classes_of_half_precision_features() -> None:
    head, z = heads.LabelEmbeddingHead(6, 40), torch.randn(9, 6).bfloat16()
    assert torch.equal(head.topk(z, 3)[1], head.topk(z.float(), 3)[1])
    with torch.autocast("cpu", torch.bfloat16):
        assert head(z).dtype == torch.bfloat16


def test_positions_of_sequences_are_rows_and_padding_is_ignored() -> None:
    torch.manual_seed(0)
    head = heads.LabelEmbeddingHead(4, 30, bias=True).double()
    z = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    labels, weight = torch.randint(30, (3, 5)), torch.rand(3, 5, dtype=torch.float64)
    labels[0, 3:] = labels[2, 1:] = -100
    criterion = softnce.SoftTargetInfoNCE("uniform")
    kept, kept_labels, kept_weight = (t[labels != -100] for t in (z, labels, weight))
    expected = head.loss(kept, kept_labels, criterion, sample_weight=kept_weight)
    for targets in (labels, softnce.SoftTargets.from_labels(labels.flatten(), 30)):
        found = head.loss(z, targets, criterion, sample_weight=weight)
        assert_close(found, expected)
        assert_close(*(torch.autograd.grad(v, z, retain_graph=True)[0] for v in (found, expected)))
    dense = torch.rand(3, 5, 30, dtype=torch.float64).softmax(-1)
    exact = softnce.SoftTargetCrossEntropy()
    assert_close(head.loss(z, dense, exact), head.loss(z.flatten(0, 1), dense.flatten(0, 1), exact))
    each = head.loss(z, labels, softnce.SoftTargetInfoNCE("uniform", reduction="none"))
    assert each.shape == (3, 5)
    assert not each[labels == -100].any()
    with pytest.raises(ValueError, match=r"targets must be labels of shape \(3, 5\)"):
        head.loss(z, labels.T, criterion)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("assigned", [False, True])
def test_a_tied_table_gets_the_gradients_of_both_uses(sparse: bool, assigned: bool) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(30, 4, sparse=sparse, padding_idx=0, dtype=torch.float64)
    head = heads.LabelEmbeddingHead.from_embedding(embedding)
    if assigned:
        head = heads.LabelEmbeddingHead(4, 30)
        head.table = embedding
    inputs, labels = torch.randint(1, 30, (3, 5)), torch.randint(30, (3,))
    criterion = softnce.SoftTargetInfoNCE("uniform")
    head.loss(embedding(inputs).mean(1), labels, criterion).backward()
    table = embedding.weight.detach().clone().requires_grad_()
    criterion(table[inputs].mean(1) @ table.T, labels).backward()
    assert embedding.weight.grad.is_sparse == sparse
    found = embedding.weight.grad.to_dense()
    assert_close(found, table.grad)
    assert [name for name, _ in head.named_parameters()] == ["table.weight"]
    assert head.table(labels).shape == (3, 4)
    biased = heads.LabelEmbeddingHead.from_embedding(nn.Embedding(30, 4), cosine=True, bias=True)
    biased.loss(torch.randn(2, 4), torch.tensor([3, 4]), criterion).backward()
    assert biased.bias.shape == biased.bias.grad.shape == (30,)


@pytest.mark.parametrize(
    ("misuse", "error", "message"),
    [
        (lambda head: type(head)(3, 0), ValueError, "num_classes must be a whole number of at least 1, got 0"),
        (lambda head: head.from_embedding(nn.Embedding(3, 2, max_norm=1.0)), ValueError, "max_norm"),
        (lambda head: head.topk(torch.ones(2, 3), 6), ValueError, "k must be between 1 and the 5 classes"),
        (lambda head: head.from_embedding(nn.Linear(3, 2)), TypeError, r"must be an nn\.Embedding, got Linear"),
        (
            lambda head: head.loss(torch.randn(2, 3), torch.tensor([0, 1]), nn.CrossEntropyLoss()),
            TypeError,
            "criterion must be .* got CrossEntropyLoss",
        ),
    ],
)
def test_misuse_of_a_label_table_gets_one_clear_error(misuse: Callable, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        misuse(heads.LabelEmbeddingHead(3, 5))


def test_the_best_classes_without_those_seen() -> None:
    torch.manual_seed(0)
    head, z = heads.LabelEmbeddingHead(4, 12, bias=True), torch.randn(6, 4)
    seen = torch.randint(-1, 12, (6, 9))
    seen[0] = -1
    lists = [row[row >= 0] for row in seen]
    offsets = torch.tensor([0, *torch.tensor([len(each) for each in lists]).cumsum(0).tolist()])
    logits = head(z).detach()
    for row, each in enumerate(lists):
        logits[row, each] = -torch.inf
    values, classes = logits.topk(9)
    classes[values == -torch.inf] = -1
    assert (classes == -1).any()
    of_python = [each.tolist() for each in lists]
    for exclude in (seen, seen.int(), lists, of_python, (offsets, torch.cat(lists))):
        found = head.topk(z, 9, chunk_size=5, exclude=exclude)
        assert_close(found[0], values)
        assert torch.equal(found[1], classes)
    assert torch.equal(head.topk(z, 2, exclude=torch.full((6, 3), -1))[1], head.topk(z, 2)[1])
    for given in (None, seen):  # positions of sequences
        for nested, flat in zip(head.topk(z.view(2, 3, 4), 9, 5, given), head.topk(z, 9, 5, given), strict=True):
            assert torch.equal(nested, flat.view(2, 3, 9))


WITH_NOISE = {"candidates": softnce.BatchCandidates() + softnce.NoiseCandidates(64)}
SAMPLED = softnce.BatchCandidates() + softnce.SampledCandidates(64)
STEPS = {
    "the batch": lambda k: softnce.ExpectedInfoNCE("uniform"),
    "noise": lambda k: softnce.ExpectedInfoNCE("uniform", **WITH_NOISE),
    "noise, estimated": lambda k: softnce.ExpectedInfoNCE("running", **WITH_NOISE),
    "noise, given": lambda k: softnce.ExpectedInfoNCE(softnce.noise.uniform(k), **WITH_NOISE),
    "sampled": lambda k: softnce.SoftTargetInfoNCE("uniform", candidates=SAMPLED),
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_the_memory_of_a_step_does_not_depend_on_the_number_of_classes(make: Callable[[int], nn.Module]) -> None:
    found = []
    for num_classes in (10_000, 1_000_000):
        head, criterion = heads.LabelEmbeddingHead(16, num_classes), make(num_classes)
        optimiser = RowAdagrad(head.parameters(), lr=1.0)
        hard = softnce.SoftTargets.from_labels(torch.arange(128), num_classes)
        targets, z = hard.mix(hard.flip(0), 0.7), torch.randn(128, 16, requires_grad=True)

        def step(head=head, optimiser=optimiser, targets=targets, z=z, criterion=criterion) -> None:
            optimiser.zero_grad()
            head.loss(z, targets, criterion).backward()
            optimiser.step()

        step()  # makes the state
        found.append(peak(step))
    assert 0 < found[1] <= 1.1 * found[0] < 1_000_000 * 4
