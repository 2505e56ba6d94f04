import pytest
import torch
from torch import nn

import softnce
from softnce import heads


def test_the_papers_head() -> None:
    head = heads.MLPHead(768, 200)
    shapes = [tuple(m.weight.shape) for m in head if isinstance(m, nn.Linear)]
    assert shapes == [(4096, 768), (4096, 4096), (200, 4096)]
    assert all(m.bias is None for m in head if isinstance(m, nn.Linear))
    assert [type(m).__name__ for m in head] == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"]


def test_output_norm_has_no_parameters_and_fixes_the_scale() -> None:
    head = heads.MLPHead(8, 5, hidden=16, output_norm=True)
    assert sum(p.numel() for p in head[-1].parameters()) == 0
    scores = head(100 * torch.randn(64, 8))
    torch.testing.assert_close(scores.std(0, correction=0), torch.ones(5), rtol=1e-3, atol=1e-3)


def test_cosine_head_sees_directions_only() -> None:
    head = heads.CosineHead(8, 5, temperature=0.1)
    z = torch.randn(3, 8)
    torch.testing.assert_close(head(z), head(7 * z))
    assert head(z).abs().max() <= 10.001
    cosine = nn.functional.cosine_similarity(z[:, None], head.weight[None], dim=-1)
    torch.testing.assert_close(head(z), cosine / 0.1)
    assert "log_temperature" in dict(head.named_parameters())
    fixed = heads.CosineHead(8, 5, learn_temperature=False)
    assert "log_temperature" in dict(fixed.named_buffers())


def test_a_label_table_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="num_classes must be a whole number of at least 1, got 0"):
        heads.LabelEmbeddingHead(3, 0)
    head = heads.LabelEmbeddingHead(3, 5)
    with pytest.raises(TypeError, match=r"criterion must be .* got NLL, which needs the logits"):
        head.loss(torch.randn(2, 3), torch.tensor([0, 1]), softnce.NLL())  # type: ignore[arg-type]


@pytest.mark.parametrize("cosine", [False, True])
def test_a_head_uses_its_bias_wherever_it_scores(cosine: bool) -> None:
    torch.manual_seed(0)
    head = heads.LabelEmbeddingHead(6, 40, cosine=cosine, bias=True).double()
    assert head.bias is not None
    with torch.no_grad():
        head.bias.normal_(std=3)
    z, labels = torch.randn(9, 6, dtype=torch.float64), torch.arange(9)
    unit = nn.functional.normalize if cosine else lambda x, dim: x
    logits = unit(z, dim=1) @ unit(head.weight, dim=1).T + head.bias
    torch.testing.assert_close(head(z), logits)
    values, classes = head.topk(z, 5, chunk_size=7)
    torch.testing.assert_close(values, logits.topk(5).values)
    assert torch.equal(classes, logits.topk(5).indices)
    criterion = softnce.SoftTargetInfoNCE()
    expected = torch.autograd.grad(criterion(head(z), labels), [head.weight, head.bias])
    value = head.loss(z, labels, criterion)
    torch.testing.assert_close(value, criterion(head(z), labels))
    found = torch.autograd.grad(value, [head.weight, head.bias])
    torch.testing.assert_close(found[0].to_dense(), expected[0])
    torch.testing.assert_close(found[1], expected[1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'bias'"):
        head.loss(z, labels, criterion, bias=head.bias)  # type: ignore[call-arg]


@pytest.mark.parametrize("cosine", [False, True])
def test_an_index_uses_the_heads_bias(cosine: bool) -> None:
    pytest.importorskip("faiss")
    torch.manual_seed(0)
    head = heads.LabelEmbeddingHead(8, 500, cosine=cosine, bias=True)
    with torch.no_grad():
        head.bias.normal_(std=3)
    z = torch.randn(20, 8)
    index = heads.LabelIndex(head, cells=5, probes=5)
    torch.testing.assert_close(index.topk(z, 7)[0], head.topk(z, 7)[0])
    assert index.recall(z, 7) == 1


def table_of(kind: str, num_classes: int = 10_000, dim: int = 32) -> heads.LabelEmbeddingHead:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(num_classes, dim, generator=generator)
    if kind == "clustered":
        centre = torch.randn(100, dim, generator=generator)
        rows = centre[torch.randint(100, (num_classes,), generator=generator)] + 0.3 * rows
    head = heads.LabelEmbeddingHead(dim, num_classes)
    with torch.no_grad():
        head.weight.copy_(rows)
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


@pytest.mark.slow
def test_an_index_can_be_told_what_features_will_come() -> None:
    pytest.importorskip("faiss")
    head, generator = table_of("clustered"), torch.Generator().manual_seed(2)
    near = head.weight.detach()[torch.randint(10_000, (1000,), generator=generator)]
    near = near + 0.3 * torch.randn(1000, 32, generator=generator)
    told, untold = heads.LabelIndex(head, features=near[:300]), heads.LabelIndex(head)
    assert told.index.nprobe < untold.index.nprobe
    assert told.recall(near[300:], 10) >= 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recall": 1.0}, r"recall must be in \(0, 1\), got 1.0"),
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
